"""One conversation; `run` is one turn."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal

import anyio
import attrs

from ._errors import (
    AbortSignal,
    ConfigError,
    HookError,
    SessionAccessError,
    SessionBusyError,
    SessionClosedError,
    StopSignal,
    TurnAborted,
)
from ._events import (
    ErrorEvent,
    Event,
    SessionEnd,
    SessionStart,
    SubAgentEvent,
    TextDeltaEvent,
    TurnEnd,
    TurnStart,
    kind_of,
)
from ._frames import AgentFrame, SessionFrame, Stop, TurnFrame, overrides
from ._host import Host, TurnScope, drain, is_cancellation, spawn
from ._loop import close_calls
from ._messages import NO_SETTINGS, Message, ModelSettings, TextDelta, UserInput, user_message
from ._onion import annotate, collapse, compile_lifetime
from ._result import RunResult
from ._store import replay
from ._streaming import Buffer, Item, as_event
from ._toolbox import Toolbox

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from ._agent import Agent
    from ._tools import Tool

    Out = TypeVar("Out", default=str)
else:
    from typing import TypeVar

    Out = TypeVar("Out")

logger = logging.getLogger("agentx")
OnBusy = Literal["raise", "wait"]


@attrs.define(eq=False)
class RunOptions:
    """What one turn may say otherwise than its agent and session."""

    deps: Any = None
    model: Any = None
    limits: Mapping[str, Any] | None = None
    settings: ModelSettings | None = None
    metadata: Mapping[str, Any] | None = None
    on_busy: OnBusy = "raise"


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
        frame.handles += 1
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


async def _load(
    agent: AgentFrame, session_id: str, user: str | None, seed: Sequence[Message] | None, parent: TurnFrame | None
) -> SessionFrame:
    log = await agent.store.open(session_id)
    past = replay(log.events)
    if log.events:
        try:
            _check_user(past.user, user, session_id)
            if seed is not None:
                raise SessionAccessError(f"session {session_id!r} has a history already; history= is for a new one")
        except SessionAccessError:
            await log.close()
            raise
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
        filters=parent.session.filters if parent else (),
        early=[],
        parent=parent,
        path=(*parent.session.path, session_id.rpartition("/")[2]) if parent else (),
        depth=parent.session.depth + 1 if parent else 0,
    )
    if not log.events:
        history = tuple(seed or ())
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


async def close_session(frame: SessionFrame, body_error: BaseException | None) -> BaseException | None:
    """Give one handle back; the last one closes the session. Returns what went wrong while closing."""
    frame.handles -= 1
    if frame.handles > 0:
        return None
    agent = frame.agent
    agent.opening[frame.id] = closed = anyio.Event()
    agent.sessions.pop(frame.id, None)
    try:
        error = await frame.host.close(body_error) if frame.host is not None else None
        await drain(frame)
        frame.record(SessionEnd)
        with anyio.CancelScope(shield=True):
            await frame.commit()
            await frame.log.close()
            if frame.ephemeral:
                await agent.store.delete(frame.id)
        frame.closing = frame.closing or "ended"
    finally:
        del agent.opening[frame.id]
        closed.set()
    return error


# One turn


async def run_turn(frame: SessionFrame, text: UserInput, options: RunOptions, buffer: Buffer | None = None) -> Any:
    """Run one turn and return its result.

    Raises:
        SessionBusyError: another turn is running.
        TurnAborted: a plugin aborted it.
    """
    message = user_message(text)
    if frame.failure is not None or frame.agent.failure is not None:
        frame.check()
    while frame.turn is not None or frame.after_running is not None:
        await _wait_until_idle(frame, options.on_busy)
    turn = _new_turn(frame, message, options)
    frame.turn = turn
    if buffer is not None:
        frame.listen(buffer.put)
        buffer.started.set()
    if frame.delta_listeners:
        turn.sink = frame.hear
    elif buffer is not None:
        turn.sink = buffer.put_delta
    frame.record(TurnStart, turn.index, turn.model, turn.metadata)
    error: BaseException | None = None
    try:
        with turn.scope:
            result = await turn.onions.turn(turn)
        if turn.scope.cancelled_caught:
            error = _interrupted(frame)
        elif turn.scope.signal is not None:
            error = turn.scope.signal
    except BaseException as caught:
        error = collapse(caught)
    if error is not None:
        await _end_badly(turn, error, buffer)
        return frame.last_result
    frame.last_result = result = _final(turn, result)
    _note_end(turn, result)
    try:
        if not frame.quiet:
            await frame.commit()
    finally:
        _let_next_in(turn, result, buffer)
    return result


async def _wait_until_idle(frame: SessionFrame, on_busy: str) -> None:
    if frame.after_running is not None:
        await frame.after_running.wait()
        return
    if on_busy != "wait":
        raise SessionBusyError(f"session {frame.id!r} is running a turn: on_busy='wait' waits for it")
    if frame.idle is None:
        frame.idle = anyio.Event()
    await frame.idle.wait()
    frame.check()


def _new_turn(frame: SessionFrame, message: Message, options: RunOptions) -> TurnFrame:
    agent = frame.agent
    onions, forced = agent.current(frame) if overrides.get() else (frame.onions or agent.onions, None)
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
    )
    frame.turn_count += 1
    return turn


def _final(turn: TurnFrame, result: RunResult[Any]) -> RunResult[Any]:
    """Return the layers' result; what was counted since the core returned is in it."""
    if turn.stop is not None and turn.outcome is None:
        turn.outcome = turn.stop
        return turn.result()
    return result


