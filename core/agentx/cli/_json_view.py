"""A turn as lines of JSON: every event, and at the end one line of kind `result`, whatever happened."""

from __future__ import annotations

from typing import Any

from agentx._agent import Agent
from agentx._codec import encode, encode_event
from agentx._errors import TurnAborted
from agentx._events import Event
from agentx._result import RunResult

from ._exits import Exit, OutputClosed, describe, exit_of_error, exit_of_status
from ._screen import print_error, print_json_line
from ._turns import Cancelled, opened


class JsonView:
    def open(self) -> None:
        """Nothing to prepare."""

    def show(self, event: Event) -> None:
        print_json_line(encode_event(event))

    def tick(self) -> None:
        """Nothing moves."""

    def interrupted(self) -> None:
        """Its end will say so."""

    def close(self) -> None:
        """Every line is out."""


def run_as_json(agent: Agent[Any, Any], text: str) -> int:
    """Run one turn and return the exit code that says how it ended."""
    view = JsonView()
    result: RunResult[Any] | None = None
    error: Exception | None = None
    code = Exit.CANCELLED
    try:
        with opened(agent) as conversation:
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
    print_json_line(encode(_last_line(result, error, code)))
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
