"""Compile the layers of a hook and a core into one callable, once per combination of plugins.

A layer gets a context and `call_next`. What it may do with them is checked here, at its exit: that it returned a
result of the right kind, that nothing swallowed a cancellation or an abort, that an observer changed nothing.
An onion without layers is its core.
"""

from __future__ import annotations

import dis
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from types import TracebackType
from typing import Any, cast

import anyio
import attrs

from ._context import CONTEXTS
from ._errors import HookError, TurnSignal
from ._events import ErrorEvent, ModelRetrying
from ._frames import AgentFrame, ModelFrame, SessionFrame
from ._hookspecs import Layer
from ._host import Signal, is_cancellation
from ._messages import ModelResponse

logger = logging.getLogger("agentx")
Core = Callable[..., Awaitable[Any]]
"""Takes a frame, and the `call_next` that entered it if a layer did; notes its outcome there and returns it."""
Inner = Callable[[Any, "CallNext | None"], Coroutine[Any, Any, Any]]
"""What a layer enters: takes a frame and the `call_next` that entered it."""

NEW, RUNNING, DONE, ENDED, DENIED = range(5)
_TIMED = frozenset(
    {
        "CancelScope",
        "TaskGroup",
        "create_task",
        "create_task_group",
        "fail_after",
        "fail_at",
        "move_on_after",
        "move_on_at",
        "open_nursery",
        "timeout",
        "timeout_at",
        "wait_for",
    }
)
"""Names by which code limits the time of what it awaits, or moves it into another task."""


Lifetime = Callable[[Any, Callable[[], Awaitable[None]]], Awaitable[None]]
"""Takes a frame, and the core that waits until the level closes."""


@attrs.frozen(eq=False, repr=False)
class Onions:
    """The compiled onions of one combination of plugins."""

    init: Lifetime
    session: Lifetime
    turn: Core
    model: Core
    tool: Core
    layers: dict[str, tuple[Layer, ...]]
    asked: dict[tuple[str, ...], Core] = attrs.Factory(dict)
    """The model onions of plugins' own calls, by who is asking."""


class CallNext:
    """`call_next` of one entry of a layer. What it enters notes its own outcome here."""

    __slots__ = ("entered", "error", "frame", "inner", "layer", "result", "state")

    def __init__(self, frame: Any, inner: Inner, layer: Layer) -> None:
        self.frame = frame
        self.inner = inner
        self.layer = layer
        self.state = NEW
        self.error: BaseException | None = None
        self.result: Any = None

    def __call__(self) -> Coroutine[Any, Any, Any]:
        if self.state != NEW:
            raise self.refuse()
        frame = self.frame
        if frame.scope.signal is not None:
            raise frame.scope.signal
        self.state = RUNNING
        self.entered = entered = self.inner(frame, self)
        return entered

    def was_forgotten(self) -> bool:
        """Return whether it was called but never awaited; it is taken back then."""
        if self.state != RUNNING or inspect.getcoroutinestate(self.entered) != inspect.CORO_CREATED:
            return False
        self.entered.close()
        self.state = NEW
        return True

    def came_out(self, error: BaseException) -> bool:
        """Return whether an exception is one that this `call_next` raised."""
        return error is self.error

    def deny(self) -> None:
        self.state = DENIED

    def refuse(self) -> HookError:
        """Return the error of a `call_next` that must not be."""
        if self.state == ENDED:
            problem, fix = "kept call_next and called it after the layer had returned", "await it inside the layer"
        elif self.state == DENIED:
            problem, fix = "called call_next after ctx.deny", "write `return ctx.deny(…)`"
        elif self.layer.hook in ("init", "session"):
            problem, fix = "called call_next twice", "a level is opened once"
        elif self.state == RUNNING:
            problem, fix = "called call_next while another call of it was running", "mark it @hookimpl(concurrent=True)"
        else:
            problem, fix = "called call_next twice", "mark it @hookimpl(repeats=True) if it is meant to run again"
        return broken(self.layer, problem, fix)


