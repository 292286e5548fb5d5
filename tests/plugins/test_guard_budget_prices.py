"""The parts of agentx-guard-budget: what models cost, and how many tokens a request may have."""

from __future__ import annotations

import gc
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pytest
from genai_prices import Usage as DataUsage
from genai_prices import calc_price
from genai_prices.data_snapshot import get_snapshot
from genai_prices.types import ModelPrice

from agentx import (
    ConfigError,
    FilePart,
    Message,
    ModelRequest,
    OpaquePart,
    TextPart,
    ThinkingPart,
    ToolCall,
    ToolResult,
    ToolSpec,
    Usage,
)
from agentx._tokens import TokenMeter, message_tokens
from agentx.testing import count_tokens
from agentx_guard_budget import Price
from agentx_guard_budget._prices import PriceTable, _converted, price_at

MILLION = 10**6


def known_prices() -> Iterator[tuple[str, str, ModelPrice]]:
    for provider in get_snapshot().providers:
        for model in provider.models:
            given = model.prices if isinstance(model.prices, list) else [model]
            for item in given:
                prices = item.prices
                assert isinstance(prices, ModelPrice)
                yield provider.id, model.id, prices


# Prices


def test_every_price_of_the_data_gives_what_genai_prices_itself_computes() -> None:
    chance, checked = random.Random(1), 0
    for provider, model, data in known_prices():
        prices = _converted(data)
        if prices is None:
            continue
        size = chance.choice([100, 100_000, 300_000, 600_000])
        fresh, read, written, output = [chance.randint(0, size) for _ in range(4)]
        reasoning = chance.randint(0, output)
        sent = fresh + read + written
        cost = price_at(prices, sent).cost(Usage(fresh, output, read, written, reasoning))
        parts = {"output_reasoning_tokens": reasoning} if data.output_reasoning_mtok is not None else {}
        usage = DataUsage(
            input_tokens=sent, output_tokens=output, cache_read_tokens=read, cache_write_tokens=written, **parts
        )
        assert cost == data.calc_price(usage)["total_price"], (provider, model)
        assert price_at(prices, sent).most(sent, output) >= cost, (provider, model)
        checked += 1
    assert checked > 2000


def test_a_model_that_the_data_has_no_text_prices_for_is_unknown_and_not_free() -> None:
    without = [
        (provider, model)
        for provider, model, data in known_prices()
        if data.input_mtok is None or data.output_mtok is None
    ]
    assert without
    free = calc_price(DataUsage(input_tokens=1000), "gemma-3", provider_id="google")
    assert free.total_price == 0, "what genai-prices says of a model without a price"
    assert PriceTable({}).prices_of("google/gemma-3") is None


@pytest.mark.parametrize("model", ["anthropic/claude-sonnet-4-5", "anthropic:claude-sonnet-4-5", "claude-sonnet-4-5"])
def test_models_are_found_with_their_provider_and_by_name_alone(model: str) -> None:
    prices = PriceTable({}).prices_of(model)
    assert prices is not None
    for sent in (1000, 200_000, 200_001):
        cost = price_at(prices, sent).cost(Usage(sent - 500, 70, 300, 200))
        usage = DataUsage(input_tokens=sent, output_tokens=70, cache_read_tokens=300, cache_write_tokens=200)
        assert cost == calc_price(usage, "claude-sonnet-4-5", provider_id="anthropic").total_price > 0


@pytest.mark.parametrize("model", ["", "/", "nobody/gpt-4o", "openai/no-such-model", "openai/", "scripted", ":"])
def test_other_models_are_unknown(model: str) -> None:
    assert PriceTable({}).prices_of(model) is None


def test_a_providers_price_is_not_taken_for_another_providers_model() -> None:
    assert PriceTable({}).prices_of("ollama/llama3.3-70b") is None


def test_local_models_cost_nothing_by_an_entry_that_can_be_overridden() -> None:
    free = PriceTable({}).prices_of("local/path/to/model.gguf")
    assert free == ((0, Price(Decimal(0), Decimal(0))),)
    power = Price(Decimal("0.01"), Decimal("0.02"))
    assert PriceTable({"local/": power}).prices_of("local/auto") == ((0, power),)


