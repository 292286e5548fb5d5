"""An agent whose layers are watched: what each was given, what it did with it, and how long it held the event loop."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Generator
from contextvars import Context, copy_context
from typing import Any, TypeVar

import attrs

from agentx._agent import Agent, compile_stack
from agentx._frames import AgentFrame
from agentx._hookspecs import HOOKS, Layer, place_of
from agentx._onion import Onions, _may_limit_time
from agentx._plugins import Stack

T = TypeVar("T")
Function = Callable[[Any, Callable[[], Awaitable[Any]]], Awaitable[Any]]
"""A hook's function: takes a context and `call_next`."""

NOTHING: Any = object()
_NOT_THE_LAYERS = frozenset({"decimal_context", "current_async_library_cvar"})
"""Context variables that Python and sniffio set by themselves, at first use."""


@attrs.define(eq=False)
class Entry:
    """One entry of a layer."""

    layer: Layer
    calls: int = 0
    results: list[Any] = attrs.Factory(list)
    errors: list[BaseException] = attrs.Factory(list)
    """What came out of its `call_next`."""
    returned: Any = NOTHING
    raised: BaseException | None = None
    held: float = 0.0
    """The longest time, in seconds, that its own code ran without letting the event loop go on."""
    variables: frozenset[str] = frozenset()
    """The context variables it left changed."""
    last: str = ""
    """Whether its last `call_next` returned or raised."""

    @property
    def is_over(self) -> bool:
        return self.returned is not NOTHING or self.raised is not None


class Watch:
    """Keeps the entries of the layers of chosen plugins."""

    def __init__(self, plugins: frozenset[str]) -> None:
        self.plugins = plugins
        self.entries: list[Entry] = []
        self.layers: list[Layer] = []

    def spied(self, layer: Layer) -> Layer:
        """Return a layer that does the same and is watched."""
        if layer.plugin not in self.plugins:
            return layer
        if layer not in self.layers:
            self.layers.append(layer)

        async def spy(ctx: Any, call_next: Callable[[], Awaitable[Any]]) -> Any:
            entry = Entry(layer)
            self.entries.append(entry)
            return await _enter(entry, layer.fn, ctx, call_next)

        return attrs.evolve(layer, fn=_Spy(spy) if _may_limit_time(layer.fn) else spy)


class _Spy:
    """A function without code to look at: what the onion then does with an observer, it does with one that times."""

    def __init__(self, spy: Function) -> None:
        self._spy = spy

    async def __call__(self, ctx: Any, call_next: Callable[[], Awaitable[Any]]) -> Any:
        return await self._spy(ctx, call_next)


async def _enter(entry: Entry, function: Function, ctx: Any, call_next: Callable[[], Awaitable[Any]]) -> Any:
    steps = _Steps()
    inner_changed: set[str] = set()

    async def spied_next() -> Any:
        entry.calls += 1
        before = copy_context()
        try:
            result = await _Inner(call_next(), steps)
        except BaseException as error:
            entry.errors.append(error)
            entry.last = "raised"
            raise
        finally:
            inner_changed.update(_changed(before, copy_context()))
        entry.results.append(result)
        entry.last = "returned"
        return result

    before = copy_context()
    try:
        entry.returned = await _Outer(function(ctx, spied_next), steps)
    except BaseException as error:
        entry.raised = error
        raise
    finally:
        entry.held = steps.longest
        entry.variables = frozenset(_changed(before, copy_context()) - inner_changed)
    return entry.returned


def _changed(before: Context, after: Context) -> set[str]:
    names = {var.name for var in {*before, *after} if before.get(var, NOTHING) is not after.get(var, NOTHING)}
    return names - _NOT_THE_LAYERS


class _Steps:
    """Measures the steps of a layer, without what the inner onion does in them."""

    def __init__(self) -> None:
        self.longest = 0.0
        self.inner = 0.0


class _Driven:
    """Awaits something and looks at each step of it, from one pause to the next."""

    def __init__(self, awaitable: Awaitable[Any], steps: _Steps) -> None:
        self._awaitable = awaitable
        self._steps = steps

    def begun(self) -> None:
        """A step begins."""

    def ended(self, seconds: float) -> None:
        """A step has ended."""

    def __await__(self) -> Generator[Any, Any, Any]:
        inner = self._awaitable.__await__()
        resume: Callable[[], Any] = lambda: next(inner)  # noqa: E731  # it is replaced below
        while True:
            self.begun()
            start = time.perf_counter()
            try:
                paused = resume()
            except StopIteration as stop:
                return stop.value
            finally:
                self.ended(time.perf_counter() - start)
            resume = yield from _pause(paused, inner)


def _pause(paused: Any, inner: Any) -> Generator[Any, Any, Callable[[], Any]]:
    """Wait, and return how to go on with `inner`."""
    try:
        value = yield paused
    except BaseException as error:
        thrown = error
        return lambda: inner.throw(thrown)
    return (lambda: next(inner)) if value is None else (lambda: inner.send(value))


class _Outer(_Driven):
    def begun(self) -> None:
        self._steps.inner = 0.0

    def ended(self, seconds: float) -> None:
        self._steps.longest = max(self._steps.longest, seconds - self._steps.inner)


class _Inner(_Driven):
    def ended(self, seconds: float) -> None:
        self._steps.inner += seconds


class WatchedAgent(Agent[Any, str]):
    """An agent whose layers are watched, and inside of them, in one hook, something may be put."""

    def __init__(self, watch: Watch, *args: Any, inside: tuple[str, Function] | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self._watch = watch
        self._inside = inside
        self._watched: dict[int, Onions] = {}
        self.frames: list[AgentFrame] = []

    def _compiled(self, stack: Stack) -> Onions:
        found = self._watched.get(id(stack))
        if found is None:
            layers = {hook: self._spied(hook, stack.layers[hook]) for hook in HOOKS}
            found = self._watched[id(stack)] = compile_stack(layers)
        return found

    def _spied(self, hook: str, layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
        spied = [self._watch.spied(layer) for layer in layers]
        mine = [place for place, layer in enumerate(layers) if layer.plugin in self._watch.plugins]
        if mine and self._inside is not None and self._inside[0] == hook:
            function = self._inside[1]
            spied.insert(mine[-1] + 1, Layer("test.inside", hook, "prepare", function, place_of(function)))
        return tuple(spied)

    async def _enter(self) -> Any:
        frame, close = await super()._enter()
        if frame not in self.frames:
            self.frames.append(frame)
        return frame, close

    @property
    def watched(self) -> frozenset[str]:
        return self._watch.plugins

    @property
    def failures(self) -> dict[str, int]:
        """How often each plugin failed without breaking the run."""
        found: dict[str, int] = {}
        for frame in self.frames:
            for plugin, count in frame.failures.items():
                found[plugin] = found.get(plugin, 0) + count
        return found
