"""What comes over the wire, as far as it is read. msgspec checks it while it decodes, and drops the rest.

Structs and not attrs classes, because one is made for each delta; what servers disagree about is `Any`.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct


class Function(Struct, gc=False):
    name: Any = None
    arguments: Any = None


class Call(Struct, gc=False):
    index: Any = None
    id: Any = None
    function: Function | None = None


class Delta(Struct, gc=False):
    """A piece of a chat answer, or all of it."""

    content: str | list[Any] | None = None
    tool_calls: list[Call] | None = None
    reasoning_content: str | None = None
    reasoning: Any = None
    reasoning_details: list[dict[str, Any]] | None = None
    refusal: str | None = None
    function_call: Function | None = None


class Choice(Struct, gc=False):
    index: int | None = None
    delta: Delta | None = None
    message: Delta | None = None
    finish_reason: str | None = None
    error: Any = None


class Details(Struct, gc=False):
    cached_tokens: Any = None
    cache_write_tokens: Any = None
    reasoning_tokens: Any = None


class ChatUsage(Struct, gc=False):
    prompt_tokens: Any = None
    completion_tokens: Any = None
    prompt_tokens_details: Details | None = None
    completion_tokens_details: Details | None = None
    prompt_cache_hit_tokens: Any = None
    cost: Any = None


class Chunk(Struct, gc=False):
    choices: list[Choice] | None = None
    id: str | None = None
    model: str | None = None
    usage: ChatUsage | None = None
    object: str | None = None
    error: Any = None


class ResponsesUsage(Struct, gc=False):
    input_tokens: Any = None
    output_tokens: Any = None
    input_tokens_details: Details | None = None
    output_tokens_details: Details | None = None


class IncompleteDetails(Struct, gc=False):
    reason: str | None = None


class Response(Struct, gc=False):
    id: str | None = None
    status: str | None = None
    model: str | None = None
    output: list[dict[str, Any]] | None = None
    usage: ResponsesUsage | None = None
    error: Any = None
    incomplete_details: IncompleteDetails | None = None


class Event(Struct, gc=False):
    """An event of a Responses stream, whichever it is."""

    type: str = ""
    delta: Any = None
    item_id: str | None = None
    output_index: int | None = None
    content_index: int | None = None
    summary_index: int | None = None
    item: dict[str, Any] | None = None
    response: Response | None = None
    error: Any = None
    code: Any = None
    message: Any = None


class Content(Struct, gc=False):
    type: str = ""
    text: str | None = None
    refusal: str | None = None
    annotations: list[Any] | None = None


class Item(Struct, gc=False):
    """What is read of an item; the item itself is kept as it came."""

    type: str = ""
    id: str | None = None
    call_id: Any = None
    name: Any = None
    arguments: Any = None
    content: list[Content] | None = None
    summary: list[Content] | None = None
    phase: str | None = None
