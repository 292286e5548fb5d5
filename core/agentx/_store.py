"""Where sessions live: one append-only log of events for each, and the accounts that are wider than a session.

The loop adds events to a session's log as they happen and commits at fixed points: the input before the first model
call, the response before its tools run, `tool.start` before its effect, its result before the next model call, and
`turn.end` before the caller sees the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import attrs

from ._events import (
    Event,
    Events,
    HistoryReplaced,
    InputQueued,
    ModelAttempt,
    ModelEnd,
    Note,
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
from ._messages import Message, Sent, ToolResult, Totals


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


class Store(Protocol):
    """Keeps sessions. A store is used by many sessions at once."""

    @property
    def accounts(self) -> Accounts:
        """What limits wider than a turn have booked."""

    async def open(self, session_id: str) -> SessionLog:
        """Open the log of a session, empty if there is none."""

    async def sessions(self) -> Sequence[str]: ...

    async def delete(self, session_id: str) -> None: ...

    async def close(self) -> None: ...


class MemoryLog:
    """Events in a list. Whatever is added is as durable as it gets."""

    __slots__ = ("add", "events")
    is_durable = False

    def __init__(self) -> None:
        self.events = Events()
        self.add = self.events.notes.append

    async def commit(self, point: str) -> None:
        """Do nothing: memory is all there is."""

    async def close(self) -> None:
        """Do nothing: the store keeps the log."""


class MemoryStore:
    """Sessions that live as long as this object; the default of the library."""

    def __init__(self) -> None:
        self.accounts: Accounts = {}
        self._logs: dict[str, MemoryLog] = {}

    async def open(self, session_id: str) -> SessionLog:
        log = self._logs.get(session_id)
        if log is None:
            log = self._logs[session_id] = MemoryLog()
        return log

    async def sessions(self) -> Sequence[str]:
        return list(self._logs)

    async def delete(self, session_id: str) -> None:
        self._logs.pop(session_id, None)
        for key in [key for key in self.accounts if key[2:] == ("session", session_id)]:
            del self.accounts[key]

    async def close(self) -> None:
        """Do nothing: the sessions stay for as long as the store is referred to."""


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
    _calls: list[str] = attrs.Factory(list)
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
        elif isinstance(event, SessionRewound):
            self.history = [*self.history[: event.kept], *event.messages]
            self.state = {plugin: dict(values) for plugin, values in event.state.items()}
            self.open_turn, self._calls = None, []
        elif isinstance(event, SessionForked):
            self.queue.clear()

    def _model_end(self, event: ModelEnd) -> None:
        if event.response is None or event.asked_by is not None or not event.response.parts:
            return
        self.history.append(event.response.message)
        self._calls = [call.id for call in event.response.tool_calls]
        self._results.clear()

    def _tool_result(self, result: ToolResult) -> None:
        self._results[result.call_id] = result
        if self._calls and all(call in self._results for call in self._calls):
            self.history.append(Message("tool", tuple([self._results[call] for call in self._calls])))
            self._calls = []


def replay(events: Sequence[Event]) -> Replay:
    """Rebuild a session from its log."""
    state = Replay()
    for event in events:
        state.apply(event)
    return state
