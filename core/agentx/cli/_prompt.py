"""Read what a person types: history, several lines, completion; with the readline that comes with Python.

readline (GNU or libedit) is enough: it edits, recalls and completes, knows pasted text from typed text, and leaves
Ctrl-C to Python. Where Python has none, as on Windows, the terminal's own line editing does.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

QUOTE = '"""'
KEPT = 1_000
"""Entries of the history that are remembered."""


class Prompt:
    """Reads one message after the other from standard input."""

    def __init__(self, history: Path | None, completions: Sequence[str]) -> None:
        self._history = history
        self._is_terminal = sys.stdin.isatty()
        self.typed = ""
        """What was in the line when Ctrl-C came."""
        self._readline = _readline() if self._is_terminal and sys.stdout.isatty() else None
        if self._readline is not None:
            _set_up(self._readline, completions)
            for entry in _entries(history):
                self._readline.add_history(entry)

    def read(self) -> str | None:
        """Return the next message, which may have several lines; `None` at the end of the input.

        Raises:
            KeyboardInterrupt: Ctrl-C; what was typed is dropped.
        """
        line = self._line("> ")
        if line is None:
            return None
        if line.lstrip().startswith(QUOTE):
            line = self._quoted(line.lstrip()[len(QUOTE) :])
        while line.endswith("\\"):
            more = self._line("… ")
            line = line[:-1] + "\n" + (more or "")
            if more is None:
                break
        text = line.strip()
        if text:
            self._remember(text)
        return text

    def _quoted(self, first: str) -> str:
        """Read on to the closing quotes."""
        lines = [first]
        while QUOTE not in lines[-1]:
            line = self._line("… ")
            if line is None:
                break
            lines.append(line)
        return "\n".join(lines).replace(QUOTE, "")

    def _line(self, prompt: str) -> str | None:
        if self._is_terminal:
            self.typed = ""
            before = signal.signal(signal.SIGINT, self._interrupt)
            try:
                return input(prompt)
            except EOFError:
                return None
            finally:
                signal.signal(signal.SIGINT, before)
        line = sys.stdin.buffer.readline().decode("utf-8", "replace")
        return line.rstrip("\r\n") if line else None

    def _remember(self, text: str) -> None:
        if self._readline is None:
            return
        size = self._readline.get_current_history_length()
        if size and self._readline.get_history_item(size) == text:
            return
        self._readline.add_history(text)
        if self._history is None:
            return
        try:
            self._history.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(self._history, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            with os.fdopen(handle, "a", encoding="utf-8") as file:
                file.write(json.dumps(text) + "\n")
        except OSError:  # a chat without a home folder is still a chat
            self._history = None

    def _interrupt(self, *_: object) -> None:
        """Note what Ctrl-C throws away: at an empty line it means more than in the middle of one."""
        self.typed = self._readline.get_line_buffer() if self._readline is not None else ""
        raise KeyboardInterrupt


def _readline() -> Any:
    try:
        import readline
    except ImportError:
        return None
    return readline


def _set_up(readline: Any, completions: Sequence[str]) -> None:
    readline.set_auto_history(False)  # a message of several lines is one entry
    readline.set_completer(lambda text, state: _nth([one for one in completions if one.startswith(text)], state))
    readline.set_completer_delims(" \n")
    if "libedit" in (readline.__doc__ or ""):
        readline.parse_and_bind("bind ^I rl_complete")
        return
    readline.parse_and_bind("tab: complete")
    readline.parse_and_bind("set enable-bracketed-paste on")
    readline.parse_and_bind(r'"\e\C-m": "\C-v\C-j"')  # Alt-Enter puts a line break into the message


def _nth(found: Sequence[str], index: int) -> str | None:
    return found[index] if index < len(found) else None


def _entries(history: Path | None) -> Sequence[str]:
    if history is None or not history.is_file():
        return []
    entries = []
    for line in history.read_text(encoding="utf-8", errors="replace").splitlines()[-KEPT:]:
        try:
            entries.append(str(json.loads(line)))
        except ValueError:  # a torn line
            continue
    return entries


def history_file() -> Path | None:
    """Return where messages are remembered: AGENTX_CHAT_HISTORY, else a file of the user's; nowhere if it is empty."""
    given = os.environ.get("AGENTX_CHAT_HISTORY")
    if given is not None:
        return Path(given).expanduser() if given else None
    import platformdirs

    return Path(platformdirs.user_state_dir("agentx")) / "chat-history.jsonl"


@contextmanager
def without_echo() -> Iterator[None]:
    """Let what is typed while a turn runs not appear in the middle of the answer; it is read afterwards."""
    before = _terminal_modes()
    if before is None:
        yield
        return
    import termios

    keys = sys.stdin.fileno()
    silent = list(before)
    silent[3] &= ~termios.ECHO
    termios.tcsetattr(keys, termios.TCSADRAIN, silent)
    try:
        yield
    finally:
        termios.tcsetattr(keys, termios.TCSADRAIN, before)


def _terminal_modes() -> list[Any] | None:
    """Return how the terminal treats keys; `None` where that cannot be changed."""
    try:
        import termios
    except ImportError:
        return None
    try:
        return termios.tcgetattr(sys.stdin.fileno())
    except (termios.error, OSError, ValueError):
        return None