def test_a_given_price_comes_first_and_the_longest_beginning_wins() -> None:
    one, two, three = [Price(Decimal(number), Decimal(number)) for number in (1, 2, 3)]
    table = PriceTable({"acme/": one, "acme/large/": two, "acme:large/v2": three})
    found = [table.prices_of(f"acme/{name}") for name in ("small", "large/v1", "large/v2", "large")]
    assert found == [((0, one),), ((0, two),), ((0, three),), ((0, one),)]
    assert PriceTable({"openai/gpt-4o": one}).prices_of("openai/gpt-4o") == ((0, one),)
    assert table.prices_of("acmeish/small") is None


def test_a_price_for_unknown_models_is_only_for_those() -> None:
    flat = Price(Decimal(7), Decimal(7))
    table = PriceTable({}, flat)
    assert table.prices_of("nobody/model") == ((0, flat),)
    assert table.prices_of("openai/gpt-4o") == PriceTable({}).prices_of("openai/gpt-4o") != ((0, flat),)


def test_a_service_tier_has_its_own_price_where_the_data_knows_one() -> None:
    table, dearer = PriceTable({}), 0
    for provider in get_snapshot().providers:
        for model in provider.models:
            plain, priority = table.prices_of(f"{provider.id}/{model.id}"), None
            if any(variant.when == {"service_tier": "priority"} for variant in model.price_variants or ()):
                priority = table.prices_of(f"{provider.id}/{model.id}", "priority")
            if plain is not None and priority is not None:
                dearer += priority[0][1].most(1000, 100) > plain[0][1].most(1000, 100)
    assert dearer > 5
    assert table.prices_of("openai/gpt-4o", "no-such-tier") == table.prices_of("openai/gpt-4o")


def test_cache_and_reasoning_cost_what_input_and_output_do_unless_they_are_stated() -> None:
    usage = Usage(input_tokens=1, output_tokens=3, cache_read_tokens=10, cache_write_tokens=100, reasoning_tokens=2)
    plain = Price(Decimal(1), Decimal(1000))
    stated = Price(Decimal(1), Decimal(1000), Decimal(2), Decimal(3), reasoning=Decimal(5000), request=Decimal(1))
    assert plain.cost(usage) * MILLION == 111 + 3000
    assert stated.cost(usage) * MILLION == 1 + 20 + 300 + 1000 + 10_000 + MILLION
    assert stated.most(10, 10) * MILLION == 30 + 50_000 + MILLION


def test_prices_may_be_texts_and_numbers_as_they_are_written() -> None:
    values: dict[str, Any] = {"input": "0.1", "output": 0.3, "cache_read": 1}
    price = Price(**values)
    assert (price.input, price.output, price.cache_read) == (Decimal("0.1"), Decimal("0.3"), Decimal(1))


@pytest.mark.parametrize("value", [-1, "free", None, True, float("nan"), float("inf")])
def test_what_is_no_price_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match="a price is a number of US dollars"):
        Price(value, Decimal(1))


def test_importing_the_plugin_does_not_load_the_price_data() -> None:
    code = "import sys, agentx_guard_budget; sys.exit('genai_prices' in sys.modules or 'pydantic' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_local_model_does_not_load_the_price_data() -> None:
    code = """
import sys
from agentx import Agent
from agentx.testing import ScriptedModel
from agentx_guard_budget import Budget
agent = Agent(ScriptedModel(["hi"], name="local/auto"), plugins=[Budget()], config=False, autoload="none")
result = agent.run_sync("go")
sys.exit(result.cost != 0 or "genai_prices" in sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


# Tokens


class Counting(Sequence[Message]):
    """A history that counts how often it is read."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self.messages = messages
        self.reads = 0

    def __len__(self) -> int:
        return len(self.messages)

    def __getitem__(self, index: Any) -> Any:
        self.reads += 1
        return self.messages[index]


def text(content: str, role: Any = "user") -> Message:
    return Message(role, (TextPart(content),))


def request(messages: Sequence[Message], **fields: Any) -> ModelRequest:
    return ModelRequest("acme/large", messages, **fields)


