"""What every plugin has to hold to, as checks that can be run one by one.

`agentx_pytest.PluginConformance` makes a test of each. A check raises `ConformanceError`, which names the plugin, the
hook, where it is and what to do; or `NotChecked`, where something more basic fails or there is nothing to check.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from decimal import Decimal
from functools import cached_property
from typing import Any

import anyio
import attrs

from agentx._codec import encode_event
from agentx._errors import (
    CodecError,
    ConfigError,
    PluginError,
    PluginLoadError,
    RequestRejectedError,
    ToolFailed,
    TurnAborted,
    TurnSignal,
)
from agentx._events import ErrorEvent, ModelEnd, StateUpdated
from agentx._hookspecs import HOOKS, Layer
from agentx._host import in_trio
from agentx._messages import ModelRequest
from agentx._onion import collapse
from agentx._plugin import Plugin

from ._scenario import (
    WORDS,
    Run,
    Subject,
    build,
    history_problem,
    plain_state,
    play,
    states_of,
    told,
    was_cancelled,
)
from ._watch import NOTHING, Entry, Function

CALLS = ("turn", "model", "tool")
"""The hooks that wrap one execution."""
CHECK_SECONDS = 60.0
"""How long one check may take; generous, for busy machines."""
ROUNDS = 5
"""How often a layer must hold the event loop before it is believed: a busy machine stops any code now and then."""
SETTING = "no_such_setting"


class ConformanceError(AssertionError):
    """A plugin does not hold to the contract."""


class NotChecked(Exception):
    """There is nothing to check, or something more basic must be mended first."""


class ProbeError(Exception):
    """What a check raises inside of a layer."""


Check = Callable[[Subject], Awaitable[None]]


async def plain_turn(subject: Subject) -> None:
    """A turn with a model call, two parallel tool calls and an answer goes through, and everything closes."""
    run = await play(build(subject, subject.make()), subject)
    if run.blames is not None:
        raise NotChecked("it breaks the rules of call_next, see there")
    if run.error is not None:
        raise ConformanceError(f"a plain turn fails: {told(run.error)}") from run.error
    if run.result is None or run.result.status != "completed":
        raise ConformanceError(
            f"a plain turn does not complete: {run.result and (run.result.status, run.result.reason)}"
        )
    _check_history(run)
    failed = [event for event in run.events if isinstance(event, ErrorEvent) and event.by in run.watch.plugins]
    for event in failed:
        if event.error != "HookError":  # a verb that an observer may not use; `observers_change_nothing` tells of it
            raise ConformanceError(f"{event.by} fails in its {event.where}: {event.error}: {event.message}")


async def every_hook_runs(subject: Subject) -> None:
    """Every layer of the plugin is entered in a plain turn."""
    run = await _good_run(subject)
    entered = {id(entry.layer) for entry in run.entries}
    for layer in run.watch.layers:
        if id(layer) not in entered:
            raise _broken(layer, "was never entered in a turn with a model call and two tool calls")


async def call_next_once(subject: Subject) -> None:
    """Each entry of a layer calls `call_next` exactly once, awaits it, and returns a result of the right kind.

    More often only where it says `repeats`, and not at all only where the test says that it short-circuits.
    """
    run = await play(build(subject, subject.make()), subject)
    if run.blames is not None:
        raise ConformanceError(str(run.blames)) from run.blames
    for entry in run.entries:
        layer = entry.layer
        if entry.calls > 1 and not layer.repeats:
            raise _broken(layer, f"called call_next {entry.calls} times; @hookimpl(repeats=True) says that it may")
        if entry.calls == 0 and entry.raised is None and layer.hook not in subject.short_circuits:
            raise _broken(layer, "did not call call_next; set short_circuits in the test if that is its purpose")


async def results_pass(subject: Subject) -> None:
    """What `call_next` returned is returned unchanged, and the answer is that of an agent without the plugin."""
    run = await _good_run(subject)
    for entry in run.entries:
        hook = entry.layer.hook
        if hook not in CALLS or hook in subject.changes or not entry.results or entry.returned is NOTHING:
            continue
        if not any(entry.returned is result or entry.returned == result for result in entry.results):
            shown = type(entry.returned).__name__
            raise _broken(entry.layer, f"returned another {shown} than call_next did; if it is meant to, set changes")
    if not set(CALLS) & {*subject.changes, *subject.short_circuits}:
        without = await play(build(subject, None), subject)
        if without.result and run.result and without.result.text != run.result.text:
            raise ConformanceError(f"the answer is {run.result.text!r}, and without the plugin {without.result.text!r}")


async def exceptions_pass(subject: Subject) -> None:
    """An exception out of `call_next` leaves the layer as the very same object, in the lifetimes too."""
    run = await _good_run(subject)
    for hook in _hooks_of(run, CALLS):
        for error in _errors_for(hook):
            faulty = await play(build(subject, subject.make(), inside=(hook, _raising(error))), subject)
            _check_leaving(faulty, subject, lambda entry: any(entry.raised is inner for inner in entry.errors))
    if _hooks_of(run, ("init", "session")):
        probe = ProbeError("the body failed")
        failed = await play(build(subject, subject.make()), subject, body_error=probe)
        if failed.error is not probe:
            raise ConformanceError(f"the body's exception leaves the session as {told(failed.error)}")
        _check_leaving(failed, subject, lambda entry: entry.raised in entry.errors)
        notes = [text for text in getattr(probe, "__notes__", ()) if text.startswith("while closing")]
        if notes:
            raise ConformanceError(f"closing fails after the body has failed: {notes[0]}")


async def cancellation_passes(subject: Subject) -> None:
    """A turn that is cancelled in the middle of any hook ends at once, and no layer swallows or converts that."""
    run = await _good_run(subject)
    for hook in _hooks_of(run, CALLS):
        cancelled = await _cancelled_run(subject, hook)
        _check_leaving(cancelled, subject, lambda entry: was_cancelled(entry.raised), only=was_cancelled)
        _check_history(cancelled)


async def abort_passes(subject: Subject) -> None:
    """`ctx.abort` inside of any hook leaves through the layer as it is."""
    run = await _good_run(subject)
    for hook in _hooks_of(run, CALLS):
        aborted = await play(build(subject, subject.make(), inside=(hook, _aborting)), subject)
        _check_leaving(aborted, subject, _is_over_by_signal, only=_is_signal)
        reached = any(_is_signal(error) for entry in aborted.entries for error in entry.errors)
        if reached and not isinstance(aborted.error, TurnAborted):
            raise ConformanceError(f"an abort inside of the {hook} hook ends the turn with {told(aborted.error)}")
        _check_history(aborted)


async def no_task_is_left(subject: Subject) -> None:
    """When the agent has closed, no task of the plugin is running."""
    await _good_run(subject)
    before = _tasks()
    await play(build(subject, subject.make()), subject)
    with anyio.move_on_after(2):
        while _tasks() - before:  # noqa: ASYNC110  # tasks of a plugin tell nobody that they end
            await anyio.sleep(0.01)
        return
    names = sorted(_task_name(task) for task in _tasks() - before)
    raise ConformanceError(
        f"tasks are left when the agent has closed: {', '.join(names)}; use ctx.start_soon, or wait for them"
    )


async def sessions_are_apart(subject: Subject) -> None:
    """Twenty sessions at once see nothing of each other, and their states are those of a session alone."""
    await _good_run(subject)
    alone = [(await _play_together(subject, WORDS[:1]))[0].state for _ in range(2)]
    steady = {key for key in alone[0] if alone[0][key] == alone[1].get(key)}
    for one in await _play_together(subject, WORDS):
        if one.error is not None:
            raise ConformanceError(
                f"with {len(WORDS)} sessions at once, a turn fails: {told(one.error)}"
            ) from one.error
        foreign = [word for word in WORDS if word in one.seen and word != one.word]
        if foreign:
            raise ConformanceError(
                f"session {one.word!r} has something of session {foreign[0]!r}: {one.where(foreign[0])}"
            )
        for key in sorted(steady):
            mine = one.state.get(key)
            if mine != alone[0][key]:
                raise ConformanceError(f"the state {key} is {mine} among {len(WORDS)} sessions, {alone[0][key]} alone")


async def loop_is_not_blocked(subject: Subject) -> None:
    """No layer keeps the event loop for longer than it may; what is slow belongs into a thread.

    Only the layer's own code counts, and only if it does so every time.
    """
    shortest: dict[tuple[str, str], tuple[float, Layer]] = {}
    for _ in range(ROUNDS):
        run = await _good_run(subject)
        longest: dict[tuple[str, str], tuple[float, Layer]] = {}
        for entry in run.entries:
            key = (entry.layer.hook, entry.layer.where)
            longest[key] = max(
                longest.get(key, (0.0, entry.layer)), (entry.held, entry.layer), key=lambda item: item[0]
            )
        for key, item in longest.items():
            shortest[key] = min(shortest.get(key, item), item, key=lambda item: item[0])
        if all(held <= subject.held_seconds for held, _ in shortest.values()):
            return
    held, layer = max(shortest.values(), key=lambda item: item[0])
    raise _broken(
        layer, f"holds the event loop for {held * 1000:.0f} ms; await something, or use anyio.to_thread.run_sync"
    )


async def context_variables_are_restored(subject: Subject) -> None:
    """A layer of a turn, model call or tool call leaves every context variable as it found it."""
    run = await _good_run(subject)
    for entry in run.entries:
        if entry.layer.hook in CALLS and entry.variables:
            names = ", ".join(sorted(entry.variables))
            raise _broken(entry.layer, f"leaves the context variable {names} changed; reset it in a finally")


async def observers_change_nothing(subject: Subject) -> None:
    """A plugin of phase `observe` uses no verb that changes anything, and the model gets what it gets without it."""
    run = await _good_run(subject)
    observers = [layer for layer in run.watch.layers if layer.phase == "observe"]
    if not observers:
        raise NotChecked("it has no layer in phase observe")
    failures = {plugin: count for plugin, count in run.agent.failures.items() if plugin in run.watch.plugins}
    if failures:
        raise ConformanceError(f"{_broken(observers[0], 'failed')}: it is an observer, and what it tried was refused")
    if len(observers) < len(run.watch.layers):
        return
    without = await play(build(subject, None), subject)
    for number, (mine, plain) in enumerate(zip(run.model.requests, without.model.requests, strict=False), 1):
        if mine != plain:
            raise ConformanceError(
                f"request {number} differs from the one without the observer in {_differs(mine, plain)}"
            )
    if len(run.model.requests) != len(without.model.requests):
        raise ConformanceError(f"{len(run.model.requests)} model calls instead of {len(without.model.requests)}")


async def stream_is_the_answer(subject: Subject) -> None:
    """However a text is cut into deltas, what is streamed is what the history holds, and nothing is lost."""
    await _good_run(subject)
    changes = {*CALLS} & {*subject.changes}
    for size in (1, 3, 10_000):
        run = await play(build(subject, subject.make(), delta_size=size), subject, stream=True)
        if run.error is not None:
            raise ConformanceError(f"a streamed turn fails: {told(run.error)}") from run.error
        texts = "".join([message.text for message in run.history if message.role == "assistant"])
        if run.streamed != texts:
            raise ConformanceError(f"in deltas of {size}, {run.streamed!r} was streamed, {texts!r} is in the history")
        said = "".join([response.text for response in run.model.responses])
        by_itself = any(isinstance(event, ModelEnd) and event.asked_by for event in run.events)
        if not by_itself and all(entry.calls for entry in run.entries) and not changes and run.streamed != said:
            raise ConformanceError(f"in deltas of {size}, the model said {said!r} and {run.streamed!r} was streamed")


async def state_survives(subject: Subject) -> None:
    """The plugin's state can be stored, and is there again when the session is opened again."""
    run = await _good_run(subject)
    if not run.states:
        raise NotChecked("it has no state")
    try:
        for event in run.events:
            if isinstance(event, StateUpdated):
                encode_event(event)
    except CodecError as error:
        raise ConformanceError(f"a state cannot be stored: {error}") from error
    before = {plugin: plain_state(state) for plugin, state in run.states.items()}
    async with run.agent, run.agent.session("scenario", user="somebody", deps=subject.deps) as session:
        after = {plugin: plain_state(state) for plugin, state in states_of(run.agent, session).items()}
    if after != before:
        raise ConformanceError(f"the state of a session is {after} when it is opened again, and was {before}")


