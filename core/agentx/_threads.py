"""The threads that sync tools run in, and what a tool's exception becomes."""

from __future__ import annotations

import contextvars
import inspect
import queue
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import anyio
import attrs

from ._codec import clean_text
from ._errors import ToolFailed, TurnSignal

_IDLE_SECONDS = 10.0


@attrs.define(eq=False)
class _Job:
    tool: str
    function: Callable[[], Any]
    context: contextvars.Context
    soon: Callable[[Callable[[], None]], object]
    entered: anyio.Event = attrs.field(factory=lambda: anyio.Event())  # anyio loads it on use
    done: anyio.Event = attrs.field(factory=lambda: anyio.Event())
    value: Any = None
    error: BaseException | None = None
    finished: bool = False
    abandoned: bool = False


_Inbox: TypeAlias = queue.SimpleQueue[_Job]


class ToolThreads:
    """The places that an agent's sync tools run in, each a thread of its own; safe to share between event loops.

    anyio's threads do not fit: on asyncio they hold up the exit of the process, and a hung one gives up its place.
    A tool that is still running when its call was cancelled or timed out keeps its place until it ends, and what it
    returns is dropped. The threads are daemons.

    Args:
        places: sync tools that may run at a time.
        patience: seconds that a call waits for a place while some are held by hung tools.
    """

    def __init__(self, places: int = 40, *, patience: float = 30.0) -> None:
        self.places = places
        self.patience = patience
        self._lock = threading.Lock()
        self._jobs: set[_Job] = set()
        self._waiting: deque[_Job] = deque()
        self._idle: list[_Inbox] = []

    @property
    def hung(self) -> Mapping[str, int]:
        """The tools still running after their call has ended, and how many of each."""
        with self._lock:
            return Counter([job.tool for job in self._jobs if job.abandoned])

    async def run(self, tool: str, function: Callable[[], Any]) -> Any:
        """Run `function` in a thread with the caller's context variables; wait for a place first.

        Raises:
            ToolFailed: the places are held by hung tools, or the function raised what cannot pass a coroutine.
        """
        from anyio.lowlevel import checkpoint_if_cancelled

        await checkpoint_if_cancelled()
        job = _Job(tool, function, _context(), _soon())
        await self._enter(job)
        self._start(job)
        try:
            await job.done.wait()
        except BaseException:
            with self._lock:
                job.abandoned = not job.finished
            if job.finished:
                _drop(job.value)
            raise
        return self._outcome(job)

    def _outcome(self, job: _Job) -> Any:
        error, job.error = job.error, None  # no cycle through the traceback
        try:
            if error is None:
                return job.value
            if isinstance(error, Exception | KeyboardInterrupt | TurnSignal) and not isinstance(error, StopIteration):
                raise error
            raise failed(job.tool, error) from error
        finally:
            del error

    def _start(self, job: _Job) -> None:
        with self._lock:
            inbox = self._idle.pop() if self._idle else None
        if inbox is not None:
            inbox.put(job)
            return
        inbox = queue.SimpleQueue()
        inbox.put(job)
        try:
            threading.Thread(target=self._serve, args=(inbox,), name="agentx tool", daemon=True).start()
        except RuntimeError as error:  # the system has no more, or the interpreter is on its way out
            self._leave(job)
            raise ToolFailed(f"no thread for tool {job.tool!r}: {error}", tool=job.tool, reason="limiter") from error

    def _serve(self, inbox: _Inbox) -> None:
        """Run one job after another, until none has come for a while."""
        while True:
            try:
                job = inbox.get(timeout=_IDLE_SECONDS)
            except queue.Empty:
                with self._lock:
                    if inbox in self._idle:
                        self._idle.remove(inbox)
                        return
                continue  # a job is on its way
            job.context.run(self._work, job, inbox)
            del job

    def _work(self, job: _Job, inbox: _Inbox) -> None:
        try:
            job.value = job.function()
        except BaseException as error:
            job.error = error
        self._leave(job)
        with self._lock:
            job.finished = True
            self._idle.append(inbox)
        if job.abandoned:
            _drop(job.value)
        else:
            _notify(job, job.done)

    async def _enter(self, job: _Job) -> None:
        with self._lock:
            if len(self._jobs) < self.places:
                self._jobs.add(job)
                return
            all_hung = all(other.abandoned for other in self._jobs)
            if not all_hung:
                self._waiting.append(job)
        if all_hung:
            raise self._full(job)
        try:
            while not job.entered.is_set():
                with anyio.move_on_after(self.patience):
                    await job.entered.wait()
                if not job.entered.is_set() and self.hung:
                    raise self._full(job)
        except BaseException:
            self._leave(job)
            raise

    def _leave(self, job: _Job) -> None:
        """Give up the job's place, or its wait for one; a place goes to the call that has waited longest."""
        with self._lock:
            if job in self._waiting:
                self._waiting.remove(job)
                return
            self._jobs.discard(job)
            while self._waiting and len(self._jobs) < self.places:
                heir = self._waiting.popleft()
                if _notify(heir, heir.entered):
                    self._jobs.add(heir)

    def _full(self, job: _Job) -> ToolFailed:
        hung = ", ".join(f"{tool} ×{count}" if count > 1 else tool for tool, count in sorted(self.hung.items()))
        return ToolFailed(
            f"tool {job.tool!r} could not start: the {self.places} places for sync tools are taken, "
            f"and these tools hang: {hung}",
            tool=job.tool,
            reason="limiter",
        )


def _soon() -> Callable[[Callable[[], None]], object]:
    """Return what schedules a function in the running event loop from any thread, without waiting."""
    import asyncio

    if anyio.get_cancelled_exc_class() is asyncio.CancelledError:
        return asyncio.get_running_loop().call_soon_threadsafe
    import trio

    return trio.lowlevel.current_trio_token().run_sync_soon


def _context() -> contextvars.Context:
    """Return a copy of the caller's context in which no event loop is running: a sync tool may start its own."""
    context = contextvars.copy_context()
    if sniffio := sys.modules.get("sniffio"):
        context.run(sniffio.current_async_library_cvar.set, None)
    return context


def _notify(job: _Job, event: anyio.Event) -> bool:
    """Set `event` in the job's event loop; False when that loop is closed."""
    try:
        job.soon(event.set)
    except RuntimeError:
        return False
    return True


def _drop(value: Any) -> None:
    if inspect.iscoroutine(value):
        value.close()  # a late result that nobody will await


def clip(text: str, length: int) -> str:
    """Return `text`, cut after `length` characters with a word on how long it was."""
    return text if len(text) <= length else f"{text[:length]}… ({len(text):,} characters)"


def failed(tool: str, error: BaseException) -> ToolFailed:
    """Return what the tool raised as its failure; a group of one is that one."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    text = clip(clean_text(_text_of(error)), 2000)
    reason = "exit" if isinstance(error, SystemExit) else "error"
    return ToolFailed(f"{type(error).__name__}: {text}" if text else type(error).__name__, tool=tool, reason=reason)


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "(an error whose text cannot be had)"
