"""`guard.budget`: how much money and how many tokens a turn, a session, a user or anything else may use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import ROUND_CEILING, Decimal
from typing import Any, ClassVar, Literal

import anyio
import attrs

from agentx import AgentContext, CallNext, ConfigError, Limit, ModelRequest, Plugin, TokenMeter, Usage

from ._prices import Price, PriceTable, as_amount, is_amount, price_at

MILLIONTH = Decimal("0.000001")
_LESS = {"usd": "max_tokens in its settings, a cheaper model", "tokens": "max_tokens in its settings"}


def _is_money(plugin: Budget, field: attrs.Attribute[Any], value: Any) -> None:
    if value is not None and not is_amount(value):
        raise ConfigError(f"guard.budget: {field.name} is an amount of US dollars, 0 or more, or None, not {value!r}")


def _is_count(plugin: Budget, field: attrs.Attribute[Any], value: Any) -> None:
    if value is None and field.name != "max_output_tokens":
        return
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ConfigError(f"guard.budget: {field.name} is a whole number of tokens, 0 or more, not {value!r}")


def _is_part(plugin: Budget, field: attrs.Attribute[Any], value: Any) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1):
        raise ConfigError(f"guard.budget: {field.name} is a part of the limit, above 0 and up to 1, not {value!r}")


def _is_verb(plugin: Budget, field: attrs.Attribute[Any], value: Any) -> None:
    if value not in ("stop", "answer"):
        raise ConfigError(f"guard.budget: {field.name} is 'stop' or 'answer', not {value!r}")


def _is_policy(plugin: Budget, field: attrs.Attribute[Any], value: Any) -> None:
    if value not in ("refuse", "allow") and not is_amount(value):
        what = "'refuse', 'allow' or US dollars per million tokens"
        raise ConfigError(f"guard.budget: {field.name} is {what}, not {value!r}")


def _is_scope(plugin: Budget, field: attrs.Attribute[Any], value: Any) -> None:
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"guard.budget: {field.name} is 'turn', 'session', 'user' or another word, not {value!r}")


def _are_prices(plugin: Budget, field: attrs.Attribute[Any], value: Any) -> None:
    for model, price in value.items():
        if not isinstance(price, Price):
            fix = "write Price(input=…, output=…)"
            raise ConfigError(f"guard.budget: {field.name}[{model!r}] is {price!r}, which is no price: {fix}")


def _policy(value: Any) -> Any:
    return value if value in ("refuse", "allow") else as_amount(value)


class Budget(Plugin):
    """Stop before a model call that could spend more than the limits allow.

    Money is US dollars. `None` is no limit. Sub-agents and retries count like all other model calls.
    """

    id: ClassVar[str] = "guard.budget"
    phase: ClassVar[str | None] = "gate"

    limit_usd: Decimal | None = attrs.field(default=Decimal("1.00"), converter=as_amount, validator=_is_money)
    """Money for each `scope`."""
    tokens: int | None = attrs.field(default=None, validator=_is_count)
    """Tokens of input and output for each `scope`."""
    scope: str = attrs.field(default="session", validator=_is_scope)
    """What `limit_usd` and `tokens` are for: `turn`, `session`, `user`, or another word: one account for all."""
    turn_usd: Decimal | None = attrs.field(default=None, converter=as_amount, validator=_is_money)
    turn_tokens: int | None = attrs.field(default=None, validator=_is_count)
    user_usd: Decimal | None = attrs.field(default=None, converter=as_amount, validator=_is_money)
    user_tokens: int | None = attrs.field(default=None, validator=_is_count)
    warn_at: float | None = attrs.field(default=0.8, validator=_is_part)
    """The part of a limit at which a `limit.warning` is reported, once for each account."""
    on_limit: Literal["stop", "answer"] = attrs.field(default="stop", validator=_is_verb)
    """`answer`: one last model call without tools is allowed, beyond the limit."""
    unknown_price: Literal["refuse", "allow"] | Decimal = attrs.field(
        default="refuse", converter=_policy, validator=_is_policy
    )
    """What to do with a model without a price; a number is taken as its price, per million tokens of any kind."""
    prices: Mapping[str, Price] = attrs.field(factory=dict, validator=_are_prices)
    """Model id, or a beginning of ids that ends in `/` → price; comes before the data of genai-prices."""
    max_output_tokens: int = attrs.field(default=4096, validator=_is_count)
    """What an answer is taken to have at most where the request's settings have no `max_tokens`."""

    def __attrs_post_init__(self) -> None:
        for scope in ("turn", "user"):
            for general, own in (("limit_usd", f"{scope}_usd"), ("tokens", f"{scope}_tokens")):
                if self.scope == scope and getattr(self, general) is not None and getattr(self, own) is not None:
                    raise ConfigError(f"guard.budget: {general} with scope={scope!r} and {own} are the same limit")

    async def init(self, ctx: AgentContext, call_next: CallNext[None]) -> None:
        flat = self.unknown_price if isinstance(self.unknown_price, Decimal) else None
        table = PriceTable(self.prices, None if flat is None else Price(flat, flat))
        model = ctx.agent.model
        name = model if isinstance(model, str) else getattr(model, "name", "")
        if not table.is_given(name):
            # loading the price data takes half a second: now and in a thread, not in the first turn
            await anyio.to_thread.run_sync(table.prices_of, name)
        for limit in self._limits(_Meter(table, self.max_output_tokens)):
            ctx.ledger.limit(limit)
        await call_next()

    def _limits(self, meter: _Meter) -> Iterator[Limit]:
        for maximum, scope, field in self._maxima("usd"):
            yield self._limit("usd", maximum, scope, field, meter)
        for maximum, scope, field in self._maxima("tokens"):
            yield self._limit("tokens", maximum, scope, field, meter)
        if self.turn_usd is None and (self.scope != "turn" or self.limit_usd is None):
            # counts what a turn cost, for RunResult.cost; last, so that a call which is refused makes nothing unknown
            yield self._limit("usd", None, "turn", "", meter)

    def _maxima(self, key: str) -> Iterator[tuple[Decimal | int, str, str]]:
        general = "limit_usd" if key == "usd" else "tokens"
        for field, scope in ((f"turn_{key}", "turn"), (general, self.scope), (f"user_{key}", "user")):
            maximum = getattr(self, field)
            if maximum is not None:
                yield maximum, scope, field

    def _limit(self, key: str, maximum: Decimal | int | None, scope: str, field: str, meter: _Meter) -> Limit:
        is_money = key == "usd"
        return Limit(
            key,
            maximum,
            scope=scope,
            estimate=meter.most_usd if is_money else meter.most_tokens,
            measure=meter.usd if is_money else meter.tokens,
            unknown="allow" if self.unknown_price == "allow" else "refuse",
            warn_at=None if maximum is None else self.warn_at,
            on_limit=self.on_limit if maximum is not None else "stop",
            advice=f"raise {field} of guard.budget, or let the call need less ({_LESS[key]})",
            unknown_advice="give guard.budget its price in `prices`, or set `unknown_price` to 'allow' or to a price",
        )


