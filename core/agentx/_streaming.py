"""From a model's deltas to whoever listens, through the transforms of the layers.

The text of the response is built from what the transforms let out, so the two cannot differ.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import anyio
import attrs

from ._errors import BadResponseError, HookError
from ._events import Event, delta_event
from ._frames import ModelFrame, Sink
from ._messages import (
    AdaptedDelta,
    Delta,
    ModelResponse,
    Part,
    Report,
    TextDelta,
    TextPart,
    ThinkingDelta,
    ToolArgsDelta,
    Usage,
    UsageDelta,
)

REPORTS = (UsageDelta, AdaptedDelta)
DELTAS = (TextDelta, ThinkingDelta, ToolArgsDelta)

WINDOW = 64
"""How many deltas a stream may be ahead of its consumer, once the consumer has shown that it keeps up."""


class Reports:
    """What a model tells about an attempt besides its deltas; nobody is shown it."""

    usage: Usage | None = None
    dropped: tuple[str, ...] = ()

    def note(self, report: Report) -> None:
        if isinstance(report, UsageDelta):
            self.usage = report.usage
        else:
            self.dropped = report.dropped


def no_delta(delta: object) -> BadResponseError:
    return BadResponseError(
        f"the model emitted a {type(delta).__name__}, and not a TextDelta, ThinkingDelta or ToolArgsDelta"
    )


def unlike(response: ModelResponse, length: int) -> BadResponseError:
    """Return the error of an answer that differs from what was streamed of it."""
    counts = f"{length} characters of text and returned {len(response.text)}"
    return BadResponseError(
        f"model {response.model or 'of this call'} streamed {counts}: the deltas of a text are the text"
    )


class PlainStream(Reports):
    """The deltas of one attempt, when no layer transforms them."""

    def __init__(self, sink: Sink, call_index: int, attempt: int) -> None:
        self._sink = sink
        self._call_index = call_index
        self._attempt = attempt
        self._length = 0

    async def emit(self, delta: Delta | Report) -> None:
        if isinstance(delta, REPORTS):
            self.note(delta)
            return
        if type(delta) is TextDelta:
            self._length += len(delta.text)
        elif not isinstance(delta, DELTAS):
            raise no_delta(delta)
        await self._sink(delta, self._call_index, self._attempt)

    async def close(self, response: ModelResponse) -> ModelResponse:
        """A model that does not stream is seen as one delta for each text."""
        if not self._length:
            for delta in text_deltas(response):
                await self._sink(delta, self._call_index, self._attempt)
        elif self._length != len(response.text):
            raise unlike(response, self._length)
        return response


class BufferedStream(Reports):
    """The deltas of one attempt, straight into the buffer of a stream."""

    def __init__(self, buffer: Buffer, call_index: int, attempt: int) -> None:
        self._buffer = buffer
        self._items = buffer.items
        self._call_index = call_index
        self._attempt = attempt
        self._length = 0
        buffer.window = 1

    async def emit(self, delta: Delta | Report) -> None:
        if isinstance(delta, REPORTS):
            self.note(delta)
            return
        if type(delta) is TextDelta:
            self._length += len(delta.text)
        elif not isinstance(delta, DELTAS):
            raise no_delta(delta)
        items = self._items
        items.append((delta, self._call_index, self._attempt))
        waiting = len(items)
        if waiting == 1:
            self._buffer.wake()
        if waiting >= self._buffer.window:
            await self._buffer.wait_for_room()
            self._buffer.window = min(self._buffer.window * 2, WINDOW)

    async def close(self, response: ModelResponse) -> ModelResponse:
        if not self._length:
            for delta in text_deltas(response):
                await self.emit(delta)
        elif self._length != len(response.text):
            raise unlike(response, self._length)
        return response


class UnheardStream(Reports):
    """The deltas of one attempt, when nobody listens."""

    async def emit(self, delta: Delta | Report) -> None:
        """Drop it: the response has it all."""
        if isinstance(delta, REPORTS):
            self.note(delta)

    async def close(self, response: ModelResponse) -> ModelResponse:
        return response


@attrs.define(eq=False, repr=False)
class Transform:
    """A layer's transform of one attempt, and whose it is."""

    owner: str
    inner: Any

    def let_out(self, verb: str, *args: Delta) -> Sequence[Delta]:
        """Call `feed` or `finish` and return the deltas it lets out.

        Raises:
            HookError: the transform has no such method, or lets out something else.
        """
        method = getattr(self.inner, verb, None)
        if not callable(method):
            raise self._broken(f"has no {verb}()", "it needs feed(delta) and finish(), each returning a list of deltas")
        try:
            found = method(*args)
            deltas = list(found) if isinstance(found, Iterable) else None
        except Exception as error:
            error.add_note(f"in {verb}() of the delta transform of {self.owner}")
            raise
        if deltas is None:
            if inspect.iscoroutine(found):
                found.close()
            raise self._broken(f"returned {type(found).__name__} from {verb}()", "return a list of deltas")
        for delta in deltas:
            if not isinstance(delta, DELTAS):
                raise self._broken(f"let a {type(delta).__name__} out of {verb}()", "return a list of deltas")
        return deltas

    def _broken(self, problem: str, fix: str) -> HookError:
        kind = type(self.inner).__name__
        return HookError(f"{self.owner}: its delta transform {kind} {problem}: {fix}", plugin=self.owner, hook="model")


