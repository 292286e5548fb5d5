"""A request as the Responses API takes it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentx import (
    FilePart,
    Message,
    ModelRequest,
    ModelSettings,
    OpaquePart,
    OutputFormat,
    Part,
    TextPart,
    ThinkingPart,
    ToolCall,
    ToolResult,
    ToolSpec,
)
from agentx.providers import SETTINGS

from ._files import responses_part

CAN = frozenset(SETTINGS) - {"seed", "stop"}
ENCRYPTED = "reasoning.encrypted_content"


def body_of(
    request: ModelRequest,
    messages: Sequence[Message],
    model: str,
    *,
    stream: bool,
    store: bool = False,
    encrypted: bool = False,
    summary: str | None = None,
) -> dict[str, Any]:
    """Return the JSON body.

    Args:
        messages: the history as this server can read it.
        store: whether the server keeps the response; if not, it is asked to send reasoning along, encrypted.
        encrypted: whether the model reasons, and so can be asked that.
        summary: how it sums up its reasoning (`auto`, `concise`, `detailed`).
    """
    settings = request.settings
    body: dict[str, Any] = {"model": model, "input": list(_items(messages, store=store)), "store": store}
    if request.instructions:
        body["instructions"] = request.instructions
    if encrypted and not store:
        body["include"] = [ENCRYPTED]
    body.update(_sampling(settings, summary))
    if request.tools:
        body["tools"] = [_function(tool) for tool in request.tools]
        body.update(_tool_use(settings))
    if request.output is not None:
        body["text"] = {"format": _output_format(request.output)}
    if stream:
        body["stream"] = True
    return {**body, **settings.extra}


def _sampling(settings: ModelSettings, summary: str | None) -> dict[str, Any]:
    reasoning = {"effort": settings.reasoning_effort, "summary": summary}
    given = {
        "max_output_tokens": settings.max_tokens,
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "service_tier": settings.service_tier,
        "reasoning": {name: value for name, value in reasoning.items() if value is not None} or None,
    }
    return {name: value for name, value in given.items() if value is not None}


def _function(tool: ToolSpec) -> dict[str, Any]:
    named = {"type": "function", "name": tool.name, "description": tool.description}
    return {**named, "parameters": dict(tool.schema), "strict": False}  # true by default, which refuses most schemas


def _tool_use(settings: ModelSettings) -> dict[str, Any]:
    found: dict[str, Any] = {}
    choice = settings.tool_choice
    if choice is not None:
        is_name = choice not in ("auto", "none", "required")
        found["tool_choice"] = {"type": "function", "name": choice} if is_name else choice
    if settings.parallel_tool_calls is not None:
        found["parallel_tool_calls"] = settings.parallel_tool_calls
    return found


def _output_format(output: OutputFormat) -> dict[str, Any]:
    wire = {"type": "json_schema", "name": output.name, "schema": dict(output.schema), "strict": output.strict}
    return {**wire, **({"description": output.description} if output.description else {})}


def _items(messages: Sequence[Message], *, store: bool) -> Iterator[dict[str, Any]]:
    for message in messages:
        if message.role == "assistant":
            yield from _assistant(message, store=store)
            continue
        for part in message.parts:
            if isinstance(part, ToolResult):
                yield {"type": "function_call_output", "call_id": part.call_id, "output": _result(part)}
        content = [_input(part) for part in message.parts if isinstance(part, TextPart | FilePart)]
        if content:
            yield {"role": "user", "content": content}


def _input(part: Part) -> dict[str, Any]:
    return {"type": "input_text", "text": part.text} if isinstance(part, TextPart) else responses_part(part)  # type: ignore[arg-type]


def _result(result: ToolResult) -> str | list[dict[str, Any]]:
    """Return text as text; images and files of a result are part of it."""
    if any(isinstance(part, FilePart) for part in result.content):
        return [_input(part) for part in result.content if isinstance(part, TextPart | FilePart)]
    return "\n\n".join([part.text for part in result.content if isinstance(part, TextPart)])


def _assistant(message: Message, *, store: bool) -> Iterator[dict[str, Any]]:
    """Yield the items of one answer.

    Reasoning goes back as it came. What follows it has no id: an item with one must have its reasoning before it, so
    that a history from which somebody takes a part would be refused. Reasoning that nothing follows is refused too.
    """
    waiting: list[dict[str, Any]] = []
    for part in message.parts:
        item = _item(part, store=store)
        if item is None:
            continue
        waiting.append(item)
        if item.get("type") != "reasoning":
            yield from waiting
            waiting = []


def _item(part: Part, *, store: bool) -> dict[str, Any] | None:
    if isinstance(part, ThinkingPart):
        return _reasoning(part.data, store=store)
    if isinstance(part, OpaquePart):
        return dict(part.data)
    if isinstance(part, ToolCall):
        call = {"type": "function_call", "call_id": part.id, "name": part.name, "arguments": part.arguments}
        return {**(part.data or {}), **call}
    if isinstance(part, TextPart) and part.text:
        phase = (part.data or {}).get("phase")
        return {"role": "assistant", "content": part.text, **({"phase": phase} if phase else {})}
    return None


def _reasoning(data: Mapping[str, Any] | None, *, store: bool) -> dict[str, Any] | None:
    """Return an item of reasoning; one that the server neither keeps nor sent along means nothing to it."""
    if not data or not (store or data.get("encrypted_content")):
        return None
    return {name: value for name, value in data.items() if value is not None or name == "encrypted_content"}
