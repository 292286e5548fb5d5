"""From raw settings to a configured plugin: the settings every plugin has, the fields of its class, the instance."""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import attrs

from ._convert import Text, Unfit, convert
from ._errors import ConfigError
from ._hookspecs import HOOKS, RESERVED_SETTINGS
from ._order import PHASES, is_pattern
from ._settings import Keys, Setting, Settings, suggestion


@attrs.frozen
class Reserved:
    """What the user says about a plugin whatever its class; `None` where nothing is said."""

    enabled: bool | None = None
    phases: Mapping[str, str] = attrs.field(factory=dict)
    """By hook; `""` is every other hook."""
    before: tuple[str, ...] | None = None
    after: tuple[str, ...] | None = None
    on_error: str | None = None
    origins: Mapping[str, str] = attrs.field(factory=dict)
    """By name of the setting."""


@attrs.frozen
class Value:
    """One field of a plugin, with where its value comes from."""

    value: Any = attrs.field(repr=False)  # may be a secret
    origin: str
    is_secret: bool = False

    def __str__(self) -> str:
        return "***" if self.is_secret else str(self.value)


def reserved_settings(plugin_id: str, settings: Settings) -> Reserved:
    """Read the settings every plugin has; needs no class.

    Raises:
        ConfigError: naming plugin, setting, origin and what is expected.
    """
    mine = {keys: setting for keys, setting in settings.items() if keys[0] in RESERVED_SETTINGS}
    if not mine:
        return Reserved()
    found: dict[str, Any] = {}
    phases: dict[str, str] = {}
    for keys, setting in mine.items():
        if keys[0] == "phase":
            hook = _hook_of_phase(plugin_id, keys, setting)
            phases[hook] = _converted(plugin_id, keys, setting, Literal[PHASES])
        elif len(keys) > 1:
            raise ConfigError(f"{plugin_id}: {keys[0]} is no table ({setting.origin})")
        else:
            found[keys[0]] = _converted(plugin_id, keys, setting, _RESERVED_TYPES[keys[0]])
    for name in ("before", "after"):
        for target in found.get(name, ()):
            if not is_pattern(target):
                raise ConfigError(f"{plugin_id}: {target!r} in {name} ({mine[name,].origin}) is no id and no 'kind.*'")
    return Reserved(phases=phases, origins={".".join(keys): setting.origin for keys, setting in mine.items()}, **found)


_RESERVED_TYPES: Mapping[str, Any] = {
    "enabled": bool,
    "before": tuple[str, ...],
    "after": tuple[str, ...],
    "on_error": Literal["open", "closed"],
}


def _hook_of_phase(plugin_id: str, keys: Keys, setting: Setting) -> str:
    """Return the hook of `phase.model = …`, or nothing for a plain `phase = …`."""
    if len(keys) == 1:
        return ""
    if len(keys) > 2 or keys[1] not in HOOKS:
        hint = suggestion(keys[1], HOOKS)
        raise ConfigError(f"{plugin_id}: {'.'.join(keys)} ({setting.origin}) names no hook{hint}")
    return keys[1]


def field_settings(settings: Settings) -> Settings:
    """Return the settings that are not those every plugin has."""
    return {keys: setting for keys, setting in settings.items() if keys[0] not in RESERVED_SETTINGS}


def build_provider(prefix: str, entry: str, cls: type, settings: Settings) -> Any:
    """Make the provider of `prefix/…` models, the one that `entry` offers.

    Its class has the fields `prefix` and `provider` if it wants to know these two.

    Raises:
        ConfigError: naming provider, field, origin, value and what is expected.
    """
    name = f"models.{prefix}"
    fields = {field.alias for field in _fields(cls)}
    given = {field: value for field, value in (("prefix", prefix), ("provider", entry)) if field in fields}
    hidden = ("prefix", "provider", "client")
    values = {**given, **_field_values(name, cls, settings, reserved=("provider",), hidden=hidden)}
    return _made(name, cls, values, settings, lambda: cls(**values))


def build(plugin_id: str, cls: type, settings: Settings) -> Any:
    """Make an instance of a plugin's class.

    Raises:
        ConfigError: naming plugin, field, origin, value and what is expected.
    """
    values = _field_values(plugin_id, cls, settings)
    missing = [field.alias for field in _fields(cls) if field.default is attrs.NOTHING and field.alias not in values]
    if missing:
        raise ConfigError(
            f"{plugin_id}: {missing[0]} must be set in [plugins.{_table_name(plugin_id)}], it has no default"
        )
    return _made(plugin_id, cls, values, settings, lambda: cls(**values))


def _table_name(plugin_id: str) -> str:
    kind, _, name = plugin_id.partition(".")
    return f'{kind}."{name}"' if "#" in name else plugin_id


def rebuild(instance: Any, plugin_id: str, settings: Settings) -> Any:
    """Return an instance with some fields replaced; the same one if there is nothing to replace."""
    if not settings:
        return instance
    values = _field_values(plugin_id, type(instance), settings)
    return _made(plugin_id, type(instance), values, settings, lambda: attrs.evolve(instance, **values))


