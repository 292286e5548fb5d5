"""What a turn gives back."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any, Generic, Literal, cast

import attrs

from ._errors import NoOutputError
from ._messages import Message, Usage

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    Out = TypeVar("Out", default=str)
else:
    from typing import TypeVar

    Out = TypeVar("Out")

Status = Literal[
    "completed", "stopped", "limit", "truncated", "refused", "empty", "paused", "aborted", "cancelled", "failed"
]
"""The last three are only seen in `session.last_result`: the call itself raised."""


@attrs.frozen
class RunResult(Generic[Out]):
    """How a turn ended, and what there is of an answer."""

    status: Status
    reason: str | None
    """Why it is not `completed`."""
    by: str | None
    """The plugin that ended it, if one did."""
    text: str
    """What the model's last response says; empty if there was none. Never an older text."""
    messages: tuple[Message, ...]
    """What this turn added to the history."""
    usage: Usage
    cost: Decimal | None
    """US dollars; `None` unless something counts them, or if a price or a usage is unknown."""
    session_id: str
    turn_id: str
    pending: tuple[str, ...] = ()
    """The call ids that wait for a decision."""
    _output: Any = None

    @property
    def output(self) -> Out:
        """The answer.

        Raises:
            NoOutputError: the turn is not `completed`; it names status and reason.
        """
        if self.status != "completed":
            raise NoOutputError(
                f"the turn has no output: it is {self.status}" + (f" ({self.reason})" if self.reason else ""),
                status=self.status,
                reason=self.reason or "",
            )
        return cast(Out, self._output)
