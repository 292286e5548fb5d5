"""The neutral history as the Messages API takes it.

What it refuses, and is mended here: empty texts, thinking at the end of an answer, ids that are not its own or come
twice, tools of the server that never had a result, a conversation that does not begin with the user.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec

from agentx import FilePart, Message, OpaquePart, Part, TextPart, ThinkingPart, ToolCall, ToolResult

from . import _files

Block = dict[str, Any]
CONTAINER = "container"
"""The kind of the opaque part that has the id of the server's sandbox; it is a field of the request and no block."""
THINKING = frozenset({"thinking", "redacted_thinking"})
BEGINNING = "(The beginning of this conversation is not shown.)"
_NO_ID = re.compile(r"[^a-zA-Z0-9_-]")


class Conversation:
    """Takes the messages of a history in turn; `messages` is what is sent of them.

    Args:
        citations: whether the model shall cite the user's documents.
    """

    def __init__(self, *, citations: bool = False) -> None:
        self.messages: list[dict[str, Any]] = []
        self.dropped: Counter[str] = Counter()
        self.container: str | None = None
        self.tools: dict[str, None] = {}
        """Names of the tools that were called."""
        self._citations = citations
        self._ids: dict[str, str] = {}
        self._used: set[str] = set()
        self._toolsets: dict[str, str] = {}

    def take(self, messages: Sequence[Message]) -> None:
        for message in messages:
            if message.role == "assistant":
                self._ids, self.container = {}, None
                self._append("assistant", [block for part in message.parts for block in self._answered(part)])
            else:
                if not all(isinstance(part, ToolResult) for part in message.parts):
                    self.container = None  # it may be gone by now
                self._append("user", [block for part in message.parts for block in self._said(part)])
        if self.messages and self.messages[0]["role"] == "assistant":
            self.messages.insert(0, {"role": "user", "content": [_text(BEGINNING)]})
        self._trim_end()

    def mark(self, room: int, cache_control: Mapping[str, Any]) -> None:
        """Mark where the server's cache of prompts shall hold: the newest message of the user, and the one before it.

        The second is where the request before ended. Thinking takes no mark, and neither does what comes after this.
        """
        users = [message for message in self.messages if message["role"] == "user"]
        for message in users[::-1][: min(room, 2)]:
            message["content"][-1].setdefault("cache_control", dict(cache_control))

    def add(self, context: Sequence[str]) -> None:
        """Add what is said for this call only, behind the user's newest message; a paused answer stays the last."""
        blocks = [_text(text) for text in context if text.strip()]
        if not blocks:
            return
        user = next((message for message in reversed(self.messages) if message["role"] == "user"), None)
        if user is None:
            self.messages.append({"role": "user", "content": blocks})
        else:
            user["content"] = [*user["content"], *blocks]

    @property
    def has_files(self) -> bool:
        """Whether a file is given by its id."""
        return any(_has_file_id(block) for message in self.messages for block in message["content"])

    @property
    def marks(self) -> int:
        return sum(["cache_control" in block for message in self.messages for block in message["content"]])

    def _append(self, role: Literal["user", "assistant"], blocks: list[Block]) -> None:
        if not blocks:
            return
        if role == "user":
            self._close_answer()
        if self.messages and self.messages[-1]["role"] == role:
            self.messages[-1]["content"] += blocks
        else:
            self.messages.append({"role": role, "content": blocks})

    def _close_answer(self) -> None:
        """Drop what an answer must not have once something follows it."""
        if not self.messages or self.messages[-1]["role"] != "assistant":
            return
        content: list[Block] = self.messages[-1]["content"]
        kept = [block for block in content if not self._is_loose(block, content)]
        while kept and kept[-1]["type"] in THINKING:
            self.dropped["reasoning without an answer"] += 1
            kept.pop()
        self.messages[-1]["content"] = kept
        if not kept:
            self.messages.pop()

    def _is_loose(self, block: Block, content: Sequence[Block]) -> bool:
        """Whether a block is a call of the server's tool that will never have a result.

        One that waits for the calls it made itself has its result in a later answer.
        """
        own = block.get("id")
        if not block["type"].endswith("_tool_use"):
            return False
        if any(own in (other.get("tool_use_id"), (other.get("caller") or {}).get("tool_id")) for other in content):
            return False
        self._used.discard(own)
        self.dropped[f"an unfinished {block.get('name') or block['type']}"] += 1
        return True

    def _trim_end(self) -> None:
        last = self.messages[-1] if self.messages else None
        if last is not None and last["role"] == "assistant" and last["content"][-1]["type"] == "text":
            last["content"][-1]["text"] = last["content"][-1]["text"].rstrip()

    def _answered(self, part: Part) -> Iterator[Block]:
        """Yield the blocks of a part of an answer."""
        if isinstance(part, TextPart):
            if part.text.strip():
                yield {**(part.data or {}), **_text(part.text)}
        elif isinstance(part, ThinkingPart):
            yield _thinking(part)
        elif isinstance(part, ToolCall):
            yield self._call(part)
        elif isinstance(part, OpaquePart):
            if part.data.get("type") == CONTAINER:
                self.container = part.data.get("id")
            elif not self._is_orphan(part.data):
                if part.data.get("id"):
                    self._used.add(part.data["id"])
                yield dict(part.data)
        elif isinstance(part, FilePart):
            yield _text(f"[file{f' {part.name}' if part.name else ''} ({part.media_type})]")

    def _is_orphan(self, block: Mapping[str, Any]) -> bool:
        """Whether a block is the result of a call of the server's tool that is not in the history before it."""
        owner = block.get("tool_use_id")
        if not owner or owner in self._used:
            return False
        self.dropped[f"a {block.get('type')} without its call"] += 1
        return True

    def _call(self, call: ToolCall) -> Block:
        wanted = _NO_ID.sub("_", call.id) or "call"
        wire_id, number = wanted, 1
        while wire_id in self._used:
            number += 1
            wire_id = f"{wanted}_{number}"
        self._used.add(wire_id)
        self._ids[call.id] = wire_id
        name = _NO_ID.sub("_", call.name)[:128] or "unnamed"
        self.tools[name] = None
        if call.data and call.data.get("toolset_name"):
            self._toolsets[wire_id] = call.data["toolset_name"]
        return {**(call.data or {}), "type": "tool_use", "id": wire_id, "name": name, "input": _arguments(call)}

    def _said(self, part: Part) -> Iterator[Block]:
        """Yield the blocks of a part of what the user or a tool says."""
        if isinstance(part, ToolResult):
            yield self._result(part)
        else:
            yield from self._content(part)

    def _content(self, part: Part) -> Iterator[Block]:
        if isinstance(part, TextPart):
            if part.text.strip():
                yield _text(part.text)
        elif isinstance(part, FilePart):
            yield _files.block(part, citations=self._citations)
        elif isinstance(part, OpaquePart):
            yield dict(part.data)

    def _result(self, result: ToolResult) -> Block:
        content = [block for part in result.content for block in self._content(part)]
        if result.is_error and not content:
            content = [_text(result.status)]
        wire_id = self._ids.get(result.call_id, result.call_id)
        block: Block = {"type": "tool_result", "tool_use_id": wire_id}
        if content:
            block["content"] = content
        if result.is_error:
            block["is_error"] = True
        if wire_id in self._toolsets:
            block["toolset_name"] = self._toolsets[wire_id]
        return block


def _text(text: str) -> Block:
    return {"type": "text", "text": text}


def _thinking(part: ThinkingPart) -> Block:
    """Return reasoning as it came."""
    data = dict(part.data or {})
    if data.get("type") == "redacted_thinking":
        return data
    return {**data, "type": "thinking", "thinking": part.text, "signature": part.signature or ""}


def _arguments(call: ToolCall) -> Any:
    try:
        value = msgspec.json.decode(call.arguments)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _has_file_id(block: Block) -> bool:
    source = block.get("source")
    if isinstance(source, dict) and source.get("type") == "file":
        return True
    content = block.get("content")
    return block["type"] == "tool_result" and isinstance(content, list) and any(map(_has_file_id, content))