class RepeatNext(CallNext):
    """`call_next` of a layer that may call it again; every call gets a fork of the frame as the layer left it."""

    __slots__ = ("calls", "failures", "running")

    def __init__(self, frame: Any, inner: Inner, layer: Layer) -> None:
        super().__init__(frame, inner, layer)
        self.calls = 0
        self.running = 0
        self.failures: list[BaseException] = []

    def came_out(self, error: BaseException) -> bool:
        return any(error is failure for failure in self.failures)

    def __call__(self) -> Coroutine[Any, Any, Any]:
        self.entered = entered = self.enter()
        return entered

    def was_forgotten(self) -> bool:
        if self.calls or self.state != NEW or not hasattr(self, "entered"):
            return False
        self.entered.close()
        return True

    async def enter(self) -> Any:
        if self.state in (ENDED, DENIED):
            raise self.refuse()
        if is_cancellation(self.error) and await self.frame.scope.is_cancelled():
            raise self.error  # type: ignore[misc]  # it is one
        if self.running and not self.layer.concurrent:
            fix = "mark it @hookimpl(concurrent=True), or await the earlier call first"
            raise broken(self.layer, "called call_next while another call of it was running", fix)
        signal = self.frame.scope.signal
        if signal is not None:
            raise signal
        self._announce()
        frame = self.frame
        fork = frame.fork()
        self.calls += 1
        self.running += 1
        self.state = RUNNING
        held = None
        if self.layer.concurrent and isinstance(fork, ModelFrame) and fork.sink is not None:
            held = HeldDeltas()
            fork.sink = held.take
        try:
            result = await self.inner(fork, None)
        except BaseException as error:
            self.error = error
            self.failures.append(error)
            raise
        finally:
            self.running -= 1
            if not self.running and self.state == RUNNING:
                self.state = DONE
        if held is not None:
            _held(frame)[id(result)] = (result, held)
        self.result, self.error = result, None
        return result

    def _announce(self) -> None:
        """Tell consumers that what they saw of this call is void; overlapping attempts showed nothing yet."""
        frame = self.frame
        if not self.calls or self.layer.concurrent or not isinstance(frame, ModelFrame):
            return
        why = f"{type(self.error).__name__}: {self.error}" if self.error else "the layer called again"
        frame.session.record(ModelRetrying, frame.call_index, frame.attempts[0] + 1, why, self.layer.plugin)


class HeldDeltas:
    """What one of several overlapping attempts streamed; only the winner's goes out."""

    def __init__(self) -> None:
        self._deltas: list[tuple[Any, int, int]] = []

    async def take(self, delta: Any, call_index: int, attempt: int) -> None:
        self._deltas.append((delta, call_index, attempt))

    async def release(self, sink: Any) -> None:
        for delta, call_index, attempt in self._deltas:
            await sink(delta, call_index, attempt)


def _held(frame: ModelFrame) -> dict[int, tuple[Any, HeldDeltas]]:
    if frame.held is None:
        frame.held = {}
    return frame.held


def broken(layer: Layer, problem: str, fix: str) -> HookError:
    message = f"{layer.plugin}: the {layer.hook} hook {problem}, at {layer.where}: {fix}"
    return HookError(message, plugin=layer.plugin, hook=layer.hook)


def compile_onion(layers: Sequence[Layer], core: Core, result: type) -> Core:
    """Return the onion of one of the hooks `turn`, `model` and `tool`; `layers` stand outermost first."""
    if not layers:
        return core
    run = cast(Inner, core)
    for layer in reversed(layers):
        wrap = _observe if layer.phase == "observe" else _plain
        run = wrap(layer, run, result)
    return cast(Core, run)


def note_failure(outer: CallNext | None, error: BaseException, frame: Any) -> None:
    if isinstance(error, KeyboardInterrupt):
        frame.scope.signal = error
    if outer is not None:
        outer.error, outer.state = error, DONE


