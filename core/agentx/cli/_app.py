"""The root of the commands: which there are, and what happens when one fails."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Any

import click

from ._command import HELP, State, debug_option, leave_quietly
from ._exits import Exit, OutputClosed

BUILT_IN = {
    "run": "Run one turn and print the answer.",
    "chat": "Talk with an agent, turn after turn.",
    "plugins": "List, order, check and switch plugins.",
    "models": "List models and fetch the weights of local ones.",
    "tools": "List the tools an agent would have.",
    "doctor": "Find out what is wrong with this installation.",
    "new": "Write the files of a new application.",
}
"""Name and summary, so that `--help` imports no command. The module of a command has its name."""


class Root(click.Group):
    """Commands of agentx, and those that plugins offer in the entry-point group `agentx.commands`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*BUILT_IN, *(name for name in sorted(_of_plugins()) if name not in BUILT_IN)]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name in BUILT_IN:
            command: click.Command = import_module(f".{name}", __package__).command
            return command
        if name not in _of_plugins():
            return None
        from agentx._lookup import look_up
        from agentx._scan import COMMANDS

        found = look_up(COMMANDS, name)
        if not isinstance(found, click.Command):
            from agentx._errors import PluginLoadError

            raise PluginLoadError(f"the command {name!r} is no click command but {found!r}: {_of_plugins()[name]}")
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            near = get_close_matches(args[0], self.list_commands(ctx), 1)
            ctx.fail(f"there is no command {args[0]!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = list(BUILT_IN.items())
        rows += [(name, f"(from {who})") for name, who in sorted(_of_plugins().items()) if name not in BUILT_IN]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:  # click would make exit code 1 of it
            raise OutputClosed from error


def _of_plugins() -> dict[str, str]:
    """Return the commands that installed distributions offer, each with whose it is. Imports none."""
    from agentx._scan import COMMANDS, scan

    found = scan()
    offered = {one.name: one.described for one in found.group(COMMANDS).values()}
    for problem in found.problems:
        if any(claim.group == COMMANDS for claim in problem.claims):
            offered[problem.name] = problem.reason
    return offered


def _show_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        from importlib.metadata import PackageNotFoundError, version

        try:
            number = version("agentx-core")
        except PackageNotFoundError:
            number = "(not installed: no distribution agentx-core)"
        click.echo(f"agentx {number}, Python {sys.version.split()[0]}")
        ctx.exit()


@click.group(cls=Root, invoke_without_command=True, context_settings=HELP)
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_show_version, help="Show versions."
)
@click.pass_context
def root(ctx: click.Context) -> None:
    """Agents whose every behaviour is a pip-installable plugin."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


root.params.append(debug_option())


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code. Whatever goes wrong is one message, never a traceback."""
    _make_streams_safe()
    state = State()
    given = None if arguments is None else list(arguments)
    try:
        code = root.main(given, prog_name="agentx", standalone_mode=False, obj=state)
        sys.stdout.flush()
    except OutputClosed:
        return leave_quietly(Exit.OUTPUT_CLOSED)
    except BrokenPipeError:
        return leave_quietly(Exit.OUTPUT_CLOSED)
    except (KeyboardInterrupt, click.Abort):
        return Exit.CANCELLED
    except BaseException as error:
        if isinstance(error, SystemExit):
            raise
        from ._exits import report

        return report(error, state)
    return code if isinstance(code, int) else Exit.OK


def _make_streams_safe() -> None:
    """Open what is closed, and let no character raise that the terminal lacks; JSON is UTF-8 bytes anyway."""
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115, PTH123  # for as long as the process lives
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123  # the same
        stream = getattr(sys, name)
        if hasattr(stream, "reconfigure") and ":" not in os.environ.get("PYTHONIOENCODING", ""):
            stream.reconfigure(errors="replace")
