"""The tasks that `init` and `session` onions live in, and supervised background work.

A host is an independent task, not a child of whoever opened it: opening and closing may happen in different tasks and
in any order, and what a plugin opened is closed by the task that opened it.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import attrs

from ._errors import SessionClosedError, TurnSignal

if TYPE_CHECKING:
    from ._frames import AgentFrame, SessionFrame

logger = logging.getLogger("agentx")
CLOSE_SECONDS = 30.0
"""How long a level may take to close before its host is cancelled."""
Signal = TurnSignal | KeyboardInterrupt
running: ContextVar[Any] = ContextVar("agentx running turn", default=None)
"""The turn that the current code is part of; background work is part of none."""
opening: ContextVar[Any] = ContextVar("agentx opening", default=None)
"""The agent or session whose layers the current code opens, or holds open."""
_strong: set[Any] = set()
"""asyncio keeps only weak references to tasks."""


def in_trio() -> bool:
    if "trio" not in sys.modules:
        return False
    import trio

    return trio.lowlevel.in_trio_run()


def loop_token() -> Any:
    """Return what tells one run of an event loop from another."""
    if in_trio():
        import trio

        return trio.lowlevel.current_trio_token()
    import asyncio

    return asyncio.get_running_loop()


def loop_clock() -> Callable[[], float]:
    """Return the running loop's clock, for who reads it so often that looking for the loop each time shows."""
    if in_trio():
        import trio

        return trio.current_time
    import asyncio

    return asyncio.get_running_loop().time


def in_loop(token: Any, fn: Callable[[], None]) -> None:
    """Call `fn` in the event loop that `token` stands for: at once if this is it, else soon."""
    try:
        is_here = loop_token() is token
    except RuntimeError:
        is_here = False
    if is_here:
        fn()
    elif hasattr(token, "call_soon_threadsafe"):
        token.call_soon_threadsafe(fn)
    else:
        token.run_sync_soon(fn)


