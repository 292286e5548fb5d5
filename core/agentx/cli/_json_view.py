"""A turn as lines of JSON: every event, and at the end one line of kind `result`, whatever happened."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from typing import Any, BinaryIO

from agentx._agent import Agent
from agentx._codec import encode, encode_event
from agentx._errors import TurnAborted
from agentx._events import Event
from agentx._result import RunResult

from ._exits import Exit, OutputClosed, describe, exit_of_error, exit_of_status
from ._screen import print_error
from ._turns import Cancelled, opened


class JsonView:
    """Prints events as they come."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out

    def open(self) -> None:
        """Nothing to prepare."""

    def show(self, event: Event) -> None:
        self.print(encode_event(event))

    def print(self, line: bytes) -> None:
        """Print a line and let the reader have it at once."""
        self._out.write(line + b"\n")
        self._out.flush()

    def tick(self) -> None:
        """Nothing moves."""

    def interrupted(self) -> None:
        """Its end will say so."""

    def close(self) -> None:
        """Every line is out."""


def run_as_json(agent: Agent[Any, Any], text: str) -> int:
    """Run one turn and return the exit code that says how it ended."""
    view = JsonView(sys.stdout.buffer)
    result: RunResult[Any] | None = None
    error: Exception | None = None
    code = Exit.CANCELLED
    try:
        with redirect_stdout(sys.stderr), opened(agent) as conversation:  # what tools print is no event
            for event in conversation.session.events:
                view.show(event)
            try:
                result = conversation.turn(text, view)
                code = exit_of_status(result.status)
            except Cancelled:  # not raised through the agent: it closes as usual
                code = Exit.CANCELLED
            finally:
                result = result or conversation.session.last_result
    except KeyboardInterrupt:
        code = Exit.CANCELLED
    except (BrokenPipeError, OutputClosed):
        raise
    except TurnAborted as aborted:
        error, code, result = aborted, Exit.ABORTED, aborted.result or result
    except Exception as failure:
        error, code = failure, exit_of_error(failure)
    view.print(encode(_last_line(result, error, code)))
    if error is not None:
        print_error(describe(error))
    return code


def _last_line(result: RunResult[Any] | None, error: Exception | None, code: Exit) -> dict[str, Any]:
    line: dict[str, Any] = {"kind": "result", "status": "cancelled" if code == Exit.CANCELLED else "failed"}
    if result is not None:
        line |= {
            "status": result.status,
            "reason": result.reason,
            "by": result.by,
            "text": result.text,
            "usage": result.usage,
            "cost": None if result.cost is None else str(result.cost),
            "session_id": result.session_id,
            "turn_id": result.turn_id,
        }
    if error is not None:
        line["error"] = describe(error)
    return {**line, "exit": int(code)}
