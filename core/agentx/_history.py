"""Cutting a history without cutting a call from its result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import attrs

from ._errors import SessionError
from ._events import HistoryReplaced
from ._messages import Message, TextPart, ToolResult

if TYPE_CHECKING:
    from ._frames import SessionFrame


def exchanges(messages: Sequence[Message]) -> list[list[Message]]:
    """Return the exchanges of a history: each begins with the message of a user and holds all up to the next.

    What comes before the first user message is an exchange of its own.
    """
    found: list[list[Message]] = []
    for message in messages:
        if message.role == "user" or not found:
            found.append([])
        found[-1].append(message)
    return found


def keep_recent(
    messages: Sequence[Message],
    keep: int,
    *,
    max_tokens: int | None = None,
    count: Callable[[Message], int] | None = None,
) -> list[Message]:
    """Return the newest messages of a history, cut where a request may begin: at the message of a user.

    At most `keep` messages remain, and at most `max_tokens` as `count` counts them (default: a quarter of the
    characters); but the newest user message and what follows it always stay, with all their calls, results and signed
    thinking. Nothing is changed in what stays.
    """
    count = count or _about
    groups = exchanges(messages)
    kept: list[list[Message]] = []
    left, tokens = keep, max_tokens
    for group in reversed(groups):
        left -= len(group)
        if tokens is not None:
            tokens -= sum([count(message) for message in group])
        if kept and (left < 0 or (tokens is not None and tokens < 0)):
            break
        kept.append(group)
    while len(kept) > 1 and kept[-1][0].role != "user":
        kept.pop()
    return [message for group in reversed(kept) for message in group]


def _about(message: Message) -> int:
    size = len(message.text)
    for part in message.parts:
        if isinstance(part, ToolResult):
            size += len(part.text)
    for call in message.tool_calls:
        size += len(call.name) + len(call.arguments)
    return size // 4 + 4


class History(Sequence[Message]):
    """What a session remembers, as a layer sees it: a sequence of messages with durable verbs.

    The verbs work on closed exchanges only, so never on half a pair of call and result. Each appends an event; the
    log keeps the originals; called in a model layer, the request of this very call
    is refreshed under the layers' additions.
    """

    __slots__ = ("_changed", "_check", "_frame", "_owner")

    def __init__(
        self,
        frame: SessionFrame,
        owner: str,
        check: Callable[[str], None],
        changed: Callable[[], None] | None = None,
    ) -> None:
        self._frame = frame
        self._owner = owner
        self._check = check
        self._changed = changed

    def __len__(self) -> int:
        return len(self._frame.history)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]  # the overloads are those of a list
        return self._frame.history[index]

    @property
    def exchanges(self) -> list[list[Message]]:
        """The closed exchanges, oldest first; the one of the running turn is not among them."""
        groups = exchanges(self._frame.history)
        return groups[:-1] if self._frame.turn is not None and self._frame.turn.committed else groups

    def replace(self, count: int, summary: str) -> None:
        """Put `summary` in the place of the oldest `count` closed exchanges."""
        self._check("history.replace")
        text = TextPart(f"Summary of the conversation so far:\n{summary}")
        self._cut(count, [Message("user", (text,))])

    def drop(self, count: int) -> None:
        """Forget the oldest `count` closed exchanges."""
        self._check("history.drop")
        self._cut(count, [])

    def clear_results(self, call_ids: Iterable[str], note: str) -> None:
        """Put `note` in the place of what some tools returned; the calls and their results stay a pair."""
        self._check("history.clear_results")
        wanted = set(call_ids)
        closed = {id(message) for group in self.exchanges for message in group}
        cleared = [_cleared(m, wanted, note) if id(m) in closed else m for m in self._frame.history]
        self._write(cleared)

    def _cut(self, count: int, head: list[Message]) -> None:
        closed = self.exchanges
        if not 0 <= count <= len(closed):
            raise SessionError(f"{self._owner}: {count} exchanges cannot be cut, {len(closed)} are closed")
        gone = sum([len(group) for group in closed[:count]])
        self._write(head + self._frame.history[gone:])

    def _write(self, messages: list[Message]) -> None:
        self._frame.history = messages
        self._frame.record(HistoryReplaced, self._owner, tuple(messages))
        if self._changed is not None:
            self._changed()


def _cleared(message: Message, call_ids: set[str], note: str) -> Message:
    if message.role != "tool":
        return message
    parts = tuple(
        [
            attrs.evolve(part, content=(TextPart(note),))
            if isinstance(part, ToolResult) and part.call_id in call_ids
            else part
            for part in message.parts
        ]
    )
    return Message("tool", parts)