def start_task(fn: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
    """Start an independent task. `fn` must not raise."""
    if in_trio():
        import trio

        trio.lowlevel.spawn_system_task(fn, name=name)
        return
    import asyncio

    task = asyncio.get_running_loop().create_task(fn(), name=name)
    _strong.add(task)
    task.add_done_callback(_strong.discard)


def is_cancellation(error: BaseException | None) -> bool:
    """Return whether this is a backend's own cancellation."""
    if error is None or isinstance(error, Exception):
        return False
    asyncio = sys.modules.get("asyncio")
    if asyncio is not None and isinstance(error, asyncio.CancelledError):
        return True
    trio = sys.modules.get("trio")
    return trio is not None and isinstance(error, trio.Cancelled)


@attrs.define(eq=False, repr=False)
class TurnScope:
    """What cancels a running turn from outside, and knows whether its task is being cancelled."""

    _scope: anyio.CancelScope
    signal: Signal | None = None
    """Why the turn is over; layers that return or raise otherwise are overruled by it."""
    _task: Any = None
    _before: int = 0

    def __enter__(self) -> TurnScope:
        if "trio" not in sys.modules or not in_trio():
            import asyncio

            self._task = task = asyncio.current_task()
            self._before = task.cancelling() if task is not None else 0
        self._scope.__enter__()
        return self

    def __exit__(self, *error: Any) -> bool:
        return bool(self._scope.__exit__(*error))

    def cancel(self) -> None:
        self._scope.cancel()

    @property
    def cancelled_caught(self) -> bool:
        return self._scope.cancelled_caught

    def _native(self) -> bool:
        """Return whether asyncio was asked to cancel the running task, also if somebody swallowed the exception."""
        if self._task is None:
            return False
        import asyncio

        task = asyncio.current_task()
        before = self._before if task is self._task else 0
        return task is not None and task.cancelling() > before

    async def is_cancelled(self) -> bool:
        """Return whether the running task is being cancelled from outside, not only by a scope that is over."""
        if self._native():
            return True
        try:
            await anyio.lowlevel.checkpoint_if_cancelled()
        except BaseException as error:
            if is_cancellation(error):
                return True
            raise
        return False

    def may_be_cancelled(self) -> bool:
        """Return whether `check` has anything to look at."""
        return self._task is None or self._native()

    async def check(self) -> None:
        """Raise the cancellation that a tool or a model swallowed."""
        await anyio.lowlevel.checkpoint_if_cancelled()
        if self._native():
            import asyncio

            raise asyncio.CancelledError


@attrs.define(eq=False, repr=False)
class Host:
    """One task in which an onion of lifetimes is open."""

    run: Callable[[Callable[[], Awaitable[None]]], Awaitable[Any]]
    """Enters the onion around the given core."""
    frame: AgentFrame | SessionFrame
    name: str
    _opened: anyio.Event = attrs.Factory(anyio.Event)
    _closing: anyio.Event = attrs.Factory(anyio.Event)
    _closed: anyio.Event = attrs.Factory(anyio.Event)
    _reached: bool = False
    _error: BaseException | None = None
    _body_error: BaseException | None = None
    _scope: anyio.CancelScope | None = None

    async def open(self) -> None:
        """Start the task and wait until the onion is open; an error before that surfaces here."""
        start_task(self._live, self.name)
        try:
            await self._opened.wait()
        except BaseException:
            if not self._reached and self._scope is not None:
                self._scope.cancel()
            with anyio.CancelScope(shield=True):
                await self._end(None, "cancelled")
            raise
        if not self._reached:
            await self._closed.wait()
            raise self._error or SessionClosedError(f"{self.name} was not opened: a layer returned without call_next")

    async def close(self, body_error: BaseException | None = None) -> BaseException | None:
        """Let the onion unwind and wait for it; returns what went wrong there."""
        how = "ended" if body_error is None else "cancelled" if is_cancellation(body_error) else "failed"
        with anyio.CancelScope(shield=True):
            await self._end(body_error if isinstance(body_error, Exception) else None, how)
        return None if self._error is body_error else self._error

    async def _end(self, body_error: BaseException | None, how: str) -> None:
        if self.frame.closing is None:
            self.frame.closing = how
        self._body_error = body_error
        self._closing.set()
        with anyio.move_on_after(CLOSE_SECONDS):
            await self._closed.wait()
            return
        if self._scope is not None:
            self._scope.cancel()
        self._error = self._error or TimeoutError(f"{self.name} did not close within {CLOSE_SECONDS:.0f} s")
        with anyio.move_on_after(CLOSE_SECONDS):
            await self._closed.wait()

    async def _live(self) -> None:
        running.set(None)
        opening.set(self.frame)
        try:
            with anyio.CancelScope() as self._scope:
                await self.run(self._core)
        except BaseException as error:
            if is_cancellation(error) and in_trio():
                self._after(error)
                raise
            self._after(error)
        else:
            self._after(None)

    async def _core(self) -> None:
        self._reached = True
        self._opened.set()
        await self._closing.wait()
        if self._body_error is not None:
            raise self._body_error

    def _after(self, error: BaseException | None) -> None:
        """Note how the onion ended; one that ended by itself failed its level."""
        if error is not None and error is not self._body_error:
            self._error = error
        early = self._reached and not self._closing.is_set()
        if early:
            self._error = error or SessionClosedError(f"{self.name} ended by itself: a layer returned early")
            self.frame.fail(self._error)
        self._opened.set()
        self._closed.set()


@attrs.define(eq=False, repr=False)
class Background:
    """Supervised work of a plugin."""

    frame: AgentFrame | SessionFrame
    fn: Callable[[], Awaitable[Any]]
    owner: str
    on_error: str
    name: str
    done: anyio.Event = attrs.Factory(anyio.Event)
    scope: anyio.CancelScope = attrs.Factory(anyio.CancelScope)

    async def run(self) -> None:
        running.set(None)
        opening.set(None)
        try:
            with self.scope:
                await self.fn()
        except BaseException as error:
            if is_cancellation(error) and in_trio():
                raise
            if not is_cancellation(error):
                self._failed(error)
        finally:
            if self.frame.tasks is not None:
                self.frame.tasks.discard(self)
            self.done.set()

    def _failed(self, error: BaseException) -> None:
        logger.error("%s: background work %s failed: %r", self.owner, self.name, error, exc_info=error)
        if self.on_error == "fail":
            self.frame.fail(error)


def spawn(
    frame: AgentFrame | SessionFrame, fn: Callable[[], Awaitable[Any]], owner: str, on_error: str, name: str | None
) -> None:
    """Start background work of a plugin that lives as long as a level."""
    if on_error not in ("log", "fail"):
        raise ValueError(f"{owner}: on_error is 'log' or 'fail', not {on_error!r}")
    work = Background(frame, fn, owner, on_error, name or str(getattr(fn, "__qualname__", fn)))
    frame.tasks = frame.tasks or set()
    frame.tasks.add(work)
    start_task(work.run, f"{owner}: {work.name}")


async def drain(frame: AgentFrame | SessionFrame, seconds: float = CLOSE_SECONDS) -> None:
    """Wait for the background work of a level; what does not end in time is cancelled."""
    if not frame.tasks:
        return
    if frame.failure is not None:  # nobody tells it to end any more
        seconds = 0
    with anyio.CancelScope(shield=True):
        with anyio.move_on_after(seconds):
            for work in list(frame.tasks):
                await work.done.wait()
        for work in list(frame.tasks or ()):
            work.scope.cancel()
            await work.done.wait()
