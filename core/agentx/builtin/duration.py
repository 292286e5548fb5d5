"""observe.duration: how long turns take, and what of it is the models' and the tools'."""

from __future__ import annotations

from time import monotonic
from typing import ClassVar

import attrs

from agentx import CallNext, Key, ModelContext, ModelResponse, Plugin, RunResult, ToolContext, ToolResult, TurnContext


@attrs.frozen
class DurationState:
    """Seconds of wall time. Of overlapping tool calls each counts in full."""

    turns: int = 0
    last_turn: float = 0.0
    total: float = 0.0
    in_models: float = 0.0
    in_tools: float = 0.0


class _Watch:
    """What a turn took so far."""

    __slots__ = ("models", "tools")

    def __init__(self) -> None:
        self.models = self.tools = 0.0


_WATCH = Key[_Watch]("observe.duration")


class DurationObserver(Plugin[DurationState]):
    """Measure turns: `session.state.of(plugin)` has the seconds."""

    id: ClassVar = "observe.duration"

    async def turn(self, ctx: TurnContext, call_next: CallNext[RunResult]) -> RunResult:
        watch = _Watch()
        ctx.provide(_WATCH, watch)
        start = monotonic()
        try:
            return await call_next()
        finally:
            took = monotonic() - start
            state = ctx.state.of(self)
            ctx.update(
                self,
                turns=state.turns + 1,
                last_turn=took,
                total=state.total + took,
                in_models=state.in_models + watch.models,
                in_tools=state.in_tools + watch.tools,
            )

    async def model(self, ctx: ModelContext, call_next: CallNext[ModelResponse]) -> ModelResponse:
        start = monotonic()
        try:
            return await call_next()
        finally:
            ctx.get(_WATCH).models += monotonic() - start

    async def tool(self, ctx: ToolContext, call_next: CallNext[ToolResult]) -> ToolResult:
        start = monotonic()
        try:
            return await call_next()
        finally:
            ctx.get(_WATCH).tools += monotonic() - start
