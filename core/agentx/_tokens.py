"""How many tokens a request may use, for limits that reserve before a call what is only known after it.

A request is not counted anew in every step: of a conversation that only grew, the new messages are, and what the
provider reported for the earlier request takes the place of its estimate.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

from ._messages import (
    FilePart,
    Message,
    ModelRequest,
    OpaquePart,
    Part,
    TextPart,
    ThinkingPart,
    ToolCall,
    ToolResult,
    ToolSpec,
    Usage,
)

BYTES_PER_TOKEN = 3
"""English has about 4.5 bytes of UTF-8 for a token, code 3 to 4, Chinese 3 to 4, numbers 2 to 3."""
MESSAGE = 8
"""Tokens around a message, and around each of its parts."""
FILE = 2000
"""Tokens of an image, or of a file whose size is not known; images have 100 to 1,600 with the big providers."""
FILE_BYTES_PER_TOKEN = 16
"""For documents: a page of a PDF has 1,500 to 3,000 tokens and some 50 KB."""
MAX_OUTPUT = 4096
"""Tokens that a model may write in one answer if neither the request nor the caller says."""


class TokenMeter:
    """Estimates the tokens of requests, on the high side. A conversation is forgotten when nobody holds it.

    Args:
        max_output: tokens of an answer where the request has no `max_tokens`.
    """

    def __init__(self, *, max_output: int = MAX_OUTPUT) -> None:
        self.max_output = max_output
        self._conversations: dict[tuple[int, str], tuple[weakref.ref[Message], _Counted]] = {}
        self._instructions: tuple[str, int] = ("", 0)
        self._tools: tuple[tuple[ToolSpec, ...], int] = ((), 0)

    def input_tokens(self, request: ModelRequest) -> int:
        """Return how many tokens a request sends at most."""
        return self._counted(request).tokens + self._around(request)

    def output_tokens(self, request: ModelRequest) -> int:
        """Return how many tokens the answer has at most."""
        return request.settings.max_tokens or self.max_output

    def tokens(self, request: ModelRequest) -> int:
        """Return how many tokens request and answer have at most."""
        return self.input_tokens(request) + self.output_tokens(request)

    def learn(self, request: ModelRequest, usage: Usage) -> None:
        """Take what the provider reported for `request` as the size of its messages, from now on."""
        sent = usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens
        if sent and not usage.estimated:
            self._counted(request).tokens = max(sent - self._around(request), 0)

    def _counted(self, request: ModelRequest) -> _Counted:
        """Return the count of the request's messages, continued from an earlier request that they begin with."""
        messages = request.messages
        length = len(messages)
        if not length:
            return _Counted()
        counted = self._known(messages[0], request.model)
        if counted.length > length or (counted.last is not None and counted.last() is not messages[counted.length - 1]):
            counted.length = counted.tokens = 0
        for index in range(counted.length, length):
            counted.tokens += message_tokens(messages[index])
        if counted.length < length:
            counted.length, counted.last = length, weakref.ref(messages[length - 1])
        return counted

    def _known(self, first: Message, model: str) -> _Counted:
        key = (id(first), model)
        entry = self._conversations.get(key)
        if entry is not None and entry[0]() is first:
            return entry[1]
        conversations = self._conversations

        def forget(gone: weakref.ref[Message]) -> None:
            if key in conversations and conversations[key][0] is gone:
                del conversations[key]

        counted = _Counted()
        conversations[key] = (weakref.ref(first, forget), counted)
        return counted

    def _around(self, request: ModelRequest) -> int:
        """Return the tokens of what is sent beside the messages."""
        if request.instructions is not self._instructions[0]:
            self._instructions = (request.instructions, text_tokens(request.instructions))
        if request.tools is not self._tools[0]:
            self._tools = (request.tools, sum([_tool_tokens(tool) for tool in request.tools]))
        around = self._instructions[1] + self._tools[1] + MESSAGE
        for text in request.context:
            around += text_tokens(text) + MESSAGE
        return around


class _Counted:
    """The tokens of the first `length` messages of a conversation."""

    __slots__ = ("last", "length", "tokens")

    def __init__(self) -> None:
        self.last: weakref.ref[Message] | None = None
        self.length = 0
        self.tokens = 0


def text_tokens(text: str) -> int:
    """Return how many tokens a text has at most, as far as that can be said without the model's tokenizer."""
    size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    return -(-size // BYTES_PER_TOKEN)


def message_tokens(message: Message) -> int:
    """Return how many tokens a message has at most."""
    return MESSAGE + sum([part_tokens(part) for part in message.parts])


def part_tokens(part: Part) -> int:
    """Return how many tokens a part of a message has at most."""
    if isinstance(part, TextPart):
        return text_tokens(part.text)
    if isinstance(part, ToolCall):
        return MESSAGE + text_tokens(part.name) + text_tokens(part.arguments) + _data_tokens(part.data)
    if isinstance(part, ToolResult):
        return MESSAGE + sum([part_tokens(item) for item in part.content])
    if isinstance(part, ThinkingPart):
        return text_tokens(part.text) + text_tokens(part.signature or "") + _data_tokens(part.data)
    if isinstance(part, FilePart):
        return _file_tokens(part)
    return _data_tokens(part.data) if isinstance(part, OpaquePart) else MESSAGE


def _file_tokens(part: FilePart) -> int:
    if part.data is None or part.media_type.startswith("image/"):
        return FILE
    is_text = part.media_type.startswith("text/")
    return max(FILE, len(part.data) // (BYTES_PER_TOKEN if is_text else FILE_BYTES_PER_TOKEN))


def _data_tokens(data: Mapping[str, Any] | None) -> int:
    return text_tokens(str(data)) if data else 0


def _tool_tokens(tool: ToolSpec) -> int:
    return MESSAGE + text_tokens(tool.name) + text_tokens(tool.description) + text_tokens(str(dict(tool.schema)))
