"""SmolLM2-135M-Instruct: writes text, streamed, and says what it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from agentx import ContextWindowError, Emit, ModelRequest, ModelResponse, ModelSettings, TextDelta, TextPart, Usage

from ._conversation import LIMITS, Chat, chat_of, fitted, has_note, note, results_of
from ._engine import Engine
from ._grammar import choose, instructions
from ._llama import Answer, complete, offered, sampling
from ._results import show
from ._settings import SAMPLING, check, threads
from ._timing import within
from ._weights import SMOLLM2

NOTHING_USED = Usage(requests=0)
CONTEXT = 2048
MAX_INPUT = 1024
"""Tokens. Reading takes about 15 seconds for that many on one core; the rest of the context is for the answer."""
DEFAULTS: Mapping[str, Any] = {"max_tokens": 256, "temperature": 0.2, "top_p": 0.9, "repeat_penalty": 1.1}
"""Temperature and top_p are those of the model's own page."""


@attrs.define(eq=False)
class Writer:
    """SmolLM2 in its process. Long input is cut, with a note; the first answer of a conversation says what it is."""

    _engine: Engine = attrs.field(factory=lambda: Engine("llama", "xllamacpp", _options))

    async def write(
        self,
        request: ModelRequest,
        emit: Emit,
        *,
        model: str,
        notes: tuple[str, ...] = (),
        before: Usage = NOTHING_USED,
    ) -> ModelResponse:
        """Write the answer; `before` is what choosing a tool has used already."""
        chat = chat_of(request, request.instructions or "You are a helpful assistant. Answer briefly.")
        answer, is_cut = await self._answer(chat, request.settings, emit)
        said = list(notes)
        if is_cut:
            said.append(f"the conversation is too long for it; about {MAX_INPUT} tokens of it were read")
        if answer.text and not has_note(request.messages, LIMITS):
            said.append(LIMITS)
        parts = answer.parts
        if said:
            text = note(*said)
            await emit(TextDelta(text, 1 if answer.text else 0))
            parts = (*parts, TextPart(text))
        usage = attrs.evolve(answer.usage + before, requests=1)
        return ModelResponse(parts, answer.stop_reason, usage=usage, model=model, raw_stop_reason=answer.finish or None)

    async def choose(self, request: ModelRequest) -> Answer:
        """Choose a tool under a grammar; a model this small is wrong about half the time."""
        chat = chat_of(request, instructions(offered(request)))
        return await choose(self._engine, request, fitted(chat, MAX_INPUT).chat)

    async def aclose(self) -> None:
        await self._engine.aclose()

    async def _answer(self, chat: Chat, settings: ModelSettings, emit: Emit) -> tuple[Answer, bool]:
        """Answer with what fits; text that needs more tokens than guessed is cut further."""
        room = MAX_INPUT
        while True:
            shown = fitted(chat, room)
            body = {"messages": shown.chat, **DEFAULTS, **sampling(settings)}
            try:
                return await complete(self._engine, body, stop=settings.stop, emit=emit), shown.is_cut
            except ContextWindowError:
                room //= 3
                if room < 32:
                    raise


def _options() -> Mapping[str, Any]:
    return {"path": str(SMOLLM2.require()), "sha256": SMOLLM2.sha256, "threads": threads(), "context": CONTEXT}


@attrs.define(eq=False)
class SmolLM2Model:
    """SmolLM2 alone. It chooses tools badly; `local/auto` has Needle for that."""

    name: str = "local/smollm2"
    _writer: Writer = attrs.field(factory=Writer)

    async def respond(self, request: ModelRequest, emit: Emit) -> ModelResponse:
        check(request, model=self.name, can=SAMPLING)
        if results := results_of(request):
            return await show(results, emit, self.name)
        with within(request.settings.timeout, self.name):
            if not request.tools or request.settings.tool_choice == "none":
                return await self._writer.write(request, emit, model=self.name)
            chosen = await self._writer.choose(request)
            if chosen.calls or chosen.finish == "length":
                return ModelResponse(chosen.parts, chosen.stop_reason, usage=chosen.usage, model=self.name)
            return await self._writer.write(request, emit, model=self.name, before=chosen.usage)

    async def aclose(self) -> None:
        await self._writer.aclose()
