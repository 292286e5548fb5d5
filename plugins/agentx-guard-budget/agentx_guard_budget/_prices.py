"""What a model costs: prices the user gave, a few of our own, and the data of genai-prices."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import attrs

from agentx import ConfigError, Usage

if TYPE_CHECKING:
    from genai_prices.types import ModelPrice

SECONDS = 60.0
"""How long a price of genai-prices holds before it is looked up again: some depend on the hour, and its data may be
updated while a process runs."""
LOOK_UPS = 500
"""How many prices are kept."""


def as_amount(value: Any) -> Any:
    """Return a number or its text as a Decimal, the way it is written: `0.1` is a tenth."""
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        try:
            return Decimal(str(value))
        except ArithmeticError:
            return value
    return value


def is_amount(value: Any) -> bool:
    return isinstance(value, Decimal) and value.is_finite() and value >= 0


def _or_none(value: Any) -> Decimal | None:
    return None if value is None else _amount(value)


def _amount(value: Decimal | str | float) -> Decimal:
    amount = as_amount(value)
    if not is_amount(amount):
        raise ConfigError(f"guard.budget: a price is a number of US dollars, 0 or more, not {value!r}")
    assert isinstance(amount, Decimal)
    return amount


@attrs.frozen
class Price:
    """US dollars per million tokens.

    Args:
        input: tokens that are neither read from a cache nor written to one.
        output: tokens of the answer, reasoning included.
        cache_read: by default as `input`.
        cache_write: by default as `input`.
        reasoning: by default as `output`.
        request: US dollars for each request, beside its tokens.
    """

    input: Decimal = attrs.field(converter=_amount)
    output: Decimal = attrs.field(converter=_amount)
    cache_read: Decimal | None = attrs.field(default=None, converter=_or_none)
    cache_write: Decimal | None = attrs.field(default=None, converter=_or_none)
    reasoning: Decimal | None = attrs.field(default=None, converter=_or_none)
    request: Decimal = attrs.field(default=Decimal(0), converter=_amount)

    def cost(self, usage: Usage) -> Decimal:
        """Return what a request with this usage cost, exactly."""
        reasoning = usage.reasoning_tokens if self.reasoning is not None else 0
        millionths = usage.input_tokens * self.input + (usage.output_tokens - reasoning) * self.output
        if usage.cache_read_tokens:
            millionths += usage.cache_read_tokens * (self.input if self.cache_read is None else self.cache_read)
        if usage.cache_write_tokens:
            millionths += usage.cache_write_tokens * (self.input if self.cache_write is None else self.cache_write)
        if self.reasoning is not None:
            millionths += reasoning * self.reasoning
        return millionths.scaleb(-6) + self.request

    def most(self, input_tokens: int, output_tokens: int) -> Decimal:
        """Return what a request of this size costs at most: all of it may be written to a cache, or be reasoning."""
        of_input = max(self.input, self.cache_write or self.input, self.cache_read or self.input)
        of_output = max(self.output, self.reasoning or self.output)
        return (input_tokens * of_input + output_tokens * of_output).scaleb(-6) + self.request


FREE = Price(0, 0)
OWN_PRICES: Mapping[str, Price] = {"local/": FREE}
"""Models of agentx-model-local run in the user's own process."""

Prices = tuple[tuple[int, Price], ...]
"""`(0, price)`, and for models that are dearer above some size of input `(tokens, price)` in rising order."""


def price_at(prices: Prices, input_tokens: int) -> Price:
    """Return the price of a request that sends so many tokens; all its tokens cost that."""
    found = prices[0][1]
    for above, price in prices[1:]:
        if input_tokens > above:
            found = price
    return found


class PriceTable:
    """Finds the prices of models.

    Args:
        given: model id, or a beginning of ids that ends in `/` → price; it comes before everything else.
        unknown: the price of models that have none; `None` leaves it unknown.
    """

    def __init__(self, given: Mapping[str, Price], unknown: Price | None = None) -> None:
        self._given = {_with_slash(name): price for name, price in {**OWN_PRICES, **given}.items()}
        self._unknown: Prices | None = None if unknown is None else ((0, unknown),)
        self._found: dict[tuple[str, str | None], tuple[float, Prices | None]] = {}

    def prices_of(self, model: str, service_tier: str | None = None) -> Prices | None:
        """Return what a model costs; `None` when that is unknown."""
        key = (model, service_tier)
        until, prices = self._found.get(key, (0.0, None))
        now = time.monotonic()
        if now >= until:
            prices = self._look_up(model, service_tier)
            if len(self._found) >= LOOK_UPS:
                self._found.clear()
            self._found[key] = (now + SECONDS, prices)
        return prices

    def is_given(self, model: str) -> bool:
        """Return whether a model's price is known without the data of genai-prices."""
        return self._look_up_given(_with_slash(model)) is not None

    def _look_up(self, model: str, service_tier: str | None) -> Prices | None:
        name = _with_slash(model)
        given = self._look_up_given(name)
        if given is not None:
            return ((0, given),)
        return _look_up_data(name, service_tier) or self._unknown

    def _look_up_given(self, name: str) -> Price | None:
        if name in self._given:
            return self._given[name]
        beginnings = [key for key in self._given if key.endswith("/") and name.startswith(key)]
        return self._given[max(beginnings, key=len)] if beginnings else None


def _with_slash(model: str) -> str:
    """Return `provider/model` for `provider:model`, which means the same."""
    for char in model:
        if char == "/":
            break
        if char == ":":
            return model.replace(":", "/", 1)
    return model


def _look_up_data(name: str, service_tier: str | None) -> Prices | None:
    # imported here because it takes half a second, which neither listing plugins nor a local model should pay
    from genai_prices import Usage as NoUsage
    from genai_prices import calc_price

    provider, slash, rest = name.partition("/")
    context = {"service_tier": service_tier} if service_tier else None
    try:
        if slash:
            found = calc_price(NoUsage(), rest, provider_id=provider, price_context=context)
        else:
            found = calc_price(NoUsage(), name, price_context=context)
    except LookupError:
        return None
    return _converted(found.model_price)


def _converted(data: ModelPrice) -> Prices | None:
    """Return the prices of text; `None` where the data has none, for there it means zero to genai-prices."""
    if data.input_mtok is None or data.output_mtok is None:
        return None
    starts = {0}
    for value in data.__dict__.values():
        starts.update([tier.start for tier in getattr(value, "tiers", ())])
    return tuple(_at_each(data, sorted(starts)))


def _at_each(data: Any, starts: list[int]) -> Iterator[tuple[int, Price]]:
    for start in starts:
        per_thousand = _at(data.requests_kcount, start)
        yield (
            start,
            Price(
                _at(data.input_mtok, start) or Decimal(0),
                _at(data.output_mtok, start) or Decimal(0),
                _at(data.cache_read_mtok, start),
                _at(data.cache_write_mtok, start),
                _at(data.output_reasoning_mtok, start),
                (per_thousand or Decimal(0)).scaleb(-3),
            ),
        )


def _at(value: Any, start: int) -> Decimal | None:
    """Return a price of genai-prices for more than `start` tokens of input."""
    if value is None or isinstance(value, Decimal):
        return value
    price: Decimal = value.base
    for tier in value.tiers:
        if tier.start <= start and start:
            price = tier.price
    return price
