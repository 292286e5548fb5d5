"""What comes over the wire, as far as it is read. msgspec checks it while it decodes, and drops the rest.

Structs and not attrs classes, because one is made for each event. Parts stay raw: what is not read of them is kept.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct


class Usage(Struct, gc=False, rename="camel"):
    prompt_token_count: Any = None
    cached_content_token_count: Any = None
    tool_use_prompt_token_count: Any = None
    candidates_token_count: Any = None
    thoughts_token_count: Any = None


class Content(Struct, gc=False):
    parts: list[dict[str, Any]] | None = None


class Candidate(Struct, gc=False, rename="camel"):
    content: Content | None = None
    finish_reason: str | None = None
    index: int | None = None


class PromptFeedback(Struct, gc=False, rename="camel"):
    block_reason: str | None = None


class Event(Struct, gc=False, rename="camel"):
    """An answer, or what one event of a stream says of it."""

    candidates: list[Candidate] | None = None
    prompt_feedback: PromptFeedback | None = None
    usage_metadata: Usage | None = None
    model_version: str | None = None
    response_id: str | None = None
    error: Any = None


class FunctionCall(Struct, gc=False, rename="camel"):
    id: str | None = None
    name: str | None = None
    args: dict[str, Any] | None = None
    partial_args: Any = None


EVENT = msgspec.json.Decoder(Event)
BODY: msgspec.json.Decoder[Event | list[Event]] = msgspec.json.Decoder(Event | list[Event])
