"""A turn of a chat on a terminal: Markdown that grows, a line for each tool call, and what is going on below."""

from __future__ import annotations

from contextlib import ExitStack

from rich.console import Console

from agentx._events import Event, ModelEnd, ModelRetrying, ModelStart, TextDeltaEvent, ThinkingDeltaEvent, ToolProgress

from ._lines import Lines
from ._markdown import MarkdownStream
from ._prompt import without_echo
from ._screen import one_line, styled


class ChatView:
    """Shows one turn."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._stream = MarkdownStream(console)
        self._lines = Lines()
        self._doing = ""
        self._asked_by: str | None = None
        self._terminal = ExitStack()
        """What has to be undone at the terminal."""

    def open(self) -> None:
        self._terminal.enter_context(without_echo())
        self._terminal.callback(self._stream.close)
        self._stream.open()

    def show(self, event: Event) -> None:
        if isinstance(event, ModelStart):
            self._asked_by = event.asked_by
            self._say(f"{event.asked_by} asks a model" if event.asked_by else "waiting for the model")
        elif isinstance(event, TextDeltaEvent):
            if self._asked_by is None:
                self._say("")
                self._stream.feed(event.text)
        elif isinstance(event, ThinkingDeltaEvent):
            self._say("the model is thinking")
        elif isinstance(event, ModelEnd):
            self._asked_by = None
        elif isinstance(event, ToolProgress):
            self._say(f"{event.tool}: {event.message}")
        if isinstance(event, ModelRetrying):
            self._print("(the text of this answer so far is void)", "dim")
        line = self._lines.line(event)
        if line is not None:
            self._print(*line)
        if self._lines.running:
            self._say(", ".join(self._lines.running))

    def _say(self, what: str) -> None:
        if what != self._doing:
            self._doing = what
            self._stream.label(one_line(what, max(self._console.width - 4, 10)))

    def _print(self, text: str, style: str) -> None:
        self._stream.print(styled(one_line(text, self._console.width), style))

    def tick(self) -> None:
        self._stream.draw()

    def interrupted(self) -> None:
        self._stream.label("ending the turn (Ctrl-C again leaves at once)")

    def close(self) -> None:
        self._terminal.close()