async def one_instance_serves_two_agents(subject: Subject) -> None:
    """One instance serves two agents at once, and an agent that is opened again."""
    await _good_run(subject)
    plugin = subject.make()
    one, other = build(subject, plugin), build(subject, plugin)
    try:
        async with one.agent:
            await _without_error(other, subject)
            await _without_error(one, subject)
        await _without_error(one, subject)
    except Exception as error:
        raise ConformanceError(f"two agents with one instance: {told(error)}") from error


async def unknown_settings_are_refused(subject: Subject) -> None:
    """A setting that the plugin does not have is an error that names it."""
    plugin = subject.make()
    run = build(subject, plugin)
    try:
        with run.agent.override(config={plugin.id: {SETTING: 1}}):
            run.agent.stack()
    except (ConfigError, PluginLoadError) as error:
        if SETTING in str(error):
            return
        raise ConformanceError(f"the error about an unknown setting does not name it: {error}") from error
    raise ConformanceError(f"{plugin.id} takes the unknown setting {SETTING!r}")


async def instance_does_not_change(subject: Subject) -> None:
    """An instance is immutable once it is registered, by assignment and in what it holds."""
    await _good_run(subject)
    plugin = subject.make()
    run = build(subject, plugin)
    run.agent.stack()
    before = _fingerprint(plugin)
    await play(run, subject)
    changed = sorted(name for name, value in _fingerprint(plugin).items() if before.get(name, NOTHING) != value)
    if changed:
        raise ConformanceError(
            f"{plugin.id}.{changed[0]} changed in a turn; what changes belongs in the state (ctx.update)"
        )
    try:
        plugin.agentx_conformance = True  # it must be refused
    except (PluginError, AttributeError):
        return
    raise ConformanceError(f"{plugin.id} can be assigned to after it was registered; leave __setattr__ as it is")


