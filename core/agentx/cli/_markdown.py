"""Markdown that grows: finished blocks are printed for good, only the last one is drawn again as it comes."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from markdown_it import MarkdownIt
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.live import Live
from rich.markdown import Markdown
from rich.segment import Segment
from rich.spinner import Spinner
from rich.text import Text

from ._screen import safe

REFRESH = 0.08
"""Seconds between two drawings of the part that changes."""


class MarkdownStream:
    """The answer of a model on a terminal, with a line below it that says what is going on."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._text = ""
        """The block that is not finished."""
        self._printed_any = False
        self._label = ""
        self._spinner = Spinner("dots")
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._drawn = 0.0
        self._parser = MarkdownIt().enable("table").enable("strikethrough")  # as rich reads it

    def feed(self, text: str) -> None:
        """Take a piece of the text."""
        self._text += safe(text)
        if time.monotonic() - self._drawn >= REFRESH:
            self.draw()

    def label(self, text: str) -> None:
        """Say what is going on; nothing if `text` is empty."""
        self._label = text
        self.draw()

    def print(self, line: Text) -> None:
        """Print a line after all text so far."""
        self._finish_block()
        self._printed_any = False
        self._console.print(line, soft_wrap=False)

    def draw(self) -> None:
        """Print what is finished, and draw the rest anew."""
        self._drawn = time.monotonic()
        done, self._text = self._split()
        if done:
            self._print_block(done)
        if not self._live.is_started:
            self._live.start()
        self._live.update(_Tail(self._text, self._below(), self._gap(self._text)), refresh=True)

    def close(self) -> None:
        """Print the rest and leave the terminal as it was."""
        self._live.update(Text(""))
        self._finish_block()
        if self._live.is_started:
            self._live.stop()

    def _below(self) -> RenderableType | None:
        if not self._label:
            return None
        self._spinner.update(text=Text(self._label, style="dim", no_wrap=True, overflow="ellipsis"))
        return self._spinner

    def _split(self) -> tuple[str, str]:
        """Cut the text before its last block: that one may still change."""
        starts = [token.map[0] for token in self._parser.parse(self._text) if token.level == 0 and token.map]
        if not starts or starts[-1] == 0:
            return "", self._text
        lines = self._text.splitlines(keepends=True)
        return "".join(lines[: starts[-1]]), "".join(lines[starts[-1] :])

    def _finish_block(self) -> None:
        if self._text.strip():
            self._print_block(self._text)
        self._text = ""
        if self._live.is_started:
            self._live.update(_Tail("", self._below(), False), refresh=True)

    def _print_block(self, text: str) -> None:
        if self._gap(text):
            self._console.print()
        self._printed_any = True
        self._console.print(Markdown(text))

    def _gap(self, text: str) -> bool:
        """Tell whether an empty line goes before a block; rich puts them only between the blocks of one text."""
        return self._printed_any and bool(text.strip())


class _Tail:
    """The block that is not finished, as far as the terminal is high, and the line below it."""

    def __init__(self, text: str, below: RenderableType | None, gap: bool) -> None:
        self._text = text
        self._below = below
        self._gap = gap

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        room = max(options.size.height - 3, 1)
        lines: list[list[Segment]] = [[]] if self._gap else []
        if self._text.strip():
            lines += console.render_lines(Markdown(self._text), options, pad=False)
        yield from _with_ends(lines[-room:])
        if self._below is not None:
            yield self._below


def _with_ends(lines: Iterable[list[Segment]]) -> Iterator[Segment]:
    for line in lines:
        yield from line
        yield Segment.line()
