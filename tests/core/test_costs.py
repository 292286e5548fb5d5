"""What a turn, a step and a session cost, in function calls and bytes: exact counts, whatever the machine does.

With the five built-in plugins on. The model and the tool cost next to nothing themselves.
"""

from __future__ import annotations

import cProfile
import gc
import tracemalloc
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

from agentx import Agent, ModelRequest, ModelResponse, TextPart, ToolCall, Usage, tool

BUILT_IN = ["observe.usage", "observe.tools", "observe.duration", "guard.limits", "model.retry"]
NO_LIMITS: dict[str, Any] = {"requests": None}


@tool
async def nothing() -> str:
    return ""


ANSWER = ModelResponse((TextPart("done"),), "end_turn", Usage(1, 1))


class Steps:
    """A model that asks for `calls` tools in each of `steps` steps and then answers."""

    name = "steps"

    def __init__(self, steps: int, calls: int = 1) -> None:
        parts = tuple([ToolCall(f"c{number}", "nothing") for number in range(calls)])
        self.asks = ModelResponse(parts, "tool_use", Usage(1, 1))
        self.steps = steps
        self.left = steps

    async def respond(self, request: ModelRequest, emit: Any) -> ModelResponse:
        if self.left == 0:
            self.left = self.steps
            return ANSWER
        self.left -= 1
        return self.asks


def agent_of(model: Steps, limits: dict[str, Any] = NO_LIMITS) -> Agent[Any, str]:
    return Agent(model, tools=[nothing], plugins=BUILT_IN, config=False, autoload="none", limits=limits)


async def calls_of(work: Callable[[], Awaitable[Any]]) -> int:
    """Return how many functions are called while `work` runs."""
    profile = cProfile.Profile()
    profile.enable()
    try:
        await work()
    finally:
        profile.disable()
    return sum([entry.callcount for entry in profile.getstats()])


async def calls_of_a_turn(steps: int, calls: int = 1) -> int:
    async with agent_of(Steps(steps, calls)).session() as session:
        await session.run("warm up")
        gc.disable()
        try:
            return await calls_of(lambda: session.run("go"))
        finally:
            gc.enable()


def test_the_built_in_plugins_are_all_there() -> None:
    rows = Agent(Steps(0), plugins=BUILT_IN, config=False, autoload="none").plugins
    assert sorted([row.id for row in rows if row.status == "enabled"]) == sorted(BUILT_IN)


def test_an_empty_turn_takes_at_most_300_function_calls() -> None:
    assert anyio.run(calls_of_a_turn, 0) <= 300


def test_a_step_with_one_tool_takes_at_most_300_function_calls() -> None:
    empty, fifty = anyio.run(calls_of_a_turn, 0), anyio.run(calls_of_a_turn, 50)
    assert (fifty - empty) / 50 <= 300


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_step_costs_the_same_however_long_the_history_is(backend: str) -> None:
    empty, fifty, two_hundred = [anyio.run(calls_of_a_turn, steps, backend=backend) for steps in (0, 50, 200)]
    assert ((two_hundred - empty) / 200) / ((fifty - empty) / 50) <= 1.01


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_turn_costs_the_same_however_many_came_before(backend: str) -> None:
    async def first_and_last() -> tuple[int, int]:
        async with agent_of(Steps(1)).session() as session:
            await session.run("warm up")
            first = await calls_of(lambda: session.run("go"))
            for _ in range(100):
                await session.run("go")
            return first, await calls_of(lambda: session.run("go"))

    gc.disable()
    try:
        first, last = anyio.run(first_and_last, backend=backend)
    finally:
        gc.enable()
    assert last <= first * 1.01


def test_a_parallel_call_costs_the_same_however_many_there_are() -> None:
    none, ten, thirty = [anyio.run(calls_of_a_turn, 1, calls) for calls in (2, 12, 32)]
    assert (thirty - none) / 30 <= (ten - none) / 10 * 1.05


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_five_thousand_steps_finish_where_the_limit_allows_them(backend: str) -> None:
    async def run() -> tuple[str, int, int]:
        async with agent_of(Steps(5000), limits={"requests": 6000}).session() as session:
            result = await session.run("go")
            return result.status, result.usage.requests, len(session.history)

    status, requests, messages = anyio.run(run, backend=backend)
    assert (status, requests, messages) == ("completed", 5001, 10_002)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_without_any_limit_a_turn_ends_after_a_thousand_model_calls(backend: str) -> None:
    async def run() -> tuple[str, str | None, int]:
        async with agent_of(Steps(2000)).session() as session:
            result = await session.run("go")
            return result.status, result.by, result.usage.requests

    assert anyio.run(run, backend=backend) == ("limit", "core", 1000)


def test_a_session_takes_at_most_15_kb() -> None:
    count = 50

    async def measure() -> float:
        agent = agent_of(Steps(3))
        async with agent:
            first = agent.session()
            await first.__aenter__()
            await first.run("warm up")
            gc.collect()
            tracemalloc.start()
            sessions = []
            for _ in range(count):
                session = agent.session()
                await session.__aenter__()
                await session.run("go")
                sessions.append(session)
            gc.collect()
            size, _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            for session in [first, *sessions]:
                await session.__aexit__(None, None, None)
            return size / count

    assert anyio.run(measure) <= 15_000


def test_what_a_closed_agent_used_is_given_back() -> None:
    async def grown() -> int:
        async def turns(count: int) -> None:
            for _ in range(count):
                await agent.run("go")

        agent = agent_of(Steps(3))
        async with agent:
            await turns(20)
            gc.collect()
            tracemalloc.start()
            await turns(200)
            gc.collect()
            size, _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            return size

    assert anyio.run(grown) <= 20_000
