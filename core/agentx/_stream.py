"""A turn that is being watched."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Generic

import anyio

from ._errors import SessionBusyError, SessionClosedError
from ._events import Event, TextDeltaEvent
from ._host import is_cancellation
from ._messages import TextDelta, UserInput
from ._onion import collapse
from ._result import RunResult
from ._streaming import Buffer, Item, as_event
from ._turn import RunOptions, run_turn

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from ._session import Session

    Out = TypeVar("Out", default=str)
else:
    from typing import TypeVar

    Out = TypeVar("Out")


class _Events:
    """The events of a stream."""

    def __init__(self, buffer: Buffer, check: Callable[[], None]) -> None:
        self._buffer = buffer
        self._check = check
        self._last: Event | None = None

    def __aiter__(self) -> _Events:
        return self

    async def __anext__(self) -> Event:
        if not self._buffer.items and not await self._buffer.wait():
            self._check()
            raise StopAsyncIteration
        self._last = as_event(self._buffer.items.popleft(), self._last, time.time())
        return self._last


class _Texts:
    """The pieces of text of a stream."""

    def __init__(self, buffer: Buffer, check: Callable[[], None]) -> None:
        self._buffer = buffer
        self._items = buffer.items
        self._check = check

    def __aiter__(self) -> _Texts:
        return self

    async def __anext__(self) -> str:
        items = self._items
        while items or await self._buffer.wait():
            item: Item = items.popleft()
            if type(item) is tuple and type(item[0]) is TextDelta:
                return item[0].text
            if type(item) is TextDeltaEvent:
                return item.text
        self._check()
        raise StopAsyncIteration


class Stream(Generic[Out]):
    """A turn that is being watched: iterate it for events, or its `text`; then look at `result`.

    Leaving the `async with` early cancels the turn and waits for it.
    """

    def __init__(self, session: Session[Out], text: UserInput, options: RunOptions) -> None:
        self._session = session
        self._input = text
        self._options = options
        self._buffer = Buffer()
        self._result: RunResult[Out] | None = None
        self._error: BaseException | None = None
        self._entered = False
        self._opened = False
        self._left = False

    async def __aenter__(self) -> Stream[Out]:
        if self._entered:
            raise SessionBusyError("this stream is open already, or was: take another from the session")
        self._entered = True
        if self._session._frame is None:
            await self._session.__aenter__()
            self._opened = True
        self._group = anyio.create_task_group()
        await self._group.__aenter__()
        self._group.start_soon(self._run)
        try:
            await self._buffer.started.wait()
            self._check()
        except BaseException as error:
            await self.__aexit__(type(error), error, error.__traceback__)
            raise
        return self

    async def _run(self) -> None:
        frame = self._session._open_frame("stream")
        try:
            self._result = await run_turn(frame, self._input, self._options, self._buffer)
        except BaseException as error:
            if is_cancellation(error):
                raise
            self._error = error
        finally:
            self._buffer.close()
            self._buffer.started.set()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._left = True
        unfinished = self._result is None and self._error is None
        self._buffer.close()
        if unfinished:
            self._group.cancel_scope.cancel()
        try:
            if is_cancellation(error):
                await self._group.__aexit__(kind, error, traceback)
            else:
                await self._group.__aexit__(None, None, None)
        except BaseException as left:
            if not is_cancellation(left) or error is None:
                raise collapse(left)
        finally:
            if self._opened:
                with anyio.CancelScope(shield=True):
                    await self._session.__aexit__(kind, error, traceback)
        if error is None and self._error is not None:
            raise self._error

    def _check_entered(self) -> None:
        if not self._entered:
            raise SessionClosedError("the stream is not open: write `async with session.stream(…) as stream:`")

    def _check(self) -> None:
        if self._error is not None and not self._left:
            error, self._error = self._error, None
            raise error

    def __aiter__(self) -> AsyncIterator[Event]:
        self._check_entered()
        return _Events(self._buffer, self._check)

    @property
    def text(self) -> AsyncIterator[str]:
        """The pieces of the model's text, as they come.

        After `model.retrying` the pieces of that call begin anew; iterate the stream itself to see it.
        """
        self._check_entered()
        return _Texts(self._buffer, self._check)

    @property
    def result(self) -> RunResult[Out]:
        """The turn's result, once it has ended; of a turn that was left early, what there was by then."""
        if self._result is not None:
            return self._result
        frame = self._session._frame
        last: RunResult[Out] | None = frame.last_result if frame is not None else None
        if not self._left or last is None:
            raise SessionBusyError("the stream has not ended: iterate it to its end, or leave its `async with`")
        return last
