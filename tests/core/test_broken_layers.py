"""Layers that break the contract of a transform, an input, arguments or an end: each is named."""

from __future__ import annotations

import logging
from typing import Any, ClassVar

import anyio
import anyio.lowlevel
import pytest

from agentx import (
    Agent,
    AgentxError,
    BadResponseError,
    HookError,
    ModelContext,
    ModelResponse,
    ModelRetrying,
    Output,
    Plugin,
    TextDelta,
    TextDeltaEvent,
    TextPart,
    TurnAborted,
    TurnContext,
    Usage,
    hookimpl,
    tool,
)
from agentx.testing import EchoModel, FunctionModel, ScriptedModel, call, check_history

ALONE: dict[str, Any] = {"config": False, "autoload": "none"}


def calls_once(name: str) -> FunctionModel:
    return FunctionModel(lambda request: call(name) if request.messages[-1].role == "user" else "done")


class ReturnsNoList:
    def feed(self, delta: Any) -> Any:
        return delta

    def finish(self) -> Any:
        return []


class ReturnsNoDelta(ReturnsNoList):
    def feed(self, delta: Any) -> Any:
        return ["text"]


class IsAsync(ReturnsNoList):
    async def feed(self, delta: Any) -> Any:
        return [delta]


class HasNoEnd:
    def feed(self, delta: Any) -> Any:
        return [delta]


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.parametrize("transform", [ReturnsNoList, ReturnsNoDelta, IsAsync, HasNoEnd])
async def test_a_transform_that_breaks_its_contract_is_named_with_its_plugin(transform: Any) -> None:
    class Rewriter(Plugin):
        id: ClassVar = "context.rewriter"

        async def model(self, ctx: ModelContext, call_next: Any) -> Any:
            ctx.transform_deltas(transform)
            return await call_next()

    with pytest.raises(HookError, match=rf"context\.rewriter.*({transform.__name__}|transform)"):
        await Agent(ScriptedModel(["hello"]), plugins=[Rewriter()], **ALONE).run("q")


async def test_a_text_that_a_transform_drops_whole_leaves_no_empty_part() -> None:
    class Drop:
        def feed(self, delta: Any) -> Any:
            return [] if isinstance(delta, TextDelta) else [delta]

        def finish(self) -> Any:
            return []

    async def layer(ctx: Any, call_next: Any) -> Any:
        ctx.transform_deltas(Drop)
        return await call_next()

    async with Agent(ScriptedModel(["hello"]), **ALONE).use(model=layer).session() as session:
        result = await session.run("q")
        assert result.status == "empty"
        assert not [part for message in session.history for part in message.parts if part == TextPart("")]


async def test_a_verifying_turn_layer_cannot_change_the_input_that_others_verified() -> None:
    async def change(ctx: Any, call_next: Any) -> Any:
        ctx.input = "something else"
        return await call_next()

    with pytest.raises((HookError, TurnAborted), match="verif"):
        await Agent(EchoModel(), **ALONE).use(change, phase="verify").run("q")


@pytest.mark.parametrize("args", [None, [1], "x"], ids=str)
async def test_arguments_that_are_no_object_are_refused_with_the_layer_s_name(args: Any) -> None:
    @tool
    def noop(x: int = 0) -> str:
        """Do nothing."""
        return "x"

    async def layer(ctx: Any, call_next: Any) -> Any:
        ctx.args = args
        return await call_next()

    with pytest.raises(HookError, match=r"function\.layer"):
        await Agent(calls_once("noop"), tools=[noop], **ALONE).use(tool=layer).run("q")


async def test_a_model_call_that_began_also_ends_when_a_stream_is_left_at_its_start() -> None:
    for steps in range(30):
        async with Agent(ScriptedModel(["one two three"]), **ALONE).session() as session:
            async with session.stream("q"):
                for _ in range(steps):
                    await anyio.lowlevel.checkpoint()
            kinds = [event.kind for event in session.events]
            assert kinds.count("model.start") == kinds.count("model.end"), steps
            assert kinds[-1] == "turn.end"
            check_history(session.history)


