"""Markdown that grows: finished blocks are printed for good, only the last one is drawn again as it comes."""

from __future__ import annotations

import time
from collections.abc import Sequence

from markdown_it import MarkdownIt
from rich.console import Console, RenderableType
from rich.markdown import Markdown
from rich.text import Text

from ._screen import safe

REFRESH = 0.08
"""Seconds between two drawings of the part that changes."""
_DOTS, _ASCII_DOTS = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", "-\\|/"
_HIDE, _SHOW, _ERASE = "\x1b[?25l", "\x1b[?25h", "\x1b[J"


class MarkdownStream:
    """The answer of a model on a terminal, with a line below it that says what is going on.

    Where the cursor cannot be moved, blocks are printed as they are finished.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._draws = console.is_terminal and not console.is_dumb_terminal and not console.legacy_windows
        self._text = ""
        """The block that is not finished."""
        self._after_block = False
        """Whether an empty line goes before the next block."""
        self._label = ""
        self._height = 0
        """Lines on the screen that will be drawn anew."""
        self._drawn = 0.0
        self._parser = MarkdownIt().enable("table").enable("strikethrough")  # as rich reads it

    def open(self) -> None:
        """Hide the cursor while things are drawn."""
        if self._draws:
            self._console.file.write(_HIDE)

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
        lines = self._finished(self._take())
        self._after_block = False
        self._write([*lines, *self._rendered(line)])

    def draw(self) -> None:
        """Print what is finished, and draw the rest anew."""
        self._drawn = time.monotonic()
        done, self._text = self._split()
        self._write(self._finished(done))

    def close(self) -> None:
        """Print the rest and leave the terminal as it was."""
        self._label = ""
        self._write(self._finished(self._take()))
        if self._draws:
            self._console.file.write(_SHOW)
            self._console.file.flush()

    def _take(self) -> str:
        text, self._text = self._text, ""
        return text

    def _split(self) -> tuple[str, str]:
        """Cut the text before its last block: that one may still change."""
        starts = [token.map[0] for token in self._parser.parse(self._text) if token.level == 0 and token.map]
        if not starts or starts[-1] == 0:
            return "", self._text
        lines = self._text.splitlines(keepends=True)
        return "".join(lines[: starts[-1]]), "".join(lines[starts[-1] :])

    def _finished(self, text: str) -> list[str]:
        """Return the lines of finished text."""
        if not text.strip():
            return []
        lines = self._rendered(Markdown(text))
        gap = [""] if self._after_block else []
        self._after_block = True
        return [*gap, *lines]

    def _rendered(self, block: RenderableType) -> list[str]:
        """Return a block as lines without the empty ones around it: rich has them around some blocks only."""
        with self._console.capture() as captured:
            self._console.print(block, no_wrap=isinstance(block, Text), overflow="ellipsis", crop=True)
        lines = captured.get().splitlines()
        full = [index for index, line in enumerate(lines) if line.strip()]
        return lines[full[0] : full[-1] + 1] if full else []

    def _write(self, lines: Sequence[str]) -> None:
        """Replace what was drawn last by `lines`, for good, and below them by what is not finished."""
        if not lines and not self._draws:
            return
        tail = self._tail() if self._draws else []
        up = f"\x1b[{self._height}A\r{_ERASE}" if self._height else ""
        self._height = len(tail)
        self._console.file.write(up + "".join([f"{line}\n" for line in (*lines, *tail)]))
        self._console.file.flush()

    def _tail(self) -> list[str]:
        """Return the unfinished block, as far as the terminal is high, and the line that says what is going on."""
        lines: list[str] = []
        if self._text.strip():
            lines = [*([""] if self._after_block else []), *self._rendered(Markdown(self._text))]
        if self._label:
            lines += self._rendered(self._busy())
        return lines[-max(self._console.height - 2, 1) :]

    def _busy(self) -> Text:
        dots = _ASCII_DOTS if self._console.options.ascii_only else _DOTS
        return Text(f"{dots[int(time.monotonic() * 10) % len(dots)]} {self._label}", "dim")
