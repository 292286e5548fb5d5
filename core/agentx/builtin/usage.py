"""`observe.usage`: what a session used of each model."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, ClassVar

import anyio
import attrs

from agentx import (
    CallNext,
    ModelContext,
    ModelError,
    ModelResponse,
    Plugin,
    RunResult,
    TurnContext,
    Usage,
    hookimpl,
    reduced,
)


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


class Attempts:
    """The dispatches of a running turn: model, usage, whether it failed, the provider's own price."""

    __slots__ = ("items", "outer")

    def __init__(self, outer: Attempts | None) -> None:
        self.items: list[tuple[str, Usage | None, bool, Decimal | None]] = []
        self.outer = outer
        """Those of the turn that called this sub-agent."""


def _add(old: tuple[ModelUsage, ...], attempts: Attempts) -> tuple[ModelUsage, ...]:
    """Return `old` with the attempts of a turn, sorted by model."""
    models = {entry.model: entry for entry in old}
    for model in dict.fromkeys([item[0] for item in attempts.items]):
        models[model] = _with(models.get(model), model, attempts)
    return tuple([models[model] for model in sorted(models)])


def _with(old: ModelUsage | None, model: str, attempts: Attempts) -> ModelUsage:
    start = old if old is not None else ModelUsage(model, cost=Decimal(0))
    requests, failed, unreported, cost = start.requests, start.failed, start.unreported, start.cost
    given, written, read, stored, thought = (
        start.input_tokens,
        start.output_tokens,
        start.cache_read_tokens,
        start.cache_write_tokens,
        start.reasoning_tokens,
    )
    for name, usage, has_failed, price in attempts.items:
        if name != model:
            continue
        requests += 1 if usage is None else usage.requests
        failed += has_failed
        cost = None if cost is None or price is None else cost + price
        if usage is None:
            unreported += 1
            continue
        given += usage.input_tokens
        written += usage.output_tokens
        read += usage.cache_read_tokens
        stored += usage.cache_write_tokens
        thought += usage.reasoning_tokens
    return ModelUsage(model, requests, failed, unreported, given, written, read, stored, thought, cost)


@attrs.frozen
class UsageState:
    models: tuple[ModelUsage, ...] = reduced(_add, default=())


class UsageObserver(Plugin[UsageState]):
    """Count tokens, requests and failed attempts of a session for each model.

    `session.state.of(observer).models` has the numbers, up to the last turn that ended. What a sub-agent uses counts
    for its own session and for the one that called it.
    """

    id: ClassVar[str] = "observe.usage"

    async def turn(self, ctx: TurnContext, call_next: CallNext[RunResult[Any]]) -> RunResult[Any]:
        attempts = Attempts(ctx.get(Attempts, None))
        ctx.provide(Attempts, attempts)
        try:
            return await call_next()
        finally:
            if attempts.outer is not None:
                attempts.outer.items.extend(attempts.items)
            if attempts.items:
                ctx.update(self, models=attempts)

    @hookimpl(hook="model", phase="attempt")
    async def attempt(self, ctx: ModelContext, call_next: CallNext[ModelResponse]) -> ModelResponse:
        """Note one dispatch; further out a call is seen, and not how often it was tried."""
        items, model = ctx.get(Attempts).items, ctx.request.model
        try:
            response = await call_next()
        except Exception as error:
            items.append((model, error.usage if isinstance(error, ModelError) else None, True, None))
            raise
        except anyio.get_cancelled_exc_class():
            items.append((model, None, True, None))
            raise
        items.append((model, response.usage, False, response.cost))
        return response
