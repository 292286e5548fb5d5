"""What an application builds: opening and closing, running without async, overriding for a while."""

from __future__ import annotations

import logging
import threading
from typing import Any, ClassVar

import anyio
import anyio.lowlevel
import pytest

from agentx import (
    Agent,
    AgentContext,
    AgentxError,
    EventLoopRunningError,
    Message,
    ModelContext,
    ModelRequest,
    ModelResponse,
    ModelSettings,
    Plugin,
    PluginError,
    PluginLoadError,
    RunResult,
    SessionClosedError,
    TextPart,
    ToolNameError,
    TurnAborted,
    TurnContext,
    UnknownProviderError,
    tool,
)
from agentx.builtin.limits import LimitsGuard
from agentx.testing import EchoModel, FunctionModel, ScriptedModel, call

from ._rules import agent_with, at_most, echo

pytestmark = pytest.mark.anyio


class Lifetime(Plugin):
    """Writes down when its agent opens and closes, and in which thread."""

    id: ClassVar = "context.lifetime"
    log: list[str] = []  # noqa: RUF012  # a field of a plugin, given by the test
    opening: Any = None
    fails: str = ""

    async def init(self, ctx: AgentContext, call_next: Any) -> None:
        if self.opening is not None:
            await self.opening()
        if self.fails == "opening":
            raise ValueError("cannot open")
        self.log.append("open")
        try:
            await call_next()
        finally:
            self.log.append("close")
            if self.fails == "closing":
                raise ValueError("cannot close")


def says(text: str) -> FunctionModel:
    return FunctionModel(lambda request: text)


# Without async


def test_run_sync_runs_one_turn() -> None:
    result = agent_with([call("echo", text="x"), "done"]).run_sync("go")
    assert result.output == "done"


def test_run_sync_may_be_called_again_and_again() -> None:
    log: list[str] = []
    agent = agent_with(says("ok"), plugins=[Lifetime(log=log)])
    assert [agent.run_sync("go").output for _ in range(3)] == ["ok"] * 3
    assert log == ["open", "close"] * 3


async def test_run_sync_in_a_running_loop_raises_and_names_what_to_write() -> None:
    with pytest.raises(EventLoopRunningError, match=r"await agent\.run"):
        agent_with(["never"]).run_sync("go")


async def test_run_sync_in_a_thread_beside_a_running_loop_works() -> None:
    agent = agent_with(says("ok"))
    with at_most():
        result = await anyio.to_thread.run_sync(lambda: agent.run_sync("go"))
    assert result.output == "ok"


async def test_run_sync_in_a_sync_tool_works() -> None:
    inner = agent_with(says("inner"))

    @tool
    def ask() -> str:
        return inner.run_sync("go").output

    with at_most():
        result = await agent_with([call("ask"), "done"], tools=[ask]).run("go")
    assert result.output == "done"
    assert [m.role for m in result.messages] == ["user", "assistant", "tool", "assistant"]
    assert "inner" in repr(result.messages[2])


def test_run_sync_raises_what_run_raises() -> None:
    async def no(ctx: TurnContext, call_next: Any) -> RunResult[Any]:
        ctx.abort("no")

    with pytest.raises(TurnAborted):
        agent_with(["x"]).use(no).run_sync("go")
    with pytest.raises(ZeroDivisionError):
        agent_with([ZeroDivisionError]).run_sync("go")


# Building


@pytest.mark.parametrize("model", ["", "no-slash", "/x", "x/", "x:"])
def test_a_model_id_that_is_none_is_refused_at_once(model: str) -> None:
    with pytest.raises((AgentxError, ValueError), match="provider/model"):
        Agent(model)


def test_an_unknown_provider_is_named_when_the_agent_runs() -> None:
    agent = Agent("nowhere/model", config=False, autoload="none")
    with pytest.raises(UnknownProviderError, match="nowhere"):
        agent.run_sync("go")


