"""observe.tools: how often tools are called, fail, and how long they take."""

from __future__ import annotations

from time import monotonic
from typing import ClassVar

import attrs

from agentx import CallNext, Key, Plugin, RunResult, ToolContext, ToolResult, TurnContext, reduced


@attrs.frozen
class ToolUse:
    """The calls of one tool. `errors` are results that are not `ok`, and calls that raised."""

    tool: str
    calls: int = 0
    errors: int = 0
    seconds: float = 0.0

    def plus(self, other: ToolUse) -> ToolUse:
        return ToolUse(
            self.tool, self.calls + other.calls, self.errors + other.errors, self.seconds + other.seconds
        )


def merge(old: tuple[ToolUse, ...], new: tuple[ToolUse, ...]) -> tuple[ToolUse, ...]:
    """Return both by tool, in the order in which the tools were first called."""
    found = {item.tool: item for item in old}
    for item in new:
        found[item.tool] = found[item.tool].plus(item) if item.tool in found else item
    return tuple(found.values())


@attrs.frozen
class ToolsState:
    tools: tuple[ToolUse, ...] = reduced(merge, default=())


_TURN = Key[list[tuple[str, bool, float]]]("observe.tools")


class ToolsObserver(Plugin[ToolsState]):
    """Count tool calls: `session.state.of(plugin).tools`."""

    id: ClassVar = "observe.tools"

    async def turn(self, ctx: TurnContext, call_next: CallNext[RunResult]) -> RunResult:
        calls: list[tuple[str, bool, float]] = []
        ctx.provide(_TURN, calls)
        try:
            return await call_next()
        finally:
            if calls:
                uses = [ToolUse(tool, 1, int(failed), seconds) for tool, failed, seconds in calls]
                ctx.update(self, tools=tuple(uses))

    async def tool(self, ctx: ToolContext, call_next: CallNext[ToolResult]) -> ToolResult:
        start, failed = monotonic(), True
        try:
            result = await call_next()
            failed = result.is_error
            return result
        finally:
            ctx.get(_TURN).append((ctx.tool.name, failed, monotonic() - start))
