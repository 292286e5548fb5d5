"""Asking llama.cpp for one chat completion."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import uuid4

import attrs

from agentx import (
    Emit,
    ModelRequest,
    ModelSettings,
    Part,
    TextDelta,
    TextPart,
    ThinkingDelta,
    ThinkingPart,
    ToolCall,
    ToolSpec,
    Usage,
)

from ._engine import Engine

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "stop_sequence": "stop_sequence"}


@attrs.define(eq=False)
class Answer:
    """What one chat completion gave, put together from its pieces."""

    text: str = ""
    thinking: str = ""
    finish: str = ""
    calls: tuple[ToolCall, ...] = ()
    usage: Usage = attrs.field(factory=lambda: Usage(requests=0))

    @property
    def parts(self) -> tuple[Part, ...]:
        thinking = (ThinkingPart(self.thinking),) if self.thinking else ()
        return (*thinking, *((TextPart(self.text),) if self.text else ()), *self.calls)

    @property
    def stop_reason(self) -> str:
        if self.calls and self.finish != "length":
            return "tool_use"
        return _STOP_REASONS.get(self.finish, "unknown")


async def complete(
    engine: Engine, body: Mapping[str, Any], *, stop: tuple[str, ...] = (), emit: Emit | None = None
) -> Answer:
    """Ask llama.cpp for one chat completion, giving its text to `emit` as it comes."""
    answer = Answer()

    async def listen(kind: str, piece: str) -> None:
        if kind == "thinking":
            answer.thinking += piece
        else:
            answer.text += piece
        if emit is not None:
            await emit(ThinkingDelta(piece) if kind == "thinking" else TextDelta(piece))

    done = await engine.ask({"op": "chat", "body": dict(body), "stop": list(stop)}, listen)
    answer.finish = done["finish"] or ""
    answer.calls = tuple([ToolCall(new_id(), call["name"], call["arguments"] or "{}") for call in done["calls"]])
    answer.usage = _usage(done)
    return answer


def new_id() -> str:
    return f"call_{uuid4().hex[:12]}"


def _usage(done: Mapping[str, Any]) -> Usage:
    told = done["usage"]
    cached = (told.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    return Usage(
        input_tokens=told.get("prompt_tokens", 0) - cached,
        output_tokens=told.get("completion_tokens", 0),
        cache_read_tokens=cached,
        estimated=not done["counted"],
    )


def sampling(settings: ModelSettings) -> dict[str, Any]:
    """Return what `settings` state, in llama.cpp's words; `extra` is passed on as it is."""
    named = {name: getattr(settings, name) for name in ("max_tokens", "temperature", "top_p", "seed")}
    return {name: value for name, value in named.items() if value is not None} | dict(settings.extra)


def offered(request: ModelRequest) -> tuple[ToolSpec, ...]:
    """Return the tools the model may call: those of the request, or the one that `tool_choice` names."""
    choice = request.settings.tool_choice
    named = tuple([tool for tool in request.tools if tool.name == choice])
    return named or request.tools