def _plain(layer: Layer, inner: Inner, expected: type) -> Inner:
    function, context = layer.fn, CONTEXTS[layer.hook]
    make_next = RepeatNext if layer.repeats else CallNext
    concurrent = layer.concurrent

    async def run(frame: Any, outer: CallNext | None = None) -> Any:
        call_next = make_next(frame, inner, layer)
        try:
            try:
                result = await function(context(frame, call_next), call_next)
                if (
                    result is not call_next.result
                    or call_next.state != DONE
                    or call_next.error is not None
                    or concurrent
                ):
                    result = await _check_exit(result, expected, call_next)
            except BaseException as error:
                result = await _leave(error, call_next)
            call_next.state = ENDED
            if frame.scope.signal is not None:
                raise frame.scope.signal
        except BaseException as error:
            note_failure(outer, error, frame)
            raise
        if outer is not None:
            outer.result, outer.state = result, DONE
        return result

    return run


async def _check_exit(result: Any, expected: type, call_next: CallNext) -> Any:
    """Look closely at a layer that did not simply return the result of its one `call_next`."""
    layer, frame = call_next.layer, call_next.frame
    if call_next.was_forgotten() and result is not call_next.entered:
        raise broken(layer, "called call_next without awaiting it", "write `return await call_next()`")
    if call_next.state == RUNNING:
        call_next.state = ENDED
        raise broken(layer, "returned while its call_next was still running", "await what you started")
    if is_cancellation(call_next.error) and await call_next.frame.scope.is_cancelled():
        raise call_next.error  # type: ignore[misc]  # it is one
    if not isinstance(result, expected):
        raise _wrong(result, expected, call_next)
    if isinstance(frame, ModelFrame):
        return await _show(cast(ModelResponse, result), call_next)
    return result


async def _show(response: ModelResponse, call_next: CallNext) -> ModelResponse:
    """Let consumers see a response that no dispatch of this entry streamed, or the one that won."""
    frame: ModelFrame = call_next.frame
    if frame.held is not None and id(response) in frame.held:
        await frame.held[id(response)][1].release(frame.sink)
        return response
    seen = call_next.result
    replaced = isinstance(seen, ModelResponse) and response is not seen and response.text != seen.text
    if call_next.state == NEW or call_next.error is not None or replaced:
        if frame.attempts[0]:
            why = f"{call_next.layer.plugin} answered instead"
            frame.session.record(ModelRetrying, frame.call_index, frame.attempts[0] + 1, why, call_next.layer.plugin)
        shown: ModelResponse = await frame.agent.show(frame, response)
        return shown
    return response


def _wrong(result: Any, expected: type, call_next: CallNext) -> HookError:
    layer, name = call_next.layer, expected.__name__
    if hasattr(result, "cr_frame") or hasattr(result, "__await__"):
        if hasattr(result, "close"):
            result.close()
        return broken(layer, "returned something to await", "write `return await call_next()`")
    if call_next.state == DENIED:
        return broken(layer, "forgot to return its denial", "write `return ctx.deny(…)`")
    if call_next.state == NEW:
        return broken(layer, f"neither called call_next nor returned a {name}", "write `return await call_next()`")
    if result is None:
        return broken(layer, "forgot to return the result of call_next", "write `return await call_next()`")
    return broken(layer, f"returned {type(result).__name__} and not a {name}", "return what call_next returned")


async def _leave(error: BaseException, call_next: CallNext) -> Any:
    """Raise what leaves a layer that `error` came out of, or return the result where it is set to fail open."""
    was_running, call_next.state = call_next.state == RUNNING, ENDED
    layer, turn = call_next.layer, call_next.frame.turn
    error = collapse(error)
    if isinstance(error, KeyboardInterrupt):
        turn.scope.signal = error
    if turn.scope.signal is not None and not is_cancellation(error):
        raise overruled(turn.scope.signal, error)
    if (
        isinstance(error, Exception | SystemExit)
        and is_cancellation(call_next.error)
        and await call_next.frame.scope.is_cancelled()
    ):
        raise call_next.error  # type: ignore[misc]  # it is one
    if call_next.came_out(error) or not isinstance(error, Exception | SystemExit):
        raise error
    if isinstance(error, SystemExit):
        error = broken(layer, f"called sys.exit({error.code!r})", "raise an error, or use ctx.abort")
    if was_running:
        error.add_note("its call_next was still running")
    turn.blame = (error, layer)
    if layer.phase not in ("gate", "verify"):
        raise error
    if layer.on_error == "open":
        return await _fail_open(error, call_next)
    raise turn.abort(f"{type(error).__name__}: {error}", layer.plugin) from error


