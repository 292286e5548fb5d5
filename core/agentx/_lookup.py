"""What is looked up by name and imported on use: model providers, stores, commands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ._config import ModelTables
from ._configure import build_provider
from ._errors import ConfigError, PluginLoadError, StoreError, UnknownProviderError
from ._scan import MODELS, STORES, Found, Scan, load, scan
from ._settings import suggestion

_EXTRAS = {
    "anthropic": "anthropic",
    "google": "google",
    "local": "local",
    **dict.fromkeys(
        (
            "azure",
            "deepseek",
            "groq",
            "litellm",
            "llama-cpp-python",
            "llamacpp",
            "lmstudio",
            "mistral",
            "ollama",
            "openai",
            "openai-compatible",
            "openrouter",
            "together",
            "vllm",
            "xai",
        ),
        "openai",
    ),
}
"""By prefix: the extra of agentx-core that installs its provider."""

_STORE_EXTRAS = {"postgres": "postgres", "postgresql": "postgres"}
"""By URL scheme: the extra of agentx-core that installs its store."""


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


def provider(prefix: str, installed: Scan | None = None, tables: ModelTables | None = None) -> Any:
    """Import and return the provider of `prefix/model`; a class is made anew, with its settings.

    A table with the key `provider` makes its prefix another name for that provider's, with settings of its own.

    Raises:
        UnknownProviderError: nobody offers it; the message names the extra to install, and what is installed.
        PluginLoadError: two distributions claim the prefix, or its import fails.
        ConfigError: its table in the configuration is wrong.
    """
    installed = installed or scan()
    known = installed.group(MODELS)
    settings = dict((tables or ModelTables()).settings(known).get(prefix, {}))
    entry = settings.pop(("provider",), None)
    name = str(entry.value) if entry is not None else prefix
    found = _offered(name, installed)
    if isinstance(found, type):
        return build_provider(prefix, name, found, settings)
    if settings:
        setting = next(iter(settings.values()))
        raise ConfigError(f"models.{prefix} takes no settings ({setting.origin})")
    return found


def _offered(prefix: str, installed: Scan) -> Any:
    try:
        return look_up(MODELS, prefix, installed)
    except LookupError:
        there = sorted(installed.group(MODELS))
        extra = _EXTRAS.get(prefix)
        fix = f"pip install 'agentx-core[{extra}]'" if extra else "install the plugin that serves it"
        raise UnknownProviderError(
            f"no installed plugin serves the models of {prefix!r}: {fix} (installed: {', '.join(there) or 'none'})"
        ) from None


def open_store(url: str, installed: Scan | None = None) -> Any:
    """Return the store that a URL means, made by what its scheme stands for. Nothing is opened before its first use.

    Raises:
        StoreError: nobody offers the scheme; the message names the extra to install, and what is installed.
        PluginLoadError: two distributions claim the scheme, or its import fails.
    """
    installed = installed or scan()
    scheme, colon, _ = url.partition(":")
    if not colon:
        fix = "write sqlite:///relative.db, sqlite:////absolute.db or memory:"
        raise StoreError(f"{url!r} is no URL of a store: {fix}")
    try:
        made = look_up(STORES, scheme, installed)
    except LookupError:
        extra = _STORE_EXTRAS.get(scheme)
        fix = f"pip install 'agentx-core[{extra}]'" if extra else "install the plugin that serves it"
        there = ", ".join(sorted(installed.group(STORES))) or "none"
        raise StoreError(f"no installed store serves the URLs of {scheme!r}: {fix} (installed: {there})") from None
    return made(url)
