"""Two tiny models that each do what they can: Needle chooses tools, SmolLM2 writes when none is wanted."""

from __future__ import annotations

import attrs

from agentx import Emit, ModelRequest, ModelResponse, TextDelta, TextPart

from ._conversation import last_user_text, note, results_of
from ._llama import offered
from ._needle import Choice, Chooser, forced_but_none
from ._results import show
from ._settings import SAMPLING, check, is_forced
from ._smollm2 import Writer
from ._timing import within


@attrs.define(eq=False)
class AutoModel:
    """`local/auto`. Needle sees what was said last, SmolLM2 the conversation; a tool's result is shown as it is."""

    name: str = "local/auto"
    _chooser: Chooser = attrs.field(factory=Chooser)
    _writer: Writer = attrs.field(factory=Writer)

    async def respond(self, request: ModelRequest, emit: Emit) -> ModelResponse:
        check(request, model=self.name, can=SAMPLING)
        if results := results_of(request):
            return await show(results, emit, self.name)
        with within(request.settings.timeout, self.name):
            choice = await self._choose(request)
            if choice.calls:
                return await self._call(choice, emit)
            if is_forced(request.settings):
                raise forced_but_none(self.name, request, choice.reason)
            return await self._writer.write(request, emit, model=self.name, notes=choice.notes, before=choice.usage)

    async def aclose(self) -> None:
        await self._chooser.aclose()
        await self._writer.aclose()

    async def _choose(self, request: ModelRequest) -> Choice:
        if not request.tools or request.settings.tool_choice == "none":
            return Choice()
        # sampling is the writer's: a choice is made greedily and has its own limit
        settings = attrs.evolve(request.settings, max_tokens=None, temperature=None, seed=None)
        return await self._chooser.choose(last_user_text(request), offered(request), settings)

    async def _call(self, choice: Choice, emit: Emit) -> ModelResponse:
        if not choice.notes:
            return ModelResponse(choice.calls, "tool_use", usage=choice.usage, model=self.name)
        text = note(*choice.notes)
        await emit(TextDelta(text))
        return ModelResponse((TextPart(text), *choice.calls), "tool_use", usage=choice.usage, model=self.name)
