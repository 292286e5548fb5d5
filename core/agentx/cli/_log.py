"""What the library logs, as messages of the command line."""

from __future__ import annotations

import logging

import click

from ._command import State


class _Handler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        from ._screen import note

        try:
            note(f"{record.levelname.lower()}: {record.getMessage()}", "yellow" if record.levelno >= 30 else "dim")
        except Exception:
            self.handleError(record)


def show_log(*, quiet: bool = False) -> None:
    """Print warnings of agentx to standard error; everything it logs with `--debug`, errors only if quiet."""
    context = click.get_current_context(silent=True)
    debug = bool(context and context.ensure_object(State).debug)
    logger = logging.getLogger("agentx")
    logger.setLevel(logging.DEBUG if debug else logging.ERROR if quiet else logging.WARNING)
    logger.addHandler(_Handler())
    logger.propagate = False
