"""The options that say which agent a command is about, and the agent they make."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
import click

if TYPE_CHECKING:
    from agentx._agent import Agent
    from agentx._members import Used
    from agentx._models import Model

F = TypeVar("F", bound=Callable[..., Any])
DEFAULT_MODEL = "local/auto"


@attrs.frozen
class Choice:
    """Which configuration and which plugins a command is about."""

    config: str | None = None
    no_config: bool = False
    agent: str = "agent"
    settings: tuple[str, ...] = ()
    no_plugins: bool = False
    extra: tuple[str, ...] = ()
    """Plugins to load whatever the configuration says."""

    @property
    def source(self) -> str | bool | None:
        """What `load_config` takes as its source."""
        return False if self.no_config else self.config

    @property
    def autoload(self) -> str | None:
        return "none" if self.no_plugins else None

    def used(self) -> list[Used]:
        from agentx._members import Used

        return [Used(plugin) for plugin in self.extra]


def plugin_options(function: F) -> F:
    """Add the options of `Choice`; the function receives them as `choice`."""
    options = [
        click.option("--config", metavar="FILE", type=click.Path(), help="Read FILE, not the one of this folder."),
        click.option("--no-config", is_flag=True, help="Read no configuration file at all."),
        click.option("--agent", metavar="NAME", default="agent", help="Use the section [agents.NAME] too."),
        click.option(
            "-s", "--set", "settings", metavar="KIND.NAME.FIELD=VALUE", multiple=True, help="Set a field of a plugin."
        ),
        click.option("--no-plugins", is_flag=True, help="Load no installed plugin except those that are required."),
        click.option(
            "--plugin", "extra", metavar="ID", multiple=True, help="Load this plugin whatever the configuration says."
        ),
    ]

    def taking(**values: Any) -> Any:
        names = [field.name for field in attrs.fields(Choice)]
        choice = Choice(**{name: values.pop(name) for name in names})
        if choice.config and choice.no_config:
            raise click.UsageError("--config and --no-config contradict each other")
        return function(choice=choice, **values)

    made: Any = _renamed(taking, function)
    for option in reversed(options):
        made = option(made)
    return made  # type: ignore[no-any-return]


def _renamed(made: Any, function: Any) -> Any:
    """Give a wrapper the name, the help and the options of what it wraps."""
    made.__name__, made.__doc__, made.__module__ = function.__name__, function.__doc__, function.__module__
    if hasattr(function, "__click_params__"):
        made.__click_params__ = function.__click_params__
    return made


def agent_options(function: F) -> F:
    """Add what `run` and `chat` need beyond `plugin_options`: a model, tools, instructions."""
    for option in reversed(
        [
            click.option(
                "-m", "--model", metavar="MODEL", help="provider/name, or module:object of a model in Python."
            ),
            click.option(
                "-t", "--tool", "tools", metavar="TOOL", multiple=True, help="module:function, or a file of tools."
            ),
            click.option(
                "-i", "--instructions", metavar="TEXT", default="", help="What the model is told before everything."
            ),
        ]
    ):
        function = option(function)
    return function


def tool_option(function: F) -> F:
    return click.option(
        "-t", "--tool", "tools", metavar="TOOL", multiple=True, help="module:function, or a file of tools."
    )(function)


def make_agent(choice: Choice, model: str | Model, tools: Sequence[str], instructions: str) -> Agent[Any, Any]:
    """Return the agent that the options describe. Plugins are imported when it is opened.

    Raises:
        LoadError, ToolError: a tool cannot be had.
        AgentxError: the model's name is no model id.
    """
    from agentx._agent import Agent
    from agentx._plugins import Registry

    from ._objects import load_tools

    made = [tool for spec in tools for tool in load_tools(spec)]
    agent: Agent[Any, Any] = Agent(model, name=choice.agent, instructions=instructions, tools=made)
    # the settings of the command line count more than code, and an application has no command line of ours
    agent._registry = Registry(
        choice.agent,
        choice.used(),
        config=choice.source,
        autoload=choice.autoload,
        command_line=choice.settings,
    )
    return agent


def choose_model(given: str | None) -> str | Model:
    """Return the model of `-m`, else of AGENTX_MODEL, else `local/auto` where it can answer.

    Raises:
        UnknownProviderError: there is none; the message says how to get one.
    """
    from agentx._errors import AgentxError
    from agentx._models import split_model_id

    from ._objects import LoadError, load_model

    named = given or os.environ.get("AGENTX_MODEL")
    if not named:
        return _local_model()
    model = load_model(named)
    if isinstance(model, str):
        try:
            split_model_id(model)
        except AgentxError as error:
            raise LoadError(f"{error}; a model in Python is 'module:object'") from None
    return model


def _local_model() -> str:
    from agentx._errors import ModelNotFoundError, UnknownProviderError
    from agentx._lookup import provider
    from agentx._scan import MODELS, scan

    ask = "name a model with -m provider/model or in AGENTX_MODEL"
    if "local" not in scan().group(MODELS):
        fix = "pip install 'agentx-core[local]' && agentx models pull local"
        raise UnknownProviderError(f"no model is chosen: {ask}; for one on this machine: {fix}")
    for info in provider("local").models():
        if info.id == DEFAULT_MODEL and info.ready:
            return DEFAULT_MODEL
        if info.id == DEFAULT_MODEL:
            raise ModelNotFoundError(f"no model is chosen and {DEFAULT_MODEL} is not ready: {info.detail}; or {ask}")
    raise ModelNotFoundError(f"no model is chosen: {ask}")


def read_stdin() -> str:
    """Return all of standard input; bytes that are no UTF-8 become U+FFFD."""
    import sys

    return sys.stdin.buffer.read().decode("utf-8-sig", "replace")


def path_of(value: str | None) -> Path | None:
    return Path(value) if value else None