CHECKS: Mapping[str, Check] = {
    check.__name__: check
    for check in (
        plain_turn,
        call_next_once,
        every_hook_runs,
        results_pass,
        exceptions_pass,
        cancellation_passes,
        abort_passes,
        no_task_is_left,
        sessions_are_apart,
        loop_is_not_blocked,
        context_variables_are_restored,
        observers_change_nothing,
        stream_is_the_answer,
        state_survives,
        one_instance_serves_two_agents,
        unknown_settings_are_refused,
        instance_does_not_change,
    )
}
"""All checks, by name, the basic ones first."""


async def check(name: str, subject: Subject) -> None:
    """Run one check of a plugin.

    Raises:
        ConformanceError: the plugin does not hold to it.
        NotChecked: it does not apply.
    """
    plugin = subject.make().id
    try:
        with anyio.move_on_after(CHECK_SECONDS) as scope:
            await CHECKS[name](subject)
    except ConformanceError as error:
        if str(error).startswith(plugin):
            raise
        raise ConformanceError(f"{plugin}: {error}") from error.__cause__
    if scope.cancelled_caught:
        raise ConformanceError(f"{plugin}: {name} did not end within {CHECK_SECONDS:.0f} s; something waits for ever")


async def problems(subject: Subject) -> dict[str, str]:
    """Return what is wrong with a plugin, by the name of the check that found it."""
    found: dict[str, str] = {}
    for name in CHECKS:
        try:
            await check(name, subject)
        except ConformanceError as error:
            found[name] = str(error)
        except NotChecked:
            continue
    return found


