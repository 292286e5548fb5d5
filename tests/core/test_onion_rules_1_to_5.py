"""The onion rules 1 to 5 of the design: how often, what result, short circuits, abort, cancellation.

Written from the text of the rules. Each test is about what an application or a plugin's author sees.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
from decimal import Decimal
from typing import Any, ClassVar

import anyio
import anyio.lowlevel
import attrs
import pytest

from agentx import (
    AgentxError,
    HookError,
    Limit,
    ModelError,
    NoOutputError,
    Plugin,
    TextDelta,
    TextPart,
    ToolContext,
    ToolFailed,
    ToolResult,
    TurnAborted,
    Usage,
    hookimpl,
    reduced,
    tool,
)
from agentx.testing import FunctionModel, ScriptedModel, call, check_history

from ._rules import (
    INNER_HOOKS,
    ONE_CALL,
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
    notes_of,
    place,
    results_of,
    tasks_now,
    tool_result,
    whole_text,
)

pytestmark = pytest.mark.anyio

each_hook = pytest.mark.parametrize("hook", INNER_HOOKS)
each_cancel = pytest.mark.parametrize("how", ["scope", "native"])


@attrs.frozen
class Count:
    entered: int = reduced(lambda old, new: old + new, default=0)


class Counter(Plugin[Count]):
    """Counts in its state how often its model layer is entered."""

    id: ClassVar = "context.counter"

    async def model(self, ctx: Any, call_next: Any) -> Any:
        ctx.update(self, entered=1)
        return await call_next()


# Rule 1: call_next once per entry, unless the layer repeats


@each_hook
async def test_a_second_call_next_is_an_error_that_names_the_layer(hook: str) -> None:
    entered: list[str] = []

    async def twice(ctx: Any, call_next: Any) -> Any:
        await call_next()
        return await call_next()

    agent = agent_with(ONE_CALL).use(**{hook: twice}).use(**{hook: logging_layer("inner", entered)})
    with at_most(), pytest.raises(HookError) as caught:
        await agent.run("go")

    assert caught.value.plugin == "function.twice"
    assert caught.value.hook == hook
    assert place(twice) in str(caught.value)
    assert entered == ["inner before", "inner after"]


@each_hook
async def test_a_second_call_next_is_an_error_although_the_first_one_failed(hook: str) -> None:
    entered: list[str] = []

    async def once_more(ctx: Any, call_next: Any) -> Any:
        try:
            return await call_next()
        except ValueError:
            return await call_next()

    async def fails(ctx: Any, call_next: Any) -> Any:
        entered.append(hook)
        raise ValueError("inner")

    agent = agent_with(ONE_CALL).use(**{hook: once_more}).use(**{hook: fails})
    with at_most(), pytest.raises(HookError) as caught:
        await agent.run("go")

    assert place(once_more) in str(caught.value)
    assert entered == [hook]


@each_hook
@pytest.mark.parametrize("repeats", [False, True])
async def test_two_overlapping_calls_are_an_error_unless_the_layer_is_concurrent(hook: str, repeats: bool) -> None:
    entered: list[str] = []

    async def both(ctx: Any, call_next: Any) -> Any:
        results: list[Any] = []

        async def one() -> None:
            results.append(await call_next())

        async with anyio.create_task_group() as group:
            group.start_soon(one)
            group.start_soon(one)
        return results[0]

    async def inner(ctx: Any, call_next: Any) -> Any:
        entered.append(hook)
        await anyio.sleep(0.01)
        return await call_next()

    layer = hookimpl(repeats=True)(both) if repeats else both
    agent = agent_with(ONE_CALL).use(**{hook: layer}).use(**{hook: inner})
    with at_most(), pytest.raises(HookError) as caught:
        await agent.run("go")

    assert place(both) in str(caught.value)
    assert entered == [hook]


async def test_a_repeating_layer_tries_again_and_the_inner_layers_run_again() -> None:
    log: list[str] = []
    model = ScriptedModel([ModelError("down"), "hello"])

    @hookimpl(repeats=True)
    async def retry(ctx: Any, call_next: Any) -> Any:
        try:
            return await call_next()
        except ModelError:
            return await call_next()

    agent = agent_with(model).use(model=retry).use(model=logging_layer("inner", log))
    with at_most():
        result = await agent.run("go")

    assert result.output == "hello"
    assert log == ["inner before", "inner after"] * 2
    assert model.requests[0].messages == model.requests[1].messages
    model.assert_finished()


async def test_the_usage_of_every_attempt_counts() -> None:
    used = Usage(input_tokens=7, output_tokens=0)
    model = ScriptedModel([ModelError("down", usage=used), "hello"], usage=Usage(input_tokens=10, output_tokens=2))

    @hookimpl(repeats=True)
    async def retry(ctx: Any, call_next: Any) -> Any:
        try:
            return await call_next()
        except ModelError:
            return await call_next()

    agent = agent_with(model).use(model=retry, phase="retry")
    async with agent, agent.session() as session:
        result = await session.run("go")

        assert result.usage.requests == 2
        assert result.usage.input_tokens == 17
        assert kinds_of(session).count("model.attempt") == 2
        assert kinds_of(session).count("model.end") == 1


async def test_a_repeating_layer_may_call_again_after_a_success() -> None:
    model = ScriptedModel(["first", "second"])

    @hookimpl(repeats=True)
    async def again(ctx: Any, call_next: Any) -> Any:
        await call_next()
        return await call_next()

    with at_most():
        result = await agent_with(model).use(model=again).run("go")

    assert result.output == "second"
    assert len(model.requests) == 2


async def test_a_repeating_turn_layer_says_the_users_message_once() -> None:
    model = ScriptedModel([ModelError("down"), "hello"])

    @hookimpl(repeats=True)
    async def retry(ctx: Any, call_next: Any) -> Any:
        try:
            return await call_next()
        except ModelError:
            return await call_next()

    agent = agent_with(model).use(retry)
    async with agent, agent.session() as session:
        with at_most():
            result = await session.run("go")

        assert result.output == "hello"
        assert [message.role for message in session.history] == ["user", "assistant"]
        assert kinds_of(session).count("turn.end") == 1


class Exclaim:
    """A transform that adds one exclamation mark at the end."""

    def feed(self, delta: Any) -> Any:
        return (delta,)

    def finish(self) -> Any:
        return (TextDelta("!"),)


@pytest.mark.parametrize("first", ["error", "success"])
async def test_transforms_of_an_inner_layer_do_not_pile_up_over_attempts(first: str) -> None:
    model = ScriptedModel([ModelError("down") if first == "error" else "hi", "hi", "hi"])

    @hookimpl(repeats=True)
    async def three_times(ctx: Any, call_next: Any) -> Any:
        for _ in range(2):
            with contextlib.suppress(ModelError):
                await call_next()
        return await call_next()

    async def exclaims(ctx: Any, call_next: Any) -> Any:
        ctx.transform_deltas(Exclaim)
        return await call_next()

    agent = agent_with(model).use(model=three_times).use(model=exclaims)
    async with agent, agent.session() as session:
        with at_most():
            result = await session.run("go")

        assert result.text == "hi!"
        assert session.history[-1].text == "hi!"


async def test_transforms_of_an_outer_layer_apply_to_every_attempt_once() -> None:
    model = ScriptedModel([ModelError("down"), "hi"])
    made: list[Exclaim] = []

    def factory() -> Exclaim:
        made.append(Exclaim())
        return made[-1]

    async def exclaims(ctx: Any, call_next: Any) -> Any:
        ctx.transform_deltas(factory)
        return await call_next()

    @hookimpl(repeats=True)
    async def retry(ctx: Any, call_next: Any) -> Any:
        try:
            return await call_next()
        except ModelError:
            return await call_next()

    with at_most():
        result = await agent_with(model).use(model=exclaims).use(model=retry).run("go")

    assert result.text == "hi!"
    assert len(made) == 2


async def test_request_and_hidden_tools_of_an_inner_layer_are_of_one_attempt() -> None:
    model = ScriptedModel([ModelError("down"), "hi"])
    seen: list[int] = []

    @hookimpl(repeats=True)
    async def retry(ctx: Any, call_next: Any) -> Any:
        try:
            return await call_next()
        except ModelError:
            assert ctx.request.context == ()
            assert [spec.name for spec in ctx.request.tools] == ["echo"]
            return await call_next()

    async def adds(ctx: Any, call_next: Any) -> Any:
        seen.append(1)
        ctx.add_context("a hint")
        if len(seen) == 1:
            ctx.hide_tools("echo")
            ctx.set_settings(temperature=0.5)
        return await call_next()

    with at_most():
        await agent_with(model).use(model=retry).use(model=adds).run("go")

    first, second = model.requests
    assert first.context == second.context == ("a hint",)
    assert first.tools == ()
    assert [spec.name for spec in second.tools] == ["echo"]
    assert first.settings.temperature == 0.5
    assert second.settings.temperature is None


async def test_each_attempt_starts_from_the_context_as_the_repeating_layer_left_it() -> None:
    model = ScriptedModel([ModelError("down"), ModelError("down"), "hi"])

    @hookimpl(repeats=True)
    async def retry(ctx: Any, call_next: Any) -> Any:
        for number in range(3):
            ctx.add_context(f"attempt {number}")
            try:
                return await call_next()
            except ModelError as error:
                last = error
        raise last

    with at_most():
        await agent_with(model).use(model=retry).run("go")

    assert [len(request.context) for request in model.requests] == [1, 2, 3]


async def test_arguments_that_an_inner_tool_layer_replaces_do_not_pile_up() -> None:
    seen: list[str] = []

    @tool
    async def flaky(text: str) -> str:
        seen.append(text)
        if len(seen) < 3:
            raise ValueError("not yet")
        return text

    @hookimpl(repeats=True)
    async def retry(ctx: Any, call_next: Any) -> Any:
        for _ in range(2):
            try:
                return await call_next()
            except ToolFailed:
                pass
        return await call_next()

    async def loud(ctx: Any, call_next: Any) -> Any:
        ctx.args = {"text": ctx.args["text"] + "!"}
        return await call_next()

    agent = agent_with([[call("flaky", text="x")], "done"], tools=[flaky]).use(tool=retry).use(tool=loud)
    async with agent, agent.session() as session:
        with at_most():
            await session.run("go")

        assert seen == ["x!"] * 3
        assert results_of(session)["c1"].text == "x!"


async def test_session_state_is_not_forked() -> None:
    model = ScriptedModel([ModelError("down"), "hi"])
    counter = Counter()

    @hookimpl(repeats=True)
    async def retry(ctx: Any, call_next: Any) -> Any:
        try:
            return await call_next()
        except ModelError:
            return await call_next()

    agent = agent_with(model).use(model=retry).use(counter)
    async with agent, agent.session() as session:
        await session.run("go")
        assert session.state.of(counter).entered == 2


@pytest.mark.parametrize("options", [{}, {"repeats": True}, {"concurrent": True}])
@each_hook
async def test_a_call_next_that_is_kept_and_called_after_the_layer_returned_is_an_error(
    hook: str, options: dict[str, bool]
) -> None:
    kept: list[Any] = []
    entered: list[str] = []

    @hookimpl(**options)
    async def keeper(ctx: Any, call_next: Any) -> Any:
        kept.append(call_next)
        return await call_next()

    agent = agent_with(ONE_CALL).use(**{hook: keeper}).use(**{hook: logging_layer("inner", entered)})
    async with agent, agent.session() as session:
        result = await session.run("go")
        entries = len(entered)
        with at_most(), pytest.raises(HookError) as caught:
            await kept[0]()

        assert result.output == "done"
        assert len(entered) == entries
        assert "function.keeper" in str(caught.value)
        assert place(keeper) in str(caught.value)


async def test_a_call_next_that_was_never_used_is_late_too_after_a_short_circuit() -> None:
    kept: list[Any] = []
    model = ScriptedModel([])

    async def keeper(ctx: Any, call_next: Any) -> Any:
        kept.append(call_next)
        return answer("from the layer")

    agent = agent_with(model).use(model=keeper)
    async with agent, agent.session() as session:
        result = await session.run("go")
        with at_most(), pytest.raises(HookError):
            await kept[0]()

    assert result.output == "from the layer"
    assert model.requests == []


async def test_a_call_next_of_a_model_layer_that_a_tool_calls_is_late() -> None:
    kept: list[Any] = []
    errors: list[BaseException] = []
    model = ScriptedModel([[call("late")], "done"])

    async def keeper(ctx: Any, call_next: Any) -> Any:
        kept.append(call_next)
        return await call_next()

    @tool
    async def late() -> str:
        try:
            await kept[0]()
        except HookError as error:
            errors.append(error)
        return "x"

    with at_most():
        result = await agent_with(model, tools=[late]).use(model=keeper).run("go")

    assert result.output == "done"
    assert len(errors) == 1
    assert len(model.requests) == 2


async def test_a_call_next_that_is_left_to_the_background_is_late() -> None:
    model = ScriptedModel(["never"])

    async def fire_and_forget(ctx: Any, call_next: Any) -> Any:
        ctx.start_soon(call_next, on_error="log")
        return answer("quick")

    agent = agent_with(model).use(model=fire_and_forget)
    with at_most():
        async with agent, agent.session() as session:
            assert (await session.run("go")).output == "quick"
            await anyio.sleep(0.01)
    assert model.requests == []


@pytest.mark.parametrize("phase", ["gate", "prepare", "verify"])
@pytest.mark.parametrize("options", [{}, {"repeats": True}])
async def test_call_next_after_deny_is_an_error_and_the_tool_does_not_run(phase: str, options: dict[str, bool]) -> None:
    ran: list[str] = []

    @tool
    async def wipe() -> str:
        ran.append("wiped")
        return "gone"

    @hookimpl(**options)
    async def guard(ctx: Any, call_next: Any) -> Any:
        ctx.deny("not allowed")
        return await call_next()

    agent = agent_with([[call("wipe")], "done"], tools=[wipe]).use(tool=guard, phase=phase)
    async with agent, agent.session() as session:
        with at_most(), pytest.raises(HookError if phase == "prepare" else TurnAborted) as caught:
            await session.run("go")

        assert ran == []
        assert "function.guard" in whole_text(caught.value)
        assert place(guard) in whole_text(caught.value)
        assert results_of(session)["c1"].is_error


async def test_the_error_of_call_next_after_deny_may_be_caught_and_the_denial_returned() -> None:
    ran: list[str] = []

    @tool
    async def wipe() -> str:
        ran.append("wiped")
        return "gone"

    async def guard(ctx: Any, call_next: Any) -> Any:
        denied = ctx.deny("not allowed")
        try:
            return await call_next()
        except HookError:
            return denied

    agent = agent_with([[call("wipe")], "done"], tools=[wipe]).use(tool=guard)
    async with agent, agent.session() as session:
        result = await session.run("go")

        assert result.output == "done"
        assert results_of(session)["c1"].status == "denied"
        assert ran == []


def hedging(delay: float = 0.0) -> Any:
    """Return a layer that races two attempts and cancels the loser."""

    @hookimpl(concurrent=True)
    async def hedge(ctx: Any, call_next: Any) -> Any:
        winner: list[Any] = []
        async with anyio.create_task_group() as group:

            async def attempt(wait: float) -> None:
                await anyio.sleep(wait)
                result = await call_next()
                if not winner:
                    winner.append(result)
                group.cancel_scope.cancel()

            group.start_soon(attempt, 0.0)
            group.start_soon(attempt, delay)
        return winner[0]

    return hedge


async def test_of_racing_attempts_only_the_winners_deltas_reach_the_consumer() -> None:
    model = SlowModel([(0.0, "sl"), (0.2, "ow")], [(0.01, "fa"), (0.01, "st")])
    agent = agent_with(model).use(model=hedging(0.01), phase="retry")
    async with agent, agent.session() as session:
        with at_most():
            async with session.stream("go") as stream:
                events = [event async for event in stream]

        deltas = [event for event in events if event.kind == "text.delta"]
        assert "".join([event.text for event in deltas]) == "fast"
        assert len({event.attempt for event in deltas}) == 1
        assert stream.result.output == "fast"
        assert session.history[-1].text == "fast"
        assert len(model.requests) == 2
        assert "call 0 broke off" in model.log


async def test_when_both_racers_finish_the_one_that_is_returned_is_the_one_that_is_shown() -> None:
    model = SlowModel([(0.0, "a"), (0.02, "b")], [(0.01, "c"), (0.04, "d")])

    @hookimpl(concurrent=True)
    async def last_wins(ctx: Any, call_next: Any) -> Any:
        results: list[Any] = []

        async def attempt() -> None:
            results.append(await call_next())

        async with anyio.create_task_group() as group:
            group.start_soon(attempt)
            group.start_soon(attempt)
        return results[-1]

    agent = agent_with(model).use(model=last_wins)
    async with agent, agent.session() as session:
        with at_most():
            async with session.stream("go") as stream:
                pieces = [piece async for piece in stream.text]

        assert stream.result.text in ("ab", "cd")
        assert "".join(pieces) == stream.result.text
        assert stream.result.text == "cd"


async def test_a_racer_that_fails_leaves_no_text_behind() -> None:
    model = SlowModel([(0.0, "wrong"), (0.02, ""), ModelError("down")], [(0.03, "ri"), (0.03, "ght")])

    @hookimpl(concurrent=True)
    async def first_success(ctx: Any, call_next: Any) -> Any:
        results: list[Any] = []

        async def attempt() -> None:
            with contextlib.suppress(ModelError):
                results.append(await call_next())

        async with anyio.create_task_group() as group:
            group.start_soon(attempt)
            group.start_soon(attempt)
        return results[0]

    agent = agent_with(model).use(model=first_success)
    async with agent, agent.session() as session:
        with at_most():
            async with session.stream("go") as stream:
                pieces = [piece async for piece in stream.text]

        assert "".join(pieces) == "right"
        assert stream.result.output == "right"


async def test_overlapping_attempts_do_not_see_each_others_requests() -> None:
    model = SlowModel([(0.02, "a")], [(0.02, "b")])
    numbers = iter(range(10))

    async def labels(ctx: Any, call_next: Any) -> Any:
        ctx.add_context(f"attempt {next(numbers)}")
        await anyio.sleep(0.01)
        return await call_next()

    @hookimpl(concurrent=True)
    async def both(ctx: Any, call_next: Any) -> Any:
        results: list[Any] = []

        async def attempt() -> None:
            results.append(await call_next())

        async with anyio.create_task_group() as group:
            group.start_soon(attempt)
            group.start_soon(attempt)
        return results[0]

    with at_most():
        await agent_with(model).use(model=both).use(model=labels).run("go")

    assert sorted(request.context for request in model.requests) == [("attempt 0",), ("attempt 1",)]


async def test_a_tool_layer_may_race_its_tool_with_itself() -> None:
    runs: list[int] = []

    @tool
    async def lucky() -> str:
        runs.append(len(runs))
        mine = runs[-1]
        await anyio.sleep(0.01 if mine else SECONDS_LONG)
        return f"run {mine}"

    agent = agent_with([[call("lucky")], "done"], tools=[lucky]).use(tool=hedging())
    async with agent, agent.session() as session:
        with at_most():
            result = await session.run("go")

        assert result.output == "done"
        assert results_of(session)["c1"].text == "run 1"
        assert kinds_of(session).count("tool.result") == 1


SECONDS_LONG = 30.0
"""Longer than any test may take; what sleeps so long is to be cancelled."""


# Rule 2: results are checked


async def forgets_return(ctx: Any, call_next: Any) -> Any:
    await call_next()


async def forgets_await(ctx: Any, call_next: Any) -> Any:
    return call_next()


async def never_calls(ctx: Any, call_next: Any) -> Any:
    return None


async def calls_without_await(ctx: Any, call_next: Any) -> Any:
    call_next()  # the mistake under test


async def returns_text(ctx: Any, call_next: Any) -> Any:
    await call_next()
    return "text"


async def returns_false(ctx: Any, call_next: Any) -> Any:
    await call_next()
    return False


MISTAKES = [
    (forgets_return, "return"),
    (forgets_await, "await"),
    (never_calls, "call_next"),
    (calls_without_await, "await"),
    (returns_text, "str"),
    (returns_false, "bool"),
]


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")  # Python's own word on the same mistake
@pytest.mark.parametrize(("mistake", "fix"), MISTAKES)
@each_hook
async def test_a_wrong_result_is_an_error_that_names_plugin_hook_place_and_fix(
    hook: str, mistake: Any, fix: str
) -> None:
    agent = agent_with(ONE_CALL).use(**{hook: mistake})
    async with agent, agent.session() as session:
        with at_most(), pytest.raises(HookError) as caught:
            await session.run("go")

        message = str(caught.value)
        assert caught.value.plugin == f"function.{mistake.__name__}"
        assert caught.value.hook == hook
        assert f"function.{mistake.__name__}" in message
        assert hook in message
        assert place(mistake) in message
        assert fix in message
        assert last_of(session).status == "failed"
    gc.collect(1)


@each_hook
async def test_the_result_of_another_hook_is_a_wrong_result(hook: str) -> None:
    async def mixes_up(ctx: Any, call_next: Any) -> Any:
        await call_next()
        return ToolResult("c1", "echo", (TextPart("x"),)) if hook != "tool" else answer("x")

    with at_most(), pytest.raises(HookError) as caught:
        await agent_with(ONE_CALL).use(**{hook: mixes_up}).run("go")

    assert place(mixes_up) in str(caught.value)


@pytest.mark.parametrize("phase", ["gate", "prepare", "verify"])
async def test_a_guard_that_forgets_to_return_its_deny_is_told_so_and_the_tool_does_not_run(phase: str) -> None:
    ran: list[str] = []

    @tool
    async def wipe() -> str:
        ran.append("wiped")
        return "gone"

    async def guard(ctx: Any, call_next: Any) -> Any:
        if ctx.tool.name == "wipe":
            ctx.deny("not allowed")
        else:
            return await call_next()
        return None

    agent = agent_with([[call("wipe")], "done"], tools=[wipe]).use(tool=guard, phase=phase)
    async with agent, agent.session() as session:
        with at_most(), pytest.raises(HookError if phase == "prepare" else TurnAborted) as caught:
            await session.run("go")

        seen = whole_text(caught.value)
        assert ran == []
        assert "function.guard" in seen
        assert place(guard) in seen
        assert "return ctx.deny(" in seen
        assert results_of(session)["c1"].is_error


async def test_an_outer_layer_never_sees_the_wrong_result_of_an_inner_one() -> None:
    seen: list[Any] = []

    async def outer(ctx: Any, call_next: Any) -> Any:
        try:
            seen.append(await call_next())
        except HookError as error:
            seen.append(error)
        return answer("rescued")

    result = await agent_with(["hello"]).use(model=outer).use(model=forgets_return).run("go")

    assert result.output == "rescued"
    assert [type(item) for item in seen] == [HookError]


async def async_generator(ctx: Any, call_next: Any) -> Any:
    yield await call_next()


def plain_function(ctx: Any, call_next: Any) -> Any:
    return call_next()


def plain_generator(ctx: Any, call_next: Any) -> Any:
    yield


async def other_arguments(ctx: Any, call_next: Any, more: Any) -> Any:
    return await call_next()


async def no_arguments() -> None:
    return None


BAD_SHAPES = [async_generator, plain_function, plain_generator, other_arguments, no_arguments]


@pytest.mark.parametrize("bad", BAD_SHAPES)
@pytest.mark.parametrize("hook", ["init", "session", "turn", "model", "tool"])
async def test_a_function_that_is_no_hook_is_refused_at_registration_with_its_place(hook: str, bad: Any) -> None:
    model = ScriptedModel(["never"])
    with at_most(), pytest.raises(AgentxError) as caught:
        await agent_with(model).use(**{hook: bad}).check()

    assert place(bad) in str(caught.value)
    assert hook in str(caught.value)
    assert model.requests == []


@pytest.mark.parametrize("hook", ["init", "session", "turn", "model", "tool"])
async def test_a_method_that_is_no_hook_is_refused_when_its_class_is_made(hook: str) -> None:
    async def generator(self: Any, ctx: Any, call_next: Any) -> Any:
        yield await call_next()

    def plain(self: Any, ctx: Any, call_next: Any) -> Any:
        return call_next()

    async def renamed(self: Any, context: Any, call_next: Any) -> Any:
        return await call_next()

    for bad in (generator, plain, renamed):
        with pytest.raises(AgentxError) as caught:
            type(Plugin)("Bad", (Plugin,), {"id": "context.bad", hook: bad})
        assert "context.bad" in str(caught.value)
        assert place(bad) in str(caught.value)


# wrapper=True: generators as pluggy has them


async def test_a_pluggy_wrapper_that_returns_nothing_keeps_the_inner_result() -> None:
    log: list[str] = []

    @hookimpl(wrapper=True)
    def watch(ctx: Any) -> Any:
        log.append("before")
        response = yield
        log.append(response.text)

    result = await agent_with(["hello"]).use(model=watch).run("go")

    assert result.output == "hello"
    assert log == ["before", "hello"]


async def test_a_pluggy_wrapper_may_replace_the_result_and_catch_an_error() -> None:
    @hookimpl(wrapper=True)
    def rescue(ctx: Any) -> Any:
        try:
            response = yield
        except ModelError:
            return answer("rescued")
        return attrs.evolve(response, parts=(TextPart(response.text.upper()),))

    def agent(entry: Any) -> Any:
        return agent_with([entry]).use(model=rescue)

    assert (await agent("hello").run("go")).output == "HELLO"
    assert (await agent(ModelError("down")).run("go")).output == "rescued"


async def test_a_pluggy_wrapper_lets_errors_through() -> None:
    error = ValueError("boom")

    @hookimpl(wrapper=True)
    def watch(ctx: Any) -> Any:
        return (yield)

    with pytest.raises(ValueError) as caught:
        await agent_with([error]).use(model=watch).run("go")
    assert caught.value is error


@each_hook
async def test_a_pluggy_wrapper_cannot_catch_an_abort(hook: str) -> None:
    @hookimpl(wrapper=True)
    def swallows(ctx: Any) -> Any:
        with contextlib.suppress(BaseException):
            yield
        return fake_result(hook, ctx)

    async def aborts(ctx: Any, call_next: Any) -> Any:
        ctx.abort("enough")

    with at_most(), pytest.raises(TurnAborted, match="enough"):
        await agent_with(ONE_CALL).use(**{hook: swallows}).use(**{hook: aborts}).run("go")


@each_hook
@each_cancel
async def test_a_pluggy_wrapper_cannot_catch_a_cancellation(hook: str, how: str, anyio_backend_name: str) -> None:
    started = anyio.Event()

    @hookimpl(wrapper=True)
    def swallows(ctx: Any) -> Any:
        with contextlib.suppress(BaseException):
            yield
        return fake_result(hook, ctx)

    async def hangs(ctx: Any, call_next: Any) -> Any:
        started.set()
        await anyio.sleep(SECONDS_LONG)
        return await call_next()

    agent = agent_with(ONE_CALL).use(**{hook: swallows}).use(**{hook: hangs})
    await cancel_after(how, anyio_backend_name, started, lambda: agent.run("go"))


async def test_a_pluggy_wrapper_that_yields_twice_or_never_is_an_error() -> None:
    @hookimpl(wrapper=True)
    def twice(ctx: Any) -> Any:
        yield
        yield

    @hookimpl(wrapper=True)
    def never(ctx: Any) -> Any:
        if ctx is None:
            yield
        return None

    for wrapper in (twice, never):
        with at_most(), pytest.raises(HookError) as caught:
            await agent_with(["hello"]).use(model=wrapper).run("go")
        assert place(wrapper) in str(caught.value)


async def test_pluggy_wrappers_wrap_lifetimes_and_tools_too() -> None:
    log: list[str] = []

    class Watch(Plugin[None]):
        id: ClassVar = "context.watch"

        @hookimpl(wrapper=True)
        def session(self, ctx: Any, call_next: Any) -> Any:
            log.append("session opens")
            yield
            log.append("session closes")

        @hookimpl(wrapper=True)
        def tool(self, ctx: Any, call_next: Any) -> Any:
            try:
                return (yield)
            except ToolFailed as error:
                return tool_result(ctx, f"rescued {error.__cause__}")

    @tool
    async def boom() -> str:
        raise ValueError("boom")

    agent = agent_with([[call("boom")], "done"], tools=[boom]).use(Watch())
    async with agent, agent.session() as session:
        await session.run("go")
        assert log == ["session opens"]
        assert results_of(session)["c1"].text == "rescued boom"
    assert log == ["session opens", "session closes"]


# Rule 3: short circuits, and the verbs from soft to hard


async def test_a_model_layer_answers_in_place_of_the_model() -> None:
    model = ScriptedModel([])
    log: list[str] = []

    async def cache(ctx: Any, call_next: Any) -> Any:
        return answer("cached")

    agent = agent_with(model).use(model=cache).use(model=logging_layer("inner", log))
    async with agent, agent.session() as session:
        async with session.stream("go") as stream:
            pieces = [piece async for piece in stream.text]

        assert stream.result.output == "cached"
        assert "".join(pieces) == "cached"
        assert session.history[-1].text == "cached"
        assert log == []
        assert model.requests == []


async def test_a_short_circuited_answer_goes_through_the_outer_transforms() -> None:
    async def exclaims(ctx: Any, call_next: Any) -> Any:
        ctx.transform_deltas(Exclaim)
        return await call_next()

    async def cache(ctx: Any, call_next: Any) -> Any:
        return answer("cached")

    agent = agent_with([]).use(model=exclaims).use(model=cache)
    async with agent, agent.session() as session:
        async with session.stream("go") as stream:
            pieces = [piece async for piece in stream.text]

        assert "".join(pieces) == "cached!"
        assert stream.result.output == "cached!"


async def test_a_turn_layer_answers_in_place_of_the_turn() -> None:
    model = ScriptedModel([])
    canned: list[Any] = []

    async def answers(ctx: Any, call_next: Any) -> Any:
        canned.append(attrs.evolve(ctx.result, text="canned", status="completed", reason=None, output="canned"))
        return canned[0]

    agent = agent_with(model).use(answers)
    async with agent, agent.session() as session:
        result = await session.run("go")

        assert result.output == "canned"
        assert model.requests == []
        assert last_of(session).status == "completed"


async def test_a_tool_layer_answers_in_place_of_the_tool() -> None:
    ran: list[str] = []
    model = ScriptedModel([[call("wipe")], "done"])

    @tool
    async def wipe() -> str:
        ran.append("wiped")
        return "gone"

    async def dry_run(ctx: Any, call_next: Any) -> Any:
        return tool_result(ctx, "pretended")

    agent = agent_with(model, tools=[wipe]).use(tool=dry_run)
    async with agent, agent.session() as session:
        result = await session.run("go")

        assert result.output == "done"
        assert ran == []
        found = results_of(session)["c1"]
        assert (found.text, found.status) == ("pretended", "ok")
        assert "tool.start" not in kinds_of(session)


async def test_a_denied_call_gets_an_error_result_and_the_model_goes_on() -> None:
    ran: list[str] = []
    outer_saw: list[str] = []
    model = ScriptedModel([[call("wipe"), call("echo", text="x")], "done"])

    @tool
    async def wipe() -> str:
        ran.append("wiped")
        return "gone"

    async def outer(ctx: Any, call_next: Any) -> Any:
        result = await call_next()
        outer_saw.append(result.status)
        return result

    async def guard(ctx: Any, call_next: Any) -> Any:
        if ctx.tool.name == "wipe":
            return ctx.deny("wiping is forbidden")
        return await call_next()

    agent = agent_with(model, tools=[wipe, echo]).use(tool=outer).use(tool=guard)
    async with agent, agent.session() as session:
        result = await session.run("go")

        assert result.status == "completed"
        assert result.output == "done"
        assert ran == []
        found = results_of(session)
        assert found["c1"].status == "denied"
        assert "wiping is forbidden" in found["c1"].text
        assert found["c2"].text == "x"
        assert sorted(outer_saw) == ["denied", "ok"]


async def test_an_answer_that_is_sent_back_is_followed_by_another_step_with_the_feedback() -> None:
    model = ScriptedModel(["bad", "good"])

    async def critic(ctx: Any, call_next: Any) -> Any:
        response = await call_next()
        if response.text == "bad":
            ctx.send_back("say good")
        return response

    agent = agent_with(model).use(model=critic)
    async with agent, agent.session() as session:
        with at_most():
            result = await session.run("go")

        assert result.output == "good"
        assert "say good" in model.requests[1].messages[-1].text
        assert last_of(session).status == "completed"
        assert [message.role for message in session.history] == ["user", "assistant", "user", "assistant"]


async def test_sending_back_is_bounded() -> None:
    model = FunctionModel(lambda request: "bad")

    async def critic(ctx: Any, call_next: Any) -> Any:
        response = await call_next()
        ctx.send_back("say good")
        return response

    agent = agent_with(model).use(model=critic)
    async with agent, agent.session() as session:
        with at_most():
            result = await session.run("go")

        assert result.status == "stopped"
        assert result.by == "function.critic"
        assert result.reason
        assert 2 <= len(model.requests) <= 10
        with pytest.raises(NoOutputError):
            _ = result.output
        last_of(session)


async def test_a_repeating_turn_layer_sends_back_the_answer_of_the_turn() -> None:
    model = ScriptedModel(["bad", "good"])

    @hookimpl(repeats=True)
    async def judge(ctx: Any, call_next: Any) -> Any:
        result = await call_next()
        if result.text == "bad":
            ctx.send_back("say good")
            result = await call_next()
        return result

    agent = agent_with(model).use(judge)
    async with agent, agent.session() as session:
        with at_most():
            result = await session.run("go")

        assert result.output == "good"
        assert "say good" in model.requests[1].messages[-1].text
        assert [message.role for message in session.history] == ["user", "assistant", "user", "assistant"]


@pytest.mark.parametrize("hook", ["turn", "model"])
async def test_after_stop_no_model_call_starts(hook: str) -> None:
    model = ScriptedModel(["never"])

    async def stopper(ctx: Any, call_next: Any) -> Any:
        ctx.stop("closed today", status="refused")
        return await call_next()

    agent = agent_with(model).use(**{hook: stopper})
    async with agent, agent.session() as session:
        with at_most():
            result = await session.run("go")

        assert (result.status, result.reason, result.by) == ("refused", "closed today", "function.stopper")
        assert model.requests == []
        with pytest.raises(NoOutputError, match="closed today"):
            _ = result.output
        assert last_of(session).status == "refused"


async def test_stop_marks_and_returns() -> None:
    reached: list[str] = []

    async def stopper(ctx: Any, call_next: Any) -> Any:
        assert ctx.stop("enough") is None
        reached.append("after stop")
        return await call_next()

    await agent_with(["never"]).use(stopper).run("go")

    assert reached == ["after stop"]


async def test_after_stop_running_tools_finish_and_calls_that_did_not_start_are_skipped() -> None:
    ran: list[str] = []
    slow_runs = anyio.Event()
    model = ScriptedModel([[call("slow"), call("quick"), call("alone")], "never"])

    @tool
    async def slow() -> str:
        slow_runs.set()
        await anyio.sleep(0.05)
        ran.append("slow")
        return "slow done"

    @tool
    async def quick() -> str:
        await slow_runs.wait()
        ran.append("quick")
        return "quick done"

    @tool(parallel=False)
    async def alone() -> str:
        ran.append("alone")
        return "alone done"

    async def stopper(ctx: Any, call_next: Any) -> Any:
        result = await call_next()
        if ctx.tool.name == "quick":
            ctx.stop("enough")
        return result

    agent = agent_with(model, tools=[slow, quick, alone]).use(tool=stopper)
    async with agent, agent.session() as session:
        with at_most():
            result = await session.run("go")

        found = results_of(session)
        assert ran == ["quick", "slow"]
        assert [found[key].status for key in ("c1", "c2", "c3")] == ["ok", "ok", "skipped"]
        assert found["c1"].text == "slow done"
        assert (result.status, result.reason, result.by) == ("stopped", "enough", "function.stopper")
        assert len(model.requests) == 1
        assert last_of(session).status == "stopped"


async def test_after_stop_a_call_whose_layer_still_waits_does_not_start_its_tool() -> None:
    ran: list[str] = []
    stopped = anyio.Event()

    @tool
    async def wipe() -> str:
        ran.append("wiped")
        return "gone"

    async def waits_or_stops(ctx: Any, call_next: Any) -> Any:
        if ctx.call_id == "c1":
            await stopped.wait()
        else:
            ctx.stop("enough")
            stopped.set()
        return await call_next()

    agent = agent_with([[call("wipe"), call("wipe")], "never"], tools=[wipe]).use(tool=waits_or_stops)
    async with agent, agent.session() as session:
        with at_most():
            result = await session.run("go")

        assert result.status == "stopped"
        assert ran == []
        assert [found.status for found in results_of(session).values()] == ["skipped", "skipped"]


async def test_a_tool_whose_layer_stops_before_call_next_does_not_start() -> None:
    ran: list[str] = []

    @tool
    async def wipe() -> str:
        ran.append("wiped")
        return "gone"

    async def stopper(ctx: Any, call_next: Any) -> Any:
        ctx.stop("enough")
        return await call_next()

    agent = agent_with([[call("wipe")], "never"], tools=[wipe]).use(tool=stopper)
    async with agent, agent.session() as session:
        with at_most():
            result = await session.run("go")

        assert result.status == "stopped"
        assert ran == []
        assert results_of(session)["c1"].status == "skipped"


async def test_calls_of_a_response_are_skipped_if_its_model_layer_stops() -> None:
    ran: list[str] = []

    @tool
    async def wipe() -> str:
        ran.append("wiped")
        return "gone"

    async def stopper(ctx: Any, call_next: Any) -> Any:
        response = await call_next()
        ctx.stop("seen enough")
        return response

    agent = agent_with([[call("wipe"), call("wipe")], "never"], tools=[wipe]).use(model=stopper)
    async with agent, agent.session() as session:
        with at_most():
            result = await session.run("go")

        assert result.status == "stopped"
        assert ran == []
        assert {found.status for found in results_of(session).values()} == {"skipped"}
        assert len(results_of(session)) == 2


async def test_stop_with_an_output_completes_the_turn() -> None:
    model = ScriptedModel([[call("lookup")], "never"])

    @tool
    async def lookup(ctx: ToolContext) -> str:
        ctx.stop("found it", output="42")
        return "the answer is 42"

    agent = agent_with(model, tools=[lookup])
    async with agent, agent.session() as session:
        with at_most():
            result = await session.run("go")

        assert (result.status, result.output) == ("completed", "42")
        assert results_of(session)["c1"].status == "ok"
        assert len(model.requests) == 1
        assert last_of(session).status == "completed"


async def test_stop_keeps_the_text_of_an_answer_but_not_as_output() -> None:
    async def stopper(ctx: Any, call_next: Any) -> Any:
        response = await call_next()
        ctx.stop("off topic")
        return response

    result = await agent_with(["hello"]).use(model=stopper).run("go")

    assert (result.status, result.text) == ("stopped", "hello")
    with pytest.raises(NoOutputError):
        _ = result.output


async def test_a_stopped_turn_starts_no_model_call_of_a_plugin_either() -> None:
    model = ScriptedModel([])

    async def stopper(ctx: Any, call_next: Any) -> Any:
        ctx.stop("enough")
        await ctx.call_model("still there?")
        return await call_next()

    with at_most():
        result = await agent_with(model).use(stopper).run("go")

    assert result.status == "stopped"
    assert model.requests == []


async def test_the_next_turn_after_a_stop_or_an_abort_runs() -> None:
    model = ScriptedModel(["hello"])

    async def moody(ctx: Any, call_next: Any) -> Any:
        if ctx.turn_index == 0:
            ctx.stop("enough")
        if ctx.turn_index == 1:
            ctx.abort("too much")
        return await call_next()

    agent = agent_with(model).use(moody)
    async with agent, agent.session() as session:
        assert (await session.run("one")).status == "stopped"
        with pytest.raises(TurnAborted):
            await session.run("two")
        assert (await session.run("three")).output == "hello"
        check_history(session.history)


async def test_abort_beats_stop_and_deny() -> None:
    @tool
    async def wipe() -> str:
        return "gone"

    async def outer(ctx: Any, call_next: Any) -> Any:
        ctx.stop("soft")
        ctx.deny("softer")
        ctx.abort("hard")

    agent = agent_with([[call("wipe")]], tools=[wipe]).use(tool=outer)
    async with agent, agent.session() as session:
        with at_most(), pytest.raises(TurnAborted, match="hard"):
            await session.run("go")
        assert last_of(session).status == "aborted"


# Rule 4: abort is sticky


@each_hook
async def test_an_abort_leaves_as_turn_aborted_with_who_why_and_the_partial_result(hook: str) -> None:
    async def aborts(ctx: Any, call_next: Any) -> Any:
        await call_next()
        ctx.abort("too dangerous")

    agent = agent_with(ONE_CALL).use(**{hook: aborts})
    async with agent, agent.session() as session:
        with at_most(), pytest.raises(TurnAborted) as caught:
            await session.run("go")

        error = caught.value
        assert (error.reason, error.by) == ("too dangerous", "function.aborts")
        assert error.result is not None
        assert error.result.status == "aborted"
        assert last_of(session).status == "aborted"
        assert not isinstance(error, BaseExceptionGroup)


async def test_a_tool_aborts_through_its_context() -> None:
    @tool
    async def alarm(ctx: ToolContext) -> str:
        ctx.abort("fire")

    agent = agent_with([[call("alarm")], "never"], tools=[alarm])
    async with agent, agent.session() as session:
        with at_most(), pytest.raises(TurnAborted, match="fire"):
            await session.run("go")
        assert results_of(session)["c1"].is_error
        assert last_of(session).status == "aborted"


async def test_a_tool_in_a_worker_thread_aborts_through_its_context() -> None:
    @tool
    def alarm(ctx: ToolContext) -> str:
        ctx.abort("fire")

    agent = agent_with([[call("alarm"), call("echo", text="x")], "never"], tools=[alarm, echo])
    async with agent, agent.session() as session:
        with at_most(), pytest.raises(TurnAborted, match="fire"):
            await session.run("go")
        assert set(results_of(session)) == {"c1", "c2"}
        assert last_of(session).status == "aborted"


async def test_an_abort_in_a_plugins_own_model_call_ends_the_turn() -> None:
    model = ScriptedModel(["never", "never"])

    async def asks(ctx: Any, call_next: Any) -> Any:
        with contextlib.suppress(Exception):
            await ctx.call_model("is this fine?")
        return await call_next()

    class Guard(Plugin[None]):
        id: ClassVar = "guard.own_calls"
        phase: ClassVar = "gate"

        async def model(self, ctx: Any, call_next: Any) -> Any:
            if ctx.asked_by is not None:
                ctx.abort("no calls of your own")
            return await call_next()

    agent = agent_with(model).use(asks).use(Guard())
    async with agent, agent.session() as session:
        with at_most(), pytest.raises(TurnAborted, match="no calls of your own") as caught:
            await session.run("go")
        assert caught.value.by == "guard.own_calls"
        assert last_of(session).status == "aborted"
    assert model.requests == []


@each_hook
async def test_an_except_exception_does_not_catch_an_abort(hook: str) -> None:
    async def careful(ctx: Any, call_next: Any) -> Any:
        try:
            return await call_next()
        except Exception:
            return fake_result(hook, ctx)

    async def aborts(ctx: Any, call_next: Any) -> Any:
        ctx.abort("enough")

    with at_most(), pytest.raises(TurnAborted, match="enough"):
        await agent_with(ONE_CALL).use(**{hook: careful}).use(**{hook: aborts}).run("go")


@pytest.mark.parametrize("outer_hook", INNER_HOOKS)
@each_hook
async def test_a_layer_that_swallows_an_abort_is_overruled(hook: str, outer_hook: str) -> None:
    async def swallows(ctx: Any, call_next: Any) -> Any:
        try:
            return await call_next()
        except BaseException:
            return fake_result(outer_hook, ctx)

    async def aborts(ctx: Any, call_next: Any) -> Any:
        ctx.abort("enough")

    agent = agent_with(ONE_CALL).use(**{outer_hook: swallows}).use(**{hook: aborts})
    async with agent, agent.session() as session:
        with at_most(), pytest.raises(TurnAborted, match="enough") as caught:
            await session.run("go")
        assert caught.value.by == "function.aborts"
        assert last_of(session).status == "aborted"


@pytest.mark.parametrize("swallow", ["return", "raise"])
@each_hook
async def test_an_outer_layer_sees_the_abort_and_not_what_an_inner_one_made_of_it(hook: str, swallow: str) -> None:
    seen: list[Any] = []

    async def outer(ctx: Any, call_next: Any) -> Any:
        try:
            result = await call_next()
            seen.append(result)
            return result
        except BaseException as error:
            seen.append(error)
            raise

    async def swallows(ctx: Any, call_next: Any) -> Any:
        try:
            return await call_next()
        except BaseException as error:
            if swallow == "raise":
                raise RuntimeError("converted") from error
            return fake_result(hook, ctx)

    async def aborts(ctx: Any, call_next: Any) -> Any:
        ctx.abort("enough")

    agent = agent_with(ONE_CALL)
    for layer in (outer, swallows, aborts):
        agent.use(**{hook: layer})
    with at_most(), pytest.raises(TurnAborted, match="enough"):
        await agent.run("go")

    assert len(seen) == 1
    assert isinstance(seen[0], BaseException)
    assert not isinstance(seen[0], Exception)


@each_hook
async def test_a_layer_that_turns_an_abort_into_an_error_is_overruled(hook: str) -> None:
    async def converts(ctx: Any, call_next: Any) -> Any:
        try:
            return await call_next()
        except BaseException as error:
            raise RuntimeError("converted") from error

    async def aborts(ctx: Any, call_next: Any) -> Any:
        ctx.abort("enough")

    with at_most(), pytest.raises(TurnAborted, match="enough"):
        await agent_with(ONE_CALL).use(**{hook: converts}).use(**{hook: aborts}).run("go")


@each_hook
async def test_a_layer_that_swallows_its_own_abort_is_overruled_at_its_exit(hook: str) -> None:
    async def changes_its_mind(ctx: Any, call_next: Any) -> Any:
        try:
            ctx.abort("enough")
        except BaseException:
            return fake_result(hook, ctx)

    with at_most(), pytest.raises(TurnAborted, match="enough"):
        await agent_with(ONE_CALL).use(**{hook: changes_its_mind}).run("go")


@each_hook
async def test_a_retry_layer_with_except_base_exception_cannot_retry_an_abort(hook: str) -> None:
    attempts: list[str] = []
    entered: list[str] = []

    @hookimpl(repeats=True)
    async def stubborn(ctx: Any, call_next: Any) -> Any:
        for _ in range(3):
            attempts.append(hook)
            try:
                return await call_next()
            except BaseException:
                continue
        return fake_result(hook, ctx)

    async def aborts(ctx: Any, call_next: Any) -> Any:
        entered.append(hook)
        ctx.abort("enough")

    with at_most(), pytest.raises(TurnAborted, match="enough"):
        await agent_with(ONE_CALL).use(**{hook: stubborn}).use(**{hook: aborts}).run("go")

    assert len(attempts) == 3
    assert entered == [hook]


async def test_a_retry_around_the_model_cannot_retry_the_abort_of_another_plugin_by_calling_the_model() -> None:
    model = ScriptedModel(["never", "never", "never"])

    @hookimpl(repeats=True)
    async def stubborn(ctx: Any, call_next: Any) -> Any:
        try:
            ctx.abort("enough")
        except BaseException:
            for _ in range(2):
                try:
                    await call_next()
                except BaseException:
                    continue
        return answer("fake")

    with at_most(), pytest.raises(TurnAborted, match="enough"):
        await agent_with(model).use(model=stubborn).run("go")
    assert model.requests == []


@each_hook
async def test_call_model_raises_at_once_in_an_aborted_turn(hook: str) -> None:
    model = ScriptedModel([[call("echo", text="x")], "done", "never"])
    raised: list[BaseException] = []

    async def asks_again(ctx: Any, call_next: Any) -> Any:
        try:
            return await call_next()
        except BaseException:
            try:
                await ctx.call_model("what now?")
            except BaseException as error:
                raised.append(error)
            return fake_result(hook, ctx)

    async def aborts(ctx: Any, call_next: Any) -> Any:
        ctx.abort("enough")

    agent = agent_with(model).use(**{hook: asks_again}).use(**{hook: aborts})
    before = {"turn": 0, "model": 0, "tool": 1}[hook]
    with at_most(), pytest.raises(TurnAborted, match="enough"):
        await agent.run("go")

    assert len(model.requests) == before
    assert len(raised) == 1
    assert not isinstance(raised[0], Exception)


async def test_an_aborted_turn_lets_no_other_branch_reach_the_model() -> None:
    model = ScriptedModel(["never", "never"])
    raised: list[BaseException] = []

    @hookimpl(concurrent=True)
    async def two_ways(ctx: Any, call_next: Any) -> Any:
        async def late() -> None:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.02)
                try:
                    await call_next()
                except BaseException as error:
                    raised.append(error)

        async def at_once() -> None:
            ctx.abort("enough")

        async with anyio.create_task_group() as group:
            group.start_soon(late)
            group.start_soon(at_once)
        return answer("fake")

    with at_most(), pytest.raises(TurnAborted, match="enough"):
        await agent_with(model).use(model=two_ways).run("go")

    assert model.requests == []
    assert len(raised) == 1
    assert not isinstance(raised[0], Exception)


async def test_an_aborted_turn_lets_no_sibling_start_its_tool() -> None:
    ran: list[str] = []

    @tool
    async def wipe() -> str:
        ran.append("wiped")
        return "gone"

    @tool
    async def alarm(ctx: ToolContext) -> str:
        await anyio.sleep(0.01)
        ctx.abort("fire")

    async def stubborn(ctx: Any, call_next: Any) -> Any:
        if ctx.tool.name == "wipe":
            with contextlib.suppress(BaseException):
                await anyio.sleep(SECONDS_LONG)
        return await call_next()

    agent = agent_with([[call("wipe"), call("alarm")], "never"], tools=[wipe, alarm]).use(tool=stubborn)
    async with agent, agent.session() as session:
        with at_most(), pytest.raises(TurnAborted, match="fire"):
            await session.run("go")
        assert ran == []
        assert set(results_of(session)) == {"c1", "c2"}
        assert last_of(session).status == "aborted"


def three_tools(log: list[str], *, unwinding: anyio.Event | None = None) -> list[Any]:
    """Return two tools that sleep and write down how they end, and one that aborts.

    With `unwinding` they set it when they are cancelled, and take a while to clean up.
    """

    async def sleeper(name: str) -> str:
        try:
            await anyio.sleep(SECONDS_LONG)
        except BaseException:
            if unwinding is not None:
                unwinding.set()
                with anyio.CancelScope(shield=True):
                    await anyio.sleep(0.05)
            log.append(f"{name} was cancelled")
            raise
        log.append(f"{name} finished")
        return name

    @tool
    async def left() -> str:
        return await sleeper("left")

    @tool
    async def right() -> str:
        return await sleeper("right")

    @tool
    async def alarm(ctx: ToolContext) -> str:
        await anyio.sleep(0.01)
        ctx.abort("fire")

    return [left, alarm, right]


THREE_CALLS = [[call("left"), call("alarm"), call("right")], "never"]


async def test_an_abort_in_one_of_three_parallel_tools_ends_its_siblings_and_every_call_has_a_result() -> None:
    log: list[str] = []
    agent = agent_with(THREE_CALLS, tools=three_tools(log))
    async with agent, agent.session() as session:
        before = tasks_now()
        with at_most(), anyio.fail_after(4), pytest.raises(TurnAborted, match="fire") as caught:
            await session.run("go")

        assert tasks_now() == before
        assert not isinstance(caught.value, BaseExceptionGroup)
        assert sorted(log) == ["left was cancelled", "right was cancelled"]
        found = results_of(session)
        assert set(found) == {"c1", "c2", "c3"}
        assert all(result.is_error for result in found.values())
        assert kinds_of(session).count("tool.result") == 3
        assert last_of(session).status == "aborted"


@pytest.mark.parametrize("hook", ["turn", "tool"])
@pytest.mark.parametrize("limit", ["move_on_after", "fail_after", "asyncio.timeout", "asyncio.wait_for"])
async def test_an_abort_in_one_of_three_tools_comes_out_of_a_layers_own_time_limit(
    hook: str, limit: str, anyio_backend_name: str
) -> None:
    if limit.startswith("asyncio") and anyio_backend_name == "trio":
        pytest.skip("asyncio's own limits are for asyncio")
    log: list[str] = []

    async def limited(ctx: Any, call_next: Any) -> Any:
        if limit == "move_on_after":
            with anyio.move_on_after(20):
                return await call_next()
        if limit == "fail_after":
            with anyio.fail_after(20):
                return await call_next()
        if limit == "asyncio.timeout":
            async with asyncio.timeout(20):
                return await call_next()
        if limit == "asyncio.wait_for":
            return await asyncio.wait_for(call_next(), 20)
        return fake_result(hook, ctx)

    agent = agent_with(THREE_CALLS, tools=three_tools(log)).use(**{hook: limited})
    async with agent, agent.session() as session:
        with at_most(), pytest.raises(TurnAborted, match="fire"):
            await session.run("go")

        assert sorted(log) == ["left was cancelled", "right was cancelled"]
        assert set(results_of(session)) == {"c1", "c2", "c3"}
        assert last_of(session).status == "aborted"


@pytest.mark.parametrize("limit", ["move_on_after", "asyncio.timeout"])
async def test_a_callers_time_limit_that_strikes_while_an_aborted_turn_unwinds_does_no_harm(
    limit: str, anyio_backend_name: str
) -> None:
    if limit.startswith("asyncio") and anyio_backend_name == "trio":
        pytest.skip("asyncio's own limits are for asyncio")
    log: list[str] = []
    ended: list[str] = []
    unwinding = anyio.Event()
    agent = agent_with(THREE_CALLS, tools=three_tools(log, unwinding=unwinding))
    async with agent, agent.session() as session:

        async def run_limited() -> None:
            if limit == "move_on_after":
                with anyio.move_on_after(SECONDS_LONG) as scope:
                    strikes.append(scope.cancel)
                    await session.run("go")
                assert scope.cancelled_caught
            else:
                async with asyncio.timeout(SECONDS_LONG) as timeout:
                    strikes.append(lambda: timeout.reschedule(0.0))
                    await session.run("go")

        async def run() -> None:
            try:
                await run_limited()
            except TurnAborted:
                ended.append("aborted")
            except TimeoutError:
                ended.append("timed out")
            await anyio.lowlevel.checkpoint()  # nothing of the cancellation is left over

        strikes: list[Any] = []
        with at_most():
            async with anyio.create_task_group() as group:
                group.start_soon(run)
                await unwinding.wait()
                strikes[0]()

        assert len(ended) <= 1
        assert sorted(log) == ["left was cancelled", "right was cancelled"]
        assert set(results_of(session)) == {"c1", "c2", "c3"}
        assert last_of(session).status in ("aborted", "cancelled")


async def test_a_cancellation_of_an_aborted_turn_passes_unchanged() -> None:
    async def slow_to_leave(ctx: Any, call_next: Any) -> Any:
        try:
            return await call_next()
        finally:
            await anyio.sleep(SECONDS_LONG)

    async def aborts(ctx: Any, call_next: Any) -> Any:
        ctx.abort("enough")

    agent = agent_with(["never"]).use(slow_to_leave).use(model=aborts)
    with at_most():
        with anyio.move_on_after(0.05) as scope:
            await agent.run("go")
    assert scope.cancelled_caught


async def test_an_abort_from_a_child_task_of_a_layer_is_the_abort_itself() -> None:
    model = SlowModel([(SECONDS_LONG, "never")])

    async def racing_guard(ctx: Any, call_next: Any) -> Any:
        async def check() -> None:
            await anyio.sleep(0.01)
            ctx.abort("not allowed")

        async with anyio.create_task_group() as group:
            group.start_soon(check)
            response = await call_next()
            group.cancel_scope.cancel()
        return response

    agent = agent_with(model).use(model=racing_guard, phase="verify")
    async with agent, agent.session() as session:
        with at_most(), pytest.raises(TurnAborted, match="not allowed") as caught:
            await session.run("go")
        assert caught.value.by == "function.racing_guard"
        assert last_of(session).status == "aborted"


async def test_of_a_group_with_an_abort_the_abort_is_raised_and_the_rest_become_notes() -> None:
    async def group(ctx: Any, call_next: Any) -> Any:
        async def fails() -> None:
            try:
                await anyio.sleep(SECONDS_LONG)
            finally:
                raise RuntimeError("the side task broke")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(fails)
            await anyio.sleep(0.01)
            return await call_next()

    async def aborts(ctx: Any, call_next: Any) -> Any:
        ctx.abort("enough")

    agent = agent_with(["never"]).use(model=group).use(model=aborts)
    with at_most(), pytest.raises(TurnAborted, match="enough") as caught:
        await agent.run("go")

    assert any("the side task broke" in note for note in notes_of(caught.value))


async def test_when_the_tool_batch_of_an_aborted_turn_fails_twice_the_abort_is_raised_and_the_rest_become_notes() -> (
    None
):
    async def layer(ctx: Any, call_next: Any) -> Any:
        if ctx.call_id == "c1":
            raise RuntimeError("the layer broke")
        try:
            await anyio.sleep(SECONDS_LONG)
        finally:
            ctx.abort("second thoughts")
        return await call_next()

    agent = agent_with([[call("echo", text="a"), call("echo", text="b")], "never"]).use(tool=layer)
    async with agent, agent.session() as session:
        with at_most(), pytest.raises(TurnAborted, match="second thoughts") as caught:
            await session.run("go")

        assert not isinstance(caught.value, BaseExceptionGroup)
        assert any("the layer broke" in note for note in notes_of(caught.value))
        assert set(results_of(session)) == {"c1", "c2"}


async def test_two_tools_that_abort_at_once_are_one_abort() -> None:
    both_there = anyio.Event()
    here: list[str] = []

    @tool
    async def alarm(ctx: ToolContext) -> str:
        here.append(ctx.call_id)
        if len(here) == 2:
            both_there.set()
        await both_there.wait()
        ctx.abort(f"fire in {ctx.call_id}")

    agent = agent_with([[call("alarm"), call("alarm")], "never"], tools=[alarm])
    async with agent, agent.session() as session:
        with at_most(), pytest.raises(TurnAborted, match="fire in c") as caught:
            await session.run("go")
        assert not isinstance(caught.value, BaseExceptionGroup)
        assert set(results_of(session)) == {"c1", "c2"}


async def test_a_sibling_that_breaks_while_an_abort_cancels_it_does_not_hide_the_abort() -> None:
    @tool
    async def alarm(ctx: ToolContext) -> str:
        await anyio.sleep(0.01)
        ctx.abort("fire")

    @tool
    async def clumsy() -> str:
        try:
            await anyio.sleep(SECONDS_LONG)
        finally:
            raise RuntimeError("the cleanup broke")

    agent = agent_with([[call("clumsy"), call("alarm")], "never"], tools=[clumsy, alarm])
    async with agent, agent.session() as session:
        with at_most(), pytest.raises(TurnAborted, match="fire"):
            await session.run("go")
        assert set(results_of(session)) == {"c1", "c2"}
        assert last_of(session).status == "aborted"


@pytest.mark.parametrize("swallow", ["return", "retry", "raise"])
async def test_a_refusal_by_the_ledger_cannot_be_caught_by_retry_or_fallback(swallow: str) -> None:
    model = ScriptedModel([[call("echo", text="x")], "never", "never", "never"])

    class Budget(Plugin[None]):
        id: ClassVar = "guard.requests"
        phase: ClassVar = "gate"

        async def session(self, ctx: Any, call_next: Any) -> None:
            ctx.ledger.limit(Limit("requests", 1, scope="session"))
            await call_next()

    @hookimpl(repeats=True)
    async def stubborn(ctx: Any, call_next: Any) -> Any:
        for _ in range(3):
            try:
                return await call_next()
            except BaseException as error:
                if swallow == "return":
                    return answer("fake")
                if swallow == "raise":
                    raise RuntimeError("converted") from error
        return answer("fake")

    agent = agent_with(model).use(Budget()).use(model=stubborn, phase="retry")
    async with agent, agent.session() as session:
        with at_most():
            result = await session.run("go")

        assert result.status == "limit"
        assert result.by == "guard.requests"
        assert len(model.requests) == 1
        assert last_of(session).status == "limit"


async def test_a_refused_tool_call_by_the_ledger_cannot_be_retried() -> None:
    ran: list[str] = []

    @tool
    async def work() -> str:
        ran.append("x")
        return "done"

    class Budget(Plugin[None]):
        id: ClassVar = "guard.calls"
        phase: ClassVar = "gate"

        async def session(self, ctx: Any, call_next: Any) -> None:
            ctx.ledger.limit(Limit("tool_calls", 2, scope="session", on="tool"))
            await call_next()

    @hookimpl(repeats=True)
    async def stubborn(ctx: Any, call_next: Any) -> Any:
        for _ in range(3):
            try:
                return await call_next()
            except BaseException:
                continue
        return tool_result(ctx, "fake")

    script = [[call("work"), call("work"), call("work")], "never"]
    agent = agent_with(script, tools=[work]).use(Budget()).use(tool=stubborn)
    async with agent, agent.session() as session:
        with at_most():
            result = await session.run("go")

        assert len(ran) == 2
        assert set(results_of(session)) == {"c1", "c2", "c3"}
        assert not any(found.text == "fake" for found in results_of(session).values())
        assert result.status == "limit"


class Budget(Plugin[None]):
    """Allows a session 1.00; a call of `dear` costs 0.40, any other 0.10, as estimated and as measured."""

    id: ClassVar = "guard.money"
    phase: ClassVar = "gate"

    async def session(self, ctx: Any, call_next: Any) -> None:
        limit = Limit(
            "usd",
            Decimal("1.00"),
            scope="session",
            estimate=lambda request: self.price(request),
            measure=lambda request, usage: self.price(request),
        )
        ctx.ledger.limit(limit)
        await call_next()

    @staticmethod
    def price(request: Any) -> Decimal:
        return Decimal("0.40") if request.model == "dear" else Decimal("0.10")


async def test_a_budget_holds_with_a_router_and_three_retries_inside() -> None:
    cheap = ScriptedModel(["never"], name="cheap")
    dear = ScriptedModel([ModelError("down")] * 9, name="dear")

    async def router(ctx: Any, call_next: Any) -> Any:
        ctx.set_model(dear)
        return await call_next()

    @hookimpl(repeats=True)
    async def retry(ctx: Any, call_next: Any) -> Any:
        for _ in range(3):
            try:
                return await call_next()
            except BaseException:
                continue
        return answer("fake")

    agent = agent_with(cheap).use(Budget()).use(model=router, phase="route").use(model=retry, phase="retry")
    async with agent, agent.session() as session:
        with at_most():
            result = await session.run("go")

        assert (result.status, result.by) == ("limit", "guard.money")
        assert len(dear.requests) == 2
        assert cheap.requests == []
        assert (await session.run("again")).status == "limit"
        assert len(dear.requests) == 2


async def test_a_budget_holds_for_attempts_that_overlap() -> None:
    dear = ScriptedModel(["a", "b", "c", "d"], name="dear", delay=0.02)

    @hookimpl(concurrent=True)
    async def four_at_once(ctx: Any, call_next: Any) -> Any:
        results: list[Any] = []

        async def attempt() -> None:
            try:
                results.append(await call_next())
            except BaseException:
                with anyio.CancelScope(shield=True):
                    await anyio.sleep(0.05)
                raise

        async with anyio.create_task_group() as group:
            for _ in range(4):
                group.start_soon(attempt)
        return results[0]

    agent = agent_with(dear).use(Budget()).use(model=four_at_once, phase="retry")
    async with agent, agent.session() as session:
        with at_most():
            result = await session.run("go")

        assert result.status == "limit"
        assert len(dear.requests) == 2


# Rule 5: a cancellation is never converted, never swallowed


def hanging(hook: str, started: anyio.Event) -> Any:
    async def hangs(ctx: Any, call_next: Any) -> Any:
        started.set()
        await anyio.sleep(SECONDS_LONG)
        return await call_next()

    return {hook: hangs}


@each_cancel
@each_hook
async def test_a_layer_that_swallows_a_cancellation_is_overruled(hook: str, how: str, anyio_backend_name: str) -> None:
    started = anyio.Event()

    async def swallows(ctx: Any, call_next: Any) -> Any:
        try:
            return await call_next()
        except BaseException:
            return fake_result(hook, ctx)

    agent = agent_with(ONE_CALL).use(**{hook: swallows}).use(**hanging(hook, started))
    async with agent, agent.session() as session:
        await cancel_after(how, anyio_backend_name, started, lambda: session.run("go"))
        assert last_of(session).status == "cancelled"


@each_cancel
@pytest.mark.parametrize("outer_hook", INNER_HOOKS)
async def test_a_cancellation_of_a_tool_comes_through_whichever_layer_swallows_it(
    outer_hook: str, how: str, anyio_backend_name: str
) -> None:
    started = anyio.Event()

    @tool
    async def hangs() -> str:
        started.set()
        await anyio.sleep(SECONDS_LONG)
        return "never"

    async def swallows(ctx: Any, call_next: Any) -> Any:
        try:
            return await call_next()
        except BaseException:
            return fake_result(outer_hook, ctx)

    agent = agent_with([[call("hangs"), call("echo", text="x")], "never"], tools=[hangs, echo])
    agent.use(**{outer_hook: swallows})
    async with agent, agent.session() as session:
        await cancel_after(how, anyio_backend_name, started, lambda: session.run("go"))

        assert set(results_of(session)) == {"c1", "c2"}
        assert last_of(session).status == "cancelled"


@each_cancel
@each_hook
async def test_a_layer_that_converts_a_cancellation_is_overruled(hook: str, how: str, anyio_backend_name: str) -> None:
    started = anyio.Event()

    async def converts(ctx: Any, call_next: Any) -> Any:
        try:
            return await call_next()
        except BaseException as error:
            raise RuntimeError("converted") from error

    agent = agent_with(ONE_CALL).use(**{hook: converts}).use(**hanging(hook, started))
    await cancel_after(how, anyio_backend_name, started, lambda: agent.run("go"))


@each_cancel
@pytest.mark.parametrize("hook", ["model", "tool"])
async def test_a_retry_layer_cannot_retry_a_cancelled_call(hook: str, how: str, anyio_backend_name: str) -> None:
    started = anyio.Event()
    entered: list[str] = []

    @hookimpl(repeats=True)
    async def stubborn(ctx: Any, call_next: Any) -> Any:
        for _ in range(3):
            try:
                return await call_next()
            except BaseException:
                continue
        return fake_result(hook, ctx)

    async def hangs(ctx: Any, call_next: Any) -> Any:
        entered.append(hook)
        if len(entered) > 1:
            return fake_result(hook, ctx)
        started.set()
        await anyio.sleep(SECONDS_LONG)
        return await call_next()

    agent = agent_with(ONE_CALL).use(**{hook: stubborn}).use(**{hook: hangs})
    await cancel_after(how, anyio_backend_name, started, lambda: agent.run("go"))


@each_cancel
async def test_a_tool_that_swallows_a_cancellation_does_not_keep_the_turn_alive(
    how: str, anyio_backend_name: str
) -> None:
    started = anyio.Event()

    @tool
    async def stubborn() -> str:
        started.set()
        with contextlib.suppress(BaseException):
            await anyio.sleep(SECONDS_LONG)
        return "still here"

    agent = agent_with([[call("stubborn")], "never"], tools=[stubborn])
    async with agent, agent.session() as session:
        await cancel_after(how, anyio_backend_name, started, lambda: session.run("go"))
        assert set(results_of(session)) == {"c1"}
        assert last_of(session).status == "cancelled"


@each_cancel
async def test_a_cancelled_turn_leaves_a_valid_history_and_the_next_turn_runs(
    how: str, anyio_backend_name: str
) -> None:
    started = anyio.Event()

    @tool
    async def quick() -> str:
        return "1"

    @tool
    async def hangs() -> str:
        await anyio.sleep(0.01)
        started.set()
        await anyio.sleep(SECONDS_LONG)
        return "never"

    agent = agent_with([[call("quick"), call("hangs")], "fine"], tools=[quick, hangs])
    async with agent, agent.session() as session:
        await cancel_after(how, anyio_backend_name, started, lambda: session.run("go"))
        found = results_of(session)
        assert (found["c1"].text, found["c1"].status) == ("1", "ok")
        assert found["c2"].status == "cancelled"
        assert last_of(session).status == "cancelled"

        assert (await session.run("and now?")).output == "fine"


async def test_asyncios_own_time_limits_see_their_cancellation_through_a_swallowing_layer(
    anyio_backend_name: str,
) -> None:
    if anyio_backend_name == "trio":
        pytest.skip("asyncio's own limits are for asyncio")

    async def swallows(ctx: Any, call_next: Any) -> Any:
        try:
            return await call_next()
        except BaseException:
            return answer("fake")

    def agent() -> Any:
        return agent_with(SlowModel([(SECONDS_LONG, "never")])).use(model=swallows)

    with at_most():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.03):
                await agent().run("go")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(agent().run("go"), 0.03)
        await asyncio.sleep(0)
        current = asyncio.current_task()
        assert current is not None
        assert current.cancelling() == 0


@pytest.mark.parametrize("limit", ["move_on_after", "fail_after", "asyncio.timeout", "asyncio.wait_for"])
@each_hook
async def test_a_layers_own_time_limit_with_a_fallback_is_legitimate(
    hook: str, limit: str, anyio_backend_name: str
) -> None:
    if limit.startswith("asyncio") and anyio_backend_name == "trio":
        pytest.skip("asyncio's own limits are for asyncio")
    started = anyio.Event()

    async def limited(ctx: Any, call_next: Any) -> Any:
        try:
            if limit == "move_on_after":
                with anyio.move_on_after(0.03):
                    return await call_next()
            elif limit == "fail_after":
                with anyio.fail_after(0.03):
                    return await call_next()
            elif limit == "asyncio.timeout":
                async with asyncio.timeout(0.03):
                    return await call_next()
            else:
                return await asyncio.wait_for(call_next(), 0.03)
        except TimeoutError:
            pass
        if hook == "turn":
            return attrs.evolve(ctx.result, text="fallback", status="completed", reason=None, output="fallback")
        return answer("fallback") if hook == "model" else tool_result(ctx, "fallback")

    agent = agent_with(ONE_CALL).use(**{hook: limited}).use(**hanging(hook, started))
    async with agent, agent.session() as session:
        with at_most():
            result = await session.run("go")

        assert result.status == "completed"
        assert result.output == ("done" if hook == "tool" else "fallback")
        if hook == "tool":
            assert results_of(session)["c1"].text == "fallback"
        last_of(session)


@pytest.mark.parametrize("swallow", ["return", "raise", "retry"])
@pytest.mark.parametrize("limit", ["move_on_after", "fail_after", "asyncio.timeout", "asyncio.wait_for"])
@each_hook
async def test_an_inner_layer_cannot_swallow_the_cancellation_by_an_outer_layers_time_limit(
    hook: str, limit: str, swallow: str, anyio_backend_name: str
) -> None:
    if limit.startswith("asyncio") and anyio_backend_name == "trio":
        pytest.skip("asyncio's own limits are for asyncio")
    entered: list[str] = []
    seen: list[Any] = []

    async def limited(ctx: Any, call_next: Any) -> Any:
        try:
            if limit == "move_on_after":
                with anyio.move_on_after(0.02):
                    seen.append(await call_next())
            elif limit == "fail_after":
                with anyio.fail_after(0.02):
                    seen.append(await call_next())
            elif limit == "asyncio.timeout":
                async with asyncio.timeout(0.02):
                    seen.append(await call_next())
            else:
                seen.append(await asyncio.wait_for(call_next(), 0.02))
        except TimeoutError:
            pass
        except Exception as error:
            seen.append(error)
        if hook == "turn":
            return attrs.evolve(ctx.result, text="fallback", status="completed", reason=None, output="fallback")
        return answer("fallback") if hook == "model" else tool_result(ctx, "fallback")

    @hookimpl(repeats=True)
    async def swallows(ctx: Any, call_next: Any) -> Any:
        for _ in range(2):
            try:
                return await call_next()
            except BaseException as error:
                if swallow == "return":
                    return fake_result(hook, ctx)
                if swallow == "raise":
                    raise RuntimeError("converted") from error
        return fake_result(hook, ctx)

    async def hangs_once(ctx: Any, call_next: Any) -> Any:
        entered.append(hook)
        if len(entered) == 1:
            await anyio.sleep(SECONDS_LONG)
        return fake_result(hook, ctx)

    agent = agent_with(ONE_CALL)
    for layer in (limited, swallows, hangs_once):
        agent.use(**{hook: layer})
    async with agent, agent.session() as session:
        with at_most():
            result = await session.run("go")

        assert seen == []
        assert result.output == ("done" if hook == "tool" else "fallback")
        if hook == "tool":
            assert results_of(session)["c1"].text == "fallback"


@pytest.mark.parametrize("swallow", ["return", "retry"])
async def test_a_tool_layer_cannot_swallow_the_cancellation_by_a_sibling_that_failed(swallow: str) -> None:
    hanging_now = anyio.Event()
    effects: list[str] = []
    error = ValueError("the layer of c1 broke")

    @tool
    async def effect() -> str:
        effects.append("x")
        hanging_now.set()
        await anyio.sleep(SECONDS_LONG)
        return "never"

    @hookimpl(repeats=True)
    async def layer(ctx: Any, call_next: Any) -> Any:
        if ctx.call_id == "c1":
            await hanging_now.wait()
            raise error
        for _ in range(2):
            try:
                return await call_next()
            except BaseException:
                if swallow == "return":
                    break
        return tool_result(ctx, "fake")

    agent = agent_with([[call("echo", text="x"), call("effect")], "never"], tools=[echo, effect]).use(tool=layer)
    async with agent, agent.session() as session:
        with at_most(), pytest.raises(ValueError) as caught:
            await session.run("go")

        assert caught.value is error
        assert effects == ["x"]
        assert results_of(session)["c2"].status == "cancelled"
        assert last_of(session).status == "failed"


async def test_a_layers_own_time_limit_without_a_fallback_is_an_error_of_the_layer() -> None:
    async def limited(ctx: Any, call_next: Any) -> Any:
        with anyio.fail_after(0.02):
            return await call_next()

    agent = agent_with(SlowModel([(SECONDS_LONG, "never")])).use(model=limited)
    async with agent, agent.session() as session:
        with at_most(), pytest.raises(TimeoutError):
            await session.run("go")
        assert last_of(session).status == "failed"


@pytest.mark.parametrize("hook", ["model", "tool"])
async def test_a_layer_may_cancel_its_inner_call_because_something_else_was_faster(hook: str) -> None:
    started = anyio.Event()

    async def races(ctx: Any, call_next: Any) -> Any:
        found: list[Any] = []
        async with anyio.create_task_group() as group:

            async def inner() -> None:
                found.append(await call_next())
                group.cancel_scope.cancel()

            async def faster() -> None:
                await started.wait()
                found.append(answer("faster") if hook == "model" else tool_result(ctx, "faster"))
                group.cancel_scope.cancel()

            group.start_soon(inner)
            group.start_soon(faster)
        return found[0]

    agent = agent_with(ONE_CALL).use(**{hook: races}).use(**hanging(hook, started))
    async with agent, agent.session() as session:
        with at_most():
            result = await session.run("go")
        assert result.output == ("faster" if hook == "model" else "done")
        last_of(session)


async def test_a_layer_may_cancel_a_task_of_its_own_on_asyncio(anyio_backend_name: str) -> None:
    if anyio_backend_name == "trio":
        pytest.skip("asyncio's own tasks are for asyncio")
    started = anyio.Event()

    async def impatient(ctx: Any, call_next: Any) -> Any:
        task = asyncio.ensure_future(call_next())
        await started.wait()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        return answer("instead")

    agent = agent_with(["never"]).use(model=impatient).use(**hanging("model", started))
    with at_most():
        assert (await agent.run("go")).output == "instead"


async def test_a_tool_may_limit_its_own_time() -> None:
    @tool
    async def limited() -> str:
        with anyio.move_on_after(0.01):
            await anyio.sleep(SECONDS_LONG)
        return "a part of it"

    agent = agent_with([[call("limited")], "done"], tools=[limited])
    async with agent, agent.session() as session:
        with at_most():
            assert (await session.run("go")).output == "done"
        assert results_of(session)["c1"].text == "a part of it"


@each_cancel
async def test_a_callers_cancellation_comes_through_a_layer_with_a_time_limit_of_its_own(
    how: str, anyio_backend_name: str
) -> None:
    started = anyio.Event()

    async def limited(ctx: Any, call_next: Any) -> Any:
        with anyio.move_on_after(SECONDS_LONG):
            return await call_next()
        return answer("fallback")

    agent = agent_with(["never"]).use(model=limited).use(**hanging("model", started))
    await cancel_after(how, anyio_backend_name, started, lambda: agent.run("go"))


async def test_a_layer_may_time_out_its_first_attempt_and_try_again() -> None:
    model = SlowModel([(SECONDS_LONG, "never")], [(0.0, "second")])

    @hookimpl(repeats=True)
    async def patient(ctx: Any, call_next: Any) -> Any:
        with anyio.move_on_after(0.02):
            return await call_next()
        return await call_next()

    with at_most():
        result = await agent_with(model).use(model=patient).run("go")
    assert result.output == "second"


async def test_cancelling_through_the_session_ends_the_turn_also_if_a_layer_swallows_it() -> None:
    started = anyio.Event()
    raised: list[BaseException] = []

    async def swallows(ctx: Any, call_next: Any) -> Any:
        try:
            return await call_next()
        except BaseException:
            return answer("fake")

    agent = agent_with(["never"]).use(model=swallows).use(**hanging("model", started))
    async with agent, agent.session() as session:

        async def run() -> None:
            try:
                await session.run("go")
            except AgentxError as error:
                raised.append(error)

        with at_most():
            async with anyio.create_task_group() as group:
                group.start_soon(run)
                await started.wait()
                assert session.cancel()

        assert len(raised) == 1
        assert last_of(session).status == "cancelled"


async def test_leaving_a_stream_early_cancels_its_turn_and_waits_for_it() -> None:
    log: list[str] = []

    async def slow_cleanup(ctx: Any, call_next: Any) -> Any:
        try:
            return await call_next()
        finally:
            with ctx.shield(1):
                await anyio.sleep(0.02)
            log.append("cleaned up")

    agent = agent_with(SlowModel([(0.0, "first"), (SECONDS_LONG, "never")])).use(model=slow_cleanup)
    async with agent, agent.session() as session:
        with at_most():
            async with session.stream("go") as stream:
                async for _ in stream.text:
                    break
        assert log == ["cleaned up"]
        assert last_of(session).status == "cancelled"
        assert stream.result.status == "cancelled"


@each_cancel
async def test_a_model_that_swallows_a_cancellation_does_not_keep_the_turn_alive(
    how: str, anyio_backend_name: str
) -> None:
    started = anyio.Event()

    class Stubborn:
        name = "stubborn"

        async def respond(self, request: Any, emit: Any) -> Any:
            started.set()
            with contextlib.suppress(BaseException):
                await anyio.sleep(SECONDS_LONG)
            return answer("still here")

    agent = agent_with(Stubborn())
    async with agent, agent.session() as session:
        await cancel_after(how, anyio_backend_name, started, lambda: session.run("go"))
        assert last_of(session).status == "cancelled"


async def test_a_second_task_cancel_while_the_first_unwinds_leaves_a_valid_history(anyio_backend_name: str) -> None:
    if anyio_backend_name == "trio":
        pytest.skip("trio cancels scopes, and those once")
    started, unwinding = anyio.Event(), anyio.Event()

    @tool
    async def slow_to_leave() -> str:
        started.set()
        try:
            await anyio.sleep(SECONDS_LONG)
        finally:
            unwinding.set()
            await anyio.sleep(0.02)
        return "never"

    agent = agent_with([[call("slow_to_leave"), call("echo", text="x")], "never"], tools=[slow_to_leave, echo])
    async with agent, agent.session() as session:
        with at_most():
            task = asyncio.ensure_future(session.run("go"))
            await started.wait()
            task.cancel()
            await unwinding.wait()
            task.cancel()
            await asyncio.wait([task])

        assert task.cancelled()
        assert set(results_of(session)) == {"c1", "c2"}
        assert last_of(session).status == "cancelled"
