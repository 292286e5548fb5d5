"""A turn as plain text: the answer on standard output, everything else on standard error."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from typing import Any, TextIO

from agentx._agent import Agent
from agentx._events import Event, ModelEnd, ModelRetrying, ModelStart, TextDeltaEvent

from ._exits import Exit, exit_of_status
from ._lines import Lines, ending
from ._screen import err, note, one_line, safe, styled
from ._turns import Cancelled, opened


class PlainView:
    """Prints pieces of text as they come, if wanted, and a line for each call of a tool."""

    def __init__(self, out: TextIO, *, streams: bool, tells: bool) -> None:
        self._streams = streams
        self._tells = tells
        self._lines = Lines()
        self._out = out
        self._is_terminal = out.isatty()
        self._in_line = False
        """Whether text has been printed whose line has not ended."""
        self.printed = False
        """Whether the last model call's text is out."""
        self._asked_by: str | None = None

    def open(self) -> None:
        """Nothing to prepare."""

    def show(self, event: Event) -> None:
        if isinstance(event, ModelStart):
            self._asked_by = event.asked_by
            self.printed = self.printed and event.asked_by is not None
        elif isinstance(event, TextDeltaEvent):
            if self._streams and self._asked_by is None:
                self._print(event.text)
        elif isinstance(event, ModelEnd):
            self._asked_by = None
            self._end_line()
        elif isinstance(event, ModelRetrying) and self._in_line:
            self._end_line()
            note("(void: the model is asked again)", "dim")
        line = self._lines.line(event)
        if line is not None and self._tells:
            self._end_line()
            err().print(styled(one_line(line[0], err().width if err().is_terminal else 200), line[1]), soft_wrap=True)

    def _print(self, text: str) -> None:
        self._out.write(safe(text) if self._is_terminal else text)
        self._out.flush()
        self._in_line = not text.endswith("\n")
        self.printed = True

    def _end_line(self) -> None:
        if self._in_line:
            self._in_line = False
            self._out.write("\n")
            self._out.flush()

    def print_answer(self, text: str) -> None:
        """Print the answer unless it has been streamed."""
        if text and not self.printed:
            self._print(text)
        self._end_line()

    def tick(self) -> None:
        """Nothing moves in plain text."""

    def interrupted(self) -> None:
        """Its end will say so."""

    def close(self) -> None:
        self._end_line()


def run_plainly(agent: Agent[Any, Any], text: str, *, streams: bool, tells: bool, quiet: bool) -> int:
    """Run one turn and return the exit code that says how it ended."""
    view = PlainView(sys.stdout, streams=streams, tells=tells)
    with redirect_stdout(sys.stderr), opened(agent) as conversation:  # what tools print is not the answer
        try:
            result = conversation.turn(text, view)
        except Cancelled:  # not raised through the agent: it closes as usual
            if not quiet:
                note("cancelled")
            return Exit.CANCELLED
        view.print_answer(result.text)
    end = ending(result)
    if end is not None and not quiet:
        note(*end)
    return exit_of_status(result.status)
