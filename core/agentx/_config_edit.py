"""Edit a configuration file for `agentx plugins enable` and `disable`; comments and layout stay. Imports no plugin."""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

from ._config import FILE_NAME, load_config, project_file
from ._errors import ConfigError
from ._order import is_pattern, matches


def disable_plugin(plugin_id: str, file: Path | None = None) -> Path:
    """Add a plugin, or all of `kind.*`, to `disable` of the project's configuration, and return the file.

    Args:
        file: in place of the file of the working directory; a new agentx.toml is written if there is none.

    Raises:
        ConfigError: the plugin is required, the id is none, or the file cannot be read.
    """
    _check_id(plugin_id)
    file = _target(file)
    require = load_config(file if file.is_file() else None).require
    required = next((entry for entry in require if matches(plugin_id, entry.id)), None)
    if required:
        raise ConfigError(f"{required.id} is required by {required.origin}: take it out there before disabling it")
    document = _read(file)
    plugins = _plugins_table(document, file)
    _switch_on_in_its_table(plugins, plugin_id)
    listed = plugins.setdefault("disable", [])
    if plugin_id not in listed:
        listed.append(plugin_id)
    _write(file, document)
    return file


def enable_plugin(plugin_id: str, file: Path | None = None) -> Path:
    """Take a plugin out of `disable` of the project's configuration, and return the file.

    Where plugins are active only if listed, it gets a table of its own.

    Raises:
        ConfigError: a pattern or another file still disables it, the id is none, or the file cannot be read.
    """
    _check_id(plugin_id)
    file = _target(file)
    document = _read(file)
    plugins = _plugins_table(document, file)
    listed = plugins.get("disable", [])
    while plugin_id in listed:
        listed.remove(plugin_id)
    _switch_on_in_its_table(plugins, plugin_id)
    if plugins.get("autoload") == "listed" and not plugin_id.endswith(".*"):
        kind, _, name = plugin_id.partition(".")
        plugins.setdefault(kind, {}).setdefault(name, {})["enabled"] = True
    _write(file, document)
    still = load_config(file).is_disabled(plugin_id)
    if still:
        raise ConfigError(f"{plugin_id} is still disabled, by {still.id!r} in {still.origin}")
    return file


def _check_id(plugin_id: str) -> None:
    if not is_pattern(plugin_id):
        raise ConfigError(f"{plugin_id!r} is no plugin id such as 'guard.budget', and no 'kind.*'")


def _target(file: Path | None) -> Path:
    return file or project_file(Path()) or Path(FILE_NAME)


def _read(file: Path) -> Any:
    import tomlkit
    from tomlkit.exceptions import ParseError

    if not file.exists():
        return tomlkit.document()
    try:
        return tomlkit.parse(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ParseError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error


def _plugins_table(document: Any, file: Path) -> Any:
    if file.name == "pyproject.toml":
        document = document.setdefault("tool", {}).setdefault("agentx", {})
    return document.setdefault("plugins", {})


def _switch_on_in_its_table(plugins: MutableMapping[str, Any], plugin_id: str) -> None:
    """Take out `enabled = false`: one place says that a plugin is disabled."""
    kind, _, name = plugin_id.partition(".")
    for table in (plugins.get(kind, {}).get(name, {}), plugins.get(plugin_id, {})):
        if table.get("enabled") is False:
            del table["enabled"]


def _write(file: Path, document: Any) -> None:
    """Replace the file in one step, so that a crash leaves the old or the new one."""
    import tomlkit

    new = file.with_name(f".{file.name}.{os.getpid()}.new")
    new.write_text(tomlkit.dumps(document), encoding="utf-8")
    new.replace(file)