@pytest.mark.parametrize("model", [None, 7, object(), says])
def test_something_that_is_no_model_is_refused(model: Any) -> None:
    with pytest.raises((AgentxError, TypeError)):
        Agent(model, config=False, autoload="none").run_sync("go")


def test_two_tools_of_one_name_are_refused_with_the_setting_that_solves_it() -> None:
    @tool(name="echo")
    async def another() -> str:
        return ""

    with pytest.raises(ToolNameError, match="echo"):
        agent_with(["x"], tools=[echo, another]).run_sync("go")


def test_functions_are_tools_and_layers() -> None:
    def now() -> str:
        """What time it is."""
        return "noon"

    model = ScriptedModel([call("now"), "It is noon."])
    assert Agent(model, tools=[now], config=False, autoload="none").run_sync("time?").output == "It is noon."
    assert [(spec.name, spec.description) for spec in model.requests[0].tools] == [("now", "What time it is.")]


def test_use_after_opening_is_refused_and_names_override() -> None:
    agent = agent_with(["x"])
    agent.run_sync("go")
    with pytest.raises(PluginError, match="override"):
        agent.use(LimitsGuard())


@pytest.mark.parametrize("hook", ["models", "before_model", "run"])
def test_an_unknown_hook_is_refused_with_those_there_are(hook: str) -> None:
    async def layer(ctx: Any, call_next: Any) -> Any:
        return await call_next()

    layers: Any = {hook: layer}
    with pytest.raises(PluginError, match="init, session, turn, model, tool"):
        agent_with([]).use(**layers)


def test_tools_stand_in_one_order_and_instructions_are_always_sent() -> None:
    model = ScriptedModel(["one", "two"])

    @tool
    async def alpha() -> str:
        return ""

    agent = agent_with(model, tools=[echo, alpha], instructions="Be brief.")
    agent.run_sync("a")
    agent.run_sync("b")
    assert [[spec.name for spec in request.tools] for request in model.requests] == [["alpha", "echo"]] * 2
    assert [request.instructions for request in model.requests] == ["Be brief."] * 2


async def test_check_opens_everything_once_and_says_what_there_is() -> None:
    log: list[str] = []
    with at_most():
        rows = await agent_with(["x"], plugins=[Lifetime(log=log)]).check()
    assert [(row.id, row.status) for row in rows if row.status == "enabled"] == [("context.lifetime", "enabled")]
    assert log == ["open", "close"]


@pytest.mark.parametrize("when", ["opening", "closing"])
async def test_check_raises_what_opening_and_closing_raise(when: str) -> None:
    with at_most(), pytest.raises(ValueError, match=f"cannot {when[:-3]}" if when == "opening" else "cannot close"):
        await agent_with(["x"], plugins=[Lifetime(log=[], fails=when)]).check()


def test_explain_says_who_wraps_whom() -> None:
    async def outer(ctx: ModelContext, call_next: Any) -> ModelResponse:
        response: ModelResponse = await call_next()
        return response

    text = agent_with([]).use(model=outer, phase="gate").use(LimitsGuard()).explain("model")
    assert "function.outer" in text
    assert "gate" in text


async def test_opening_logs_one_line_with_the_active_plugins(caplog: pytest.LogCaptureFixture) -> None:
    with at_most(), caplog.at_level(logging.INFO, "agentx"):
        async with agent_with([], plugins=[LimitsGuard(), Lifetime(log=[])]):
            pass
    [record] = [record for record in caplog.records if "guard.limits" in record.getMessage()]
    assert "context.lifetime" in record.getMessage()


# Opening and closing


async def test_an_agent_that_is_closed_opens_for_each_run() -> None:
    log: list[str] = []
    agent = agent_with(says("ok"), plugins=[Lifetime(log=log)])
    with at_most():
        await agent.run("a")
        await agent.run("b")
    assert log == ["open", "close", "open", "close"]


