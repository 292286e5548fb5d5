"""Things that go wrong where and when a test wants it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ClassVar, TypeGuard, TypeVar

import anyio
import attrs

from agentx._context import AgentContext, ModelContext, SessionContext, ToolContext, TurnContext
from agentx._errors import StreamCutError
from agentx._hookspecs import HOOKS, CallNext
from agentx._messages import Delta, ModelRequest, ModelResponse, Report, ToolResult
from agentx._models import Emit, Model
from agentx._plugin import Plugin
from agentx._result import RunResult

from ._models import as_error

T = TypeVar("T")


@attrs.frozen
class Cut:
    """A stream that breaks off: `after` deltas come, then `error`."""

    after: int = 0
    error: BaseException | type[BaseException] = StreamCutError


@attrs.frozen
class Hang:
    """Nothing more comes, for ever; in a stream, `after` so many deltas."""

    after: int = 0


@attrs.frozen
class Delay:
    """Everything goes on as it would, so many seconds later."""

    seconds: float


Raises = BaseException | type[BaseException]
ModelFault = Raises | Cut | Hang | Delay


class FaultyModel:
    """Another model whose chosen calls go wrong: `FaultyModel(inner, {1: OverloadedError, 3: Cut(after=2)})`.

    A call that raises or hangs before the first delta does not reach the inner model. `reached` is set when the first
    fault takes effect, so that a test can cancel at that very point.

    Args:
        inner: the model that answers all other calls.
        faults: what happens to which call, counted from 1: an exception or its class, `Cut`, `Hang` or `Delay`.
    """

    def __init__(self, inner: Model, faults: Mapping[int, ModelFault]) -> None:
        for number, fault in faults.items():
            if number < 1:
                raise ValueError(f"calls are counted from 1, there is no call {number}")
            if not _is_error(fault) and not isinstance(fault, Cut | Hang | Delay):
                raise TypeError(f"call {number}: {fault!r} is no exception, Cut, Hang or Delay")
        self.name = inner.name
        self.inner = inner
        self.calls = 0
        self.reached = anyio.Event()
        self._faults = dict(faults)

    async def respond(self, request: ModelRequest, emit: Emit) -> ModelResponse:
        """Answer a request, or not; a `Model`."""
        self.calls += 1
        fault = self._faults.get(self.calls)
        if isinstance(fault, Cut | Hang) and fault.after:
            await self.inner.respond(request, self._breaking(fault, emit))
            await self._suffer(fault)
        if fault is not None:
            await self._suffer(fault)
        return await self.inner.respond(request, emit)

    async def _suffer(self, fault: ModelFault) -> None:
        self.reached.set()
        if isinstance(fault, Cut):
            raise as_error(fault.error)
        if isinstance(fault, Hang | Delay):
            await _wait(fault)
        else:
            raise as_error(fault)

    def _breaking(self, fault: Cut | Hang, emit: Emit) -> Emit:
        left = fault.after

        async def emit_some(delta: Delta | Report) -> None:
            nonlocal left
            if not left:
                await self._suffer(fault)
            left -= 1
            await emit(delta)

        return emit_some

    async def aclose(self) -> None:
        close = getattr(self.inner, "aclose", None)
        if close is not None:
            await close()


Fault = Raises | Hang | Delay | Callable[[Any], Any]
"""What may happen in a hook; a function gets the context, such as `lambda ctx: ctx.session.cancel()`."""
Place = str | tuple[str, int]
"""A hook, or a hook and the number of the entry from 1, such as `("tool", 2)`."""


class FaultPlugin(Plugin):
    """Let something go wrong in chosen hooks: `FaultPlugin(entering={("model", 1): OverloadedError})`.

    It stands where its phase puts it: `agent.use(FaultPlugin(…), phase="attempt")` is next to the model. `reached` is
    set when the first fault takes effect, so that a test can cancel at that very point.
    """

    id: ClassVar[str] = "test.faults"
    entering: Mapping[Place, Fault] = attrs.field(factory=dict)
    """What happens before `call_next`, by place."""
    leaving: Mapping[Place, Fault] = attrs.field(factory=dict)
    """What happens after `call_next` returned, by place."""

    def __attrs_post_init__(self) -> None:
        for place in (*self.entering, *self.leaving):
            hook = place if isinstance(place, str) else place[0]
            if hook not in HOOKS:
                raise ValueError(f"there is no hook {hook!r}: the hooks are {', '.join(HOOKS)}")
        self._entries = dict.fromkeys(HOOKS, 0)
        self.reached = anyio.Event()

    async def init(self, ctx: AgentContext, call_next: CallNext[None]) -> None:
        await self._layer("init", ctx, call_next)

    async def session(self, ctx: SessionContext, call_next: CallNext[None]) -> None:
        await self._layer("session", ctx, call_next)

    async def turn(self, ctx: TurnContext, call_next: CallNext[RunResult[Any]]) -> RunResult[Any]:
        return await self._layer("turn", ctx, call_next)

    async def model(self, ctx: ModelContext, call_next: CallNext[ModelResponse]) -> ModelResponse:
        return await self._layer("model", ctx, call_next)

    async def tool(self, ctx: ToolContext, call_next: CallNext[ToolResult]) -> ToolResult:
        return await self._layer("tool", ctx, call_next)

    async def _layer(self, hook: str, ctx: Any, call_next: CallNext[T]) -> T:
        self._entries[hook] += 1
        number = self._entries[hook]
        await self._suffer(self.entering, hook, number, ctx)
        result = await call_next()
        await self._suffer(self.leaving, hook, number, ctx)
        return result

    async def _suffer(self, faults: Mapping[Place, Fault], hook: str, number: int, ctx: Any) -> None:
        for place in (hook, (hook, number)):
            fault = faults.get(place)
            if fault is None:
                continue
            self.reached.set()
            if isinstance(fault, Hang | Delay):
                await _wait(fault)
            elif isinstance(fault, BaseException | type):
                raise as_error(fault)
            else:
                waited = fault(ctx)
                if isinstance(waited, Awaitable):
                    await waited


def _is_error(fault: Any) -> TypeGuard[Raises]:
    return isinstance(fault, BaseException) or (isinstance(fault, type) and issubclass(fault, BaseException))


async def _wait(fault: Hang | Delay) -> None:
    if isinstance(fault, Hang):
        await anyio.sleep_forever()
    else:
        await anyio.sleep(fault.seconds)
