"""The command line, `agentx`. Nothing is imported before a command needs it; one module per command group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command and leave the process with its exit code (docs/reference/command-line.md)."""
    import sys

    from ._app import run

    sys.exit(run(arguments))