@pytest.mark.parametrize("length", [10, 1000])
def test_a_step_reads_the_new_messages_and_not_the_history(length: int) -> None:
    meter, history = TokenMeter(), [text("hello") for _ in range(length)]
    meter.input_tokens(request(list(history)))
    history += [text("a", "assistant"), text("b")]
    counting = Counting(history)
    grown = request(counting)
    tokens = meter.input_tokens(grown)
    meter.learn(grown, Usage(tokens, 5))
    assert counting.reads <= 8
    assert tokens == TokenMeter().input_tokens(request(history))


def test_what_the_provider_reported_takes_the_place_of_the_estimate() -> None:
    meter, history = TokenMeter(), [text("word " * 300)]
    first = request(list(history))
    estimated = meter.input_tokens(first)
    meter.learn(first, Usage(input_tokens=100, cache_read_tokens=20, cache_write_tokens=30))
    assert meter.input_tokens(first) == 150 < estimated
    history.append(text("next"))
    assert meter.input_tokens(request(history)) == 150 + message_tokens(history[-1])


@pytest.mark.parametrize("usage", [Usage(0, 5), Usage(7, 5, estimated=True)])
def test_usage_that_says_nothing_about_the_input_is_not_learned(usage: Usage) -> None:
    meter, asked = TokenMeter(), request([text("hello there")])
    before = meter.input_tokens(asked)
    meter.learn(asked, usage)
    assert meter.input_tokens(asked) == before


def test_a_history_that_was_replaced_is_counted_anew() -> None:
    meter, first = TokenMeter(), text("hello")
    meter.input_tokens(request([first, text("x" * 3000), text("y")]))
    shorter = [first, text("summary")]
    assert meter.input_tokens(request(shorter)) == TokenMeter().input_tokens(request(shorter))
    other = [first, text("z"), text("z"), text("zz")]
    assert meter.input_tokens(request(other)) == TokenMeter().input_tokens(request(other))


def test_conversations_and_models_are_kept_apart() -> None:
    meter, one, two = TokenMeter(), [text("a")], [text("b" * 600)]
    small, big = meter.input_tokens(request(one)), meter.input_tokens(request(two))
    meter.learn(request(one), Usage(5000))
    assert meter.input_tokens(request(two)) == big
    assert meter.input_tokens(ModelRequest("acme/small", one)) == small


def test_a_conversation_that_nobody_holds_is_forgotten() -> None:
    meter = TokenMeter()
    for number in range(50):
        meter.input_tokens(request([text(str(number)), text("b")]))
    gc.collect()
    assert meter._conversations == {}


def test_everything_that_is_sent_counts() -> None:
    tools = (ToolSpec("add", "Add numbers.", {"type": "object", "properties": {"a": {"type": "integer"}}}),)
    parts = (
        ThinkingPart("hm", signature="s" * 300, data={"k": "v" * 300}),
        ToolCall("c1", "add", '{"a": 1}', data={"k": "v" * 300}),
        ToolResult("c1", "add", (TextPart("r" * 300),)),
        FilePart("image/png", data=b"x"),
        FilePart("text/plain", data=b"x" * 30_000),
        FilePart("application/pdf", url="https://example.org/a.pdf"),
        OpaquePart("acme", {"k": "v" * 300}),
    )
    sizes = []
    for count in range(len(parts) + 1):
        sizes.append(TokenMeter().input_tokens(request([Message("user", parts[:count])])))
    grown = [after - before for before, after in pairwise(sizes)]
    assert all(more >= 100 for more in grown)
    assert grown[3] == 2000
    assert grown[4] == 10_000
    assert TokenMeter().input_tokens(request([])) < TokenMeter().input_tokens(request([], tools=tools))
    meter, plain = TokenMeter(), request([text("a")])
    assert meter.input_tokens(plain) + 100 < meter.input_tokens(request([text("a")], instructions="i" * 400))
    assert meter.input_tokens(plain) + 100 < meter.input_tokens(request([text("a")], context=("c" * 400,)))


@pytest.mark.parametrize(
    "content", ["plain English text of some length " * 20, "números y café " * 30, "東京の天気 " * 40]
)
def test_texts_are_estimated_on_the_high_side(content: str) -> None:
    assert TokenMeter().input_tokens(request([text(content)])) >= count_tokens(content)
