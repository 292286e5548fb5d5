"""What `agentx doctor` looks at."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, Literal

import attrs
import platformdirs

from agentx._config import Config, load_config
from agentx._errors import AgentxError, ConfigError
from agentx._scan import COMMANDS, MODELS, Scan, scan
from agentx._settings import Settings, suggestion

from ._agents import Choice
from ._app import BUILT_IN
from ._child import ask
from ._prompt import history_file

LIBRARIES = ("anyio", "attrs", "cattrs", "click", "httpx", "msgspec", "opentelemetry-api", "pluggy", "rich")

CHECK_LIMIT = 90.0
"""Seconds that the check of one key may take."""


@attrs.frozen
class Finding:
    topic: str
    verdict: Literal["fine", "note", "wrong"]
    text: str
    fix: str = ""

    def to_json(self) -> dict[str, str]:
        return {"topic": self.topic, "verdict": self.verdict, "text": self.text, "fix": self.fix}


def examine(choice: Choice, keys: str | None = None) -> Sequence[Finding]:
    """Return everything there is to say, in the order in which it is shown.

    Args:
        keys: whose keys to try with a request: a prefix, a model id, or nothing for all; `None` tries none.
    """
    installed = scan()
    found = [*_python(), *_distributions()]
    config, of_config = _configuration(choice)
    found += of_config
    found += _plugins(choice, installed, is_broken=config is None)
    found += _models(choice, is_broken=config is None)
    if keys is not None:
        found += _keys(choice, keys, is_broken=config is None)
    return [*found, *_folders()]


def _python() -> Iterator[Finding]:
    version = f"Python {platform.python_version()} ({platform.python_implementation()}) on {platform.platform()}"
    yield Finding("Python", "fine", f"{version}, {sys.executable}")


def _distributions() -> Iterator[Finding]:
    topic = "Distributions"
    try:
        core = distribution("agentx-core")
        yield Finding(topic, "fine", f"agentx-core {core.version}, in {Path(__file__).parents[1]}")
    except PackageNotFoundError:
        fix = "pip install agentx-core, so that its plugins and the command are found"
        yield Finding(topic, "wrong", f"agentx runs from {Path(__file__).parents[1]} and is not installed", fix)
    try:
        other = distribution("agentx")
    except PackageNotFoundError:
        other = None
    if other is not None:
        fix = "pip uninstall agentx, then pip install --force-reinstall --no-deps agentx-core"
        what = f"the distribution 'agentx' {other.version} is somebody else's and claims the same import name"
        yield Finding(topic, "wrong", what, fix)
    yield Finding(topic, "fine", ", ".join(_versions()))


def _versions() -> Iterator[str]:
    for name in LIBRARIES:
        try:
            yield f"{name} {distribution(name).version}"
        except PackageNotFoundError:
            yield f"{name} (no metadata)"


def _configuration(choice: Choice) -> tuple[Config | None, Sequence[Finding]]:
    topic = "Configuration"
    try:
        config = load_config(choice.source, agent=choice.agent, autoload=choice.autoload, command_line=choice.settings)
        installed = scan()
        settings = config.settings(_ids(installed))
        models = config.models.settings(installed.group(MODELS))
    except ConfigError as error:
        return None, [Finding(topic, "wrong", str(error))]
    found = [Finding(topic, "fine", f"read {file}") for file in config.files]
    found += [] if config.files else [Finding(topic, "fine", "no configuration file")]
    found.append(Finding(topic, "fine", f"autoload = {config.autoload.value} ({config.autoload.origin})"))
    found.append(Finding(topic, "fine", f"strict = {str(config.strict.value).lower()} ({config.strict.origin})"))
    for what, entries in (("require", config.require), ("disable", config.disable), ("preset", config.presets)):
        found += [Finding(topic, "fine", f"{what} {one.id}{one.specifier} ({one.origin})") for one in entries]
    for hook, setting in config.order.items():
        found.append(Finding(topic, "fine", f"order.{hook} = {', '.join(setting.value)} ({setting.origin})"))
    for plugin, own in sorted(settings.items()):
        for keys, setting in own.items():
            found.append(Finding(topic, "fine", f"{plugin}.{'.'.join(keys)} is set ({setting.origin})"))
    for prefix, own in sorted(models.items()):
        for keys, setting in own.items():
            found.append(Finding(topic, "fine", f"models.{prefix}.{'.'.join(keys)} is set ({setting.origin})"))
        found += _unserved(prefix, own, installed)
    return config, found


def _unserved(prefix: str, settings: Settings, installed: Scan) -> Iterator[Finding]:
    """Say which table of [models] no installed provider reads."""
    other = settings.get(("provider",))
    name = str(other.value) if other is not None else prefix
    known = installed.group(MODELS)
    if name not in known:
        origin = next(iter(settings.values())).origin if settings else "configuration"
        hint = suggestion(name, known)
        yield Finding("Configuration", "wrong", f"no installed provider is called {name!r} ({origin}){hint}")


def _ids(installed: Scan) -> set[str]:
    return {one.name for one in installed.found} | {problem.name for problem in installed.problems}


def _plugins(choice: Choice, installed: Scan, *, is_broken: bool) -> Iterator[Finding]:
    topic = "Plugins"
    try:
        answer: Mapping[str, Any] = ask("doctor", choice, ignore_config=is_broken)
    except AgentxError as error:
        yield Finding(topic, "wrong", str(error))
        return
    for row in answer["rows"]:
        yield from _plugin(row)
    for problem in answer["problems"]:
        yield Finding(topic, "wrong", problem)
    for note in answer["notes"]:
        yield Finding(topic, "note", note)
    if answer["fatal"]:
        yield Finding(topic, "wrong", f"an agent would not start without {', '.join(answer['fatal'])}")
    for one in installed.group(COMMANDS).values():
        if one.name in BUILT_IN:
            what = f"the command {one.name!r} of {one.described} has the name of a built-in one and cannot be reached"
            yield Finding(topic, "note", what)


def _plugin(row: Mapping[str, Any]) -> Iterator[Finding]:
    whose = " ".join(filter(None, (row["distribution"], row["version"])))
    what = f"{row['id']} ({whose})" if whose else row["id"]
    if row["status"] == "enabled":
        values = [f"{name} = {one['value']} ({one['origin']})" for name, one in row["config"].items()]
        yield Finding("Plugins", "fine", ": ".join(filter(None, (what, ", ".join(values)))))
    elif row["status"] == "disabled":
        yield Finding("Plugins", "note", f"{what} is {row['reason']}")
    else:
        fix = f"agentx plugins disable {row['id']}, or mend or uninstall it"
        yield Finding("Plugins", "wrong", f"{what} {row['status']}: {row['reason']}", fix)


def _models(choice: Choice, *, is_broken: bool) -> Iterator[Finding]:
    topic = "Models"
    try:
        answer: Mapping[str, Any] = ask("models", choice, ignore_config=is_broken)
    except AgentxError as error:
        yield Finding(topic, "wrong", str(error))
        return
    same: dict[tuple[str, bool, str], list[str]] = {}
    for one in answer["models"]:
        same.setdefault((one["provider"], one["ready"], one["detail"]), []).append(one["id"])
    for (_, ready, detail), ids in same.items():
        are = ", ".join(ids) + (" is" if len(ids) == 1 else " are")
        yield Finding(topic, "fine", f"{are} ready") if ready else Finding(topic, "note", f"{are} not ready: {detail}")
    for problem in answer["problems"]:
        yield Finding(topic, "wrong", f"the provider {problem['provider']} cannot be asked: {problem['reason']}")
    if not answer["models"] and not answer["problems"]:
        fix = "pip install 'agentx-core[local]' && agentx models pull local, for one on this machine"
        yield Finding(topic, "note", "no provider of models is installed", fix)
    if os.environ.get("AGENTX_MODEL"):
        yield Finding(topic, "fine", f"the default is {os.environ['AGENTX_MODEL']} (environment AGENTX_MODEL)")


def _keys(choice: Choice, target: str, *, is_broken: bool) -> Iterator[Finding]:
    topic = "Keys"
    try:
        answer = ask("check_keys", choice, limit=CHECK_LIMIT, target=target, ignore_config=is_broken)
    except AgentxError as error:
        yield Finding(topic, "wrong", str(error))
        return
    for one in answer:
        yield Finding(topic, one["verdict"], f"{one['provider']}: {one['text']}", one["fix"])
    if not answer:
        yield Finding(topic, "note", "no provider has a key")


def _folders() -> Iterator[Finding]:
    for what, folder in (
        ("configuration", Path(platformdirs.user_config_dir("agentx"))),
        ("cache", Path(platformdirs.user_cache_dir("agentx"))),
    ):
        yield _folder(what, folder)
    history = history_file()
    yield Finding("Folders", "fine", f"what is typed into a chat is remembered in {history or 'no file'}")


def _folder(what: str, folder: Path) -> Finding:
    there = next(one for one in (folder, *folder.parents) if one.exists())
    if not os.access(there, os.W_OK):
        return Finding("Folders", "wrong", f"the {what} folder {folder} cannot be written", f"chmod u+w {there}")
    return Finding("Folders", "fine", f"{what}: {folder}{'' if folder.exists() else ' (not there yet)'}")