def _interrupted(frame: SessionFrame) -> BaseException:
    if frame.failure is not None or frame.agent.failure is not None:
        cause = frame.failure or frame.agent.failure
        error = SessionClosedError(f"session {frame.id!r} failed while its turn ran: {cause}")
        error.__cause__ = cause
        return error
    return TurnAborted("cancelled by session.cancel()")


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
        await turn.session.commit()
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
    frame.totals.add(result.usage)
    frame.agent.totals.add(result.usage)
    frame.turn = None
    if frame.after:
        _run_after(frame)
    if frame.idle is not None:
        frame.idle.set()
        frame.idle = None


def _run_after(frame: SessionFrame) -> None:
    """Run what was left for after the turn, beside the caller; the next turn waits for it."""
    work, frame.after = frame.after or [], None
    frame.after_running = done = anyio.Event()

    async def run() -> None:
        try:
            for owner, fn in work:
                try:
                    await fn()
                except Exception as error:
                    logger.error("%s: after_turn failed: %r", owner, error, exc_info=error)
        finally:
            frame.after_running = None
            done.set()

    spawn(frame, run, "after_turn", "log", None)


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

    __slots__ = ("_agent", "_close_agent", "_deps", "_ephemeral", "_frame", "_id", "_parent", "_seed", "_user")

    def __init__(
        self,
        agent: Agent[Any, Out],
        session_id: str | None,
        user: str | None,
        deps: Any,
        history: Sequence[Message] | None,
        *,
        parent: TurnFrame | None = None,
        ephemeral: bool = False,
    ) -> None:
        self._agent = agent
        self._id = session_id or os.urandom(8).hex()
        self._user = user
        self._deps = deps
        self._seed = history
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
        troubles = [await close_session(frame, error), await close_agent(error)]
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
            on_busy: what to do while a turn is running: `raise` or `wait`.

        Raises:
            SessionBusyError: a turn is running.
            TurnAborted: a plugin aborted the turn.
        """
        options = RunOptions(deps, model, limits, settings, metadata, on_busy)
        if self._frame is not None:
            result: RunResult[Out] = await run_turn(self._frame, input, options)
            return result
        async with self:
            return await run_turn(self._open_frame("run"), input, options)  # type: ignore[no-any-return]

    def stream(self, input: UserInput, **options: Any) -> Stream[Out]:
        """Run one turn and see it happen: `async with session.stream("…") as stream`. Takes what `run` takes."""
        return Stream(self, input, RunOptions(**options))

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


def _matches(wanted: str, kind: str) -> bool:
    if kind in DELTAS:
        return wanted == kind
    return wanted in ("*", kind) or (wanted.endswith(".*") and kind.startswith(wanted[:-1]))


class _Events:
    """The events of a stream."""

    def __init__(self, buffer: Buffer, check: Callable[[], None]) -> None:
        self._buffer = buffer
        self._check = check
        self._last: Event | None = None

    def __aiter__(self) -> _Events:
        return self

    async def __anext__(self) -> Event:
        if not self._buffer.items and not await self._buffer.wait():
            self._check()
            raise StopAsyncIteration
        self._last = as_event(self._buffer.items.popleft(), self._last, time.time())
        return self._last


class _Texts:
    """The pieces of text of a stream."""

    def __init__(self, buffer: Buffer, check: Callable[[], None]) -> None:
        self._buffer = buffer
        self._items = buffer.items
        self._check = check

    def __aiter__(self) -> _Texts:
        return self

    async def __anext__(self) -> str:
        items = self._items
        while items or await self._buffer.wait():
            item: Item = items.popleft()
            if type(item) is tuple and type(item[0]) is TextDelta:
                return item[0].text
            if type(item) is TextDeltaEvent:
                return item.text
        self._check()
        raise StopAsyncIteration


class Stream(Generic[Out]):
    """A turn that is being watched: iterate it for events, or its `text`; then look at `result`.

    Leaving the `async with` early cancels the turn and waits for it.
    """

    def __init__(self, session: Session[Out], text: UserInput, options: RunOptions) -> None:
        self._session = session
        self._input = text
        self._options = options
        self._buffer = Buffer()
        self._result: RunResult[Out] | None = None
        self._error: BaseException | None = None
        self._opened = False
        self._left = False

    async def __aenter__(self) -> Stream[Out]:
        if self._session._frame is None:
            await self._session.__aenter__()
            self._opened = True
        self._group = anyio.create_task_group()
        await self._group.__aenter__()
        self._group.start_soon(self._run)
        try:
            await self._buffer.started.wait()
            self._check()
        except BaseException as error:
            await self.__aexit__(type(error), error, error.__traceback__)
            raise
        return self

    async def _run(self) -> None:
        frame = self._session._open_frame("stream")
        try:
            self._result = await run_turn(frame, self._input, self._options, self._buffer)
        except BaseException as error:
            if is_cancellation(error):
                raise
            self._error = error
        finally:
            self._buffer.close()
            self._buffer.started.set()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._left = True
        unfinished = self._result is None and self._error is None
        self._buffer.close()
        if unfinished:
            self._group.cancel_scope.cancel()
        try:
            if is_cancellation(error):
                await self._group.__aexit__(kind, error, traceback)
            else:
                await self._group.__aexit__(None, None, None)
        except BaseException as left:
            if not is_cancellation(left) or error is None:
                raise collapse(left)
        finally:
            if self._opened:
                with anyio.CancelScope(shield=True):
                    await self._session.__aexit__(kind, error, traceback)
        if error is None and self._error is not None:
            raise self._error

    def _check(self) -> None:
        if self._error is not None and not self._left:
            error, self._error = self._error, None
            raise error

    def __aiter__(self) -> AsyncIterator[Event]:
        return _Events(self._buffer, self._check)

    @property
    def text(self) -> AsyncIterator[str]:
        """The pieces of the model's text, as they come.

        After `model.retrying` the pieces of that call begin anew; iterate the stream itself to see it.
        """
        return _Texts(self._buffer, self._check)

    @property
    def result(self) -> RunResult[Out]:
        """The turn's result, once it has ended; of a turn that was left early, what there was by then."""
        if self._result is not None:
            return self._result
        frame = self._session._frame
        last: RunResult[Out] | None = frame.last_result if frame is not None else None
        if not self._left or last is None:
            raise SessionBusyError("the stream has not ended: iterate it to its end, or leave its `async with`")
        return last


def bubble(frame: SessionFrame) -> Callable[[Event], Awaitable[None]]:
    """Return a listener that shows the events of a sub-agent's session to its parent's."""
    parent = frame.parent

    async def listener(event: Event) -> None:
        if parent is not None:
            if isinstance(event, SubAgentEvent):
                parent.session.record(SubAgentEvent, event.path, event.event)
            else:
                parent.session.record(SubAgentEvent, frame.path, event)
            await parent.session.deliver()

    return listener
