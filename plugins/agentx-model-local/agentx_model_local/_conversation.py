"""From agentx's messages to what a small model is shown, and the notes it adds to its answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from agentx import Message, ModelRequest, TextPart, ToolResult

from ._choosing import shortened

NOTE = "\n\n[local model: "
"""How a note begins. Notes are parts of their own, and are not shown to the model again."""
LIMITS = "this text is from a model of 135 million parameters; it makes up facts, cannot reason or do sums"
CHARS_PER_TOKEN = 3
"""A careful guess for English; the tokenizer is in the other process."""

Chat = list[dict[str, Any]]


def note(*texts: str) -> str:
    return f"{NOTE}{'; '.join(texts)}]"


def is_note(part: object) -> bool:
    return isinstance(part, TextPart) and part.text.startswith(NOTE)


def has_note(messages: Sequence[Message], text: str) -> bool:
    return any(is_note(part) and text in part.text for message in messages for part in message.parts)  # type: ignore[attr-defined]


def plain_text(message: Message) -> str:
    return "".join([part.text for part in message.parts if isinstance(part, TextPart) and not is_note(part)])


def last_user_text(request: ModelRequest) -> str:
    """Return what the user said last, without what layers added for this call."""
    return next((plain_text(message) for message in reversed(request.messages) if message.role == "user"), "")


def results_of(request: ModelRequest) -> tuple[ToolResult, ...]:
    """Return the tool results the request ends with; none if it ends with something a person said."""
    last = request.messages[-1]
    return tuple([part for part in last.parts if isinstance(part, ToolResult)]) if last.role == "tool" else ()


def chat_of(request: ModelRequest, instructions: str) -> Chat:
    """Return the conversation for a template without tools: tool results become part of what was said."""
    chat: Chat = [{"role": "system", "content": instructions}]
    for message in request.wire_messages:
        role = "assistant" if message.role in ("assistant", "tool") else "user"
        results = [part.text for part in message.parts if isinstance(part, ToolResult)]
        text = "\n".join([text for text in [plain_text(message), *results] if text])
        if text and chat[-1]["role"] == role:  # most templates insist on alternating roles
            chat[-1]["content"] += "\n" + text
        elif text:
            chat.append({"role": role, "content": text})
    return chat


def tool_chat_of(request: ModelRequest, instructions: str) -> Chat:
    """Return the conversation for a template that knows tools."""
    chat: Chat = [{"role": "system", "content": instructions}] if instructions else []
    for message in request.wire_messages:
        for part in message.parts:
            if isinstance(part, ToolResult):
                chat.append({"role": "tool", "tool_call_id": part.call_id, "name": part.name, "content": part.text})
        text = plain_text(message)
        calls = [
            {"type": "function", "id": call.id, "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
        if calls:
            chat.append({"role": "assistant", "content": text, "tool_calls": calls})
        elif text:
            chat.append({"role": message.role, "content": text})
    return chat


@attrs.frozen
class Fitted:
    chat: Chat
    is_cut: bool


def fitted(chat: Chat, tokens: int) -> Fitted:
    """Return the instructions, perhaps shortened, and as much of the end of `chat` as fits into `tokens`."""
    room = tokens * CHARS_PER_TOKEN
    system = shortened(chat[0]["content"], room // 3)
    is_cut = system != chat[0]["content"]
    room -= len(system)
    kept: Chat = []
    for message in reversed(chat[1:]):
        if room - len(message["content"]) < 0:
            is_cut = True
            if not kept:  # what was asked last is always there, at least in part
                kept.append({**message, "content": shortened(message["content"], room)})
            break
        room -= len(message["content"])
        kept.append(message)
    return Fitted([{"role": "system", "content": system}, *reversed(kept)], is_cut)