def given_fields(instance: Any) -> frozenset[str]:
    """Return the fields that whoever made the instance has set.

    `_given` is what the class recorded; without it, a field counts as set if it differs from its default.
    """
    recorded = vars(instance).get("_given")
    if recorded is not None:
        return frozenset(recorded)
    fields = _fields(type(instance))
    return frozenset(field.alias or field.name for field in fields if getattr(instance, field.name) != _default(field))


def _default(field: attrs.Attribute[Any]) -> Any:
    default: Any = field.default
    if not isinstance(default, attrs.Factory):  # type: ignore[arg-type]  # attrs types it as a function
        return default
    return attrs.NOTHING if default.takes_self else default.factory()


def values_of(instance: Any, default_origin: Mapping[str, str], settings: Settings) -> Mapping[str, Value]:
    """Return the fields of an instance with their origins.

    Args:
        default_origin: of fields that no setting set, by name; the others are the plugin's own defaults.
    """
    found = {}
    for field in _fields(type(instance)):
        name = field.alias or field.name
        origins = dict.fromkeys(setting.origin for keys, setting in settings.items() if keys[0] == name)
        origin = ", ".join(origins) or default_origin.get(name, "default")
        found[name] = Value(getattr(instance, field.name), origin, bool(field.metadata.get("secret")))
    return found


def _fields(cls: type) -> list[attrs.Attribute[Any]]:
    return [field for field in attrs.fields(cls) if field.init] if attrs.has(cls) else []


def _field_values(
    plugin_id: str,
    cls: type,
    settings: Settings,
    *,
    reserved: Iterable[str] = RESERVED_SETTINGS,
    hidden: Iterable[str] = (),
) -> dict[str, Any]:
    fields = {name: field for field in _fields(cls) if (name := field.alias or field.name) not in hidden}
    for keys, setting in settings.items():
        if keys[0] not in fields:
            hint = suggestion(keys[0], [*fields, *reserved])
            raise ConfigError(f"{plugin_id} has no setting {keys[0]!r} ({setting.origin}){hint}")
    values = {}
    for name in dict.fromkeys(keys[0] for keys in settings):
        field = fields[name]
        kind = _type_of(plugin_id, cls, field)
        mine = {keys: setting for keys, setting in settings.items() if keys[0] == name}
        values[name] = _convert_field(plugin_id, name, mine, kind, is_secret=bool(field.metadata.get("secret")))
    return values


def _convert_field(plugin_id: str, name: str, mine: Settings, kind: Any, *, is_secret: bool) -> Any:
    origin = ", ".join(dict.fromkeys(setting.origin for setting in mine.values()))
    try:
        return convert(_nested(mine), kind)
    except Unfit as error:
        shown = "the value given" if is_secret else repr(error.value)
        where = f"{name}{error.path}"
        raise ConfigError(f"{plugin_id}: {where} must be {error.expected}, not {shown} ({origin})") from None
    except TypeError as error:
        raise ConfigError(f"{plugin_id}: {name} cannot be set ({origin}): {error}") from error


def _converted(plugin_id: str, keys: Keys, setting: Setting, kind: Any) -> Any:
    return _convert_field(plugin_id, ".".join(keys), {("",): setting}, kind, is_secret=False)


def _nested(settings: Settings) -> Any:
    """Put the leaves of one field together again."""
    table: dict[str, Any] = {}
    for keys, setting in settings.items():
        value = Text(setting.value) if setting.is_text else setting.value
        if len(keys) == 1:
            return value
        inner = table
        for key in keys[1:-1]:
            inner = inner.setdefault(key, {})
        inner[keys[-1]] = value
    return table


def _type_of(plugin_id: str, cls: type, field: attrs.Attribute[Any]) -> Any:
    """Return the type of a field, evaluated in the module that declares it; other annotations do not matter."""
    if not isinstance(field.type, str):
        return Any if field.type is None else field.type
    owner = next((base for base in cls.__mro__ if field.name in inspect.get_annotations(base)), cls)
    alone = type(owner.__name__, (), {"__annotations__": {field.name: field.type}, "__module__": owner.__module__})
    try:
        return typing.get_type_hints(alone, vars(sys.modules[owner.__module__]), dict(vars(owner)))[field.name]
    except Exception as error:
        raise ConfigError(
            f"{plugin_id}: the type {field.type!r} of {field.name} cannot be read at run time ({error}): import what "
            "it names outside of TYPE_CHECKING"
        ) from error


def _made(plugin_id: str, cls: type, values: Mapping[str, Any], settings: Settings, make: Any) -> Any:
    """Make an instance; what its own validators raise names the plugin and where the values come from."""
    try:
        return make()
    except Exception as error:
        message = _without_secrets(f"{type(error).__name__}: {error}", cls, values)
        origins = ", ".join(dict.fromkeys(setting.origin for setting in settings.values()))
        raise ConfigError(f"{plugin_id}: {message}{f' ({origins})' if origins else ''}") from error


def _without_secrets(message: str, cls: type, values: Mapping[str, Any]) -> str:
    secrets: Iterable[str] = [
        str(values[field.alias or field.name])
        for field in _fields(cls)
        if field.metadata.get("secret") and (field.alias or field.name) in values
    ]
    for secret in secrets:
        message = message.replace(secret, "***") if secret else message
    return message
