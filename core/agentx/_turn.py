"""One turn of a session, from its input to its result."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any, Literal

import anyio
import attrs

from ._approval import facts_of
from ._calls import cleaned, close_calls, parse_arguments
from ._errors import (
    AbortSignal,
    ApprovalError,
    ConfigError,
    HookError,
    PauseSignal,
    SessionBusyError,
    SessionClosedError,
    SessionError,
    SessionPausedError,
    StopSignal,
    TurnAborted,
    TurnSignal,
)
from ._events import ApprovalDecided, ErrorEvent, InputQueued, ModelEnd, TurnEnd, TurnStart
from ._frames import SessionFrame, Stop, TurnFrame, overrides
from ._host import TurnScope, is_cancellation, opening, running, spawn
from ._messages import Message, ModelSettings, UserInput, user_message
from ._onion import annotate, collapse
from ._result import RunResult
from ._streaming import Buffer
from ._unfinished import Unfinished, bind, unfinished

logger = logging.getLogger("agentx")
OnBusy = Literal["raise", "wait", "steer", "follow_up"]
ON_BUSY = ("raise", "wait", "steer", "follow_up")
INTERRUPTED = "interrupted: the user said something else meanwhile"


@attrs.define(eq=False)
class RunOptions:
    """What one turn may say otherwise than its agent and session."""

    deps: Any = None
    model: Any = None
    limits: Mapping[str, Any] | None = None
    settings: ModelSettings | None = None
    metadata: Mapping[str, Any] | None = None
    output: Any = None
    pending: str | None = None
    queued: int | None = None
    on_busy: OnBusy = "raise"


async def run_turn(frame: SessionFrame, text: UserInput, options: RunOptions, buffer: Buffer | None = None) -> Any:
    """Run one turn and return its result.

    Raises:
        SessionBusyError: another turn is running.
        TurnAborted: a plugin aborted it.
    """
    message = user_message(text)
    if options.on_busy not in ON_BUSY:
        raise SessionError(f"on_busy is one of {', '.join(ON_BUSY)}, not {options.on_busy!r}")
    if frame.early is not None:
        await _wait_until_open(frame)
    if frame.failure is not None or frame.agent.failure is not None:
        frame.check()
    if frame.turn is not None and options.on_busy == "steer":
        return await _steered(frame, message)
    while frame.turn is not None or frame.after_running is not None or frame.has_open_turn:
        if frame.turn is None and frame.after_running is None:
            await close_unfinished(frame, options.pending)
        else:
            await _wait_until_idle(frame, options.on_busy)
    turn = _new_turn(frame, message, options)
    return await run_prepared(frame, turn, buffer)


async def resume_turn(
    frame: SessionFrame, decisions: Mapping[str, Any], options: RunOptions, buffer: Buffer | None = None
) -> Any:
    """Go on with the turn that paused, or whose process ended, and return its result.

    Raises:
        SessionError: there is none.
        ApprovalError: a decision that no waiting call is bound to; nothing was decided.
    """
    frame.check()
    while frame.turn is not None or frame.after_running is not None:
        await _wait_until_idle(frame, options.on_busy)
    found = unfinished(frame.log.events) if frame.has_open_turn else None
    if found is None or found.input is None:
        if decisions:
            logger.warning("session %r refused decisions about %s: no call waits", frame.id, ", ".join(decisions))
        raise SessionError(f"session {frame.id!r} has no turn to resume")
    try:
        bound = bind(found, decisions)
    except ApprovalError as error:
        logger.warning("session %r refused a decision: %s", frame.id, error)
        raise
    turn = _resumed(frame, found, options)
    for pending, decision in bound:
        frame.record(ApprovalDecided, *facts_of(decision, pending))
        turn.decisions = {**turn.decisions, pending.call_id: (pending.fingerprint, decision)}
    decided = {pending.call_id.partition("/")[0] for pending, _ in bound}
    turn.held = frozenset([key.partition("/")[0] for key in found.pending]) - decided
    _end_model_calls(frame, found)
    return await run_prepared(frame, turn, buffer)


async def run_prepared(frame: SessionFrame, turn: TurnFrame, buffer: Buffer | None) -> Any:
    """Run a turn through its onion, and end it."""
    if buffer is not None:
        frame.listen(buffer.put)
        buffer.started.set()
    if frame.delta_listeners:
        turn.sink = frame.hear
    elif buffer is not None:
        turn.sink = buffer.put_delta
    frame.record(TurnStart, turn.index, turn.model, turn.metadata, turn.is_resumed)
    error: BaseException | None = None
    before = running.set(turn)
    try:
        with turn.scope:
            result = await turn.onions.turn(turn)
        while turn.is_interrupted and turn.scope.cancelled_caught and turn.scope.signal is None:
            _go_on(turn)
            with turn.scope:
                result = await turn.onions.turn(turn)
        if turn.scope.cancelled_caught:
            error = _interrupted(frame)
        elif turn.scope.signal is not None:
            error = turn.scope.signal
        else:
            result = _final(turn, result)
    except BaseException as caught:
        error = collapse(caught)
    finally:
        running.reset(before)
    if error is not None:
        await _end_badly(turn, error, buffer)
        return frame.last_result
    frame.last_result = result
    _note_end(turn, result)
    try:
        if not frame.quiet:
            await frame.commit("turn.end")
    finally:
        _let_next_in(turn, result, buffer)
    return result


def _go_on(turn: TurnFrame) -> None:
    """Prepare a turn that was interrupted by its user to enter its onion again."""
    close_calls(turn, PauseSignal(INTERRUPTED))
    turn.is_interrupted = False
    turn.scope = TurnScope(turn.agent.new_scope())


async def _steered(frame: SessionFrame, message: Message) -> Any:
    """Give the running turn a message, and return that turn's result."""
    _refuse_own(frame, "wait")
    turn = frame.turn
    await queue_input(frame, "steer", message)
    while frame.turn is turn:
        await _wait_until_idle(frame, "wait")
    return frame.last_result