async def _fail_open(error: BaseException, call_next: CallNext) -> Any:
    """Let the call through as if the layer were not there; the user asked for it."""
    _count_failure(error, call_next.layer, call_next.frame)
    if call_next.error is not None:
        raise call_next.error
    if call_next.result is not None:
        return call_next.result
    return await call_next.inner(call_next.frame, None)


def overruled(signal: Signal, error: BaseException) -> Signal:
    """Return the turn's one signal; what else happened becomes a note on it."""
    if error is not signal and not isinstance(error, TurnSignal):
        signal.add_note(f"overruled: {type(error).__name__}: {error}")
    return signal


def collapse(error: BaseException) -> BaseException:
    """Return the one exception that a task group wrapped around our call, or the group if there are more."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    if not isinstance(error, BaseExceptionGroup):
        return error
    for kind in (TurnSignal, KeyboardInterrupt):
        found, rest = error.split(kind)
        if found is not None:
            return _first(found, rest)
    broken_hooks, rest = error.split(HookError)
    if broken_hooks is not None and rest is None and len({leaf.plugin for leaf in leaves(broken_hooks)}) == 1:
        return _first(broken_hooks, None)
    cancelled, rest = error.split(is_cancellation)
    return _first(cancelled, None) if cancelled is not None and rest is None else error


def leaves(group: BaseExceptionGroup[Any]) -> list[Any]:
    """Return the exceptions of a group and of the groups in it."""
    found: list[Any] = []
    for error in group.exceptions:
        found += leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found


def _first(group: BaseExceptionGroup[BaseException], rest: BaseExceptionGroup[BaseException] | None) -> BaseException:
    leaf: BaseException = group
    while isinstance(leaf, BaseExceptionGroup):
        leaf = leaf.exceptions[0]
    for other in rest.exceptions if rest is not None else ():
        leaf.add_note(f"and: {type(other).__name__}: {other}")
    return leaf


def _count_failure(error: BaseException, layer: Layer, frame: Any) -> None:
    """Log and count a plugin's own failure that does no harm."""
    agent: AgentFrame = frame if isinstance(frame, AgentFrame) else frame.agent
    agent.failures[layer.plugin] = agent.failures.get(layer.plugin, 0) + 1
    logger.error("%s: the %s hook failed at %s: %r", layer.plugin, layer.hook, layer.where, error, exc_info=error)
    session = getattr(frame, "session", None)
    if isinstance(session, SessionFrame):
        session.record(ErrorEvent, f"{layer.hook} hook", type(error).__name__, str(error), layer.plugin)


def _observe(layer: Layer, inner: Inner, expected: type) -> Inner:
    """An observer's failure is logged, and the inner outcome wins whatever it returned or raised."""
    function, context = layer.fn, CONTEXTS[layer.hook]
    if _may_limit_time(function):
        return _observe_beside(layer, inner)
    make_next = CallNext if _is_plain(function) else WatchedNext

    async def run(frame: Any, outer: CallNext | None = None) -> Any:
        call_next = make_next(frame, inner, layer)
        try:
            try:
                await function(context(frame, call_next), call_next)
            except BaseException as error:
                if error is not call_next.error:
                    await _observer_failed(error, call_next)
            state, call_next.state = call_next.state, ENDED
            if state == DONE and call_next.error is None:
                result = call_next.result
            else:
                call_next.state = state
                result = await _observed(call_next)
        except BaseException as error:
            note_failure(outer, error, frame)
            raise
        if outer is not None:
            outer.result, outer.state = result, DONE
        return result

    return run


