"""What can be known of a model call before it is made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import attrs

from agentx import (
    FilePart,
    Message,
    ModelContext,
    ModelRequest,
    ModelStart,
    Part,
    TextPart,
    ThinkingPart,
    ToolCall,
    ToolResult,
    encode,
)

BYTES_PER_TOKEN = 4
"""English has about 4.5 bytes of UTF-8 for a token, code 3 to 4, Chinese 3 to 4."""
FILE = 1000
"""Tokens of an image or another file; images have 100 to 1,600 with the big providers."""


@attrs.frozen(eq=False)
class Call:
    """A model call, to read.

    Args:
        request: as it stands, masked where a plugin masks; its `model` is the one that is asked without a router.
        step: the number of the step in its turn, from 1.
        tools: names of the tools whose results the model is about to see.
        user: who the session belongs to.
        session_id: its id.
        turn_index: the number of the turn in its session, from 0.
        metadata: what the application gave `run` as `metadata`.
        deps: what the application gave as `deps`.
    """

    request: ModelRequest
    step: int
    tools: tuple[str, ...]
    user: str | None
    session_id: str
    turn_index: int
    metadata: Mapping[str, Any]
    deps: Any

    @property
    def tokens(self) -> int:
        """Return about how many tokens the request has: a quarter of its bytes; it is counted anew each time."""
        request = self.request
        size = _size(request.instructions)
        for spec in request.tools:
            size += _size(spec.name) + _size(spec.description) + len(encode(spec.schema))
        for message in request.wire_messages:
            size += sum([_part_size(part) for part in message.parts])
        return -(-size // BYTES_PER_TOKEN)


def call_of(ctx: ModelContext) -> Call:
    """Return the call that a layer is in."""
    step = sum([isinstance(event, ModelStart) and event.asked_by is None for event in ctx.events])
    return Call(
        request=ctx.request,
        step=step,
        tools=_tools_called(ctx.request.messages) if step > 1 else (),
        user=ctx.user,
        session_id=ctx.session_id,
        turn_index=ctx.turn_index,
        metadata=MappingProxyType(dict(ctx.metadata)),
        deps=ctx.deps,
    )


def _tools_called(messages: Iterable[Message]) -> tuple[str, ...]:
    """Return the tools of the newest results; what a user said meanwhile stands behind them."""
    names: list[str] = []
    for message in reversed(list(messages)):
        if message.role == "assistant":
            break
        names = [part.name for part in message.parts if isinstance(part, ToolResult)] + names
    return tuple(dict.fromkeys(names))


def _part_size(part: Part) -> int:
    if isinstance(part, TextPart | ThinkingPart):
        return _size(part.text)
    if isinstance(part, ToolCall):
        return _size(part.name) + _size(part.arguments)
    if isinstance(part, ToolResult):
        return sum([_part_size(item) for item in part.content])
    return FILE * BYTES_PER_TOKEN if isinstance(part, FilePart) else 0


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode(errors="replace"))
