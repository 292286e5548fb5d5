"""`guard.limits`: CASES G15 and G16, the limits of one turn, and what is left when one is reached."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import anyio
import pytest

from agentx import (
    Agent,
    AgentContext,
    CallNext,
    ConfigError,
    Limit,
    Message,
    ModelRequest,
    ModelResponse,
    ModelSettings,
    Plugin,
    RunResult,
    TextPart,
    ToolCall,
    ToolResult,
    TurnAborted,
    Usage,
    tool,
)
from agentx.builtin.limits import LimitsGuard
from agentx.testing import FunctionModel, ScriptedModel, call, check_history

REPEATS = 100
SECONDS = 10
"""How long a test may hang before it fails."""


class Ticks:
    """A tool that counts how often it really runs."""

    def __init__(self) -> None:
        self.count = 0

        @tool
        async def tick() -> str:
            """Tick."""
            self.count += 1
            await anyio.lowlevel.checkpoint()
            return "tock"

        self.tool = tick


def agent_with(model: Any, *tools: Any, guard: Plugin[Any] | None = None, **options: Any) -> Agent[Any, str]:
    plugins = [LimitsGuard() if guard is None else guard]
    return Agent(model, tools=tools, plugins=plugins, config=False, autoload="none", **options)


def always_ticks(request: ModelRequest) -> ToolCall:
    return call("tick")


def results_of(messages: Sequence[Message]) -> list[ToolResult]:
    return [part for message in messages for part in message.parts if isinstance(part, ToolResult)]


# Requests


async def test_a_turn_makes_fifty_model_calls_and_then_ends_with_the_status_limit() -> None:
    ticks, model = Ticks(), FunctionModel(always_ticks)
    async with agent_with(model, ticks.tool).session() as session:
        result = await session.run("go")
        assert (result.status, result.by) == ("limit", "guard.limits")
        assert result.reason == "50 of 50 requests used in this turn"
        assert len(model.requests) == ticks.count == result.usage.requests == 50
        check_history(session.history)


async def test_every_turn_counts_from_nothing() -> None:
    model = ScriptedModel(["a", "b", "c"])
    async with agent_with(model, guard=LimitsGuard(requests=1)).session() as session:
        assert [(await session.run("go")).status for _ in range(3)] == ["completed"] * 3


async def test_without_the_guard_nothing_but_the_backstop_of_the_core_ends_a_turn() -> None:
    def ticks_sixty_times(request: ModelRequest) -> Any:
        return "done" if len(request.messages) > 120 else call("tick")

    ticks, model = Ticks(), FunctionModel(ticks_sixty_times)
    with (agent := agent_with(model, ticks.tool)).override(disable=["guard.limits"]):
        result = await agent.run("go")
    assert (result.status, ticks.count) == ("completed", 60)


async def test_a_second_guard_with_the_same_numbers_counts_for_itself() -> None:
    model = FunctionModel(always_ticks)
    agent = agent_with(model, Ticks().tool, guard=LimitsGuard(requests=4)).use(LimitsGuard(requests=4), name="tenant")
    assert (await agent.run("go")).usage.requests == 4


async def test_zero_requests_let_no_model_call_start() -> None:
    model = ScriptedModel(["never"])
    result = await agent_with(model, guard=LimitsGuard(requests=0)).run("go")
    assert (result.status, result.text, model.requests) == ("limit", "", [])


async def test_a_limit_may_allow_one_last_answer_without_tools() -> None:
    def answers_when_it_must(request: ModelRequest) -> Any:
        return call("tick") if request.tools else "so far: three ticks"

    ticks, model = Ticks(), FunctionModel(answers_when_it_must)
    guard = LimitsGuard(requests=3, on_limit="answer")
    async with agent_with(model, ticks.tool, guard=guard).session() as session:
        result = await session.run("go")
        assert (result.status, result.text) == ("limit", "so far: three ticks")
        assert [bool(request.tools) for request in model.requests] == [True, True, True, False]
        assert result.usage.requests == 4
        check_history(session.history)
        assert (await session.run("again")).status == "limit"


# What the application says


async def test_run_sets_limits_for_one_turn() -> None:
    ticks, model = Ticks(), FunctionModel(always_ticks)
    async with agent_with(model, ticks.tool).session() as session:
        assert (await session.run("go", limits={"requests": 2})).usage.requests == 2
        assert (await session.run("go", limits={"requests": None, "tool_calls": 3})).usage.requests == 4
        assert (await session.run("go")).usage.requests == 50


async def test_an_agent_sets_limits_as_configuration_of_the_guard() -> None:
    model = FunctionModel(always_ticks)
    agent = agent_with(model, Ticks().tool, guard=LimitsGuard, limits={"requests": 3})  # type: ignore[arg-type]
    assert (await agent.run("go")).usage.requests == 3


async def test_an_unknown_limit_of_a_turn_is_refused_and_the_right_one_is_named() -> None:
    model = ScriptedModel(["never"])
    with pytest.raises(TurnAborted, match=r"run\(limits=…\) has no limit 'request': did you mean 'requests'") as caught:
        await agent_with(model).run("go", limits={"request": 2})
    assert isinstance(caught.value.__cause__, ConfigError)
    with pytest.raises(TurnAborted, match="there are requests, tool_calls, tokens, seconds, on_limit"):
        await agent_with(model).run("go", limits={"dollars": 2})
    assert model.requests == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"requests": -1},
        {"requests": 2.5},
        {"tool_calls": True},
        {"tokens": "many"},
        {"seconds": 0},
        {"seconds": float("nan")},
        {"seconds": float("inf")},
        {"on_limit": "cry"},
    ],
    ids=str,
)
async def test_a_limit_that_is_no_amount_is_refused(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(ConfigError, match=f"guard.limits: {name} is"):
        LimitsGuard(**wrong)
    with pytest.raises(TurnAborted, match=f"guard.limits: {name} is"):
        await agent_with(ScriptedModel(["never"])).run("go", limits=wrong)


# Tool calls: G15 A


@pytest.mark.parametrize("batches", [(8,), (4, 4), (1,) * 8], ids=str)
async def test_g15a_of_eight_tool_calls_at_most_six_run_and_the_others_have_an_error_result(
    batches: tuple[int, ...],
) -> None:
    for _ in range(REPEATS):
        ticks = Ticks()
        model = ScriptedModel([[call("tick")] * size for size in batches] + ["done"])
        async with agent_with(model, ticks.tool, guard=LimitsGuard(tool_calls=6)).session() as session:
            result = await session.run("go")
            assert ticks.count == 6
            assert result.status == "limit"
            assert result.reason == "6 of 6 tool_calls used in this turn"
            results = results_of(session.history)
            assert [item.status for item in results].count("ok") == 6
            assert all("tool_calls used" in item.text for item in results if item.is_error)
            asked = [part for message in session.history for part in message.parts if isinstance(part, ToolCall)]
            assert len(asked) == len(results)
            check_history(session.history)


async def test_as_many_tool_calls_as_the_limit_allows_complete_the_turn() -> None:
    ticks, model = Ticks(), ScriptedModel([[call("tick")] * 6, "done"])
    result = await agent_with(model, ticks.tool, guard=LimitsGuard(tool_calls=6)).run("go")
    assert (result.status, ticks.count) == ("completed", 6)


# Tokens: G15 B with tokens in the place of dollars


@tool
async def nothing() -> str:
    """Do nothing."""
    return ""


def spends(tokens: int, text: str = "done") -> Callable[[ModelRequest], ModelResponse]:
    """Return an answer that uses so many tokens."""

    def reply(request: ModelRequest) -> ModelResponse:
        return ModelResponse((TextPart(text),), usage=Usage(tokens - 100, 100))

    return reply


async def test_g15b_of_two_parallel_sub_agents_only_one_starts_if_both_do_not_fit() -> None:
    settings = ModelSettings(max_tokens=500)
    for _ in range(REPEATS):
        paid = FunctionModel(spends(600))
        child = Agent(paid, name="child", settings=settings, config=False, autoload="none")
        model = ScriptedModel([[call("child", task="a"), call("child", task="b")], "done"], usage=Usage(10, 10))
        guard = LimitsGuard(tokens=1000)
        async with agent_with(model, child.as_tool(), guard=guard, settings=settings).session() as session:
            result = await session.run("go")
            assert len(paid.requests) == 1
            assert result.status == "limit"
            assert result.reason is not None and "1000 tokens used in this turn" in result.reason
            assert result.usage.total_tokens == 620
            assert sorted(item.status for item in results_of(session.history)) == ["error", "ok"]
            check_history(session.history)


async def test_a_call_does_not_start_if_the_most_it_may_use_is_not_left() -> None:
    model = ScriptedModel([call("nothing"), "never"], usage=Usage(400, 100))
    guard, settings = LimitsGuard(tokens=1000), ModelSettings(max_tokens=300)
    result = await agent_with(model, nothing, guard=guard, settings=settings).run("go")
    assert (result.status, result.usage.total_tokens) == ("limit", 500)
    assert result.reason is not None and result.reason.startswith("500 of 1000 tokens used in this turn, the next")


async def test_what_a_call_really_used_takes_the_place_of_what_was_reserved() -> None:
    model = ScriptedModel([call("nothing")] * 8 + ["done"], usage=Usage(50, 50))
    guard, settings = LimitsGuard(tokens=1000), ModelSettings(max_tokens=60)
    result = await agent_with(model, nothing, guard=guard, settings=settings).run("go")
    assert (result.status, result.usage.total_tokens) == ("completed", 900)


# A limit that two sessions share: G15 C


class OneRequest(Plugin[None]):
    """One model call for everybody."""

    id: ClassVar[str] = "guard.one"
    phase: ClassVar[str | None] = "gate"

    async def init(self, ctx: AgentContext, call_next: CallNext[None]) -> None:
        ctx.ledger.limit(Limit("requests", 1, scope="everybody"))
        await call_next()


async def test_g15c_two_sessions_that_share_one_request_make_one_request() -> None:
    for _ in range(REPEATS):
        model = FunctionModel(lambda request: "done")
        results: list[RunResult[str]] = []
        async with agent_with(model, guard=OneRequest()) as agent:

            async def run(agent: Agent[Any, str] = agent, results: list[RunResult[str]] = results) -> None:
                results.append(await agent.session().run("go"))

            async with anyio.create_task_group() as group:
                group.start_soon(run)
                group.start_soon(run)
        assert len(model.requests) == 1
        assert sorted(result.status for result in results) == ["completed", "limit"]


# Sub-agents: G16


def family(
    child_calls: int, *, parent: int | None = 5, child_limit: int | None = None
) -> tuple[Agent[Any, str], ScriptedModel, ScriptedModel]:
    """Return an agent whose first call delegates to one that needs so many calls; each uses 10 tokens."""
    usage = Usage(6, 4)
    inner = ScriptedModel([call("nothing")] * (child_calls - 1) + ["child done"], usage=usage)
    plugins = [] if child_limit is None else [LimitsGuard(requests=child_limit)]
    child = Agent(inner, name="delegate", tools=[nothing], plugins=plugins, config=False, autoload="none")
    outer = ScriptedModel([call("delegate", task="work"), "parent done"], usage=usage)
    return agent_with(outer, child.as_tool(), guard=LimitsGuard(requests=parent)), outer, inner


async def test_g16_the_calls_of_a_sub_agent_are_those_of_its_caller() -> None:
    agent, outer, inner = family(3)
    result = await agent.run("go")
    assert (result.status, result.text) == ("completed", "parent done")
    assert (result.usage.requests, result.usage.total_tokens) == (5, 50)
    assert (len(outer.requests), len(inner.requests)) == (2, 3)


async def test_g16_the_limit_is_reached_at_the_sixth_call_in_the_parent() -> None:
    agent, outer, inner = family(4)
    result = await agent.run("go")
    assert (result.status, result.usage.requests) == ("limit", 5)
    assert (len(outer.requests), len(inner.requests)) == (1, 4)


async def test_g16_the_limit_is_reached_at_the_sixth_call_in_the_child() -> None:
    agent, outer, inner = family(9)
    async with agent.session() as session:
        result = await session.run("go")
        assert (result.status, result.usage.requests, result.usage.total_tokens) == ("limit", 5, 50)
        assert (len(outer.requests), len(inner.requests)) == (1, 4)
        (refused,) = results_of(session.history)
        assert refused.is_error and "5 of 5 requests used" in refused.text
        check_history(session.history)


async def test_g16_a_sub_agent_with_a_smaller_limit_of_its_own_counts_for_its_caller_too() -> None:
    agent, outer, inner = family(9, child_limit=2)
    result = await agent.run("go")
    assert (result.status, result.text) == ("completed", "parent done")
    assert result.usage.requests == 4
    assert (len(outer.requests), len(inner.requests)) == (2, 2)


async def test_g16_a_sub_agent_with_a_larger_limit_of_its_own_does_not_get_past_its_callers() -> None:
    agent, _, inner = family(9, child_limit=20)
    assert (await agent.run("go")).usage.requests == 5
    assert len(inner.requests) == 4


async def test_g16_what_a_cancelled_sub_agent_used_stays_booked() -> None:
    started = anyio.Event()

    async def hangs_in_the_third(request: ModelRequest) -> Any:
        if len(request.messages) < 5:
            return call("nothing")
        started.set()
        await anyio.sleep_forever()
        return "never"

    inner = FunctionModel(hangs_in_the_third, usage=Usage(6, 4))
    child = Agent(inner, name="delegate", tools=[nothing], config=False, autoload="none")
    outer = ScriptedModel([call("delegate", task="work")], usage=Usage(6, 4))
    async with agent_with(outer, child.as_tool(), guard=LimitsGuard(requests=5)).session() as session:
        with anyio.fail_after(SECONDS):
            async with anyio.create_task_group() as group:

                async def cancel() -> None:
                    await started.wait()
                    session.cancel()

                group.start_soon(cancel)
                with pytest.raises(TurnAborted):
                    await session.run("go")
        result = session.last_result
        assert result is not None and result.status == "cancelled"
        assert (result.usage.requests, result.usage.total_tokens) == (4, 30)
        assert result.usage.estimated, "the third call was cut off, so nobody knows what it used"
        check_history(session.history)


# Seconds


async def test_a_turn_ends_at_its_seconds_while_the_model_thinks() -> None:
    model = ScriptedModel(["never"], delay=60)
    async with agent_with(model, guard=LimitsGuard(seconds=0.05)).session() as session:
        with anyio.fail_after(SECONDS):
            result = await session.run("go")
        assert (result.status, result.by, result.text) == ("limit", "guard.limits", "")
        assert result.reason == "the turn took longer than 0.05 seconds"
        check_history(session.history)
        assert session.events[-1].kind == "turn.end"


@pytest.mark.parametrize("calls", [1, 3])
async def test_a_turn_ends_at_its_seconds_while_tools_run_and_every_call_has_a_result(calls: int) -> None:
    @tool
    async def sleepy() -> str:
        """Sleep."""
        await anyio.sleep_forever()
        return ""

    model = ScriptedModel([[call("sleepy")] * (calls - 1) + [call("nothing")], "next turn"])
    if calls == 1:
        model = ScriptedModel([call("sleepy"), "next turn"])
    async with agent_with(model, sleepy, nothing).session() as session:
        with anyio.fail_after(SECONDS):
            result = await session.run("go", limits={"seconds": 0.05})
        assert result.status == "limit"
        statuses = [item.status for item in results_of(session.history)]
        assert statuses == ["cancelled"] if calls == 1 else ["cancelled", "cancelled", "ok"]
        check_history(session.history)
        assert (await session.run("go on")).text == "next turn"


async def test_a_stream_ends_at_the_seconds_of_its_turn() -> None:
    model = ScriptedModel(["never"], delay=60)
    async with agent_with(model).session() as session:
        with anyio.fail_after(SECONDS):
            async with session.stream("go", limits={"seconds": 0.05}) as stream:
                kinds = [event.kind async for event in stream]
        assert (kinds[-1], stream.result.status) == ("turn.end", "limit")


async def test_a_turn_within_its_seconds_is_left_alone() -> None:
    result = await agent_with(ScriptedModel(["done"]), guard=LimitsGuard(seconds=60)).run("go")
    assert (result.status, result.text) == ("completed", "done")


async def test_a_cancellation_from_outside_is_not_taken_for_the_end_of_the_seconds() -> None:
    model = ScriptedModel(["never"], delay=60)
    async with agent_with(model, guard=LimitsGuard(seconds=30)).session() as session:
        with anyio.move_on_after(0.05) as scope:
            await session.run("go")
        assert scope.cancelled_caught
        assert session.last_result is not None and session.last_result.status == "cancelled"