# Runs


async def _good_run(subject: Subject) -> Run:
    run = await play(build(subject, subject.make()), subject)
    if run.error is not None:
        raise NotChecked(f"a plain turn fails: {told(run.error)}")
    return run


async def _without_error(run: Run, subject: Subject) -> None:
    run.error = None
    await play(run, subject)
    if run.error is not None:
        raise run.error


async def _cancelled_run(subject: Subject, hook: str) -> Run:
    reached = anyio.Event()

    async def hang(ctx: Any, call_next: Callable[[], Awaitable[Any]]) -> Any:
        reached.set()
        await anyio.sleep_forever()

    run = build(subject, subject.make(), inside=(hook, hang))
    scope = anyio.CancelScope()
    over = anyio.Event()

    async def turn() -> None:
        with scope:
            await play(run, subject)
        reached.set()
        over.set()

    async with anyio.create_task_group() as group:
        group.start_soon(turn)
        with anyio.move_on_after(CHECK_SECONDS / 4):
            await reached.wait()
        scope.cancel()
        with anyio.move_on_after(CHECK_SECONDS / 4):
            await over.wait()
        group.cancel_scope.cancel()
    if not over.is_set():
        raise ConformanceError(f"a turn that is cancelled inside of the {hook} hook does not end")
    return run


@attrs.define
class _One:
    """One of several sessions."""

    word: str
    error: Exception | None = None
    parts: dict[str, str] = attrs.Factory(dict)
    state: dict[str, Any] = attrs.Factory(dict)

    @property
    def seen(self) -> str:
        return " ".join(self.parts.values())

    def where(self, word: str) -> str:
        return next(f"in its {name}" for name, text in self.parts.items() if word in text)


async def _play_together(subject: Subject, words: Iterable[str]) -> list[_One]:
    run = build(subject, subject.make())
    sessions = [_One(word) for word in words]
    async with run.agent, anyio.create_task_group() as group:
        for number, one in enumerate(sessions):
            group.start_soon(_play_one, run, subject, one, number)
    for one in sessions:
        mine = [_text_of(request) for request in run.model.requests if one.word in _text_of(request)]
        one.parts["requests"] = " ".join(mine)
    return sessions


