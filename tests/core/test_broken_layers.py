"""Layers that break the contract of a transform, an input, arguments or an end: each is named."""

from __future__ import annotations

import logging
from typing import Any, ClassVar

import anyio
import anyio.lowlevel
import pytest

from agentx import (
    Agent,
    HookError,
    ModelContext,
    Plugin,
    TextDelta,
    TextPart,
    TurnAborted,
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
