"""The tables of plugins in a configuration, the environment and the command line: merged key by key, with origins."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, TypeAlias

import attrs

from ._errors import ConfigError

ENVIRONMENT_PREFIX = "AGENTX__"
MODELS_PREFIX = "AGENTX__MODELS__"
MODELS = "models"
MODEL_PREFIX = re.compile(r"[a-z][a-z0-9_-]*")
"""What stands before the slash of a model id."""
INSTANCE_ID = re.compile(r"[a-z][a-z0-9_]*\.[a-z][a-z0-9_]*(#[a-z0-9][a-z0-9_-]*)?")
GENERAL_KEYS = ("autoload", "require", "disable", "presets", "strict", "order")

Keys: TypeAlias = tuple[str, ...]
"""The keys that lead to a setting inside a plugin's table; longer than one for a nested field."""
Settings: TypeAlias = Mapping[Keys, "Setting"]


@attrs.frozen
class Setting:
    value: Any
    origin: str
    is_text: bool = False
    """From an environment variable or the command line: parsed as its field's type, not only checked."""


@attrs.frozen
class Section:
    """One `[plugins]` table."""

    table: Mapping[str, Any]
    file: str
    name: str

    @property
    def origin(self) -> str:
        return self.within()

    def within(self, *keys: str) -> str:
        shown = [key if re.fullmatch(r"[\w-]+", key) else f'"{key}"' for key in keys]
        return f"{self.file} [{'.'.join([self.name, *shown])}]"


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean 'x'?`, or what there is if nothing is near."""
    names = sorted(known)
    near = get_close_matches(name, names, 1)
    if near:
        return f"; did you mean {near[0]!r}?"
    return f"; there is {', '.join(names)}" if names else ""


def table_of(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where} must be a table, not {value!r}")
    return value


def check_keys(section: Section) -> None:
    for key, value in section.table.items():
        if key in GENERAL_KEYS:
            continue
        if not isinstance(value, Mapping):
            raise ConfigError(f"{section.origin} has the unknown key {key!r}{suggestion(key, GENERAL_KEYS)}")
        for plugin_id, settings in _plugin_tables(key, value):
            if not INSTANCE_ID.fullmatch(plugin_id):
                raise ConfigError(f"{section.within(key)}: {plugin_id!r} is no plugin id such as 'guard.budget'")
            if not isinstance(settings, Mapping):
                hint = suggestion(key, GENERAL_KEYS) if get_close_matches(key, GENERAL_KEYS, 1) else ""
                raise ConfigError(f"{section.within(key)}: {plugin_id} must be a table of settings{hint}")


def _plugin_tables(key: str, value: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield id and table of `[plugins.guard.budget]` and of `[plugins."guard.budget"]`, which is handier in Python."""
    if "." in key:
        yield key, value
        return
    for name, settings in value.items():
        yield f"{key}.{name}", settings


def tables_of(section: Section) -> Mapping[str, Settings]:
    tables: dict[str, Settings] = {}
    for key, value in section.table.items():
        if key in GENERAL_KEYS:
            continue
        for plugin_id, settings in _plugin_tables(key, value):
            origin = section.within(*plugin_id.split(".", 1))
            found = {path: Setting(leaf, origin) for path, leaf in _leaves(settings)}
            tables[plugin_id] = {**tables.get(plugin_id, {}), **found}
    return tables


def _leaves(table: Mapping[str, Any], prefix: Keys = ()) -> Iterator[tuple[Keys, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, (*prefix, key))
        else:
            yield (*prefix, key), value


def merged(layers: Iterable[Mapping[str, Settings]]) -> Mapping[str, Settings]:
    merged: dict[str, dict[Keys, Setting]] = {}
    for layer in layers:
        for plugin_id, settings in layer.items():
            mine = merged.setdefault(plugin_id, {})
            for path, setting in settings.items():
                for other in [other for other in mine if _overlap(other, path)]:
                    del mine[other]  # a table in place of a value, or a value in place of a table
                mine[path] = setting
    return merged


def _overlap(one: Keys, other: Keys) -> bool:
    length = min(len(one), len(other))
    return one[:length] == other[:length]


def model_tables_of(section: Section) -> Mapping[str, Settings]:
    """Return the settings of `[models.<prefix>]`, by prefix."""
    tables: dict[str, Settings] = {}
    for prefix, settings in section.table.items():
        if not MODEL_PREFIX.fullmatch(prefix):
            raise ConfigError(f"{section.within(prefix)}: {prefix!r} is no prefix of models such as 'openai'")
        where = section.within(prefix)
        leaves = _leaves(table_of(settings, where))
        tables[prefix] = {path: Setting(leaf, where) for path, leaf in leaves}
    return tables


def settings_from_environment(
    environment: Mapping[str, str], ids: Iterable[str], prefix: str = ENVIRONMENT_PREFIX
) -> Mapping[str, Settings]:
    """Return what the variables say about the plugins `ids`, or about providers.

    Raises:
        ConfigError: a variable could mean two of them.
    """
    by_segment = _by_segment(ids)
    found: dict[str, dict[Keys, Setting]] = {}
    for name, text in environment.items():
        segment, field = _segments(name, prefix)
        owners = by_segment.get(segment, [])
        if len(owners) > 1:
            raise ConfigError(f"the environment variable {name} could mean {' or '.join(owners)}: set it in a file")
        for owner in owners:
            keys = tuple(field.lower().split("__"))
            found.setdefault(owner, {})[keys] = Setting(text, f"environment {name}", is_text=True)
    return found


def refuse_unknown_variables(
    environment: Mapping[str, str], ids: Iterable[str], prefix: str = ENVIRONMENT_PREFIX
) -> None:
    by_segment = _by_segment(ids)
    what = "provider of models" if prefix == MODELS_PREFIX else "plugin"
    for name in environment:
        segment, _ = _segments(name, prefix)
        if segment not in by_segment:
            hint = suggestion(segment, by_segment)
            raise ConfigError(f"the environment variable {name} names no {what} that is installed or used{hint}")


def _by_segment(ids: Iterable[str]) -> Mapping[str, list[str]]:
    """Return ids as variables write them: `GUARD_BUDGET_TENANT` is `guard.budget#tenant`."""
    by_segment: dict[str, list[str]] = {}
    for plugin_id in sorted(ids):
        by_segment.setdefault(re.sub(r"[.#-]", "_", plugin_id).upper(), []).append(plugin_id)
    return by_segment


