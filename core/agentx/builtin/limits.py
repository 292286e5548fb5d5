"""guard.limits: model calls, tool calls, tokens and seconds of a turn."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any, ClassVar, Literal

import anyio
import attrs

from agentx import CallNext, ConfigError, Limit, ModelRequest, Plugin, RunResult, TurnContext, Usage


def total_tokens(request: ModelRequest, usage: Usage) -> int:
    return usage.total_tokens


def output_tokens(request: ModelRequest) -> int:
    """Return what is reserved of a limit on tokens: the output that was asked for; the rest is known afterwards."""
    return request.settings.max_tokens or 1


class LimitsGuard(Plugin):
    """End a turn that makes too many model calls or tool calls, uses too many tokens or takes too long.

    The limits are the ledger's: they are asked at each dispatch, attempts of a retry and sub-agents included.
    `Agent(limits={…})` and `run(limits={…})` take the same names as the configuration.
    """

    id: ClassVar = "guard.limits"
    phase: ClassVar = "gate"

    requests: int | None = 50
    """Model calls; the default stops a model that goes round in circles."""
    tool_calls: int | None = None
    tokens: int | None = None
    """Input, output and cache together. A call is let through while any are left, so the last one may pass it."""
    seconds: float | None = None
    on_limit: Literal["stop", "answer"] = "stop"
    """`answer` makes one last call without tools."""

    async def turn(self, ctx: TurnContext, call_next: CallNext[RunResult]) -> RunResult:
        limits = self if not ctx.limits else self._with(dict(ctx.limits))
        limits._register(ctx)
        if limits.seconds is None:
            return await call_next()
        with anyio.move_on_after(limits.seconds) as scope:
            return await call_next()
        if scope.cancelled_caught:
            ctx.stop(f"the turn took longer than {limits.seconds:g} s", status="limit")
        return ctx.result

    def _register(self, ctx: TurnContext) -> None:
        ledger, on_limit = ctx.ledger, self.on_limit
        if self.requests is not None:
            ledger.limit(Limit("requests", self.requests, on_limit=on_limit))
        if self.tool_calls is not None:
            ledger.limit(Limit("tool_calls", self.tool_calls, on="tool", on_limit=on_limit))
        if self.tokens is not None:
            ledger.limit(
                Limit("tokens", self.tokens, estimate=output_tokens, measure=total_tokens, on_limit=on_limit)
            )

    def _with(self, changes: dict[str, Any]) -> LimitsGuard:
        """Return the limits of one turn.

        Raises:
            ConfigError: there is no such limit.
        """
        known = [field.name for field in attrs.fields(LimitsGuard)]
        for name in changes:
            if name not in known:
                close = get_close_matches(name, known, 1)
                hint = f"; did you mean {close[0]!r}?" if close else ""
                raise ConfigError(f"guard.limits: there is no limit {name!r}; there are {', '.join(known)}{hint}")
        return attrs.evolve(self, **changes)
