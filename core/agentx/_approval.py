"""Calls that wait for somebody's decision.

A layer, or the tool itself, asks; who can decide is an `Approver` in this process, or whoever resumes the session
later. A decision is bound to the session, the call and a hash of its arguments; text never counts as one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

import anyio
import attrs

from ._codec import digest, to_plain
from ._errors import ApprovalError, PauseSignal, ToolFailed
from ._events import ApprovalDecided, ApprovalRequested
from ._frames import ToolFrame

logger = logging.getLogger("agentx")
Scope = Literal["once", "session", "always"]


@attrs.frozen
class Approve:
    """Let the call run as it is."""

    by: str | None = None
    scope: Scope = "once"
    """What else is approved: what the pending call `covers`, for the rest of its session or for good."""
    fingerprint: str | None = None
    """That of the pending call which was shown; a decision with another one is refused. So in all decisions."""


@attrs.frozen
class Deny:
    """Do not run the call; the model reads why."""

    reason: str = "denied"
    by: str | None = None
    fingerprint: str | None = None


@attrs.frozen
class Edit:
    """Run the call with other arguments; they are validated like the model's."""

    args: Mapping[str, Any]
    by: str | None = None
    fingerprint: str | None = None


@attrs.frozen
class Respond:
    """Do not run the call: this text is its result."""

    text: str
    by: str | None = None
    fingerprint: str | None = None


Decision = Approve | Deny | Edit | Respond
TOO_LATE = "the time to approve it is over"


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
    scopes: tuple[str, ...] = ()
    """For how long an `Approve` of it may hold beside `once`: `session`, `always`."""
    covers: str = ""
    """What such an `Approve` lets run, for who decides."""

    @property
    def has_expired(self) -> bool:
        return self.expires is not None and time.time() >= self.expires


@runtime_checkable
class Approver(Protocol):
    """Decides in this process: `ctx.provide(Approver, …)` in an `init` or `session` layer."""

    async def decide(self, call: PendingCall) -> Decision | None:
        """Return the decision, or `None` if nobody can decide now: the turn pauses then."""


async def approve(
    frame: ToolFrame, reason: str, by: str, seconds: float | None, scopes: Sequence[str] = (), covers: str = ""
) -> Decision:
    """Return the decision when the call may run.

    Raises:
        ToolFailed: it was denied, or answered by somebody; the status says which.
        PauseSignal: nobody decides now.
    """
    turn, call, now = frame.turn, frame.call, time.time()
    args = to_plain(frame.args)
    mark = digest([turn.session.id, call.id, frame.tool.name, args])
    if frame.approved == mark:
        return Approve()
    decided = turn.decisions.get(call.id)
    if decided is not None and decided[0] == mark:
        return _apply(frame, decided[1], mark)
    expires = None if seconds is None else now + seconds
    session = turn.session
    asked: tuple[str, str, Any, str, str] = (call.id, frame.tool.name, args, reason, by)
    session.record(ApprovalRequested, *asked, expires, mark, tuple(scopes), covers)
    if not session.quiet:
        await session.commit("approval")
    approver: Approver | None = turn.service(Approver)
    pending = PendingCall(*asked, now, expires, mark, tuple(scopes), covers)
    decision = None if approver is None else await _decided_in_time(approver, pending, seconds)
    if decision is None:
        turn.pausing = {*(turn.pausing or ()), call.id}
        raise PauseSignal(reason, by=by)
    try:
        check_decision(decision, pending)
    except ApprovalError as error:
        logger.warning("session %r refused a decision: %s", session.id, error)
        raise
    session.record(ApprovalDecided, *facts_of(decision, pending))
    return _apply(frame, decision, mark)


async def _decided_in_time(approver: Approver, pending: PendingCall, seconds: float | None) -> Decision | None:
    with anyio.move_on_after(seconds):
        decision = await approver.decide(pending)
        if isinstance(decision, Deny) or not pending.has_expired:
            return decision
    return Deny(TOO_LATE)


def check_decision(decision: Any, pending: PendingCall) -> None:
    """Refuse what is no decision about this call.

    Raises:
        ApprovalError: naming the call, and what to give.
    """
    about = f"call {pending.call_id!r}"
    if not isinstance(decision, Approve | Deny | Edit | Respond):
        fix = "give Approve(), Deny(reason), Edit(args) or Respond(text)"
        raise ApprovalError(f"{decision!r} is no decision about {about}: {fix}")
    if decision.fingerprint not in (None, pending.fingerprint):
        raise ApprovalError(f"the decision is about other arguments than {about} has now: look at it again")
    if isinstance(decision, Approve) and decision.scope not in ("once", *pending.scopes):
        offered = " or ".join([repr(scope) for scope in ("once", *pending.scopes)])
        raise ApprovalError(f"an approval of {about} holds {offered}, not {decision.scope!r}")


def facts_of(decision: Decision, pending: PendingCall) -> tuple[Any, ...]:
    """Return the fields of the event that tells of a decision."""
    name = type(decision).__name__.lower()
    text = decision.reason if isinstance(decision, Deny) else decision.text if isinstance(decision, Respond) else None
    args = to_plain(decision.args) if isinstance(decision, Edit) else None
    scope = decision.scope if isinstance(decision, Approve) else "once"
    return pending.call_id, name, decision.by, text, args, pending.fingerprint, scope


def decision_of(event: ApprovalDecided) -> Decision:
    """Return the decision that an event tells of."""
    if event.decision == "approve":
        return Approve(event.by, event.scope)  # type: ignore[arg-type]  # it was checked before it was recorded
    if event.decision == "edit":
        return Edit(event.args or {}, event.by)
    if event.decision == "respond":
        return Respond(event.reason or "", event.by)
    return Deny(event.reason or "denied", event.by)


def _apply(frame: ToolFrame, decision: Decision, mark: str) -> Decision:
    name = frame.tool.name
    if isinstance(decision, Deny):
        raise ToolFailed(f"denied: {decision.reason}", tool=name, reason="denied", status="denied")
    if isinstance(decision, Respond):
        raise ToolFailed(decision.text, tool=name, reason="answered", status="ok")
    if isinstance(decision, Edit):
        frame.args = dict(decision.args)
        mark = digest([frame.turn.session.id, frame.call.id, name, to_plain(frame.args)])
    frame.approved = mark
    return decision
