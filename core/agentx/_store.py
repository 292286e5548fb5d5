"""Where sessions live: one append-only log of events for each, and the accounts that are wider than a session.

The loop adds events to a session's log as they happen and commits at fixed points: the input before the first model
call, the response before its tools run, `tool.start` before its effect, its result before the next model call, and
`turn.end` before the caller sees the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol
from weakref import WeakValueDictionary

import attrs

from ._errors import SessionConflictError, StoreError
from ._events import (
    Event,
    Events,
    HistoryReplaced,
    InputQueued,
    ModelAttempt,
    ModelEnd,
    Note,
    RecordDamaged,
    SessionForked,
    SessionRewound,
    SessionStart,
    StateUpdated,
    SteerInput,
    ToolResultEvent,
    TurnEnd,
    TurnStart,
    UserInput,
)
from ._ledger import Accounts
from ._messages import Message, Sent, TextPart, ToolCall, ToolResult, Totals

RUNNING = "running"
"""The status of a turn that has not ended, in a list of sessions."""
LOST = "lost: the record of this is damaged"


class SessionLog(Protocol):
    """The log of one session, open for one writer."""

    @property
    def events(self) -> Sequence[Event]:
        """What was there when it was opened, and what was added since."""

    @property
    def add(self) -> Callable[[Note], None]:
        """What takes the next event, or what `event_of` makes it from; it is durable after the next `commit`."""

    @property
    def is_durable(self) -> bool:
        """Whether `commit` does anything; the loop saves itself the call where it does not."""

    async def commit(self, point: str) -> None:
        """Make durable all that was added, in order and at once.

        Args:
            point: where the session is: `input`, `response`, `tool.start`, `tool.result`, `turn.end`, `session.end`.

        Raises:
            SessionConflictError: another process has written this session.
        """

    async def close(self) -> None:
        """Give the session up for others."""


@attrs.frozen
class SessionInfo:
    """One row of a list of sessions. Times are seconds since the epoch."""

    id: str
    user: str | None
    agent: str
    created: float
    updated: float
    turns: int
    events: int
    """Stored events; also the `seq` of the last."""
    status: str
    """That of the last turn; `running` while it has not ended, empty before the first."""


class Store(Protocol):
    """Keeps sessions. A store is used by many sessions at once.

    It opens what it needs when it is first used, also again after `close`.
    """

    @property
    def accounts(self) -> Accounts:
        """What limits wider than a turn have booked."""

    async def open(self, session_id: str) -> SessionLog:
        """Open the log of a session for writing, empty if there is none.

        Raises:
            SessionConflictError: somebody else has it open.
        """

    async def read(self, session_id: str) -> Sequence[Event]:
        """Return the events of a session, also while others write it; none if there is no such session."""

    async def sessions(self) -> Sequence[SessionInfo]:
        """Return all sessions that have an event, the last updated first."""

    async def delete(self, session_id: str) -> None:
        """Delete a session with its accounts; nothing happens if there is none.

        Raises:
            SessionConflictError: somebody has it open.
        """

    async def close(self) -> None: ...


class MemoryLog:
    """Events in a list. Whatever is added is as durable as it gets."""

    __slots__ = ("__weakref__", "_id", "_writers", "add", "events")
    is_durable = False

    def __init__(self, events: Events, session_id: str, writers: WeakValueDictionary[str, MemoryLog]) -> None:
        self.events = events
        self.add = events.notes.append
        self._id = session_id
        self._writers = writers
        writers[session_id] = self

    async def commit(self, point: str) -> None:
        """Do nothing: memory is all there is."""

    async def close(self) -> None:
        if self._writers.get(self._id) is self:
            del self._writers[self._id]


class MemoryStore:
    """Sessions that live as long as this object; the default of the library."""

    def __init__(self, url: str = "memory:") -> None:
        if url != "memory:":
            raise StoreError(f"a store in memory has no name: the URL is memory:, not {url!r}")
        self.accounts: Accounts = {}
        self._logs: dict[str, Events] = {}
        self._writers: WeakValueDictionary[str, MemoryLog] = WeakValueDictionary()

    async def open(self, session_id: str) -> SessionLog:
        self._check_free(session_id)
        events = self._logs.get(session_id)
        if events is None:
            events = self._logs[session_id] = Events()
        return MemoryLog(events, session_id, self._writers)

    def _check_free(self, session_id: str) -> None:
        if session_id in self._writers:
            raise SessionConflictError(f"session {session_id!r} is open elsewhere in this process")

    async def read(self, session_id: str) -> Sequence[Event]:
        return tuple(self._logs.get(session_id, ()))

    async def sessions(self) -> Sequence[SessionInfo]:
        found = [session_info(session_id, events) for session_id, events in self._logs.items() if events]
        return sorted(found, key=lambda info: info.updated, reverse=True)

    async def delete(self, session_id: str) -> None:
        self._check_free(session_id)
        self._logs.pop(session_id, None)
        for key in [key for key in self.accounts if key[2:] == ("session", session_id)]:
            del self.accounts[key]

    async def close(self) -> None:
        """Do nothing: the sessions stay for as long as the store is referred to."""


def session_info(session_id: str, events: Sequence[Event]) -> SessionInfo:
    """Return the row of a session in a list, from its log."""
    start = events[0]
    user, agent = (start.user, start.agent) if isinstance(start, SessionStart) else (None, "")
    turns, status = 0, ""
    for event in reversed(events):
        if isinstance(event, TurnEnd):
            status = status or event.status
        elif isinstance(event, TurnStart):
            turns, status = event.turn_index + 1, status or RUNNING
            break
    last = events[-1]
    return SessionInfo(session_id, user, agent, start.time, last.time, turns, last.seq, status)


@attrs.define(eq=False, repr=False)
class Replay:
    """What a session is after some of its events: the log alone says it."""

    agent: str = ""
    user: str | None = None
    history: list[Message] = attrs.Factory(list)
    state: dict[str, dict[str, Any]] = attrs.Factory(dict)
    totals: Totals = attrs.Factory(Totals)
    turns: int = 0
    open_turn: str | None = None
    """The turn that paused, or that was running when its process ended."""
    queue: dict[int, InputQueued] = attrs.Factory(dict)
    """Messages that wait to be delivered, by `seq`."""
    sent: dict[str, Sent] = attrs.Factory(dict)
    """What the last request had beside the history; those of plugins' own calls by the plugin."""
    seq: int = 0
    _calls: list[ToolCall] = attrs.Factory(list)
    _results: dict[str, ToolResult] = attrs.Factory(dict)

    def apply(self, event: Event) -> None:
        """Take the next event of the log."""
        self.seq = event.seq
        if isinstance(event, SessionStart):
            self.agent, self.user = event.agent, event.user
            self.history.extend(event.seed)
        elif isinstance(event, TurnStart):
            self.turns, self.open_turn = event.turn_index + 1, event.turn_id
        elif isinstance(event, UserInput | SteerInput):
            self._give_lost_results()
            self.history.append(event.message)
            if event.queued is not None:
                self.queue.pop(event.queued, None)
        elif isinstance(event, InputQueued):
            self.queue[event.seq] = event
        elif isinstance(event, ModelAttempt):
            self.totals.add(event.usage)
            if event.sent is not None:
                by = event.asked_by or ""
                self.sent[by] = event.sent.after(self.sent.get(by))
        elif isinstance(event, ModelEnd):
            self._model_end(event)
        elif isinstance(event, ToolResultEvent):
            self._tool_result(event.result)
        elif isinstance(event, HistoryReplaced):
            self.history = list(event.messages)
        elif isinstance(event, StateUpdated):
            self.state.setdefault(event.plugin, {}).update(event.values)
        elif isinstance(event, TurnEnd):
            self.open_turn = event.turn_id if event.status == "paused" else None
            if event.status != "paused":
                self._give_lost_results()
        elif isinstance(event, SessionRewound):
            self.history = [*self.history[: event.kept], *event.messages]
            self.state = {plugin: dict(values) for plugin, values in event.state.items()}
            self.open_turn, self._calls = None, []
        elif isinstance(event, SessionForked):
            self.queue.clear()
        elif isinstance(event, RecordDamaged) and event.was in (UserInput.kind, SteerInput.kind):
            self.history.append(Message("user", (TextPart(LOST),)))

    def _model_end(self, event: ModelEnd) -> None:
        if event.response is None or event.asked_by is not None or not event.response.parts:
            return
        self._give_lost_results()
        self.history.append(event.response.message)
        self._calls = list(event.response.tool_calls)
        self._results.clear()

    def _tool_result(self, result: ToolResult) -> None:
        self._results[result.call_id] = result
        if self._calls and all(call.id in self._results for call in self._calls):
            self._end_calls()

    def _end_calls(self) -> None:
        self.history.append(Message("tool", tuple([self._results[call.id] for call in self._calls])))
        self._calls = []

    def _give_lost_results(self) -> None:
        """Give calls whose results are damaged some other, or no provider would take the history."""
        if not self._calls:
            return
        for call in self._calls:
            if call.id not in self._results:
                self._results[call.id] = ToolResult(call.id, call.name, (TextPart(LOST),), "unknown")
        self._end_calls()


def replay(events: Sequence[Event]) -> Replay:
    """Rebuild a session from its log."""
    state = Replay()
    for event in events:
        state.apply(event)
    return state
