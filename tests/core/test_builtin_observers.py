"""`observe.usage`, `observe.tools` and `observe.duration`: what they say is what happened, and each can be removed."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import anyio
import attrs
import pytest

from agentx import (
    Agent,
    ErrorEvent,
    Event,
    ModelAttempt,
    ModelEnd,
    ModelError,
    ModelResponse,
    ModelStart,
    Plugin,
    ServerError,
    StateUpdated,
    TextPart,
    ToolResult,
    ToolResultEvent,
    ToolStart,
    TurnAborted,
    TurnEnd,
    TurnStart,
    Usage,
    tool,
)
from agentx.builtin.duration import DurationObserver, Durations
from agentx.builtin.limits import LimitsGuard
from agentx.builtin.retry import Retry
from agentx.builtin.tools import ToolsObserver, ToolUse
from agentx.builtin.usage import ModelUsage, UsageObserver
from agentx.testing import FakeClock, FaultyModel, FunctionModel, Hang, ScriptedModel, call, check_history

BUILTIN: Sequence[type[Plugin[Any]]] = (UsageObserver, ToolsObserver, DurationObserver, LimitsGuard, Retry)
SECONDS = 10
"""How long a test may hang before it fails."""


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
async def broken() -> str:
    """Fail."""
    raise ValueError("broken")


def agent_with(model: Any, *tools: Any, plugins: Sequence[Any] = BUILTIN, **options: Any) -> Agent[Any, str]:
    made = [plugin() if isinstance(plugin, type) else plugin for plugin in plugins]
    return Agent(model, tools=tools, plugins=made, config=False, autoload="none", **options)


# Usage: G14 and sums


@pytest.mark.parametrize(
    ("reported", "expected"),
    [
        (Usage(25, 15), ModelUsage("m", 1, input_tokens=25, output_tokens=15, cost=None)),
        (Usage(40, 20, 100), ModelUsage("m", 1, input_tokens=40, output_tokens=20, cache_read_tokens=100, cost=None)),
    ],
    ids=["A", "B"],
)
@pytest.mark.parametrize("streamed", [False, True])
async def test_g14_the_usage_of_a_response_is_that_of_its_turn_whether_it_is_streamed_or_not(
    reported: Usage, expected: ModelUsage, streamed: bool
) -> None:
    async with agent_with(ScriptedModel(["three pieces of text"], name="m", usage=reported)).session() as session:
        if streamed:
            async with session.stream("go") as stream:
                async for _ in stream:
                    pass
            result = stream.result
        else:
            result = await session.run("go")
        assert result.usage == session.usage == reported
        assert UsageObserver.by_model(session.events) == (expected,)


async def test_g14_when_the_consumer_leaves_the_usage_is_marked_incomplete() -> None:
    inner = ScriptedModel(["a text of many pieces"], name="m", usage=Usage(25, 15))
    async with agent_with(FaultyModel(inner, {1: Hang(after=2)})).session() as session:
        async with session.stream("go") as stream:
            async for _ in stream.text:
                break
        assert session.usage.requests == 1
        assert session.usage.estimated
        (use,) = UsageObserver.by_model(session.events)
        assert (use.requests, use.failed, use.unreported) == (1, 1, 1)


async def test_the_usage_of_a_turn_is_the_sum_over_its_calls_by_model() -> None:
    first, second = Usage(25, 1, 3, 4, 1), Usage(40, 20, 100, 0, 5)
    script = [
        ModelResponse((call("add", a=1, b=2),), "tool_use", first, cost=Decimal("0.10")),
        ModelResponse((TextPart("3"),), usage=second, cost=Decimal("0.20")),
    ]
    model = ScriptedModel(script, name="m")
    async with agent_with(model, add).session() as session:
        result = await session.run("go")
        assert result.usage == first + second
        expected = ModelUsage("m", 2, 0, 0, 65, 21, 103, 4, 6, Decimal("0.30"))
        assert UsageObserver.by_model(session.events) == (expected,)


async def test_failed_attempts_are_counted_with_what_they_reported() -> None:
    failures: list[Any] = [ServerError("a", usage=Usage(25, 1)), ServerError("b")]
    model = ScriptedModel([*failures, "done"], name="m", usage=Usage(25, 15))
    agent = agent_with(model, plugins=[*BUILTIN, FakeClock()])
    async with agent.session() as session:
        await session.run("go")
        (use,) = UsageObserver.by_model(session.events)
        assert (use.requests, use.failed, use.unreported) == (3, 2, 1)
        assert (use.input_tokens, use.output_tokens, use.cost) == (50, 16, None)


async def test_models_are_listed_by_name_and_over_all_turns() -> None:
    agent = agent_with(ScriptedModel(["1", "2"], name="b", usage=Usage(1, 1)))
    async with agent.session() as session:
        await session.run("go")
        await session.run("go", model=ScriptedModel(["3"], name="a", usage=Usage(5, 5)))
        await session.run("go")
        found = UsageObserver.by_model(session.events)
        assert [(use.model, use.requests, use.input_tokens) for use in found] == [("a", 1, 5), ("b", 2, 2)]


async def test_what_a_sub_agent_uses_is_in_the_numbers_of_its_caller() -> None:
    inner = ScriptedModel([call("add", a=1, b=2), "3"], name="inner", usage=Usage(6, 4))
    child = Agent(inner, name="child", tools=[add], config=False, autoload="none")
    outer = ScriptedModel([call("child", task="1 + 2?"), "it is 3"], name="outer", usage=Usage(6, 4))
    async with agent_with(outer, child.as_tool()).session() as session:
        result = await session.run("go")
        found = UsageObserver.by_model(session.events)
        assert [(use.model, use.requests) for use in found] == [("inner", 2), ("outer", 2)]
        assert result.usage.requests == sum([use.requests for use in found])
        assert result.usage.input_tokens == sum([use.input_tokens for use in found])


# Tools


async def test_calls_and_errors_are_counted_for_each_tool() -> None:
    model = ScriptedModel(
        [[call("add", a=1, b=2), call("broken"), call("add", a=1)], [call("add", a=3, b=4), call("unheard_of")], "done"]
    )
    async with agent_with(model, add, broken).session() as session:
        await session.run("go")
        found = ToolsObserver.by_tool(session.events)
        assert [(use.tool, use.calls, use.errors) for use in found] == [
            ("add", 3, 1),
            ("broken", 1, 1),
            ("unheard_of", 1, 1),
        ]


def at(cls: type[Event], time: float, *fields: Any) -> Event:
    return cls(0, time, "t1", *fields)


def test_the_seconds_of_a_tool_are_those_from_its_start_to_its_result() -> None:
    events = [
        at(ToolStart, 10.0, "c1", "add", {}),
        at(ToolStart, 10.5, "c2", "add", {}),
        at(ToolResultEvent, 11.0, ToolResult("c2", "add")),
        at(ToolResultEvent, 12.0, ToolResult("c1", "add", (), "error")),
        at(ToolResultEvent, 13.0, ToolResult("c3", "add", (), "denied")),
    ]
    assert ToolsObserver.by_tool(events) == (ToolUse("add", 3, 2, 2.5),)


# Durations


def test_overlapping_calls_are_not_added_up_in_the_time_of_the_tools() -> None:
    events = [
        at(TurnStart, 9.0, 0, "m"),
        at(ModelStart, 9.0, "m", 0),
        at(ModelEnd, 10.0, 0, None),
        at(ToolStart, 10.0, "c1", "add", {}),
        at(ToolStart, 10.5, "c2", "add", {}),
        at(ToolResultEvent, 11.0, ToolResult("c2", "add")),
        at(ToolResultEvent, 12.0, ToolResult("c1", "add")),
        at(ToolStart, 13.0, "c3", "add", {}),
        at(ToolResultEvent, 14.0, ToolResult("c3", "add")),
        at(TurnEnd, 15.0, "completed"),
    ]
    assert DurationObserver.of(events) == Durations(1, 6.0, 1.0, 3.0, 6.0)


async def test_the_durations_of_a_session_are_those_of_its_turns() -> None:
    @tool
    async def slow() -> str:
        """Take some time."""
        await anyio.sleep(0.02)
        return ""

    model = ScriptedModel([[call("slow"), call("slow")], "done", "again"], delay=0.01)
    async with agent_with(model, slow).session() as session:
        await session.run("go")
        await session.run("go")
        took = DurationObserver.of(session.events)
        assert took.turns == 2
        assert took.model_seconds >= 0.03 * 0.9
        assert took.tool_seconds >= 0.02 * 0.9
        assert took.seconds >= took.model_seconds + took.tool_seconds
        assert took.seconds >= took.longest >= took.seconds / 2


# What they log


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, logger="agentx.observe")
    return caplog


def lines_of(log: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in log.records if record.name == "agentx.observe"]


async def test_each_turn_is_logged(log: pytest.LogCaptureFixture) -> None:
    model = ScriptedModel([call("add", a=1, b=2), "3"], name="m", usage=Usage(7, 2, 5))
    result = await agent_with(model, add).run("go")
    assert any(line.startswith(f"turn {result.turn_id} took ") for line in lines_of(log))
    assert any(line.startswith(f"turn {result.turn_id} called add 1 times (0 errors) in ") for line in lines_of(log))
    assert f"turn {result.turn_id} used m: 2 requests (0 failed), 14 tokens in, 4 out, 10 from cache" in lines_of(log)
    assert len(lines_of(log)) == 3


async def test_a_turn_that_fails_is_logged_too(log: pytest.LogCaptureFixture) -> None:
    model = ScriptedModel([call("add", a=1, b=2), ServerError("down", retryable=False)], usage=Usage(7, 2))
    with pytest.raises(ModelError):
        await agent_with(model, add).run("go")
    assert any("2 requests (1 failed), 7 tokens in" in line for line in lines_of(log))
    assert any("called add 1 times" in line for line in lines_of(log))


async def test_a_turn_that_is_cancelled_is_logged_too(log: pytest.LogCaptureFixture) -> None:
    started = anyio.Event()

    @tool
    async def hangs() -> str:
        """Hang."""
        started.set()
        await anyio.sleep_forever()
        return ""

    async with agent_with(ScriptedModel([call("hangs")]), hangs).session() as session:
        with anyio.fail_after(SECONDS):
            async with anyio.create_task_group() as group:

                async def cancel() -> None:
                    await started.wait()
                    session.cancel()

                group.start_soon(cancel)
                with pytest.raises(TurnAborted):
                    await session.run("go")
    assert any("called hangs 1 times (1 errors)" in line for line in lines_of(log))


async def test_at_the_usual_level_nothing_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    await agent_with(ScriptedModel(["done"])).run("go")
    assert lines_of(caplog) == []


# Each of the five is an ordinary plugin


@pytest.mark.parametrize("removed", BUILTIN, ids=lambda cls: cls.id)
async def test_each_built_in_plugin_can_be_removed_and_the_others_go_on(removed: type[Plugin[Any]]) -> None:
    model = ScriptedModel([call("add", a=1, b=2), "3"], usage=Usage(6, 4))
    agent = agent_with(model, add)
    with agent.override(disable=[removed.id]):
        async with agent.session() as session:
            result = await session.run("go")
            assert (result.status, result.text, result.usage.requests) == ("completed", "3", 2)
            check_history(session.history)
            active = {row.id for row in agent.plugins if row.status == "enabled"}
            assert active == {plugin.id for plugin in BUILTIN if plugin is not removed}
            assert not [event for event in session.events if isinstance(event, ErrorEvent)]


async def test_without_any_of_them_the_same_turn_gives_the_same_answer() -> None:
    def model() -> ScriptedModel:
        return ScriptedModel([call("add", a=1, b=2), "3"], usage=Usage(6, 4))

    with_all = await agent_with(model(), add).run("go")
    without = await agent_with(model(), add, plugins=()).run("go")
    assert attrs.asdict(with_all, filter=_same) == attrs.asdict(without, filter=_same)


def _same(field: attrs.Attribute[Any], _: Any) -> bool:
    return field.name in ("status", "text", "messages", "usage")


async def test_observers_write_nothing_into_the_log_of_the_session() -> None:
    """It has all they need, so a session costs no more for being observed."""
    model = ScriptedModel([call("add", a=1, b=2), "3"])
    async with agent_with(model, add).session() as session:
        await session.run("go")
        assert not [event for event in session.events if isinstance(event, StateUpdated)]


async def test_twenty_sessions_at_once_are_not_mixed_up() -> None:
    def count_up(request: Any) -> Any:
        steps = sum(message.role == "tool" for message in request.messages)
        return "done" if steps == int(request.messages[0].text) else call("add", a=steps, b=1)

    counts: dict[int, tuple[int, int]] = {}
    async with agent_with(FunctionModel(count_up, name="m", usage=Usage(1, 1)), add) as agent:

        async def run(steps: int) -> None:
            async with agent.session() as session:
                await session.run(str(steps))
                (use,) = UsageObserver.by_model(session.events)
                calls = sum([tool.calls for tool in ToolsObserver.by_tool(session.events)])
                counts[steps] = (use.requests, calls)

        async with anyio.create_task_group() as group:
            for steps in range(20):
                group.start_soon(run, steps)
    assert counts == {steps: (steps + 1, steps) for steps in range(20)}


async def test_the_numbers_of_a_log_that_was_cut_off_are_those_of_what_is_there() -> None:
    model = ScriptedModel([call("add", a=1, b=2), "3"], name="m", usage=Usage(6, 4))
    async with agent_with(model, add).session() as session:
        await session.run("go")
        events = list(session.events)
    for length in range(len(events)):
        cut = events[:length]
        attempts = [event for event in cut if isinstance(event, ModelAttempt)]
        assert sum([use.requests for use in UsageObserver.by_model(cut)]) == len(attempts)
        assert DurationObserver.of(cut).turns == (1 if any(isinstance(event, TurnStart) for event in cut) else 0)
        assert all(use.seconds >= 0 for use in ToolsObserver.by_tool(cut))
