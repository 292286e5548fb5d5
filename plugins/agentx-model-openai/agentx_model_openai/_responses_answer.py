"""An answer of the Responses API, streamed or in one piece."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Mapping
from typing import Any

import msgspec

from agentx import BadResponseError, ModelResponse, OpaquePart, StreamCutError
from agentx.providers import Exchange, Reading

from ._errors import failure_of
from ._wire import Content, Event, Item, Response, ResponsesUsage

INCOMPLETE: Mapping[str, str] = {
    "max_output_tokens": "max_tokens",
    "max_tokens": "max_tokens",
    "content_filter": "content_filter",
}
CALL_KEYS = frozenset({"type", "id", "call_id", "name", "arguments", "status"})
EVENT = msgspec.json.Decoder(Event)
RESPONSE = msgspec.json.Decoder(Response)


async def read_stream(exchange: Exchange, reading: Reading) -> ModelResponse:
    """Read the events of a stream up to `response.completed` or `response.incomplete`.

    Raises:
        StreamCutError: it ended before.
        ModelError: the server reports an error in it.
    """
    answer = ResponsesAnswer(reading)
    while (events := await exchange.events()) is not None:
        for name, data in events:
            if data == b"[DONE]":
                continue
            event = reading.decode(data, EVENT)
            done = await answer.take(event.type or name, event)
            if done is not None:
                return done
    raise StreamCutError(
        f"{reading.model}: the stream ended without response.completed",
        usage=reading.out.totals.usage(estimated=True),
    )


async def read_body(body: bytes, reading: Reading) -> ModelResponse:
    """Read an answer in one piece."""
    response = reading.decode(body, RESPONSE)
    if response.status not in ("completed", "incomplete", "failed"):
        if response.error:
            raise reading.error(failure_of(response.error))
        raise BadResponseError(f"{reading.model} answered with status {response.status!r}, which is no end")
    return await ResponsesAnswer(reading).end(response)


class ResponsesAnswer:
    """Makes one response of events. An item is known by its place, or by its id where a server gives no place."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._out = reading.out
        self._shown: dict[Hashable, int] = {}
        """By part: how many characters were shown."""
        self._sections: dict[Hashable, Hashable] = {}
        """By item: the section of its reasoning that was shown last."""
        self._done: set[Hashable] = set()
        self._ids: set[Hashable] = set()
        self._refused = False
        self._id: str | None = None
        self._take: Mapping[str, Callable[[Event], Awaitable[None]]] = {
            "response.output_text.delta": self._text,
            "response.function_call_arguments.delta": self._arguments,
            "response.reasoning_summary_text.delta": self._thought,
            "response.reasoning_text.delta": self._thought,
            "response.refusal.delta": self._refusal,
            "response.output_item.added": self._added,
            "response.output_item.done": self._item_done,
            "response.created": self._created,
        }

    async def take(self, kind: str, event: Event) -> ModelResponse | None:
        """Take one event; returns the response if it was the last."""
        take = self._take.get(kind)
        if take is not None:
            await take(event)
        elif kind in ("response.completed", "response.incomplete", "response.failed"):
            return await self.end(event.response or Response(status=kind.removeprefix("response.")))
        elif kind == "error" or event.error:
            said = event.error or {"code": event.code, "message": event.message}
            raise self._reading.error(failure_of(said))
        return None

    async def end(self, response: Response) -> ModelResponse:
        """Finish with the response as a whole; items that no event brought are taken from it."""
        if response.usage is not None:
            await self._usage(response.usage)
        if response.status == "failed" or (response.error and response.status != "incomplete"):
            raise self._reading.error(failure_of(response.error or {}))
        for index, raw in enumerate(response.output or ()):
            if index >= len(self._done):
                is_known_by_id = self._reading.convert(raw, Item).id in self._ids
                await self._item_done(Event(item=raw, output_index=None if is_known_by_id else index))
        reason, raw_reason = self._reason(response)
        model, answer_id = response.model or self._reading.model, response.id or self._id
        return await self._out.finish(reason, model=model, id=answer_id, raw_stop_reason=raw_reason)

    def _reason(self, response: Response) -> tuple[str, str]:
        if response.status == "incomplete":
            details = response.incomplete_details
            raw = (details.reason if details is not None else None) or "incomplete"
            return INCOMPLETE.get(raw, "unknown"), raw
        if self._out.has_calls:
            return "tool_use", "completed"
        return ("refusal" if self._refused else "end_turn"), "completed"

    def _key(self, event: Event, item_id: Any = None) -> Hashable:
        if event.output_index is not None:
            return event.output_index
        key: Hashable = event.item_id or item_id
        self._ids.add(key)
        return key

    async def _created(self, event: Event) -> None:
        self._id = event.response.id if event.response is not None else None

    async def _added(self, event: Event) -> None:
        item = self._reading.convert(event.item or {}, Item)
        key = self._key(event, item.id)
        if item.type == "function_call":
            await self._call(key, item, item.arguments or "")
        elif item.type == "reasoning":
            await self._out.attach("thinking", event.item, key)

    async def _text(self, event: Event) -> None:
        await self._show((self._key(event), event.content_index or 0), event.delta)

    async def _refusal(self, event: Event) -> None:
        self._refused = True
        await self._text(event)

    async def _show(self, part: Hashable, text: Any) -> None:
        if isinstance(text, str):
            self._shown[part] = self._shown.get(part, 0) + len(text)
            await self._out.text(text, part)

    async def _thought(self, event: Event) -> None:
        section = (event.summary_index, event.content_index)
        await self._show_thought(self._key(event), section, event.delta)

    async def _show_thought(self, key: Hashable, section: Hashable, text: Any) -> None:
        """Show a piece of reasoning; sections are set apart by an empty line."""
        last = self._sections.get(key)
        self._sections[key] = section
        if isinstance(text, str):
            await self._out.thinking(text if last in (None, section) else f"\n\n{text}", key)

    async def _arguments(self, event: Event) -> None:
        await self._call(self._key(event), Item(), event.delta)

    async def _call(self, key: Hashable, item: Item, arguments: Any) -> None:
        self._shown[key] = self._shown.get(key, 0) + (len(arguments) if isinstance(arguments, str) else 0)
        await self._out.call(key, id=item.call_id or item.id, name=item.name, arguments=arguments)

    async def _item_done(self, event: Event) -> None:
        """Take an item as it is at its end: what has not been shown of it, and what is kept as it came."""
        raw = event.item or {}
        item = self._reading.convert(raw, Item)
        key = self._key(event, item.id)
        if key in self._done:
            return
        self._done.add(key)
        if item.type == "message":
            await self._message_done(key, item)
        elif item.type == "function_call":
            await self._call_done(key, item, raw)
        elif item.type == "reasoning":
            await self._reasoning_done(key, item, raw)
        else:
            self._out.add(OpaquePart(self._out.provider, raw))

    async def _message_done(self, key: Hashable, item: Item) -> None:
        for index, content in enumerate(item.content or ()):
            part, text = (key, index), content.text or content.refusal or ""
            self._refused = self._refused or content.type == "refusal"
            await self._show(part, text[self._shown.get(part, 0) :])
            data = _attached(item, content)
            if data and text:
                await self._out.attach("text", data, part)

    async def _call_done(self, key: Hashable, item: Item, raw: Mapping[str, Any]) -> None:
        arguments = item.arguments
        rest = arguments[self._shown.get(key, 0) :] if isinstance(arguments, str) else arguments
        await self._call(key, item, rest)
        more = {name: value for name, value in raw.items() if name not in CALL_KEYS and value is not None}
        if more:
            await self._out.attach("call", more, key)

    async def _reasoning_done(self, key: Hashable, item: Item, raw: Mapping[str, Any]) -> None:
        if key not in self._sections:
            for index, section in enumerate([*(item.summary or ()), *(item.content or ())]):
                await self._show_thought(key, index, section.text)
        await self._out.attach("thinking", raw, key)

    async def _usage(self, usage: ResponsesUsage) -> None:
        given, output = usage.input_tokens_details, usage.output_tokens_details
        await self._out.count(
            input=usage.input_tokens,
            output=usage.output_tokens,
            cache_read=given.cached_tokens if given is not None else None,
            cache_write=given.cache_write_tokens if given is not None else None,
            reasoning=output.reasoning_tokens if output is not None else None,
        )


def _attached(item: Item, content: Content) -> dict[str, Any]:
    """Return what a message has beside its text and is wanted back, or belongs to the text (citations)."""
    found = {"phase": item.phase, "annotations": content.annotations}
    return {name: value for name, value in found.items() if value}
