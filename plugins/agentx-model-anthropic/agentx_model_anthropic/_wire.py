"""What comes over the wire, as far as it is read. msgspec checks it while it decodes, and drops the rest.

Structs and not attrs classes, because one is made for each delta. Blocks stay raw until their kind is known: those that
are not read are kept as they came.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct


class Details(Struct, gc=False):
    thinking_tokens: Any = None


class Usage(Struct, gc=False):
    input_tokens: Any = None
    output_tokens: Any = None
    cache_read_input_tokens: Any = None
    cache_creation_input_tokens: Any = None
    output_tokens_details: Details | None = None


class Message(Struct, gc=False):
    """A whole answer, or the beginning of a streamed one."""

    type: str = ""
    id: str | None = None
    model: str | None = None
    content: list[dict[str, Any]] | None = None
    stop_reason: str | None = None
    usage: Usage | None = None
    container: dict[str, Any] | None = None
    input_transformations: list[dict[str, Any]] | None = None
    error: Any = None


class Delta(Struct, gc=False):
    """A piece of a block, or what the end of a message says."""

    type: str = ""
    text: str | None = None
    thinking: str | None = None
    partial_json: str | None = None
    signature: str | None = None
    citation: Any = None
    stop_reason: str | None = None
    container: dict[str, Any] | None = None


class Event(Struct, gc=False):
    """An event of a stream, whichever it is."""

    type: str = ""
    index: int | None = None
    delta: Delta | None = None
    content_block: dict[str, Any] | None = None
    message: Message | None = None
    usage: Usage | None = None
    error: Any = None


EVENT = msgspec.json.Decoder(Event)
MESSAGE = msgspec.json.Decoder(Message)
ANYTHING = msgspec.json.Decoder(dict[str, Any])
