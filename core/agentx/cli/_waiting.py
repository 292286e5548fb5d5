"""Ask the child process while a terminal shows that something goes on."""

from __future__ import annotations

from typing import Any

from ._agents import Choice
from ._child import ask
from ._screen import err


def ask_waiting(task: str, what: str, choice: Choice, limit: float, **options: Any) -> Any:
    """Return the child's answer to a task."""
    if not err().is_terminal:
        return ask(task, choice, limit=limit, **options)
    with err().status(what):
        return ask(task, choice, limit=limit, **options)
