"""`agentx plugins`: what is installed, in which order it wraps, why, whether it works; and the switches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ._command import command as make_command
from ._command import group as make_group
from ._command import json_option
from ._exits import Exit

if TYPE_CHECKING:
    from ._agents import Choice

from ._agents import plugin_options

KEYS = ("position", "phase", "id", "distribution", "version", "hooks", "source", "status", "reason", "config", "tools")
"""Of one plugin in JSON. Stable: new ones may come, none goes."""
limit_option = click.option(
    "--timeout",
    "limit",
    type=click.FloatRange(min=0.1),
    default=20.0,
    show_default=True,
    help="Seconds one plugin may take.",
)


@make_group("plugins")
@click.option("--static", is_flag=True, help="Import no plugin: show only what metadata and configuration say.")
@limit_option
@plugin_options
@json_option
@click.pass_context
def command(ctx: click.Context, static: bool, limit: float, choice: Choice, as_json: bool) -> int:
    """List the plugins, outermost first, and work with them.

    They are loaded in a process of their own, so that one that hangs or crashes is a row of the list.
    """
    if ctx.invoked_subcommand is not None:
        return Exit.OK
    from ._listing import static_listing, whole_listing

    found, broken = static_listing(choice) if static else whole_listing(choice, limit)
    if as_json:
        from ._screen import print_json

        print_json([{key: row[key] for key in KEYS} for row in found["rows"]])
    else:
        from ._listing import show_rows

        show_rows(found["rows"])
    _tell_problems(found)
    return Exit.CONFIG if broken else Exit.OK


def _tell_problems(found: Mapping[str, Any]) -> None:
    from ._screen import note

    if found.get("fatal"):
        note(f"an agent would not start: {', '.join(found['fatal'])} cannot be loaded and may not be left out")
    for problem in found.get("problems", ()):
        note(f"an agent would not start: {problem}")


def _sub(name: str) -> Callable[[Callable[..., Any]], click.Command]:
    """Register a function as `agentx plugins NAME`."""

    def register(function: Callable[..., Any]) -> click.Command:
        made = make_command(name)(function)
        command.add_command(made)
        return made

    return register


@_sub("order")
@click.option("--hook", type=click.Choice(["init", "session", "turn", "model", "tool"]), help="Only this one.")
@limit_option
@plugin_options
@json_option
def order(hook: str | None, limit: float, choice: Choice, as_json: bool) -> None:
    """Show who wraps whom in each hook, and why."""
    from ._child import ask
    from ._listing import show_order
    from ._screen import print_json

    found = ask("order", choice, limit=limit)
    if hook is not None:
        found = {hook: found[hook]}
    if as_json:
        print_json(found)
    else:
        show_order(found)


@_sub("why")
@click.argument("plugin")
@click.argument("other", required=False)
@limit_option
@plugin_options
@json_option
def why(plugin: str, other: str | None, limit: float, choice: Choice, as_json: bool) -> None:
    """Say why a plugin is where it is.

    With OTHER: why PLUGIN is outside of it, or inside.
    """
    from ._child import ask
    from ._screen import out, print_json, styled

    found: Sequence[Mapping[str, str]] = ask("reasons", choice, limit=limit, plugin=plugin, other=other)
    if as_json:
        print_json(found)
        return
    if not found:
        what = f"{plugin} and {other} have no hook in common" if other else f"{plugin} wraps nothing"
        out().print(styled(f"{what}, so no order is needed."))
    last = ""
    for reason in found:
        if reason["hook"] != last:
            last = reason["hook"]
            out().print(styled(last, "bold"))
        out().print(styled(f"  {reason['text']}"), soft_wrap=True)


@_sub("check")
@click.argument("plugins", nargs=-1)
@limit_option
@plugin_options
@json_option
def check(plugins: tuple[str, ...], limit: float, choice: Choice, as_json: bool) -> int:
    """Load plugins and fire each of their hooks once.

    Without PLUGINS it is all that are active. The model answers from a script. Leaves with 1 if one cannot be loaded,
    or one of its hooks does not run or breaks the contract.
    """
    from ._checking import check_plugins, show_check
    from ._screen import print_json

    found = check_plugins(plugins, choice, limit)
    if as_json:
        print_json(found)
    else:
        show_check(found)
    return Exit.OK if all(one["ok"] for one in found) else Exit.FAILED


@_sub("enable")
@click.argument("plugin")
@click.option(
    "--config", metavar="FILE", type=click.Path(path_type=Path), help="Edit FILE, not the one of this folder."
)
@json_option
def enable(plugin: str, config: Path | None, as_json: bool) -> None:
    """Switch PLUGIN on in the configuration.

    Takes it out of `disable`, and lists it where only listed plugins load. Imports no plugin.
    """
    from agentx._config_edit import enable_plugin

    _switched(plugin, enable_plugin(plugin, config), "enabled", as_json)


@_sub("disable")
@click.argument("plugin")
@click.option(
    "--config", metavar="FILE", type=click.Path(path_type=Path), help="Edit FILE, not the one of this folder."
)
@json_option
def disable(plugin: str, config: Path | None, as_json: bool) -> None:
    """Switch PLUGIN off in the configuration.

    Adds it to `disable`. Imports no plugin.
    """
    from agentx._config_edit import disable_plugin

    _switched(plugin, disable_plugin(plugin, config), "disabled", as_json)


def _switched(plugin: str, file: Path, what: str, as_json: bool) -> None:
    from agentx._order import base_id
    from agentx._scan import PLUGINS, scan
    from agentx._settings import suggestion

    from ._screen import note, out, print_json, styled

    if as_json:
        print_json({"id": plugin, "status": what, "file": str(file)})
    else:
        out().print(styled(f"{plugin} is {what} in {file}"), soft_wrap=True)
    found = scan()
    if plugin.endswith(".*"):
        return
    if base_id(plugin) not in found.group(PLUGINS) and found.problem(PLUGINS, base_id(plugin)) is None:
        hint = suggestion(plugin, found.group(PLUGINS))
        note(f"no installed plugin has the id {plugin}{hint if 'did you mean' in hint else ''}")


@_sub("new")
@click.argument("plugin", metavar="ID")
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    help="Where to write it; by default a folder named like its distribution.",
)
@click.option(
    "--hook",
    "hooks",
    multiple=True,
    type=click.Choice(["init", "session", "turn", "model", "tool"]),
    help="A hook it starts with; by default those usual for its kind.",
)
@json_option
def new(plugin: str, folder: Path | None, hooks: tuple[str, ...], as_json: bool) -> None:
    """Write the package of a new plugin.

    ID is its id, such as guard.words. Its tests pass.
    """
    from ._scaffold import plugin_package, show_written

    show_written(*plugin_package(plugin, folder, hooks), as_json=as_json)
