"""`observe.tools`: how often each tool ran, failed, and how long it took."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, ClassVar

import attrs

from agentx import CallNext, Event, Plugin, RunResult, ToolResultEvent, ToolStart, TurnContext

logger = logging.getLogger("agentx.observe")


@attrs.frozen
class ToolUse:
    """What is known of one tool."""

    tool: str
    calls: int = 0
    errors: int = 0
    """Calls that failed, were denied or skipped, or were cut off."""
    seconds: float = 0.0
    """Of all calls together, from the start of the tool itself; calls side by side count each."""


class ToolsObserver(Plugin):
    """Log the tool calls of each turn, at level INFO of the logger `agentx.observe`.

    `ToolsObserver.by_tool(session.events)` has the numbers of a whole session. The log of events is all it needs, so
    it keeps no state. A call that never started (denied, skipped, invalid) counts as an error of no duration.
    """

    id: ClassVar[str] = "observe.tools"

    async def turn(self, ctx: TurnContext, call_next: CallNext[RunResult[Any]]) -> RunResult[Any]:
        try:
            return await call_next()
        finally:
            if logger.isEnabledFor(logging.INFO):
                for use in self.by_tool(ctx.events):
                    logger.info(
                        "turn %s called %s %d times (%d errors) in %.3f s",
                        ctx.turn_id,
                        use.tool,
                        use.calls,
                        use.errors,
                        use.seconds,
                    )

    @staticmethod
    def by_tool(events: Iterable[Event]) -> tuple[ToolUse, ...]:
        """Return the calls among `events`, sorted by tool."""
        started: dict[tuple[str | None, str], float] = {}
        numbers: dict[str, tuple[int, int, float]] = {}
        for event in events:
            if isinstance(event, ToolStart):
                started[event.turn_id, event.call_id] = event.time
            elif isinstance(event, ToolResultEvent):
                result = event.result
                since = started.pop((event.turn_id, result.call_id), event.time)
                calls, errors, seconds = numbers.get(result.name, (0, 0, 0.0))
                numbers[result.name] = (calls + 1, errors + result.is_error, seconds + max(0.0, event.time - since))
        return tuple([ToolUse(name, *numbers[name]) for name in sorted(numbers)])
