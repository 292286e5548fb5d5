"""Calls that wait for somebody's decision.

A layer, or the tool itself, asks; who can decide is an `Approver` in this process, or whoever resumes the session
later. A decision is bound to the session, the call and a hash of its arguments; text never counts as one.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import attrs

from ._codec import digest, to_plain
from ._errors import ApprovalError, PauseSignal, ToolFailed
from ._events import ApprovalDecided, ApprovalRequested
from ._frames import ToolFrame


@attrs.frozen
class Approve:
    """Let the call run as it is."""

    by: str | None = None


@attrs.frozen
class Deny:
    """Do not run the call; the model reads why."""

    reason: str = "denied"
    by: str | None = None


@attrs.frozen
class Edit:
    """Run the call with other arguments; they are validated like the model's."""

    args: Mapping[str, Any]
    by: str | None = None


@attrs.frozen
class Respond:
    """Do not run the call: this text is its result."""

    text: str
    by: str | None = None


Decision = Approve | Deny | Edit | Respond


@attrs.frozen
class PendingCall:
    """A call that waits for a decision. Of a sub-agent's, `call_id` has the ids that lead to it, with slashes."""

    call_id: str
    tool: str
    args: Mapping[str, Any]
    reason: str
    by: str
    """Who asked: a plugin, or `tool NAME` for a tool's own mark."""
    requested: float
    """Seconds since the epoch."""
    expires: float | None
    fingerprint: str

    @property
    def has_expired(self) -> bool:
        return self.expires is not None and time.time() >= self.expires


@runtime_checkable
class Approver(Protocol):
    """Decides in this process: `ctx.provide(Approver, …)` in an `init` or `session` layer."""

    async def decide(self, call: PendingCall) -> Decision | None:
        """Return the decision, or `None` if nobody can decide now: the turn pauses then."""


async def approve(frame: ToolFrame, reason: str, by: str, seconds: float | None) -> None:
    """Return when the call may run.

    Raises:
        ToolFailed: it was denied, or answered by somebody; the status says which.
        PauseSignal: nobody decides now.
    """
    turn, call, now = frame.turn, frame.call, time.time()
    args = to_plain(frame.args)
    mark = digest([turn.session.id, call.id, frame.tool.name, args])
    if frame.approved == mark:
        return
    decided = turn.decisions.get(call.id)
    if decided is not None and decided[0] == mark:
        _apply(frame, decided[1], mark)
        return
    expires = None if seconds is None else now + seconds
    session = turn.session
    session.record(ApprovalRequested, call.id, frame.tool.name, args, reason, by, expires, mark)
    if not session.quiet:
        await session.commit("approval")
    approver: Approver | None = turn.service(Approver)
    pending = PendingCall(call.id, frame.tool.name, args, reason, by, now, expires, mark)  # type: ignore[arg-type]  # JSON
    decision = None if approver is None else await approver.decide(pending)
    if decision is None:
        turn.pausing = {*(turn.pausing or ()), call.id}
        raise PauseSignal(reason, by=by)
    check_decision(decision, call.id)
    session.record(ApprovalDecided, call.id, *facts_of(decision), mark)
    _apply(frame, decision, mark)


def check_decision(decision: Any, call_id: str) -> None:
    """Refuse what is no decision.

    Raises:
        ApprovalError: naming the call, and what to give.
    """
    if not isinstance(decision, Approve | Deny | Edit | Respond):
        fix = "give Approve(), Deny(reason), Edit(args) or Respond(text)"
        raise ApprovalError(f"{decision!r} is no decision about call {call_id!r}: {fix}")


def facts_of(decision: Decision) -> tuple[str, str | None, str | None, Any]:
    """Return what the event says of a decision: its name, who decided, the reason or text, the arguments."""
    name = type(decision).__name__.lower()
    text = decision.reason if isinstance(decision, Deny) else decision.text if isinstance(decision, Respond) else None
    return name, decision.by, text, to_plain(decision.args) if isinstance(decision, Edit) else None


def decision_of(event: ApprovalDecided) -> Decision:
    """Return the decision that an event tells of."""
    if event.decision == "approve":
        return Approve(event.by)
    if event.decision == "edit":
        return Edit(event.args or {}, event.by)
    if event.decision == "respond":
        return Respond(event.reason or "", event.by)
    return Deny(event.reason or "denied", event.by)


def _apply(frame: ToolFrame, decision: Decision, mark: str) -> None:
    name = frame.tool.name
    if isinstance(decision, Deny):
        raise ToolFailed(f"denied: {decision.reason}", tool=name, reason="denied", status="denied")
    if isinstance(decision, Respond):
        raise ToolFailed(decision.text, tool=name, reason="answered", status="ok")
    if isinstance(decision, Edit):
        frame.args = dict(decision.args)
        mark = digest([frame.turn.session.id, frame.call.id, name, to_plain(frame.args)])
    frame.approved = mark
