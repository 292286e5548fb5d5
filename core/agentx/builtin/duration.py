"""`observe.duration`: how long turns took, and how much of it the model and the tools."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, ClassVar

import attrs

from agentx import (
    CallNext,
    Event,
    ModelEnd,
    ModelStart,
    Plugin,
    RunResult,
    ToolResultEvent,
    ToolStart,
    TurnContext,
)

logger = logging.getLogger("agentx.observe")
Spans = list[tuple[float, float]]
"""From and to, as the events say."""


@attrs.frozen
class Durations:
    """Seconds of one or more turns. What is neither the model's nor the tools' is agentx and plugins."""

    turns: int = 0
    seconds: float = 0.0
    model_seconds: float = 0.0
    """While at least one model call was under way, its retries and waits included."""
    tool_seconds: float = 0.0
    """While at least one tool ran."""
    longest: float = 0.0
    """Seconds of the longest turn."""


class DurationObserver(Plugin):
    """Log how long each turn took, at level INFO of the logger `agentx.observe`.

    `DurationObserver.of(session.events)` has the numbers of a whole session. The log of events is all it needs, so it
    keeps no state.
    """

    id: ClassVar[str] = "observe.duration"

    async def turn(self, ctx: TurnContext, call_next: CallNext[RunResult[Any]]) -> RunResult[Any]:
        try:
            return await call_next()
        finally:
            if logger.isEnabledFor(logging.INFO):
                took = self.of(ctx.events)
                logger.info(
                    "turn %s took %.3f s: model %.3f s, tools %.3f s",
                    ctx.turn_id,
                    took.seconds,
                    took.model_seconds,
                    took.tool_seconds,
                )

    @staticmethod
    def of(events: Iterable[Event]) -> Durations:
        """Return the durations of the turns among `events`; one without its end lasts to its last event."""
        turns: dict[str, tuple[float, float]] = {}
        spans: dict[str, Spans] = {"model": [], "tool": []}
        started: dict[tuple[str | None, object], float] = {}
        for event in events:
            if event.turn_id is not None:
                turns[event.turn_id] = (turns.get(event.turn_id, (event.time, 0.0))[0], event.time)
            _span(event, started, spans)
        seconds = [max(0.0, last - first) for first, last in turns.values()]
        return Durations(
            len(turns), sum(seconds), _covered(spans["model"]), _covered(spans["tool"]), max(seconds, default=0.0)
        )


def _span(event: Event, started: dict[tuple[str | None, object], float], spans: dict[str, Spans]) -> None:
    if isinstance(event, ModelStart):
        started[event.turn_id, event.call_index] = event.time
    elif isinstance(event, ToolStart):
        started[event.turn_id, event.call_id] = event.time
    elif isinstance(event, ModelEnd):
        spans["model"].append((started.pop((event.turn_id, event.call_index), event.time), event.time))
    elif isinstance(event, ToolResultEvent):
        spans["tool"].append((started.pop((event.turn_id, event.result.call_id), event.time), event.time))


def _covered(spans: Spans) -> float:
    """Return how many seconds at least one of the spans covers."""
    total, end = 0.0, 0.0
    for start, stop in sorted(spans):
        if stop > end:
            total += stop - (start if start > end else end)
            end = stop
    return total
