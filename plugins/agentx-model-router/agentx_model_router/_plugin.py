"""`model.router`: choose the model of each call."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ClassVar

import attrs

from agentx import (
    AgentContext,
    AgentxError,
    CallNext,
    ConfigError,
    Model,
    ModelContext,
    ModelResponse,
    Plugin,
    PluginError,
    hookimpl,
)

from ._call import Call, call_of
from ._rules import Rule

Choice = str | Model | None
Choose = Callable[[Call], Choice | Awaitable[Choice]]
"""Takes a call, and returns the model to use or `None`; sync or async."""


def _are_reachable(plugin: Router, field: attrs.Attribute[Any], rules: Sequence[Rule]) -> None:
    for place, rule in enumerate(rules):
        if not isinstance(rule, Rule):
            raise ConfigError(f"model.router: {field.name}[{place}] is {rule!r}, which is no Rule")
        if not rule.reason and place + 1 < len(rules):
            raise ConfigError(
                f"model.router: {field.name}[{place}] has no condition, so no rule behind it is ever met: "
                "give it one, or put it last"
            )


def _is_function(plugin: Router, field: attrs.Attribute[Any], value: Any) -> None:
    if value is not None and not callable(value):
        raise ConfigError(f"model.router: {field.name} is {value!r}; give it a function of a Call, in code")


class Router(Plugin):
    """Choose the model of each call: by a function, else by the first rule that the call meets, else leave it.

    A plugin's own calls (`ctx.call_model`) go where that plugin sends them.
    """

    id: ClassVar[str] = "model.router"
    before: ClassVar[Sequence[str]] = ("model.fallback",)  # others stand in for the model that was chosen

    rules: tuple[Rule, ...] = attrs.field(default=(), converter=tuple, validator=_are_reachable)
    choose: Choose | None = attrs.field(default=None, validator=_is_function)
    """Asked before the rules, in code only."""

    @hookimpl(phase="prepare")
    async def init(self, ctx: AgentContext, call_next: CallNext[None]) -> None:
        for place, rule in enumerate(self.rules):
            if isinstance(rule.use, str):
                try:
                    ctx.resolve_model(rule.use)
                except AgentxError as error:
                    raise ConfigError(f"model.router: rules[{place}] uses {rule.use!r}: {error}") from error
        await call_next()

    async def model(self, ctx: ModelContext, call_next: CallNext[ModelResponse]) -> ModelResponse:
        if ctx.asked_by is None and (self.rules or self.choose is not None):
            before = ctx.request.model
            model, reason = await self._chosen(call_of(ctx))
            if isinstance(model, str):
                _find(ctx, model, reason)
            if model is not None:
                ctx.set_model(model)
            if ctx.request.model != before:
                ctx.emit("routed", **{"from": before, "to": ctx.request.model, "reason": reason})
        return await call_next()

    async def _chosen(self, call: Call) -> tuple[Choice, str]:
        """Return the model for a call, and why."""
        if self.choose is not None:
            model = await _asked(self.choose, call)
            if model is not None:
                return model, _name(self.choose)
        tokens = call.tokens if any(rule.asks_size for rule in self.rules) else 0
        for place, rule in enumerate(self.rules):
            if rule.meets(call, tokens):
                return rule.use, f"rules[{place}]: {rule.reason or 'always'}"
        return None, ""


async def _asked(choose: Choose, call: Call) -> Choice:
    """Return what the user's function chooses.

    Raises:
        PluginError: it is no model.
    """
    chosen = choose(call)
    if inspect.isawaitable(chosen):
        chosen = await chosen
    if chosen is None or isinstance(chosen, str) or callable(getattr(chosen, "respond", None)):
        return chosen
    fix = "return 'provider/model', a Model, or None for no choice"
    problem = f"{_name(choose)}{_place(choose)} returned {type(chosen).__name__} {chosen!r}"
    raise PluginError(f"model.router: {problem}: {fix}", plugin="model.router")


def _find(ctx: ModelContext, model: str, reason: str) -> None:
    """Refuse an id that stands for no model, before anybody is asked to stand in for it."""
    try:
        ctx.resolve_model(model)
    except AgentxError as error:
        raise PluginError(f"model.router: {reason} chose {model!r}: {error}", plugin="model.router") from error


def _name(choose: Choose) -> str:
    return getattr(choose, "__qualname__", "") or type(choose).__qualname__


def _place(choose: Choose) -> str:
    code = getattr(inspect.unwrap(choose), "__code__", None)
    return f" at {code.co_filename}:{code.co_firstlineno}" if code is not None else ""