async def _observed(call_next: CallNext) -> Any:
    """Return or raise the inner outcome where the observer did not simply wait for a result."""
    layer, frame = call_next.layer, call_next.frame
    forgotten = call_next.was_forgotten()
    state, call_next.state = call_next.state, ENDED
    if state == NEW or forgotten:
        if frame.scope.signal is not None:
            raise frame.scope.signal
        return await call_next.inner(frame, None)
    if state == RUNNING:
        raise broken(layer, "returned while its call_next was still running", "await call_next in the observer")
    error = call_next.error
    if is_cancellation(error) and not await frame.scope.is_cancelled():
        raise broken(layer, "cancelled the call it observes", "an observer may not limit the time of the call")
    raise error  # type: ignore[misc]  # it is one


async def _observer_failed(error: BaseException, call_next: CallNext) -> None:
    """Log an observer's own exception; what is not its own goes on."""
    error = collapse(error)
    if error is call_next.error:
        return
    if not isinstance(error, Exception | SystemExit):
        raise error
    _count_failure(error, call_next.layer, call_next.frame)


class WatchedNext(CallNext):
    """`call_next` of an observer whose code could limit the time of the call: it is not entered within a limit."""

    __slots__ = ("deadline",)

    def __init__(self, frame: Any, inner: Inner, layer: Layer) -> None:
        super().__init__(frame, inner, layer)
        self.deadline = anyio.current_effective_deadline()

    def __call__(self) -> Coroutine[Any, Any, Any]:
        if self.state == NEW and anyio.current_effective_deadline() < self.deadline:
            raise broken(self.layer, "limits the time of the call", "an observer only watches; limit your own work")
        return super().__call__()


_NO_MATTER = frozenset({"CACHE", "NOP", "PRECALL", "PUSH_NULL", "RESUME"})


def _is_plain(function: Any) -> bool:
    """Return whether all that a hook's code does with `call_next` is to await it, outside of every `with`.

    Then nothing can limit the time of the call, and it need not be watched.
    """
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    if code is None or "call_next" in code.co_cellvars:
        return False
    steps = [step for step in dis.get_instructions(code) if step.opname not in _NO_MATTER]
    for number, step in enumerate(steps):
        if step.opname in ("BEFORE_WITH", "BEFORE_ASYNC_WITH", "LOAD_SPECIAL"):
            return False
        if step.argval == "call_next" or (isinstance(step.argval, tuple) and "call_next" in step.argval):
            following = [step.opname for step in steps[number + 1 : number + 3]]
            if following != ["CALL", "GET_AWAITABLE"] or steps[number + 1].argval:
                return False
    return True


def _may_limit_time(function: Any) -> bool:
    """Return whether a function's own code names a timeout, a scope or a task group."""
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return code is None or not _TIMED.isdisjoint(_names_in(code))


def _names_in(code: Any) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if hasattr(constant, "co_names"):
            names |= _names_in(constant)
    return names


def _observe_beside(layer: Layer, inner: Inner) -> Inner:
    """Run an observer that uses timeouts in a task beside the call, so that they cannot reach it."""
    function, context = layer.fn, CONTEXTS[layer.hook]

    async def run(frame: Any, outer: CallNext | None = None) -> Any:
        beside = _Beside(frame, inner, layer)
        outcome: BaseException | None = None
        result: Any = None
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(beside.observe, function, context)
                await beside.called.wait()
                try:
                    result = await inner(frame, None)
                except BaseException as error:
                    outcome = error
                beside.settle(result, outcome)
                if is_cancellation(outcome):
                    raise outcome  # type: ignore[misc]  # it is one
            if outcome is not None:
                raise outcome
        except BaseException as error:
            note_failure(outer, error, frame)
            raise
        if outer is not None:
            outer.result, outer.state = result, DONE
        return result

    return run