async def queue_input(frame: SessionFrame, how: str, message: Message) -> None:
    """Keep a message of the user until it is delivered, also beyond this process."""
    message = cleaned(message)
    stored = frame.record(InputQueued, how, message)
    frame.queue[frame.seq] = InputQueued(frame.seq, time.time(), None, *stored)
    if not frame.quiet:
        await frame.commit("input")


async def close_unfinished(frame: SessionFrame, pending: str | None) -> None:
    """End a turn that paused, or whose process ended, so that another can begin.

    Raises:
        SessionPausedError: calls wait for decisions, and nobody said that they shall be denied.
    """
    found = unfinished(frame.log.events)
    frame.has_open_turn = False
    if found is None:
        return
    if found.is_paused and pending != "deny":
        frame.has_open_turn = True
        raise SessionPausedError(
            f"session {frame.id!r} waits for decisions about {', '.join(found.pending)}: "
            "session.resume({call_id: Approve()}), or run(…, pending='deny')"
        )
    turn = _resumed(frame, found, RunOptions())
    turn.index, frame.turn = found.start.turn_index, turn
    _end_model_calls(frame, found)
    if found.is_paused:
        close_calls(turn, PauseSignal("denied: the user went on without a decision"))
        turn.outcome = Stop("stopped", "the user went on without a decision", "")
    else:
        close_calls(turn, PauseSignal("interrupted: the process ended before this call ran"), started=turn.started)
        turn.outcome = Stop("failed", "the process ended while this turn ran", "")
    await _end(turn, turn.result(), None)


def _end_model_calls(frame: SessionFrame, found: Unfinished) -> None:
    for index, by in found.open_model_calls.items():
        frame.record(ModelEnd, index, None, "the process ended", by)


async def _wait_until_open(frame: SessionFrame) -> None:
    """Let background work of a session's layers wait until all of them are open.

    Raises:
        SessionClosedError: the layer itself would wait, or the session was not opened.
    """
    if opening.get() is frame:
        raise SessionClosedError(
            f"session {frame.id!r} is being opened by the layer that would run a turn in it: use ctx.start_soon"
        )
    await frame.agent.opening[frame.id].wait()
    if frame.early is not None:
        raise SessionClosedError(f"session {frame.id!r} was not opened")


