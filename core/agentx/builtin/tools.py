"""`observe.tools`: how often each tool ran, failed, and how long it took."""

from __future__ import annotations

from time import perf_counter
from typing import Any, ClassVar

import attrs

from agentx import CallNext, Plugin, RunResult, ToolContext, ToolResult, TurnContext, reduced


@attrs.frozen
class ToolUse:
    """What is known of one tool."""

    tool: str
    calls: int = 0
    errors: int = 0
    """Calls that failed, were denied or skipped, or were cut off."""
    seconds: float = 0.0
    """Of all calls together, waiting for approval included; calls side by side count each."""


class Calls:
    """The tool calls of a running turn: name, seconds, whether it failed."""

    __slots__ = ("items", "outer")

    def __init__(self, outer: Calls | None) -> None:
        self.items: list[tuple[str, float, bool]] = []
        self.outer = outer
        """Those of the turn that called this sub-agent."""


def _add(old: tuple[ToolUse, ...], calls: Calls) -> tuple[ToolUse, ...]:
    """Return `old` with the calls of a turn, sorted by tool."""
    numbers = {use.tool: (use.calls, use.errors, use.seconds) for use in old}
    for name, seconds, failed in calls.items:
        count, errors, total = numbers.get(name, (0, 0, 0.0))
        numbers[name] = (count + 1, errors + failed, total + seconds)
    return tuple([ToolUse(name, *numbers[name]) for name in sorted(numbers)])


@attrs.frozen
class ToolsState:
    tools: tuple[ToolUse, ...] = reduced(_add, default=())


class ToolsObserver(Plugin[ToolsState]):
    """Count calls, errors and seconds of each tool in a session.

    `session.state.of(observer).tools` has the numbers, up to the last turn that ended. A call of an unknown tool or
    without valid JSON is no call of a tool. The calls of a sub-agent count for its own session and for the one that
    called it.
    """

    id: ClassVar[str] = "observe.tools"

    async def turn(self, ctx: TurnContext, call_next: CallNext[RunResult[Any]]) -> RunResult[Any]:
        calls = Calls(ctx.get(Calls, None))
        ctx.provide(Calls, calls)
        try:
            return await call_next()
        finally:
            if calls.outer is not None:
                calls.outer.items.extend(calls.items)
            if calls.items:
                ctx.update(self, tools=calls)

    async def tool(self, ctx: ToolContext, call_next: CallNext[ToolResult]) -> ToolResult:
        items, name, failed = ctx.get(Calls).items, ctx.tool.name, True
        start = perf_counter()
        try:
            result = await call_next()
            failed = result.status != "ok"
            return result
        finally:
            items.append((name, perf_counter() - start, failed))
