"""`model.fallback`: ask another model when one fails."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import attrs

from agentx import (
    SYSTEM_CLOCK,
    AgentContext,
    AgentxError,
    CallNext,
    Clock,
    ConfigError,
    ContextWindowError,
    Key,
    Model,
    ModelContext,
    ModelError,
    ModelRequest,
    ModelResponse,
    ModelSettings,
    Plugin,
    hookimpl,
)

from ._causes import ABOUT_THE_REQUEST, CAUSES, DEFAULT, name_of, named
from ._resting import Resting
from ._walk import Walk

_SETTINGS = tuple(field.name for field in attrs.fields(ModelSettings))


def _are_models(plugin: Fallback, field: attrs.Attribute[Any], value: Any) -> None:
    for item in value:
        if not callable(getattr(item, "respond", None)) and not (isinstance(item, str) and item.strip()):
            raise ConfigError(f"model.fallback: {field.name} has {item!r}, which is no model: write 'provider/model'")


def _is_time(plugin: Fallback, field: attrs.Attribute[Any], value: float) -> None:
    if not 0 <= value < math.inf:
        raise ConfigError(f"model.fallback: {field.name} is a number of seconds, 0 or more, not {value}")


def _are_settings(plugin: Fallback, field: attrs.Attribute[Any], value: Mapping[str, Sequence[str]]) -> None:
    for model, names in value.items():
        unknown = [name for name in names if name not in _SETTINGS]
        if unknown:
            what = f"{field.name}[{model!r}] has {unknown[0]!r}"
            raise ConfigError(f"model.fallback: {what}; the settings of a call are {', '.join(_SETTINGS)}")


@attrs.frozen
class _Failed:
    error: ModelError
    response: ModelResponse | None = None


class Fallback(Plugin):
    """Ask the next of several models when one fails with an error that another model may not have.

    Tries of one model, which `model.retry` makes, come first. What a failed model has shown is announced void by
    `model.retrying`, and every dispatch is limited, counted and priced with the model that it goes to.
    """

    id: ClassVar[str] = "model.fallback"

    models: tuple[str | Model, ...] = attrs.field(default=(), converter=tuple, validator=_are_models)
    """Asked in this order after the model that a call was meant for; ids, in code also objects."""
    on: tuple[str, ...] = attrs.field(default=DEFAULT, converter=named)
    """Errors of the model that a call was meant for that lead on; none other does."""
    larger: tuple[str | Model, ...] = attrs.field(default=(), converter=tuple, validator=_are_models)
    """Asked in this order when a request does not fit into a model's context window."""
    cooldown: float = attrs.field(default=0.0, validator=_is_time)
    """Seconds for which a model that failed is asked last, by all sessions of the agent; 0 asks it each time."""
    leave_out: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict, validator=_are_settings)
    """Model id, or a beginning of ids that ends in `/` → settings of the call that it cannot do."""

    @property
    def _key(self) -> Key[Resting]:
        return Key(f"model.fallback resting {id(self)}")  # of this very instance: a sub-agent may have its own

    @hookimpl(phase="prepare")
    async def init(self, ctx: AgentContext, call_next: CallNext[None]) -> None:
        for field in ("models", "larger"):
            for model in getattr(self, field):
                if isinstance(model, str):
                    _find(ctx, field, model)  # now, and not when the first model is down
        ctx.provide(self._key, Resting(self.cooldown))
        await call_next()

    @hookimpl(repeats=True)
    async def model(self, ctx: ModelContext, call_next: CallNext[ModelResponse]) -> ModelResponse:
        if not self.models and not self.larger:
            return await call_next()
        asked, clock, resting = ctx.request, ctx.get(Clock, SYSTEM_CLOCK), ctx.get(self._key)

        def left(model: str) -> float:
            return resting.left(model, clock.time())

        causes = tuple([CAUSES[name] for name in self.on])
        walk = Walk(asked.model, _ids(ctx, self.models), _ids(ctx, self.larger), causes, left)
        if walk.start() != asked.model:
            self._switch(ctx, asked, walk.model, f"{asked.model} rests for {left(asked.model):.0f} s more", "resting")
        while True:
            outcome = await _outcome(call_next)
            if isinstance(outcome, ModelResponse):
                resting.end(walk.model)
                return outcome
            error = outcome.error
            if isinstance(error, causes) and not isinstance(error, ABOUT_THE_REQUEST):
                resting.begin(walk.model, error, clock.time())
            following = walk.after(error)
            if following is not None:
                self._switch(ctx, asked, following, f"{type(error).__name__}: {error}", name_of(type(error)))
            elif outcome.response is not None:
                return outcome.response  # the loop says what a full context window means
            else:
                raise walk.blame()

    def _switch(self, ctx: ModelContext, asked: ModelRequest, model: str, reason: str, error: str) -> None:
        """Make `model` the one to ask, with the settings that it can do, and say so."""
        out = self._left_out(asked, model)
        data = {"from": ctx.request.model, "to": model, "error": error, "reason": reason, "left_out": out}
        ctx.emit("switched", **data)
        kept: dict[str, Any] = {name: getattr(asked.settings, name) for name in _SETTINGS if name not in out}
        ctx.request = attrs.evolve(asked, model=model, settings=ModelSettings(**kept))

    def _left_out(self, asked: ModelRequest, model: str) -> list[str]:
        """Return the settings of a call that do not go to `model`."""
        names = {name for of, names in self.leave_out.items() if _is_of(model, of) for name in names}
        if _provider(model) != _provider(asked.model):
            names.add("extra")  # raw keys of one provider's body mean nothing to another
        return sorted([name for name in names if getattr(asked.settings, name) not in (None, (), {})])


async def _outcome(call_next: CallNext[ModelResponse]) -> ModelResponse | _Failed:
    """Return the response of a call, or how it failed: a full context window may be reported as a response."""
    try:
        response = await call_next()
    except ModelError as error:
        return _Failed(error)
    if response.stop_reason == "context_window" and not response.text and not response.tool_calls:
        return _Failed(ContextWindowError(f"the context window of {response.model or 'the model'} is full"), response)
    return response


def _find(ctx: AgentContext, field: str, model: str) -> None:
    try:
        ctx.resolve_model(model)
    except AgentxError as error:
        raise ConfigError(f"model.fallback: {field} has {model!r}: {error}") from error


def _ids(ctx: ModelContext, models: tuple[str | Model, ...]) -> list[str]:
    """Return the ids that models have in requests; an object gets one when it is set."""
    asked = ctx.request
    ids = []
    for model in models:
        if isinstance(model, str):
            ids.append(model)
        else:
            ctx.set_model(model)
            ids.append(ctx.request.model)
            ctx.request = asked
    return ids


def _is_of(model: str, prefix: str) -> bool:
    return model == prefix or (prefix.endswith("/") and model.startswith(prefix))


def _provider(model: str) -> str:
    return model.replace(":", "/", 1).partition("/")[0]
