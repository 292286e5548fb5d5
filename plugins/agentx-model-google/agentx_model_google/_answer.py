"""An answer of generateContent, streamed or in one piece; every event of a stream is an answer of its own."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from typing import Any

import msgspec

from agentx import BadResponseError, FilePart, ModelError, ModelResponse, OpaquePart, StreamCutError
from agentx.providers import Exchange, Reading

from ._errors import failure_of
from ._request import SIGNATURE

ANYTHING: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
BLOCKED = "content_filter"
STOP_REASONS: Mapping[str, str] = {
    "STOP": "end_turn",
    "FUNCTION_CALL": "end_turn",
    "MAX_TOKENS": "max_tokens",
    "SAFETY": BLOCKED,
    "RECITATION": BLOCKED,
    "BLOCKLIST": BLOCKED,
    "PROHIBITED_CONTENT": BLOCKED,
    "SPII": BLOCKED,
    "LANGUAGE": BLOCKED,
    "IMAGE_SAFETY": BLOCKED,
    "IMAGE_PROHIBITED_CONTENT": BLOCKED,
    "IMAGE_RECITATION": BLOCKED,
}
"""What is not here, such as MALFORMED_FUNCTION_CALL, is unknown, and keeps its name."""


async def read_stream(exchange: Exchange, reading: Reading) -> ModelResponse:
    """Read a stream to its end.

    Raises:
        StreamCutError: no event of it said why the model stopped.
        ModelError: the server reports an error in it.
    """
    answer = Answer(reading)
    while (events := await exchange.events()) is not None:
        for _, data in events:
            if data != b"[DONE]":
                await answer.take(reading.decode(data, ANYTHING))
    return await answer.finish()


async def read_body(body: bytes, reading: Reading) -> ModelResponse:
    """Read an answer in one piece, or a stream that came as a list."""
    value, answer = reading.decode(body, ANYTHING), Answer(reading)
    for one in value if isinstance(value, list) else [value]:
        await answer.take(one)
    return await answer.finish()


class Answer:
    """Makes one response of answers that each say more of it."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._out = reading.out
        self._keys = count()
        self._key: int | None = None
        self._kind = ""
        self._reason: str | None = None
        self._is_blocked = False
        self._id: str | None = None
        self._model = ""

    def error(self, value: Any) -> ModelError:
        """Return the error that the server reports in an answer that began well."""
        return self._reading.error(failure_of(value))

    async def take(self, value: Any) -> None:
        """Take one event."""
        if not isinstance(value, dict):
            raise BadResponseError(f"{self._reading.model} sent a {type(value).__name__} in the place of an answer")
        if "error" in value:
            raise self.error(value)
        self._id = value.get("responseId") or self._id
        self._model = value.get("modelVersion") or self._model
        await self._usage(value.get("usageMetadata"))
        block = (value.get("promptFeedback") or {}).get("blockReason")
        if block:
            self._reason, self._is_blocked = str(block), True
            return
        for candidate in (value.get("candidates") or ())[:1]:
            for part in (candidate.get("content") or {}).get("parts") or ():
                await self._part(part)
            self._reason = candidate.get("finishReason") or self._reason

    async def finish(self) -> ModelResponse:
        if self._reason is None:
            raise StreamCutError(
                f"{self._reading.model}: the answer ended without a finishReason",
                usage=self._out.totals.usage(estimated=True),
            )
        known = BLOCKED if self._is_blocked else STOP_REASONS.get(self._reason, "unknown")
        if known == "end_turn" and self._out.has_calls:
            known = "tool_use"
        return await self._out.finish(
            known, model=self._model or self._reading.model, id=self._id, raw_stop_reason=self._reason
        )

    async def _part(self, part: Mapping[str, Any]) -> None:
        signature = part.get(SIGNATURE)
        text = part.get("text")
        if isinstance(text, str) and part.get("thought"):
            await self._out.thinking(text, self._same("thinking", bool(signature)), signature=signature)
        elif isinstance(text, str):
            await self._text(text, part)
        elif isinstance(part.get("functionCall"), dict):
            await self._call(part["functionCall"], signature)
        elif isinstance(part.get("inlineData"), dict) and not signature:
            self._file(part["inlineData"])
        elif part:
            self._kind = ""
            self._out.add(OpaquePart(self._out.provider, dict(part)))

    async def _text(self, text: str, part: Mapping[str, Any]) -> None:
        """Take a piece of text; one that is signed is a part of its own, and goes back as it came."""
        more = {name: value for name, value in part.items() if name not in ("text", "thought")}
        if more and not text:
            self._kind = ""
            self._out.add(OpaquePart(self._out.provider, {"text": "", **more}))
            return
        key = self._same("text", bool(more))
        await self._out.text(text, key)
        if more and text:
            await self._out.attach("text", more, key)

    async def _call(self, call: Mapping[str, Any], signature: Any) -> None:
        key = self._same("call", True)
        await self._out.call(key, id=call.get("id"), name=call.get("name"), arguments=call.get("args") or {})
        if signature:
            await self._out.attach("call", {SIGNATURE: signature}, key)

    def _file(self, data: Mapping[str, Any]) -> None:
        self._kind = ""
        decoded = self._reading.convert(data.get("data") or "", bytes)
        self._out.add(FilePart(str(data.get("mimeType") or "application/octet-stream"), data=decoded))

    def _same(self, kind: str, alone: bool) -> int:
        """Return the key of the part that a piece belongs to: the last one, if it is of its kind and not closed."""
        if self._key is None or self._kind != kind or alone:
            self._key = next(self._keys)
        self._kind = "" if alone else kind
        return self._key

    async def _usage(self, usage: Any) -> None:
        if not isinstance(usage, dict):
            return
        prompt, tools = usage.get("promptTokenCount"), usage.get("toolUsePromptTokenCount")
        await self._out.count(
            input=prompt + (tools or 0) if isinstance(prompt, int) else None,
            output=usage.get("candidatesTokenCount"),
            cache_read=usage.get("cachedContentTokenCount"),
            reasoning=usage.get("thoughtsTokenCount"),
        )
