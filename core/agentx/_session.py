"""One conversation: opening and closing it, and what an application does with it."""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from difflib import get_close_matches
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic

import anyio

from ._approval import Decision, PendingCall
from ._branch import Rewound, fork_log, rewind
from ._errors import SessionAccessError, SessionBusyError, SessionClosedError, SessionError
from ._events import EVENTS, Event, SessionEnd, SessionStart, kind_of
from ._frames import AgentFrame, SessionFrame, TurnFrame
from ._host import Host, drain, start_task
from ._messages import NO_SETTINGS, Message, ModelSettings, UserInput, user_message
from ._onion import compile_lifetime
from ._result import RunResult
from ._store import SessionLog, replay
from ._stream import Stream
from ._toolbox import Toolbox
from ._turn import OnBusy, RunOptions, queue_input, resume_turn, run_turn, start_follow_up
from ._unfinished import unfinished
from ._valid_history import HistoryError, check_history

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from ._agent import Agent
    from ._tools import Tool

    Out = TypeVar("Out", default=str)
else:
    from typing import TypeVar

    Out = TypeVar("Out")

logger = logging.getLogger("agentx")


async def open_session(
    agent: AgentFrame,
    session_id: str,
    user: str | None,
    deps: Any,
    seed: Sequence[Message] | None,
    parent: TurnFrame | None,
    public: Any,
) -> SessionFrame:
    """Return the open session `session_id`, opening it if this is the first handle.

    Raises:
        SessionAccessError: it belongs to another user.
    """
    while session_id in agent.opening:
        await agent.opening[session_id].wait()
    frame = agent.sessions.get(session_id)
    if frame is not None:
        _check_user(frame.user, user, session_id)
        _check_seed(seed, session_id)
        if frame.handles == 0:
            frame.deps, frame.public = deps, public
        frame.handles += 1
        if frame.reopened is not None:
            frame.reopened.set()
        return frame
    agent.opening[session_id] = opened = anyio.Event()
    try:
        frame = await _load(agent, session_id, user, seed, parent)
        frame.deps, frame.public, frame.handles = deps, public, 1
        public._frame = frame
        try:
            await _enter(frame)
        except BaseException:
            public._frame = None
            raise
        frame.opened()
        agent.sessions[session_id] = frame
        return frame
    finally:
        del agent.opening[session_id]
        opened.set()


def _check_user(owner: str | None, user: str | None, session_id: str) -> None:
    if owner != user:
        raise SessionAccessError(f"there is no session {session_id!r} for this user")


def _seeded(seed: Sequence[Message] | None) -> tuple[Message, ...]:
    """Return the history that an application gave.

    Raises:
        SessionError: no provider would take it.
    """
    history = tuple(seed or ())
    try:
        check_history(history)
    except HistoryError as error:
        raise SessionError(f"history= is not valid: {error}") from None
    return history


def _check_seed(seed: Sequence[Message] | None, session_id: str) -> None:
    if seed is not None:
        raise SessionAccessError(f"session {session_id!r} has a history already; history= is for a new one")


async def _load(
    agent: AgentFrame, session_id: str, user: str | None, seed: Sequence[Message] | None, parent: TurnFrame | None
) -> SessionFrame:
    log = await agent.store.open(session_id)
    try:
        return _frame(agent, session_id, user, seed, parent, log)
    except BaseException:
        with anyio.CancelScope(shield=True):
            await log.close()
        raise


