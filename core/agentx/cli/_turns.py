"""Turns that a terminal watches. The agent lives in a thread of its own, so that Ctrl-C stays with the terminal.

Signals come to the main thread. Here that is the one that shows events, and never the one that runs the agent: a
first Ctrl-C asks the turn to end, and whatever the agent does, a second one is heard.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import ExitStack, contextmanager, redirect_stdout
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, Protocol

from anyio.from_thread import BlockingPortal, start_blocking_portal

from agentx._agent import Agent
from agentx._errors import TurnAborted
from agentx._events import Event
from agentx._result import RunResult
from agentx._session import Session

from ._exits import Exit

POLL = 0.2
"""Seconds between two looks at the view: for its clock, and for systems where waiting cannot be interrupted."""


class View(Protocol):
    """What shows a turn."""

    def open(self) -> None:
        """Prepare the terminal."""

    def show(self, event: Event) -> None: ...
    def tick(self) -> None:
        """Show that time passes."""

    def interrupted(self) -> None:
        """Show that the turn is being ended."""

    def close(self) -> None:
        """Leave the terminal as it was."""


class Cancelled(Exception):
    """The user ended the turn."""


class Conversation:
    """An open agent and one open session of it at a time."""

    def __init__(self, portal: BlockingPortal, agent: Agent[Any, Any]) -> None:
        self.agent = agent
        self._portal = portal
        self._loop: asyncio.AbstractEventLoop = portal.call(asyncio.get_running_loop)
        self._sessions = ExitStack()
        self.session: Session[Any] = agent.session()

    def __enter__(self) -> Conversation:
        self._sessions.enter_context(self._portal.wrap_async_context_manager(self.session))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return self._sessions.__exit__(kind, error, traceback)

    def renew(self) -> None:
        """Close the session and open a new one."""
        self._sessions.close()
        self.session = self.agent.session()
        self.__enter__()

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function in the agent's thread."""
        return self._portal.call(function, *args)

    def turn(self, text: str, view: View) -> RunResult[Any]:
        """Run one turn and show its events.

        Raises:
            Cancelled: by Ctrl-C; agent and session go on.
        """
        events: SimpleQueue[Event | None] = SimpleQueue()
        with _Interrupts(view) as interrupts:
            future: Future[RunResult[Any]] = self._portal.start_task_soon(self._watch, text, events.put)
            future.add_done_callback(lambda _: events.put(None))
            # does not wait for a loop that hangs
            interrupts.then(lambda: self._loop.call_soon_threadsafe(self._cancel, future))
            try:
                view.open()
                while _show_next(events, view):
                    interrupts.tell()
            except BaseException:  # nobody sees the rest: the pipe is closed, say
                future.cancel()
                raise
            finally:
                view.close()
        return _result(future, interrupts.count > 0)

    async def _watch(self, text: str, put: Callable[[Event], None]) -> RunResult[Any]:
        async with self.session.stream(text) as stream:
            async for event in stream:
                put(event)
        return stream.result

    def _cancel(self, future: Future[Any]) -> None:
        if not self.session.cancel():
            future.cancel()


def _show_next(events: SimpleQueue[Event | None], view: View) -> bool:
    """Show the next event, or that there is none yet; `False` at the end."""
    try:
        event = events.get(timeout=POLL)
    except Empty:
        view.tick()
        return True
    if event is None:
        return False
    view.show(event)
    return True


def _result(future: Future[RunResult[Any]], interrupted: bool) -> RunResult[Any]:
    try:
        return future.result()
    except CancelledError:
        raise Cancelled from None
    except TurnAborted as error:
        if interrupted and error.result is not None and error.result.status == "cancelled":
            raise Cancelled from error
        raise


class _Interrupts:
    """Ctrl-C while a turn runs: the first asks it to end, the second ends the process.

    As signals and not as `KeyboardInterrupt`, which could come in the middle of anything.
    """

    def __init__(self, view: View) -> None:
        self.count = 0
        self._view = view
        self._end: Callable[[], Any] | None = None
        self._is_told = False

    def __enter__(self) -> _Interrupts:
        self._before = signal.signal(signal.SIGINT, self._interrupt)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def then(self, end: Callable[[], Any]) -> None:
        """Say how the turn is ended; an interrupt may have come already."""
        self._end = end
        if self.count:
            end()

    def tell(self) -> None:
        """Show that the turn is being ended, once."""
        if self.count and not self._is_told:
            self._is_told = True
            self._view.interrupted()

    def _interrupt(self, *_: object) -> None:
        self.count += 1
        if self.count > 1:
            _leave_at_once(self._view)
        if self._end is not None:
            self._end()


def _leave_at_once(view: View) -> None:
    """End the process although something in the turn does not end."""
    view.close()
    sys.stdout.flush()
    sys.stderr.write("\nleft a turn that did not end\n")
    sys.stderr.flush()
    os._exit(Exit.CANCELLED)


@contextmanager
def opened(agent: Agent[Any, Any]) -> Iterator[Conversation]:
    """Open an agent and a session of it, and close both."""
    with (
        _ending_on_request(),
        _loaded(agent),
        start_blocking_portal("asyncio") as portal,
        portal.wrap_async_context_manager(agent),
        Conversation(portal, agent) as conversation,
    ):
        yield conversation


@contextmanager
def _loaded(agent: Agent[Any, Any]) -> Iterator[None]:
    """Import the plugins in this thread, where Ctrl-C is heard; what they print is no answer."""
    with redirect_stdout(sys.stderr):
        agent.stack()
    yield


@contextmanager
def _ending_on_request() -> Iterator[None]:
    """Close what is open when the process is asked to end (SIGTERM), and leave with 143."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(Exit.TERMINATED))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
