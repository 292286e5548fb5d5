"""agentx-guard-budget in an agent: what is refused, what is booked, and what the caller reads."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

import anyio
import pytest

from agentx import (
    Agent,
    CallNext,
    ConfigError,
    MemoryStore,
    ModelContext,
    ModelError,
    ModelRequest,
    ModelResponse,
    ModelSettings,
    OverloadedError,
    Plugin,
    PluginLoadError,
    StreamCutError,
    TextPart,
    TurnAborted,
    Usage,
    hookimpl,
    tool,
)
from agentx.testing import FaultyModel, FunctionModel, Hang, ScriptedModel, call
from agentx_guard_budget import Budget, Price
from agentx_pytest import PluginConformance

FREE = Price(Decimal(0), Decimal(0))
PER_TOKEN = Price(Decimal(0), Decimal(1000))
"""A thousandth of a dollar for each token of output: 600 tokens are 0.60."""


def say(text: str, tokens: int = 0) -> ModelResponse:
    return ModelResponse((TextPart(text),), usage=Usage(0, tokens))


def ask(*calls: Any, tokens: int = 0) -> ModelResponse:
    return ModelResponse(tuple(calls), "tool_use", usage=Usage(0, tokens))


def budget(limit: str | None = "1.00", *, most: int = 100, price: Price = PER_TOKEN, **fields: Any) -> Budget:
    prices = {"parent": FREE, "scripted": price, "function": price, "child": price}
    amount = None if limit is None else Decimal(limit)
    fields = {"prices": prices, "max_output_tokens": most, **fields}
    return Budget(limit_usd=amount, **fields)


def new_agent(model: Any, *plugins: Any, tools: Sequence[Any] = (), **options: Any) -> Agent[Any, Any]:
    options = {"config": False, "autoload": "none", **options}
    return Agent(model, tools=tools, plugins=plugins, **options)


def spent(store: MemoryStore, scope: str = "session", key: str = "usd") -> Any:
    """Return what all accounts of a scope have booked."""
    return sum([account.used for (_, k, s, _), account in store.accounts.items() if (k, s) == (key, scope)])


@tool
async def tick() -> str:
    """Tick."""
    return "tick"


# What is refused


async def test_a_call_that_could_pass_the_limit_is_not_made() -> None:
    model = ScriptedModel([say("one", 60), say("two", 60)])
    agent = new_agent(model, budget("0.12"))
    async with agent, agent.session() as session:
        first = await session.run("a")
        second = await session.run("b")
    assert (first.status, first.cost) == ("completed", Decimal("0.060"))
    assert (second.status, second.by, second.text, second.cost) == ("limit", "guard.budget", "", Decimal(0))
    assert len(model.requests) == 1


async def test_the_limit_may_be_used_up_to_the_last_cent() -> None:
    model = ScriptedModel([say("one", 100), say("two", 100), say("three", 100)])
    agent = new_agent(model, budget("0.20"))
    async with agent, agent.session() as session:
        statuses = [(await session.run("go")).status for _ in range(3)]
    assert statuses == ["completed", "completed", "limit"]


async def test_the_message_names_amounts_plugin_and_what_to_change() -> None:
    agent = new_agent(ScriptedModel([say("one", 60), say("two")]), budget("0.12"))
    async with agent, agent.session() as session:
        await session.run("a")
        result = await session.run("b")
    assert result.reason == (
        "0.06 of 0.12 usd used in this session, the next call may need 0.1: "
        "raise limit_usd of guard.budget, or let the call need less (max_tokens in its settings, a cheaper model)"
    )


@pytest.mark.parametrize(
    ("fields", "setting"),
    [
        ({"turn_usd": Decimal("0.05")}, "turn_usd"),
        ({"user_usd": Decimal("0.05")}, "user_usd"),
        ({"tokens": 50}, "tokens"),
        ({"turn_tokens": 50}, "turn_tokens"),
        ({"user_tokens": 50}, "user_tokens"),
    ],
)
async def test_each_limit_refuses_and_says_which_setting_it_is(fields: dict[str, Any], setting: str) -> None:
    model = ScriptedModel([say("never")])
    result = await new_agent(model, budget(**fields)).run("go")
    assert result.status == "limit"
    assert f"raise {setting} of guard.budget" in (result.reason or "")
    assert model.requests == []


async def test_a_turn_that_is_stopped_in_the_middle_keeps_a_valid_history_and_its_cost() -> None:
    model = ScriptedModel([ask(call("tick"), tokens=90), say("never")])
    agent = new_agent(model, budget("0.15"), tools=[tick])
    result = await agent.run("go")
    assert (result.status, result.cost) == ("limit", Decimal("0.09"))
    assert [message.role for message in result.messages] == ["user", "assistant", "tool"]


async def test_max_tokens_of_the_settings_is_what_an_answer_may_cost() -> None:
    agent = new_agent(ScriptedModel([say("fits", 20)]), budget("0.05", most=4096))
    result = await agent.run("go", settings=ModelSettings(max_tokens=20))
    assert (result.status, result.cost) == ("completed", Decimal("0.02"))


async def test_with_answer_one_last_call_without_tools_is_made_and_counted() -> None:
    store = MemoryStore()
    model = ScriptedModel([ask(call("tick"), tokens=90), say("so far", 50), say("never")])
    agent = new_agent(model, budget("0.15", on_limit="answer"), tools=[tick], store=store)
    async with agent, agent.session() as session:
        first = await session.run("go")
        assert spent(store) == Decimal("0.14")
    assert (first.status, first.text, first.cost) == ("limit", "so far", Decimal("0.14"))
    assert model.requests[1].tools == ()


# Scopes


@pytest.mark.parametrize("scope", ["turn", "session", "user", "team"])
async def test_a_scope_says_what_shares_the_money(scope: str) -> None:
    """Two turns of ann's first session, one of her second, one of bob's: each costs 0.10 of 0.10."""
    agent = new_agent(FunctionModel(lambda request: say("ok", 100)), budget("0.10", scope=scope))
    statuses = []
    async with agent:
        for session_id, user in [("1", "ann"), ("1", "ann"), ("2", "ann"), ("3", "bob")]:
            async with agent.session(session_id, user=user) as session:
                statuses.append((await session.run("go")).status)
    ok, no = "completed", "limit"
    expected = {
        "turn": [ok, ok, ok, ok],
        "session": [ok, no, ok, ok],
        "user": [ok, no, no, ok],
        "team": [ok, no, no, no],
    }
    assert statuses == expected[scope]


async def test_a_session_without_a_user_is_a_user_of_its_own() -> None:
    agent = new_agent(FunctionModel(lambda request: say("ok", 100)), budget("0.10", scope="user"))
    async with agent, agent.session() as one, agent.session() as two:
        assert [(await session.run("go")).status for session in (one, two, one)] == ["completed", "completed", "limit"]


async def test_twenty_sessions_at_once_each_have_their_own_money() -> None:
    agent = new_agent(FunctionModel(lambda request: say("ok", 100), delay=0.001), budget("0.20"))
    results: list[list[str]] = []

    async def converse() -> None:
        async with agent.session() as session:
            results.append([(await session.run("go")).status for _ in range(3)])

    async with agent, anyio.create_task_group() as group:
        for _ in range(20):
            group.start_soon(converse)
    assert results == [["completed", "completed", "limit"]] * 20


async def test_several_instances_have_accounts_of_their_own() -> None:
    agent = new_agent(FunctionModel(lambda request: say("ok", 100)))
    agent.use(budget("0.30"))
    agent.use(budget("0.20", scope="turn"), name="each")
    agent.use(budget("0.40", scope="everything"), name="all")
    async with agent:
        async with agent.session() as session:
            first = [(await session.run("go")) for _ in range(4)]
        async with agent.session() as session:
            second = [(await session.run("go")) for _ in range(2)]
    assert [result.status for result in first] == ["completed"] * 3 + ["limit"]
    assert [(result.status, result.by) for result in second] == [
        ("completed", None),
        ("limit", "guard.budget#all"),
    ]


# What is booked


async def test_the_cost_of_a_turn_is_exact_to_the_last_digit() -> None:
    price = Price(Decimal("0.1"), Decimal("0.7"), Decimal("0.01"), Decimal("0.125"))
    usage = Usage(input_tokens=3, output_tokens=7, cache_read_tokens=11, cache_write_tokens=13, reasoning_tokens=5)
    model = ScriptedModel([ModelResponse((call("tick"),), "tool_use", usage=usage), say("done")] * 3)
    result = await new_agent(model, budget(price=price), tools=[tick]).run("go")
    assert result.cost == Decimal("0.000006935"), "0.3 + 4.9 + 0.11 + 1.625 millionths"
    assert isinstance(result.cost, Decimal)


async def test_a_price_that_the_provider_states_wins() -> None:
    answer = ModelResponse((TextPart("ok"),), usage=Usage(0, 50), cost=Decimal("0.0123"))
    store = MemoryStore()
    agent = new_agent(ScriptedModel([answer]), budget(), store=store)
    async with agent, agent.session() as session:
        assert (await session.run("go")).cost == Decimal("0.0123")
        assert spent(store) == Decimal("0.0123")


async def test_a_budget_that_limits_nothing_still_knows_the_cost() -> None:
    result = await new_agent(ScriptedModel([say("ok", 5000)]), budget(None)).run("go")
    assert (result.status, result.cost) == ("completed", Decimal(5))


async def test_without_the_plugin_nothing_is_refused_and_the_cost_is_unknown() -> None:
    def model() -> ScriptedModel:
        return ScriptedModel([say("ok", 90)])

    assert (await new_agent(model(), budget("0.01")).run("go")).status == "limit"
    without = await new_agent(model()).run("go")
    assert (without.status, without.cost) == ("completed", None)


async def test_a_disabled_budget_changes_behaviour_back_for_the_time_of_an_override() -> None:
    agent = new_agent(FunctionModel(lambda request: say("ok", 90)), budget("0.01"))
    async with agent:
        assert (await agent.run("go")).status == "limit"
        with agent.override(disable=["guard.budget"]):
            assert (await agent.run("go")).status == "completed"
        assert (await agent.run("go")).status == "limit"


async def test_what_a_cancelled_call_used_is_booked_at_the_reserved_amount() -> None:
    store = MemoryStore()
    model = FaultyModel(ScriptedModel([say("one", 10)]), {1: Hang(), 2: Hang()})
    agent = new_agent(model, budget("0.25"), store=store)
    async with agent, agent.session() as session:
        for expected in ("0.1", "0.2"):
            async with anyio.create_task_group() as group:
                group.start_soon(session.run, "go")
                await anyio.wait_all_tasks_blocked()
                group.cancel_scope.cancel()
            assert spent(store) == Decimal(expected)
            assert session.last_result is not None
            assert session.last_result.cost is None, "what it really cost is unknown"
        assert (await session.run("go")).status == "limit"


async def test_a_reader_that_leaves_a_stream_early_leaves_the_reserved_amount_booked() -> None:
    store = MemoryStore()
    agent = new_agent(FaultyModel(ScriptedModel(["a long answer"]), {1: Hang(after=1)}), budget(), store=store)
    async with agent, agent.session() as session:
        async with session.stream("go") as stream:
            async for _ in stream.text:
                break
        assert spent(store) == Decimal("0.1")


async def test_nothing_stays_reserved_after_a_call_of_any_outcome() -> None:
    store = MemoryStore()
    model = ScriptedModel([say("ok", 1), ModelError("no", usage=Usage(0, 2)), ModelError("no"), say("ok", 3)])
    agent = new_agent(model, budget(tokens=10_000, user_usd=Decimal(5)), store=store)
    async with agent, agent.session() as session:
        for _ in range(4):
            with suppress(ModelError):
                await session.run("go")
    assert [account.reserved for account in store.accounts.values()] == [0] * 3
    assert spent(store) == spent(store, "user") == Decimal("0.106")


async def test_attempts_that_fail_count_with_what_they_used() -> None:
    store = MemoryStore()
    model = ScriptedModel([OverloadedError("busy", usage=Usage(0, 30)), OverloadedError("busy"), say("ok", 5)])
    agent = new_agent(model, budget(), Again(), store=store)
    async with agent, agent.session() as session:
        result = await session.run("go")
        assert spent(store) == Decimal("0.135"), "the second at the reserved amount: nobody said what it used"
    assert (result.status, result.cost) == ("completed", None)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (ModelResponse((TextPart("A"),), usage=Usage(25, 15)), "0.175"),
        (ModelResponse((TextPart("B"),), usage=Usage(40, 20, 100)), "0.250"),
        (StreamCutError("C", usage=Usage(25, 1)), "0.035"),
    ],
    ids=["A", "B", "C"],
)
async def test_g14_the_totals_of_a_stream_are_booked_once(answer: Any, expected: str) -> None:
    """The model gives running totals as one usage; what it costs is that, however many deltas there were."""
    price = Price(Decimal(1000), Decimal(10_000), Decimal(100))
    store = MemoryStore()
    agent = new_agent(ScriptedModel([answer], delta_size=1), budget("100", price=price), store=store)
    async with agent, agent.session() as session:
        if isinstance(answer, StreamCutError):
            with pytest.raises(StreamCutError):
                await session.run("go")
        else:
            assert (await session.run("go")).cost == Decimal(expected)
        assert spent(store) == Decimal(expected)
        assert session.last_result is not None
        assert session.last_result.cost == Decimal(expected)


async def test_g14_the_sum_of_a_turn_adds_per_call() -> None:
    price = Price(Decimal(1000), Decimal(10_000), Decimal(100))
    first = ModelResponse((TextPart("x"), call("tick")), "tool_use", usage=Usage(25, 15))
    model = ScriptedModel([first, ModelResponse((TextPart("B"),), usage=Usage(40, 20, 100))], delta_size=1)
    result = await new_agent(model, budget("100", price=price), tools=[tick]).run("go")
    assert (result.cost, result.usage.input_tokens, result.usage.cache_read_tokens) == (Decimal("0.425"), 65, 100)


# Warnings


async def test_a_warning_comes_once_for_each_account_at_eighty_percent() -> None:
    agent = new_agent(FunctionModel(lambda request: say("ok", 20)), budget("0.15", most=20, turn_usd=Decimal("1")))
    seen: list[Any] = []
    before: list[int] = []
    async with agent:
        for session_id in "12":
            async with agent.session(session_id) as session:
                session.on("limit.warning", seen.append)
                for _ in range(7):
                    await session.run("go")
                    before.append(len(seen))
    assert before == [0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 2, 2]
    assert (seen[0].key, seen[0].scope, seen[0].used, seen[0].maximum, seen[0].by) == (
        "usd",
        "session",
        "0.12",
        "0.15",
        "guard.budget",
    )


@pytest.mark.parametrize(("warn_at", "count"), [(None, 0), (0.1, 1), (1.0, 1)])
async def test_the_part_at_which_a_warning_comes_is_a_setting(warn_at: float | None, count: int) -> None:
    agent = new_agent(FunctionModel(lambda request: say("ok", 100)), budget("0.10", warn_at=warn_at))
    seen: list[Any] = []
    async with agent, agent.session() as session:
        session.on("limit.warning", seen.append)
        await session.run("go")
    assert len(seen) == count


# Prices


async def test_a_model_without_a_price_is_refused_and_the_reason_names_model_and_setting() -> None:
    model = ScriptedModel([say("never")], name="acme-large")
    result = await new_agent(model, Budget()).run("go")
    assert (result.status, result.by, result.cost) == ("limit", "guard.budget", Decimal(0))
    assert result.reason == (
        "what a call of acme-large may use in usd is unknown: give guard.budget its price in `prices`, "
        "or set `unknown_price` to 'allow' or to a price"
    )
    assert model.requests == []


async def test_with_allow_a_model_without_a_price_runs_and_its_cost_is_unknown_and_not_zero() -> None:
    model = ScriptedModel([say("ok", 10), say("ok", 10)], name="acme-large")
    result = await new_agent(model, Budget(unknown_price="allow")).run("go")
    assert (result.status, result.cost) == ("completed", None)


async def test_with_allow_the_tokens_are_still_limited() -> None:
    model = ScriptedModel([say("never")], name="acme-large")
    result = await new_agent(model, Budget(unknown_price="allow", tokens=100)).run("go")
    assert result.status == "limit"
    assert "of 100 tokens used" in (result.reason or "")


async def test_a_flat_price_holds_for_every_token_of_a_model_without_one() -> None:
    answer = ModelResponse((TextPart("ok"),), usage=Usage(10, 20, 30, 40))
    result = await new_agent(ScriptedModel([answer], name="acme-large"), Budget(unknown_price=Decimal(10))).run("go")
    assert result.cost == Decimal("0.001")


async def test_prices_are_overridden_by_code_and_by_configuration() -> None:
    answer = ModelResponse((TextPart("ok"),), usage=Usage(1_000, 1_000))
    by_code = Budget(prices={"claude-sonnet-4-5": Price(Decimal(1), Decimal(2))})
    assert (await new_agent(ScriptedModel([answer], name="claude-sonnet-4-5"), by_code).run("go")).cost == Decimal(
        "0.003"
    )
    config = {"plugins": {"guard.budget": {"prices": {"claude-sonnet-4-5": {"input": "0.5", "output": 0.1}}}}}
    agent = new_agent(ScriptedModel([answer], name="claude-sonnet-4-5"), Budget(), config=config)
    assert (await agent.run("go")).cost == Decimal("0.0006")


async def test_configuration_may_state_every_field(tmp_path: Path) -> None:
    file = tmp_path / "agentx.toml"
    file.write_text(
        """
        [plugins.guard.budget]
        limit_usd = "5.00"
        scope = "team"
        tokens = 9000
        turn_usd = 0.10
        turn_tokens = 8000
        user_usd = 20
        user_tokens = 7000
        warn_at = 0.5
        on_limit = "answer"
        unknown_price = "2.50"
        max_output_tokens = 512
        [plugins.guard.budget.prices."acme/large"]
        input = "3"
        output = 15
        cache_read = 0.3
        """
    )
    agent = new_agent(ScriptedModel([say("ok", 10)]), Budget(), config=file)
    result = await agent.run("go")
    row = {row.id: row for row in agent.plugins}["guard.budget"]
    assert (row.id, row.phase, row.hooks, row.status) == ("guard.budget", "gate", ("init",), "enabled")
    assert {name: setting.value for name, setting in row.config.items()} == {
        "limit_usd": Decimal("5.00"),
        "scope": "team",
        "tokens": 9000,
        "turn_usd": Decimal("0.1"),
        "turn_tokens": 8000,
        "user_usd": Decimal(20),
        "user_tokens": 7000,
        "warn_at": 0.5,
        "on_limit": "answer",
        "unknown_price": Decimal("2.50"),
        "max_output_tokens": 512,
        "prices": {"acme/large": Price(Decimal(3), Decimal(15), Decimal("0.3"))},
    }
    assert (result.status, result.cost) == ("completed", Decimal("0.000025"))


async def test_the_environment_may_state_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTX__GUARD_BUDGET__LIMIT_USD", "0.05")
    result = await new_agent(ScriptedModel([say("never")]), Budget(unknown_price=Decimal(100)), config={}).run("go")
    assert "of 0.05 usd used" in (result.reason or "")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"limit_usd": -1}, "limit_usd is an amount of US dollars"),
        ({"limit_usd": "NaN"}, "limit_usd must be a decimal number"),
        ({"warn_at": 80}, "warn_at is a part of the limit"),
        ({"on_limit": "ask"}, "on_limit must be one of 'stop', 'answer'"),
        ({"unknown_price": "often"}, "unknown_price must be one of 'refuse', 'allow' or a decimal number"),
        ({"unknown_price": -1}, "unknown_price is 'refuse', 'allow' or US dollars"),
        ({"scope": " "}, "scope is 'turn', 'session', 'user' or another word"),
        ({"scope": "turn", "turn_usd": 1}, "limit_usd with scope='turn' and turn_usd are the same limit"),
        ({"prices": {"x/y": {"input": 1, "output": -1}}}, "a price is a number of US dollars, 0 or more, not"),
        ({"limitusd": 1}, "did you mean 'limit_usd'?"),
    ],
)
async def test_bad_settings_refuse_the_agent_and_name_the_field(settings: dict[str, Any], message: str) -> None:
    agent = new_agent(ScriptedModel([]), Budget(), config={"plugins": {"guard.budget": settings}})
    with pytest.raises(PluginLoadError, match=r"guard\.budget") as caught:
        await agent.run("go")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "fields",
    [{"limit_usd": "one"}, {"tokens": 1.5}, {"warn_at": True}, {"on_limit": 1}, {"prices": {"x": 3}}, {"tokens": -1}],
)
def test_bad_fields_in_code_are_refused_at_once(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(fields))):
        Budget(**fields)


def test_numbers_and_texts_are_taken_as_they_are_written() -> None:
    fields: dict[str, Any] = {"limit_usd": 0.1, "turn_usd": "0.10", "user_usd": 2, "unknown_price": "3"}
    made = Budget(**fields)
    assert (made.limit_usd, made.turn_usd, made.user_usd) == (Decimal("0.1"), Decimal("0.10"), Decimal(2))
    assert made.unknown_price == Decimal(3)


# Layers inside: a router and retries


class Router(Plugin):
    """Sends every other call to the dear model."""

    id: ClassVar[str] = "model.router"
    phase: ClassVar[str | None] = "route"
    dear: Any = None

    async def model(self, ctx: ModelContext, call_next: CallNext[ModelResponse]) -> ModelResponse:
        if ctx.call_index % 2 == 0:
            ctx.set_model(self.dear)
        return await call_next()


class Again(Plugin):
    """Tries three times more, without a wait."""

    id: ClassVar[str] = "model.again"
    phase: ClassVar[str | None] = "retry"

    @hookimpl(repeats=True)
    async def model(self, ctx: ModelContext, call_next: CallNext[ModelResponse]) -> ModelResponse:
        for _ in range(3):
            try:
                return await call_next()
            except BaseException as error:
                if not isinstance(error, ModelError):
                    raise
        return await call_next()


@pytest.mark.parametrize("seed", range(25))
async def test_a_budget_of_1_with_a_router_and_three_retries_inside_never_spends_more(seed: int) -> None:
    """The models keep their own books: what they charge, failed attempts included, is never over 1.00."""
    chance = random.Random(seed)
    bill: list[Decimal] = []

    def charge(price: Price, most: int) -> Any:
        def answer(request: ModelRequest) -> Any:
            usage = Usage(0, chance.randint(1, most))
            bill.append(price.cost(usage))
            if chance.random() < 0.4:
                return OverloadedError("busy", usage=usage)
            return ask(call("tick"), tokens=usage.output_tokens)

        return answer

    cheap, dear = Price(Decimal(0), Decimal(100)), Price(Decimal(0), Decimal(900))
    routed = Router(dear=FunctionModel(charge(dear, 200), name="dear"))
    limit = Budget(prices={"cheap": cheap, "dear": dear}, max_output_tokens=200)
    agent = new_agent(FunctionModel(charge(cheap, 200), name="cheap"), limit, routed, Again(), tools=[tick])
    async with agent, agent.session() as session:
        statuses = set()
        for _ in range(8):
            try:
                statuses.add((await session.run("go")).status)
            except OverloadedError:
                statuses.add("failed")
    assert Decimal("0.8") < sum(bill) <= Decimal("1.00")
    assert "limit" in statuses


async def test_a_retry_that_catches_everything_cannot_go_on_after_the_budget_refused() -> None:
    class Stubborn(Again):
        id: ClassVar[str] = "model.stubborn"

        @hookimpl(repeats=True)
        async def model(self, ctx: ModelContext, call_next: CallNext[ModelResponse]) -> ModelResponse:
            for _ in range(5):
                try:
                    return await call_next()
                except BaseException:
                    continue
            return say("faked")

    model = ScriptedModel([OverloadedError("busy", usage=Usage(0, 90)), say("never")])
    result = await new_agent(model, budget("0.15"), Stubborn()).run("go")
    assert (result.status, result.text, result.cost) == ("limit", "", Decimal("0.09"))
    assert len(model.requests) == 1


async def test_the_model_that_a_router_chose_is_the_one_that_is_priced() -> None:
    dear = ScriptedModel([say("never")], name="dear")
    agent = new_agent(
        ScriptedModel([], name="cheap"), Budget(prices={"cheap": FREE, "dear": Price(Decimal(0), Decimal(10**6))})
    )
    agent.use(Router(dear=dear))
    result = await agent.run("go")
    assert (result.status, dear.requests) == ("limit", [])
    assert "may need 4096" in (result.reason or "")


# G15: parallel calls


@pytest.mark.parametrize("scope", ["turn", "session", "user", "team"])
@pytest.mark.parametrize(("calls", "started"), [(2, 1), (3, 1), (8, 1)])
async def test_g15_b_parallel_sub_agents_cannot_pass_the_limit_together(scope: str, calls: int, started: int) -> None:
    for _ in range(100 if calls == 2 else 10):
        store = MemoryStore()
        model = FunctionModel(lambda request: say("done", 600), name="child")
        child = new_agent(model, name="child")
        parent_model = ScriptedModel([ask(*[call("child", task="x")] * calls), say("all in")], name="parent")
        parent = new_agent(parent_model, budget(scope=scope, most=600), tools=[child.as_tool()], store=store)
        async with parent, parent.session(user="ann") as session:
            result = await session.run("go")
            assert len(model.requests) == started
            assert result.cost == Decimal("0.600")
            assert scope == "turn" or spent(store, scope) == Decimal("0.600")
        results = [part for message in result.messages if message.role == "tool" for part in message.parts]
        assert sorted([part.status for part in results]) == ["error"] * (calls - 1) + ["ok"]  # type: ignore[attr-defined]
        refused = [part.text for part in results if part.status == "error"]  # type: ignore[attr-defined]
        assert all("limit_usd of guard.budget" in text for text in refused)


@pytest.mark.parametrize("fits", [1, 2, 3])
async def test_g15_b_as_many_run_as_fit_in_the_worst_case(fits: int) -> None:
    for _ in range(30):
        model = FunctionModel(lambda request: say("done", 10), name="child", delay=0.0)
        child = new_agent(model, name="child")
        parent_model = ScriptedModel([ask(*[call("child", task="x")] * 4), say("all in")], name="parent")
        limit = str(Decimal("0.6") * fits + Decimal("0.5"))
        parent = new_agent(parent_model, budget(limit, most=600), tools=[child.as_tool()])
        result = await parent.run("go")
        assert fits <= len(model.requests) <= 4, "what is not used is free for the next"
        assert result.cost == Decimal("0.01") * len(model.requests)


@pytest.mark.parametrize("shared", ["word", "user"])
async def test_g15_c_two_sessions_that_start_at_the_same_moment_share_one_request(shared: str) -> None:
    for _ in range(100):
        model = FunctionModel(lambda request: say("ok", 600))
        scope = "team" if shared == "word" else "user"
        agent = new_agent(model, budget(scope=scope, most=600))
        statuses: list[str] = []
        start = anyio.Event()

        async def converse(agent: Any = agent, statuses: list[str] = statuses, start: anyio.Event = start) -> None:
            async with agent.session(user="ann") as session:
                await start.wait()
                statuses.append((await session.run("go")).status)

        async with agent, anyio.create_task_group() as group:
            group.start_soon(converse)
            group.start_soon(converse)
            await anyio.wait_all_tasks_blocked()
            start.set()
        assert sorted(statuses) == ["completed", "limit"]
        assert len(model.requests) == 1


# G16: sub-agents


def family(child_script: Sequence[Any], plugins: Sequence[Any] = (), **fields: Any) -> tuple[Any, Any, Agent[Any, Any]]:
    """Return the models of parent and child and the parent, which hands its task to the child; a call costs 0.10."""
    child_model = ScriptedModel(child_script, name="child")
    child = new_agent(child_model, *plugins, name="delegate", tools=[tick])
    parent_model = ScriptedModel([ask(call("delegate", task="x"), tokens=100), say("answer", 100)])
    limit = budget(fields.pop("limit", "0.50"), **fields)
    return parent_model, child_model, new_agent(parent_model, limit, tools=[child.as_tool()], store=MemoryStore())


def rounds(count: int) -> list[ModelResponse]:
    return [ask(call("tick"), tokens=100) for _ in range(count)]


@pytest.mark.parametrize("scope", ["turn", "session"])
async def test_g16_a_sub_agents_spend_is_its_callers_too(scope: str) -> None:
    parent_model, child_model, agent = family([*rounds(2), say("done", 100)], scope=scope)
    result = await agent.run("go")
    assert (result.status, result.text) == ("completed", "answer")
    assert (len(parent_model.requests), len(child_model.requests)) == (2, 3)
    assert (result.cost, result.usage.output_tokens, result.usage.requests) == (Decimal("0.500"), 500, 5)


@pytest.mark.parametrize("scope", ["turn", "session"])
async def test_g16_the_limit_is_hit_at_exactly_the_sixth_call_wherever_it_happens(scope: str) -> None:
    parent_model, child_model, agent = family([*rounds(8), say("done", 100)], scope=scope)
    result = await agent.run("go")
    assert (result.status, result.by, result.cost) == ("limit", "guard.budget", Decimal("0.500"))
    assert (len(parent_model.requests), len(child_model.requests)) == (1, 4)


async def test_g16_what_a_cancelled_sub_agent_spent_stays_booked() -> None:
    child_model = FaultyModel(ScriptedModel(rounds(2), name="child"), {3: Hang()})
    child = new_agent(child_model, name="delegate", tools=[tick])
    store = MemoryStore()
    parent_model = ScriptedModel([ask(call("delegate", task="x"), tokens=100)])
    agent = new_agent(parent_model, budget("1.00"), tools=[child.as_tool()], store=store)
    async with agent, agent.session() as session:

        async def cancel() -> None:
            await child_model.reached.wait()
            session.cancel()

        async with anyio.create_task_group() as group:
            group.start_soon(cancel)
            with pytest.raises(TurnAborted):
                await session.run("go")
        assert spent(store) == Decimal("0.4"), "three calls, and the one that hung at its reserved amount"
        assert session.last_result is not None
        assert session.last_result.usage.output_tokens == 300


async def test_g16_a_child_with_a_smaller_limit_of_its_own_counts_for_the_parent_too() -> None:
    parent_model, child_model, agent = family([*rounds(8), say("done", 100)], [budget("0.20")])
    result = await agent.run("go")
    assert (result.status, result.cost) == ("completed", Decimal("0.400"))
    assert (len(parent_model.requests), len(child_model.requests)) == (2, 2)


async def test_g16_the_limit_of_a_grandparent_holds_for_a_grandchild() -> None:
    leaf_model = ScriptedModel(rounds(8), name="child")
    leaf = new_agent(leaf_model, name="leaf", tools=[tick])
    middle_model = ScriptedModel([ask(call("leaf", task="x"), tokens=100)], name="function")
    middle = new_agent(middle_model, name="middle", tools=[leaf.as_tool()])
    top_model = ScriptedModel([ask(call("middle", task="x"), tokens=100), say("never")])
    result = await new_agent(top_model, budget("0.50"), tools=[middle.as_tool()]).run("go")
    assert (result.status, result.cost) == ("limit", Decimal("0.500"))
    assert (len(top_model.requests), len(middle_model.requests), len(leaf_model.requests)) == (1, 1, 3)


# The contract


class TestBudget(PluginConformance):
    def plugin(self) -> Budget:
        return Budget(limit_usd=Decimal(5), tokens=10**6, unknown_price=Decimal(1))


class TestBudgetThatAllowsUnknownPrices(PluginConformance):
    def plugin(self) -> Budget:
        return Budget(unknown_price="allow")
