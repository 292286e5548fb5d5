"""A request as Chat Completions takes it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from agentx import (
    FilePart,
    Message,
    ModelRequest,
    ModelSettings,
    OutputFormat,
    TextPart,
    ThinkingPart,
    ToolCall,
    ToolResult,
    ToolSpec,
)
from agentx.providers import SETTINGS

from ._files import chat_part
from ._servers import Quirks

CAN = frozenset(SETTINGS)
REFUSAL = "refusal"


def body_of(
    request: ModelRequest, messages: Sequence[Message], model: str, quirks: Quirks, *, stream: bool
) -> dict[str, Any]:
    """Return the JSON body.

    Args:
        messages: the history as this server can read it.
    """
    body: dict[str, Any] = {"model": model, "messages": list(_messages(request.instructions, messages, quirks))}
    body.update(_sampling(request.settings, quirks))
    if request.tools:
        body["tools"] = [{"type": "function", "function": _function(tool)} for tool in request.tools]
        body.update(_tool_use(request.settings))
    if request.output is not None:
        body["response_format"] = {"type": "json_schema", "json_schema": _schema(request.output)}
    if stream:
        body["stream"] = True
        if quirks.stream_usage:
            body["stream_options"] = {"include_usage": True}
    return {**body, **request.settings.extra}


def _sampling(settings: ModelSettings, quirks: Quirks) -> dict[str, Any]:
    given = {
        quirks.max_tokens: settings.max_tokens,
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "seed": settings.seed,
        "stop": list(settings.stop) or None,
        "reasoning_effort": settings.reasoning_effort,
        "service_tier": settings.service_tier,
    }
    return {name: value for name, value in given.items() if value is not None}


def _function(tool: ToolSpec) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, "parameters": dict(tool.schema)}


def _schema(output: OutputFormat) -> dict[str, Any]:
    said = {"name": output.name, "schema": dict(output.schema), "strict": output.strict}
    return {**said, **({"description": output.description} if output.description else {})}


def _tool_use(settings: ModelSettings) -> dict[str, Any]:
    found: dict[str, Any] = {}
    choice = settings.tool_choice
    if choice is not None:
        is_name = choice not in ("auto", "none", "required")
        found["tool_choice"] = {"type": "function", "function": {"name": choice}} if is_name else choice
    if settings.parallel_tool_calls is not None:
        found["parallel_tool_calls"] = settings.parallel_tool_calls
    return found


def _messages(instructions: str, messages: Sequence[Message], quirks: Quirks) -> Iterator[dict[str, Any]]:
    if instructions:
        yield {"role": "system", "content": instructions}
    for message in messages:
        if message.role == "assistant":
            yield _assistant(message, quirks)
        elif message.role == "tool":
            yield from _results(message, quirks)
        else:
            yield {"role": "user", "content": _content(message.parts)}


def _content(parts: Sequence[Any]) -> str | list[dict[str, Any]]:
    """Return text alone as text, which every server takes, else a list of what there is."""
    if all(isinstance(part, TextPart) for part in parts):
        return "\n\n".join([part.text for part in parts])
    return [{"type": "text", "text": part.text} if isinstance(part, TextPart) else chat_part(part) for part in parts]


def _assistant(message: Message, quirks: Quirks) -> dict[str, Any]:
    refusals = [part.text for part in message.parts if isinstance(part, TextPart) and _is_refusal(part)]
    text = "".join([part.text for part in message.parts if isinstance(part, TextPart) and not _is_refusal(part)])
    wire: dict[str, Any] = {"role": "assistant", "content": text}
    if refusals:
        wire["refusal"] = "".join(refusals)
    calls = [_call(part) for part in message.parts if isinstance(part, ToolCall)]
    if not text and (calls or refusals) and quirks.null_content:
        wire["content"] = None
    if calls:
        wire["tool_calls"] = calls
        wire.update(_reasoning(message, quirks))
    return wire


def _is_refusal(part: TextPart) -> bool:
    return part.data is not None and part.data.get("type") == REFUSAL


def _reasoning(message: Message, quirks: Quirks) -> dict[str, Any]:
    """Return the reasoning that led to calls, for a server that wants it back with them."""
    thoughts = [part for part in message.parts if isinstance(part, ThinkingPart)]
    if not thoughts or not quirks.reasoning_back:
        return {}
    if quirks.reasoning_back == "reasoning_content":
        return {"reasoning_content": "".join([part.text for part in thoughts])}
    details = [item for part in thoughts if part.data for item in part.data.get("reasoning_details", ())]
    return {"reasoning_details": details} if details else {}


def _call(part: ToolCall) -> dict[str, Any]:
    function = {"name": part.name, "arguments": part.arguments}
    return {"id": part.id, "type": "function", "function": function, **(part.data or {})}


def _results(message: Message, quirks: Quirks) -> Iterator[dict[str, Any]]:
    """Yield the results of calls; what is no text follows them, as a chat's result can hold only text."""
    shown: list[dict[str, Any]] = []
    for result in message.parts:
        if not isinstance(result, ToolResult):
            continue
        files = [part for part in result.content if isinstance(part, FilePart)]
        if files and quirks.image_results:
            yield {"role": "tool", "tool_call_id": result.call_id, "content": _content(result.content)}
            continue
        text = "\n\n".join([part.text for part in result.content if isinstance(part, TextPart)])
        if files:
            text = "\n\n".join(filter(None, [text, f"[{len(files)} file(s) of this result follow]"]))
            shown += [
                {"type": "text", "text": f"[result of {result.name}, call {result.call_id}]"},
                *map(chat_part, files),
            ]
        yield {"role": "tool", "tool_call_id": result.call_id, "content": text}
    if shown:
        yield {"role": "user", "content": shown}
