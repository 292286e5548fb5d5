"""The Responses API: agentx-model-openai beside openai."""

from __future__ import annotations

import json
from typing import Any

from . import openai_chat
from .openai_chat import ASK, SCHEMA, is_stream

__all__ = ["PLAIN", "is_stream", "ours", "sdk", "stream_events"]

USAGE = {
    "input_tokens": 10,
    "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
    "output_tokens": 5000,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 5010,
}
RESPONSE = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1,
    "model": "m",
    "status": "completed",
    "error": None,
    "incomplete_details": None,
    "instructions": "Be brief.",
    "metadata": {},
    "parallel_tool_calls": True,
    "temperature": 1.0,
    "tool_choice": "auto",
    "tools": [],
    "top_p": 1.0,
    "usage": USAGE,
}


def message(text: str, status: str = "completed") -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}] if text else []
    return {"type": "message", "id": "msg_1", "status": status, "role": "assistant", "content": content}


PLAIN = json.dumps({**RESPONSE, "output": [message("Once upon a time.")]}).encode()


def stream_events(deltas: int) -> list[bytes]:
    pieces = [f" word{number % 10}" for number in range(deltas)]
    text = "".join(pieces)
    begun = {**RESPONSE, "status": "in_progress", "output": [], "usage": None}
    at = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": begun},
        {"type": "response.in_progress", "response": begun},
        {"type": "response.output_item.added", "output_index": 0, "item": message("", "in_progress")},
        {"type": "response.content_part.added", **at, "part": part},
        *[{"type": "response.output_text.delta", **at, "delta": piece, "logprobs": []} for piece in pieces],
        {"type": "response.output_text.done", **at, "text": text, "logprobs": []},
        {"type": "response.content_part.done", **at, "part": {**part, "text": text}},
        {"type": "response.output_item.done", "output_index": 0, "item": message(text)},
        {"type": "response.completed", "response": {**RESPONSE, "output": [message(text)]}},
    ]
    lines = [{**event, "sequence_number": number} for number, event in enumerate(events)]
    return [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in lines]


class ours(openai_chat.ours):
    api = "responses"


class sdk(openai_chat.sdk):
    @classmethod
    def request(cls) -> dict[str, Any]:
        tool = {"type": "function", "name": "weather", "description": "Weather.", "parameters": SCHEMA, "strict": False}
        content = [{"role": "user", "content": ASK}]
        return {"model": "m", "input": content, "instructions": "Be brief.", "tools": [tool], "store": False}

    @classmethod
    async def stream(cls, client: Any) -> int:
        texts: list[str] = []
        async for event in await client.responses.create(**cls.request(), stream=True):
            if event.type == "response.output_text.delta":
                texts.append(event.delta)
        return len(texts)

    @classmethod
    async def plain(cls, client: Any) -> int:
        return len((await client.responses.create(**cls.request())).output_text)
