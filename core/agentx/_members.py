"""One plugin on its way into an agent: what offers it, what it is made of, where its layers want to stand."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, Literal

import attrs

from ._configure import Reserved, Value, build, field_settings, given_fields, rebuild, reserved_settings, values_of
from ._errors import ConfigError, PluginError
from ._hookspecs import API_RANGE, HOOKS, Implementation, Layer, implementation
from ._order import (
    CALL_HOOKS,
    CALL_PHASES,
    PHASES,
    Candidate,
    Constraint,
    base_id,
    check_phase,
    default_phase,
    is_pattern,
)
from ._plugin import Plugin, plugin_tools
from ._scan import ID, Found
from ._settings import Settings
from ._tools import Tool

Source = Literal["entry", "code", "preset", "config"]
Status = Literal[
    "enabled", "disabled", "failed", "missing", "conflict", "incompatible", "untrusted", "changed"
]  # the last two come with the trust of files and the lock


@attrs.frozen
class Used:
    """Something an application gives in code, in the order of use."""

    value: Plugin[Any] | type[Plugin[Any]] | Callable[..., Any] | str
    """An instance, a class, a function, or the id of an installed plugin."""
    name: str | None = None
    """Makes it a further instance, `guard.budget#name`; for a function its name."""
    phase: str | None = None
    hook: str | None = None
    """Of a function; by default `turn`."""


@attrs.frozen(eq=False)
class Offer:
    """A plugin that somebody wants in this agent."""

    id: str
    source: Source
    value: Any = None
    """A class, an instance, a module or a function; `None` where the entry point is yet to be imported."""
    found: Found | None = None
    used: int | None = None
    """The position of use."""
    phase: str | None = None
    hook: str = "turn"
    by: str = ""
    """The preset that brings it."""


@attrs.frozen
class Refusal:
    """A plugin that is not in the agent, and why."""

    id: str
    status: Status
    reason: str
    source: Source = "entry"
    found: Found | None = None
    is_wanted: bool = True
    """Whether its absence is a failure; what is disabled or not loaded by itself is none."""
    error: BaseException | None = attrs.field(default=None, repr=False, eq=False)


@attrs.frozen(eq=False)
class Member:
    """A plugin that is in the agent."""

    offer: Offer
    instance: Any
    settings: Settings
    reserved: Reserved
    implementations: tuple[tuple[str, Implementation], ...]
    """By the name of the function."""
    tools: tuple[Tool, ...]
    values: Mapping[str, Value]
    children: tuple[Any, ...] = ()
    """What a preset stands for."""

    @property
    def id(self) -> str:
        return self.offer.id

    @property
    def hooks(self) -> tuple[str, ...]:
        used = {one.hook for _, one in self.implementations}
        return tuple(hook for hook in HOOKS if hook in used)

    def trait(self, name: str) -> Any:
        """Return what a Plugin class says of itself; a module or a function may say it too."""
        return getattr(self.instance, name, getattr(Plugin, name))

    def names(self, trait: str) -> tuple[str, ...]:
        value = self.trait(trait)
        return (value,) if isinstance(value, str) else tuple(value)


def offer_of(used: Used, index: int, taken: Mapping[str, Offer], named: Container[str] = ()) -> Offer:
    """Return what is given in code as an offer.

    Args:
        taken: what was used before, which must have another id.
        named: further ids that a function is not named by.

    Raises:
        PluginError: it has no id, or the id is used already and nothing tells the two apart.
    """
    value = used.value
    if isinstance(value, str):
        plugin_id = base_id(value)
    elif isinstance(value, Plugin) or (isinstance(value, type) and issubclass(value, Plugin)):
        plugin_id = value.id
        if not plugin_id:
            cls = value if isinstance(value, type) else type(value)
            raise PluginError(f"the plugin {cls.__qualname__} has no id: write `id: ClassVar = 'kind.name'`")
    elif callable(value) and not isinstance(value, type):
        return _function_offer(used, index, taken, named)
    else:
        raise PluginError(f"{value!r} is neither a plugin, nor a plugin class, nor an async function, nor an id")
    if not ID.fullmatch(plugin_id):
        raise PluginError(f"{plugin_id!r} is no plugin id such as 'guard.budget'", plugin=plugin_id)
    name = used.name or (value.partition("#")[2] if isinstance(value, str) else "")
    if name and not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", name):
        raise PluginError(f"{plugin_id}: the name {name!r} is not of lower case letters, digits, '_' and '-'")
    plugin_id = f"{plugin_id}#{name}" if name else plugin_id
    if plugin_id in taken:
        raise PluginError(f"{plugin_id} is used twice: give the second one a name, use(…, name='…')", plugin=plugin_id)
    return Offer(plugin_id, "code", None if isinstance(value, str) else value, used=index, phase=used.phase)


def _function_offer(used: Used, index: int, taken: Container[str], named: Container[str]) -> Offer:
    """Name a function by its own name, with a number where that is taken."""
    name = str(used.name or getattr(used.value, "__name__", type(used.value).__name__))
    plugin_id = "function." + (re.sub(r"[^a-z0-9_]", "", name.lower()).lstrip("_0123456789") or "unnamed")
    number = 1
    unique = plugin_id
    while unique in taken or unique in named:
        number += 1
        unique = f"{plugin_id}#{number}"
    return Offer(unique, "code", used.value, used=index, phase=used.phase, hook=used.hook or "turn")


def member_of(offer: Offer, settings: Settings, above_code: Settings) -> Member:
    """Make a plugin out of what is offered: its instance, its layers, its tools.

    Args:
        settings: everything that is configured for it.
        above_code: the part of it that counts more than what an application gave in code.

    Raises:
        ConfigError: a setting is wrong.
        PluginError: it is no plugin, or breaks the shape of a hook.
    """
    reserved = reserved_settings(offer.id, settings)
    fields = field_settings(settings)
    instance, fields, origins = _instance(offer, fields, field_settings(above_code))
    member = Member(
        offer,
        instance,
        settings,
        reserved,
        tuple(_implementations(offer, instance)),
        _tools(instance),
        values_of(instance, origins, fields),
        _children(offer, instance),
    )
    _check_traits(member)
    for name, one in member.implementations:
        check_phase(one.hook, candidate_of(member, name, one))
    return member


def _children(offer: Offer, instance: Any) -> tuple[Any, ...]:
    brought = instance.plugins() if isinstance(instance, Plugin) else ()
    if not isinstance(brought, Iterable):
        raise PluginError(f"{offer.id}: plugins() returned {brought!r}: return a list of plugins", plugin=offer.id)
    children = tuple(brought)
    for child in children:
        if not isinstance(child, Plugin) and not (isinstance(child, type) and issubclass(child, Plugin)):
            raise PluginError(f"{offer.id}: plugins() returned {child!r}, which is no plugin", plugin=offer.id)
    return children


def _instance(offer: Offer, fields: Settings, above_code: Settings) -> tuple[Any, Settings, Mapping[str, str]]:
    """Return the instance, the settings that went into it, and the origins of what was given by whoever made it."""
    value = offer.value
    if isinstance(value, type) and issubclass(value, Plugin):
        return build(offer.id, value, fields), fields, {}
    if isinstance(value, Plugin):
        given = given_fields(value)
        if offer.source == "code":
            fields = {keys: one for keys, one in fields.items() if keys[0] not in given or keys in above_code}
        origin = f"preset {offer.by}" if offer.by else {"code": "code"}.get(offer.source, "default")
        return rebuild(value, offer.id, fields), fields, dict.fromkeys(given, origin)
    if isinstance(value, ModuleType) or (offer.source == "code" and callable(value)):
        if fields:
            keys, setting = next(iter(fields.items()))
            what = "only a Plugin class has settings of its own"
            raise ConfigError(f"{offer.id} has no setting {keys[0]!r} ({setting.origin}): {what}")
        return value, {}, {}
    what = f"{value!r} of type {type(value).__name__}"
    raise PluginError(f"{offer.id}: {what} is no Plugin class, no instance and no module", plugin=offer.id)


def _check_traits(member: Member) -> None:
    said = member.trait("id")
    if isinstance(member.instance, Plugin | ModuleType) and said != base_id(member.id):
        what = f"says its id is {said!r}" if said else "says no id"
        wanted = base_id(member.id)
        raise PluginError(f"the plugin that is installed as {wanted} {what}: make the two equal", plugin=member.id)
    if not isinstance(member.trait("api"), int):
        raise PluginError(f"{member.id}: api must be a whole number, not {member.trait('api')!r}", plugin=member.id)
    for relation in ("before", "after", "conflicts"):
        layers = [one.options for _, one in member.implementations] if relation != "conflicts" else []
        for target in (*member.names(relation), *(name for layer in layers for name in getattr(layer, relation))):
            if not is_pattern(target):
                what = f"{relation} has {target!r}, which is no plugin id such as 'guard.budget' and no 'kind.*'"
                raise PluginError(f"{member.id}: {what}", plugin=member.id)


def is_served(member: Member) -> bool:
    """Tell whether this core serves the hook contract the plugin was written for."""
    return member.trait("api") in API_RANGE


def _implementations(offer: Offer, instance: Any) -> Iterator[tuple[str, Implementation]]:
    for name, function in _functions(offer, instance):
        found = implementation(name, function, owner=offer.id)
        if found is not None:
            yield name, found


def _functions(offer: Offer, instance: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(instance, Plugin):
        for name, _ in type(instance)._implementations:
            yield name, getattr(instance, name)
    elif isinstance(instance, ModuleType):
        for name, function in vars(instance).items():  # what is imported, such as the decorator `tool`, is no hook
            if inspect.isroutine(function) and getattr(function, "__module__", None) == instance.__name__:
                yield name, function
    else:
        yield offer.hook, instance


def _tools(instance: Any) -> tuple[Tool, ...]:
    if isinstance(instance, Plugin):
        return plugin_tools(instance)
    if isinstance(instance, ModuleType):
        found = [value for value in vars(instance).values() if isinstance(value, Tool)]
        return tuple(value for value in found if getattr(value.function, "__module__", None) == instance.__name__)
    return ()


def candidate_of(member: Member, name: str, one: Implementation, services: Sequence[Constraint] = ()) -> Candidate:
    """Return where a layer wants to stand.

    Raises:
        OrderError: a guard states no phase.
    """
    phase, by = _phase(member, one.hook, one.options.phase)
    wishes = [*_wishes(member, "before", one.options.before), *_wishes(member, "after", one.options.after), *services]
    return Candidate(
        member.id, phase, "" if name == one.hook else name, by, member.offer.used, tuple(dict.fromkeys(wishes))
    )


def main_candidate(member: Member) -> Candidate:
    """Return where a plugin as a whole stands in a listing."""
    phases = [candidate_of(member, name, one) for name, one in member.implementations]
    own = member.reserved.phases.get("") or member.offer.phase or member.trait("phase")
    phase = own or (phases[0].phase if phases else _quiet_default(member.id))
    wishes = [*_wishes(member, "before", ()), *_wishes(member, "after", ())]
    return Candidate(member.id, phase, used=member.offer.used, constraints=tuple(wishes))


def _quiet_default(plugin_id: str) -> str:
    return "prepare" if plugin_id.startswith("guard.") else default_phase(plugin_id)


def _phase(member: Member, hook: str, of_layer: str | None) -> tuple[str, str]:
    """Return the phase of a layer and who chose it: the user, the layer, the plugin, its kind."""
    reserved = member.reserved
    if hook in reserved.phases:
        return reserved.phases[hook], f"set by {reserved.origins[f'phase.{hook}']}"
    said = ((reserved.phases.get(""), reserved.origins.get("phase", "")), (member.offer.phase, "use(phase=…)"))
    for phase, by in said:
        if phase and _exists(phase, hook):  # the user means the hooks that have such a phase
            return phase, f"set by {by}"
    if of_layer:
        return of_layer, f"declared by the layer in {member.id}"
    if member.trait("phase"):
        return member.trait("phase"), f"declared by {member.id}"
    return default_phase(member.id), "default of its kind"


def _exists(phase: str, hook: str) -> bool:
    return phase not in PHASES or phase not in CALL_PHASES or hook in CALL_HOOKS


def _wishes(member: Member, relation: Literal["before", "after"], of_layer: Sequence[str]) -> list[Constraint]:
    """Return the constraints of a layer; what the user sets replaces what plugin and layer say."""
    said = member.reserved.before if relation == "before" else member.reserved.after
    if said is not None:
        return [Constraint(relation, target, member.reserved.origins[relation]) for target in said]
    return [Constraint(relation, target, member.id) for target in (*member.names(relation), *of_layer)]


def layer_of(member: Member, candidate: Candidate, one: Implementation) -> Layer:
    return Layer(
        plugin=member.id,
        hook=one.hook,
        phase=candidate.phase,
        fn=one.fn,
        where=one.where,
        repeats=one.options.repeats,
        concurrent=one.options.concurrent,
        on_error=member.reserved.on_error or "closed",
        instance=member.instance,
    )
