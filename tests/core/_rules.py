"""What the tests of the onion rules share: agents without installed plugins, cancellers, and ways to look at a run."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import anyio
import pytest

from agentx import (
    Agent,
    ModelRequest,
    ModelResponse,
    Plugin,
    RunResult,
    Session,
    TextDelta,
    TextPart,
    Tool,
    ToolResult,
    Usage,
    tool,
)
from agentx.testing import ScriptedModel, call, check_history

INNER_HOOKS = ("turn", "model", "tool")
SECONDS = 5
"""How long a test may wait for anything."""

ONE_CALL = [call("echo", text="x"), "done"]
"""A script that enters each of the inner hooks: turn, model, tool, model."""


@tool
async def echo(text: str) -> str:
    """Return the text."""
    return text


def agent_with(
    model: Any, *, tools: Sequence[Tool] = (echo,), config: Mapping[str, Any] | None = None, **options: Any
) -> Agent[Any, str]:
    """Return an agent with nothing but what a test gives it."""
    if isinstance(model, list):
        model = ScriptedModel(model)
    settings: Any = False if config is None else config
    return Agent(model, tools=tools, config=settings, autoload="none", **options)


def place(function: Any) -> str:
    """Return `file:line` of a function, as messages name it."""
    code = getattr(function, "__func__", function).__code__
    return f"{code.co_filename}:{code.co_firstlineno}"


def answer(text: str) -> ModelResponse:
    return ModelResponse((TextPart(text),), usage=Usage(input_tokens=1, output_tokens=1))


def tool_result(ctx: Any, text: str) -> ToolResult:
    return ToolResult(ctx.call_id, ctx.tool.name, (TextPart(text),))


def fake_result(hook: str, ctx: Any) -> Any:
    """Return a result of the right type for a hook, without calling anything."""
    if hook == "tool":
        return tool_result(ctx, "fake")
    if hook == "model":
        return answer("fake")
    return ctx.result


def logging_layer(name: str, log: list[str]) -> Callable[[Any, Any], Awaitable[Any]]:
    """Return a layer that writes down when it is entered and left."""

    async def layer(ctx: Any, call_next: Any) -> Any:
        log.append(f"{name} before")
        try:
            return await call_next()
        finally:
            log.append(f"{name} after")

    layer.__name__ = name
    return layer


def results_of(session: Session[Any]) -> dict[str, ToolResult]:
    """Return the results in the history by call id, after checking that the history is valid."""
    check_history(session.history)
    return {part.call_id: part for message in session.history for part in message.parts if isinstance(part, ToolResult)}


def kinds_of(session: Session[Any]) -> list[str]:
    return [event.kind for event in session.events]


def last_of(session: Session[Any]) -> RunResult[Any]:
    """Return the last result, after checking that `turn.end` is the last event and says the same."""
    result = session.last_result
    assert result is not None
    end = session.events[-1]
    assert end.kind == "turn.end"
    assert end.status == result.status  # type: ignore[attr-defined]  # it is a turn.end
    check_history(session.history)
    return result


def tasks_now() -> set[Any]:
    """Return the tasks that are alive; those of trio live in nurseries and cannot be left behind."""
    try:
        return asyncio.all_tasks()
    except RuntimeError:
        return set()


def whole_text(error: BaseException) -> str:
    """Return everything that a person would see of an error: its chain and its notes."""
    return "".join(traceback.format_exception(error))


def notes_of(error: BaseException | None) -> list[str]:
    """Return the notes of an error and of what it was raised from."""
    found: list[str] = []
    while error is not None:
        found += getattr(error, "__notes__", [])
        error = error.__cause__ or error.__context__
    return found


class GuardBase(Plugin[None]):
    """A plugin whose failure matters; tests subclass it."""

    id: ClassVar = "guard.test"
    phase: ClassVar = "gate"


class SlowModel:
    """A model that streams each answer in pieces with a pause before each; one entry of `answers` per call."""

    name = "slow"

    def __init__(self, *answers: Sequence[tuple[float, str] | BaseException]) -> None:
        self.answers = answers
        self.requests: list[ModelRequest] = []
        self.log: list[str] = []

    async def respond(self, request: ModelRequest, emit: Any) -> ModelResponse:
        number = len(self.requests)
        self.requests.append(request)
        said = ""
        try:
            for entry in self.answers[number]:
                if isinstance(entry, BaseException):
                    raise entry
                pause, piece = entry
                await anyio.sleep(pause)
                await emit(TextDelta(piece))
                said += piece
        except BaseException:
            self.log.append(f"call {number} broke off")
            raise
        self.log.append(f"call {number} answered")
        return ModelResponse((TextPart(said),), usage=Usage(input_tokens=1, output_tokens=1))


@contextmanager
def at_most(seconds: float = SECONDS) -> Iterator[None]:
    """Fail a test that hangs; never the reason why something else passes."""
    with anyio.CancelScope(deadline=anyio.current_time() + seconds) as scope:
        yield
    if scope.cancelled_caught:
        pytest.fail(f"hung for {seconds} s")


async def _cancel_scope(started: anyio.Event, act: Callable[[], Awaitable[Any]]) -> list[Any]:
    returned: list[Any] = []
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as group:

            async def cancel() -> None:
                await started.wait()
                scope.cancel()

            group.start_soon(cancel)
            returned.append(await act())
    return returned


async def _cancel_task(started: anyio.Event, act: Callable[[], Awaitable[Any]]) -> list[Any]:
    task = asyncio.ensure_future(act())
    await started.wait()
    task.cancel()
    await asyncio.wait([task])
    return [] if task.cancelled() else [task.exception() or task.result()]


async def cancel_after(how: str, backend: str, started: anyio.Event, act: Callable[[], Awaitable[Any]]) -> None:
    """Run `act`, cancel it once `started` is set, and check that the cancellation comes out again.

    Args:
        how: `scope` for a cancel scope, `native` for asyncio's `task.cancel()` or trio's own scope.
    """
    with at_most():
        if how == "native" and backend == "asyncio":
            came_out = await _cancel_task(started, act)
        elif how == "native":
            came_out = await _cancel_trio(started, act)
        else:
            came_out = await _cancel_scope(started, act)
    assert came_out == [], "the cancellation was swallowed or converted"


async def _cancel_trio(started: anyio.Event, act: Callable[[], Awaitable[Any]]) -> list[Any]:
    import trio

    returned: list[Any] = []
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:

            async def cancel() -> None:
                await started.wait()
                scope.cancel()

            nursery.start_soon(cancel)
            returned.append(await act())
    return returned
