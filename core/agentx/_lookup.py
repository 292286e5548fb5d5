"""What is looked up by name and imported on use: model providers, stores, commands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ._errors import PluginLoadError, UnknownProviderError
from ._scan import MODELS, Found, Scan, load, scan
from ._settings import suggestion

_EXTRAS = ("anthropic", "google", "local", "openai")
"""Providers that an extra of agentx-core installs."""


def names(group: str, installed: Scan | None = None) -> Mapping[str, Found]:
    """Return what a group offers by name. Imports nothing."""
    return (installed or scan()).group(group)


def look_up(group: str, name: str, installed: Scan | None = None) -> Any:
    """Import and return what `name` stands for in a group.

    Raises:
        LookupError: nobody offers it.
        PluginLoadError: two distributions claim the name, or its import fails.
    """
    installed = installed or scan()
    problem = installed.problem(group, name)
    if problem is not None:
        raise PluginLoadError(problem.reason, failures=[(name, problem.reason)])
    found = installed.group(group).get(name)
    if found is None:
        raise LookupError(f"nothing of {group} is called {name!r}{suggestion(name, installed.group(group))}")
    loaded = load(found)
    if loaded.failure is not None:
        reason = f"{name!r} of {found.described} cannot be loaded: {loaded.failure.reason}"
        raise PluginLoadError(reason, failures=[(name, loaded.failure.reason)]) from loaded.failure.error
    return loaded.value


def provider(prefix: str, installed: Scan | None = None) -> Any:
    """Import and return the provider of `prefix/model`; a class is called.

    Raises:
        UnknownProviderError: nobody offers it; the message names the extra to install, and what is installed.
        PluginLoadError: two distributions claim the prefix, or its import fails.
    """
    installed = installed or scan()
    try:
        found = look_up(MODELS, prefix, installed)
    except LookupError:
        there = sorted(installed.group(MODELS))
        fix = f"pip install 'agentx-core[{prefix}]'" if prefix in _EXTRAS else "install the plugin that serves it"
        raise UnknownProviderError(
            f"no installed plugin serves the models of {prefix!r}: {fix} (installed: {', '.join(there) or 'none'})"
        ) from None
    return found() if isinstance(found, type) else found
