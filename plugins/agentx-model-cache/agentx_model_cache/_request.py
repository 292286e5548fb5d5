"""What a request and an answer are to the cache: whether they are kept, under which key, and in which form."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import attrs

from agentx import (
    FilePart,
    Message,
    ModelRequest,
    ModelResponse,
    Part,
    ToolCall,
    ToolResult,
    Usage,
    decode,
    digest,
    encode,
    from_plain,
)

FORMAT = 1
"""Part of every key: another format of keys or bodies finds nothing of this one."""
_WHOLE = frozenset({"end_turn", "tool_use", "stop_sequence"})
"""With any other stop reason an answer is cut, refused or not finished."""


def is_repeatable(request: ModelRequest) -> bool:
    """Return whether a model is asked to answer the same each time."""
    settings = request.settings
    return settings.temperature == 0 or settings.seed is not None


def is_complete(request: ModelRequest) -> bool:
    """Return whether all that the answer depends on is in the request: what a URL leads to is not."""
    parts = (part for message in request.messages for part in _all_parts(message.parts))
    return not any(isinstance(part, FilePart) and part.url is not None for part in parts)


def is_answer(response: ModelResponse) -> bool:
    """Return whether a response is whole and worth being given again."""
    if response.stop_reason not in _WHOLE or not (response.text.strip() or response.tool_calls):
        return False
    return not any(isinstance(part, FilePart) and part.data is None for part in response.parts)


def key_of(request: ModelRequest, model: Any, scope: tuple[str, ...]) -> str:
    """Return the key of a request: a hash of everything that the answer depends on.

    Ids of calls are numbered: providers make new ones each time, and they mean nothing.
    """
    settings = attrs.evolve(request.settings, timeout=None)
    kind = type(model)
    parts = {
        "format": FORMAT,
        "scope": scope,
        "model": request.model,
        "served": (f"{kind.__module__}.{kind.__qualname__}", str(getattr(model, "endpoint", ""))),
        "instructions": request.instructions,
        "messages": _numbered(request.messages),
        "context": request.context,
        "tools": request.tools,
        "settings": settings,
        "output": request.output,
    }
    return digest(parts)


def body_of(response: ModelResponse) -> bytes:
    return encode(response)


def response_of(body: bytes) -> ModelResponse:
    """Return the response of a body.

    Raises:
        CodecError: it is none.
    """
    return from_plain(decode(body), ModelResponse)


def given_again(response: ModelResponse, request: ModelRequest) -> ModelResponse:
    """Return a kept response as the answer to a request: it used nothing, and its calls have ids of their own."""
    taken = {part.id for message in request.messages for part in message.parts if isinstance(part, ToolCall)}
    parts: list[Part] = []
    for part in response.parts:
        if isinstance(part, ToolCall):
            call_id, number = part.id, 1
            while call_id in taken:
                number += 1
                call_id = f"{part.id}_{number}"
            taken.add(call_id)
            part = part if call_id == part.id else attrs.evolve(part, id=call_id)
        parts.append(part)
    return attrs.evolve(response, parts=tuple(parts), usage=Usage(requests=0), cost=None)


def _all_parts(parts: Iterable[Part]) -> Iterator[Part]:
    for part in parts:
        yield part
        if isinstance(part, ToolResult):
            yield from part.content


def _numbered(messages: Iterable[Message]) -> list[Message]:
    """Return messages with the number of each call in the place of its id."""
    numbers: dict[str, str] = {}

    def of(part: Part) -> Part:
        if isinstance(part, ToolCall):
            return attrs.evolve(part, id=numbers.setdefault(part.id, str(len(numbers))))
        if isinstance(part, ToolResult):
            return attrs.evolve(part, call_id=numbers.setdefault(part.call_id, str(len(numbers))))
        return part

    return [
        Message(message.role, tuple([of(part) for part in message.parts])) if _has_ids(message) else message
        for message in messages
    ]


def _has_ids(message: Message) -> bool:
    return any(isinstance(part, ToolCall | ToolResult) for part in message.parts)
