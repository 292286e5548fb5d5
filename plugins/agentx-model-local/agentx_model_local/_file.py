"""Any GGUF file as a model: text streamed, tools by the model's own template or by a grammar."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from agentx import Emit, ModelRequest, ModelResponse, ToolSpec

from ._conversation import chat_of, tool_chat_of
from ._engine import Engine
from ._errors import WeightsMissingError
from ._gguf import Header, read_header
from ._grammar import choose, instructions
from ._llama import Answer, complete, offered, sampling
from ._settings import SAMPLING, check, context_limit, is_forced, threads
from ._timing import within


@attrs.define(eq=False)
class GgufModel:
    """A GGUF file on this machine. Its context is what the file says, up to `AGENTX_LOCAL_CONTEXT` tokens."""

    name: str
    path: Path
    _header: Header | None = None
    _engine: Engine = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._engine = Engine("llama", "xllamacpp", self._options)

    async def respond(self, request: ModelRequest, emit: Emit) -> ModelResponse:
        check(request, model=self.name, can=SAMPLING)
        with within(request.settings.timeout, self.name):
            return await self._respond(request, emit)

    async def aclose(self) -> None:
        await self._engine.aclose()

    async def _respond(self, request: ModelRequest, emit: Emit) -> ModelResponse:
        uses_tools = request.tools and request.settings.tool_choice != "none"
        if uses_tools and not is_forced(request.settings) and self._read_header().takes_tools:
            answer = await self._with_template(request, emit)
        elif uses_tools:
            answer = await self._with_grammar(request, emit)
        else:
            answer = await self._write(request, emit)
        return ModelResponse(
            answer.parts, answer.stop_reason, usage=answer.usage, model=self.name, raw_stop_reason=answer.finish or None
        )

    async def _write(self, request: ModelRequest, emit: Emit) -> Answer:
        body = {"messages": chat_of(request, request.instructions or "You are a helpful assistant.")}
        return await complete(self._engine, body | sampling(request.settings), stop=request.settings.stop, emit=emit)

    async def _with_template(self, request: ModelRequest, emit: Emit) -> Answer:
        settings = request.settings
        body = {
            "messages": tool_chat_of(request, request.instructions),
            "tools": [{"type": "function", "function": _function(tool)} for tool in request.tools],
            "tool_choice": "auto",
            "parallel_tool_calls": settings.parallel_tool_calls is not False,
        }
        answer = await complete(self._engine, body | sampling(settings), stop=settings.stop, emit=emit)
        if settings.parallel_tool_calls is False:
            answer.calls = answer.calls[:1]
        return answer

    async def _with_grammar(self, request: ModelRequest, emit: Emit) -> Answer:
        """Choose under a grammar (a call, or none), then write if it was none.

        A demanded call is made here too: llama.cpp's own `required` does not hold a model to it.
        """
        chosen = await choose(self._engine, request, chat_of(request, instructions(offered(request))))
        if chosen.calls or chosen.finish == "length":
            return chosen
        answer = await self._write(request, emit)
        answer.usage = attrs.evolve(answer.usage + chosen.usage, requests=1)
        return answer

    def _read_header(self) -> Header:
        if self._header is None:
            self._header = read_header(self._found())
        return self._header

    def _found(self) -> Path:
        if not self.path.is_file():
            raise WeightsMissingError(
                f"there is no file {self.path}: `local/` takes `auto` or the path of a .gguf file"
            )
        return self.path

    def _options(self) -> Mapping[str, Any]:
        trained = self._read_header().context_length or context_limit()
        return {"path": str(self._found()), "threads": threads(), "context": min(trained, context_limit())}


def _function(tool: ToolSpec) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, "parameters": dict(tool.schema)}
