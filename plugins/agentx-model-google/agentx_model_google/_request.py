"""A request as generateContent takes it.

Source: https://ai.google.dev/api/generate-content and https://ai.google.dev/gemini-api/docs/thought-signatures.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from agentx import (
    FilePart,
    Message,
    ModelRequest,
    ModelSettings,
    OpaquePart,
    Part,
    RequestRejectedError,
    TextPart,
    ThinkingPart,
    ToolCall,
    ToolResult,
)

from ._provider import is_third

CAN = ("max_tokens", "temperature", "top_p", "seed", "stop", "reasoning_effort", "service_tier", "extra")
"""The fields of `ModelSettings` that this dialect can say."""
SIGNATURE = "thoughtSignature"
FOREIGN = "skip_thought_signature_validator"
"""Stands for the signature of a call that another model made: without one newer models refuse the history."""
BUDGETS = {"none": 0, "minimal": 512, "low": 1_024, "medium": 8_192, "high": 24_576}
"""Tokens of thinking, for models that take a number."""
BEGINNING = "(The beginning of this conversation is not shown.)"
IN_RESULTS = frozenset({"image/png", "image/jpeg", "image/webp", "application/pdf", "text/plain"})
"""Files that newer models take inside of a function's response; others stand behind it."""
_Wire = dict[str, Any]


def body_of(request: ModelRequest, messages: Sequence[Message], id: str, *, model: str, show_thinking: bool) -> _Wire:
    """Return the body of a request.

    Args:
        id: what Google calls the model.
        model: as it stands in errors.

    Raises:
        RequestRejectedError: the model cannot do it.
    """
    contents = [_content(message, is_third(id)) for message in messages]
    if not contents:
        raise RequestRejectedError(f"the messages of the request to {model} are empty")
    if contents[0]["role"] == "model":  # which is refused where it begins with a call
        contents.insert(0, {"role": "user", "parts": [{"text": BEGINNING}]})
    body: _Wire = {"contents": contents}
    if request.instructions.strip():
        body["systemInstruction"] = {"parts": [{"text": request.instructions}]}
    body.update(_tools(request))
    if request.settings.service_tier:
        body["serviceTier"] = request.settings.service_tier
    config = _config(request, id, model, show_thinking)
    if config:
        body["generationConfig"] = config
    return _merged(body, request.settings.extra)


def _tools(request: ModelRequest) -> _Wire:
    if not request.tools:
        return {}
    declared = [
        {"name": tool.name, "description": tool.description, "parametersJsonSchema": dict(tool.schema)}
        for tool in request.tools
    ]
    choice = _choice(request.settings.tool_choice)
    tools: _Wire = {"tools": [{"functionDeclarations": declared}]}
    return {**tools, "toolConfig": {"functionCallingConfig": choice}} if choice else tools


def _merged(body: _Wire, extra: Mapping[str, Any]) -> _Wire:
    """Lay the user's raw keys over the body; two objects are joined."""
    for name, value in extra.items():
        old = body.get(name)
        body[name] = {**old, **value} if isinstance(old, dict) and isinstance(value, Mapping) else value
    return body


def _choice(choice: str | None) -> _Wire | None:
    if choice is None:
        return None
    mode = {"auto": "AUTO", "none": "NONE", "required": "ANY"}.get(choice)
    return {"mode": mode} if mode else {"mode": "ANY", "allowedFunctionNames": [choice]}


def _config(request: ModelRequest, id: str, model: str, show_thinking: bool) -> _Wire:
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
    thinking = _thinking(settings, id, model, show_thinking)
    if thinking:
        config["thinkingConfig"] = thinking
    if request.output is not None:
        if request.tools and not is_third(id):
            raise RequestRejectedError(
                f"{model} cannot be held to a JSON Schema beside tools: ask for the output in another mode"
            )
        config["responseMimeType"] = "application/json"
        config["responseJsonSchema"] = dict(request.output.schema)
    return config


def _thinking(settings: ModelSettings, id: str, model: str, show: bool) -> _Wire:
    effort = settings.reasoning_effort
    if effort is None:
        return {}
    if effort == "none" and (is_third(id) or "2.5-pro" in id):
        raise RequestRejectedError(f"{model} always thinks: set reasoning_effort to 'low' instead of 'none'")
    if is_third(id):
        wire: _Wire = {"thinkingLevel": effort}
    elif effort in BUDGETS:
        wire = {"thinkingBudget": BUDGETS[effort]}
    else:
        raise RequestRejectedError(f"{model} knows the efforts {', '.join(BUDGETS)}; not {effort!r}")
    return {**wire, "includeThoughts": True} if show and effort != "none" else wire


def _content(message: Message, third: bool) -> _Wire:
    if message.role == "assistant":
        return {"role": "model", "parts": _said(message.parts, third)}
    results = [part for part in message.parts if isinstance(part, ToolResult)]
    parts, behind = [], list[_Wire]()
    for result in results:
        inside, outside = _files_of(result, third)
        parts.append(_result(result, inside))
        if outside and len(results) > 1:
            behind.append({"text": f"[what {result.name} {result.call_id} returned:]"})
        behind += outside
    said = [_part(part) for part in message.parts if not isinstance(part, ToolResult)]
    return {"role": "user", "parts": [*parts, *behind, *said]}


def _said(said: Sequence[Part], third: bool) -> list[_Wire]:
    """Return what a model said, each signature on its part."""
    parts: list[_Wire] = []
    for part in said:
        if not isinstance(part, OpaquePart) or set(part.data) != {SIGNATURE}:
            parts.append(_part(part))
        elif parts and "inlineData" in parts[-1]:
            parts[-1].setdefault(SIGNATURE, part.data[SIGNATURE])
    first = next((part for part in parts if "functionCall" in part), None)
    if third and first is not None:
        first.setdefault(SIGNATURE, FOREIGN)
    return parts or [{"text": ""}]


def _part(part: Part) -> _Wire:
    if isinstance(part, TextPart):
        return {"text": part.text, **(part.data or {})}
    if isinstance(part, ThinkingPart):
        signature = {SIGNATURE: part.signature} if part.signature else {}
        return {"text": part.text, "thought": True, **signature, **(part.data or {})}
    if isinstance(part, ToolCall):
        call = {"id": part.id, "name": part.name, "args": _arguments(part)}
        return {"functionCall": call, **(part.data or {})}
    if isinstance(part, OpaquePart):
        return dict(part.data)
    assert isinstance(part, FilePart)
    return _file(part)


def _files_of(result: ToolResult, third: bool) -> tuple[list[_Wire], list[_Wire]]:
    """Return the files of a result that stand in it, and those that stand behind it."""
    files = [part for part in result.content if isinstance(part, FilePart)]
    fits = [third and file.data is not None and file.media_type in IN_RESULTS for file in files]
    found = [_file(file) for file in files]
    inside = [wire for wire, is_inside in zip(found, fits, strict=True) if is_inside]
    return inside, [wire for wire, is_inside in zip(found, fits, strict=True) if not is_inside]


def _result(result: ToolResult, files: Sequence[_Wire]) -> _Wire:
    key = "error" if result.is_error else "result"
    text = result.text or (result.status if result.is_error else "")
    response: _Wire = {"id": result.call_id, "name": result.name, "response": {key: text}}
    return {"functionResponse": {**response, "parts": list(files)} if files else response}


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