class TransformedStream(Reports):
    """The deltas of one attempt, through transforms; the innermost is the first."""

    def __init__(self, frame: ModelFrame, attempt: int) -> None:
        self._frame = frame
        self._attempt = attempt
        self._transforms = [Transform(owner, factory()) for owner, factory in reversed(frame.transforms)]
        self._texts: dict[int, list[str]] = {}
        self._seen: set[int] = set()
        self._in_call = False

    async def emit(self, delta: Delta | Report) -> None:
        if isinstance(delta, REPORTS):
            self.note(delta)
            return
        if isinstance(delta, TextDelta):
            self._seen.add(delta.index)
            self._in_call = False
        elif isinstance(delta, ToolArgsDelta) and not self._in_call:
            self._in_call = True
            await self._finish()
        await self._pass_on((delta,), 0)

    async def close(self, response: ModelResponse) -> ModelResponse:
        for delta in text_deltas(response):
            if delta.index not in self._seen:
                await self._pass_on((delta,), 0)
        await self._finish()
        return self._rebuilt(response)

    async def _finish(self) -> None:
        """Let out what the transforms hold: at the end, and before a tool call."""
        for number, transform in enumerate(self._transforms):
            await self._pass_on(transform.let_out("finish"), number + 1)

    async def _pass_on(self, deltas: Iterable[Delta], first: int) -> None:
        for transform in self._transforms[first:]:
            deltas = [out for delta in deltas for out in transform.let_out("feed", delta)]
        for delta in deltas:
            if isinstance(delta, TextDelta):
                self._texts.setdefault(delta.index, []).append(delta.text)
            if self._frame.sink is not None:
                await self._frame.sink(delta, self._frame.call_index, self._attempt)

    def _rebuilt(self, response: ModelResponse) -> ModelResponse:
        parts: list[Part] = []
        index = 0
        for part in response.parts:
            if isinstance(part, TextPart):
                text = "".join(self._texts.pop(index, ()))
                index += 1
                if not text and part.text:  # nothing of it was let out, and providers refuse an empty text
                    continue
                if text != part.text:  # what the provider attached belongs to its own text
                    part = TextPart(text)
            parts.append(part)
        parts.extend([TextPart("".join(texts)) for _, texts in sorted(self._texts.items()) if any(texts)])
        return attrs.evolve(response, parts=tuple(parts))


def text_deltas(response: ModelResponse) -> list[TextDelta]:
    """Return each text of a response as one delta."""
    texts = [part.text for part in response.parts if isinstance(part, TextPart)]
    return [TextDelta(text, index) for index, text in enumerate(texts) if text]


def open_stream(frame: ModelFrame, attempt: int) -> PlainStream | BufferedStream | UnheardStream | TransformedStream:
    """Return what takes the deltas of one attempt."""
    if frame.transforms:
        return TransformedStream(frame, attempt)
    if frame.sink is None:
        return UnheardStream()
    buffer = getattr(frame.sink, "__self__", None)
    if isinstance(buffer, Buffer):
        return BufferedStream(buffer, frame.call_index, attempt)
    return PlainStream(frame.sink, frame.call_index, attempt)


async def show(frame: ModelFrame, response: ModelResponse) -> ModelResponse:
    """Stream a response that no dispatch streamed, through the transforms of the layers outside of it."""
    if not frame.session.quiet:
        await frame.session.deliver()
    return await open_stream(frame, frame.attempts[0]).close(response)


Item = Event | tuple[Delta, int, int]


class Buffer:
    """What a stream has produced and its consumer not yet taken. A producer that is ahead waits.

    The window opens as the consumer keeps up: it has the first piece before the model makes the second, and a fast
    model does not pay a switch of tasks for each.
    """

    def __init__(self) -> None:
        self.items: deque[Item] = deque()
        self.window = 1
        self.closed = False
        self.started = anyio.Event()
        """The turn has begun, or could not."""
        self._more = anyio.Event()
        self._room = anyio.Event()

    async def put(self, item: Item) -> None:
        self.items.append(item)
        self.wake()
        if len(self.items) >= self.window:
            await self.wait_for_room()

    async def put_delta(self, delta: Delta, call_index: int, attempt: int) -> None:
        """Take a delta; a `Sink`."""
        await self.put((delta, call_index, attempt))

    def wake(self) -> None:
        """Tell the consumer that there is something to take."""
        self._more.set()

    async def wait_for_room(self) -> None:
        while self.items and not self.closed:
            self._room = anyio.Event()
            await self._room.wait()

    async def wait(self) -> bool:
        """Wait for something to take; `False` at the end."""
        while not self.items:
            if self.closed:
                return False
            self._room.set()
            self._more = anyio.Event()
            await self._more.wait()
        return True

    def close(self) -> None:
        """No more will come, or nobody takes any more."""
        self.closed = True
        self._more.set()
        self._room.set()


def as_event(item: Item, last: Event | None, time: float) -> Event:
    """Return an item as an event; a delta has the `seq` of the event before it."""
    if isinstance(item, Event):
        return item
    delta, call_index, attempt = item
    seq, turn_id = (last.seq, last.turn_id) if last is not None else (0, None)
    return delta_event(delta, seq, time, turn_id, call_index, attempt)
