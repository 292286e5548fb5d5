"""An answer of Chat Completions, streamed or in one piece."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

import msgspec

from agentx import BadResponseError, ModelError, ModelResponse, StreamCutError
from agentx.providers import Exchange, Reading

from ._chat_request import REFUSAL
from ._errors import failure_of
from ._wire import Call, ChatUsage, Chunk, Delta

STOP_REASONS: Mapping[str, str] = {
    "stop": "end_turn",
    "eos": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "content_filter",
}
THOUGHT = "thought"
"""All reasoning of a chat answer is one part."""
CHUNK = msgspec.json.Decoder(Chunk)


async def read_stream(exchange: Exchange, reading: Reading) -> ModelResponse:
    """Read the chunks of a stream.

    `[DONE]` ends it, and so does the end of the body; either way the choice must have said why it finished. An error
    may come in place of a chunk, under status 200.

    Raises:
        StreamCutError: it ended before that.
        ModelError: the server reports an error in it.
    """
    answer = ChatAnswer(reading)
    while (events := await exchange.events()) is not None:
        for name, data in events:
            if data == b"[DONE]":
                return await answer.finish()
            chunk = reading.decode(data, CHUNK)
            if name == "error" or chunk.error or chunk.object == "error":
                raise reading.error(failure_of(msgspec.json.decode(data)))
            await answer.take(chunk)
    return await answer.finish()


async def read_body(body: bytes, reading: Reading) -> ModelResponse:
    """Read an answer in one piece."""
    chunk = reading.decode(body, CHUNK)
    if chunk.error or chunk.object == "error":
        raise reading.error(failure_of(msgspec.json.decode(body)))
    if not chunk.choices:
        raise BadResponseError(f"{reading.model} answered without a choice")
    answer = ChatAnswer(reading)
    await answer.take(chunk)
    return await answer.finish()


class ChatAnswer:
    """Makes one response of chunks; a whole answer is one chunk with `message` in place of `delta`."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._out = reading.out
        self._finish: str | None = None
        self._id: str | None = None
        self._model: str | None = None
        self._cost: Decimal | None = None
        self._details: list[dict[str, Any]] = []
        self._refused = False

    async def take(self, chunk: Chunk) -> None:
        choices = chunk.choices
        if choices and not choices[0].index:
            choice = choices[0]
            delta = choice.delta or choice.message
            if delta is not None:
                if type(delta.content) is str:
                    if delta.content:
                        await self._out.text(delta.content)
                elif delta.content:
                    await self._pieces(delta.content)
                await self._rest(delta)
            if choice.finish_reason:
                self._finish = choice.finish_reason
            if choice.error or self._finish == "error":
                raise self._error(choice.error)
        if chunk.usage is not None:
            await self._usage(chunk.usage)
        if chunk.id is not None:
            self._id = chunk.id
            self._model = chunk.model or self._model

    async def _rest(self, delta: Delta) -> None:
        """Take what most deltas do not have."""
        thought = delta.reasoning_content or delta.reasoning
        if thought and isinstance(thought, str):
            await self._out.thinking(thought, THOUGHT)
        if delta.reasoning_details:
            await self._reasoning_details(delta.reasoning_details, told=bool(thought))
        if delta.refusal:
            self._refused = True
            await self._out.text(delta.refusal, REFUSAL)
            await self._out.attach("text", {"type": REFUSAL}, REFUSAL)
        if delta.tool_calls:
            for call in delta.tool_calls:
                await self._call(call)
        if delta.function_call is not None:  # what there was before tool calls
            await self._call(Call(0, None, delta.function_call))

    async def _pieces(self, content: Any) -> None:
        """Take content that is a list of typed pieces, as some servers write it."""
        for piece in content:
            if not isinstance(piece, dict):
                continue
            if isinstance(piece.get("text"), str):
                await self._out.text(piece["text"])
            thoughts = piece.get("thinking")
            for thought in thoughts if isinstance(thoughts, list) else [thoughts]:
                text = thought.get("text") if isinstance(thought, dict) else thought
                await self._out.thinking(text if isinstance(text, str) else "", THOUGHT)

    async def _reasoning_details(self, details: list[dict[str, Any]], *, told: bool) -> None:
        """Keep OpenRouter's own form of reasoning, to give back as it came; show it where nothing else does."""
        for detail in details:
            if self._details and _continues(self._details[-1], detail):
                self._details[-1] = _joined(self._details[-1], detail)
            else:
                self._details.append(detail)
            text = detail.get("text") or detail.get("summary")
            if not told and isinstance(text, str):
                await self._out.thinking(text, THOUGHT)
        await self._out.attach("thinking", {"reasoning_details": list(self._details)}, THOUGHT)

    async def _call(self, call: Call) -> None:
        function = call.function
        name, arguments = (function.name, function.arguments) if function is not None else (None, None)
        index = call.index if isinstance(call.index, int | str) else None
        await self._out.call(index, id=call.id, name=name, arguments=arguments)

    async def _usage(self, usage: ChatUsage) -> None:
        prompt, output = usage.prompt_tokens_details, usage.completion_tokens_details
        read = prompt.cached_tokens if prompt is not None else None
        await self._out.count(
            input=usage.prompt_tokens,
            output=usage.completion_tokens,
            cache_read=usage.prompt_cache_hit_tokens if read is None else read,
            cache_write=prompt.cache_write_tokens if prompt is not None else None,
            reasoning=output.reasoning_tokens if output is not None else None,
        )
        if usage.cost is not None:
            self._cost = _money(usage.cost)

    def _error(self, value: Any) -> ModelError:
        return self._reading.error(failure_of(value or {"message": "the provider stopped with an error"}))

    async def finish(self) -> ModelResponse:
        finish = self._finish
        if finish is None:
            raise StreamCutError(
                f"{self._reading.model}: the answer ended without saying why (no finish_reason)",
                usage=self._out.totals.usage(estimated=True),
            )
        reason = STOP_REASONS.get(finish, "unknown")
        if reason == "end_turn" and self._out.has_calls:
            reason = "tool_use"
        elif reason == "end_turn" and self._refused:
            reason = "refusal"
        model = self._model or self._reading.model
        return await self._out.finish(reason, model=model, id=self._id, raw_stop_reason=finish, cost=self._cost)


def _continues(last: dict[str, Any], detail: dict[str, Any]) -> bool:
    """Whether a piece of OpenRouter's `reasoning_details` goes on with the last one."""
    same = all(last.get(key) == detail.get(key) for key in ("type", "index"))
    return same and detail.get("id") in (None, last.get("id"))


def _joined(last: dict[str, Any], detail: dict[str, Any]) -> dict[str, Any]:
    joined = {**last, **{key: value for key, value in detail.items() if value is not None}}
    for key in ("text", "summary", "data"):
        if isinstance(last.get(key), str) and isinstance(detail.get(key), str):
            joined[key] = last[key] + detail[key]
    return joined


def _money(value: Any) -> Decimal | None:
    try:
        money = Decimal(str(value))
    except InvalidOperation:
        return None
    return money if money.is_finite() else None
