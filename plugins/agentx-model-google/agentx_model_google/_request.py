"""A request as generateContent takes it.

Source: https://ai.google.dev/api/generate-content and https://ai.google.dev/gemini-api/docs/thought-signatures.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from agentx import (
    FilePart,
    Message,
    ModelRequest,
    ModelSettings,
    OpaquePart,
    Part,
    TextPart,
    ThinkingPart,
    ToolCall,
    ToolResult,
)

from ._provider import is_third

CAN = ("max_tokens", "temperature", "top_p", "seed", "stop", "reasoning_effort", "extra")
"""The fields of `ModelSettings` that this dialect can say."""
SIGNATURE = "thoughtSignature"
FOREIGN = "skip_thought_signature_validator"
"""Stands for the signature of a call that another model made: without one newer models refuse the history."""
BUDGETS = {"none": 0, "minimal": 512, "low": 1_024, "medium": 8_192, "high": 24_576}
"""Tokens of thinking, for models that take a number."""
LEVELS = {"none": "minimal", "minimal": "minimal", "low": "low", "medium": "medium", "high": "high"}
_Wire = dict[str, Any]


def body_of(request: ModelRequest, messages: Sequence[Message], model: str, *, show_thinking: bool) -> _Wire:
    """Return the body of a request."""
    body: _Wire = {"contents": [_content(message, is_third(model)) for message in messages]}
    if request.instructions:
        body["systemInstruction"] = {"parts": [{"text": request.instructions}]}
    if request.tools:
        declared = [
            {"name": tool.name, "description": tool.description, "parametersJsonSchema": dict(tool.schema)}
            for tool in request.tools
        ]
        body["tools"] = [{"functionDeclarations": declared}]
        choice = _choice(request.settings.tool_choice)
        if choice:
            body["toolConfig"] = {"functionCallingConfig": choice}
    config = _config(request, model, show_thinking)
    if config:
        body["generationConfig"] = config
    return _merged(body, request.settings.extra)


def _merged(body: _Wire, extra: Any) -> _Wire:
    """Lay the user's raw keys over the body; two objects are joined."""
    for name, value in extra.items():
        old = body.get(name)
        body[name] = {**old, **value} if isinstance(old, dict) and isinstance(value, dict) else value
    return body


def _choice(choice: str | None) -> _Wire | None:
    if choice is None:
        return None
    mode = {"auto": "AUTO", "none": "NONE", "required": "ANY"}.get(choice)
    return {"mode": mode} if mode else {"mode": "ANY", "allowedFunctionNames": [choice]}


def _config(request: ModelRequest, model: str, show_thinking: bool) -> _Wire:
    settings = request.settings
    config: _Wire = {
        name: value
        for name, value in (
            ("maxOutputTokens", settings.max_tokens),
            ("temperature", settings.temperature),
            ("topP", settings.top_p),
            ("seed", settings.seed),
            ("stopSequences", list(settings.stop) or None),
        )
        if value is not None
    }
    thinking = _thinking(settings, model, show_thinking)
    if thinking:
        config["thinkingConfig"] = thinking
    if request.output is not None:
        config["responseMimeType"] = "application/json"
        config["responseJsonSchema"] = dict(request.output.schema)
    return config


def _thinking(settings: ModelSettings, model: str, show: bool) -> _Wire:
    effort = settings.reasoning_effort
    if effort is None:
        return {}
    if is_third(model):
        wire: _Wire = {"thinkingLevel": LEVELS.get(effort, effort)}
    else:
        wire = {"thinkingBudget": BUDGETS[effort]} if effort in BUDGETS else {"thinkingLevel": effort}
    return {**wire, "includeThoughts": True} if show and effort != "none" else wire


def _content(message: Message, signed: bool) -> _Wire:
    role = "model" if message.role == "assistant" else "user"
    parts = [wire for part in message.parts for wire in _part(part)]
    if signed and role == "model":
        first = next((part for part in parts if "functionCall" in part), None)
        if first is not None:
            first.setdefault(SIGNATURE, FOREIGN)
    return {"role": role, "parts": parts}


def _part(part: Part) -> Iterator[_Wire]:
    if isinstance(part, TextPart):
        yield {"text": part.text, **(part.data or {})}
    elif isinstance(part, ThinkingPart):
        yield {"text": part.text, "thought": True, **({SIGNATURE: part.signature} if part.signature else {})}
    elif isinstance(part, ToolCall):
        call = {"id": part.id, "name": part.name, "args": _arguments(part)}
        yield {"functionCall": call, **(part.data or {})}
    elif isinstance(part, ToolResult):
        yield from _result(part)
    elif isinstance(part, FilePart):
        yield _file(part)
    elif isinstance(part, OpaquePart):
        yield dict(part.data)


def _result(result: ToolResult) -> Iterator[_Wire]:
    key = "error" if result.is_error else "result"
    text = result.text or (result.status if result.is_error else "")
    yield {"functionResponse": {"id": result.call_id, "name": result.name, "response": {key: text}}}
    for part in result.content:
        if isinstance(part, FilePart):
            yield _file(part)


def _file(part: FilePart) -> _Wire:
    if part.data is not None:
        return {"inlineData": {"mimeType": part.media_type, "data": b64encode(part.data).decode()}}
    return {"fileData": {"mimeType": part.media_type, "fileUri": part.url or part.file_id}}


def _arguments(call: ToolCall) -> Any:
    try:
        value = msgspec.json.decode(call.arguments)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