class _Beside(CallNext):
    """`call_next` of an observer in a task of its own: it only waits for the outcome."""

    __slots__ = ("called", "finished")

    def __init__(self, frame: Any, inner: Inner, layer: Layer) -> None:
        super().__init__(frame, inner, layer)
        self.called = anyio.Event()
        self.finished = anyio.Event()

    def __call__(self) -> Coroutine[Any, Any, Any]:
        self.entered = entered = self.enter()
        return entered

    async def observe(self, function: Any, context: Any) -> None:
        try:
            await function(context(self.frame, self), self)
        except BaseException as error:
            if error is not self.error:
                await _observer_failed(error, self)
        finally:
            self.called.set()

    async def enter(self) -> Any:
        if self.state != NEW:
            raise self.refuse()
        self.state = RUNNING
        self.called.set()
        await self.finished.wait()
        if self.error is not None:
            raise self.error
        return self.result

    def settle(self, result: Any, error: BaseException | None) -> None:
        self.result, self.error = result, error
        self.finished.set()


def compile_lifetime(layers: Sequence[Layer]) -> Lifetime:
    """Return the onion of `init` or `session`: takes a frame and the core that waits until the level closes."""

    async def run(frame: Any, core: Callable[[], Awaitable[None]]) -> None:
        async def innermost(frame: Any, outer: CallNext | None) -> None:
            await core()

        enter: Inner = innermost
        for layer in reversed(layers):
            enter = _lifetime(layer, enter)
        await enter(frame, None)

    return run


def _lifetime(layer: Layer, inner: Inner) -> Inner:
    function, context = layer.fn, CONTEXTS[layer.hook]

    async def run(frame: Any, outer: CallNext | None) -> None:
        call_next = _LifetimeNext(frame, inner, layer)
        try:
            await function(context(frame, call_next), call_next)
        except BaseException as error:
            await _leave_lifetime(error, call_next)
        if call_next.state == NEW:
            if hasattr(call_next, "entered"):
                call_next.entered.close()
            if layer.phase != "observe":
                raise broken(layer, "returned without calling call_next", "write `await call_next()`")
            await inner(frame, None)
        elif call_next.error is not None and layer.phase == "observe":
            raise call_next.error
        call_next.state = ENDED

    return run


class _LifetimeNext(CallNext):
    __slots__ = ()

    def __call__(self) -> Coroutine[Any, Any, Any]:
        self.entered = entered = self.enter()
        return entered

    async def enter(self) -> Any:
        if self.state != NEW:
            raise self.refuse()
        self.state = RUNNING
        try:
            await self.inner(self.frame, None)
        except BaseException as error:
            self.error = error
            raise
        finally:
            self.state = DONE


async def _leave_lifetime(error: BaseException, call_next: CallNext) -> None:
    error = collapse(error)
    if call_next.layer.phase == "observe" and error is not call_next.error:
        if isinstance(error, Exception | SystemExit):
            _count_failure(error, call_next.layer, call_next.frame)
            return
    elif isinstance(error, SystemExit):
        raise broken(call_next.layer, f"called sys.exit({error.code!r})", "raise an error") from error
    raise error


def annotate(error: BaseException, hook: str, frame: Any, layers: Sequence[Layer]) -> None:
    """Note on an exception the way it came through, and trim the onion's own frames from its traceback."""
    if not layers or not isinstance(error, Exception):
        return
    blame = frame.turn.blame
    culprit = blame[1] if blame is not None and blame[0] is error else None
    names = [f"[{layer.plugin}]" if layer is culprit else layer.plugin for layer in layers]
    core = "core" if culprit is not None else "[core]"
    note = f"{hook} onion: {' > '.join([*names, core])}"
    if note not in getattr(error, "__notes__", ()):
        error.add_note(note)
    error.with_traceback(_trim(error.__traceback__))


def _trim(traceback: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the frames of this file."""
    frames = []
    while traceback is not None:
        frames.append(traceback)
        traceback = traceback.tb_next
    kept: TracebackType | None = None
    for item in reversed(frames):
        if item.tb_frame.f_code.co_filename != __file__:
            kept = TracebackType(kept, item.tb_frame, item.tb_lasti, item.tb_lineno)
    return kept