async def test_an_open_agent_is_opened_once_and_the_last_one_out_closes() -> None:
    log: list[str] = []
    agent = agent_with(says("ok"), plugins=[Lifetime(log=log)])
    with at_most():
        async with agent:
            async with agent, agent.session() as session:
                await session.run("a")
                await agent.run("b")
            assert log == ["open"]
            await agent.run("c")
        assert log == ["open", "close"]


async def test_concurrent_openers_share_one_opening() -> None:
    log: list[str] = []
    go = anyio.Event()
    agent = agent_with(says("ok"), plugins=[Lifetime(log=log, opening=go.wait)])
    results: list[str] = []
    with at_most():
        async with anyio.create_task_group() as group:

            async def run() -> None:
                results.append((await agent.run("go")).output)

            for _ in range(20):
                group.start_soon(run)
            await anyio.wait_all_tasks_blocked()
            assert log == []
            go.set()
    assert results == ["ok"] * 20
    assert log == ["open", "close"]


async def test_when_the_opening_fails_every_waiting_opener_gets_an_error_and_later_ones_try_again() -> None:
    log: list[str] = []
    tries: list[int] = []

    async def opening() -> None:
        tries.append(1)
        await anyio.lowlevel.checkpoint()
        if len(tries) == 1:
            raise ConnectionError("not yet")

    agent = agent_with(says("ok"), plugins=[Lifetime(log=log, opening=opening)])
    outcomes: list[str] = []
    with at_most():
        async with anyio.create_task_group() as group:

            async def run() -> None:
                try:
                    outcomes.append((await agent.run("go")).output)
                except ConnectionError:
                    outcomes.append("failed")

            for _ in range(3):
                group.start_soon(run)
        assert (await agent.run("go")).output == "ok"
    assert outcomes.count("failed") >= 1
    assert set(outcomes) <= {"ok", "failed"}


async def test_when_the_one_who_opens_is_cancelled_the_others_still_get_in() -> None:
    log: list[str] = []
    go = anyio.Event()
    agent = agent_with(says("ok"), plugins=[Lifetime(log=log, opening=go.wait)])
    results: list[str] = []
    with at_most():
        async with anyio.create_task_group() as group:
            first = anyio.CancelScope()

            async def opener() -> None:
                with first:
                    await agent.run("go")

            async def waiter() -> None:
                results.append((await agent.run("go")).output)

            group.start_soon(opener)
            await anyio.wait_all_tasks_blocked()
            group.start_soon(waiter)
            await anyio.wait_all_tasks_blocked()
            first.cancel()
            await anyio.wait_all_tasks_blocked()
            go.set()
    assert first.cancelled_caught
    assert results == ["ok"]
    assert log == ["open", "close"]


async def test_who_comes_while_the_agent_closes_opens_it_again() -> None:
    log: list[str] = []
    closing, go = anyio.Event(), anyio.Event()

    class SlowClose(Plugin):
        id: ClassVar = "context.slow"

        async def init(self, ctx: AgentContext, call_next: Any) -> None:
            log.append("open")
            await call_next()
            closing.set()
            await go.wait()
            log.append("close")

    agent = agent_with(says("ok"), plugins=[SlowClose()])
    with at_most():
        async with anyio.create_task_group() as group:
            group.start_soon(agent.run, "a")
            await closing.wait()
            group.start_soon(agent.run, "b")
            await anyio.wait_all_tasks_blocked()
            assert log == ["open"]
            go.set()
    assert log == ["open", "close", "open", "close"]


