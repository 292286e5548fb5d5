"""`observe.duration`: how long turns took, and how much of it the model and the tools."""

from __future__ import annotations

from time import perf_counter
from typing import Any, ClassVar

import attrs

from agentx import (
    CallNext,
    ModelContext,
    ModelResponse,
    Plugin,
    RunResult,
    ToolContext,
    ToolResult,
    TurnContext,
    reduced,
)

Spans = list[tuple[float, float]]
"""From and to, in seconds of `perf_counter`; in the order in which they ended."""


@attrs.frozen
class Durations:
    """Seconds of one or more turns. Model and tools may overlap where sub-agents run; the rest is agentx and plugins."""

    turns: int = 0
    seconds: float = 0.0
    model_seconds: float = 0.0
    """While at least one model call was under way, its retries and waits included."""
    tool_seconds: float = 0.0
    """While at least one tool call was under way, waiting for approval included."""
    longest: float = 0.0
    """Seconds of the longest turn."""

    def __add__(self, other: Durations) -> Durations:
        return Durations(
            self.turns + other.turns,
            self.seconds + other.seconds,
            self.model_seconds + other.model_seconds,
            self.tool_seconds + other.tool_seconds,
            self.longest if self.longest > other.longest else other.longest,
        )


class Running:
    """The spans of a running turn."""

    __slots__ = ("model", "outer", "tools")

    def __init__(self, outer: Running | None) -> None:
        self.model: Spans = []
        self.tools: Spans = []
        self.outer = outer
        """That of the turn that called this sub-agent."""


def _covered(spans: Spans) -> float:
    """Return how many seconds at least one of the spans covers."""
    total, end = 0.0, 0.0
    for start, stop in sorted(spans):
        if stop > end:
            total += stop - (start if start > end else end)
            end = stop
    return total


@attrs.frozen
class DurationState:
    total: Durations = reduced(Durations.__add__, default=Durations())
    last: Durations = Durations()


class DurationObserver(Plugin[DurationState]):
    """Measure turns, and the time in them that models and tools took.

    `session.state.of(observer)` has `total` and `last`, up to the last turn that ended.
    """

    id: ClassVar[str] = "observe.duration"

    async def turn(self, ctx: TurnContext, call_next: CallNext[RunResult[Any]]) -> RunResult[Any]:
        running = Running(ctx.get(Running, None))
        ctx.provide(Running, running)
        start = perf_counter()
        try:
            return await call_next()
        finally:
            seconds = perf_counter() - start
            if running.outer is not None:
                running.outer.model.extend(running.model)
                running.outer.tools.extend(running.tools)
            turn = Durations(1, seconds, _covered(running.model), _covered(running.tools), seconds)
            ctx.update(self, total=turn, last=turn)

    async def model(self, ctx: ModelContext, call_next: CallNext[ModelResponse]) -> ModelResponse:
        spans, start = ctx.get(Running).model, perf_counter()
        try:
            return await call_next()
        finally:
            spans.append((start, perf_counter()))

    async def tool(self, ctx: ToolContext, call_next: CallNext[ToolResult]) -> ToolResult:
        spans, start = ctx.get(Running).tools, perf_counter()
        try:
            return await call_next()
        finally:
            spans.append((start, perf_counter()))
