"""Tables and messages on a terminal, plain lines in a pipe. rich is imported when the first is printed."""

from __future__ import annotations

import functools
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

import attrs
import click

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

LAST = 16
"""Columns that the last cell of a row needs at least; it may be broken into lines."""
UNLIMITED = 100_000
"""Columns of a pipe: whoever reads it does not want lines broken."""
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@functools.cache
def out() -> Console:
    """Return what prints to standard output."""
    return _console(sys.stdout)


@functools.cache
def err() -> Console:
    """Return what prints to standard error: everything that is not the result."""
    return _console(sys.stderr)


def _console(stream: TextIO) -> Console:
    from rich.console import Console

    width = None if stream.isatty() or "COLUMNS" in os.environ else UNLIMITED
    # rich alone would still send bold and dim; whoever sets NO_COLOR gets no styles at all
    system: Any = None if os.environ.get("NO_COLOR") else "auto"
    return Console(file=stream, width=width, color_system=system, highlight=False, markup=False, emoji=False)


def safe(text: str) -> str:
    """Return `text` without what would steer the terminal: a model or a tool may say anything."""
    return _CONTROL.sub("�", text)


def one_line(text: str, width: int) -> str:
    """Return `text` as one safe line of at most `width` characters."""
    line = " ".join(safe(text[: 4 * width]).split())
    return line if len(line) <= width else line[: max(width - 1, 0)] + "…"


def print_json(value: Any) -> None:
    """Print one JSON document for programs."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False).encode(errors="replace"))


def styled(text: str, style: str = "") -> Text:
    from rich.text import Text

    return Text(safe(text), style)


def note(text: str, style: str = "yellow") -> None:
    """Print one message to standard error."""
    err().print(styled(text, style), soft_wrap=True)


def print_error(found: Mapping[str, Any], usage: Sequence[str] = ()) -> None:
    """Print an error: its code, its message, what is known beside it, and where to read on."""
    console = err()
    for line in usage:
        console.print(styled(line), soft_wrap=True)
    head = styled(f"error[{found['code']}]: ", "bold red")
    console.print(head.append(safe(found["message"]), style="not bold default"), soft_wrap=True)
    for extra in found.get("notes", ()):
        console.print(styled(f"  {extra}", "dim"), soft_wrap=True)
    console.print(styled(f"  see {found['docs']}", "dim"), soft_wrap=True)


@attrs.frozen
class Column:
    """A column of a table. The one with the highest `drop` goes first when the terminal is narrow; 0 always stays."""

    title: str
    drop: int = 0
    style: str = ""


Cell = Any
"""A text, a text and its style, or what `styled` returns."""


def print_table(columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> None:
    """Print a table as wide as the terminal allows; columns that do not fit are left out and named below.

    Where even the rest has no room, each row is a paragraph.
    """
    console = out()
    texts = [[_text(cell) for cell in row] for row in rows]
    kept, fits = _that_fit(columns, texts, console.width)
    if not fits:
        _print_paragraphs(columns, texts)
        return
    with console.capture() as captured:
        console.print(_table([columns[index] for index in kept], [[row[index] for index in kept] for row in texts]))
    # nobody wants the padding of the last column in a file
    click.echo("\n".join([line.rstrip() for line in captured.get().splitlines()]), color=True)
    left_out = [column.title for index, column in enumerate(columns) if index not in kept]
    if left_out:
        note(f"(no room for {', '.join(left_out)}: widen the terminal, or use --json)", "dim")


def _table(columns: Sequence[Column], rows: Sequence[Sequence[Text]]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", show_edge=False)
    for index, column in enumerate(columns):
        table.add_column(column.title, style=column.style, overflow="fold", no_wrap=index < len(columns) - 1)
    for row in rows:
        table.add_row(*row)
    return table


def _that_fit(columns: Sequence[Column], rows: Sequence[Sequence[Text]], width: int) -> tuple[list[int], bool]:
    """Return the columns to show, and whether they fit. The last one may be broken into lines, the others not."""
    natural = [max([len(column.title), *(row[i].cell_len for row in rows)]) for i, column in enumerate(columns)]
    last = len(columns) - 1
    kept = list(range(len(columns)))
    while sum([min(natural[i], LAST) if i == last else natural[i] + 2 for i in kept]) > width:
        droppable = [i for i in kept if columns[i].drop]
        if not droppable:
            return kept, False
        kept.remove(max(droppable, key=lambda i: columns[i].drop))
    return kept, True


def _print_paragraphs(columns: Sequence[Column], rows: Sequence[Sequence[Text]]) -> None:
    main = next(index for index, column in enumerate(columns) if column.style == "bold")
    for row in rows:
        out().print(styled(row[main].plain, "bold"), soft_wrap=True)
        for index, column in enumerate(columns):
            if index != main and row[index].plain not in ("", "-"):
                out().print(
                    styled(f"  {column.title or 'note'}: ", "dim").append(row[index].plain, "not dim"), soft_wrap=True
                )


def _text(cell: Cell) -> Text:
    if isinstance(cell, str):
        return styled(cell)
    return styled(*cell) if isinstance(cell, tuple) else cell


def count(number: int, noun: str) -> str:
    """Return `1 plugin`, `2 plugins`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
