"""An answer of generateContent, streamed or in one piece; every event of a stream is an answer of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentx import BadResponseError, FilePart, ModelError, ModelResponse, OpaquePart, StreamCutError
from agentx.providers import Exchange, Reading

from ._errors import failure_of
from ._request import SIGNATURE
from ._wire import BODY, EVENT, Event, FunctionCall, Usage

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
    "MODEL_ARMOR": BLOCKED,
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
                await answer.take(reading.decode(data, EVENT))
    return await answer.finish()


async def read_body(body: bytes, reading: Reading) -> ModelResponse:
    """Read an answer in one piece, or a stream that came as a list."""
    value, answer = reading.decode(body, BODY), Answer(reading)
    for one in value if isinstance(value, list) else [value]:
        await answer.take(one)
    return await answer.finish()


class Answer:
    """Makes one response of answers that each say more of it."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._out = reading.out
        self._key = 0
        self._kind = ""
        self._ids: set[str] = set()
        self._reason: str | None = None
        self._is_blocked = False
        self._id: str | None = None
        self._model = ""

    def error(self, said: Any) -> ModelError:
        """Return the error that the server reports in an answer that began well."""
        return self._reading.error(failure_of(said))

    async def take(self, event: Event) -> None:
        """Take one event."""
        if event.error is not None:
            raise self.error(event.error)
        self._id = event.response_id or self._id
        self._model = event.model_version or self._model
        if event.usage_metadata is not None:
            await self._usage(event.usage_metadata)
        if event.prompt_feedback is not None and event.prompt_feedback.block_reason:
            self._reason, self._is_blocked = event.prompt_feedback.block_reason, True
            return
        for candidate in event.candidates or ():
            if candidate.index:  # another answer to the same question
                continue
            for part in (candidate.content and candidate.content.parts) or ():
                await self._part(part)
            self._reason = candidate.finish_reason or self._reason

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

    async def _part(self, part: dict[str, Any]) -> None:
        text = part.get("text")
        if text is not None:
            text = self._reading.convert(text, str)
            if len(part) == 1:  # nearly all of them
                await self._out.text(text, self._same("text", alone=False))
            else:
                await self._text(text, part)
        elif part.get("functionCall") is not None:
            await self._call(part)
        elif part.get("inlineData") is not None and not part.get("thought"):
            self._file(part)
        elif any(value is not None for value in part.values()):
            self._keep(part)

    async def _text(self, text: str, part: Mapping[str, Any]) -> None:
        """Take a piece of text or thinking; one that is signed is a part of its own, and goes back as it came."""
        more = {name: value for name, value in part.items() if name not in ("text", "thought")}
        if part.get("thought"):
            key = self._same("thinking", alone=bool(more))
            await self._out.thinking(text, key, signature=self._signature(more.pop(SIGNATURE, None)))
            if more:
                await self._out.attach("thinking", more, key)
        elif more and not text:
            self._keep({"text": "", **more})
        else:
            key = self._same("text", alone=bool(more))
            await self._out.text(text, key)
            if more:
                await self._out.attach("text", more, key)

    async def _call(self, part: Mapping[str, Any]) -> None:
        call = self._reading.convert(part["functionCall"], FunctionCall)
        if call.partial_args is not None:
            raise BadResponseError(
                f"{self._reading.model} streams arguments in pieces: leave out streamFunctionCallArguments",
                usage=self._out.totals.usage(estimated=True),
            )
        key = self._same("call", alone=True)
        id = call.id if call.id not in self._ids else None
        self._ids.update([id] if id else ())
        await self._out.call(key, id=id, name=call.name, arguments=call.args or {})
        more = {name: value for name, value in part.items() if name != "functionCall"}
        if more:
            await self._out.attach("call", more, key)

    def _file(self, part: Mapping[str, Any]) -> None:
        """Take a file; what it is signed with stands behind it."""
        file = self._reading.convert(part["inlineData"], dict[str, Any])
        data = self._reading.convert(file.get("data") or "", bytes)
        self._kind = ""
        self._out.add(FilePart(str(file.get("mimeType") or "application/octet-stream"), data=data))
        signature = self._signature(part.get(SIGNATURE))
        if signature:
            self._keep({SIGNATURE: signature})

    def _keep(self, part: dict[str, Any]) -> None:
        self._kind = ""
        self._out.add(OpaquePart(self._out.provider, part))

    def _signature(self, value: Any) -> str | None:
        return None if value is None else self._reading.convert(value, str)

    def _same(self, kind: str, *, alone: bool) -> int:
        """Return the key of the part that a piece belongs to: the last one, if it is of its kind and not closed."""
        if self._kind != kind or alone:
            self._key += 1
        self._kind = "" if alone else kind
        return self._key

    async def _usage(self, usage: Usage) -> None:
        prompt, tools = usage.prompt_token_count, usage.tool_use_prompt_token_count
        if isinstance(prompt, int) and isinstance(tools, int):
            prompt += tools
        await self._out.count(
            input=prompt,
            output=usage.candidates_token_count,
            cache_read=usage.cached_content_token_count,
            reasoning=usage.thoughts_token_count,
        )
