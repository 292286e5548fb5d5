"""Another way from an earlier point of a conversation: a copy of it up to there, or the session itself taken back."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from ._errors import SessionBusyError, SessionError
from ._events import (
    Event,
    ModelEnd,
    SessionForked,
    SessionRewound,
    ToolCallEvent,
    ToolResultEvent,
    ToolStart,
    TurnEnd,
    TurnStart,
    UserInput,
)
from ._frames import SessionFrame
from ._messages import Message, TextPart, ToolResult, ToolStatus
from ._store import Store, replay
from ._turn import close_unfinished
from ._unfinished import Unfinished, unfinished

FORKED = "the session was forked here"
NOT_RUN = f"not run: {FORKED}"
UNKNOWN_HERE = f"outcome unknown: {FORKED}, while this call ran"


@attrs.frozen
class Effect:
    """A tool call that ran in a turn which was undone. What it did is still done."""

    turn_id: str
    call_id: str
    tool: str
    args: Mapping[str, Any]
    result: ToolResult | None
    """`None`: nobody knows how it ended."""


@attrs.frozen
class Rewound:
    """What `session.rewind` undid, and what it could not undo."""

    turns: tuple[str, ...]
    """The ids of the undone turns, oldest first."""
    effects: tuple[Effect, ...]
    input: Message | None
    """What the user had said in the first of them."""


async def fork_log(store: Store, events: Sequence[Event], origin: str, new_id: str, at: int | None) -> None:
    """Write a new session that begins with the events of another up to number `at`.

    A turn that had not come to its end there is closed: each of its calls has a result, and it has a `turn.end`.
    What waited to be delivered, and what limits have booked, stays with the other.

    Raises:
        SessionError: there is no such event, or the new session exists.
    """
    last = events[-1].seq if events else 0
    at = last if at is None else at
    if not 1 <= at <= last:
        raise SessionError(f"session {origin!r} has no event {at}: its events are 1 to {last}")
    copied = [event for event in events if event.seq <= at]
    log = await store.open(new_id)
    try:
        if log.events:
            raise SessionError(f"there is a session {new_id!r} already: fork to another id")
        for event in [*copied, *_closing(copied, origin)]:
            log.add(event)
        await log.commit("turn.end")
    finally:
        await log.close()


def _closing(events: Sequence[Event], origin: str) -> list[Event]:
    """Return what brings the last turn of some events to its end, and says that this is a fork."""
    at = events[-1].seq
    closing: list[Event] = []

    def record(cls: type[Event], turn_id: str | None, *fields: Any) -> None:
        closing.append(cls(at + len(closing) + 1, time.time(), turn_id, *fields))

    found = unfinished(events)
    if found is not None:
        for index, by in found.open_model_calls.items():
            record(ModelEnd, found.turn_id, index, None, FORKED, by)
        for call in found.waiting:
            if call.id not in found.written:
                record(ToolCallEvent, found.turn_id, call.id, call.name, call.arguments)
            record(ToolResultEvent, found.turn_id, _unsettled(found, call.id, call.name))
        record(TurnEnd, found.turn_id, "stopped", FORKED, None, found.totals.usage)
    record(SessionForked, None, origin, at)
    return closing


def _unsettled(found: Unfinished, call_id: str, name: str) -> ToolResult:
    began = call_id in found.started
    status: ToolStatus = "unknown" if began else "skipped"
    return ToolResult(call_id, name, (TextPart(UNKNOWN_HERE if began else NOT_RUN),), status)


async def rewind(frame: SessionFrame, turn: str | int) -> Rewound:
    """Undo a turn and all that came after it.

    Raises:
        SessionBusyError: a turn is running.
        SessionError: there is no such turn, or it is undone already.
    """
    if frame.turn is not None or frame.after_running is not None:
        raise SessionBusyError(f"session {frame.id!r} is running a turn; rewind it between turns")
    frame.check()
    undone = _from(turn, frame.log.events, frame.id)
    if frame.has_open_turn:
        await close_unfinished(frame, "deny")
    events = frame.log.events
    first = undone[0]
    before = replay(events[: first.seq - events[0].seq])
    kept = _common(frame.history, before.history)
    ids = tuple([start.turn_id or "" for start in undone])
    effects = _effects(events, frozenset(ids))
    said = next((e.message for e in events if isinstance(e, UserInput) and e.turn_id == first.turn_id), None)
    state = {plugin: dict(values) for plugin, values in before.state.items()}
    frame.record(SessionRewound, ids, kept, tuple(before.history[kept:]), state)
    frame.take_back(before.history, before.state)
    await frame.commit("turn.end")
    return Rewound(ids, effects, said)


def _from(turn: str | int, events: Sequence[Event], session_id: str) -> list[TurnStart]:
    """Return the turns from the given one on that are not undone.

    Raises:
        SessionError: it is not among them.
    """
    turns = standing(events)
    for place, start in enumerate(turns):
        if turn in (start.turn_id, start.turn_index) or (isinstance(turn, int) and turn == place - len(turns)):
            return turns[place:]
    known = ", ".join([f"{start.turn_index} ({start.turn_id})" for start in turns]) or "none"
    raise SessionError(f"session {session_id!r} has no turn {turn!r} that could be undone; those are: {known}")


def standing(events: Sequence[Event]) -> list[TurnStart]:
    """Return the turns of a log that are not undone, by their first start."""
    turns: list[TurnStart] = []
    for event in events:
        if isinstance(event, TurnStart) and not event.resumed:
            turns.append(event)
        elif isinstance(event, SessionRewound):
            turns = [start for start in turns if start.turn_id not in event.turns]
    return turns


def _common(now: Sequence[Message], then: Sequence[Message]) -> int:
    """Return how many messages two histories begin with in common."""
    for place, (one, other) in enumerate(zip(now, then, strict=False)):
        if one is not other and one != other:
            return place
    return min(len(now), len(then))


def _effects(events: Sequence[Event], turns: frozenset[str]) -> tuple[Effect, ...]:
    """Return the tool calls of some turns that began to run, with how they ended."""
    began: list[ToolStart] = []
    results: dict[int, ToolResult] = {}
    open_calls: dict[str, int] = {}
    for event in events:
        if event.turn_id not in turns:
            continue
        if isinstance(event, ToolStart):
            open_calls[event.call_id] = len(began)
            began.append(event)
        elif isinstance(event, ToolResultEvent) and event.result.call_id in open_calls:
            results[open_calls.pop(event.result.call_id)] = event.result
    return tuple(
        [Effect(e.turn_id or "", e.call_id, e.tool, e.args, results.get(place)) for place, e in enumerate(began)]
    )