async def _wait_until_idle(frame: SessionFrame, on_busy: str) -> None:
    _refuse_own(frame, on_busy)
    if frame.after_running is not None:
        await frame.after_running.wait()
        return
    if frame.idle is None:
        frame.idle = anyio.Event()
    await frame.idle.wait()
    frame.check()
    if frame.handles <= 0:
        raise SessionClosedError(f"session {frame.id!r} was closed before this turn could begin")


def _refuse_own(frame: SessionFrame, on_busy: str) -> None:
    """Refuse to wait for the turn that is waiting for us, or for any if that is not wanted.

    Raises:
        SessionBusyError: naming what to do.
    """
    turn = running.get()
    while turn is not None:
        if turn.session is frame and turn in (frame.turn, frame.after_of):
            raise SessionBusyError(
                f"session {frame.id!r} would wait for the turn that this call is part of, forever: "
                "use another session, agent.as_tool or ctx.start_soon"
            )
        turn = turn.session.parent
    if on_busy == "raise" and frame.turn is not None:
        raise SessionBusyError(f"session {frame.id!r} is running a turn: on_busy='wait' waits for it")


def _new_turn(frame: SessionFrame, message: Message, options: RunOptions) -> TurnFrame:
    agent = frame.agent
    onions, forced, changes = frame.onions or agent.onions, None, None
    if overrides.get():
        onions, forced, changes = agent.current(frame)
    if options.limits and not any(layer.plugin.startswith("guard.limits") for layer in onions.layers["turn"]):
        raise ConfigError("run(limits=…) needs the plugin guard.limits, which is not active")
    model = options.model or forced or frame.model or agent.model
    if not isinstance(model, str):
        model = agent.register_model(model)
    settings = agent.settings
    if frame.settings is not None or options.settings is not None:
        settings = settings.merge(frame.settings).merge(options.settings)
    now = time.time()
    turn = TurnFrame(
        agent=agent,
        session=frame,
        onions=onions,
        turn_id=f"{agent.turn_prefix}{next(agent.turn_numbers):06x}",
        index=frame.turn_count,
        input=message,
        model=model,
        settings=settings,
        deps=frame.deps if options.deps is None else options.deps,
        metadata=options.metadata,
        limit_settings=options.limits,
        started_at=now,
        history_start=len(frame.history),
        log_start=frame.seq,
        scope=TurnScope(agent.new_scope()),
        tool_changes=changes,
        queued=options.queued,
        output_type=agent.output if options.output is None else agent.output_of(options.output),
    )
    frame.turn_count += 1
    frame.turn = turn
    return turn


def _resumed(frame: SessionFrame, found: Unfinished, options: RunOptions) -> TurnFrame:
    """Return the turn that a log tells of, where it was."""
    turn = _new_turn(frame, found.input or Message("user", ()), options)
    frame.turn_count -= 1
    turn.turn_id, turn.index, turn.metadata = found.turn_id, found.start.turn_index, found.start.metadata
    turn.is_resumed, turn.committed, turn.calls = True, True, found.calls
    turn.history_start, turn.log_start = found.history_start, found.log_start
    turn.totals, turn.before = found.totals, found.totals.usage
    turn.resumed = found.response
    if found.waiting:
        turn.decisions, turn.announced = found.decided, frozenset(found.written)
        turn.started = frozenset(found.started)
        parsed = [(call, *parse_arguments(found.written.get(call.id, call.arguments))) for call in found.tool_calls]
        turn.open_calls, turn.results = parsed, dict(found.results)
    return turn


def _final(turn: TurnFrame, result: RunResult[Any]) -> RunResult[Any]:
    """Return the layers' result, unless one of them stopped the turn after its core had returned.

    Raises:
        HookError: a layer sent the answer back and did not run the turn again.
    """
    if turn.feedback is not None:
        feedback, by = turn.feedback
        fix = "call call_next again, in a layer marked @hookimpl(repeats=True)"
        raise HookError(f"{by}: the turn hook sent the answer back and left it at that ({feedback}): {fix}", plugin=by)
    if turn.stop is not None and turn.outcome is not turn.stop:
        turn.outcome = turn.stop
        return turn.result()
    return result


def _interrupted(frame: SessionFrame) -> BaseException:
    if frame.failure is not None or frame.agent.failure is not None:
        cause = frame.failure or frame.agent.failure
        error = SessionClosedError(f"session {frame.id!r} failed while its turn ran: {cause}")
        error.__cause__ = cause
        return error
    return TurnAborted("the session was closed" if frame.handles <= 0 else "cancelled by session.cancel()")


