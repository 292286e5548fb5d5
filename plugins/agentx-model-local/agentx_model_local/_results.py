"""The answer after a tool ran: its result as it is. Models this small rewrite facts wrongly."""

from __future__ import annotations

from agentx import Emit, ModelResponse, TextDelta, TextPart, ToolResult, Usage


async def show(results: tuple[ToolResult, ...], emit: Emit, model: str) -> ModelResponse:
    text = "\n".join([result.text or f"({result.name} gave no text)" for result in results])
    await emit(TextDelta(text))
    return ModelResponse((TextPart(text),), "end_turn", usage=Usage(), model=model)
