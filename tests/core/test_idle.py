"""Sessions that stay open for their next handle, and turns that would wait for themselves."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from agentx import Agent, Message, SessionAccessError, SessionBusyError, TextPart, ToolContext, TurnContext, tool
from agentx.testing import ScriptedModel, call

from ._rules import at_most


class Doors:
    """Counts how often a session layer was opened and closed."""

    def __init__(self) -> None:
        self.opened = self.closed = 0

    async def session(self, ctx: Any, call_next: Any) -> None:
        self.opened += 1
        await call_next()
        self.closed += 1

    @property
    def counts(self) -> tuple[int, int]:
        return self.opened, self.closed


def agent_with(doors: Doors, answers: int = 3) -> Agent[Any, str]:
    agent: Agent[Any, str] = Agent(ScriptedModel(["hello"] * answers), config=False, autoload="none")
    return agent.use(session=doors.session)


async def test_without_an_idle_timeout_a_session_closes_with_its_last_handle() -> None:
    doors = Doors()
    async with agent_with(doors) as agent:
        async with agent.session("s"):
            pass
        assert doors.counts == (1, 1)


async def test_a_session_stays_open_for_a_handle_that_comes_in_time() -> None:
    doors = Doors()
    async with agent_with(doors) as agent:
        async with agent.session("s", idle_timeout=60, deps="first") as session:
            await session.run("one")
        async with agent.session("s", deps="second") as session:
            assert len(session.history) == 2
            await session.run("two")
            assert doors.counts == (1, 0)
        assert doors.counts == (1, 1)


async def test_the_next_handle_brings_its_own_deps() -> None:
    seen: list[Any] = []

    async def look(ctx: TurnContext, call_next: Any) -> Any:
        seen.append(ctx.deps)
        return await call_next()

    async with agent_with(Doors()).use(look) as agent:
        for deps in ("first", "second"):
            async with agent.session("s", idle_timeout=60, deps=deps) as session:
                await session.run("hi")
    assert seen == ["first", "second"]


async def test_an_idle_session_closes_after_its_time() -> None:
    doors = Doors()
    async with agent_with(doors) as agent:
        async with agent.session("s", idle_timeout=0.01):
            pass
        assert doors.counts == (1, 0)
        with at_most():
            while doors.counts != (1, 1):
                await anyio.sleep(0.005)


async def test_an_idle_session_closes_before_its_agent() -> None:
    doors = Doors()
    with at_most():
        async with agent_with(doors) as agent:
            for key in ("a", "b"):
                async with agent.session(key, idle_timeout=3600):
                    pass
    assert doors.counts == (2, 2)


async def test_an_agent_that_closes_waits_for_a_session_that_is_closing_as_idle() -> None:
    begun = anyio.Event()
    done: list[str] = []

    async def slow(ctx: Any, call_next: Any) -> None:
        await call_next()
        begun.set()
        await anyio.sleep(0.05)
        done.append("closed")

    async with agent_with(Doors()).use(session=slow) as agent:
        async with agent.session("s", idle_timeout=0.001):
            pass
        await begun.wait()
    assert done == ["closed"]


async def test_an_idle_session_is_still_its_users() -> None:
    async with agent_with(Doors()) as agent:
        async with agent.session("s", user="ann", idle_timeout=60):
            pass
        with pytest.raises(SessionAccessError):
            async with agent.session("s", user="bob"):
                pass
        with pytest.raises(SessionAccessError, match="history"):
            async with agent.session("s", user="ann", history=[Message("user", (TextPart("x"),))]):
                pass


async def test_a_session_whose_body_failed_does_not_stay_open() -> None:
    doors = Doors()
    async with agent_with(doors) as agent:
        with pytest.raises(ValueError, match="mine"):
            async with agent.session("s", idle_timeout=60):
                raise ValueError("mine")
        assert doors.counts[0] == 1
        async with agent.session("s"):
            assert doors.counts[0] == 2


# A turn that waits for itself


@pytest.mark.parametrize("parallel", [False, True])
async def test_a_tool_that_would_wait_for_its_own_turn_is_told_so(parallel: bool) -> None:
    @tool
    async def again(ctx: ToolContext) -> str:
        result = await ctx.session.run("again", on_busy="wait")
        return str(result.text)

    calls = [call("again")] * (2 if parallel else 1)
    agent: Agent[Any, str] = Agent(ScriptedModel([calls, "done"]), tools=[again], config=False, autoload="none")
    with at_most():
        async with agent.session() as session:
            await session.run("go")
            results = [part for message in session.history if message.role == "tool" for part in message.parts]
    assert results
    assert all("would wait for the turn" in part.text for part in results)  # type: ignore[attr-defined]  # results


async def test_a_layer_that_would_wait_for_its_own_turn_is_told_so() -> None:
    async def twice(ctx: TurnContext, call_next: Any) -> Any:
        await ctx.session.run("again", on_busy="wait")
        return await call_next()

    agent: Agent[Any, str] = Agent(ScriptedModel(["x"]), config=False, autoload="none").use(twice)
    with at_most():
        async with agent.session() as session:
            with pytest.raises(SessionBusyError, match="would wait for the turn"):
                await session.run("go")


async def test_a_sub_agents_tool_that_would_wait_for_its_callers_turn_is_told_so() -> None:
    handles: list[Any] = []

    @tool
    async def back() -> str:
        return str((await handles[0].run("again", on_busy="wait")).text)

    child: Agent[Any, str] = Agent(
        ScriptedModel([[call("back")], "child"]), name="child", tools=[back], config=False, autoload="none"
    )
    parent: Agent[Any, str] = Agent(
        ScriptedModel([[call("child", task="t")], "done"]), tools=[child.as_tool()], config=False, autoload="none"
    )
    with at_most():
        async with parent.session() as session:
            handles.append(session)
            result = await session.run("go")
    assert result.text == "done"


async def test_background_work_of_a_turn_may_wait_for_it() -> None:
    texts: list[str] = []

    async def later(ctx: TurnContext, call_next: Any) -> Any:
        async def work() -> None:
            texts.append((await ctx.session.run("later", on_busy="wait")).text)

        if ctx.turn_index == 0:
            ctx.start_soon(work)
            await anyio.sleep(0.01)
        return await call_next()

    agent: Agent[Any, str] = Agent(ScriptedModel(["one", "two"]), config=False, autoload="none").use(later)
    with at_most():
        async with agent.session() as session:
            assert (await session.run("go")).text == "one"
            while not texts:
                await anyio.sleep(0.001)
    assert texts == ["two"]


async def test_another_session_is_free_to_run_within_a_turn() -> None:
    @tool
    async def ask_other(ctx: ToolContext) -> str:
        async with ctx.agent.session("other") as other:
            return str((await other.run("inner", on_busy="wait")).text)

    agent: Agent[Any, str] = Agent(
        ScriptedModel([[call("ask_other")], "inner", "outer"]), tools=[ask_other], config=False, autoload="none"
    )
    with at_most():
        async with agent.session("one") as session:
            assert (await session.run("go")).text == "outer"
            assert session.history[2].parts[0].content == (TextPart("inner"),)  # type: ignore[attr-defined]  # a result