def test_each_event_loop_opens_an_agent_of_its_own() -> None:
    log: list[str] = []
    agent = agent_with(says("ok"), plugins=[Lifetime(log=log)])
    barrier = threading.Barrier(2, timeout=5)
    outcomes: list[str] = []

    def work(backend: str) -> None:
        async def main() -> None:
            with anyio.fail_after(5):
                async with agent:
                    barrier.wait()
                    async with agent.session(id=backend) as session:
                        for _ in range(20):
                            outcomes.append((await session.run("go")).output)
                            await anyio.lowlevel.checkpoint()
                    barrier.wait()

        anyio.run(main, backend=backend)

    threads = [threading.Thread(target=work, args=(backend,)) for backend in ("asyncio", "trio")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert outcomes == ["ok"] * 40
    assert log == ["open", "open", "close", "close"]


def test_many_threads_may_use_one_agent_with_run_sync() -> None:
    agent = agent_with(EchoModel())
    outcomes: dict[int, str] = {}

    def work(number: int) -> None:
        for _ in range(5):
            outcomes[number] = agent.run_sync(f"thread {number}").output

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert outcomes == {number: f"thread {number}" for number in range(8)}


async def test_an_error_while_closing_is_raised_or_becomes_a_note() -> None:
    with at_most():
        with pytest.raises(ValueError, match="cannot close"):
            async with agent_with([], plugins=[Lifetime(log=[], fails="closing")]):
                pass
        with pytest.raises(KeyError) as caught:
            async with agent_with([], plugins=[Lifetime(log=[], fails="closing")]):
                raise KeyError("mine")
    assert any("cannot close" in note for note in caught.value.__notes__)


async def test_models_that_the_agent_was_given_are_not_closed_by_it() -> None:
    model = says("ok")
    with at_most():
        await agent_with(model).run("go")
    assert model.closed is False


async def test_a_session_cannot_be_used_after_its_agent_was_closed() -> None:
    agent = agent_with(says("ok"))
    with at_most():
        async with agent:
            session = agent.session()
            async with session:
                await session.run("go")
        with pytest.raises(SessionClosedError):
            _ = session.history


@pytest.mark.parametrize("how", ["agent", "session", "run", "stream"])
async def test_an_opening_cancelled_after_any_number_of_switches_leaves_nothing_open(how: str) -> None:
    """What was opened is closed, and the agent can be opened again."""
    log: list[str] = []

    async def lifetime(ctx: AgentContext, call_next: Any) -> None:
        await anyio.lowlevel.checkpoint()
        log.append("open")
        try:
            await call_next()
            with ctx.shield(1):
                await anyio.lowlevel.checkpoint()
        finally:
            log.append("close")

    agent = agent_with(says("ok")).use(init=lifetime).use(session=lifetime, name="s")

    async def use() -> None:
        if how == "agent":
            async with agent:
                await anyio.lowlevel.checkpoint()
        elif how == "session":
            async with agent.session(id="s"):
                await anyio.lowlevel.checkpoint()
        elif how == "run":
            await agent.run("go")
        else:
            async with agent.stream("go") as stream:
                async for _ in stream:
                    pass

    for switches in range(25):
        with at_most():
            async with anyio.create_task_group() as group:
                group.start_soon(use)
                for _ in range(switches):
                    await anyio.lowlevel.checkpoint()
                group.cancel_scope.cancel()
            assert log.count("open") == log.count("close")
            assert (await agent.run("again")).output == "ok"
            assert log.count("open") == log.count("close")


# Overrides


class Marks(Plugin):
    """Marks every request of its agent."""

    id: ClassVar = "context.marks"
    mark: str = "plain"

    async def model(self, ctx: ModelContext, call_next: Any) -> ModelResponse:
        ctx.add_context(self.mark)
        response: ModelResponse = await call_next()
        return response


async def shout(ctx: TurnContext, call_next: Any) -> RunResult[Any]:
    ctx.input = ctx.input.text.upper()
    result: RunResult[Any] = await call_next()
    return result


def last(model: FunctionModel | ScriptedModel) -> tuple[str, tuple[str, ...]]:
    request = model.requests[-1]
    return request.messages[-1].text, request.context


async def test_an_override_holds_inside_its_block_only() -> None:
    usual, other = says("usual"), says("other")
    agent = agent_with(usual, plugins=[Marks()])
    with at_most():
        with agent.override(model=other):
            assert (await agent.run("a")).output == "other"
        assert (await agent.run("b")).output == "usual"
        with agent.override(disable=["context.marks"]):
            await agent.run("c")
            assert last(usual) == ("c", ())
        with agent.override(use=[shout]):
            await agent.run("d")
            assert last(usual) == ("D", ("plain",))
        with agent.override(config={"plugins": {"context.marks": {"mark": "changed"}}}):
            await agent.run("e")
            assert last(usual) == ("e", ("changed",))
        await agent.run("f")
        assert last(usual) == ("f", ("plain",))


async def test_overrides_nest_and_the_inner_one_wins() -> None:
    one, two = says("one"), says("two")
    agent = agent_with(says("usual"), plugins=[Marks()])
    with at_most():
        with agent.override(model=one, use=[shout]):
            with agent.override(model=two, disable=["context.marks"]):
                assert (await agent.run("a")).output == "two"
                assert last(two) == ("A", ())
            assert (await agent.run("b")).output == "one"
            assert last(one) == ("B", ("plain",))


async def test_an_override_is_left_when_its_block_raises() -> None:
    agent = agent_with(says("usual"))
    with at_most():
        with pytest.raises(KeyError):
            with agent.override(model=says("other")):
                raise KeyError
        assert (await agent.run("a")).output == "usual"


async def test_an_override_is_not_seen_by_other_tasks() -> None:
    agent = agent_with(FunctionModel(lambda request: "usual"))
    said: list[str] = []
    inside, done = anyio.Event(), anyio.Event()
    with at_most():
        async with agent, anyio.create_task_group() as group:

            async def other() -> None:
                await inside.wait()
                said.append((await agent.run("go")).output)
                done.set()

            group.start_soon(other)
            with agent.override(model=says("other")):
                inside.set()
                await done.wait()
                said.append((await agent.run("go")).output)
    assert said == ["usual", "other"]


async def test_an_override_holds_for_tasks_started_inside_it() -> None:
    agent = agent_with(says("usual"))
    said: list[str] = []
    with at_most():
        with agent.override(model=says("other")):
            async with anyio.create_task_group() as group:

                async def run() -> None:
                    said.append((await agent.run("go")).output)

                group.start_soon(run)
    assert said == ["other"]


async def test_an_override_of_one_agent_leaves_another_alone() -> None:
    one, two = agent_with(says("one")), agent_with(says("two"))
    with at_most():
        with one.override(model=says("other")):
            assert [(await one.run("a")).output, (await two.run("a")).output] == ["other", "two"]


async def test_an_override_reaches_sessions_that_are_open_already() -> None:
    usual = says("usual")
    agent = agent_with(usual, plugins=[Marks()])
    with at_most():
        async with agent, agent.session() as session:
            await session.run("a")
            with agent.override(model=says("other"), use=[shout]):
                assert (await session.run("b")).output == "other"
            with agent.override(disable=["context.marks"]):
                await session.run("c")
            assert last(usual) == ("c", ())
            await session.run("d")
            assert last(usual) == ("d", ("plain",))
            assert [m.text for m in session.history if m.role == "user"] == ["a", "B", "c", "d"]


async def test_what_a_turn_says_wins_over_an_override() -> None:
    agent = agent_with(says("usual"))
    with at_most():
        with agent.override(model=says("override")):
            assert (await agent.run("a", model=says("turn"))).output == "turn"


async def test_a_required_plugin_stays() -> None:
    agent = agent_with(says("usual"), config={"plugins": {"require": ["guard.limits"]}}).use(LimitsGuard(requests=1))
    with at_most():
        await agent.run("a")
        try:
            with agent.override(disable=["guard.limits"]):
                await agent.run("a")
                assert "guard.limits" in [row.id for row in agent.plugins if row.status == "enabled"]
        except AgentxError as error:
            assert "guard.limits" in str(error)


async def test_disabling_what_is_not_there_is_harmless_or_said() -> None:
    agent = agent_with(says("usual"))
    with at_most():
        try:
            with agent.override(disable=["guard.nothing"]):
                assert (await agent.run("a")).output == "usual"
        except AgentxError as error:
            assert "guard.nothing" in str(error)


async def test_an_override_with_a_wrong_setting_names_it_and_harms_nobody() -> None:
    agent = agent_with(says("usual"), plugins=[Marks()])
    with at_most():
        with pytest.raises(AgentxError, match="marc"):
            with agent.override(config={"plugins": {"context.marks": {"marc": "x"}}}):
                await agent.run("a")
        assert (await agent.run("a")).output == "usual"


async def test_the_model_of_an_override_may_be_an_id() -> None:
    agent = agent_with(says("usual"))
    with at_most():
        with agent.override(model="nowhere/model"):
            with pytest.raises(UnknownProviderError):
                await agent.run("a")
        assert (await agent.run("a")).output == "usual"


# Limits and settings of an agent


async def test_limits_of_an_agent_configure_the_guard() -> None:
    agent = agent_with(
        FunctionModel(lambda r: call("echo", text="x")), plugins=["guard.limits"], limits={"requests": 3}
    )
    with at_most():
        result = await agent.run("go")
    assert (result.status, result.usage.requests) == ("limit", 3)
    assert result.by == "guard.limits"


async def test_limits_without_a_guard_are_no_silent_nothing() -> None:
    agent = agent_with(FunctionModel(lambda r: call("echo", text="x")), limits={"requests": 3})
    with at_most():
        try:
            result = await agent.run("go")
        except (PluginLoadError, AgentxError) as error:
            assert "guard.limits" in str(error)
        else:
            assert result.usage.requests == 3


@pytest.mark.parametrize("limits", [{"request": 3}, {"requests": -1}, {"requests": "many"}], ids=str)
async def test_wrong_limits_are_named(limits: dict[str, Any]) -> None:
    agent = agent_with(says("ok"), plugins=["guard.limits"], limits=limits)
    with at_most(), pytest.raises(AgentxError, match="request"):
        await agent.run("go")
    agent = agent_with(says("ok"), plugins=["guard.limits"])
    with at_most(), pytest.raises(AgentxError, match="request"):
        await agent.run("go", limits=limits)


async def test_limits_of_one_turn_hold_for_that_turn() -> None:
    model = FunctionModel(lambda r: call("echo", text="x") if len(r.messages) % 10 else "ok")
    agent = agent_with(model, plugins=[LimitsGuard(requests=20)])
    with at_most():
        first = await agent.run("go", limits={"requests": 2})
        second = await agent.run("go")
    assert (first.usage.requests, second.status) == (2, "limit")
    assert second.usage.requests == 20


async def test_settings_of_the_agent_reach_the_model() -> None:
    model = ScriptedModel(["ok"])
    with at_most():
        await agent_with(model, settings=ModelSettings(temperature=0.3, extra={"x": 1})).run("go")
    assert model.requests[0].settings.temperature == 0.3
    assert model.requests[0].settings.extra == {"x": 1}


async def test_turns_run_in_the_callers_context() -> None:
    from contextvars import ContextVar

    where: ContextVar[str] = ContextVar("where", default="nowhere")
    seen: list[str] = []

    class Sets(Plugin):
        id: ClassVar = "context.sets"

        async def init(self, ctx: AgentContext, call_next: Any) -> None:
            where.set("init")
            await call_next()

        async def model(self, ctx: ModelContext, call_next: Any) -> ModelResponse:
            seen.append(where.get())
            response: ModelResponse = await call_next()
            return response

    agent = agent_with(says("ok"), plugins=[Sets()])
    with at_most():
        async with agent:
            await agent.run("go")
            where.set("caller")
            await agent.run("go")
    assert seen == ["nowhere", "caller"]


async def test_a_model_needs_a_name_and_respond_only() -> None:
    class Least:
        name = "least"

        async def respond(self, request: ModelRequest, emit: Any) -> ModelResponse:
            return ModelResponse((TextPart("enough"),))

    with at_most():
        result = await agent_with(Least()).run("go")
    assert result.output == "enough"
    assert result.messages[0] == Message("user", (TextPart("go"),))
