"""An answer of the Messages API, streamed or in one piece."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import msgspec

from agentx import AdaptedDelta, BadResponseError, Emit, ModelError, ModelResponse, OpaquePart, StreamCutError
from agentx.providers import Exchange, Reading

from ._conversation import CONTAINER
from ._errors import failure_of, said_in
from ._wire import ANYTHING, EVENT, MESSAGE, Event, Message, Usage

STOP_REASONS: Mapping[str, str] = {
    "end_turn": "end_turn",
    "tool_use": "tool_use",
    "max_tokens": "max_tokens",
    "stop_sequence": "stop_sequence",
    "pause_turn": "pause_turn",
    "compaction": "pause_turn",
    "refusal": "refusal",
    "model_context_window_exceeded": "context_window",
}
READ: Mapping[str, frozenset[str]] = {
    "text": frozenset({"type", "text", "citations"}),
    "thinking": frozenset({"type", "thinking", "signature"}),
    "tool_use": frozenset({"type", "id", "name", "input"}),
}
"""What is read of a block, by its kind; the rest of it is attached to the part and goes back as it came."""


async def read_stream(exchange: Exchange, reading: Reading, emit: Emit) -> ModelResponse:
    """Read the events of a stream up to `message_stop`.

    Raises:
        StreamCutError: it ended before.
        ModelError: the server reports an error in it.
    """
    answer = Answer(reading, emit)
    while (events := await exchange.events()) is not None:
        for name, data in events:
            if name == "content_block_delta":  # nearly all of them
                await answer.piece(reading.decode(data, EVENT), data)
                continue
            done = await answer.take(name, data)
            if done is not None:
                return done
    raise StreamCutError(
        f"{reading.model}: the stream ended without message_stop", usage=reading.out.totals.usage(estimated=True)
    )


async def read_body(body: bytes, reading: Reading, emit: Emit) -> ModelResponse:
    """Read an answer in one piece."""
    message = reading.decode(body, MESSAGE)
    answer = Answer(reading, emit)
    if message.type == "error" or message.error:
        raise answer.error(body)
    if message.content is None:
        raise BadResponseError(f"{reading.model} answered with something that is no message")
    await answer.begin(message)
    for index, block in enumerate(message.content):
        await answer.start(index, block)
    return await answer.finish()


@attrs.define
class _Block:
    """A block that is not whole yet."""

    key: int
    kind: str
    raw: dict[str, Any]
    """As it came; an opaque part holds it, and sees what is added to it."""
    json: list[str] = attrs.field(factory=list)
    """Pieces of the input of a tool."""
    citations: list[Any] = attrs.field(factory=list)


class Answer:
    """Makes one response of events. Blocks may overlap, and their numbers may be missing or come again."""

    def __init__(self, reading: Reading, emit: Emit) -> None:
        self._reading = reading
        self._out = reading.out
        self._emit = emit
        self._open: dict[int | None, _Block] = {}
        self._last: _Block | None = None
        self._count = 0
        self._head = Message()
        self._stop_reason: str | None = None

    def error(self, data: bytes) -> ModelError:
        """Return the error that the server reports in an answer that began well."""
        reading, value = self._reading, said_in(data)
        request_id = value.get("request_id") if isinstance(value, dict) else None
        if isinstance(request_id, str) and "request-id" not in reading.headers:
            reading = attrs.evolve(reading, headers={**reading.headers, "request-id": request_id})
        return reading.error(failure_of(value))

    async def take(self, name: str, data: bytes) -> ModelResponse | None:
        """Take one event; returns the response if it was the last."""
        if data == b"[DONE]":
            return None
        if name == "error":
            raise self.error(data)
        event = self._reading.decode(data, EVENT)
        kind = event.type or name
        if kind == "content_block_delta":
            await self.piece(event, data)
        elif kind == "content_block_start":
            await self.start(event.index, event.content_block or {})
        elif kind == "content_block_stop":
            await self._stop(event.index)
        elif kind == "message_start":
            await self.begin(event.message or Message())
        elif kind == "message_delta":
            await self._message_delta(event)
        elif kind == "message_stop":
            return await self.finish()
        elif kind == "error" or event.error:
            raise self.error(data)
        return None

    async def begin(self, message: Message) -> None:
        self._head = message
        self._stop_reason = message.stop_reason
        await self._usage(message.usage)
        dropped = [
            f"reasoning of {self._out.provider} ({item.get('reason')})"
            for item in message.input_transformations or ()
            if item.get("type") == "thinking_dropped"
        ]
        if dropped:
            await self._emit(AdaptedDelta(tuple(dropped)))

    async def finish(self) -> ModelResponse:
        for block in list(self._open.values()):
            await self._close(block)
        head, raw = self._head, self._stop_reason
        if head.container is not None and head.container.get("id"):
            self._out.add(OpaquePart(self._out.provider, {"type": CONTAINER, "id": head.container["id"]}))
        return await self._out.finish(
            STOP_REASONS.get(raw or "", "unknown"),
            model=head.model or self._reading.model,
            id=head.id,
            raw_stop_reason=raw,
        )

    async def start(self, index: int | None, raw: dict[str, Any]) -> None:
        """Begin a block with what it has from the first."""
        if index in self._open:
            await self._stop(index)
        out, kind = self._out, str(raw.get("type") or "")
        block = self._opened(index, kind, raw)
        if kind == "text":
            await out.text(_text(raw, "text"), block.key)
            block.citations += raw.get("citations") or ()
        elif kind == "thinking":
            await out.thinking(_text(raw, "thinking"), block.key, signature=_text(raw, "signature"))
        elif kind == "redacted_thinking":
            await out.attach("thinking", raw, block.key)
        elif kind == "tool_use":
            await out.call(block.key, id=raw.get("id"), name=raw.get("name"))
        else:
            out.add(OpaquePart(out.provider, raw))

    def _opened(self, index: int | None, kind: str, raw: dict[str, Any]) -> _Block:
        block = self._last = self._open[index] = _Block(self._count, kind, raw)
        self._count += 1
        return block

    async def piece(self, event: Event, data: bytes) -> None:
        """Take a piece of a block."""
        delta, index = event.delta, event.index
        if delta is None:
            return
        kind = delta.type
        block = self._open.get(index) if index is not None else self._last
        if block is None:  # its beginning is missing
            missing = {"text_delta": "text", "input_json_delta": "tool_use"}.get(kind, "thinking")
            block = self._opened(index, missing, {})
        if kind == "text_delta":
            await self._out.text(delta.text or "", block.key)
        elif kind == "input_json_delta":
            block.json.append(delta.partial_json or "")
            if block.kind == "tool_use":
                await self._out.call(block.key, arguments=delta.partial_json)
        elif kind == "thinking_delta":
            await self._out.thinking(delta.thinking or "", block.key)
        elif kind == "signature_delta":
            await self._out.thinking("", block.key, signature=delta.signature)
        elif kind == "citations_delta":
            block.citations.append(delta.citation)
        else:
            _join(block.raw, self._reading.decode(data, ANYTHING).get("delta"))

    async def _stop(self, index: int | None) -> None:
        block = self._open.pop(index, None)
        if block is None and index is None and self._last is not None:
            block = next((one for one in self._open.values() if one is self._last), None)
            self._open = {key: one for key, one in self._open.items() if one is not block}
        if block is not None:
            await self._close(block)

    async def _close(self, block: _Block) -> None:
        """Attach what the block has beside what was read of it."""
        out, raw = self._out, block.raw
        more = {name: value for name, value in raw.items() if name not in READ.get(block.kind, ()) and value}
        if block.kind == "text":
            if block.citations:
                more["citations"] = block.citations
            if more:
                await out.attach("text", more, block.key)
        elif block.kind == "thinking":
            if more:
                await out.attach("thinking", more, block.key)
        elif block.kind == "tool_use":
            if not "".join(block.json) and raw.get("input"):
                await out.call(block.key, arguments=raw["input"])
            if more:
                await out.attach("call", more, block.key)
        elif block.json:
            raw["input"] = _object("".join(block.json))

    async def _message_delta(self, event: Event) -> None:
        if event.delta is not None:
            self._stop_reason = event.delta.stop_reason or self._stop_reason
            self._head.container = event.delta.container or self._head.container
        await self._usage(event.usage)

    async def _usage(self, usage: Usage | None) -> None:
        """Take running totals; a 0 where there was more says nothing."""
        if usage is None:
            return
        details, known = usage.output_tokens_details, self._out.totals
        await self._out.count(
            input=usage.input_tokens or (None if known.input else usage.input_tokens),
            output=usage.output_tokens,
            cache_read=usage.cache_read_input_tokens or None,
            cache_write=usage.cache_creation_input_tokens or None,
            reasoning=details.thinking_tokens if details is not None else None,
        )


def _text(raw: Mapping[str, Any], name: str) -> str:
    value = raw.get(name)
    return value if isinstance(value, str) else ""


def _object(text: str) -> dict[str, Any]:
    """Return the input of a server's tool; one that was cut is none."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _join(raw: dict[str, Any], delta: Any) -> None:
    """Add a delta of an unknown kind to its block: texts and lists go on, anything else is set."""
    for name, value in (delta if isinstance(delta, dict) else {}).items():
        old = raw.get(name)
        if name == "type":
            continue
        is_more = isinstance(old, str | list) and type(old) is type(value)
        raw[name] = old + value if is_more else value
