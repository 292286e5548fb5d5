"""Needle 3: chooses tools and fills their arguments. It writes no text and sees only the last thing said."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import attrs

from agentx import (
    BadResponseError,
    Emit,
    ModelRequest,
    ModelResponse,
    ModelSettings,
    ToolCall,
    ToolSpec,
    Usage,
)

from ._choosing import MIN_CONFIDENCE, Asked, Call, Refusal, prepare, read_calls
from ._conversation import last_user_text, results_of
from ._engine import Engine
from ._llama import new_id, offered
from ._proposing import propose, written
from ._results import show
from ._settings import NEEDLE_SAMPLING, check, is_forced, threads
from ._timing import within
from ._weights import NEEDLE

MAX_CALL_TOKENS = 96
"""Enough for a short chain of thought and a call; a longer one has gone astray."""


@attrs.frozen
class Choice:
    """What Needle chose. No calls: `reason` says why, and `is_cut` whether it ran out of tokens."""

    calls: tuple[ToolCall, ...] = ()
    reason: str = ""
    notes: tuple[str, ...] = ()
    is_cut: bool = False
    usage: Usage = attrs.field(factory=lambda: Usage(requests=0))


@attrs.define(eq=False)
class Chooser:
    """Needle in its process, asked for one choice at a time."""

    _engine: Engine = attrs.field(factory=lambda: Engine("needle", "needle_rs", _options, interruptible=False))

    async def choose(self, query: str, tools: tuple[ToolSpec, ...], settings: ModelSettings) -> Choice:
        """Return the calls for `query`, checked and with enough confidence, or why there are none.

        What the prompt suggests by itself is judged first, which is faster and more often right than what Needle makes.
        """
        asked = prepare(query, tools, forced=is_forced(settings))
        if not asked.tools:
            return Choice(reason="the prompt has no values for any of the tools", notes=asked.notes)
        choice = await self._suggested(asked)
        if not choice.calls:
            own = await self._own(asked, settings)
            choice = attrs.evolve(own, usage=own.usage + choice.usage)
        calls = choice.calls[:1] if settings.parallel_tool_calls is False else choice.calls
        return attrs.evolve(choice, calls=calls, usage=attrs.evolve(choice.usage, requests=1))

    async def _suggested(self, asked: Asked) -> Choice:
        """Return the suggested call that Needle is surest of, if it is sure enough."""
        choice = Choice(notes=asked.notes)
        scored = []
        for call in propose(asked):
            text = written([call])
            scored.append((await self._confidence(asked, text), call))
            choice = attrs.evolve(choice, usage=choice.usage + _reading(asked, text))
        if not scored:
            return choice
        confidence, call = max(scored, key=lambda pair: pair[0])
        return _believed(choice, (call,), confidence)

    async def _own(self, asked: Asked, settings: ModelSettings) -> Choice:
        """Return the calls Needle makes by itself, under its grammar."""
        found = await self._engine.ask(_question(asked, settings))
        usage = Usage(input_tokens=found["input_tokens"], output_tokens=found["output_tokens"])
        choice = Choice(notes=asked.notes, usage=usage, is_cut=found["cut"])
        try:
            calls = () if found["cut"] else read_calls(found["calls"], asked)
        except Refusal as error:
            return attrs.evolve(choice, reason=str(error))
        if not calls:
            return attrs.evolve(choice, reason="Needle chose no tool")
        confidence = await self._confidence(asked, found["text"])
        return _believed(attrs.evolve(choice, usage=usage + _reading(asked, found["text"])), calls, confidence)

    async def aclose(self) -> None:
        await self._engine.aclose()

    async def _confidence(self, asked: Asked, text: str) -> float:
        question = {"op": "confidence", "query": asked.query, "tools": asked.tools_json, "text": text}
        answer = (await self._engine.ask(question))["confidence"]
        return 0.0 if answer is None else float(answer)


def _reading(asked: Asked, text: str) -> Usage:
    """Return about what judging costs: the prompt is read again, and the runtime does not say how long it was."""
    return Usage(input_tokens=(len(asked.query) + len(asked.tools_json) + len(text)) // 4, requests=0, estimated=True)


def _believed(choice: Choice, calls: tuple[Call, ...], confidence: float) -> Choice:
    if confidence < MIN_CONFIDENCE:
        return attrs.evolve(choice, reason=f"Needle's confidence is {confidence:.2f}, under {MIN_CONFIDENCE}")
    return attrs.evolve(choice, calls=tuple([_tool_call(call) for call in calls]))


def forced_but_none(name: str, request: ModelRequest, reason: str) -> BadResponseError:
    return BadResponseError(
        f"{name} made no tool call although tool_choice is {request.settings.tool_choice!r}: {reason}"
    )


def _question(asked: Asked, settings: ModelSettings) -> dict[str, Any]:
    sampling: dict[str, Any] = {"max_new_tokens": settings.max_tokens or MAX_CALL_TOKENS}
    if settings.temperature is not None:
        sampling |= {"temperature": settings.temperature, "seed": settings.seed or 0}
    return {"op": "generate", "query": asked.query, "tools": asked.tools_json, "sampling": sampling}


def _tool_call(call: Call) -> ToolCall:
    return ToolCall(new_id(), call.name, json.dumps(dict(call.arguments), ensure_ascii=False))


def _options() -> Mapping[str, Any]:
    return {"path": str(NEEDLE.require()), "sha256": NEEDLE.sha256, "threads": threads()}


@attrs.define(eq=False)
class NeedleModel:
    """Needle alone: a call or nothing. After a tool ran, the answer is the tool's result as it is."""

    name: str = "local/needle"
    _chooser: Chooser = attrs.field(factory=Chooser)

    async def respond(self, request: ModelRequest, emit: Emit) -> ModelResponse:
        check(request, model=self.name, can=NEEDLE_SAMPLING)
        if results := results_of(request):
            return await show(results, emit, self.name)
        if not request.tools or request.settings.tool_choice == "none":
            return ModelResponse((), "end_turn", usage=Usage(), model=self.name)
        with within(request.settings.timeout, self.name):
            choice = await self._chooser.choose(last_user_text(request), offered(request), request.settings)
        if choice.calls:
            return ModelResponse(choice.calls, "tool_use", usage=choice.usage, model=self.name)
        if is_forced(request.settings):
            raise forced_but_none(self.name, request, choice.reason)
        return ModelResponse((), "max_tokens" if choice.is_cut else "end_turn", usage=choice.usage, model=self.name)

    async def aclose(self) -> None:
        await self._chooser.aclose()
