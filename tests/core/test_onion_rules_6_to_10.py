"""The onion rules 6 to 10 of the design: after-parts, observers and guards, tool failures, tracebacks, host tasks.

Written from the text of the rules. Each test is about what an application or a plugin's author sees.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import anyio
import anyio.lowlevel
import attrs
import pytest

from agentx import (
    Agent,
    AgentxError,
    HookError,
    Limit,
    ModelError,
    Session,
    ToolContext,
    ToolFailed,
    TurnAborted,
    hookimpl,
    tool,
)
from agentx.testing import ScriptedModel, call, check_history

from ._rules import (
    INNER_HOOKS,
    ONE_CALL,
    GuardBase,
    SlowModel,
    agent_with,
    answer,
    at_most,
    cancel_after,
    echo,
    fake_result,
    kinds_of,
    last_of,
    logging_layer,
    place,
    results_of,
    tasks_now,
    tool_result,
    whole_text,
)

pytestmark = pytest.mark.anyio

HOOKS = ("init", "session", *INNER_HOOKS)
each_hook = pytest.mark.parametrize("hook", INNER_HOOKS)
each_lifetime = pytest.mark.parametrize("hook", ["init", "session"])
each_cancel = pytest.mark.parametrize("how", ["scope", "native"])
SECONDS_LONG = 30.0
"""Longer than any test may take; what sleeps so long is to be cancelled."""


# Rule 6: after-parts always run, innermost first (case G23)


class Onion:
    """Three layers A, B, C in one hook, A outermost; `before` and `after` say what a layer does there."""

    def __init__(self, hook: str, *, core: Any = None) -> None:
        self.hook = hook
        self.log: list[str] = []
        self.seen: dict[str, Any] = {}
        self.before: dict[str, BaseException] = {}
        self.after: dict[str, Callable[[Any, BaseException | None], Any]] = {}
        self.core = core

    def layer(self, name: str) -> Any:
        async def layer(ctx: Any, call_next: Any) -> Any:
            self.log.append(f"{name} before")
            if name in self.before:
                raise self.before[name]
            result: Any = None
            try:
                result = await call_next()
                self.seen[name] = result
            except BaseException as caught:
                self.seen[name] = caught
                if not isinstance(caught, Exception) or name not in self.after:
                    raise
                result = self.after[name](ctx, caught)
            else:
                if name in self.after:
                    result = self.after[name](ctx, None)
            finally:
                self.log.append(f"{name} after")
            return result

        layer.__name__ = name.lower()
        return layer

    def agent(self) -> Agent[Any, str]:
        model: Any = ["done"]
        if isinstance(self.core, BaseException) and self.hook in ("turn", "model"):
            model = [self.core]
        elif self.hook == "tool":
            model = [[call("work")], "done"]

        @tool
        async def work() -> str:
            self.log.append("core")
            if isinstance(self.core, BaseException):
                raise self.core
            return "worked"

        agent = agent_with(model, tools=[work])
        for name in "ABC":
            agent.use(**{self.hook: self.layer(name)})
        return agent

    async def run(self, body: Callable[[Session[Any]], Any] | None = None) -> Any:
        """Enter the onion and leave it. For a lifetime the core is the body of its `async with`."""
        agent = self.agent()
        async with agent, agent.session() as session:
            if self.hook in ("init", "session"):
                if isinstance(self.core, BaseException):
                    raise self.core
                return await body(session) if body is not None else None
            return await session.run("go")


ALL_AROUND = ["A before", "B before", "C before", "C after", "B after", "A after"]


def around(log: list[str]) -> list[str]:
    return [entry for entry in log if entry != "core"]


def raising(error: BaseException) -> Any:
    def after(ctx: Any, caught: BaseException | None) -> Any:
        raise error

    return after


@pytest.mark.parametrize("hook", HOOKS)
async def test_g23_1_an_error_in_the_innermost_after_part_passes_all_outer_ones(hook: str) -> None:
    error = RuntimeError("X")
    onion = Onion(hook)
    onion.after["C"] = raising(error)

    with at_most(), pytest.raises(RuntimeError) as caught:
        await onion.run()
    log = around(onion.log)
    gc.collect(1)
    await anyio.lowlevel.checkpoint()

    assert caught.value is error
    assert log == around(onion.log) == ALL_AROUND
    assert onion.seen["B"] is onion.seen["A"] is error


@pytest.mark.parametrize("hook", ["turn", "model"])
async def test_g23_2_an_error_in_an_after_part_replaces_that_of_the_core_and_keeps_it_as_context(hook: str) -> None:
    first, second = ValueError("E"), RuntimeError("X")
    onion = Onion(hook, core=first)
    onion.after["B"] = raising(second)

    with at_most(), pytest.raises(RuntimeError) as caught:
        await onion.run()
    log = around(onion.log)
    gc.collect(1)

    assert caught.value is second
    assert second.__context__ is first
    assert log == around(onion.log) == ALL_AROUND
    assert onion.seen["C"] is first
    assert onion.seen["A"] is second


async def test_g23_2_for_tools_the_error_of_the_core_is_tool_failed_with_its_cause() -> None:
    first, second = ValueError("E"), RuntimeError("X")
    onion = Onion("tool", core=first)
    onion.after["B"] = raising(second)

    with at_most(), pytest.raises(RuntimeError) as caught:
        await onion.run()

    assert caught.value is second
    assert isinstance(second.__context__, ToolFailed)
    assert second.__context__.__cause__ is first
    assert around(onion.log) == ALL_AROUND


@each_lifetime
async def test_g23_2_for_lifetimes_the_bodys_error_leaves_and_the_other_becomes_a_note(hook: str) -> None:
    first, second = ValueError("E"), RuntimeError("X")
    onion = Onion(hook, core=first)
    onion.after["B"] = raising(second)

    with at_most(), pytest.raises(ValueError) as caught:
        await onion.run()
    log = around(onion.log)
    gc.collect(1)

    assert caught.value is first
    assert any("X" in note for note in first.__notes__)
    assert log == around(onion.log) == ALL_AROUND
    assert onion.seen["C"] is first
    assert onion.seen["A"] is second


@each_hook
async def test_g23_3_an_error_that_a_layer_swallows_is_seen_by_nobody_further_out(hook: str) -> None:
    onion = Onion(hook, core=ValueError("E"))
    returned: list[Any] = []

    def rescue(ctx: Any, caught: BaseException | None) -> Any:
        if hook == "turn":
            returned.append(attrs.evolve(ctx.result, text="B", status="completed", reason=None, output="B"))
        else:
            returned.append(answer("B") if hook == "model" else tool_result(ctx, "B"))
        return returned[0]

    onion.after["B"] = rescue
    with at_most():
        result = await onion.run()

    assert around(onion.log) == ALL_AROUND
    assert isinstance(onion.seen["C"], ToolFailed if hook == "tool" else ValueError)
    assert onion.seen["A"] is returned[0]
    assert result.output == ("done" if hook == "tool" else "B")


@each_lifetime
async def test_g23_3_a_lifetime_layer_that_swallows_the_bodys_error_does_not_hide_it_from_the_caller(hook: str) -> None:
    error = ValueError("E")
    onion = Onion(hook, core=error)
    onion.after["B"] = lambda ctx, caught: None

    with at_most(), pytest.raises(ValueError) as caught:
        await onion.run()

    assert caught.value is error
    assert around(onion.log) == ALL_AROUND
    assert onion.seen["C"] is error
    assert onion.seen["A"] is None


@pytest.mark.parametrize("hook", HOOKS)
async def test_g23_4_an_error_before_call_next_enters_nothing_further_in(hook: str) -> None:
    error = RuntimeError("X")
    onion = Onion(hook)
    onion.before["A"] = error

    with at_most(), pytest.raises(RuntimeError) as caught:
        await onion.run()
    gc.collect(1)

    assert caught.value is error
    assert onion.log == ["A before"]


@each_cancel
@pytest.mark.parametrize("hook", HOOKS)
async def test_g23_5_all_after_parts_run_when_the_core_is_cancelled_and_the_cancellation_goes_on(
    hook: str, how: str, anyio_backend_name: str
) -> None:
    started = anyio.Event()
    onion = Onion(hook)

    async def hangs(*_: Any) -> Any:
        started.set()
        await anyio.sleep(SECONDS_LONG)

    async def run() -> None:
        agent = onion.agent()
        if hook in INNER_HOOKS:
            agent.use(**{hook: hangs_in(hook)})
        async with agent, agent.session() as session:
            if hook in INNER_HOOKS:
                await session.run("go")
            else:
                await hangs()

    def hangs_in(hook: str) -> Any:
        async def hanging(ctx: Any, call_next: Any) -> Any:
            await hangs()

        return hanging

    await cancel_after(how, anyio_backend_name, started, run)
    log = around(onion.log)
    gc.collect(1)
    await anyio.lowlevel.checkpoint()

    assert log == around(onion.log) == ALL_AROUND


@each_hook
async def test_after_parts_of_all_levels_run_before_control_returns(hook: str) -> None:
    log: list[str] = []

    async def breaks(ctx: Any, call_next: Any) -> Any:
        raise ValueError("inner")

    agent = agent_with(ONE_CALL)
    for level in INNER_HOOKS:
        agent.use(**{level: logging_layer(level, log)})
    agent.use(**{hook: breaks})
    with at_most(), pytest.raises(ValueError):
        await agent.run("go")
    log.append("returned")

    assert log[0] == "turn before"
    assert log[-2:] == ["turn after", "returned"]
    for level in INNER_HOOKS:
        assert log.count(f"{level} before") == log.count(f"{level} after")


@pytest.mark.parametrize("verb", ["abort", "stop"])
@each_hook
async def test_after_parts_run_on_abort_and_on_stop(hook: str, verb: str) -> None:
    log: list[str] = []

    async def ends(ctx: Any, call_next: Any) -> Any:
        if verb == "abort":
            ctx.abort("enough")
        ctx.stop("enough")
        return await call_next()

    agent = agent_with(ONE_CALL)
    for layer in (logging_layer("a", log), logging_layer("b", log), ends):
        agent.use(**{hook: layer})
    with at_most():
        if verb == "abort":
            with pytest.raises(TurnAborted):
                await agent.run("go")
        else:
            assert (await agent.run("go")).status == "stopped"
    assert log[-4:] == ["a before", "b before", "b after", "a after"]


@each_cancel
@each_hook
async def test_an_after_part_that_must_await_while_its_turn_is_cancelled_shields_itself(
    hook: str, how: str, anyio_backend_name: str
) -> None:
    started = anyio.Event()
    log: list[str] = []

    async def saves(ctx: Any, call_next: Any) -> Any:
        try:
            return await call_next()
        finally:
            with ctx.shield(1):
                await anyio.sleep(0.02)
                log.append("saved")

    async def does_not_shield(ctx: Any, call_next: Any) -> Any:
        try:
            return await call_next()
        finally:
            log.append("begins")
            await anyio.sleep(SECONDS_LONG if how == "scope" else 0)

    async def hangs(ctx: Any, call_next: Any) -> Any:
        started.set()
        await anyio.sleep(SECONDS_LONG)

    agent = agent_with(ONE_CALL)
    for layer in (saves, does_not_shield, hangs):
        agent.use(**{hook: layer})
    async with agent, agent.session() as session:
        await cancel_after(how, anyio_backend_name, started, lambda: session.run("go"))
        assert log == ["begins", "saved"]
        assert last_of(session).status == "cancelled"


@each_hook
async def test_a_shield_holds_when_the_session_is_cancelled(hook: str) -> None:
    started = anyio.Event()
    log: list[str] = []

    async def saves(ctx: Any, call_next: Any) -> Any:
        try:
            return await call_next()
        finally:
            with ctx.shield(1):
                await anyio.sleep(0.02)
                log.append("saved")

    async def hangs(ctx: Any, call_next: Any) -> Any:
        started.set()
        await anyio.sleep(SECONDS_LONG)

    agent = agent_with(ONE_CALL).use(**{hook: saves}).use(**{hook: hangs})
    async with agent, agent.session() as session:

        async def cancel() -> None:
            await started.wait()
            assert session.cancel()

        with at_most():
            async with anyio.create_task_group() as group:
                group.start_soon(cancel)
                with pytest.raises(AgentxError):
                    await session.run("go")

        assert log == ["saved"]
        assert last_of(session).status == "cancelled"


async def test_a_shield_lasts_as_long_as_it_says() -> None:
    started = anyio.Event()
    log: list[str] = []

    async def dawdles(ctx: Any, call_next: Any) -> Any:
        try:
            return await call_next()
        finally:
            with ctx.shield(0.02):
                await anyio.sleep(SECONDS_LONG)
            log.append("gave up")

    async def hangs(ctx: Any, call_next: Any) -> Any:
        started.set()
        await anyio.sleep(SECONDS_LONG)

    agent = agent_with(["never"]).use(model=dawdles).use(model=hangs)
    await cancel_after("scope", "", started, lambda: agent.run("go"))
    assert log == ["gave up"]


# Rule 7: observers never break a run, gates fail closed, elsewhere exceptions propagate


async def raises_before(ctx: Any, call_next: Any) -> Any:
    raise RuntimeError("the observer broke")


async def raises_after(ctx: Any, call_next: Any) -> Any:
    await call_next()
    raise RuntimeError("the observer broke")


async def exits_before(ctx: Any, call_next: Any) -> Any:
    raise SystemExit("the observer broke")


async def exits_after(ctx: Any, call_next: Any) -> Any:
    await call_next()
    raise SystemExit("the observer broke")


async def returns_garbage(ctx: Any, call_next: Any) -> Any:
    await call_next()
    return {"garbage": True}


async def returns_nothing(ctx: Any, call_next: Any) -> Any:
    await call_next()


async def never_calls(ctx: Any, call_next: Any) -> Any:
    return None


async def returns_the_coroutine(ctx: Any, call_next: Any) -> Any:
    return call_next()


async def calls_twice(ctx: Any, call_next: Any) -> Any:
    await call_next()
    return await call_next()


async def swallows_errors(ctx: Any, call_next: Any) -> Any:
    try:
        return await call_next()
    except BaseException:
        return None


async def converts_errors(ctx: Any, call_next: Any) -> Any:
    try:
        return await call_next()
    except BaseException as error:
        raise RuntimeError("the observer broke") from error


async def calls_in_a_child_task(ctx: Any, call_next: Any) -> Any:
    async def child() -> None:
        await call_next()

    async with anyio.create_task_group() as group:
        group.start_soon(child)


BREAKING = [raises_before, raises_after, exits_before, exits_after]
BAD_OBSERVERS = [
    *BREAKING,
    returns_garbage,
    returns_nothing,
    never_calls,
    returns_the_coroutine,
    calls_twice,
    calls_in_a_child_task,
    swallows_errors,
]
may_warn = pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")


@may_warn
@pytest.mark.parametrize("observer", BAD_OBSERVERS)
@each_hook
async def test_an_observer_cannot_break_a_run(hook: str, observer: Any) -> None:
    log: list[str] = []
    outer: list[Any] = []
    model = ScriptedModel(ONE_CALL)

    async def outside(ctx: Any, call_next: Any) -> Any:
        outer.append(await call_next())
        return outer[-1]

    agent = agent_with(model)
    agent.use(**{hook: outside}, phase="observe").use(**{hook: observer}, phase="observe")
    agent.use(**{hook: logging_layer("inner", log)})
    async with agent, agent.session() as session:
        with at_most():
            result = await session.run("go")

        assert result.output == "done"
        assert len(model.requests) == 2
        assert log == ["inner before", "inner after"] * (2 if hook == "model" else 1)
        assert len(outer) == (2 if hook == "model" else 1)
        assert results_of(session)["c1"].text == "x"
        assert last_of(session).status == "completed"
    gc.collect(1)


@pytest.mark.parametrize("observer", BREAKING)
@each_hook
async def test_the_exception_of_an_observer_is_logged_with_its_name(
    hook: str, observer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    agent = agent_with(ONE_CALL).use(**{hook: observer}, phase="observe")
    with caplog.at_level(logging.DEBUG), at_most():
        await agent.run("go")

    told = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert told
    assert all(record.name.startswith("agentx") for record in told)
    assert any(f"function.{observer.__name__}" in record.getMessage() for record in told)
    assert any("the observer broke" in record.getMessage() or record.exc_info for record in told)


@each_hook
async def test_the_exception_of_an_observer_is_counted_as_an_event(hook: str) -> None:
    agent = agent_with(ONE_CALL).use(**{hook: raises_after}, phase="observe")
    async with agent, agent.session() as session:
        await session.run("go")

        errors: list[Any] = [event for event in session.events if event.kind == "error"]
        assert len(errors) == (2 if hook == "model" else 1)
        assert {event.by for event in errors} == {"function.raises_after"}


@pytest.mark.parametrize("observer", [*BAD_OBSERVERS, converts_errors])
@pytest.mark.parametrize("hook", ["turn", "model"])
@may_warn
async def test_the_error_of_the_inner_call_wins_whatever_an_observer_does_with_it(hook: str, observer: Any) -> None:
    error = ValueError("inner")
    agent = agent_with([error]).use(**{hook: observer}, phase="observe")
    async with agent, agent.session() as session:
        with at_most(), pytest.raises(ValueError) as caught:
            await session.run("go")

        assert caught.value is error
        assert last_of(session).status == "failed"
    gc.collect(1)


@pytest.mark.parametrize("observer", [*BAD_OBSERVERS, converts_errors])
@may_warn
async def test_the_failure_of_a_tool_wins_whatever_an_observer_does_with_it(observer: Any) -> None:
    @tool
    async def boom() -> str:
        raise ValueError("the tool broke")

    agent = agent_with([[call("boom")], "done"], tools=[boom]).use(tool=observer, phase="observe")
    async with agent, agent.session() as session:
        with at_most():
            result = await session.run("go")

        assert result.output == "done"
        assert results_of(session)["c1"].status == "error"
        assert "the tool broke" in results_of(session)["c1"].text
    gc.collect(1)


@pytest.mark.parametrize("observer", [swallows_errors, converts_errors, raises_after])
@each_hook
async def test_an_observer_cannot_catch_an_abort(hook: str, observer: Any) -> None:
    async def aborts(ctx: Any, call_next: Any) -> Any:
        ctx.abort("enough")

    agent = agent_with(ONE_CALL).use(**{hook: observer}, phase="observe").use(**{hook: aborts})
    with at_most(), pytest.raises(TurnAborted, match="enough"):
        await agent.run("go")


@each_cancel
@pytest.mark.parametrize("observer", [swallows_errors, converts_errors])
@each_hook
async def test_an_observer_cannot_catch_a_cancellation(
    hook: str, observer: Any, how: str, anyio_backend_name: str
) -> None:
    started = anyio.Event()

    async def hangs(ctx: Any, call_next: Any) -> Any:
        started.set()
        await anyio.sleep(SECONDS_LONG)

    agent = agent_with(ONE_CALL).use(**{hook: observer}, phase="observe").use(**{hook: hangs})
    await cancel_after(how, anyio_backend_name, started, lambda: agent.run("go"))


@contextmanager
def a_while(seconds: float) -> Iterator[None]:
    """A time limit in a library that an observer uses."""
    with anyio.move_on_after(seconds):
        yield


async def wait_a_while(wanted: Callable[[], Any], seconds: float) -> Any:
    with anyio.fail_after(seconds):
        return await wanted()


def limited_by(limit: str, seconds: float) -> Any:
    """Return an observer that puts a time limit of its own around its inner call."""

    async def limited(ctx: Any, call_next: Any) -> Any:
        if limit == "move_on_after":
            with anyio.move_on_after(seconds):
                return await call_next()
        elif limit == "fail_after":
            with anyio.fail_after(seconds):
                return await call_next()
        elif limit == "cancelled scope":
            with anyio.CancelScope() as scope:
                scope.cancel()
                return await call_next()
        elif limit == "task group":
            async with anyio.create_task_group() as group:
                group.start_soon(fails)
                return await call_next()
        elif limit == "asyncio.timeout":
            async with asyncio.timeout(seconds):
                return await call_next()
        elif limit == "asyncio.wait_for":
            return await asyncio.wait_for(call_next(), seconds)
        return None

    async def fails() -> None:
        await anyio.sleep(seconds)
        raise RuntimeError("the observer's side task broke")

    return limited


LIMITS = ["move_on_after", "fail_after", "cancelled scope", "task group", "asyncio.timeout", "asyncio.wait_for"]
HELPERS = ["helper context", "helper function"]


def helped(limit: str, seconds: float) -> Any:
    """Return an observer whose own code names no time limit: the limit is in what it calls."""

    async def with_context(ctx: Any, call_next: Any) -> Any:
        with a_while(seconds):
            return await call_next()

    async def with_function(ctx: Any, call_next: Any) -> Any:
        return await wait_a_while(call_next, seconds)

    return with_context if limit == "helper context" else with_function


each_limit = pytest.mark.parametrize("limit", LIMITS)


def skip_asyncio_on_trio(limit: str, backend: str) -> None:
    if limit.startswith("asyncio") and backend == "trio":
        pytest.skip("asyncio's own limits are for asyncio")


@each_limit
@each_hook
async def test_an_observers_own_time_limit_does_not_limit_the_call(
    hook: str, limit: str, anyio_backend_name: str
) -> None:
    skip_asyncio_on_trio(limit, anyio_backend_name)
    log: list[str] = []

    async def slow(ctx: Any, call_next: Any) -> Any:
        log.append("begins")
        await anyio.sleep(0.03)
        result = await call_next()
        log.append("ends")
        return result

    agent = agent_with(ONE_CALL).use(**{hook: limited_by(limit, 0.01)}, phase="observe").use(**{hook: slow})
    async with agent, agent.session() as session:
        with at_most():
            result = await session.run("go")

        assert result.output == "done"
        assert log == ["begins", "ends"] * (2 if hook == "model" else 1)
        assert results_of(session)["c1"].text == "x"
        assert last_of(session).status == "completed"


@pytest.mark.parametrize("limit", HELPERS)
@each_hook
async def test_an_observers_time_limit_does_not_limit_the_call_if_a_helper_sets_it(hook: str, limit: str) -> None:
    log: list[str] = []

    async def slow(ctx: Any, call_next: Any) -> Any:
        log.append("begins")
        await anyio.sleep(0.03)
        result = await call_next()
        log.append("ends")
        return result

    agent = agent_with(ONE_CALL).use(**{hook: helped(limit, 0.01)}, phase="observe").use(**{hook: slow})
    async with agent, agent.session() as session:
        with at_most():
            result = await session.run("go")

        assert result.output == "done"
        assert log == ["begins", "ends"] * (2 if hook == "model" else 1)
        assert last_of(session).status == "completed"


@each_limit
async def test_an_observers_time_limit_does_not_limit_a_model_that_streams(limit: str, anyio_backend_name: str) -> None:
    skip_asyncio_on_trio(limit, anyio_backend_name)
    model = SlowModel([(0.0, "one "), (0.03, "two "), (0.03, "three")])
    agent = agent_with(model).use(model=limited_by(limit, 0.01), phase="observe")
    async with agent, agent.session() as session:
        with at_most():
            async with session.stream("go") as stream:
                pieces = [piece async for piece in stream.text]

    assert pieces == ["one ", "two ", "three"]
    assert model.log == ["call 0 answered"]


@each_cancel
@each_limit
async def test_a_callers_cancellation_passes_an_observer_with_a_time_limit(
    limit: str, how: str, anyio_backend_name: str
) -> None:
    skip_asyncio_on_trio(limit, anyio_backend_name)
    log: list[str] = []
    started = anyio.Event()

    async def hangs(ctx: Any, call_next: Any) -> Any:
        try:
            await anyio.sleep(0.03)
            started.set()
            await anyio.sleep(SECONDS_LONG)
        finally:
            log.append("inner after")

    agent = agent_with(["never"]).use(model=limited_by(limit, 0.01), phase="observe").use(model=hangs)
    async with agent, agent.session() as session:
        await cancel_after(how, anyio_backend_name, started, lambda: session.run("go"))
        assert log == ["inner after"]
        assert last_of(session).status == "cancelled"


async def test_an_abort_passes_an_observer_with_a_time_limit() -> None:
    async def aborts(ctx: Any, call_next: Any) -> Any:
        await anyio.sleep(0.03)
        ctx.abort("enough")

    agent = agent_with(["never"]).use(model=limited_by("move_on_after", 0.01), phase="observe").use(model=aborts)
    with at_most(), pytest.raises(TurnAborted, match="enough"):
        await agent.run("go")


span: contextvars.ContextVar[str] = contextvars.ContextVar("span", default="none")


@each_hook
async def test_a_context_variable_that_an_observer_sets_is_seen_inside(hook: str) -> None:
    seen: list[str] = []

    async def opens_span(ctx: Any, call_next: Any) -> Any:
        token = span.set(hook)
        try:
            return await call_next()
        finally:
            span.reset(token)

    async def inner(ctx: Any, call_next: Any) -> Any:
        seen.append(span.get())
        return await call_next()

    agent = agent_with(ONE_CALL).use(**{hook: opens_span}, phase="observe").use(**{hook: inner})
    with at_most():
        assert (await agent.run("go")).output == "done"

    assert set(seen) == {hook}
    assert span.get() == "none"


async def test_a_context_variable_of_an_observer_that_shields_its_after_part_is_seen_inside() -> None:
    seen: list[str] = []
    log: list[str] = []

    async def opens_span(ctx: Any, call_next: Any) -> Any:
        token = span.set("mine")
        try:
            return await call_next()
        finally:
            span.reset(token)
            with ctx.shield(1):
                await anyio.lowlevel.checkpoint()
                log.append("flushed")

    @tool
    async def looks() -> str:
        seen.append(span.get())
        return "x"

    agent = agent_with([[call("looks")], "done"], tools=[looks]).use(opens_span, phase="observe")
    with at_most():
        assert (await agent.run("go")).output == "done"

    assert seen == ["mine"]
    assert log == ["flushed"]


@tool(deferred=True)
async def later() -> str:
    """Announced by name only."""
    return "later"


@tool
async def extra() -> str:
    return "extra"


def _set_input(ctx: Any) -> None:
    ctx.input = "something else"


def _set_request(ctx: Any) -> None:
    ctx.request = attrs.evolve(ctx.request, instructions="be rude")


def _set_args(ctx: Any) -> None:
    ctx.args = {"text": "changed"}


AGENT_VERBS: dict[str, Callable[[Any], Any]] = {
    "register_tool": lambda ctx: ctx.register_tool(extra),
    "unregister_tool": lambda ctx: ctx.unregister_tool("echo"),
    "set_tools": lambda ctx: ctx.set_tools("the application", []),
    "add_instructions": lambda ctx: ctx.add_instructions("be rude"),
    "ledger.limit": lambda ctx: ctx.ledger.limit(Limit("requests", 0)),
}
TURN_VERBS: dict[str, Callable[[Any], Any]] = {
    **AGENT_VERBS,
    "stop": lambda ctx: ctx.stop("enough"),
    "abort": lambda ctx: ctx.abort("enough"),
    "send_back": lambda ctx: ctx.send_back("do better"),
    "input": _set_input,
    "history.replace": lambda ctx: ctx.history.replace(1, "a summary"),
    "history.drop": lambda ctx: ctx.history.drop(1),
    "history.clear_results": lambda ctx: ctx.history.clear_results(["c0"], "gone"),
}
MODEL_VERBS: dict[str, Callable[[Any], Any]] = {
    "request": _set_request,
    "set_model": lambda ctx: ctx.set_model(ScriptedModel(["other", "other"])),
    "set_settings": lambda ctx: ctx.set_settings(temperature=1.0),
    "add_context": lambda ctx: ctx.add_context("be rude"),
    "hide_tools": lambda ctx: ctx.hide_tools("echo"),
    "load_tools": lambda ctx: ctx.load_tools("later"),
    "transform_deltas": lambda ctx: ctx.transform_deltas(object),
}
TOOL_VERBS: dict[str, Callable[[Any], Any]] = {"args": _set_args, "deny": lambda ctx: ctx.deny("no")}
VERBS = [
    *[("turn", name, verb) for name, verb in TURN_VERBS.items()],
    *[("model", name, verb) for name, verb in {**TURN_VERBS, **MODEL_VERBS}.items()],
    *[("tool", name, verb) for name, verb in {**TURN_VERBS, **TOOL_VERBS}.items()],
]


async def _two_turns(agent: Agent[Any, str]) -> tuple[list[str], list[Any], list[str]]:
    """Return what a user and the model see of two turns."""
    async with agent, agent.session() as session:
        with at_most():
            results = [await session.run("one"), await session.run("two")]
        check_history(session.history)
        seen = [f"{result.status} {result.text}" for result in results]
        return seen, [attrs.asdict(message) for message in session.history], kinds_of(session)


@pytest.mark.parametrize(("hook", "name", "verb"), VERBS, ids=[f"{hook}-{name}" for hook, name, _ in VERBS])
async def test_verbs_raise_in_an_observer_and_the_run_is_unharmed(hook: str, name: str, verb: Any) -> None:
    script = [*ONE_CALL, *ONE_CALL]
    plain = ScriptedModel(script)
    want = await _two_turns(agent_with(plain, tools=[echo, later]))

    for caught in (True, False):
        raised: list[BaseException] = []
        watched = ScriptedModel(script)

        async def meddles(ctx: Any, call_next: Any) -> Any:
            try:
                verb(ctx)
            except Exception as error:
                raised.append(error)  # noqa: B023  # used in this round only
                if not caught:  # noqa: B023
                    raise
            return await call_next()

        got = await _two_turns(agent_with(watched, tools=[echo, later]).use(**{hook: meddles}, phase="observe"))

        assert raised
        assert all(isinstance(error, HookError) for error in raised)
        assert all("function.meddles" in str(error) for error in raised)
        assert got[:2] == want[:2]
        assert [kind for kind in got[2] if kind != "error"] == want[2]
        assert [request.tools for request in watched.requests] == [request.tools for request in plain.requests]
        assert [request.instructions for request in watched.requests] == [
            request.instructions for request in plain.requests
        ]


@each_lifetime
@pytest.mark.parametrize(("name", "verb"), AGENT_VERBS.items(), ids=AGENT_VERBS)
async def test_verbs_raise_in_an_observer_of_a_lifetime(hook: str, name: str, verb: Any) -> None:
    model = ScriptedModel(ONE_CALL)
    raised: list[BaseException] = []

    async def meddles(ctx: Any, call_next: Any) -> Any:
        try:
            verb(ctx)
        except Exception as error:
            raised.append(error)
        await call_next()

    agent = agent_with(model).use(**{hook: meddles}, phase="observe")
    with at_most():
        assert (await agent.run("go")).output == "done"

    assert [type(error) for error in raised] == [HookError]
    assert [spec.name for spec in model.requests[0].tools] == ["echo"]
    assert model.requests[0].instructions == ""


@pytest.mark.parametrize("observer", [raises_before, raises_after, never_calls, returns_garbage, exits_before])
@each_lifetime
async def test_an_observer_cannot_break_a_lifetime(hook: str, observer: Any) -> None:
    log: list[str] = []
    agent = agent_with(["hello"]).use(**{hook: observer}, phase="observe")
    agent.use(**{hook: logging_layer("inner", log)})
    with at_most():
        async with agent, agent.session() as session:
            assert log == ["inner before"]
            assert (await session.run("go")).output == "hello"
    assert log == ["inner before", "inner after"]


# Rule 7: gate and verify fail closed


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("phase", ["gate", "verify"])
@each_hook
async def test_a_guard_that_raises_aborts_the_turn(hook: str, phase: str, when: str) -> None:
    error = KeyError("no such rule")
    log: list[str] = []

    async def guard(ctx: Any, call_next: Any) -> Any:
        if when == "after":
            await call_next()
        raise error

    agent = agent_with(ONE_CALL).use(**{hook: guard}, phase=phase)
    agent.use(**{hook: logging_layer("inner", log)}, phase=phase)
    async with agent, agent.session() as session:
        with at_most(), pytest.raises(TurnAborted) as caught:
            await session.run("go")

        assert caught.value.by == "function.guard"
        assert "no such rule" in whole_text(caught.value)
        assert log == ([] if when == "before" else ["inner before", "inner after"])
        assert last_of(session).status == "aborted"
        if hook == "tool":
            assert results_of(session)["c1"].is_error


@pytest.mark.parametrize("phase", ["gate", "verify"])
@each_hook
async def test_a_failing_guard_cannot_be_caught_by_an_outer_layer(hook: str, phase: str) -> None:
    async def rescues(ctx: Any, call_next: Any) -> Any:
        try:
            return await call_next()
        except Exception:
            return fake_result(hook, ctx)

    async def guard(ctx: Any, call_next: Any) -> Any:
        raise ValueError("broken guard")

    agent = agent_with(ONE_CALL).use(**{hook: rescues}, phase="gate").use(**{hook: guard}, phase=phase)
    with at_most(), pytest.raises(TurnAborted, match="broken guard") as caught:
        await agent.run("go")
    assert caught.value.by == "function.guard"


@pytest.mark.parametrize("phase", ["gate", "verify"])
@pytest.mark.parametrize("hook", ["turn", "model"])
async def test_an_error_that_came_out_of_call_next_passes_a_guard_unchanged(hook: str, phase: str) -> None:
    error = ValueError("the model broke")

    async def guard(ctx: Any, call_next: Any) -> Any:
        try:
            return await call_next()
        except ValueError:
            raise

    agent = agent_with([error]).use(**{hook: guard}, phase=phase)
    async with agent, agent.session() as session:
        with at_most(), pytest.raises(ValueError) as caught:
            await session.run("go")
        assert caught.value is error
        assert last_of(session).status == "failed"


@pytest.mark.parametrize("phase", ["gate", "verify"])
async def test_the_failure_of_a_tool_passes_a_guard_and_the_model_goes_on(phase: str) -> None:
    @tool
    async def boom() -> str:
        raise ValueError("the tool broke")

    async def guard(ctx: Any, call_next: Any) -> Any:
        return await call_next()

    agent = agent_with([[call("boom")], "done"], tools=[boom]).use(tool=guard, phase=phase)
    async with agent, agent.session() as session:
        assert (await session.run("go")).output == "done"
        assert results_of(session)["c1"].status == "error"


@pytest.mark.parametrize("second", ["fails", "succeeds"])
async def test_an_earlier_error_of_a_repeating_guards_call_next_passes_unchanged_too(second: str) -> None:
    first = ModelError("down")

    @hookimpl(repeats=True)
    async def guard(ctx: Any, call_next: Any) -> Any:
        try:
            return await call_next()
        except ModelError as error:
            with contextlib.suppress(ModelError):
                await call_next()
            raise error

    agent = agent_with([first, ModelError("still down") if second == "fails" else "up"]).use(model=guard, phase="gate")
    with at_most(), pytest.raises(ModelError) as caught:
        await agent.run("go")
    assert caught.value is first


@each_hook
async def test_an_error_of_its_own_that_a_guard_raises_about_an_inner_error_aborts(hook: str) -> None:
    async def guard(ctx: Any, call_next: Any) -> Any:
        try:
            return await call_next()
        except Exception as error:
            raise KeyError("cannot judge that") from error

    async def breaks(ctx: Any, call_next: Any) -> Any:
        raise ValueError("inner")

    agent = agent_with(ONE_CALL).use(**{hook: guard}, phase="gate").use(**{hook: breaks})
    with at_most(), pytest.raises(TurnAborted) as caught:
        await agent.run("go")
    assert caught.value.by == "function.guard"


@each_hook
async def test_a_guard_that_exits_aborts_the_turn(hook: str) -> None:
    async def guard(ctx: Any, call_next: Any) -> Any:
        raise SystemExit(3)

    agent = agent_with(ONE_CALL).use(**{hook: guard}, phase="gate")
    async with agent, agent.session() as session:
        with at_most(), pytest.raises(TurnAborted) as caught:
            await session.run("go")
        assert caught.value.by == "function.guard"


class Moody(GuardBase):
    """A guard that fails in the hook and at the moment that it is told."""

    id: ClassVar = "guard.moody"
    where: str = "model"
    when: str = "before"

    async def judge(self, hook: str, call_next: Any) -> Any:
        if self.where == hook and self.when == "before":
            raise ValueError("broken guard")
        result = await call_next()
        if self.where == hook and self.when == "after":
            raise ValueError("broken guard")
        return result

    async def turn(self, ctx: Any, call_next: Any) -> Any:
        return await self.judge("turn", call_next)

    async def model(self, ctx: Any, call_next: Any) -> Any:
        return await self.judge("model", call_next)

    async def tool(self, ctx: Any, call_next: Any) -> Any:
        return await self.judge("tool", call_next)


class MoodyVerifier(Moody):
    id: ClassVar = "guard.moody_verifier"
    phase: ClassVar = "verify"


def on_error(plugin_id: str, value: str) -> dict[str, Any]:
    kind, name = plugin_id.split(".")
    return {"plugins": {kind: {name: {"on_error": value}}}}


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("guard", [Moody, MoodyVerifier])
@each_hook
async def test_on_error_open_in_the_configuration_lets_the_call_through_once(
    hook: str, guard: type[Moody], when: str, caplog: pytest.LogCaptureFixture
) -> None:
    ran: list[str] = []
    model = ScriptedModel([[call("count")], "done"])

    @tool
    async def count() -> str:
        ran.append("x")
        return "counted"

    agent = agent_with(model, tools=[count], config=on_error(guard.id, "open")).use(guard(where=hook, when=when))
    async with agent, agent.session() as session:
        with at_most(), caplog.at_level(logging.DEBUG):
            result = await session.run("go")

        assert result.output == "done"
        assert ran == ["x"]
        assert len(model.requests) == 2
        assert results_of(session)["c1"].text == "counted"
        assert any(guard.id in record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING)


@each_hook
async def test_on_error_closed_in_the_configuration_is_what_holds_without_it(hook: str) -> None:
    for config in ({}, on_error("guard.moody", "closed")):
        agent = agent_with(ONE_CALL, config=config).use(Moody(where=hook))
        with at_most(), pytest.raises(TurnAborted, match="broken guard"):
            await agent.run("go")


async def test_on_error_is_the_users_setting_and_not_the_plugins() -> None:
    try:

        class Lenient(Moody):
            id: ClassVar = "guard.lenient"
            on_error: ClassVar = "open"

    except AgentxError:
        return  # refusing it is as good

    with at_most(), pytest.raises(AgentxError):
        await agent_with(ONE_CALL).use(Lenient()).run("go")


async def test_on_error_open_does_not_weaken_abort_stop_and_deny() -> None:
    class Strict(GuardBase):
        id: ClassVar = "guard.strict"
        verb: str = "abort"

        async def tool(self, ctx: Any, call_next: Any) -> Any:
            if self.verb == "abort":
                ctx.abort("enough")
            if self.verb == "stop":
                ctx.stop("enough")
            if self.verb == "deny":
                return ctx.deny("enough")
            return await call_next()

    def agent(verb: str) -> Agent[Any, str]:
        return agent_with(ONE_CALL, config=on_error("guard.strict", "open")).use(Strict(verb=verb))

    with at_most():
        with pytest.raises(TurnAborted, match="enough"):
            await agent("abort").run("go")
        assert (await agent("stop").run("go")).status == "stopped"
        opened = agent("deny")
        async with opened, opened.session() as session:
            await session.run("go")
            assert results_of(session)["c1"].status == "denied"


@pytest.mark.parametrize("phase", ["prepare", "redact", "route", "cache", "retry", "attempt"])
@pytest.mark.parametrize("hook", INNER_HOOKS)
async def test_in_other_phases_an_exception_propagates_as_it_is(hook: str, phase: str) -> None:
    if hook == "turn" and phase not in ("prepare", "redact"):
        pytest.skip("route and further in exist for model and tool only")
    error = KeyError("broken layer")

    async def breaks(ctx: Any, call_next: Any) -> Any:
        raise error

    agent = agent_with(ONE_CALL).use(**{hook: breaks}, phase=phase)
    async with agent, agent.session() as session:
        with at_most(), pytest.raises(KeyError) as caught:
            await session.run("go")
        assert caught.value is error
        assert last_of(session).status == "failed"


# Rule 8: what a tool's failure becomes


@tool
async def boom(text: str = "x") -> str:
    raise ValueError(f"boom {text}")


@tool
def sync_boom() -> str:
    raise ValueError("boom x")


@tool(timeout=0.02)
async def too_slow() -> str:
    await anyio.sleep(SECONDS_LONG)
    return "never"


@tool
async def needs_number(n: int) -> str:
    return str(n)


FAILURES = [
    (boom, call("boom"), ValueError),
    (sync_boom, call("sync_boom"), ValueError),
    (too_slow, call("too_slow"), TimeoutError),
    (needs_number, call("needs_number", n="many"), Exception),
    (needs_number, call("needs_number"), Exception),
]


@pytest.mark.parametrize(("failing", "its_call", "cause"), FAILURES, ids=lambda value: getattr(value, "name", ""))
async def test_a_tools_failure_reaches_its_layers_as_tool_failed_with_the_cause(
    failing: Any, its_call: Any, cause: type[Exception]
) -> None:
    seen: list[ToolFailed] = []

    async def watches(ctx: Any, call_next: Any) -> Any:
        try:
            return await call_next()
        except ToolFailed as error:
            seen.append(error)
            raise

    agent = agent_with([[its_call, call("echo", text="fine")], "done"], tools=[failing, echo]).use(tool=watches)
    async with agent, agent.session() as session:
        with at_most():
            result = await session.run("go")

        assert result.output == "done"
        assert len(seen) == 1
        assert isinstance(seen[0].__cause__, cause)
        assert seen[0].tool == failing.name
        found = results_of(session)
        assert found["c1"].status == "error"
        assert found["c1"].text
        assert (found["c2"].status, found["c2"].text) == ("ok", "fine")
        assert last_of(session).status == "completed"


async def test_a_tool_layer_may_answer_for_a_tool_that_failed() -> None:
    async def falls_back(ctx: Any, call_next: Any) -> Any:
        try:
            return await call_next()
        except ToolFailed as error:
            return tool_result(ctx, f"instead of {error.__cause__}")

    agent = agent_with([[call("boom")], "done"], tools=[boom]).use(tool=falls_back)
    async with agent, agent.session() as session:
        await session.run("go")
        found = results_of(session)["c1"]
        assert (found.status, found.text) == ("ok", "instead of boom x")


async def test_a_tool_layer_may_try_a_failed_tool_again() -> None:
    tries: list[int] = []

    @tool
    async def flaky() -> str:
        tries.append(len(tries))
        if len(tries) < 3:
            raise ConnectionError("not yet")
        return "at last"

    @hookimpl(repeats=True)
    async def retry(ctx: Any, call_next: Any) -> Any:
        for _ in range(2):
            try:
                return await call_next()
            except ToolFailed as error:
                assert isinstance(error.__cause__, ConnectionError)
        return await call_next()

    agent = agent_with([[call("flaky")], "done"], tools=[flaky]).use(tool=retry, phase="retry")
    async with agent, agent.session() as session:
        with at_most():
            await session.run("go")
        assert results_of(session)["c1"].text == "at last"
        assert kinds_of(session).count("tool.result") == 1


async def test_tool_failed_raised_by_a_layer_becomes_an_error_result_too() -> None:
    async def refuses(ctx: Any, call_next: Any) -> Any:
        raise ToolFailed("the sandbox is gone", tool=ctx.tool.name)

    agent = agent_with(ONE_CALL).use(tool=refuses)
    async with agent, agent.session() as session:
        assert (await session.run("go")).output == "done"
        assert results_of(session)["c1"].status == "error"
        assert "the sandbox is gone" in results_of(session)["c1"].text


async def test_another_exception_of_a_tool_layer_is_not_an_error_result_but_every_call_has_one() -> None:
    error = ValueError("the layer broke")

    async def breaks(ctx: Any, call_next: Any) -> Any:
        result = await call_next()
        if ctx.call_id == "c2":
            raise error
        await anyio.sleep(SECONDS_LONG)
        return result

    calls = [call("echo", text="a"), call("echo", text="b"), call("echo", text="c")]
    agent = agent_with([calls, "after"]).use(tool=breaks)
    async with agent, agent.session() as session:
        with at_most(), pytest.raises(ValueError) as caught:
            await session.run("go")

        assert caught.value is error
        assert set(results_of(session)) == {"c1", "c2", "c3"}
        assert last_of(session).status == "failed"
        assert (await session.run("and now?")).output == "after"


@pytest.mark.parametrize(
    "bad",
    [
        call("no_such_tool", text="x"),
        call("echo", '{"text": "x'),
        call("echo", "[1, 2]"),
        call("echo", '"x"'),
        call("echo", "7"),
    ],
    ids=["unknown tool", "broken JSON", "list", "string", "number"],
)
async def test_unknown_tools_and_unparsable_arguments_do_not_enter_the_onion(bad: Any) -> None:
    entered: list[str] = []

    async def watches(ctx: Any, call_next: Any) -> Any:
        entered.append(ctx.call_id)
        return await call_next()

    agent = agent_with([[bad, call("echo", text="fine")], "done"]).use(tool=watches)
    async with agent, agent.session() as session:
        with at_most():
            assert (await session.run("go")).output == "done"
        assert entered == ["c2"]
        assert results_of(session)["c1"].status == "error"
        assert results_of(session)["c2"].text == "fine"


async def test_one_of_several_parallel_tools_raises_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    finished: list[str] = []
    model = ScriptedModel([[call("boom"), call("slow")], "done"])

    @tool
    async def slow() -> str:
        await anyio.sleep(0.05)
        finished.append("slow")
        return "ok"

    agent = agent_with(model, tools=[boom, slow])
    async with agent, agent.session() as session:
        before = tasks_now()
        with at_most():
            await session.run("go")
        assert tasks_now() == before

        found = results_of(session)
        assert found["c1"].status == "error"
        assert (found["c2"].status, found["c2"].text) == ("ok", "ok")
        assert [part.call_id for part in model.requests[1].messages[-1].parts] == ["c1", "c2"]  # type: ignore[attr-defined]
    assert finished == ["slow"]
    assert "never retrieved" not in caplog.text


def run_guarded(main: Any, backend: str) -> None:
    """Run an event loop of its own, so that what escapes from it fails the test and does not end pytest."""

    async def limited() -> None:
        with at_most():
            await main()

    try:
        anyio.run(limited, backend=backend)
    except (SystemExit, KeyboardInterrupt) as error:
        pytest.fail(f"{error!r} broke the event loop")


def leaving_tool(kind: str, error: type[BaseException]) -> Any:
    """Return a tool that ends with `error`, as a coroutine or in a thread."""

    async def leave() -> str:
        await anyio.sleep(0.01)
        raise error("leaving")

    def leave_thread() -> str:
        raise error("leaving")

    return tool(leave if kind == "async" else leave_thread, name="leave")


@pytest.mark.parametrize("kind", ["async", "sync"])
@pytest.mark.parametrize("siblings", [0, 2])
def test_a_system_exit_in_a_tool_is_its_failure(anyio_backend: str, siblings: int, kind: str) -> None:
    seen: list[Any] = []

    async def watches(ctx: Any, call_next: Any) -> Any:
        try:
            return await call_next()
        except ToolFailed as error:
            seen.append(error.__cause__)
            raise

    async def main() -> None:
        script = [[call("leave"), *[call("echo", text="fine")] * siblings], "done"]
        agent = agent_with(script, tools=[leaving_tool(kind, SystemExit), echo]).use(tool=watches)
        async with agent, agent.session() as session:
            assert (await session.run("go")).output == "done"
            found = results_of(session)
            assert found["c1"].status == "error"
            assert all(found[f"c{number + 2}"].text == "fine" for number in range(siblings))

    run_guarded(main, anyio_backend)
    assert [type(cause) for cause in seen] == [SystemExit]


@pytest.mark.parametrize("when", ["before", "after"])
@each_hook
def test_a_system_exit_in_a_layer_is_its_failure(anyio_backend: str, hook: str, when: str) -> None:
    async def exits(ctx: Any, call_next: Any) -> Any:
        if when == "after":
            await call_next()
        raise SystemExit(3)

    async def main() -> None:
        script = [[call("echo", text="x"), call("echo", text="y")], "done", "later"]
        agent = agent_with(script).use(**{hook: exits})
        async with agent, agent.session() as session:
            with pytest.raises(Exception) as caught:  # whichever, but no SystemExit
                await session.run("go")
            assert "SystemExit" in whole_text(caught.value)
            assert "function.exits" in whole_text(caught.value)
            assert last_of(session).status == "failed"

    run_guarded(main, anyio_backend)


@pytest.mark.parametrize("kind", ["async", "sync"])
@pytest.mark.parametrize("siblings", [0, 2])
def test_a_keyboard_interrupt_in_a_tool_cancels_the_turn_and_leaves_ungrouped(
    anyio_backend: str, siblings: int, kind: str
) -> None:
    log: list[str] = []

    @tool
    async def hangs() -> str:
        try:
            await anyio.sleep(SECONDS_LONG)
        finally:
            log.append("sibling ended")
        return "never"

    async def main() -> None:
        script = [[call("leave"), *[call("hangs")] * siblings], "after"]
        agent = agent_with(script, tools=[leaving_tool(kind, KeyboardInterrupt), hangs])
        async with agent, agent.session() as session:
            with pytest.raises(KeyboardInterrupt):
                await session.run("go")
            assert set(results_of(session)) == {f"c{number + 1}" for number in range(siblings + 1)}
            assert last_of(session).status == "cancelled"
            assert (await session.run("and now?")).output == "after"

    run_guarded(main, anyio_backend)
    assert len(log) in ((0,) if not siblings else range(siblings + 1))


@each_hook
def test_a_keyboard_interrupt_in_a_layer_cancels_the_turn_and_leaves_ungrouped(anyio_backend: str, hook: str) -> None:
    log: list[str] = []

    async def interrupted(ctx: Any, call_next: Any) -> Any:
        await call_next()
        raise KeyboardInterrupt

    async def main() -> None:
        script = [[call("echo", text="x"), call("echo", text="y")], "done"]
        agent = agent_with(script).use(**{hook: logging_layer("outer", log)}).use(**{hook: interrupted})
        async with agent, agent.session() as session:
            with pytest.raises(KeyboardInterrupt):
                await session.run("go")
            results_of(session)
            assert last_of(session).status == "cancelled"

    run_guarded(main, anyio_backend)
    assert log.count("outer before") == log.count("outer after") >= 1


@each_hook
def test_a_keyboard_interrupt_in_an_observer_is_not_one_of_its_failures(anyio_backend: str, hook: str) -> None:
    async def interrupted(ctx: Any, call_next: Any) -> Any:
        raise KeyboardInterrupt

    async def main() -> None:
        agent = agent_with(ONE_CALL).use(**{hook: interrupted}, phase="observe")
        async with agent, agent.session() as session:
            with pytest.raises(KeyboardInterrupt):
                await session.run("go")
            results_of(session)
            assert last_of(session).status == "cancelled"

    run_guarded(main, anyio_backend)


@pytest.mark.parametrize("siblings", [0, 1])
@each_hook
def test_a_keyboard_interrupt_cannot_be_swallowed_by_a_layer(anyio_backend: str, hook: str, siblings: int) -> None:
    async def swallows(ctx: Any, call_next: Any) -> Any:
        try:
            return await call_next()
        except BaseException:
            return fake_result(hook, ctx)

    async def interrupts(ctx: Any, call_next: Any) -> Any:
        raise KeyboardInterrupt

    async def main() -> None:
        script = [[call("echo", text="x"), *[call("echo", text="y")] * siblings], "done"]
        agent = agent_with(script).use(**{hook: swallows}).use(**{hook: interrupts})
        async with agent, agent.session() as session:
            with pytest.raises(KeyboardInterrupt):
                await session.run("go")
            results_of(session)
            assert last_of(session).status == "cancelled"

    run_guarded(main, anyio_backend)


# Rule 9: groups, tracebacks and the note


async def in_a_group(ctx: Any, call_next: Any) -> Any:
    async with anyio.create_task_group() as group:
        group.start_soon(anyio.lowlevel.checkpoint)
        return await call_next()


async def in_two_groups(ctx: Any, call_next: Any) -> Any:
    async with anyio.create_task_group(), anyio.create_task_group():
        return await call_next()


async def in_a_child_task(ctx: Any, call_next: Any) -> Any:
    results: list[Any] = []

    async def child() -> None:
        results.append(await call_next())

    async with anyio.create_task_group() as group:
        group.start_soon(child)
    return results[0]


GROUPS = [in_a_group, in_two_groups, in_a_child_task]


@pytest.mark.parametrize("grouping", GROUPS)
@pytest.mark.parametrize("hook", ["turn", "model"])
async def test_a_group_with_one_exception_is_collapsed_to_it(hook: str, grouping: Any) -> None:
    error = ValueError("inner")
    seen: list[BaseException] = []

    async def outer(ctx: Any, call_next: Any) -> Any:
        try:
            return await call_next()
        except BaseException as caught:
            seen.append(caught)
            raise

    agent = agent_with([error]).use(**{hook: outer}).use(**{hook: grouping})
    with at_most(), pytest.raises(ValueError) as caught:
        await agent.run("go")

    assert caught.value is error
    assert seen == [error]


@pytest.mark.parametrize("grouping", GROUPS)
async def test_a_group_around_a_tool_does_not_hide_that_the_tool_failed(grouping: Any) -> None:
    seen: list[BaseException] = []

    async def outer(ctx: Any, call_next: Any) -> Any:
        try:
            return await call_next()
        except ToolFailed as caught:
            seen.append(caught)
            raise

    agent = agent_with([[call("boom")], "done"], tools=[boom]).use(tool=outer).use(tool=grouping)
    async with agent, agent.session() as session:
        with at_most():
            assert (await session.run("go")).output == "done"
        assert results_of(session)["c1"].status == "error"
    assert len(seen) == 1


@pytest.mark.parametrize("grouping", GROUPS)
@each_hook
async def test_a_group_around_a_result_changes_nothing(hook: str, grouping: Any) -> None:
    with at_most():
        assert (await agent_with(ONE_CALL).use(**{hook: grouping}).run("go")).output == "done"


@pytest.mark.parametrize("grouping", GROUPS)
@each_cancel
@each_hook
async def test_a_cancellation_and_an_abort_come_out_of_a_layers_group(
    hook: str, how: str, grouping: Any, anyio_backend_name: str
) -> None:
    started = anyio.Event()

    async def hangs(ctx: Any, call_next: Any) -> Any:
        started.set()
        await anyio.sleep(SECONDS_LONG)

    async def aborts(ctx: Any, call_next: Any) -> Any:
        ctx.abort("enough")

    agent = agent_with(ONE_CALL).use(**{hook: grouping}).use(**{hook: hangs})
    await cancel_after(how, anyio_backend_name, started, lambda: agent.run("go"))
    with at_most(), pytest.raises(TurnAborted, match="enough"):
        await agent_with(ONE_CALL).use(**{hook: grouping}).use(**{hook: aborts}).run("go")


async def test_a_group_with_two_exceptions_stays_a_group() -> None:
    async def two(ctx: Any, call_next: Any) -> Any:
        async def fails(error: Exception) -> None:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.01)
            raise error

        async with anyio.create_task_group() as group:
            group.start_soon(fails, ValueError("one"))
            group.start_soon(fails, KeyError("two"))
        return await call_next()

    with at_most(), pytest.raises(ExceptionGroup) as caught:
        await agent_with(["never"]).use(model=two).run("go")
    assert {type(error) for error in caught.value.exceptions} == {ValueError, KeyError}


def files_of(error: BaseException) -> list[str]:
    files = []
    trace = error.__traceback__
    while trace is not None:
        files.append(trace.tb_frame.f_code.co_filename)
        trace = trace.tb_next
    return files


def onion_notes(error: BaseException, hook: str) -> list[str]:
    return [note for note in getattr(error, "__notes__", []) if note.startswith(f"{hook} onion: ")]


@each_hook
async def test_the_frames_of_the_onion_are_trimmed_and_a_note_says_where_the_layer_is(hook: str) -> None:
    async def outermost(ctx: Any, call_next: Any) -> Any:
        return await call_next()

    async def middle(ctx: Any, call_next: Any) -> Any:
        return await call_next()

    async def breaks(ctx: Any, call_next: Any) -> Any:
        raise ValueError("here")

    agent = agent_with(ONE_CALL)
    for layer in (outermost, middle, breaks):
        agent.use(**{hook: layer})
    with at_most(), pytest.raises(ValueError) as caught:
        await agent.run("go")

    assert onion_notes(caught.value, hook) == [
        f"{hook} onion: function.outermost > function.middle > [function.breaks] > core"
    ]
    assert [name for name in files_of(caught.value) if name.endswith("_onion.py")] == []
    assert __file__ in files_of(caught.value)


async def test_the_note_of_an_after_part_points_at_its_layer() -> None:
    async def outer(ctx: Any, call_next: Any) -> Any:
        return await call_next()

    async def breaks(ctx: Any, call_next: Any) -> Any:
        await call_next()
        raise ValueError("here")

    async def inner(ctx: Any, call_next: Any) -> Any:
        return await call_next()

    agent = agent_with(["hello"]).use(model=outer).use(model=breaks).use(model=inner)
    with at_most(), pytest.raises(ValueError) as caught:
        await agent.run("go")

    assert onion_notes(caught.value, "model") == [
        "model onion: function.outer > [function.breaks] > function.inner > core"
    ]


async def test_an_error_of_the_model_has_one_note_although_it_passed_many_layers() -> None:
    error = ModelError("down")
    agent = agent_with([error])
    for name in ("a", "b", "c"):
        agent.use(model=logging_layer(name, []))
    with at_most(), pytest.raises(ModelError) as caught:
        await agent.run("go")

    assert caught.value is error
    notes = onion_notes(error, "model")
    assert len(notes) == 1
    assert notes[0].replace("[", "").replace("]", "") == "model onion: function.a > function.b > function.c > core"
    assert [name for name in files_of(error) if name.endswith("_onion.py")] == []


async def test_each_attempt_of_a_retry_leaves_its_error_with_one_note() -> None:
    error = ModelError("down")

    @hookimpl(repeats=True)
    async def retry(ctx: Any, call_next: Any) -> Any:
        for _ in range(2):
            try:
                return await call_next()
            except ModelError:
                pass
        return await call_next()

    agent = agent_with([error, error, error]).use(model=retry)
    with at_most(), pytest.raises(ModelError) as caught:
        await agent.run("go")

    assert caught.value is error
    assert len(onion_notes(error, "model")) == 1


async def test_a_collapsed_error_has_its_note_too() -> None:
    async def breaks(ctx: Any, call_next: Any) -> Any:
        raise ValueError("here")

    agent = agent_with(["never"]).use(model=in_a_child_task).use(model=breaks)
    with at_most(), pytest.raises(ValueError) as caught:
        await agent.run("go")
    assert onion_notes(caught.value, "model") == ["model onion: function.in_a_child_task > [function.breaks] > core"]


# Rule 10: lifetimes live in host tasks


def tasks_of(log: list[int]) -> Any:
    """Return a lifetime layer that opens a task group, and writes down in which task it is entered and left."""

    async def lifetime(ctx: Any, call_next: Any) -> None:
        log.append(anyio.get_current_task().id)
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.sleep_forever)
            with anyio.CancelScope():
                await call_next()
            group.cancel_scope.cancel()
        log.append(anyio.get_current_task().id)

    return lifetime


@each_lifetime
async def test_a_lifetime_lives_in_one_task_that_is_not_its_openers(hook: str) -> None:
    log: list[int] = []
    agent = agent_with(["hello"]).use(**{hook: tasks_of(log)})
    with at_most():
        async with agent, agent.session() as session:
            await session.run("go")

    assert len(log) == 2
    assert log[0] == log[1]
    assert log[0] != anyio.get_current_task().id


@each_lifetime
async def test_two_lifetimes_close_in_the_order_they_were_opened(hook: str) -> None:
    log: list[int] = []
    agents = [agent_with(["one"]).use(**{hook: tasks_of(log)}), agent_with(["two"]).use(**{hook: tasks_of(log)})]
    if hook == "session":
        agents[1] = agents[0]
    with at_most():
        first, second = agents[0].session(id="1"), agents[1].session(id="2")
        await first.__aenter__()
        await second.__aenter__()
        await first.run("go")
        await first.__aexit__(None, None, None)
        if hook == "init":
            assert (await second.run("go")).output == "two"
        await second.__aexit__(None, None, None)

    assert len(log) == 4
    assert sorted(log[:2]) == sorted(log[2:])
    assert log[0] == log[2]


@each_lifetime
async def test_a_lifetime_opens_in_one_task_and_closes_in_another(hook: str) -> None:
    log: list[int] = []
    opened: list[Any] = []
    agent = agent_with(["hello", "again"]).use(**{hook: tasks_of(log)})

    async def opens() -> None:
        handle = agent.session()
        opened.append(await handle.__aenter__())

    async def uses() -> None:
        assert (await opened[0].run("go")).output == "hello"

    async def closes() -> None:
        await opened[0].__aexit__(None, None, None)

    with at_most():
        for step in (opens, uses, closes):
            async with anyio.create_task_group() as group:
                group.start_soon(step)

    assert len(log) == 2
    assert log[0] == log[1]


async def test_an_agent_opens_in_one_task_and_closes_in_another() -> None:
    log: list[int] = []
    agent = agent_with(["hello"]).use(init=tasks_of(log))

    async def closes() -> None:
        await agent.__aexit__(None, None, None)

    with at_most():
        async with anyio.create_task_group() as group:
            group.start_soon(agent.__aenter__)
        assert (await agent.run("go")).output == "hello"
        async with anyio.create_task_group() as group:
            group.start_soon(closes)

    assert len(log) == 2
    assert log[0] == log[1]


async def test_sessions_of_one_agent_close_in_any_order_from_other_tasks() -> None:
    log: list[int] = []
    agent = agent_with([]).use(session=tasks_of(log))
    handles = [agent.session(id=str(number)) for number in range(4)]
    with at_most():
        for handle in handles:
            await handle.__aenter__()
        async with anyio.create_task_group() as group:
            for number in (2, 0, 3, 1):
                group.start_soon(handles[number].__aexit__, None, None, None)

    assert len(log) == 8
    assert len(set(log)) == 4


async def test_a_host_outlives_the_cancelled_scope_in_which_it_was_opened() -> None:
    agent = agent_with(["hello"]).use(session=tasks_of([]))
    handle = agent.session()
    with at_most():
        with anyio.CancelScope() as scope:
            await handle.__aenter__()
            scope.cancel()
            await anyio.sleep(SECONDS_LONG)
        assert scope.cancelled_caught
        assert (await handle.run("go")).output == "hello"
        await handle.__aexit__(None, None, None)


async def test_two_handles_of_a_session_share_its_lifetime_until_the_last_one_closes() -> None:
    log: list[str] = []
    agent = agent_with([]).use(session=logging_layer("session", log))
    with at_most():
        async with agent:
            first, second = agent.session(id="7"), agent.session(id="7")
            await first.__aenter__()
            await second.__aenter__()
            await first.__aexit__(None, None, None)
            assert log == ["session before"]
            await second.__aexit__(None, None, None)
            assert log == ["session before", "session after"]


async def test_concurrent_openings_share_one_lifetime() -> None:
    log: list[str] = []

    async def slow(ctx: Any, call_next: Any) -> None:
        log.append("opens")
        await anyio.sleep(0.03)
        await call_next()
        log.append("closes")

    inside: list[str] = []
    all_inside = anyio.Event()
    agent = agent_with([]).use(init=slow)

    async def use() -> None:
        async with agent:
            inside.append("x")
            if len(inside) == 3:
                all_inside.set()
            await all_inside.wait()

    with at_most():
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(use)
    assert log == ["opens", "closes"]


async def test_the_session_closes_before_its_agent() -> None:
    log: list[str] = []
    agent = agent_with(["hello"]).use(init=logging_layer("init", log)).use(session=logging_layer("session", log))
    with at_most():
        await agent.run("go")
    assert log == ["init before", "session before", "session after", "init after"]


async def test_context_variables_of_a_lifetime_are_not_those_of_its_turns() -> None:
    seen: list[str] = []

    async def sets(ctx: Any, call_next: Any) -> None:
        span.set("lifetime")
        await call_next()

    async def looks(ctx: Any, call_next: Any) -> Any:
        seen.append(span.get())
        return await call_next()

    agent = agent_with(["hello"]).use(init=sets).use(session=sets).use(looks)
    token = span.set("caller")
    try:
        with at_most():
            await agent.run("go")
    finally:
        span.reset(token)
    assert seen == ["caller"]


@each_lifetime
async def test_an_error_before_call_next_surfaces_on_opening_and_the_outer_layers_close(hook: str) -> None:
    log: list[str] = []
    error = ConnectionError("no database")

    async def breaks(ctx: Any, call_next: Any) -> None:
        raise error

    agent = agent_with(["never"]).use(**{hook: logging_layer("outer", log)}).use(**{hook: breaks})
    agent.use(**{hook: logging_layer("inner", log)})
    with at_most():
        with pytest.raises(ConnectionError) as caught:
            async with agent, agent.session():
                log.append("body")

        assert caught.value is error
        assert log == ["outer before", "outer after"]


@each_lifetime
async def test_an_opening_that_failed_can_be_tried_again(hook: str) -> None:
    errors = [ConnectionError("not yet")]

    async def breaks_once(ctx: Any, call_next: Any) -> None:
        if errors:
            raise errors.pop()
        await call_next()

    agent = agent_with(["hello"]).use(**{hook: breaks_once})
    with at_most():
        with pytest.raises(ConnectionError):
            await agent.run("go")
        assert (await agent.run("go")).output == "hello"


@may_warn
@pytest.mark.parametrize("layer", [never_calls, returns_the_coroutine])
@each_lifetime
async def test_a_lifetime_layer_that_does_not_call_call_next_fails_the_opening(hook: str, layer: Any) -> None:
    agent = agent_with(["never"]).use(**{hook: layer})
    bodies: list[str] = []
    with at_most(), pytest.raises(AgentxError) as caught:
        async with agent, agent.session():
            bodies.append("body")

    assert bodies == []
    assert f"function.{layer.__name__}" in str(caught.value)
    assert hook in str(caught.value)
    assert place(layer) in str(caught.value)
    gc.collect(1)


@each_cancel
@each_lifetime
async def test_an_opening_that_is_cancelled_unwinds_before_it_returns(
    hook: str, how: str, anyio_backend_name: str
) -> None:
    started = anyio.Event()
    log: list[str] = []

    async def slow(ctx: Any, call_next: Any) -> None:
        log.append("before")
        try:
            if log == ["before"]:
                started.set()
                await anyio.sleep(SECONDS_LONG)
            await call_next()
        finally:
            log.append("after")

    agent = agent_with(["hello"]).use(**{hook: slow})
    await cancel_after(how, anyio_backend_name, started, lambda: agent.run("go"))
    assert log == ["before", "after"]
    with at_most():
        assert (await agent.run("go")).output == "hello"


class Lifetime:
    """A lifetime layer that writes down how its body ended, and ends as it is told."""

    def __init__(self, *, swallow: bool = False, closing_error: Exception | None = None) -> None:
        self.seen: list[Any] = []
        self.swallow = swallow
        self.closing_error = closing_error

    async def __call__(self, ctx: Any, call_next: Any) -> None:
        try:
            await call_next()
            self.seen.append("returned")
        except BaseException as error:
            self.seen.append(error)
            if not self.swallow and self.closing_error is None:
                raise
        finally:
            await anyio.sleep(0.01)
            self.seen.append(ctx.closing)
        if self.closing_error is not None:
            raise self.closing_error


@each_lifetime
@pytest.mark.parametrize("swallow", [False, True])
async def test_call_next_raises_the_very_exception_of_the_body_which_leaves_unchanged(hook: str, swallow: bool) -> None:
    error = ValueError("the body broke")
    lifetime = Lifetime(swallow=swallow)
    agent = agent_with([]).use(**{hook: lifetime.__call__})
    with at_most(), pytest.raises(ValueError) as caught:
        async with agent, agent.session():
            raise error

    assert caught.value is error
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    assert lifetime.seen == [error, "failed"]


@each_lifetime
async def test_without_an_error_call_next_returns_and_closing_says_ended(hook: str) -> None:
    lifetime = Lifetime()
    agent = agent_with([]).use(**{hook: lifetime.__call__})
    with at_most():
        async with agent, agent.session():
            pass
    assert lifetime.seen == ["returned", "ended"]


@each_cancel
@each_lifetime
async def test_if_the_body_is_cancelled_call_next_returns_and_closing_says_so(
    hook: str, how: str, anyio_backend_name: str
) -> None:
    started = anyio.Event()
    lifetime = Lifetime()
    agent = agent_with([]).use(**{hook: lifetime.__call__})

    async def body() -> None:
        async with agent, agent.session():
            started.set()
            await anyio.sleep(SECONDS_LONG)

    await cancel_after(how, anyio_backend_name, started, body)
    assert lifetime.seen == ["returned", "cancelled"]


@each_lifetime
async def test_a_turn_that_fails_in_a_body_is_the_bodys_exception(hook: str) -> None:
    error = ModelError("down")
    lifetime = Lifetime()
    agent = agent_with([error]).use(**{hook: lifetime.__call__})
    with at_most(), pytest.raises(ModelError) as caught:
        await agent.run("go")
    assert caught.value is error
    assert lifetime.seen == [error, "failed"]


@each_lifetime
async def test_a_keyboard_interrupt_of_the_body_leaves_unchanged_and_the_lifetime_closes(hook: str) -> None:
    error = KeyboardInterrupt()
    log: list[str] = []
    agent = agent_with([]).use(**{hook: logging_layer("lifetime", log)})
    with at_most(), pytest.raises(KeyboardInterrupt) as caught:
        async with agent, agent.session():
            raise error
    assert caught.value is error
    assert log == ["lifetime before", "lifetime after"]


@each_lifetime
async def test_an_error_while_closing_becomes_a_note_on_the_bodys_exception(hook: str) -> None:
    error = ValueError("the body broke")
    lifetime = Lifetime(closing_error=RuntimeError("could not save"))
    agent = agent_with([]).use(**{hook: lifetime.__call__})
    with at_most(), pytest.raises(ValueError) as caught:
        async with agent, agent.session():
            raise error

    assert caught.value is error
    notes = [note for note in error.__notes__ if "could not save" in note]
    assert len(notes) == 1
    assert "RuntimeError" in notes[0]


@each_lifetime
async def test_an_error_while_closing_is_raised_if_the_body_had_none(hook: str) -> None:
    error = RuntimeError("could not save")
    lifetime = Lifetime(closing_error=error)
    agent = agent_with([]).use(**{hook: lifetime.__call__})
    with at_most(), pytest.raises(RuntimeError) as caught:
        async with agent, agent.session():
            pass
    assert caught.value is error


@each_cancel
@each_lifetime
async def test_an_error_while_closing_does_not_replace_a_cancellation(
    hook: str, how: str, anyio_backend_name: str
) -> None:
    started = anyio.Event()
    lifetime = Lifetime(closing_error=RuntimeError("could not save"))
    agent = agent_with([]).use(**{hook: lifetime.__call__})

    async def body() -> None:
        async with agent, agent.session():
            started.set()
            await anyio.sleep(SECONDS_LONG)

    await cancel_after(how, anyio_backend_name, started, body)
    assert lifetime.seen == ["returned", "cancelled"]


async def test_errors_of_both_lifetimes_while_closing_are_both_told() -> None:
    error = ValueError("the body broke")
    agent = agent_with([])
    agent.use(init=Lifetime(closing_error=RuntimeError("agent trouble")).__call__)
    agent.use(session=Lifetime(closing_error=RuntimeError("session trouble")).__call__)
    with at_most(), pytest.raises(ValueError) as caught:
        async with agent, agent.session():
            raise error
    assert caught.value is error
    told = "\n".join(error.__notes__)
    assert "agent trouble" in told
    assert "session trouble" in told


@each_lifetime
async def test_a_second_call_next_in_a_lifetime_is_an_error_that_names_the_layer(hook: str) -> None:
    agent = agent_with(["hello"]).use(**{hook: calls_twice})
    with at_most(), pytest.raises(HookError) as caught:
        async with agent, agent.session() as session:
            assert (await session.run("go")).output == "hello"
    assert place(calls_twice) in str(caught.value)


@pytest.mark.parametrize("with_error", [False, True])
@each_lifetime
async def test_closing_has_a_deadline(hook: str, with_error: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentx._host.CLOSE_SECONDS", 0.05)
    error = ValueError("the body broke")
    log: list[str] = []

    async def hangs(ctx: Any, call_next: Any) -> None:
        try:
            await call_next()
        finally:
            try:
                await anyio.sleep(SECONDS_LONG)
            finally:
                log.append("let go")

    agent = agent_with([]).use(**{hook: hangs})
    with at_most(), pytest.raises((ValueError, TimeoutError, AgentxError)) as caught:
        async with agent, agent.session():
            if with_error:
                raise error

    assert log == ["let go"]
    if with_error:
        assert caught.value is error
        assert error.__notes__
    else:
        assert not isinstance(caught.value, ValueError)


@each_lifetime
async def test_a_layer_that_ignores_the_deadline_does_not_hold_up_the_caller(
    hook: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentx._host.CLOSE_SECONDS", 0.03)
    let_go = anyio.Event()

    async def stubborn(ctx: Any, call_next: Any) -> None:
        await call_next()
        with anyio.CancelScope(shield=True):
            await anyio.sleep(0.3)
        let_go.set()

    agent = agent_with([]).use(**{hook: stubborn})
    with at_most(), pytest.raises((TimeoutError, AgentxError)):
        async with agent, agent.session():
            pass
    assert not let_go.is_set()
    with at_most():
        await let_go.wait()
        await anyio.sleep(0.01)


# Rule 10: a host that dies in mid-life


def dying(fuse: anyio.Event, error: Exception) -> Any:
    """Return a lifetime layer with a side task that fails once `fuse` is set."""

    async def dies(ctx: Any, call_next: Any) -> None:
        async def side_task() -> None:
            await fuse.wait()
            raise error

        async with anyio.create_task_group() as group:
            group.start_soon(side_task)
            await call_next()
            group.cancel_scope.cancel()

    return dies


async def leave(handle: Any) -> None:
    """Leave an `async with` whose level failed; whether that raises its error is not said by the rule."""
    with contextlib.suppress(AgentxError, ConnectionError):
        await handle.__aexit__(None, None, None)


@each_lifetime
async def test_when_a_host_dies_the_running_turn_is_cancelled_and_the_next_call_raises_from_the_cause(
    hook: str,
) -> None:
    fuse = anyio.Event()
    error = ConnectionError("the server went away")
    log: list[str] = []
    model = SlowModel([(0.0, "a"), (SECONDS_LONG, "never")])
    agent = agent_with(model).use(**{hook: dying(fuse, error)}).use(logging_layer("turn", log))
    raised: list[BaseException] = []

    async def run(session: Session[Any]) -> None:
        try:
            await session.run("go")
        except Exception as caught:
            raised.append(caught)

    with at_most():
        session = agent.session()
        await session.__aenter__()
        async with anyio.create_task_group() as group:
            group.start_soon(run, session)
            while not model.requests:
                await anyio.sleep(0.005)
            fuse.set()

        assert len(raised) == 1
        assert isinstance(raised[0], AgentxError)
        assert model.log == ["call 0 broke off"]
        assert log == ["turn before", "turn after"]
        assert last_of(session).status in ("cancelled", "failed")

        with pytest.raises(AgentxError) as caught:
            await session.run("and now?")
        assert caught.value.__cause__ is error
        assert len(model.requests) == 1
        await leave(session)


@each_lifetime
async def test_when_a_host_dies_between_turns_the_next_call_raises_from_the_cause(hook: str) -> None:
    fuse = anyio.Event()
    error = ConnectionError("the server went away")
    model = ScriptedModel(["hello", "never"])
    agent = agent_with(model).use(**{hook: dying(fuse, error)})
    with at_most():
        session = agent.session()
        await session.__aenter__()
        assert (await session.run("go")).output == "hello"
        fuse.set()
        await anyio.sleep(0.02)
        with pytest.raises(AgentxError) as caught:
            await session.run("and now?")
        assert caught.value.__cause__ is error
        await leave(session)
    assert len(model.requests) == 1


async def test_a_session_that_dies_takes_no_other_session_with_it() -> None:
    fuse = anyio.Event()
    error = ConnectionError("the server went away")

    async def dies_in_one(ctx: Any, call_next: Any) -> None:
        if ctx.session_id == "dies":
            await dying(fuse, error)(ctx, call_next)
        else:
            await call_next()

    agent = agent_with(["hello", "again"]).use(session=dies_in_one)
    with at_most():
        async with agent, agent.session(id="lives") as lives:
            dies = agent.session(id="dies")
            await dies.__aenter__()
            fuse.set()
            await anyio.sleep(0.02)
            with pytest.raises(AgentxError):
                await dies.run("go")
            assert (await lives.run("go")).output == "hello"
            await leave(dies)
            async with agent.session(id="fresh") as fresh:
                assert (await fresh.run("go")).output == "again"


async def test_an_agent_that_died_can_be_opened_again() -> None:
    fuses = [anyio.Event(), anyio.Event()]
    error = ConnectionError("the server went away")
    openings: list[int] = []

    async def dies(ctx: Any, call_next: Any) -> None:
        openings.append(len(openings))
        await dying(fuses[openings[-1]], error)(ctx, call_next)

    agent = agent_with(["hello"]).use(init=dies)
    with at_most():
        await agent.__aenter__()
        fuses[0].set()
        await anyio.sleep(0.02)
        with pytest.raises(AgentxError):
            await agent.run("go")
        await leave(agent)
        assert (await agent.run("go")).output == "hello"
    assert openings == [0, 1]


@each_lifetime
async def test_a_lifetime_layer_that_ends_its_lifetime_early_failed(hook: str) -> None:
    async def gives_up(ctx: Any, call_next: Any) -> None:
        with anyio.move_on_after(0.02):
            await call_next()

    model = ScriptedModel(["never"])
    agent = agent_with(model).use(**{hook: gives_up})
    with at_most():
        session = agent.session()
        await session.__aenter__()
        await anyio.sleep(0.05)
        with pytest.raises(AgentxError):
            await session.run("go")
        await leave(session)
    assert model.requests == []


async def test_a_dead_host_cancels_a_tool_and_its_call_has_a_result() -> None:
    fuse = anyio.Event()
    log: list[str] = []

    @tool
    async def hangs(ctx: ToolContext) -> str:
        fuse.set()
        try:
            await anyio.sleep(SECONDS_LONG)
        finally:
            log.append("let go")
        return "never"

    agent = agent_with([[call("hangs"), call("echo", text="x")], "never"], tools=[hangs, echo])
    agent.use(session=dying(fuse, ConnectionError("the server went away")))
    with at_most():
        session = agent.session()
        await session.__aenter__()
        with pytest.raises(AgentxError):
            await session.run("go")
        assert log == ["let go"]
        assert set(results_of(session)) == {"c1", "c2"}
        await leave(session)
