"""Plugins that each break one rule, and the check that has to find it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, ClassVar

import anyio
import anyio.lowlevel
import attrs

from agentx import (
    AgentContext,
    CallNext,
    Key,
    ModelContext,
    ModelResponse,
    Plugin,
    RunResult,
    SessionContext,
    TextDelta,
    TextPart,
    ToolContext,
    ToolResult,
    TurnContext,
    hookimpl,
    reduced,
)

Next = CallNext[Any]
BAD: dict[type[Plugin[Any]], str] = {}
"""Every bad plugin with the name of the check."""


def breaks(check: str) -> Callable[[type[Plugin[Any]]], type[Plugin[Any]]]:
    def note(cls: type[Plugin[Any]]) -> type[Plugin[Any]]:
        BAD[cls] = check
        return cls

    return note


@attrs.frozen
class Counts:
    turns: int = reduced(lambda old, new: old + new, default=0)
    calls: int = reduced(lambda old, new: old + new, default=0)


class Good(Plugin[Counts]):
    """All five hooks, state, an addition to the request, a service, clean-up: and nothing wrong."""

    id: ClassVar = "context.good"
    provides: ClassVar = (Key("good"),)
    hint: str = "Be polite."

    async def init(self, ctx: AgentContext, call_next: CallNext[None]) -> None:
        ctx.provide(Key("good"), object())
        await call_next()

    async def session(self, ctx: SessionContext, call_next: CallNext[None]) -> None:
        ctx.start_soon(anyio.lowlevel.checkpoint)
        try:
            await call_next()
        finally:
            with ctx.shield(1):
                await anyio.lowlevel.checkpoint()

    async def turn(self, ctx: TurnContext, call_next: CallNext[RunResult[Any]]) -> RunResult[Any]:
        ctx.update(self, turns=1)
        return await call_next()

    async def model(self, ctx: ModelContext, call_next: CallNext[ModelResponse]) -> ModelResponse:
        ctx.add_context(self.hint)
        try:
            return await call_next()
        except ValueError:
            raise

    async def tool(self, ctx: ToolContext, call_next: CallNext[ToolResult]) -> ToolResult:
        ctx.update(self, calls=1)
        return await call_next()


class GoodObserver(Plugin[Counts]):
    """Counts, times and looks, in phase observe."""

    id: ClassVar = "observe.good"

    async def turn(self, ctx: TurnContext, call_next: CallNext[RunResult[Any]]) -> RunResult[Any]:
        try:
            return await call_next()
        finally:
            ctx.update(self, turns=1)

    async def model(self, ctx: ModelContext, call_next: CallNext[ModelResponse]) -> ModelResponse:
        response = await call_next()
        with anyio.move_on_after(1):
            await anyio.lowlevel.checkpoint()
        return response


class GoodRetry(Plugin):
    """Calls again, once, after any error."""

    id: ClassVar = "model.retry"

    @hookimpl(repeats=True)
    async def model(self, ctx: ModelContext, call_next: CallNext[ModelResponse]) -> ModelResponse:
        try:
            return await call_next()
        except Exception:
            return await call_next()


GOOD: Sequence[type[Plugin[Any]]] = (Good, GoodObserver, GoodRetry)


@breaks("plain_turn")
class FailsOnClosing(Plugin):
    id: ClassVar = "context.fails_on_closing"

    async def session(self, ctx: SessionContext, call_next: CallNext[None]) -> None:
        await call_next()
        raise RuntimeError("the connection is gone already")


@breaks("plain_turn")
class BreaksTheHistory(Plugin):
    id: ClassVar = "context.breaks_the_history"

    async def model(self, ctx: ModelContext, call_next: Next) -> Any:
        kept = [message for message in ctx.request.messages if message.role != "tool"]
        ctx.request = attrs.evolve(ctx.request, messages=kept)
        return await call_next()


@breaks("call_next_once")
class CallsTwice(Plugin):
    id: ClassVar = "context.calls_twice"

    async def model(self, ctx: ModelContext, call_next: Next) -> Any:
        await call_next()
        return await call_next()


@breaks("call_next_once")
class NeverCalls(Plugin):
    id: ClassVar = "context.never_calls"

    async def model(self, ctx: ModelContext, call_next: Next) -> Any:
        if any(message.role == "tool" for message in ctx.request.messages):
            word = ctx.input.text.split()[-1].rstrip(".")
            text = f"Here is what I found about {word}: it grows slowly."
            return ModelResponse((TextPart(text),), model="scenario")
        return await call_next()


@breaks("call_next_once")
class ForgetsToReturn(Plugin):
    id: ClassVar = "context.forgets_to_return"

    async def tool(self, ctx: ToolContext, call_next: Next) -> Any:
        await call_next()


@breaks("every_hook_runs")
class HidesTheToolsItWraps(Plugin):
    id: ClassVar = "context.hides_the_tools_it_wraps"

    async def model(self, ctx: ModelContext, call_next: Next) -> Any:
        ctx.hide_tools(*[spec.name for spec in ctx.request.tools])
        return await call_next()

    async def tool(self, ctx: ToolContext, call_next: Next) -> Any:
        return await call_next()


@breaks("results_pass")
class Shouts(Plugin):
    id: ClassVar = "context.shouts"

    async def model(self, ctx: ModelContext, call_next: Next) -> Any:
        response = await call_next()
        return attrs.evolve(response, id="changed")


@breaks("results_pass")
class ForgetsToReturnWhatItObserves(Plugin):
    id: ClassVar = "observe.forgets_to_return"

    async def turn(self, ctx: TurnContext, call_next: Next) -> Any:
        await call_next()


@breaks("exceptions_pass")
class Wraps(Plugin):
    id: ClassVar = "context.wraps"

    async def model(self, ctx: ModelContext, call_next: Next) -> Any:
        try:
            return await call_next()
        except Exception as error:
            raise RuntimeError("the model failed") from error


@breaks("exceptions_pass")
class Swallows(Plugin):
    id: ClassVar = "context.swallows"

    async def tool(self, ctx: ToolContext, call_next: Next) -> Any:
        try:
            return await call_next()
        except Exception as error:
            return ToolResult(ctx.call_id, ctx.tool.name, (TextPart(str(error)),))


@breaks("exceptions_pass")
class SwallowsWhatTheBodyRaised(Plugin):
    id: ClassVar = "context.swallows_what_the_body_raised"

    async def session(self, ctx: SessionContext, call_next: CallNext[None]) -> None:
        try:
            await call_next()
        except Exception:
            return


@breaks("cancellation_passes")
class SwallowsCancellation(Plugin):
    id: ClassVar = "context.swallows_cancellation"

    async def model(self, ctx: ModelContext, call_next: Next) -> Any:
        try:
            return await call_next()
        except anyio.get_cancelled_exc_class():
            return ModelResponse((TextPart("I was interrupted."),))


@breaks("cancellation_passes")
class ConvertsCancellation(Plugin):
    id: ClassVar = "context.converts_cancellation"

    async def turn(self, ctx: TurnContext, call_next: Next) -> Any:
        try:
            return await call_next()
        except anyio.get_cancelled_exc_class():
            raise TimeoutError("the turn took too long") from None


@breaks("abort_passes")
class CatchesTheAbort(Plugin):
    id: ClassVar = "context.catches_the_abort"

    async def tool(self, ctx: ToolContext, call_next: Next) -> Any:
        try:
            return await call_next()
        except Exception:
            raise
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as error:
            return ToolResult(ctx.call_id, ctx.tool.name, (TextPart(str(error)),))


@breaks("no_task_is_left")
class LeavesATask(Plugin):
    id: ClassVar = "context.leaves_a_task"

    async def turn(self, ctx: TurnContext, call_next: Next) -> Any:
        start_task()
        return await call_next()


def start_task() -> None:
    """Start a task that nobody waits for."""
    import asyncio

    import trio

    if trio.lowlevel.in_trio_run():
        trio.lowlevel.spawn_system_task(trio.sleep, 3600)
        return
    task = asyncio.get_running_loop().create_task(asyncio.sleep(3600))
    task.add_done_callback(lambda done: done)


@breaks("sessions_are_apart")
class RemembersTheLastInput(Plugin):
    id: ClassVar = "context.remembers_the_last_input"
    memory: ClassVar[dict[str, str]] = {}

    async def turn(self, ctx: TurnContext, call_next: Next) -> Any:
        self.memory["input"] = ctx.input.text
        return await call_next()

    async def model(self, ctx: ModelContext, call_next: Next) -> Any:
        await anyio.lowlevel.checkpoint()
        ctx.add_context(f"The user wanted: {self.memory['input']}")
        return await call_next()


@attrs.frozen
class Share:
    turns: int = 0


@breaks("sessions_are_apart")
class CountsForAll(Plugin[Share]):
    id: ClassVar = "context.counts_for_all"
    provides: ClassVar = (Key("all"),)

    async def init(self, ctx: AgentContext, call_next: CallNext[None]) -> None:
        ctx.provide(Key("all"), [])
        await call_next()

    async def turn(self, ctx: TurnContext, call_next: Next) -> Any:
        turns: list[str] = ctx.get(Key("all"))
        turns.append(ctx.session_id)
        ctx.update(self, turns=len(turns))
        return await call_next()


@breaks("loop_is_not_blocked")
class SleepsInTheLoop(Plugin):
    id: ClassVar = "context.sleeps_in_the_loop"

    async def session(self, ctx: SessionContext, call_next: CallNext[None]) -> None:
        time.sleep(0.08)  # noqa: ASYNC251  # that is what is wrong with it
        return await call_next()


current: ContextVar[str] = ContextVar("current model call", default="")


@breaks("context_variables_are_restored")
class LeavesAContextVariable(Plugin):
    id: ClassVar = "context.leaves_a_context_variable"

    async def model(self, ctx: ModelContext, call_next: Next) -> Any:
        current.set(ctx.turn_id)
        return await call_next()


@breaks("observers_change_nothing")
class AddsContextAsAnObserver(Plugin):
    id: ClassVar = "observe.adds_context"

    async def model(self, ctx: ModelContext, call_next: Next) -> Any:
        try:
            ctx.add_context("Somebody is watching.")
        finally:
            result = await call_next()
        return result


class LosesTheEnd:
    """A transform that holds the newest text back and never lets it out when it is short."""

    def __init__(self) -> None:
        self.held = ""

    def feed(self, delta: Any) -> Sequence[Any]:
        if not isinstance(delta, TextDelta):
            return (delta,)
        out, self.held = self.held, delta.text
        return (TextDelta(out, delta.index),) if out else ()

    def finish(self) -> Sequence[Any]:
        return (TextDelta(self.held),) if len(self.held) > 1 else ()


@breaks("stream_is_the_answer")
class LosesText(Plugin):
    id: ClassVar = "context.loses_text"

    async def model(self, ctx: ModelContext, call_next: Next) -> Any:
        ctx.transform_deltas(LosesTheEnd)
        return await call_next()


@attrs.frozen
class Unstorable:
    seen: object = None


@breaks("plain_turn")
class KeepsALiveObject(Plugin[Unstorable]):
    id: ClassVar = "context.keeps_a_live_object"

    async def turn(self, ctx: TurnContext, call_next: Next) -> Any:
        ctx.update(self, seen=object())
        return await call_next()


@attrs.frozen
class Turns:
    count: int = 0


@breaks("state_survives")
class ForgetsWhenOpened(Plugin[Turns]):
    id: ClassVar = "context.forgets_when_opened"

    async def session(self, ctx: SessionContext, call_next: CallNext[None]) -> None:
        ctx.update(self, count=0)
        await call_next()

    async def turn(self, ctx: TurnContext, call_next: Next) -> Any:
        ctx.update(self, count=1)
        return await call_next()


@breaks("one_instance_serves_two_agents")
class OpensOnlyOnce(Plugin):
    id: ClassVar = "context.opens_only_once"
    opened: ClassVar[set[Plugin[Any]]] = set()

    async def init(self, ctx: AgentContext, call_next: CallNext[None]) -> None:
        if self in self.opened:
            raise RuntimeError("the client is connected already")
        self.opened.add(self)
        await call_next()


@breaks("instance_does_not_change")
class CountsInItself(Plugin):
    id: ClassVar = "context.counts_in_itself"
    turns: list[str] = attrs.field(factory=list)

    async def turn(self, ctx: TurnContext, call_next: Next) -> Any:
        self.turns.append(ctx.turn_id)
        return await call_next()


@breaks("instance_does_not_change")
class CanBeAssignedTo(Plugin):
    id: ClassVar = "context.can_be_assigned_to"

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    async def turn(self, ctx: TurnContext, call_next: Next) -> Any:
        return await call_next()
