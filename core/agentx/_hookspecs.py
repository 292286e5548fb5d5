"""The five hooks. Their docstrings are the documentation that `docs/reference/hooks.md` is checked against.

pluggy holds these specifications, validates implementations against them and registers them. It never calls them:
its call loop is synchronous and its wrappers yield once, so an after-part that awaits, a retry or a cache hit cannot
be written in it. The layers are compiled into an onion instead (`_onion.py`).
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Generator
from typing import TYPE_CHECKING, Any, TypeVar, overload

import attrs
import pluggy

from ._errors import AbortSignal, HookError

if TYPE_CHECKING:
    from ._context import AgentContext, ModelContext, SessionContext, ToolContext, TurnContext
    from ._messages import ModelResponse, ToolResult
    from ._result import RunResult

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

PROJECT = "agentx"
HOOKS = ("init", "session", "turn", "model", "tool")
RESERVED_SETTINGS = ("enabled", "phase", "before", "after", "on_error")
API = 1
API_RANGE = range(1, 2)
"""The numbers of the hook contract that this core serves."""

CallNext = Callable[[], Awaitable[T]]
"""Enters the rest of the onion; once per entry of the layer unless the layer `repeats`."""

hookspec = pluggy.HookspecMarker(PROJECT)
_marker = pluggy.HookimplMarker(PROJECT)


class Hooks:
    """What a plugin may wrap. Before is above the await, after is below it, an error is an `except`."""

    @hookspec
    async def init(self, ctx: AgentContext, call_next: CallNext[None]) -> None:
        """Wrap the life of an agent: connect, provide services, register tools; clean up after `call_next`.

        Runs in a task of its own, so that what is opened here is closed by the same task.

        Args:
            ctx: the agent; `ctx.closing` says why the agent closes.
            call_next: returns when the agent closes; raises what its body raised.
        """

    @hookspec
    async def session(self, ctx: SessionContext, call_next: CallNext[None]) -> None:
        """Wrap the life of a session in this process: load what belongs to the user, set limits, save at the end.

        Runs in a task of its own. Opens with the first handle, closes after the last.

        Args:
            ctx: the session and everything above it.
            call_next: returns when the session closes; raises what its body raised.
        """

    @hookspec
    async def turn(self, ctx: TurnContext, call_next: CallNext[RunResult[Any]]) -> RunResult[Any]:  # type: ignore[empty-body]  # only a specification
        """Wrap one turn, from the user's input to the final answer.

        Args:
            ctx: the turn; `ctx.input` may be replaced before `call_next`.
            call_next: runs the turn and returns its result, to be returned.
        """

    @hookspec
    async def model(self, ctx: ModelContext, call_next: CallNext[ModelResponse]) -> ModelResponse:  # type: ignore[empty-body]
        """Wrap one model call.

        Args:
            ctx: the call; `ctx.request` is for this call only.
            call_next: calls the model and returns its response, to be returned.
        """

    @hookspec
    async def tool(self, ctx: ToolContext, call_next: CallNext[ToolResult]) -> ToolResult:  # type: ignore[empty-body]
        """Wrap one tool call whose tool exists and whose arguments are an object.

        Args:
            ctx: the call; `ctx.args` may be replaced, they are validated again.
            call_next: runs the tool and returns its result, to be returned; a failure raises `ToolFailed`.
        """


@attrs.frozen
class HookOptions:
    """What `@hookimpl` says of a function."""

    hook: str | None = None
    phase: str | None = None
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    repeats: bool = False
    concurrent: bool = False
    wrapper: bool = False


@attrs.frozen
class Implementation:
    """A function of a plugin that implements a hook."""

    hook: str
    fn: Callable[[Any, Callable[[], Awaitable[Any]]], Awaitable[Any]]
    where: str
    """`file:line` of the function."""
    options: HookOptions = HookOptions()


@attrs.frozen
class Layer:
    """One plugin's function in one hook's onion."""

    plugin: str
    """The id, with `#name` for a named instance."""
    hook: str
    phase: str
    fn: Callable[[Any, Callable[[], Awaitable[Any]]], Awaitable[Any]] = attrs.field(repr=False)
    where: str
    repeats: bool = False
    concurrent: bool = False
    on_error: str = "closed"
    """For `gate` and `verify`: `closed` aborts the turn when the layer itself raises, `open` lets the call through."""
    instance: Any = attrs.field(default=None, repr=False)


def _names(value: str | tuple[str, ...] | list[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


@overload
def hookimpl(function: F, /) -> F: ...
@overload
def hookimpl(
    function: None = None,
    /,
    *,
    hook: str | None = None,
    phase: str | None = None,
    before: str | tuple[str, ...] = (),
    after: str | tuple[str, ...] = (),
    repeats: bool = False,
    concurrent: bool = False,
    wrapper: bool = False,
    **unknown: Any,
) -> Callable[[F], F]: ...
def hookimpl(
    function: F | None = None,
    /,
    *,
    hook: str | None = None,
    phase: str | None = None,
    before: str | tuple[str, ...] = (),
    after: str | tuple[str, ...] = (),
    repeats: bool = False,
    concurrent: bool = False,
    wrapper: bool = False,
    **unknown: Any,
) -> Any:
    """Mark a function as the implementation of a hook, where its name alone does not say enough.

    Args:
        hook: which hook, for a method with another name; a class may have several layers in one hook.
        phase: the phase of this layer, in place of its plugin's.
        before: ids or `kind.*` that this layer goes outside of, within its phase.
        after: ids or `kind.*` that this layer goes inside of, within its phase.
        repeats: the layer may call `call_next` again after the earlier call ended.
        concurrent: the layer may have several `call_next` under way at once.
        wrapper: the function is a plain generator that yields once, as pluggy's wrappers are.

    Raises:
        HookError: an unknown hook, or an option of pluggy that agentx orders by itself.
    """
    for name in unknown:
        raise HookError(f"hookimpl takes no {name!r}: order is said by phase, before and after")
    if hook is not None and hook not in HOOKS:
        raise HookError(f"there is no hook {hook!r}: the hooks are {', '.join(HOOKS)}")
    options = HookOptions(hook, phase, _names(before), _names(after), repeats or concurrent, concurrent, wrapper)

    def mark(function: F) -> F:
        function.__agentx_hook__ = options  # type: ignore[attr-defined]  # read by `implementation`
        return function

    return mark if function is None else mark(function)


def place_of(function: Any) -> str:
    """Return `file:line` of a function, for messages."""
    code = getattr(inspect.unwrap(getattr(function, "__func__", function)), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else repr(function)


def implementation(name: str, function: Any, *, owner: str) -> Implementation | None:
    """Return what the function `name` of `owner` implements, if anything.

    Raises:
        HookError: it is named or marked as a hook but has not the hook's shape.
    """
    options: HookOptions | None = getattr(function, "__agentx_hook__", None)
    if options is None and name not in HOOKS:
        return None
    options = options or HookOptions()
    hook = options.hook or (name if name in HOOKS else "")
    where = place_of(function)
    if not hook:
        raise HookError(f"{owner}: {name} is marked with hookimpl but says no hook=, at {where}", plugin=owner)
    _check_shape(function, hook, options, owner, where)
    if options.wrapper:
        function = _adapt_generator(function, owner, hook, where)
    return Implementation(hook, function, where, options)


def _check_shape(function: Any, hook: str, options: HookOptions, owner: str, where: str) -> None:
    def refuse(problem: str, fix: str) -> HookError:
        return HookError(f"{owner}: the {hook} hook {problem} at {where}: {fix}", plugin=owner, hook=hook)

    plain = inspect.unwrap(getattr(function, "__func__", function))
    if options.repeats and hook in ("init", "session"):
        marked = "concurrent=True" if options.concurrent else "repeats=True"
        raise refuse(f"is marked {marked}", "only turn, model and tool layers may call call_next again")
    if options.wrapper:
        if not inspect.isgeneratorfunction(plain):
            raise refuse("is marked wrapper=True but is no generator function", "write one `response = yield`")
    elif inspect.isasyncgenfunction(plain):
        raise refuse("is an async generator", "replace `yield` by `result = await call_next()`")
    elif inspect.isgeneratorfunction(plain):
        raise refuse("is a generator", "mark it @hookimpl(wrapper=True), or write async def and await call_next()")
    elif not (inspect.iscoroutinefunction(plain) or inspect.iscoroutinefunction(getattr(plain, "__call__", None))):  # noqa: B004  # an object with an async __call__ is fine
        raise refuse("is a plain function", "write `async def`")
    names = [name for name in inspect.signature(function).parameters if name != "self"]
    expected = ["ctx"] if options.wrapper and names == ["ctx"] else ["ctx", "call_next"]
    if names != expected:
        raise refuse(f"takes ({', '.join(names)})", "its arguments are exactly (self, ctx, call_next)")


def _adapt_generator(function: Any, owner: str, hook: str, where: str) -> Any:
    """Return a layer that drives a pluggy-like wrapper; cancellation and abort pass through it."""
    takes_one = len(inspect.signature(function).parameters) == 1

    async def layer(ctx: Any, call_next: Callable[[], Awaitable[Any]]) -> Any:
        generator: Generator[None, Any, Any] = function(ctx) if takes_one else function(ctx, call_next)
        try:
            next(generator)
        except StopIteration:
            message = f"{owner}: the {hook} hook never yields at {where}: a wrapper yields once"
            raise HookError(message, plugin=owner, hook=hook) from None
        try:
            inner = await call_next()
        except BaseException as error:
            return _finish(generator.throw, error, None)
        return _finish(generator.send, inner, inner)

    def _finish(resume: Callable[[Any], Any], value: Any, inner: Any) -> Any:
        try:
            resume(value)
        except StopIteration as stop:
            if stop.value is not None:
                return stop.value
            if isinstance(value, BaseException) and not isinstance(value, Exception | AbortSignal):
                raise value
            return inner
        raise HookError(f"{owner}: the {hook} hook yields twice at {where}: a wrapper yields once", plugin=owner)

    return layer
