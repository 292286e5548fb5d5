"""A turn that paused, or whose process ended while it ran, as the log tells of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from ._approval import TOO_LATE, Decision, Deny, PendingCall, check_decision, decision_of
from ._errors import ApprovalError
from ._events import (
    ApprovalDecided,
    ApprovalRequested,
    Event,
    ModelAttempt,
    ModelEnd,
    ModelStart,
    SessionRewound,
    SteerInput,
    ToolCallEvent,
    ToolResultEvent,
    ToolStart,
    TurnEnd,
    TurnStart,
    UserInput,
)
from ._messages import Message, ModelResponse, ToolCall, ToolResult, Totals
from ._store import replay


@attrs.define(eq=False, repr=False)
class Unfinished:
    """What is known of the last turn of a log that did not come to its end."""

    start: TurnStart
    turn_id: str
    history_start: int
    """How many messages the session had before this turn."""
    log_start: int
    is_paused: bool = False
    input: Message | None = None
    """`None`: its process ended before the input was committed; nobody was told that it was taken."""
    calls: int = 0
    """Model calls that have begun."""
    open_model_calls: dict[int, str | None] = attrs.Factory(dict)
    """Those that have no end, and the plugin whose own they are."""
    totals: Totals = attrs.Factory(Totals)
    response: ModelResponse | None = None
    """The last response, unless something was said since."""
    tool_calls: tuple[ToolCall, ...] = ()
    """Its calls."""
    written: dict[str, str] = attrs.Factory(dict)
    """Their arguments as the model wrote them."""
    started: set[str] = attrs.Factory(set)
    results: dict[str, ToolResult] = attrs.Factory(dict)
    pending: dict[str, PendingCall] = attrs.Factory(dict)
    """Calls that wait for a decision, those of sub-agents by their path."""
    decided: dict[str, tuple[str, Decision]] = attrs.Factory(dict)
    """Decisions that were given, each with what it is bound to."""

    @property
    def waiting(self) -> tuple[ToolCall, ...]:
        """The calls that have no result."""
        return tuple([call for call in self.tool_calls if call.id not in self.results])

    def apply(self, event: Event) -> None:
        """Take the next event of the turn."""
        if isinstance(event, UserInput):
            self.input = event.message
        elif isinstance(event, ModelStart):
            self.calls = max(self.calls, event.call_index + 1)
            self.open_model_calls[event.call_index] = event.asked_by
        elif isinstance(event, ModelAttempt):
            self.totals.add(event.usage)
        elif isinstance(event, ModelEnd):
            self.open_model_calls.pop(event.call_index, None)
            if event.response is not None and event.asked_by is None:
                self.response = event.response
                self.tool_calls, self.results = event.response.tool_calls, {}
                self.started, self.written, self.pending, self.decided = set(), {}, {}, {}
        elif isinstance(event, SteerInput):
            self.response = None
        elif isinstance(event, TurnEnd):
            self.is_paused = event.status == "paused"
        else:
            self._apply_call(event)

    def _apply_call(self, event: Event) -> None:
        if isinstance(event, ToolCallEvent):
            self.written[event.call_id] = event.arguments
        elif isinstance(event, ToolStart):
            self.started.add(event.call_id)
        elif isinstance(event, ToolResultEvent):
            self.results[event.result.call_id] = event.result
            for call_id in [key for key in self.pending if key.partition("/")[0] == event.result.call_id]:
                del self.pending[call_id]
        elif isinstance(event, ApprovalRequested):
            self.pending[event.call_id] = PendingCall(
                event.call_id,
                event.tool,
                event.args,
                event.reason,
                event.by,
                event.time,
                event.expires,
                event.fingerprint,
                tuple(event.scopes),
                event.covers,
            )
        elif isinstance(event, ApprovalDecided):
            self.pending.pop(event.call_id, None)
            self.decided[event.call_id] = (event.fingerprint, decision_of(event))


def unfinished(events: Sequence[Event]) -> Unfinished | None:
    """Return the last turn of a log if it has not come to its end."""
    first, last = None, len(events)
    for number in range(last - 1, -1, -1):
        event = events[number]
        if first is None and (
            isinstance(event, SessionRewound) or (isinstance(event, TurnEnd) and event.status != "paused")
        ):
            return None
        if isinstance(event, TurnStart):
            first = number
            if not event.resumed:
                break
    if first is None:
        return None
    start = events[first]
    assert isinstance(start, TurnStart)  # found as one
    before = replay(events[:first])
    found = Unfinished(start, start.turn_id or "", len(before.history), before.seq)
    for event in events[first:]:
        if event.turn_id == start.turn_id:
            found.apply(event)
    return found


def bind(open_turn: Unfinished, decisions: Mapping[str, Any]) -> list[tuple[PendingCall, Decision]]:
    """Return the decisions with the calls they are about, and denials for those whose time is over.

    Raises:
        ApprovalError: a decision about a call that does not wait, or something that is none; nothing was decided.
    """
    bound: list[tuple[PendingCall, Decision]] = []
    for call_id, decision in decisions.items():
        pending = open_turn.pending.get(call_id)
        if pending is None:
            waiting = ", ".join(open_turn.pending) or "none"
            raise ApprovalError(f"no call {call_id!r} waits for a decision in this session; waiting: {waiting}")
        check_decision(decision, pending)
        if pending.has_expired and not isinstance(decision, Deny):
            decision = Deny(TOO_LATE, decision.by)
        bound.append((pending, decision))
    for call_id, pending in open_turn.pending.items():
        if pending.has_expired and call_id not in decisions:
            bound.append((pending, Deny(TOO_LATE)))
    return bound
