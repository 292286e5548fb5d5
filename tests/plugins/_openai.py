"""What the tests of agentx-model-openai share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from agentx import (
    Agent,
    Message,
    ModelRequest,
    ModelResponse,
    ModelSettings,
    Part,
    TextPart,
    ToolSpec,
)
from agentx_model_openai import OpenAIModel
from peers.wire import WireServer

KEY = "sk-test-0123456789"
both_apis = pytest.mark.parametrize("api", ["chat", "responses"])
streamed_or_not = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])

ADD = ToolSpec(
    "add",
    "Add two numbers.",
    {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
        "additionalProperties": False,
    },
)


def model_at(at: WireServer | str, *, id: str = "gpt-test", **options: Any) -> OpenAIModel:
    url = at if isinstance(at, str) else at.url
    return OpenAIModel(id, **{"api_key": KEY, "base_url": url, **options})


def agent_at(
    at: WireServer | str,
    *,
    tools: Sequence[Any] = (),
    plugins: Sequence[Any] = (),
    settings: ModelSettings | None = None,
    **options: Any,
) -> Agent:
    model = model_at(at, **options)
    return Agent(model, tools=tools, plugins=plugins, settings=settings, autoload="none", config=False)


def user(*parts: Part | str) -> Message:
    return Message("user", tuple([TextPart(part) if isinstance(part, str) else part for part in parts]))


def assistant(*parts: Part | str) -> Message:
    return Message("assistant", tuple([TextPart(part) if isinstance(part, str) else part for part in parts]))


def request(*messages: Message, settings: ModelSettings | None = None, **fields: Any) -> ModelRequest:
    return ModelRequest("openai/gpt-test", messages or (user("hi"),), settings=settings or ModelSettings(), **fields)


class Heard:
    """Takes what a model emits."""

    def __init__(self) -> None:
        self.deltas: list[Any] = []

    async def emit(self, delta: Any) -> None:
        self.deltas.append(delta)


async def respond(model: OpenAIModel, asked: ModelRequest | None = None) -> tuple[ModelResponse, list[Any]]:
    """Ask a model directly and close it."""
    heard = Heard()
    try:
        return await model.respond(asked or request(), heard.emit), heard.deltas
    finally:
        await model.aclose()