def _segments(name: str, prefix: str = ENVIRONMENT_PREFIX) -> tuple[str, str]:
    segment, _, field = name.removeprefix(prefix).partition("__")
    if not (segment and field):
        whose = "<PROVIDER>" if prefix == MODELS_PREFIX else "<KIND>_<NAME>"
        raise ConfigError(f"the environment variable {name} is not {prefix}{whose}__<FIELD>")
    return segment, field


def settings_from_command_line(items: Sequence[str]) -> tuple[Mapping[str, Settings], Mapping[str, Settings]]:
    """Return what is said about plugins, and about providers of models (`models.openai.base_url=…`)."""
    plugins: dict[str, dict[Keys, Setting]] = {}
    models: dict[str, dict[Keys, Setting]] = {}
    for item in items:
        name, separator, text = item.partition("=")
        kind, _, rest = name.partition(".")
        plugin, _, field = rest.partition(".")
        path, setting = tuple(field.split(".")), Setting(text, "command line", is_text=True)
        if separator and field and kind == MODELS and MODEL_PREFIX.fullmatch(plugin):
            models.setdefault(plugin, {})[path] = setting
        elif separator and field and INSTANCE_ID.fullmatch(f"{kind}.{plugin}"):
            plugins.setdefault(f"{kind}.{plugin}", {})[path] = setting
        else:
            raise ConfigError(f"{item!r} is not 'kind.name.field=value', such as 'guard.budget.limit_usd=2'")
    return plugins, models
