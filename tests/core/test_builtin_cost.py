"""What the five built-in plugins cost: function calls, which are exact whatever the machine does, and memory."""

from __future__ import annotations

import asyncio
import cProfile
import gc
import pstats
import tracemalloc
from collections.abc import Awaitable, Callable
from typing import Any

import anyio

from agentx import Agent, ModelRequest, ModelResponse, TextPart, ToolCall, Usage, tool
from agentx.builtin.duration import DurationObserver
from agentx.builtin.limits import LimitsGuard
from agentx.builtin.retry import Retry
from agentx.builtin.tools import ToolsObserver
from agentx.builtin.usage import UsageObserver

BUILTIN = (UsageObserver, ToolsObserver, DurationObserver, Retry)
LAYERS = 30
"""Function calls that one plugin may cost in a turn or a step: entering and leaving a layer is six of them."""


@tool
async def count(n: int) -> str:
    """Count on."""
    return str(n + 1)


class Counter:
    """Asks for the tool `steps` times, then answers; only ever looks at the last message."""

    name = "counter"

    def __init__(self) -> None:
        self.steps = 0

    async def respond(self, request: ModelRequest, emit: Any) -> ModelResponse:
        last = request.messages[-1].parts[-1]
        done = int(last.text) if last.kind == "tool_result" else 0  # type: ignore[attr-defined]  # a tool result
        if done >= self.steps:
            return ModelResponse((TextPart("done"),), "end_turn", Usage(10, 2))
        return ModelResponse((ToolCall(f"c{done}", "count", f'{{"n": {done}}}'),), "tool_use", Usage(10, 2))


def agent_with(model: Counter, *, plugins: bool) -> Agent[Any, str]:
    made = [*[cls() for cls in BUILTIN], LimitsGuard(requests=1_000_000)] if plugins else []
    return Agent(model, tools=[count], plugins=made, config=False, autoload="none")


def measured(steps: list[int], *, plugins: bool = True) -> list[int]:
    """Return the function calls of turns with so many steps, after a few turns to warm up."""
    found = []

    async def run() -> None:
        model = Counter()
        async with agent_with(model, plugins=plugins) as agent:
            for number in [0, 1, 2, *steps]:
                model.steps = number
                async with agent.session() as session:
                    found.append(await _calls(lambda session=session: session.run("go")))  # type: ignore[misc]

    asyncio.run(run())
    return found[3:]


async def _calls(act: Callable[[], Awaitable[Any]]) -> int:
    profile = cProfile.Profile()
    profile.enable()
    await act()
    profile.disable()
    return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]  # it is there


def test_a_turn_without_tools_takes_at_most_three_hundred_function_calls() -> None:
    (turn,) = measured([0])
    assert turn <= 300


def test_a_step_with_one_tool_call_takes_at_most_three_hundred_function_calls() -> None:
    none, one = measured([0, 1])
    assert one - none <= 300


def test_what_the_plugins_add_is_little_more_than_their_layers() -> None:
    (with_all,), (without,) = measured([0]), measured([0], plugins=False)
    assert with_all - without <= 5 * LAYERS
    few, many = measured([0, 10]), measured([0, 10], plugins=False)
    assert (few[1] - few[0]) - (many[1] - many[0]) <= 10 * LAYERS


def test_a_step_takes_the_same_function_calls_however_long_the_turn_is() -> None:
    none, fifty, eight_hundred = measured([0, 50, 800])
    assert (eight_hundred - none) / 800 <= 1.01 * (fifty - none) / 50


def test_a_session_with_four_model_calls_and_three_tool_calls_takes_at_most_15_kb() -> None:
    sessions = 50

    async def run() -> float:
        model = Counter()
        model.steps = 3
        async with agent_with(model, plugins=True) as agent:
            for number in range(5):
                await agent.session(f"warm {number}").run("go")
            gc.collect()
            tracemalloc.start()
            before = tracemalloc.get_traced_memory()[0]
            kept = []
            for number in range(sessions):
                session = agent.session(f"s{number}")
                await session.__aenter__()
                await session.run("go")
                kept.append(session)
            gc.collect()
            used = tracemalloc.get_traced_memory()[0] - before
            tracemalloc.stop()
            for session in kept:
                await session.__aexit__(None, None, None)
            return used / sessions

    assert anyio.run(run) <= 15_000
