"""Usage and limits: what is reserved at dispatch, what is settled afterwards, and what happens at the cap."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any, ClassVar

import anyio
import anyio.lowlevel
import pytest

from agentx import (
    Agent,
    Limit,
    LimitError,
    LimitWarning,
    MemoryStore,
    ModelContext,
    ModelRequest,
    ModelResponse,
    OverloadedError,
    Plugin,
    RunResult,
    SessionContext,
    TextPart,
    ToolContext,
    ToolResult,
    TurnContext,
    Usage,
    tool,
)
from agentx.builtin.limits import LimitsGuard
from agentx.builtin.retry import Retry
from agentx.testing import FunctionModel, ScriptedModel, call

from ._rules import agent_with, at_most, echo, last_of, results_of

pytestmark = pytest.mark.anyio

TEN = Usage(4, 6)


class Guard(Plugin):
    """Registers limits at a level, and notes what the ledger says before and after every model call."""

    id: ClassVar = "guard.test"
    phase: ClassVar = "gate"
    limits: tuple[Limit, ...]
    level: str = "turn"
    seen: list[Any] = []  # noqa: RUF012  # a field of a plugin, given by the test

    def _register(self, level: str, ctx: Any) -> None:
        if level == self.level:
            for limit in self.limits:
                ctx.ledger.limit(limit)

    async def init(self, ctx: Any, call_next: Any) -> None:
        self._register("init", ctx)
        await call_next()

    async def session(self, ctx: SessionContext, call_next: Any) -> None:
        self._register("session", ctx)
        await call_next()

    async def turn(self, ctx: TurnContext, call_next: Any) -> RunResult[Any]:
        self._register("turn", ctx)
        result: RunResult[Any] = await call_next()
        return result

    async def model(self, ctx: ModelContext, call_next: Any) -> ModelResponse:
        key = self.limits[0].key
        self.seen.append((ctx.ledger.used(key), ctx.ledger.remaining(key)))
        response: ModelResponse = await call_next()
        self.seen.append((ctx.ledger.used(key), ctx.ledger.remaining(key)))
        return response


def guard(*limits: Limit, level: str = "turn", seen: list[Any] | None = None) -> Guard:
    return Guard(limits=limits, level=level, seen=[] if seen is None else seen)


def for_ever(text: str = "") -> FunctionModel:
    """Return a model that asks for a tool again and again."""
    return FunctionModel(lambda request: [text, call("echo", text="x")], usage=TEN)


async def spend(agent: Agent[Any, str], *sessions: tuple[str, str | None], turns: int = 1) -> list[str]:
    """Run turns in sessions given by id and user; return their statuses."""
    statuses: list[str] = []
    for name, user in sessions:
        async with agent.session(id=name, user=user) as session:
            for _ in range(turns):
                statuses.append((await session.run("go")).status)
    return statuses


# Scopes


async def test_a_limit_of_a_turn_begins_anew_with_every_turn() -> None:
    model = for_ever()
    with at_most():
        async with agent_with(model, plugins=[guard(Limit("requests", 3))]) as agent:
            assert await spend(agent, ("a", None), turns=2) == ["limit", "limit"]
    assert len(model.requests) == 6


async def test_a_limit_of_a_session_holds_over_its_turns() -> None:
    model = FunctionModel(lambda request: "ok")
    limited = guard(Limit("requests", 3, scope="session"), level="session")
    with at_most():
        async with agent_with(model, plugins=[limited]) as agent:
            assert await spend(agent, ("a", None), turns=5) == ["completed"] * 3 + ["limit"] * 2
            assert await spend(agent, ("b", None)) == ["completed"]


@pytest.mark.parametrize("level", ["init", "session", "turn"])
async def test_a_limit_of_a_user_holds_over_their_sessions(level: str) -> None:
    model = FunctionModel(lambda request: "ok")
    limited = guard(Limit("requests", 3, scope="user"), level=level)
    with at_most():
        async with agent_with(model, plugins=[limited]) as agent:
            assert await spend(agent, ("a", "ann"), ("b", "ann"), turns=2) == ["completed"] * 3 + ["limit"]
            assert await spend(agent, ("c", "bob"), turns=2) == ["completed"] * 2


async def test_any_other_word_is_one_account_for_everybody_in_the_store() -> None:
    model = FunctionModel(lambda request: "ok")
    store = MemoryStore()
    agents = [
        agent_with(model, plugins=[guard(Limit("requests", 3, scope="company"))], store=store, name=name)
        for name in ("one", "two")
    ]
    with at_most():
        async with agents[0], agents[1]:
            assert await spend(agents[0], ("a", "ann"), ("b", "bob")) == ["completed"] * 2
            assert await spend(agents[1], ("c", "cid"), ("d", "dan")) == ["completed", "limit"]


async def test_a_limit_that_is_wider_than_a_session_survives_closing_the_agent() -> None:
    model = FunctionModel(lambda request: "ok")
    store = MemoryStore()
    statuses = []
    with at_most():
        for _ in range(3):
            agent = agent_with(model, plugins=[guard(Limit("requests", 2, scope="user"))], store=store)
            statuses += await spend(agent, ("s", "ann"))
    assert statuses == ["completed", "completed", "limit"]


async def test_the_narrowest_of_several_limits_counts() -> None:
    model = for_ever()
    limits = guard(Limit("requests", 10), Limit("tokens", 35, estimate=10, measure=lambda r, u: u.total_tokens))
    with at_most():
        result = await agent_with(model, plugins=[limits, LimitsGuard(requests=8)]).run("go")
    assert (result.status, len(model.requests)) == ("limit", 3)
    assert "tokens" in (result.reason or "")
    assert result.by == "guard.test"


# Reserving and settling


async def test_what_is_reserved_is_settled_by_what_was_used() -> None:
    seen: list[Any] = []
    limit = Limit("tokens", 100, estimate=40, measure=lambda request, usage: usage.total_tokens)
    model = ScriptedModel([call("echo", text="x"), "ok"], usage=TEN)
    with at_most():
        await agent_with(model, plugins=[guard(limit, seen=seen)]).run("go")
    assert seen == [(0, 100), (10, 90), (10, 90), (20, 80)]


async def test_a_call_that_might_not_fit_does_not_start() -> None:
    limit = Limit("tokens", 59, estimate=40, measure=lambda request, usage: usage.total_tokens)
    model = for_ever()
    with at_most():
        result = await agent_with(model, plugins=[guard(limit)]).run("go")
    assert result.status == "limit"
    assert len(model.requests) == 2


async def test_without_a_measure_the_reserved_amount_stands() -> None:
    seen: list[Any] = []
    with at_most():
        await agent_with(["ok"], plugins=[guard(Limit("usd", Decimal("1"), estimate=Decimal("0.3")), seen=seen)]).run(
            "x"
        )
    assert seen == [(0, Decimal("1")), (Decimal("0.3"), Decimal("0.7"))]


async def test_decimals_add_up_exactly() -> None:
    model = for_ever()
    limit = Limit("usd", Decimal("1.00"), estimate=Decimal("0.10"))
    with at_most():
        result = await agent_with(model, plugins=[guard(limit)]).run("go")
    assert result.status == "limit"
    assert len(model.requests) == 10
    assert result.cost == Decimal("1.00")


async def test_all_limits_are_reserved_or_none() -> None:
    seen: list[Any] = []
    limits = guard(Limit("a", 100, scope="session"), Limit("b", 0), level="session", seen=seen)
    model = FunctionModel(lambda request: "never")
    with at_most():
        async with agent_with(model, plugins=[guard(Limit("b", 0)), limits_named(limits)]).session() as session:
            assert (await session.run("go")).status == "limit"
            assert (await session.run("go")).status == "limit"
    assert model.requests == []
    assert {pair for pair in seen if pair[0]} == set()


def limits_named(plugin: Guard) -> Plugin[Any]:
    """Return a plugin like `plugin` under another id."""

    class Other(Guard):
        id: ClassVar = "guard.other"

    return Other(limits=plugin.limits, level=plugin.level, seen=plugin.seen)


async def test_a_failed_call_is_settled_at_the_reserved_amount() -> None:
    seen: list[Any] = []
    limit = Limit("tokens", 100, estimate=40, measure=lambda request, usage: usage.total_tokens, scope="session")
    model = ScriptedModel([ValueError("bug"), "ok"], usage=TEN)
    with at_most():
        async with agent_with(model, plugins=[guard(limit, level="session", seen=seen)]).session() as session:
            with pytest.raises(ValueError):
                await session.run("go")
            await session.run("go")
    assert seen[-1][1] == 50


async def test_a_cancelled_call_is_settled_at_the_reserved_amount() -> None:
    seen: list[Any] = []
    begun = anyio.Event()

    async def hang(request: ModelRequest) -> str:
        begun.set()
        await anyio.sleep_forever()
        return ""

    limit = Limit("tokens", 100, estimate=40, measure=lambda request, usage: usage.total_tokens, scope="session")
    with at_most():
        model = ScriptedModel([hang, "ok"], usage=TEN)
        async with agent_with(model, plugins=[guard(limit, level="session", seen=seen)]).session() as session:
            async with anyio.create_task_group() as group:
                group.start_soon(session.run, "go")
                await begun.wait()
                group.cancel_scope.cancel()
            assert last_of(session).usage.estimated
            await session.run("go")
    assert seen[-1][1] == 50


async def test_every_attempt_of_a_retry_counts() -> None:
    model = ScriptedModel([OverloadedError("busy")] * 2 + ["ok"])
    with at_most():
        agent = agent_with(model, plugins=[guard(Limit("requests", 2)), Retry(base_delay=0.0, attempts=5)])
        result = await agent.run("go")
    assert result.status == "limit"
    assert len(model.requests) == 2


@pytest.mark.parametrize("unknown", ["refuse", "allow"])
async def test_an_estimate_that_is_unknown_is_refused_or_allowed(unknown: Any) -> None:
    limit = Limit("usd", Decimal("1"), estimate=lambda request: None, unknown=unknown)
    with at_most():
        result = await agent_with(["ok"], plugins=[guard(limit)]).run("go")
    assert result.status == ("limit" if unknown == "refuse" else "completed")
    assert result.cost in (None, 0) if unknown == "refuse" else result.cost is None


async def test_a_limit_without_a_maximum_only_counts() -> None:
    seen: list[Any] = []
    model = ScriptedModel([call("echo", text="x"), "ok"])
    with at_most():
        result = await agent_with(model, plugins=[guard(Limit("requests"), seen=seen)]).run("go")
    assert result.status == "completed"
    assert seen == [(0, None), (1, None), (1, None), (2, None)]


async def test_the_estimate_sees_the_final_request_and_model() -> None:
    seen: list[tuple[str, int]] = []

    def estimate(request: ModelRequest) -> int:
        seen.append((request.model, len(request.context)))
        return 1

    other = ScriptedModel(["ok"], name="other")

    async def change(ctx: ModelContext, call_next: Any) -> ModelResponse:
        ctx.add_context("more")
        ctx.set_model(other)
        response: ModelResponse = await call_next()
        return response

    with at_most():
        await agent_with([], plugins=[guard(Limit("x", 9, estimate=estimate))]).use(model=change).run("go")
    assert seen == [("other", 1)]


async def test_an_estimate_that_raises_ends_the_turn_and_reserves_nothing() -> None:
    def broken(request: ModelRequest) -> int:
        raise ZeroDivisionError

    seen: list[Any] = []
    first, second = Limit("a", 5, scope="session"), Limit("b", 5, estimate=broken)
    with at_most():
        async with agent_with(["ok"], plugins=[guard(first, second, seen=seen)]).session() as session:
            for _ in range(2):
                with pytest.raises(LimitError, match=r"guard\.test"):
                    await session.run("go")
    assert seen == [(0, 5), (0, 5)]


# Warnings


async def test_a_warning_comes_once_when_most_is_used() -> None:
    model = for_ever()
    with at_most():
        agent = agent_with(model, plugins=[guard(Limit("requests", 10, warn_at=0.8))])
        async with agent.session() as session:
            await session.run("go")
            warnings = [event for event in session.events if isinstance(event, LimitWarning)]
    assert [(w.key, w.scope, w.used, w.maximum, w.by) for w in warnings] == [
        ("requests", "turn", "8", "10", "guard.test")
    ]


# At the cap


async def test_at_the_cap_every_call_has_a_result_and_the_result_names_limit_and_guard() -> None:
    with at_most():
        async with agent_with(for_ever(), plugins=[LimitsGuard(tool_calls=2)]).session() as session:
            result = await session.run("go")
            results_of(session)
            last_of(session)
    assert (result.status, result.by) == ("limit", "guard.limits")
    assert "tool_calls" in (result.reason or "")


@pytest.mark.parametrize("key", ["requests", "tool_calls"])
async def test_at_the_cap_one_last_answer_without_tools_may_be_allowed(key: str) -> None:
    def reply(request: ModelRequest) -> Any:
        return call("echo", text="x") if request.tools else "this is what I have"

    model = FunctionModel(reply)
    limits = LimitsGuard(on_limit="answer", **{key: 3})
    with at_most():
        async with agent_with(model, plugins=[limits]).session() as session:
            result = await session.run("go")
            results_of(session)
    assert (result.status, result.text) == ("limit", "this is what I have")
    assert [bool(request.tools) for request in model.requests].count(False) == 1
    assert not model.requests[-1].tools
    assert result.usage.requests == len(model.requests) == (4 if key == "requests" else 5)


async def test_calls_of_the_last_answer_do_not_run_and_have_results() -> None:
    ran: list[str] = []

    @tool
    async def tick() -> str:
        ran.append("tick")
        return ""

    model = FunctionModel(lambda request: ["hm", call("tick")])
    with at_most():
        agent = agent_with(model, tools=[tick], plugins=[LimitsGuard(requests=2, on_limit="answer")])
        async with agent.session() as session:
            result = await session.run("go")
            results_of(session)
            assert (await session.run("again")).status == "limit"
    assert (result.status, result.text) == ("limit", "hm")
    assert len(ran) == 4


async def test_the_last_answer_is_booked_so_that_a_session_does_not_get_one_for_free_each_turn() -> None:
    model = FunctionModel(lambda request: "ok")
    seen: list[Any] = []
    limit = Limit("requests", 2, scope="session", on_limit="answer")
    with at_most():
        async with agent_with(model, plugins=[guard(limit, level="session", seen=seen)]).session() as session:
            statuses = [(await session.run("go")).status for _ in range(4)]
    assert statuses == ["completed", "completed", "limit", "limit"]
    assert seen[-1][0] == 4


async def test_a_maximum_of_nothing_lets_nothing_start() -> None:
    model = FunctionModel(lambda request: "never")
    with at_most():
        result = await agent_with(model, plugins=[LimitsGuard(requests=0)]).run("go")
    assert (result.status, result.text, len(model.requests)) == ("limit", "", 0)


async def test_the_seconds_of_a_turn_stop_a_tool_that_hangs() -> None:
    @tool
    async def hang() -> str:
        await anyio.sleep_forever()
        return ""

    with at_most():
        async with agent_with([call("hang")], tools=[hang], plugins=[LimitsGuard(seconds=0.05)]).session() as session:
            result = await session.run("go")
            given = results_of(session)["c1"]
            last_of(session)
    assert result.status == "limit"
    assert "seconds" in (result.reason or "")
    assert given.is_error


# G15: parallel calls do not pass a check together


@pytest.mark.parametrize("calls", [7, 8, 40])
async def test_g15_of_parallel_calls_no_more_run_than_the_limit_allows(calls: int) -> None:
    ran: list[int] = []

    @tool
    async def tick() -> str:
        await anyio.lowlevel.checkpoint()
        ran.append(1)
        await anyio.lowlevel.checkpoint()
        return "ticked"

    with at_most():
        agent = agent_with([[call("tick")] * calls, "x"], tools=[tick], plugins=[LimitsGuard(tool_calls=6)])
        async with agent.session() as session:
            result = await session.run("go")
            results = results_of(session)
    assert len(ran) <= 6
    assert len(results) == calls
    assert [r.is_error for r in results.values()].count(True) == calls - len(ran)
    assert result.status == "limit"
    assert "tool_calls" in (result.reason or "")


async def test_g15_two_sessions_that_share_a_limit_of_one_make_one_request() -> None:
    for _ in range(20):
        model = FunctionModel(lambda request: "ok", delay=0.0)
        agent = agent_with(model, plugins=[guard(Limit("requests", 1, scope="company"))])
        statuses: list[str] = []
        with at_most():
            async with agent, anyio.create_task_group() as group:

                async def run(agent: Agent[Any, str] = agent, statuses: list[str] = statuses) -> None:
                    statuses.append((await agent.run("go")).status)

                group.start_soon(run)
                group.start_soon(run)
        assert sorted(statuses) == ["completed", "limit"]
        assert len(model.requests) == 1


async def test_g15_money_is_never_overspent_by_two_sub_agents_at_once() -> None:
    child_model = FunctionModel(lambda request: "helped")
    child = agent_with(child_model, tools=[], name="helper")
    limit = Limit("usd", Decimal("1.00"), scope="session", estimate=lambda r: Decimal("0.60") if r.tools == () else 0)
    parent = ScriptedModel([[call("helper", task="a"), call("helper", task="b")], "done"])
    with at_most():
        agent = agent_with(parent, tools=[child.as_tool()], plugins=[guard(limit, level="session")])
        async with agent.session() as session:
            await session.run("go")
            results_of(session)
    assert len(child_model.requests) == 1


# Usage at every level


async def test_every_level_has_its_usage() -> None:
    seen: dict[str, int] = {}

    async def turn(ctx: TurnContext, call_next: Any) -> RunResult[Any]:
        result: RunResult[Any] = await call_next()
        seen["turn"] = ctx.ledger.usage.requests
        return result

    async def lifetime(ctx: SessionContext, call_next: Any) -> None:
        await call_next()
        seen["session"] = ctx.ledger.usage.requests

    async def init(ctx: Any, call_next: Any) -> None:
        await call_next()
        seen["agent"] = ctx.ledger.usage.requests

    agent = agent_with(FunctionModel(lambda request: "ok")).use(turn).use(session=lifetime).use(init=init)
    with at_most():
        async with agent:
            await spend(agent, ("a", None), turns=2)
            await spend(agent, ("b", None), turns=3)
    assert seen == {"turn": 1, "session": 3, "agent": 5}


async def test_a_tool_may_ask_what_is_left() -> None:
    @tool
    async def left(ctx: ToolContext) -> str:
        return str(ctx.ledger.remaining("requests"))

    with at_most():
        agent = agent_with([call("left"), "ok"], tools=[left], plugins=[LimitsGuard(requests=5)])
        async with agent.session() as session:
            await session.run("go")
            assert results_of(session)["c1"].text == "4"


async def test_a_tool_layer_that_retries_is_charged_for_every_run() -> None:
    from agentx import ToolFailed, hookimpl

    ran: list[int] = []

    @tool
    async def flaky() -> str:
        ran.append(1)
        raise ValueError("again")

    class Again(Plugin):
        id: ClassVar = "tools.again"

        @hookimpl(hook="tool", repeats=True, phase="retry")
        async def tool(self, ctx: ToolContext, call_next: Any) -> ToolResult:
            while True:
                try:
                    result: ToolResult = await call_next()
                except ToolFailed:
                    continue
                return result

    with at_most():
        agent = agent_with([call("flaky")], tools=[flaky], plugins=[LimitsGuard(tool_calls=3), Again()])
        async with agent.session() as session:
            result = await session.run("go")
            results_of(session)
    assert len(ran) == 3
    assert result.status == "limit"


async def test_the_cost_of_a_turn_is_what_was_counted_in_dollars_or_unknown() -> None:
    priced: Callable[[ModelRequest, Usage], Decimal | None] = lambda r, u: Decimal(u.total_tokens) / 100  # noqa: E731
    limit = Limit("usd", estimate=Decimal("1"), measure=priced)
    with at_most():
        known = await agent_with(ScriptedModel(["ok"], usage=TEN), plugins=[guard(limit)]).run("go")
        unknown = await agent_with(ScriptedModel(["ok"], usage=None), plugins=[guard(limit)]).run("go")
    assert known.cost == Decimal("0.1")
    assert unknown.cost is None


async def test_text_of_the_last_answer_at_the_cap_is_in_the_history() -> None:
    model = FunctionModel(lambda r: call("echo", text="x") if r.tools else ModelResponse((TextPart("last"),)))
    with at_most():
        agent = agent_with(model, tools=[echo], plugins=[LimitsGuard(requests=2, on_limit="answer")])
        result = await agent.run("go")
    assert result.messages[-1].text == "last"
