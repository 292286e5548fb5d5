"""`guard.limits`: how many model calls, tool calls, tokens and seconds a turn may take."""

from __future__ import annotations

import math
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cached_property
from typing import Any, ClassVar, Literal

import anyio
import attrs

from agentx import CallNext, ConfigError, Limit, ModelRequest, Plugin, RunResult, TokenMeter, TurnContext, Usage

OnLimit = Literal["stop", "answer"]


def _is_amount(_: LimitsGuard, field: attrs.Attribute[Any], value: Any) -> None:
    if value is None:
        return
    kind, what = (
        (float, "a number of seconds above 0") if field.name == "seconds" else (int, "a whole number, 0 or more")
    )
    is_number = isinstance(value, int | kind) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or value < 0 or (value == 0 and kind is float):
        raise ConfigError(f"guard.limits: {field.name} is {what} or None, not {value!r}")


def _is_verb(_: LimitsGuard, field: attrs.Attribute[Any], value: Any) -> None:
    if value not in ("stop", "answer"):
        raise ConfigError(f"guard.limits: {field.name} is 'stop' or 'answer', not {value!r}")


def metered(maximum: int, on_limit: OnLimit) -> Limit:
    """Return a limit on tokens; what the turn's requests hold is counted by a meter of its own."""
    meter = TokenMeter()

    def used(request: ModelRequest, usage: Usage) -> int:
        meter.learn(request, usage)
        return usage.total_tokens

    return Limit("tokens", maximum, estimate=meter.tokens, measure=used, on_limit=on_limit)


class LimitsGuard(Plugin):
    """Limit what one turn may take. At a limit its status is `limit`, and what there is stays in the history.

    Sub-agents count for the turn that called them. `Agent(limits=…)` sets these fields, `run(limits=…)` sets them for
    one turn. `None` is no limit.
    """

    id: ClassVar[str] = "guard.limits"
    phase: ClassVar[str | None] = "gate"

    requests: int | None = attrs.field(default=50, validator=_is_amount)
    """Dispatches to a model: every attempt counts."""
    tool_calls: int | None = attrs.field(default=None, validator=_is_amount)
    tokens: int | None = attrs.field(default=None, validator=_is_amount)
    """Input and output of all model calls. A call starts only if the most it may use is left."""
    seconds: float | None = attrs.field(default=None, validator=_is_amount)
    on_limit: OnLimit = attrs.field(default="stop", validator=_is_verb)
    """`answer`: one last model call without tools is allowed, beyond the limit; not when the seconds are over."""

    async def turn(self, ctx: TurnContext, call_next: CallNext[RunResult[Any]]) -> RunResult[Any]:
        chosen = self._for_turn(ctx.limits) if ctx.limits else self
        ledger = ctx.ledger
        for limit in chosen._counts:
            ledger.limit(limit)
        if chosen.tokens is not None:
            ledger.limit(metered(chosen.tokens, chosen.on_limit))
        if chosen.seconds is None:
            return await call_next()
        with anyio.move_on_after(chosen.seconds):
            return await call_next()
        ctx.stop(f"the turn took longer than {chosen.seconds:g} seconds", status="limit")
        return ctx.result

    @cached_property
    def _counts(self) -> tuple[Limit, ...]:
        """The limits on numbers of calls, the same for every turn; a turn has accounts of its own for them."""
        counts: list[Limit] = []
        if self.requests is not None:
            counts.append(Limit("requests", self.requests, on_limit=self.on_limit))
        if self.tool_calls is not None:
            counts.append(Limit("tool_calls", self.tool_calls, on="tool", on_limit=self.on_limit))
        return tuple(counts)

    def _for_turn(self, changes: Mapping[str, Any]) -> LimitsGuard:
        """Return this guard with what `run(limits=…)` says.

        Raises:
            ConfigError: there is no such limit, or its value is no amount.
        """
        known = [field.name for field in attrs.fields(LimitsGuard)]  # type: ignore[arg-type]  # plugins are attrs classes
        for name in changes:
            if name not in known:
                close = get_close_matches(name, known, n=1)
                hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(known)}"
                raise ConfigError(f"run(limits=…) has no limit {name!r}: {hint}")
        return attrs.evolve(self, **changes)  # type: ignore[misc]  # plugins are attrs classes