async def _end_badly(turn: TurnFrame, error: BaseException, buffer: Buffer | None) -> None:
    """Record how a turn failed and raise what its caller gets; a limit in a layer is an outcome, not a failure."""
    frame = turn.session
    if isinstance(error, StopSignal):
        close_calls(turn, error)
        turn.outcome = turn.stop or Stop("stopped", error.reason, error.by)
        frame.last_result = turn.result()
        await _end(turn, frame.last_result, buffer)
        return
    stop = _stop_of(error)
    close_calls(turn, error)
    turn.outcome = stop
    if stop.status == "failed":
        annotate(error, "turn", turn, turn.onions.layers["turn"])
        frame.record(ErrorEvent, "turn", type(error).__name__, str(error), stop.by or None)
    frame.last_result = result = turn.result()
    with anyio.CancelScope(shield=True):
        await _end(turn, result, buffer)
    if isinstance(error, AbortSignal):
        aborted = TurnAborted(error.reason, by=error.by, result=result)
        for note in getattr(error, "__notes__", ()):
            aborted.add_note(note)
        raise aborted from error.__cause__
    if isinstance(error, TurnAborted):
        error.result = result
    raise error


def _stop_of(error: BaseException) -> Stop:
    if isinstance(error, AbortSignal):
        return Stop("aborted", error.reason, error.by)
    if is_cancellation(error) or isinstance(error, KeyboardInterrupt | TurnAborted):
        return Stop("cancelled", "the turn was cancelled", "")
    by = error.plugin if isinstance(error, HookError) else ""
    return Stop("failed", f"{type(error).__name__}: {error}", by)


async def _end(turn: TurnFrame, result: RunResult[Any], buffer: Buffer | None) -> None:
    """Write `turn.end`, commit, and let the next turn in."""
    _note_end(turn, result)
    try:
        await turn.session.commit("turn.end")
    finally:
        _let_next_in(turn, result, buffer)


def _note_end(turn: TurnFrame, result: RunResult[Any]) -> None:
    for undo in turn.undo or ():
        undo()
    cost = None if result.cost is None else str(result.cost)
    turn.session.record(TurnEnd, result.status, result.reason, result.by, result.usage, cost)


def _let_next_in(turn: TurnFrame, result: RunResult[Any], buffer: Buffer | None) -> None:
    frame = turn.session
    if buffer is not None:
        frame.unlisten(buffer.put)
    usage = result.usage if turn.before is None else result.usage - turn.before
    frame.totals.add(usage)
    frame.agent.totals.add(usage)
    frame.turn = None
    if result.status == "paused":
        frame.has_open_turn = True
    elif turn.is_resumed:
        frame.has_open_turn = False
    if frame.after:
        _run_after(turn)
    if frame.idle is not None:
        frame.idle.set()
        frame.idle = None
    if frame.queue and result.status != "paused":
        start_follow_up(frame)


def _run_after(turn: TurnFrame) -> None:
    """Run what was left for after the turn, beside the caller; the next turn waits for it."""
    frame = turn.session
    work, frame.after = frame.after or [], None
    frame.after_running, frame.after_of = done, _ = anyio.Event(), turn

    async def run() -> None:
        running.set(turn)
        try:
            for owner, fn in work:
                try:
                    await fn()
                except (Exception, TurnSignal) as error:
                    logger.error("%s: after_turn failed: %r", owner, error, exc_info=error)
        finally:
            frame.after_running = frame.after_of = None
            done.set()

    spawn(frame, run, "after_turn", "log", None)


def start_follow_up(frame: SessionFrame) -> None:
    """Run the next message that waits for its own turn, beside the caller."""
    queued = next((queued for queued in frame.queue.values() if queued.how == "follow_up"), None)
    if queued is None or frame.handles <= 0:
        return

    async def run() -> None:
        if frame.queue.pop(queued.seq, None) is not None:
            await run_turn(frame, queued.message.parts, RunOptions(on_busy="wait", queued=queued.seq))

    spawn(frame, run, "follow_up", "log", None)