async def test_a_failure_after_the_turn_names_its_plugin(caplog: pytest.LogCaptureFixture) -> None:
    class Late(Plugin):
        id: ClassVar = "context.late"

        async def turn(self, ctx: Any, call_next: Any) -> Any:
            async def later() -> None:
                ctx.abort("too late")

            ctx.after_turn(later)
            return await call_next()

    with caplog.at_level(logging.WARNING, "agentx"):
        async with Agent(EchoModel(), plugins=[Late()], **ALONE).session() as session:
            await session.run("q")
            await anyio.sleep(0.02)
    assert "context.late" in caplog.text


async def test_overlapping_calls_of_call_next_are_told_of_concurrent() -> None:
    async def race(ctx: Any, call_next: Any) -> Any:
        async with anyio.create_task_group() as group:
            group.start_soon(call_next)
            group.start_soon(call_next)

    async def slow(request: Any) -> str:
        await anyio.sleep(0.01)
        return "x"

    with pytest.raises(HookError, match="concurrent=True"):
        await Agent(FunctionModel(slow), **ALONE).use(model=race).run("q")


async def test_a_repeated_turn_that_says_nothing_about_its_answer_is_told_so() -> None:
    class Twice:
        @hookimpl(repeats=True)
        async def turn(self, ctx: TurnContext, call_next: Any) -> Any:
            await call_next()
            return await call_next()

    with pytest.raises(HookError, match="send_back"):
        await Agent(ScriptedModel(["a", "b"]), **ALONE).use(Twice().turn).run("q")


async def test_a_turn_that_failed_may_be_run_again() -> None:
    class Again:
        @hookimpl(repeats=True)
        async def turn(self, ctx: TurnContext, call_next: Any) -> Any:
            try:
                return await call_next()
            except ValueError:
                return await call_next()

    def fails(request: Any) -> Any:
        raise ValueError("once")

    assert (await Agent(ScriptedModel([fails, "fine"]), **ALONE).use(Again().turn).run("q")).text == "fine"


class Streams:
    """A model that streams something else than it returns."""

    name = "streams"

    def __init__(self, delta: Any) -> None:
        self.delta = delta

    async def respond(self, request: Any, emit: Any) -> ModelResponse:
        await emit(self.delta)
        return ModelResponse((TextPart("an answer"),), "end_turn", Usage(1, 1))


@pytest.mark.parametrize("delta", [TextDelta("another answer"), "text", None, 5])
@pytest.mark.parametrize("listens", ["stream", "on"])
async def test_a_model_that_streams_something_else_than_it_returns_is_found(delta: Any, listens: str) -> None:
    async with Agent(Streams(delta), **ALONE).session() as session:
        with pytest.raises(BadResponseError, match=r"streamed|emitted"):
            if listens == "on":
                session.on("text.delta", lambda event: None)
                await session.run("q")
            else:
                async with session.stream("q") as stream:
                    async for _ in stream:
                        pass


async def test_a_response_that_a_layer_replaces_after_it_was_streamed_is_announced_and_shown() -> None:
    async def replaces(ctx: ModelContext, call_next: Any) -> ModelResponse:
        await call_next()
        return ModelResponse((TextPart("hidden"),), "end_turn", Usage(1, 1))

    agent: Agent[Any, Any] = Agent(ScriptedModel(["a secret"]), **ALONE).use(model=replaces)
    shown: list[str] = []
    async with agent.session() as session, session.stream("q") as stream:
        async for event in stream:
            if isinstance(event, ModelRetrying):
                shown.clear()
            elif isinstance(event, TextDeltaEvent):
                shown.append(event.text)
    assert "".join(shown) == stream.result.text == "hidden"


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1, "x", None])
def test_an_idle_timeout_that_is_no_time_is_refused(seconds: Any) -> None:
    with pytest.raises(AgentxError, match="idle_timeout"):
        Agent(EchoModel(), **ALONE).session(idle_timeout=seconds)


@pytest.mark.parametrize("hook", ["init", "session"])
async def test_a_lifetime_that_calls_call_next_twice_is_told_that_it_is_opened_once(hook: str) -> None:
    async def layer(ctx: Any, call_next: Any) -> None:
        await call_next()
        await call_next()

    with pytest.raises(HookError, match="opened once"):
        async with Agent(EchoModel(), **ALONE).use(**{hook: layer}).session():
            pass


async def test_an_output_with_options_and_a_schema_may_be_asked_for_in_one_turn() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    agent: Agent[Any, Any] = Agent(ScriptedModel(['{"a": 1}']), **ALONE)
    assert (await agent.run("q", output=Output(schema, retries=1))).output == {"a": 1}
