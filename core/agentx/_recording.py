"""What a log tells of the requests, so that a session can be replayed and compared.

The messages of a request are the history that the log rebuilds. What the history does not tell is kept with
`model.attempt`, and only where it changed: instructions, tools, settings and output format together, what layers added
for the call, and a hash of what they changed in the messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs

from ._codec import digest
from ._events import Event, ModelAttempt, ModelEnd, ModelStart, TurnStart
from ._messages import Message, Messages, ModelResponse, Sent
from ._store import Replay

NEWEST = 4
"""Messages of a request that are compared with the history."""


def how_changed(messages: Sequence[Message], history: Sequence[Message]) -> str | None:
    """Return a hash of what is different from a history in the newest messages of a request; `None` if nothing is.

    Older ones were told with the attempts before; looking at them again would make a step grow with its history.
    """
    known, length = len(history), len(messages)
    changed = []
    for place in range(max(0, min(known, length) - NEWEST), length):
        message = messages[place]
        if place >= known or (message is not history[place] and message != history[place]):
            changed.append([place, message])
    if not changed and length == known:
        return None
    return digest([len(messages), changed])[:32]


@attrs.frozen
class RecordedCall:
    """One model call of a log: what was asked, as far as the log tells, and what came of it."""

    turn_id: str | None
    turn_index: int
    call_index: int
    asked_by: str | None
    """The plugin whose own call it was."""
    model: str
    history: Sequence[Message]
    """What the session remembered when it was made; of a plugin's own call the messages are not known."""
    sent: Sent
    """Prefix and context; those of older logs are not known."""
    response: ModelResponse | None
    error: str | None
    is_cached: bool
    """No model was asked: a layer answered."""


class _Reader:
    """Collects the calls of a log while it is replayed."""

    def __init__(self) -> None:
        self.calls: list[RecordedCall] = []
        self._replay = Replay()
        self._open: dict[tuple[int, str], tuple[int, ModelStart]] = {}
        self._sent: dict[tuple[int, str], ModelAttempt] = {}

    def apply(self, event: Event) -> None:
        if isinstance(event, ModelStart):
            self._open[event.call_index, event.asked_by or ""] = len(self.calls), event
            self.calls.append(self._call(event, None))
        elif isinstance(event, ModelAttempt):
            self._sent[event.call_index, event.asked_by or ""] = event
        elif isinstance(event, ModelEnd):
            place, start = self._open.pop((event.call_index, event.asked_by or ""), (None, None))
            if place is not None and start is not None:
                self.calls[place] = self._call(start, event)
        elif isinstance(event, TurnStart):
            self._open.clear()
            self._sent.clear()
        self._replay.apply(event)

    def _call(self, start: ModelStart, end: ModelEnd | None) -> RecordedCall:
        by = start.asked_by or ""
        attempt = self._sent.get((start.call_index, by))
        known = self._replay.sent.get(by, Sent())
        changed = attempt.sent.messages if attempt is not None and attempt.sent is not None else None
        history = self._replay.history
        return RecordedCall(
            start.turn_id,
            self._replay.turns - 1,
            start.call_index,
            start.asked_by,
            start.model if attempt is None else attempt.model,
            Messages((), 0) if by else Messages(history, len(history)),
            attrs.evolve(known, messages=changed),
            None if end is None else end.response,
            "the process ended" if end is None else end.error,
            attempt is None,
        )


def recorded_calls(events: Iterable[Event]) -> list[RecordedCall]:
    """Return the model calls of a log, in the order in which they began."""
    reader = _Reader()
    for event in events:
        reader.apply(event)
    return reader.calls
