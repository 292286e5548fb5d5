"""Read the configuration: which plugins, in which order, with which settings, and who said so.

Nothing here imports a plugin. Its settings stay raw, with their origins, until its class is known (`_configure.py`).

    [plugins]                                what every agent gets
    autoload = "all"                         all | listed | none
    require  = ["guard.budget>=0.1"]         must be active; adds up over all files
    disable  = ["observe.*"]                 must not be active; adds up too
    presets  = ["preset.coding"]             plugins that stand for others; listed like any with a table of its own
    strict   = true                          a plugin that fails stops the agent, whichever it is
    order.model = ["observe.*", "guard.*"]   positions inside each phase

    [plugins.guard.budget]                   settings of guard.budget
    [plugins.guard."budget#tenant"]          settings of its instance `tenant`; they inherit nothing
    [models.openai]                          settings of the provider of openai/…
    [agents.support.plugins]                 the same tables again, for the agent named support
    [agents.support.models.openai]

In Python, `config={"guard.budget": {…}}` is short for `config={"plugins": {"guard": {"budget": {…}}}}`.

An environment variable `AGENTX__<KIND>_<NAME>__<FIELD>` sets one field. Two underscores separate; the id is written in
capitals with an underscore for its dot (and for `#` and `-` of an instance), which is matched against the ids that are
known. One more `__` goes into a nested field. `AGENTX__MODELS__<PREFIX>__<FIELD>` sets one of a provider of models.

Whether a project file can be trusted is not asked yet: what it says counts.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import attrs

from ._errors import ConfigError
from ._hookspecs import HOOKS
from ._order import is_pattern, matches
from ._settings import (
    ENVIRONMENT_PREFIX,
    INSTANCE_ID,
    MODELS,
    MODELS_PREFIX,
    Section,
    Setting,
    Settings,
    check_keys,
    merged,
    model_tables_of,
    refuse_unknown_variables,
    settings_from_command_line,
    settings_from_environment,
    suggestion,
    table_of,
    tables_of,
)

AUTOLOAD = ("all", "listed", "locked", "none")
FILE_NAME = "agentx.toml"
TABLES = ("plugins", MODELS, "agents")


_REQUIREMENT = re.compile(r"\s*(?P<id>[^\s<>=!~]+)\s*(?P<specifier>.*)")

Source: TypeAlias = "Path | str | Mapping[str, Any] | bool | None"
"""A file, its content, `False` for no file at all, `None` for the file in the working directory."""


@attrs.frozen
class Entry:
    """A plugin that a list of the configuration names."""

    id: str
    """An id; in `disable` also `kind.*`."""
    origin: str
    specifier: str = ""
    """The versions that will do, in `require`."""


@attrs.frozen
class ModelTables:
    """What is configured for providers of models, by prefix."""

    from_files: Mapping[str, Settings] = attrs.field(factory=dict)
    environment: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    from_code: Mapping[str, Settings] = attrs.field(factory=dict)

    def settings(self, known: Iterable[str]) -> Mapping[str, Settings]:
        """Return the raw settings by prefix; a later source wins per key.

        Args:
            known: prefixes that variables of the environment may name, besides those with a table.

        Raises:
            ConfigError: a variable names no provider, or could mean two.
        """
        prefixes = {*known, *self.from_files, *self.from_code}
        refuse_unknown_variables(self.environment, prefixes, MODELS_PREFIX)
        from_environment = settings_from_environment(self.environment, prefixes, MODELS_PREFIX)
        return merged([self.from_files, from_environment, self.from_code])


@attrs.frozen
class Config:
    """Everything that is configured for one agent; later sources have won already."""

    autoload: Setting
    strict: Setting
    require: tuple[Entry, ...] = ()
    disable: tuple[Entry, ...] = ()
    presets: tuple[Entry, ...] = ()
    order: Mapping[str, Setting] = attrs.field(factory=dict)
    """By hook: tuples of ids and `kind.*`."""
    from_files: Mapping[str, Settings] = attrs.field(factory=dict)
    environment: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    """The variables that name a plugin; which one is only clear where ids are known."""
    from_code: Mapping[str, Settings] = attrs.field(factory=dict)
    files: tuple[str, ...] = ()
    """The files that were read."""
    models: ModelTables = attrs.field(factory=ModelTables)

    def settings(self, known: Iterable[str]) -> Mapping[str, Settings]:
        """Return the raw settings by plugin id: files, environment, code and command line, later wins per key.

        Args:
            known: ids that variables of the environment may name, besides those with a table.

        Raises:
            ConfigError: a variable could mean two plugins.
        """
        ids = {*known, *self.from_files, *self.from_code}
        return merged([self.from_files, settings_from_environment(self.environment, ids), self.from_code])

    def check_environment(self, known: Iterable[str]) -> None:
        """Refuse variables that name none of the `known` plugins.

        Raises:
            ConfigError: naming the variable, with the nearest plugin.
        """
        refuse_unknown_variables(self.environment, {*known, *self.from_files, *self.from_code})

    def is_disabled(self, plugin_id: str) -> Entry | None:
        """Return who disables a plugin."""
        return next((entry for entry in self.disable if matches(entry.id, plugin_id)), None)

    def is_required(self, plugin_id: str) -> Entry | None:
        """Return who requires a plugin."""
        return next((entry for entry in self.require if entry.id == plugin_id), None)


def load_config(
    source: Source = None,
    *,
    agent: str = "",
    autoload: str | None = None,
    code: Sequence[tuple[str, Mapping[str, Any]]] = (),
    command_line: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    user_file: Path | None = None,
) -> Config:
    """Read and merge the configuration of one agent.

    Args:
        source: the project's configuration, in place of the file in the working directory. `False` reads no file at
            all, not even the user's.
        agent: the name whose `[agents.<name>]` section counts.
        autoload: what the application says, in place of files and environment.
        code: mappings shaped like a file that count above the environment, each with its origin.
        command_line: settings `kind.name.field=value`.
        environ: in place of the process's environment.
        user_file: in place of `agentx.toml` in the user's configuration folder.

    Raises:
        ConfigError: naming file, table and key.
    """
    environ = os.environ if environ is None else environ
    documents = list(_documents(source, user_file))
    sections = list(_sections(documents, agent))
    above = [section for document in code for section in _sections([document], agent)]
    for section in [*sections, *above]:
        check_keys(section)
    every = [*sections, *above]
    plugins_said, models_said = settings_from_command_line(command_line)
    config = Config(
        autoload=_autoload(sections, above, environ, autoload),
        strict=_last(every, "strict", bool, Setting(False, "default")),
        require=tuple(entry for section in every for entry in _required(section)),
        disable=tuple(entry for section in every for entry in _entries(section, "disable")),
        presets=tuple(entry for section in every for entry in _entries(section, "presets")),
        order=_order(every),
        from_files=merged(tables_of(section) for section in sections),
        environment={
            name: text
            for name, text in environ.items()
            if name.startswith(ENVIRONMENT_PREFIX) and not name.startswith(MODELS_PREFIX)
        },
        from_code=merged([*(tables_of(section) for section in above), plugins_said]),
        files=tuple(name for name, _ in documents),
        models=ModelTables(
            merged(_model_tables(documents, agent)),
            {name: text for name, text in environ.items() if name.startswith(MODELS_PREFIX)},
            merged([*(table for document in code for table in _model_tables([document], agent)), models_said]),
        ),
    )
    refuse_disabling_required(config.require, config.disable)
    return config


def refuse_disabling_required(require: Sequence[Entry], disable: Sequence[Entry]) -> None:
    """Refuse a plugin that somebody requires and somebody disables."""
    for needed in require:
        for unwanted in disable:
            if matches(unwanted.id, needed.id):
                raise ConfigError(
                    f"{needed.id} is required by {needed.origin} and disabled by {unwanted.origin}: take it out of one"
                )


def allows(specifier: str, version: str) -> bool:
    """Tell whether a version satisfies `>=0.1,<2`; pre-releases count."""
    from packaging.specifiers import SpecifierSet

    return SpecifierSet(specifier).contains(version, prereleases=True)


def project_file(folder: Path) -> Path | None:
    """Return the configuration file of a folder: agentx.toml, else a pyproject.toml that has a [tool.agentx]."""
    file = folder / FILE_NAME
    if file.is_file():
        return file
    file = folder / "pyproject.toml"
    return file if file.is_file() and "agentx" in _parsed(file).get("tool", {}) else None


def default_user_file() -> Path:
    import platformdirs

    return Path(platformdirs.user_config_dir("agentx")) / FILE_NAME


def _documents(source: Source, user_file: Path | None) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if source is False:
        return
    user_file = user_file or default_user_file()
    if user_file.is_file():
        yield str(user_file), _content(user_file)
    if isinstance(source, Mapping):
        yield "Agent(config=…)", source
        return
    file = project_file(Path()) if source is None or source is True else Path(source)
    if file is not None and file.is_dir():
        file = project_file(file)
    if file is None:
        return
    if not file.is_file():
        raise ConfigError(f"there is no configuration file {file}")
    yield str(file), _content(file)


def _content(file: Path) -> Mapping[str, Any]:
    content = _parsed(file)
    return content.get("tool", {}).get("agentx", {}) if file.name == "pyproject.toml" else content


def _parsed(file: Path) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error


def _sections(documents: Iterable[tuple[str, Mapping[str, Any]]], agent: str) -> Iterator[Section]:
    """Yield the `[plugins]` tables, then those of the agent, each in the order of the files."""
    mine = []
    for file, content in documents:
        short = {key: table for key, table in content.items() if INSTANCE_ID.fullmatch(key)}
        for key in content:
            if key not in TABLES and key not in short:
                raise ConfigError(f"{file} has the unknown key {key!r}{suggestion(key, TABLES)}")
        plugins = table_of(content.get("plugins", {}), f"{file} [plugins]")
        yield Section({**plugins, **short} if short else plugins, file, "plugins")
        for name, settings in table_of(content.get("agents", {}), f"{file} [agents]").items():
            where = f"{file} [agents.{name}]"
            for key in table_of(settings, where):
                if key not in ("plugins", MODELS):
                    raise ConfigError(f"{where} has the unknown key {key!r}{suggestion(key, ('plugins', MODELS))}")
            section = Section(table_of(settings.get("plugins", {}), where), file, f"agents.{name}.plugins")
            check_keys(section)
            if name == agent:
                mine.append(section)
    yield from mine


def _model_tables(documents: Iterable[tuple[str, Mapping[str, Any]]], agent: str) -> Iterator[Mapping[str, Settings]]:
    """Yield what each file says about models, then what it says for the agent."""
    mine = []
    for file, content in documents:
        yield model_tables_of(Section(table_of(content.get(MODELS, {}), f"{file} [models]"), file, MODELS))
        for name, settings in content.get("agents", {}).items():
            where = f"agents.{name}.{MODELS}"
            tables = model_tables_of(Section(table_of(settings.get(MODELS, {}), f"{file} [{where}]"), file, where))
            if name == agent:
                mine.append(tables)
    yield from mine


def _autoload(
    sections: Sequence[Section], above: Sequence[Section], environ: Mapping[str, str], given: str | None
) -> Setting:
    default = Setting("none", "pytest") if _is_under_pytest() else Setting("all", "default")
    setting = _last(sections, "autoload", str, default)
    if environ.get("AGENTX_AUTOLOAD"):
        setting = Setting(environ["AGENTX_AUTOLOAD"], "environment AGENTX_AUTOLOAD")
    setting = _last(above, "autoload", str, setting)
    if given is not None:
        setting = Setting(given, "code")
    if setting.value not in AUTOLOAD:
        raise ConfigError(f"unknown autoload {setting.value!r} ({setting.origin}){suggestion(setting.value, AUTOLOAD)}")
    if setting.value == "locked":
        raise ConfigError(f"autoload 'locked' ({setting.origin}) is not there yet; use 'listed' to name each plugin")
    return setting


def _is_under_pytest() -> bool:
    """Tell whether this process is a test session; a child of one inherits its variables but imports no pytest."""
    return "pytest" in sys.modules and ("PYTEST_VERSION" in os.environ or "PYTEST_CURRENT_TEST" in os.environ)


def _last(sections: Sequence[Section], key: str, kind: type, default: Setting) -> Setting:
    found = default
    for section in sections:
        if key in section.table:
            value = section.table[key]
            if not isinstance(value, kind):
                raise ConfigError(f"{section.origin}: {key} must be a {kind.__name__}, not {value!r}")
            found = Setting(value, section.origin)
    return found


def _entries(section: Section, key: str) -> Iterator[Entry]:
    for text in _texts(section.table.get(key, []), f"{section.origin}: {key}"):
        if not is_pattern(text) or (key == "presets" and text.endswith(".*")):
            raise ConfigError(f"{section.origin}: {text!r} in {key} is no plugin id such as 'guard.budget'")
        yield Entry(text, f"{section.origin} {key}")


def _required(section: Section) -> Iterator[Entry]:
    for text in _texts(section.table.get("require", []), f"{section.origin}: require"):
        plugin_id, specifier = requirement(text, f"{section.origin}: require")
        yield Entry(plugin_id, f"{section.origin} require", specifier)


def requirement(text: str, where: str) -> tuple[str, str]:
    """Return id and version specifier of `guard.budget>=0.1`.

    Raises:
        ConfigError: it is not of that form.
    """
    match = _REQUIREMENT.fullmatch(text)
    if match is None or not INSTANCE_ID.fullmatch(match["id"]):
        raise ConfigError(f"{where}: {text!r} is no plugin id such as 'guard.budget' or 'guard.budget>=0.1'")
    specifier = match["specifier"].strip()
    if specifier:
        from packaging.specifiers import InvalidSpecifier, SpecifierSet

        try:
            SpecifierSet(specifier)
        except InvalidSpecifier as error:
            raise ConfigError(f"{where}: {text!r}: {error}") from error
    return match["id"], specifier


def _order(sections: Sequence[Section]) -> Mapping[str, Setting]:
    found: dict[str, Setting] = {}
    for section in sections:
        for hook, patterns in table_of(section.table.get("order", {}), f"{section.origin}: order").items():
            if hook not in HOOKS:
                raise ConfigError(f"{section.origin}: order.{hook} names no hook{suggestion(hook, HOOKS)}")
            for pattern in _texts(patterns, f"{section.origin}: order.{hook}"):
                if not is_pattern(pattern):
                    raise ConfigError(f"{section.origin}: {pattern!r} in order.{hook} is no id and no 'kind.*'")
            found[hook] = Setting(tuple(patterns), f"{section.origin} order.{hook}")
    return found


def _texts(value: Any, where: str) -> Sequence[str]:
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        raise ConfigError(f"{where} must be a list of texts, not {value!r}")
    return value
