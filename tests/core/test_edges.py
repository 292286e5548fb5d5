"""Uses that could hang, lose something or fail without saying where: each works, or says what to do instead."""

from __future__ import annotations

import logging
from typing import Any

import anyio
import attrs
import pytest

import agentx
from agentx import (
    Agent,
    AgentxError,
    BadResponseError,
    HookError,
    Limit,
    LimitError,
    Message,
    ModelContext,
    ModelResponse,
    OrderError,
    Plugin,
    RunResult,
    SessionBusyError,
    SessionClosedError,
    SessionContext,
    SessionError,
    StateError,
    TextPart,
    ToolCall,
    ToolContext,
    ToolResult,
    TurnAborted,
    TurnContext,
    Usage,
    hookimpl,
    tool,
)
from agentx.testing import EchoModel, ScriptedModel, call

from ._rules import at_most


def agent_of(*answers: Any, **options: Any) -> Agent[Any, Any]:
    return Agent(ScriptedModel(list(answers)), config=False, autoload="none", **options)


# Streams


@pytest.mark.parametrize("what", ["events", "text"])
async def test_a_stream_that_is_not_open_says_so_instead_of_waiting(what: str) -> None:
    async with agent_of("x").session() as session:
        stream = session.stream("hi")
        with at_most(), pytest.raises(SessionClosedError, match=r"async with session\.stream"):
            async for _ in stream if what == "events" else stream.text:
                pass


async def test_a_stream_opens_once() -> None:
    async with agent_of("x", "y").session() as session:
        stream = session.stream("hi")
        async with stream:
            async for _ in stream:
                pass
        with at_most(), pytest.raises(SessionBusyError, match="take another"):
            await stream.__aenter__()


async def test_a_wrong_option_of_a_stream_names_the_stream() -> None:
    async with agent_of("x").session() as session:
        with pytest.raises(TypeError, match=r"Session\.stream"):
            session.stream("hi", nonsense=1)  # type: ignore[call-arg]  # what the test is about


# Waiting for oneself


