"""Choosing a tool under a grammar, where the template knows no tools: only a valid call, or none, can be said."""

from __future__ import annotations

import json
from typing import Any

import attrs

from agentx import BadResponseError, ModelRequest, ToolCall, ToolSpec

from ._choosing import plain_schema, shown_tool
from ._conversation import Chat
from ._engine import Engine
from ._llama import Answer, complete, new_id, offered, sampling
from ._settings import is_forced

_CHOOSE = (
    "Choose the tool that answers the user's last message, or none if it is talk, a question of general knowledge or "
    "something to write. Answer as JSON. Tools:\n{tools}"
)

MAX_CHOICE = 256
"""Tokens of a choice, whatever the limit on the text; a longer one has gone astray."""


def instructions(tools: tuple[ToolSpec, ...]) -> str:
    return _CHOOSE.format(tools="\n".join([json.dumps(shown_tool(tool), ensure_ascii=False) for tool in tools]))


async def choose(engine: Engine, request: ModelRequest, chat: Chat) -> Answer:
    """Return the model's call, or an answer without calls and text. `chat` begins with `instructions`."""
    schema = _choice_schema(request, offered(request))
    body = {
        "messages": chat,
        **sampling(request.settings),
        "temperature": 0,
        "max_tokens": MAX_CHOICE,
        "response_format": {"type": "json_schema", "json_schema": {"schema": schema}},
    }
    answer = await complete(engine, body)
    if answer.finish == "length":
        return attrs.evolve(answer, text="")
    name, arguments = _read_choice(answer.text)
    calls = (ToolCall(new_id(), name, json.dumps(arguments, ensure_ascii=False)),) if name else ()
    return attrs.evolve(answer, text="", calls=calls)


def _choice_schema(request: ModelRequest, tools: tuple[ToolSpec, ...]) -> dict[str, Any]:
    choices = [_call_schema(tool) for tool in tools]
    if not is_forced(request.settings):
        none = {"tool": {"const": ""}}
        choices.insert(0, {"type": "object", "properties": none, "required": ["tool"], "additionalProperties": False})
    return {"anyOf": choices}


def _call_schema(tool: ToolSpec) -> dict[str, Any]:
    arguments = {**plain_schema(tool.schema, tool.schema.get("$defs", {})), "additionalProperties": False}
    return {
        "type": "object",
        "properties": {"tool": {"const": tool.name}, "arguments": arguments},
        "required": ["tool", "arguments"],
        "additionalProperties": False,
    }


def _read_choice(text: str) -> tuple[str, dict[str, Any]]:
    try:
        choice = json.loads(text)
        return choice["tool"], dict(choice.get("arguments", {}))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadResponseError(f"the model's choice of a tool is not readable: {text[:200]!r}") from error