def _frame(
    agent: AgentFrame,
    session_id: str,
    user: str | None,
    seed: Sequence[Message] | None,
    parent: TurnFrame | None,
    log: SessionLog,
) -> SessionFrame:
    """Return a session as its log tells of it.

    Raises:
        SessionAccessError: it belongs to another user.
    """
    past = replay(log.events)
    if log.events:
        _check_user(past.user, user, session_id)
        _check_seed(seed, session_id)
    frame = SessionFrame(
        agent=agent,
        id=session_id,
        user=user,
        log=log,
        toolbox=Toolbox(agent.toolbox),
        history=past.history,
        totals=past.totals,
        states=dict(past.state),
        seq=past.seq,
        turn_count=past.turns,
        is_resumed=bool(log.events),
        has_open_turn=past.open_turn is not None,
        queue=past.queue,
        sent=past.sent,
        filters=parent.session.filters if parent else (),
        early=[],
        parent=parent,
        path=(*parent.session.path, session_id.rpartition("/")[2]) if parent else (),
        depth=parent.session.depth + 1 if parent else 0,
    )
    if not log.events:
        history = _seeded(seed)
        frame.record(SessionStart, agent.name, user, agent.header, 1, history)
        frame.history.extend(history)
    return frame


async def _enter(frame: SessionFrame) -> None:
    """Open the session onion, in a host of its own if there is one."""
    layers = frame.agent.onions.layers["session"]
    if layers:
        onion = compile_lifetime(layers)
        frame.host = Host(lambda core: onion(frame, core), frame, f"session {frame.id!r}")
        try:
            await frame.host.open()
        except BaseException:
            await frame.log.close()
            raise


async def give_back(frame: SessionFrame, idle: float, body_error: BaseException | None) -> BaseException | None:
    """Give one handle back; the last one closes the session. Returns what went wrong while closing.

    Args:
        idle: seconds to keep it open for the next handle, as long as the agent is open.
    """
    frame.handles -= 1
    if frame.handles > 0:
        return None
    if frame.turn is not None:
        await _end_turn(frame)
    if idle <= 0 or body_error is not None or frame.failure is not None:
        return await close_session(frame, body_error)
    frame.reopened = anyio.Event()
    start_task(lambda: _close_when_idle(frame, idle), f"idle session {frame.id!r}")
    return None


async def _end_turn(frame: SessionFrame) -> None:
    """Cancel the turn that is running while nobody has the session open any more, and wait for it."""
    frame.interrupt()
    with anyio.CancelScope(shield=True):
        while frame.turn is not None:
            frame.idle = frame.idle or anyio.Event()
            await frame.idle.wait()


async def _close_when_idle(frame: SessionFrame, seconds: float) -> None:
    reopened = frame.reopened
    with anyio.move_on_after(seconds):
        await reopened.wait()  # type: ignore[union-attr]  # made by who started this
    if frame.reopened is not reopened or frame.handles > 0 or frame.agent.sessions.get(frame.id) is not frame:
        return
    try:
        error: BaseException | None = await close_session(frame, None)
    except Exception as failure:
        error = failure
    if error is not None:
        logger.error("while closing session %r after %g s: %r", frame.id, seconds, error, exc_info=error)


async def close_session(frame: SessionFrame, body_error: BaseException | None) -> BaseException | None:
    """Close a session that nobody has open any more; returns what went wrong."""
    agent = frame.agent
    agent.opening[frame.id] = closed = anyio.Event()
    if frame.reopened is not None:
        frame.reopened.set()
    agent.sessions.pop(frame.id, None)
    try:
        error = await frame.host.close(body_error) if frame.host is not None else None
        await drain(frame)
        frame.record(SessionEnd)
        with anyio.CancelScope(shield=True):
            error = await _close_log(frame) or error
        frame.closing = frame.closing or "ended"
    finally:
        del agent.opening[frame.id]
        closed.set()
    return error


async def _close_log(frame: SessionFrame) -> BaseException | None:
    """Write what is left of a session and give it up; returns why that failed."""
    error: BaseException | None = None
    try:
        await frame.commit("session.end")
    except Exception as failure:
        error = failure
    try:
        await frame.log.close()
        if frame.ephemeral:
            await frame.agent.store.delete(frame.id)
    except Exception as failure:
        error = error or failure
    return error


class History(Sequence[Message]):
    """What a session remembers, to read."""

    def __init__(self, messages: list[Message]) -> None:
        self._messages = messages

    def __len__(self) -> int:
        return len(self._messages)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]  # the overloads are those of a list
        return self._messages[index]

    def __repr__(self) -> str:
        return repr(self._messages)


