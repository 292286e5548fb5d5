"""Chat Completions: agentx-model-openai beside openai."""

from __future__ import annotations

import json
from typing import Any

from openai import AsyncOpenAI

from agentx import Message, ModelRequest, TextDelta, TextPart, ToolSpec
from agentx_model_openai import OpenAIModel

ASK = "Tell me a story."
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = (ToolSpec("weather", "Weather.", SCHEMA),)
REQUEST = ModelRequest("m", (Message("user", (TextPart(ASK),)),), "Be brief.", TOOLS)
HEAD = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "system_fingerprint": "fp"}
USAGE = {"prompt_tokens": 10, "completion_tokens": 5000, "total_tokens": 5010}
MESSAGE = {"role": "assistant", "content": "Once upon a time.", "refusal": None, "annotations": []}
CHOICE = {"index": 0, "message": MESSAGE, "logprobs": None, "finish_reason": "stop"}
PLAIN = json.dumps({**HEAD, "object": "chat.completion", "choices": [CHOICE], "usage": USAGE}).encode()


def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return b"data: " + json.dumps({**HEAD, "choices": [choice], **more}).encode() + b"\n\n"


def stream_events(deltas: int) -> list[bytes]:
    last = b"data: " + json.dumps({**HEAD, "choices": [], "usage": USAGE}).encode() + b"\n\n"
    return [
        chunk({"role": "assistant", "content": ""}),
        *[chunk({"content": f" word{number % 10}"}) for number in range(deltas)],
        chunk({}, "stop"),
        last,
        b"data: [DONE]\n\n",
    ]


def is_stream(line: bytes, body: bytes) -> bool:
    return bool(json.loads(body).get("stream"))


class ours:  # a name of the table in providers.py
    api = "chat"

    @classmethod
    async def open(cls, url: str) -> tuple[OpenAIModel, OpenAIModel]:
        options: dict[str, Any] = {"api_key": "sk-test", "base_url": url, "api": cls.api}
        return OpenAIModel("m", **options), OpenAIModel("m", stream=False, **options)

    @classmethod
    async def stream(cls, client: tuple[OpenAIModel, OpenAIModel]) -> int:
        count = 0

        async def emit(delta: Any) -> None:
            nonlocal count
            count += type(delta) is TextDelta

        await client[0].respond(REQUEST, emit)
        return count

    @classmethod
    async def plain(cls, client: tuple[OpenAIModel, OpenAIModel]) -> int:
        async def emit(delta: Any) -> None:
            pass

        return len((await client[1].respond(REQUEST, emit)).text)

    @classmethod
    async def close(cls, client: tuple[OpenAIModel, OpenAIModel]) -> None:
        for model in client:
            await model.aclose()


class sdk:
    @classmethod
    async def open(cls, url: str) -> AsyncOpenAI:
        return AsyncOpenAI(api_key="sk-test", base_url=url)

    @classmethod
    def request(cls) -> dict[str, Any]:
        function = {"name": "weather", "description": "Weather.", "parameters": SCHEMA}
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": ASK}]
        return {"model": "m", "messages": messages, "tools": [{"type": "function", "function": function}]}

    @classmethod
    async def stream(cls, client: Any) -> int:
        texts: list[str] = []
        options = {"stream": True, "stream_options": {"include_usage": True}}
        async for chunk in await client.chat.completions.create(**cls.request(), **options):
            if chunk.choices and chunk.choices[0].delta.content:
                texts.append(chunk.choices[0].delta.content)
        return len(texts)

    @classmethod
    async def plain(cls, client: Any) -> int:
        answer = await client.chat.completions.create(**cls.request())
        return len(answer.choices[0].message.content)

    @classmethod
    async def close(cls, client: AsyncOpenAI) -> None:
        await client.close()
