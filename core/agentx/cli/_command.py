"""What the commands have in common: options that all have, and what they leave behind for error messages."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=click.Command)
HELP = {"help_option_names": ["-h", "--help"]}


class State:
    """What options said about the whole process; click's `ctx.obj`."""

    def __init__(self) -> None:
        self.debug = False
        self.json = False


def _set(name: str) -> Callable[[click.Context, click.Parameter, bool], bool]:
    def callback(ctx: click.Context, _: click.Parameter, value: bool) -> bool:
        if value:
            setattr(ctx.ensure_object(State), name, True)
        return value

    return callback


def debug_option() -> click.Option:
    """Return `--debug`, which works before and after the name of a command."""
    return click.Option(
        ["--debug"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        envvar="AGENTX_DEBUG",
        callback=_set("debug"),
        help="Show tracebacks and the log.",
    )


def json_option(function: F) -> F:
    """Add `--json`, passed on as `as_json`; errors are JSON on standard output then."""
    option = click.option(
        "--json", "as_json", is_flag=True, is_eager=True, callback=_set("json"), help="Print JSON for programs."
    )
    return option(function)


def command(name: str) -> Callable[[Callable[..., Any]], click.Command]:
    """Make a command that takes `--debug` and `-h`."""

    def make(function: Callable[..., Any]) -> click.Command:
        return _with_debug(click.command(name, context_settings=HELP)(function))

    return make


def group(name: str, cls: type[click.Group] = click.Group) -> Callable[[Callable[..., Any]], click.Group]:
    """Make a command that has commands below it, and does something of its own without one."""

    def make(function: Callable[..., Any]) -> click.Group:
        made = click.group(name, cls=cls, invoke_without_command=True, context_settings=HELP)
        return _with_debug(made(function))

    return make


def _with_debug(made: C) -> C:
    made.params.append(debug_option())
    return made


def leave_quietly(code: int) -> int:
    """Return `code` after standard output is led to nowhere, so that flushing it at exit raises nothing."""
    with open(os.devnull, "w") as nowhere:  # noqa: PTH123  # os.devnull is no path of a project
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
    return code