class _Meter:
    """What requests may use and did use. Several limits ask about one dispatch, so the last answers are kept."""

    def __init__(self, table: PriceTable, max_output_tokens: int) -> None:
        self._table = table
        self._max_output_tokens = max_output_tokens
        self._tokens = TokenMeter()
        self._estimated: tuple[ModelRequest, int, Decimal | None] | None = None
        self._measured: tuple[ModelRequest, Usage, Decimal | None] | None = None

    def most_tokens(self, request: ModelRequest) -> int:
        return self._estimate(request)[1]

    def most_usd(self, request: ModelRequest) -> Decimal | None:
        return self._estimate(request)[2]

    def tokens(self, request: ModelRequest, usage: Usage) -> int:
        self._measure(request, usage)
        return usage.total_tokens

    def usd(self, request: ModelRequest, usage: Usage) -> Decimal | None:
        return self._measure(request, usage)[2]

    def _estimate(self, request: ModelRequest) -> tuple[ModelRequest, int, Decimal | None]:
        """Return request, tokens and cost, both on the high side."""
        found = self._estimated
        if found is None or found[0] is not request:
            sent, limit = self._tokens.input_tokens(request), request.settings.max_tokens
            written = self._max_output_tokens if limit is None else limit
            prices = self._table.prices_of(request.model, request.settings.service_tier)
            cost = None
            if prices is not None:
                cost = price_at(prices, sent).most(sent, written).quantize(MILLIONTH, ROUND_CEILING)
            found = self._estimated = (request, sent + written, cost)
        return found

    def _measure(self, request: ModelRequest, usage: Usage) -> tuple[ModelRequest, Usage, Decimal | None]:
        """Return request, usage and its cost, and learn how big such requests are."""
        found = self._measured
        if found is None or found[1] is not usage or found[0] is not request:
            self._estimated = None
            self._tokens.learn(request, usage)
            prices = self._table.prices_of(request.model, request.settings.service_tier)
            sent = usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens
            cost = None if prices is None else price_at(prices, sent).cost(usage).normalize()
            found = self._measured = (request, usage, cost)
        return found
