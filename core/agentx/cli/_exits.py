"""Exit codes, and errors as a person or a program gets to see them."""

from __future__ import annotations

import enum
import json
import sys
from collections.abc import Iterator
from typing import Any

import click

from ._command import State

DOCS = "docs/reference/errors.md"


class Exit(enum.IntEnum):
    """What `agentx` leaves with. The numbers are stable; docs/reference/command-line.md explains them."""

    OK = 0
    FAILED = 1
    USAGE = 2
    CONFIG = 3
    PLUGIN = 4
    MODEL = 5
    TOOL = 6
    SESSION = 7
    STOPPED = 10
    LIMIT = 11
    TRUNCATED = 12
    REFUSED = 13
    EMPTY = 14
    PAUSED = 15
    ABORTED = 16
    CANCELLED = 130
    OUTPUT_CLOSED = 141
    TERMINATED = 143


class OutputClosed(Exception):
    """Whoever read standard output is gone, as in `agentx … | head -1`."""


def exit_of_status(status: str) -> Exit:
    """Return the exit code of a turn that ended with `status`."""
    return {
        "completed": Exit.OK,
        "stopped": Exit.STOPPED,
        "limit": Exit.LIMIT,
        "truncated": Exit.TRUNCATED,
        "refused": Exit.REFUSED,
        "empty": Exit.EMPTY,
        "paused": Exit.PAUSED,
        "aborted": Exit.ABORTED,
        "cancelled": Exit.CANCELLED,
    }.get(status, Exit.FAILED)


def exit_of_error(error: BaseException) -> Exit:
    """Return the exit code for an error."""
    from agentx import _errors as errors

    known = getattr(error, "exit_code", None)
    if isinstance(known, int) and not isinstance(error, click.ClickException):
        return Exit(known)
    kinds: tuple[tuple[type[BaseException], Exit], ...] = (
        (click.UsageError, Exit.USAGE),
        (errors.ConfigError, Exit.CONFIG),
        (errors.PluginError, Exit.PLUGIN),
        (errors.ServiceError, Exit.PLUGIN),
        (errors.StateError, Exit.PLUGIN),
        (errors.ModelError, Exit.MODEL),
        (errors.ToolError, Exit.TOOL),
        (errors.SessionError, Exit.SESSION),
        (errors.TurnAborted, Exit.ABORTED),
    )
    return next((code for kind, code in kinds if isinstance(error, kind)), Exit.FAILED)


def describe(error: BaseException) -> dict[str, Any]:
    """Return an error as data: its stable code, its message, where it is documented."""
    from agentx._errors import AgentxError, ModelError

    if isinstance(error, click.ClickException):
        return {"code": "usage", "message": error.format_message(), "docs": "docs/reference/command-line.md"}
    if isinstance(error, AgentxError):
        found = {"code": error.code, "message": str(error), "docs": f"{DOCS}#{error.code}"}
    else:
        from agentx._scan import failure_of

        found = {"code": "bug", "message": failure_of(error).reason, "docs": f"{DOCS}#bug"}
    notes = [str(note) for note in getattr(error, "__notes__", ())]
    if isinstance(error, ModelError):  # the layers around a provider that failed are beside the point
        notes = [note for note in notes if " onion: " not in note]
    return {**found, "notes": notes} if notes else found


def report(error: BaseException, state: State) -> int:
    """Print an error and return the exit code; the traceback only if the user wants it."""
    from ._screen import print_error

    if state.debug and not isinstance(error, click.ClickException):
        import traceback

        traceback.print_exception(error)
    found = describe(error)
    print_error(found, list(_usage_lines(error)))
    code = exit_of_error(error)
    if state.json:
        sys.stdout.flush()
        click.echo(json.dumps({"error": {**found, "exit": int(code)}}, ensure_ascii=False).encode())
    return code


def _usage_lines(error: BaseException) -> Iterator[str]:
    if isinstance(error, click.UsageError) and error.ctx is not None:
        yield error.ctx.get_usage()
        yield f"Try '{error.ctx.command_path} --help'."
