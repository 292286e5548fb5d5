"""The Messages API: agentx-model-anthropic beside anthropic."""

from __future__ import annotations

import json
from typing import Any

from anthropic import AsyncAnthropic

from agentx import Message, ModelRequest, TextDelta, TextPart, ToolSpec
from agentx_model_anthropic import AnthropicModel

ASK = "Tell me a story."
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
REQUEST = ModelRequest(
    "m", (Message("user", (TextPart(ASK),)),), "Be brief.", (ToolSpec("weather", "Weather.", SCHEMA),)
)
HEAD = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "stop_sequence": None}
USAGE = {"input_tokens": 10, "output_tokens": 5000, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 0}
CONTENT = [{"type": "text", "text": "Once upon a time."}]
PLAIN = json.dumps({**HEAD, "content": CONTENT, "stop_reason": "end_turn", "usage": USAGE}).encode()


def event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


def stream_events(deltas: int) -> list[bytes]:
    pieces = [{"type": "text_delta", "text": f" word{number % 10}"} for number in range(deltas)]
    return [
        event("message_start", message={**HEAD, "content": [], "stop_reason": None, "usage": USAGE}),
        event("content_block_start", index=0, content_block={"type": "text", "text": ""}),
        *[event("content_block_delta", index=0, delta=piece) for piece in pieces],
        event("content_block_stop", index=0),
        event("message_delta", delta={"stop_reason": "end_turn", "stop_sequence": None}, usage={"output_tokens": 5000}),
        event("message_stop"),
    ]


def is_stream(line: bytes, body: bytes) -> bool:
    return bool(json.loads(body).get("stream"))


class ours:  # a name of the table in providers.py
    @classmethod
    async def open(cls, url: str) -> tuple[AnthropicModel, AnthropicModel]:
        options: dict[str, Any] = {"api_key": "sk-test", "base_url": url}
        return AnthropicModel("m", **options), AnthropicModel("m", stream=False, **options)

    @classmethod
    async def stream(cls, client: tuple[AnthropicModel, AnthropicModel]) -> int:
        count = 0

        async def emit(delta: Any) -> None:
            nonlocal count
            count += type(delta) is TextDelta

        await client[0].respond(REQUEST, emit)
        return count

    @classmethod
    async def plain(cls, client: tuple[AnthropicModel, AnthropicModel]) -> int:
        async def emit(delta: Any) -> None:
            pass

        return len((await client[1].respond(REQUEST, emit)).text)

    @classmethod
    async def close(cls, client: tuple[AnthropicModel, AnthropicModel]) -> None:
        for model in client:
            await model.aclose()


class sdk:
    @classmethod
    async def open(cls, url: str) -> AsyncAnthropic:
        return AsyncAnthropic(api_key="sk-test", base_url=url)

    @classmethod
    def request(cls) -> dict[str, Any]:
        tools = [{"name": "weather", "description": "Weather.", "input_schema": SCHEMA}]
        messages = [{"role": "user", "content": ASK}]
        return {"model": "m", "max_tokens": 8192, "system": "Be brief.", "messages": messages, "tools": tools}

    @classmethod
    async def stream(cls, client: AsyncAnthropic) -> int:
        texts: list[str] = []
        async for one in await client.messages.create(**cls.request(), stream=True):
            if one.type == "content_block_delta" and one.delta.type == "text_delta":
                texts.append(one.delta.text)
        return len(texts)

    @classmethod
    async def plain(cls, client: AsyncAnthropic) -> int:
        answer = await client.messages.create(**cls.request())
        return len(answer.content[0].text)

    @classmethod
    async def close(cls, client: AsyncAnthropic) -> None:
        await client.close()
