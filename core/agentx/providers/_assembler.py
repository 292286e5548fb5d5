"""One response from the pieces of a stream, so that its parts are what the deltas showed."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, Literal
from uuid import uuid4

import attrs

from agentx._codec import encode
from agentx._messages import (
    ModelResponse,
    Part,
    TextDelta,
    TextPart,
    ThinkingDelta,
    ThinkingPart,
    ToolArgsDelta,
    ToolCall,
    Usage,
    UsageDelta,
)
from agentx._models import Emit

Fields = Mapping[str, Any]


@attrs.define
class Totals:
    """What a provider reports a call has used so far. Each number is a running total; `None` was never reported.

    Args:
        input_has_cache: the provider's input tokens include those read from and written to a cache.
        output_has_reasoning: its output tokens include those of reasoning.
    """

    input_has_cache: bool = True
    output_has_reasoning: bool = True
    input: int | None = None
    output: int | None = None
    cache_read: int | None = None
    cache_write: int | None = None
    reasoning: int | None = None

    def update(self, **reported: Any) -> None:
        """Take new totals; what is no whole number says nothing."""
        for name, value in reported.items():
            if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
                setattr(self, name, value)

    def usage(self, *, estimated: bool = False) -> Usage | None:
        """Return the tokens in buckets that do not overlap; nothing if nothing was reported."""
        if self.input is None and self.output is None:
            return None
        read, write, reasoning = self.cache_read or 0, self.cache_write or 0, self.reasoning or 0
        fresh, output = self.input or 0, self.output or 0
        if self.input_has_cache:
            fresh = max(0, fresh - read - write)
        if not self.output_has_reasoning:
            output += reasoning
        return Usage(fresh, output, read, write, reasoning, estimated=estimated)


@attrs.define
class _Open:
    """A part that is not whole yet. `index` is its place among the parts of its kind."""

    kind: Literal["text", "thinking", "call"]
    index: int
    pieces: list[str] = attrs.field(factory=list)
    signature: str | None = None
    data: Any = None
    id: str = ""
    name: str = ""
    announced: bool = False


class Assembler:
    """Takes pieces in the order in which they come, shows them and makes the response of them.

    A piece belongs to the part that has its `key` (whatever a dialect numbers its blocks by), or without a key to the
    last part if that is of its kind. Parts stand in the response in the order of their first pieces, whichever way
    these overlap.

    Args:
        emit: gets the deltas.
        provider: owns what is signed, attached or opaque in the response.
    """

    def __init__(self, emit: Emit, *, provider: str = "", totals: Totals | None = None) -> None:
        self.totals = totals or Totals()
        self._emit = emit
        self.provider = provider
        self._parts: list[_Open | Part] = []
        self._by_key: dict[Hashable, _Open] = {}
        self._counts = {"text": 0, "thinking": 0, "call": 0}
        self._ids: set[str] = set()

    @property
    def is_empty(self) -> bool:
        return not self._parts

    @property
    def has_calls(self) -> bool:
        return self._counts["call"] > 0

    async def text(self, piece: str, key: Hashable = None) -> None:
        if piece:
            part = self._part("text", key)
            part.pieces.append(piece)
            await self._emit(TextDelta(piece, part.index))

    async def thinking(self, piece: str, key: Hashable = None, *, signature: str | None = None) -> None:
        """Take a piece of reasoning, or the signature of it; an empty part that is signed is a part."""
        part = self._part("thinking", key)
        if signature:
            part.signature = (part.signature or "") + signature
        if piece:
            part.pieces.append(piece)
            await self._emit(ThinkingDelta(piece, part.index))

    async def attach(self, kind: Literal["text", "thinking", "call"], data: Any, key: Hashable = None) -> None:
        """Keep what the provider attaches to a part; the last one counts."""
        self._part(kind, key).data = data

    def add(self, part: Part) -> None:
        """Take a part that is whole, such as an opaque item or a file; nothing is shown of it."""
        self._parts.append(part)

    async def call(
        self,
        key: Hashable = None,
        *,
        id: Any = None,
        name: Any = None,
        arguments: Any = None,
    ) -> None:
        """Take a piece of a tool call.

        Nothing and `""` as id or name mean "not repeated". A piece begins another call when its key is new; without a
        key, when it has an id that is new or, having none, a name; and under a known key when both id and name come
        and the id differs (servers that number every call 0).
        """
        part = self._call(key, id if isinstance(id, str) else "", name if isinstance(name, str) else "")
        text = arguments if isinstance(arguments, str) else "" if arguments is None else encode(arguments).decode()
        if text:
            part.pieces.append(text)
        if part.announced:
            if text:
                await self._emit(ToolArgsDelta(text, part.id))
        elif part.name:
            await self._announce(part)

    async def _announce(self, part: _Open) -> None:
        part.announced = True
        part.id = part.id or f"call_{uuid4().hex[:24]}"
        self._ids.add(part.id)
        await self._emit(ToolArgsDelta("".join(part.pieces), part.id, part.name))

    def _call(self, key: Hashable, id: str, name: str) -> _Open:
        found = self._by_key.get(("call", key)) if key is not None else self._unkeyed_call(id, name)
        if found is not None and id and name and found.id and found.id != id:
            found = next((part for part in self._calls() if part.id == id), None)
        if found is None:
            found = self._open("call", key)
        if not found.announced:
            found.id = found.id or id
        found.name = found.name or name
        return found

    def _unkeyed_call(self, id: str, name: str) -> _Open | None:
        calls = self._calls()
        if id:
            known = next((part for part in calls if part.id == id), None)
            waiting = calls[-1] if calls and not calls[-1].id else None
            return known or waiting
        return calls[-1] if calls and not name else None

    def _calls(self) -> list[_Open]:
        return [part for part in self._parts if isinstance(part, _Open) and part.kind == "call"]

    def _part(self, kind: Literal["text", "thinking", "call"], key: Hashable) -> _Open:
        if key is not None:
            return self._by_key.get((kind, key)) or self._open(kind, key)
        last = self._parts[-1] if self._parts else None
        return last if isinstance(last, _Open) and last.kind == kind else self._open(kind, None)

    def _open(self, kind: Literal["text", "thinking", "call"], key: Hashable) -> _Open:
        part = _Open(kind, self._counts[kind])
        self._counts[kind] += 1
        self._parts.append(part)
        if key is not None:
            self._by_key[kind, key] = part
        return part

    async def count(self, **reported: Any) -> None:
        """Take running totals (`input`, `output`, `cache_read`, `cache_write`, `reasoning`)."""
        self.totals.update(**reported)
        usage = self.totals.usage()
        if usage is not None:
            await self._emit(UsageDelta(usage))

    async def finish(self, stop_reason: str, **fields: Any) -> ModelResponse:
        """Return the response. `fields` are more of `ModelResponse`: `model`, `id`, `raw_stop_reason`, `cost`."""
        for part in self._calls():
            if not part.announced:
                await self._announce(part)
        parts = tuple([self._closed(part) if isinstance(part, _Open) else part for part in self._parts])
        return ModelResponse(parts, stop_reason, self.totals.usage(), **fields)

    def _closed(self, part: _Open) -> Part:
        text = "".join(part.pieces)
        if part.kind == "call":
            return ToolCall(part.id, part.name, text, part.data, self.provider if part.data else "")
        if part.kind == "thinking":
            return ThinkingPart(text, part.signature, part.data, self.provider)
        return TextPart(text, part.data, self.provider if part.data else "")