class Session(Generic[Out]):
    """One conversation with an agent; made by `agent.session()`.

    `async with` keeps it open for several turns. Without it, each `run` opens and closes it.
    """

    __slots__ = (
        "_agent",
        "_close_agent",
        "_deps",
        "_ephemeral",
        "_frame",
        "_id",
        "_idle_timeout",
        "_parent",
        "_seed",
        "_user",
    )

    def __init__(
        self,
        agent: Agent[Any, Out],
        session_id: str | None,
        user: str | None,
        deps: Any,
        history: Sequence[Message] | None,
        *,
        idle_timeout: float = 0.0,
        parent: TurnFrame | None = None,
        ephemeral: bool = False,
    ) -> None:
        self._agent = agent
        self._id = session_id or os.urandom(8).hex()
        self._user = user
        self._deps = deps
        self._seed = history
        self._idle_timeout = idle_timeout
        self._parent = parent
        self._ephemeral = ephemeral
        self._frame: SessionFrame | None = None
        self._close_agent: Callable[[BaseException | None], Awaitable[BaseException | None]] | None = None

    @property
    def id(self) -> str:
        return self._id

    @property
    def user(self) -> str | None:
        return self._user

    async def __aenter__(self) -> Session[Out]:
        if self._frame is not None:
            raise SessionBusyError(f"this handle of session {self._id!r} is open already: take another from the agent")
        agent, close_agent = await self._agent._enter()
        try:
            self._frame = await open_session(agent, self._id, self._user, self._deps, self._seed, self._parent, self)
        except BaseException as error:
            await close_agent(error)
            raise
        self._frame.ephemeral = self._ephemeral
        self._close_agent = close_agent
        self._seed = None
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        frame, close_agent = self._frame, self._close_agent
        if frame is None or close_agent is None:
            return
        self._close_agent = None
        troubles = [await give_back(frame, self._idle_timeout, error), await close_agent(error)]
        self._frame = None
        for trouble in troubles:
            if trouble is None or trouble is error:
                continue
            if error is None:
                raise trouble
            error.add_note(f"while closing session {self._id!r}: {type(trouble).__name__}: {trouble}")

    def _open_frame(self, what: str) -> SessionFrame:
        if self._frame is None:
            raise SessionClosedError(f"session {self._id!r} is not open: `async with` it to use its {what}")
        return self._frame

    async def run(
        self,
        input: UserInput,
        *,
        deps: Any = None,
        model: Any = None,
        limits: Mapping[str, Any] | None = None,
        settings: ModelSettings | None = None,
        metadata: Mapping[str, Any] | None = None,
        output: Any = None,
        pending: str | None = None,
        on_busy: OnBusy = "raise",
    ) -> RunResult[Out]:
        """Run one turn.

        Args:
            input: text, a part or parts.
            deps: for this turn, in place of the session's.
            model: for this turn.
            limits: settings of `guard.limits` for this turn.
            settings: laid over those of the agent and the session.
            metadata: kept with the turn, not shown to the model.
            output: what this turn's answer shall be, in place of the agent's; `str` is text.
            pending: `deny` denies the calls that wait for decisions; without it a paused session raises.
            on_busy: what to do while a turn is running: `raise`; `wait` for it; `steer`, to give it the input and
                return its result; or `follow_up`, which is `wait` for now.

        Raises:
            SessionBusyError: a turn is running.
            SessionPausedError: calls wait for decisions.
            TurnAborted: a plugin aborted the turn.
        """
        deps = self._deps if deps is None else deps
        options = RunOptions(deps, model, limits, settings, metadata, output, pending, on_busy=on_busy)
        if self._frame is not None:
            result: RunResult[Out] = await run_turn(self._frame, input, options)
            return result
        async with self:
            return await run_turn(self._open_frame("run"), input, options)  # type: ignore[no-any-return]

    def stream(
        self,
        input: UserInput,
        *,
        deps: Any = None,
        model: Any = None,
        limits: Mapping[str, Any] | None = None,
        settings: ModelSettings | None = None,
        metadata: Mapping[str, Any] | None = None,
        output: Any = None,
        on_busy: OnBusy = "raise",
    ) -> Stream[Out]:
        """Run one turn and see it happen: `async with session.stream("…") as stream`. Takes what `run` takes."""
        deps = self._deps if deps is None else deps
        return Stream(self, input, RunOptions(deps, model, limits, settings, metadata, output, on_busy=on_busy))

    async def resume(
        self,
        decisions: Mapping[str, Decision] | None = None,
        *,
        deps: Any = None,
        model: Any = None,
        settings: ModelSettings | None = None,
    ) -> RunResult[Out]:
        """Go on with a turn that paused, or whose process ended while it ran.

        Calls that have their result do not run again; one that had begun runs again only if its tool is `idempotent`,
        else the model is told that its outcome is unknown. Calls without a decision go on waiting.

        Args:
            decisions: by call id, as in `pending`: `Approve()`, `Deny(reason)`, `Edit(args)` or `Respond(text)`.
            deps: for this turn, in place of the session's.
            model: for the rest of this turn.
            settings: laid over those of the agent and the session.

        Raises:
            SessionError: there is no such turn.
            ApprovalError: a decision that no waiting call is bound to; nothing was decided.
        """
        options = RunOptions(self._deps if deps is None else deps, model, settings=settings)
        if self._frame is not None:
            result: RunResult[Out] = await resume_turn(self._frame, decisions or {}, options)
            return result
        async with self:
            return await resume_turn(self._open_frame("resume"), decisions or {}, options)  # type: ignore[no-any-return]

    @property
    def pending(self) -> tuple[PendingCall, ...]:
        """The calls that wait for a decision; those of sub-agents have the ids that lead to them, with slashes."""
        frame = self._open_frame("pending")
        found = unfinished(frame.log.events) if frame.has_open_turn else None
        return tuple(found.pending.values()) if found is not None else ()

    async def steer(self, input: UserInput, *, interrupt: bool = False) -> None:
        """Tell the running turn something, before its next model call; without a running turn, the next one.

        It is kept when this returns, and delivered once, also if the process ends in between.

        Args:
            input: text, a part or parts.
            interrupt: do not wait for the model call or the tools that run: cancel them and go on.
        """
        frame = self._open_frame("steer")
        await queue_input(frame, "steer", user_message(input))
        if interrupt and frame.turn is not None:
            frame.turn.is_interrupted = True
            frame.interrupt()

    async def follow_up(self, input: UserInput) -> None:
        """Leave a message for a turn of its own, after the running one; `on("turn.end", …)` tells of its end.

        It is kept when this returns, and answered once, also if the process ends in between.
        """
        frame = self._open_frame("follow_up")
        await queue_input(frame, "follow_up", user_message(input))
        if frame.turn is None:
            start_follow_up(frame)

    async def fork(self, at: int | None = None, *, id: str | None = None) -> Session[Out]:
        """Return a new session that has the events of this one up to number `at`, and goes its own way from there.

        A turn that has not come to its end there is closed in the copy: its calls get results that say so. Messages
        that wait for delivery and decisions that are due stay here, and so does what limits have booked.

        Args:
            at: the `seq` of an event; by default the last there is.
            id: of the new session; by default a random one.

        Raises:
            SessionError: there is no such event, or a session with that id.
        """
        if self._frame is None:
            async with self:
                return await self.fork(at, id=id)
        forked: Session[Out] = Session(self._agent, id, self._user, self._deps, None, idle_timeout=self._idle_timeout)
        await fork_log(self._frame.agent.store, self._frame.log.events, self._id, forked.id, at)
        return forked

    async def rewind(self, turn: str | int = -1) -> Rewound:
        """Undo a turn and all that came after it: history and state are what they were before.

        The log keeps what is undone, usage and what limits have booked stay, and so do the effects of tools: the
        result lists them. A turn that is paused is closed first, its calls denied.

        Args:
            turn: its id, its index, or -1 for the last, -2 for the last but one.

        Raises:
            SessionBusyError: a turn is running.
            SessionError: there is no such turn, or it is undone already.
        """
        if self._frame is None:
            async with self:
                return await self.rewind(turn)
        return await rewind(self._frame, turn)

    def cancel(self) -> bool:
        """Cancel the running turn; its `run` raises `TurnAborted`. Returns whether there was one."""
        frame = self._frame
        if frame is None or frame.turn is None:
            return False
        frame.interrupt()
        return True

    def configure(
        self,
        *,
        model: Any = None,
        instructions: str | None = None,
        settings: ModelSettings | None = None,
        tools: Sequence[Tool | Callable[..., Any]] | None = None,
    ) -> None:
        """Change the session from the next turn on.

        Raises:
            SessionBusyError: a turn is running.
            ToolNameError: a tool's name is taken; nothing was changed.
        """
        frame = self._open_frame("configure")
        if frame.turn is not None:
            raise SessionBusyError(f"session {self._id!r} is running a turn; configure it between turns")
        if model is not None:
            frame.agent.resolve(model if isinstance(model, str) else frame.agent.register_model(model))
        if tools is not None:
            frame.agent.replace_tools(frame, tools)
        if model is not None:
            frame.model = model
        if instructions is not None:
            frame.own_instructions = instructions
            frame.refresh_prefix()
        if settings is not None:
            frame.settings = (frame.settings or NO_SETTINGS).merge(settings)

    def on(self, kind: str, fn: Callable[[Event], Any]) -> Callable[[], None]:
        """Call `fn` for every event of a kind (`tool.result`, `tool.*`, `*`); returns what ends that.

        Deltas are heard by their own names only: `text.delta`, `thinking.delta`, `tool.args.delta`.

        `fn` may be a coroutine function; it is awaited, in order. A listener that fails is logged and does no harm.
        """
        frame = self._open_frame("on")
        _check_kind(kind)

        async def listener(event: Event) -> None:
            if not _matches(kind, kind_of(event)):
                return
            try:
                waited = fn(event)
                if isinstance(waited, Awaitable):
                    await waited
            except Exception as error:
                logger.error("a listener for %s failed: %r", kind, error, exc_info=error)

        hears_deltas = kind in DELTAS
        frame.listen(listener)
        frame.delta_listeners += hears_deltas

        def end() -> None:
            if frame.listeners is not None and listener in frame.listeners:
                frame.delta_listeners -= hears_deltas
                frame.unlisten(listener)

        return end

    @property
    def history(self) -> Sequence[Message]:
        return History(self._open_frame("history").history)

    @property
    def state(self) -> Any:
        """The plugins' states: `session.state.of(plugin)`."""
        from ._context import StateView

        return StateView(self._open_frame("state"))

    @property
    def usage(self) -> Any:
        return self._open_frame("usage").usage

    @property
    def events(self) -> Sequence[Event]:
        """The stored events, oldest first."""
        return tuple(self._open_frame("events").log.events)

    @property
    def last_result(self) -> RunResult[Out] | None:
        """The result of the last turn, also of one that failed, was aborted or cancelled."""
        result: RunResult[Out] | None = self._open_frame("last_result").last_result
        return result


DELTAS = ("text.delta", "thinking.delta", "tool.args.delta")


def _check_kind(wanted: str) -> None:
    """Refuse to listen for what never happens.

    Raises:
        SessionError: there is no such kind of event.
    """
    kinds = [*EVENTS, "plugin."]
    is_known = wanted in ("*", *EVENTS) or wanted.startswith("plugin.")
    if not is_known and not (wanted.endswith(".*") and any(kind.startswith(wanted[:-1]) for kind in kinds)):
        close = get_close_matches(wanted, EVENTS, n=1)
        hint = f"did you mean {close[0]!r}?" if close else "the kinds are in docs/reference/events.md"
        raise SessionError(f"there is no event of kind {wanted!r}: {hint}")


def _matches(wanted: str, kind: str) -> bool:
    if kind in DELTAS:
        return wanted == kind
    return wanted in ("*", kind) or (wanted.endswith(".*") and kind.startswith(wanted[:-1]))