@pytest.mark.parametrize("on_busy", ["raise", "wait"])
async def test_work_after_a_turn_that_would_wait_for_itself_is_told_so(
    on_busy: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def later(ctx: TurnContext, call_next: Any) -> Any:
        async def work() -> None:
            await ctx.session.run("again", on_busy=on_busy)

        ctx.after_turn(work)
        return await call_next()

    with at_most(), caplog.at_level(logging.ERROR, "agentx"):
        async with agent_of("x").use(later).session() as session:
            await session.run("go")
    assert "would wait for the turn" in caplog.text


async def test_an_abort_in_work_after_a_turn_is_logged_with_its_plugin(caplog: pytest.LogCaptureFixture) -> None:
    async def later(ctx: TurnContext, call_next: Any) -> Any:
        async def work() -> None:
            ctx.abort("too late")

        ctx.after_turn(work)
        return await call_next()

    with at_most(), caplog.at_level(logging.ERROR, "agentx"):
        async with agent_of("x").use(later).session() as session:
            assert (await session.run("go")).status == "completed"
    assert "function.later" in caplog.text.replace("later: after_turn", "function.later")
    assert "after_turn failed" in caplog.text


async def test_a_layer_that_runs_the_agent_it_opens_is_told_so() -> None:
    async def init(ctx: Any, call_next: Any) -> None:
        await ctx.agent.run("hi")
        await call_next()

    with at_most(), pytest.raises(SessionClosedError, match="start_soon"):
        await agent_of("x").use(init=init).run("go")


async def test_a_layer_that_runs_a_turn_in_the_session_it_opens_is_told_so() -> None:
    async def layer(ctx: SessionContext, call_next: Any) -> None:
        await ctx.session.run("hi")
        await call_next()

    with at_most(), pytest.raises(SessionClosedError, match="start_soon"):
        await agent_of("x").use(session=layer).run("go")


async def test_background_work_of_a_session_layer_waits_until_the_session_is_open() -> None:
    texts: list[str] = []

    async def layer(ctx: SessionContext, call_next: Any) -> None:
        async def work() -> None:
            texts.append((await ctx.session.run("early", on_busy="wait")).text)

        ctx.start_soon(work)
        await anyio.sleep(0.01)
        await call_next()

    agent = agent_of("one", "two").use(session=layer)
    with at_most():
        async with agent.session() as session:
            while not texts:
                await anyio.sleep(0.001)
            assert [message.text for message in session.history] == ["early", "one"]


async def test_background_work_of_an_init_layer_may_use_the_agent() -> None:
    texts: list[str] = []

    async def init(ctx: Any, call_next: Any) -> None:
        async def work() -> None:
            texts.append((await ctx.agent.run("early")).text)

        ctx.start_soon(work)
        await anyio.sleep(0.01)
        await call_next()

    with at_most():
        async with agent_of("one").use(init=init):
            while not texts:
                await anyio.sleep(0.001)
    assert texts == ["one"]


# Handles


async def test_two_handles_of_a_session_each_have_their_own_deps() -> None:
    seen: list[Any] = []

    async def look(ctx: TurnContext, call_next: Any) -> Any:
        seen.append(ctx.deps)
        return await call_next()

    agent = agent_of("x", "y", "z").use(look)
    async with agent, agent.session("s", deps="a") as first, agent.session("s", deps="b") as second:
        await first.run("1")
        await second.run("2")
        async with second.stream("3") as stream:
            async for _ in stream:
                pass
    assert seen == ["a", "b", "b"]


async def test_a_session_that_is_closed_while_its_turn_runs_cancels_it_before_its_layers_close() -> None:
    order: list[str] = []

    async def layer(ctx: SessionContext, call_next: Any) -> None:
        await call_next()
        order.append("session closed")

    async def turn(ctx: TurnContext, call_next: Any) -> Any:
        try:
            return await call_next()
        finally:
            order.append("turn over")

    agent = agent_of(lambda request: anyio.sleep_forever()).use(turn).use(session=layer)
    errors: list[BaseException] = []
    with at_most():
        async with agent, anyio.create_task_group() as group:
            session = agent.session()
            await session.__aenter__()

            async def run() -> None:
                try:
                    await session.run("go")
                except TurnAborted as error:
                    errors.append(error)

            group.start_soon(run)
            await anyio.wait_all_tasks_blocked()
            await session.__aexit__(None, None, None)
            assert order == ["turn over", "session closed"]
    assert "closed" in str(errors[0])


async def test_a_sync_tool_may_cancel_its_turn_from_its_thread() -> None:
    @tool
    def leave(ctx: ToolContext) -> str:
        ctx.session.cancel()
        return "done"

    with at_most():
        async with agent_of([call("leave")], "never", tools=[leave]).session() as session:
            with pytest.raises(TurnAborted):
                await session.run("go")
            assert session.last_result is not None
            assert session.last_result.status == "cancelled"


# Input and arguments


@pytest.mark.parametrize("value", [None, 5, b"bytes", object(), ["text"], [], {"role": "user"}])
async def test_input_that_is_none_says_what_input_is(value: Any) -> None:
    async with agent_of("x").session() as session:
        with pytest.raises(TypeError, match="input"):
            await session.run(value)
        assert len(session.history) == 0


@pytest.mark.parametrize(
    "arguments",
    [
        {"settings": {"temperature": 1}},
        {"store": 5},
        {"instructions": 5},
        {"limits": 5},
        {"model": EchoModel},
        {"model": "noslash"},
    ],
)
def test_an_argument_that_would_only_fail_later_fails_when_the_agent_is_made(arguments: dict[str, Any]) -> None:
    with pytest.raises(AgentxError, match="|".join([*arguments, "provider/model"])):
        Agent(**{"model": "local/auto", **arguments})


async def test_a_word_for_a_busy_session_that_means_nothing_is_an_error() -> None:
    with pytest.raises(SessionError, match="wiat"):
        await agent_of("x").run("hi", on_busy="wiat")


CALL = ToolCall("c1", "look", "{}")
BROKEN: dict[str, list[Any]] = {
    "a call without its result": [Message("user", (TextPart("x"),)), Message("assistant", (CALL,))],
    "a result without its call": [Message("tool", (ToolResult("c1", "look", (TextPart("y"),)),))],
    "no messages": ["hello"],
}


@pytest.mark.parametrize("fault", BROKEN)
async def test_a_history_that_no_provider_takes_is_refused_when_it_is_given(fault: str) -> None:
    agent = agent_of("x")
    with pytest.raises(SessionError, match="history="):
        async with agent.session(history=BROKEN[fault]):
            pass


# Verbs at other levels


async def test_what_a_layer_of_a_call_provides_is_there_further_in_and_nowhere_else() -> None:
    seen: list[Any] = []

    async def outer(ctx: ModelContext, call_next: Any) -> ModelResponse:
        seen.append(ctx.get(str, "nothing"))
        ctx.provide(str, "span")
        response: ModelResponse = await call_next()
        return response

    async def inner(ctx: ModelContext, call_next: Any) -> ModelResponse:
        seen.append(ctx.get(str))
        response: ModelResponse = await call_next()
        return response

    async def around_tool(ctx: ToolContext, call_next: Any) -> ToolResult:
        seen.append(ctx.get(str, "nothing"))
        ctx.provide(str, "tool span")
        result: ToolResult = await call_next()
        return result

    @tool
    async def look(ctx: ToolContext) -> str:
        return str(ctx.get(str))

    agent = agent_of([call("look")], "done", tools=[look])
    agent.use(model=outer).use(model=inner).use(tool=around_tool)
    async with agent.session() as session:
        await session.run("go")
        assert session.history[2].parts[0].text == "tool span"  # type: ignore[attr-defined]  # a result
    assert seen == ["nothing", "span", "nothing", "nothing", "span"]


async def test_a_retried_call_sees_what_was_provided_around_it() -> None:
    seen: list[Any] = []

    class Twice:
        @hookimpl(repeats=True)
        async def model(self, ctx: ModelContext, call_next: Any) -> ModelResponse:
            ctx.provide(str, "span")
            await call_next()
            response: ModelResponse = await call_next()
            return response

    async def inner(ctx: ModelContext, call_next: Any) -> ModelResponse:
        seen.append(ctx.get(str))
        response: ModelResponse = await call_next()
        return response

    await agent_of("a", "b").use(model=Twice().model).use(model=inner).run("go")
    assert seen == ["span", "span"]


@pytest.mark.parametrize("output", [None, "instead"])
async def test_a_turn_layer_may_stop_the_turn_after_its_answer(output: str | None) -> None:
    async def guard(ctx: TurnContext, call_next: Any) -> RunResult[Any]:
        result: RunResult[Any] = await call_next()
        ctx.stop("not this", status="refused", output=output)
        return result

    async with agent_of("a secret").use(guard).session() as session:
        result = await session.run("go")
        assert session.last_result == result
    assert (result.status, result.by) == (("completed" if output else "refused"), "function.guard")
    if output:
        assert result.output == "instead"


async def test_a_turn_layer_that_cannot_send_back_is_told_so() -> None:
    async def picky(ctx: TurnContext, call_next: Any) -> RunResult[Any]:
        result: RunResult[Any] = await call_next()
        ctx.send_back("better")
        return result

    with pytest.raises(HookError, match="repeats=True"):
        await agent_of("x").use(picky).run("go")


async def test_a_turn_layer_that_sends_back_and_leaves_it_at_that_is_told_so() -> None:
    class Picky:
        @hookimpl(repeats=True)
        async def turn(self, ctx: TurnContext, call_next: Any) -> RunResult[Any]:
            result: RunResult[Any] = await call_next()
            ctx.send_back("better")
            return result

    with pytest.raises(HookError, match="left it at that"):
        await agent_of("x").use(Picky().turn).run("go")


# Values that would fail later, or never hold


@attrs.frozen
class Kept:
    tags: Any = ()
    number: Any = 0


class Keeper(Plugin[Kept]):
    id = "tools.keeper"
    value: Any = None

    async def turn(self, ctx: TurnContext, call_next: Any) -> Any:
        ctx.update(self, number=self.value)
        return await call_next()


@pytest.mark.parametrize("value", [object(), float("nan"), float("inf")])
async def test_a_state_that_no_log_can_hold_is_refused_where_it_is_written(value: Any) -> None:
    with pytest.raises(StateError, match=r"tools\.keeper.*'number'"):
        await agent_of("x", plugins=[Keeper(value=value)]).run("go")


@pytest.mark.parametrize(
    ("name", "data"), [("", {}), ("bad name!", {}), ("fine", {"x": object()}), ("fine", {"x": float("inf")})]
)
async def test_an_event_that_no_log_can_hold_is_refused_where_it_is_made(name: str, data: dict[str, Any]) -> None:
    async def layer(ctx: TurnContext, call_next: Any) -> Any:
        ctx.emit(name, **data)
        return await call_next()

    with pytest.raises(StateError, match="event"):
        await agent_of("x").use(layer).run("go")


class Tooly(Plugin):
    id = "tools.tooly"

    @agentx.tool
    async def mine(self) -> str:
        """Mine."""
        return "mine"


class Other(Plugin):
    id = "tools.other"

    @agentx.tool
    async def other(self) -> str:
        """Other."""
        return "other"


async def test_an_override_takes_and_brings_the_tools_of_plugins_too() -> None:
    model = ScriptedModel(["1", [call("mine")], "2", [call("other")], "3", "4"])
    agent: Agent[Any, Any] = Agent(model, plugins=[Tooly()], config=False, autoload="none")
    async with agent, agent.session() as session:
        await session.run("a")
        with agent.override(disable=["tools.tooly"]):
            await session.run("b")
        with agent.override(use=[Other()]):
            await session.run("c")
        await session.run("d")
        results = [part for message in session.history if message.role == "tool" for part in message.parts]
    names = [sorted([spec.name for spec in request.tools]) for request in model.requests]
    assert names == [["mine"], [], [], ["mine", "other"], ["mine", "other"], ["mine"]]
    assert "there is no tool 'mine'" in results[0].text  # type: ignore[attr-defined]  # a result
    assert results[1].text == "other"  # type: ignore[attr-defined]  # a result


@pytest.mark.parametrize("kind", ["no.such.kind", "tool.resul", "nothing.*", ""])
async def test_listening_for_what_never_happens_is_an_error(kind: str) -> None:
    async with agent_of("x").session() as session:
        with pytest.raises(SessionError, match="no event of kind"):
            session.on(kind, print)
        for known in ("*", "tool.*", "tool.result", "plugin.guard.budget.spent", "text.delta"):
            session.on(known, print)()


def test_a_phase_that_does_not_exist_cannot_be_inherited() -> None:
    with pytest.raises(OrderError, match="verfy"):
        agent_of("x").as_tool("child", inherit=("verfy",))


@pytest.mark.parametrize(
    "arguments",
    [
        {"maximum": -1},
        {"maximum": float("nan")},
        {"maximum": "5"},
        {"estimate": -1},
        {"estimate": float("nan")},
        {"on": "x"},
        {"on_limit": "foo"},
        {"unknown": "maybe"},
        {"warn_at": 80},
        {"scope": ""},
    ],
)
def test_a_limit_that_would_never_hold_is_refused_when_it_is_made(arguments: dict[str, Any]) -> None:
    with pytest.raises(LimitError, match=next(iter(arguments))):
        Limit("tokens", **{"maximum": 5, **arguments})


def guarded(**arguments: Any) -> Any:
    async def guard(ctx: TurnContext, call_next: Any) -> Any:
        ctx.ledger.limit(Limit("points", 5, **arguments))
        return await call_next()

    return guard


def fail(*_: Any) -> Any:
    raise ZeroDivisionError("mine")


@pytest.mark.parametrize("estimate", [fail, lambda request: -1, lambda request: float("nan"), lambda request: "5"])
async def test_an_estimate_that_fails_lets_nothing_out_and_names_its_plugin(estimate: Any) -> None:
    model = ScriptedModel(["x"])
    agent: Agent[Any, Any] = Agent(model, config=False, autoload="none").use(guarded(estimate=estimate))
    with pytest.raises(LimitError, match=r"function\.guard.*points"):
        await agent.run("go")
    assert model.requests == []


@pytest.mark.parametrize("measure", [fail, lambda request, usage: -1, lambda request, usage: float("nan")])
async def test_a_measure_that_fails_is_logged_and_the_reserved_amount_stands(
    measure: Any, caplog: pytest.LogCaptureFixture
) -> None:
    used: list[Any] = []

    async def look(ctx: TurnContext, call_next: Any) -> Any:
        result = await call_next()
        used.append(ctx.ledger.remaining("points"))
        return result

    agent = agent_of("x").use(guarded(estimate=2, measure=measure)).use(look)
    with caplog.at_level(logging.ERROR, "agentx"):
        assert (await agent.run("go")).status == "completed"
    assert used == [3]
    assert "function.guard: the measure" in caplog.text


async def test_a_usage_below_zero_is_no_answer() -> None:
    answer = ModelResponse((TextPart("x"),), "end_turn", Usage(-5, 1))
    with pytest.raises(BadResponseError, match="below 0"):
        await agent_of(answer).run("go")


async def test_a_tool_that_a_layer_adds_in_every_step_is_added_once() -> None:
    @tool
    async def extra() -> str:
        """More."""
        return "more"

    async def adds(ctx: ModelContext, call_next: Any) -> ModelResponse:
        ctx.register_tool(extra)
        response: ModelResponse = await call_next()
        return response

    async with agent_of("a", [call("extra")], "b").use(model=adds).session() as session:
        await session.run("1")
        assert (await session.run("2")).text == "b"
