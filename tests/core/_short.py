"""Messages in the short form of the case list: `U"hi"`, `A"text"[c1:tool{args}]`, `R(c1)"text"`, `R!` for an error."""

from __future__ import annotations

from collections.abc import Sequence

from agentx import Message, ModelRequest, ToolResult


def short(messages: Sequence[Message]) -> list[str]:
    """Return every message as one line; the results of one message are one line too."""
    return [_one(message) for message in messages]


def sent(request: ModelRequest) -> list[str]:
    """Return what a request says, in the order it is sent."""
    return short(request.wire_messages)


def _one(message: Message) -> str:
    if message.role == "user":
        return f'U"{message.text}"'
    if message.role == "assistant":
        calls = "".join([f"[{call.id}:{call.name}{call.arguments}]" for call in message.tool_calls])
        return f'A"{message.text}"{calls}'
    return " ".join([_result(part) for part in message.parts if isinstance(part, ToolResult)])


def _result(result: ToolResult) -> str:
    text = result.text if len(result.text) < 40 else f"{result.text[:37]}..."
    return f'R{"!" if result.is_error else ""}({result.call_id})"{text}"'
