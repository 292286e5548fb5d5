"""What a provider would refuse a history for."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from ._messages import Message, Part, TextPart, ThinkingPart, ToolCall, ToolResult

_ROLES = ("user", "assistant", "tool")


class HistoryError(AssertionError):
    """A history that no provider would take. `index` is the place of the message at fault."""

    def __init__(self, problem: str, index: int) -> None:
        super().__init__(f"message {index}: {problem}")
        self.problem = problem
        self.index = index


def check_history(messages: Sequence[Message]) -> None:
    """Check that a history is valid as providers understand it.

    Every tool call has exactly one result, after the assistant message that made it and before any other message than
    those with results; call ids differ within a message; arguments are JSON objects; no result is without its call;
    text is valid UTF-8.

    Raises:
        HistoryError: naming the first message at fault.
    """
    waiting: dict[str, ToolCall] = {}
    answered: set[str] = set()
    for index, message in enumerate(messages):
        if not isinstance(message, Message):
            raise HistoryError(f"a {type(message).__name__} in the place of a Message", index)
        if message.role not in _ROLES:
            raise HistoryError(f"there is no role {message.role!r}", index)
        _check_text(message, index)
        if message.role == "tool":
            _settle(message, index, waiting, answered)
            continue
        if waiting:
            raise HistoryError(f"role {message.role!r} comes before a result for {_named(waiting)}", index)
        _check_places(message, index)
        if message.role == "assistant":
            waiting, answered = _calls(message, index), set()
    if waiting:
        raise HistoryError(f"the history ends without a result for {_named(waiting)}", len(messages) - 1)


def _calls(message: Message, index: int) -> dict[str, ToolCall]:
    calls: dict[str, ToolCall] = {}
    for call in message.tool_calls:
        if not call.id:
            raise HistoryError(f"the call of {call.name!r} has no id", index)
        if call.id in calls:
            raise HistoryError(f"two calls have the id {call.id!r}", index)
        _check_arguments(call, index)
        calls[call.id] = call
    return calls


def _check_arguments(call: ToolCall, index: int) -> None:
    try:
        value = json.loads(call.arguments)
    except (TypeError, ValueError) as error:
        raise HistoryError(f"the arguments of call {call.id!r} are not JSON ({error})", index) from None
    if not isinstance(value, dict):
        raise HistoryError(f"the arguments of call {call.id!r} are no object: {call.arguments[:80]}", index)


def _settle(message: Message, index: int, waiting: dict[str, ToolCall], answered: set[str]) -> None:
    for part in message.parts:
        if not isinstance(part, ToolResult):
            raise HistoryError(f"a tool message holds a {part.kind} part", index)
        if part.call_id in answered:
            raise HistoryError(f"a second result for call {part.call_id!r}", index)
        if part.call_id not in waiting:
            raise HistoryError(f"a result for {part.call_id!r}, which was not called just before", index)
        answered.add(part.call_id)
        del waiting[part.call_id]


def _check_places(message: Message, index: int) -> None:
    for part in message.parts:
        if isinstance(part, ToolResult):
            raise HistoryError(f"a tool result in a {message.role} message", index)
        if isinstance(part, ToolCall) and message.role != "assistant":
            raise HistoryError(f"a tool call in a {message.role} message", index)


def _check_text(message: Message, index: int) -> None:
    for text in _texts(message.parts):
        try:
            text.encode()
        except UnicodeEncodeError:
            raise HistoryError(f"text that is not valid UTF-8: {text[:80]!a}", index) from None


def _texts(parts: Sequence[Part]) -> Iterator[str]:
    for part in parts:
        if isinstance(part, TextPart | ThinkingPart):
            yield part.text
        elif isinstance(part, ToolCall):
            yield part.name
            yield part.arguments
        elif isinstance(part, ToolResult):
            yield from _texts(part.content)


def _named(waiting: dict[str, ToolCall]) -> str:
    return " and ".join([f"call {call.id!r} of {call.name!r}" for call in waiting.values()])