async def _play_one(run: Run, subject: Subject, one: _One, number: int) -> None:
    try:
        async with run.agent.session(f"session-{number}", user=f"user-{number}", deps=subject.deps) as session:
            for _ in range(2):
                await anyio.sleep(0.001 * (number % 3))
                await session.run(subject.prompt.format(word=one.word))
            one.parts = {"history": repr(list(session.history)), "events": repr(session.events)}
            for plugin, state in states_of(run.agent, session).items():
                one.parts[f"state of {plugin}"] = repr(state)
                with suppress(CodecError):  # `state_survives` tells of it
                    for name, value in plain_state(state).items():
                        one.state[f"{plugin}.{name}"] = repr(value).replace(one.word, "…")
    except Exception as error:
        one.error = error


def _text_of(request: ModelRequest) -> str:
    return repr((request.instructions, list(request.wire_messages), request.tools, request.settings))


# What happens inside


def _raising(error: Exception) -> Function:
    async def raise_error(ctx: Any, call_next: Callable[[], Awaitable[Any]]) -> Any:
        raise error

    return raise_error


async def _aborting(ctx: Any, call_next: Callable[[], Awaitable[Any]]) -> Any:
    ctx.abort("a check of conformance")


def _errors_for(hook: str) -> Iterator[Exception]:
    yield ProbeError("raised by a check of conformance")
    if hook == "model":
        yield RequestRejectedError("raised by a check of conformance", status=400)
    if hook == "tool":
        yield ToolFailed("raised by a check of conformance", tool="agentx_lookup")


def _is_signal(error: BaseException | None) -> bool:
    return error is not None and isinstance(collapse(error), TurnSignal)


def _is_over_by_signal(entry: Entry) -> bool:
    return _is_signal(entry.raised)


# Findings


def _broken(layer: Layer, problem: str) -> ConformanceError:
    return ConformanceError(f"{layer.plugin}: the {layer.hook} hook at {layer.where} {problem}")


def _check_leaving(
    run: Run,
    subject: Subject,
    passes: Callable[[Entry], bool],
    *,
    only: Callable[[BaseException], bool] = lambda error: True,
) -> None:
    """Check every entry whose `call_next` raised in the end; `only` says which errors count."""
    for entry in run.entries:
        if entry.last != "raised" or not only(entry.errors[-1]) or passes(entry):
            continue
        error = type(collapse(entry.errors[-1])).__name__
        if entry.layer.hook in subject.handles_errors and isinstance(entry.errors[-1], Exception):
            continue
        became = f"raised {told(entry.raised)}" if entry.raised is not None else f"returned {entry.returned!r}"
        raise _broken(entry.layer, f"got {error} from call_next and {became}; let it pass")


def _check_history(run: Run) -> None:
    problem = history_problem(run.history)
    if problem:
        raise ConformanceError(f"the history is not valid: {problem}")


def _hooks_of(run: Run, among: Iterable[str]) -> list[str]:
    mine = {layer.hook for layer in run.watch.layers}
    return [hook for hook in HOOKS if hook in mine and hook in among]


def _differs(one: ModelRequest, other: ModelRequest) -> str:
    names = [field.name for field in attrs.fields(ModelRequest)]
    return ", ".join([name for name in names if getattr(one, name) != getattr(other, name)])


def _tasks() -> set[Any]:
    """Return the tasks of the running event loop."""
    if not in_trio():
        import asyncio

        return set(asyncio.all_tasks())
    import trio

    found: set[Any] = set()
    waiting: list[Any] = [trio.lowlevel.current_root_task()]
    while waiting:
        task = waiting.pop()
        found.add(task)
        waiting += [child for nursery in task.child_nurseries for child in nursery.child_tasks]
    return found


def _task_name(task: Any) -> str:
    name = task.get_name() if hasattr(task, "get_name") else task.name
    return str(name)


def _fingerprint(plugin: Plugin[Any]) -> dict[str, Any]:
    """Return what an instance holds in a form that shows changes; what a cached property keeps does not count."""
    cached = {name for base in type(plugin).__mro__ for name, value in vars(base).items() if _is_cached(value)}
    return {name: _print_of(value) for name, value in vars(plugin).items() if name not in cached}


def _is_cached(value: Any) -> bool:
    return isinstance(value, cached_property)


def _print_of(value: Any) -> Any:
    if isinstance(value, list | tuple | set | frozenset | deque):
        return type(value).__name__, len(value), [_print_of(item) for item in value]
    if isinstance(value, Mapping):
        return type(value).__name__, [(_print_of(key), _print_of(item)) for key, item in value.items()]
    if isinstance(value, str | bytes | bytearray | int | float | Decimal | None):
        return type(value).__name__, repr(value)
    return type(value).__name__, id(value)
