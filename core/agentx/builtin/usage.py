"""`observe.usage`: what a session or a turn used of each model."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from decimal import Decimal
from typing import Any, ClassVar

import attrs

from agentx import CallNext, Event, ModelAttempt, Plugin, RunResult, TurnContext

logger = logging.getLogger("agentx.observe")


@attrs.frozen
class ModelUsage:
    """What was used of one model; the buckets of tokens do not overlap."""

    model: str
    requests: int = 0
    """Dispatches, failed ones included."""
    failed: int = 0
    unreported: int = 0
    """Dispatches whose usage nobody reported; they used more than nothing."""
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    """That part of `output_tokens` which was reasoning."""
    cost: Decimal | None = None
    """US dollars as the provider states them; `None` if it did not for some request. See also `RunResult.cost`."""


class UsageObserver(Plugin):
    """Log what each turn used of each model, at level INFO of the logger `agentx.observe`.

    `UsageObserver.by_model(session.events)` has the numbers of a whole session. The log of events is all it needs,
    so it keeps no state. Dispatches of sub-agents are among those of the turn that called them.
    """

    id: ClassVar[str] = "observe.usage"

    async def turn(self, ctx: TurnContext, call_next: CallNext[RunResult[Any]]) -> RunResult[Any]:
        try:
            return await call_next()
        finally:
            if logger.isEnabledFor(logging.INFO):
                for use in self.by_model(ctx.events):
                    logger.info(
                        "turn %s used %s: %d requests (%d failed), %d tokens in, %d out, %d from cache",
                        ctx.turn_id,
                        use.model,
                        use.requests,
                        use.failed,
                        use.input_tokens,
                        use.output_tokens,
                        use.cache_read_tokens,
                    )

    @staticmethod
    def by_model(events: Iterable[Event]) -> tuple[ModelUsage, ...]:
        """Return what the dispatches among `events` used, sorted by model."""
        attempts: dict[str, list[ModelAttempt]] = {}
        for event in events:
            if isinstance(event, ModelAttempt):
                attempts.setdefault(event.model, []).append(event)
        return tuple([_sum(model, attempts[model]) for model in sorted(attempts)])


def _sum(model: str, attempts: list[ModelAttempt]) -> ModelUsage:
    reported = [attempt.usage for attempt in attempts if attempt.usage is not None]
    costs = [attempt.cost for attempt in attempts]
    known = [cost for cost in costs if cost is not None]
    return ModelUsage(
        model,
        requests=len(attempts),
        failed=sum([attempt.error is not None for attempt in attempts]),
        unreported=len(attempts) - len(reported),
        input_tokens=sum([usage.input_tokens for usage in reported]),
        output_tokens=sum([usage.output_tokens for usage in reported]),
        cache_read_tokens=sum([usage.cache_read_tokens for usage in reported]),
        cache_write_tokens=sum([usage.cache_write_tokens for usage in reported]),
        reasoning_tokens=sum([usage.reasoning_tokens for usage in reported]),
        cost=sum(known, Decimal(0)) if len(known) == len(costs) else None,
    )
