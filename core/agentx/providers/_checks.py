"""What a model cannot do is an error before the request, not silence."""

from __future__ import annotations

import math
from collections.abc import Container

from agentx._errors import RequestRejectedError
from agentx._messages import FilePart, ModelRequest
from agentx._models import UNKNOWN, Capabilities

SETTINGS = (
    "max_tokens",
    "temperature",
    "top_p",
    "seed",
    "stop",
    "parallel_tool_calls",
    "reasoning_effort",
    "service_tier",
    "extra",
)
"""Fields of `ModelSettings` that a provider may not know; tool_choice and timeout every one does."""


def check_request(
    request: ModelRequest,
    *,
    model: str,
    settings: Container[str] = SETTINGS,
    capabilities: Capabilities = UNKNOWN,
) -> None:
    """Refuse a request that asks for what the model cannot do.

    Args:
        model: as it stands in errors, such as `openai/gpt-5`.
        settings: the fields of `ModelSettings` that the dialect can say.
        capabilities: what is known; what is not known (`None`) is left to the server to refuse.

    Raises:
        RequestRejectedError: naming the model, what it cannot do and what to change.
    """
    asked = request.settings
    unknown = [name for name in SETTINGS if getattr(asked, name) not in (None, (), {}) and name not in settings]
    if unknown:
        raise RequestRejectedError(f"{model} cannot do {', '.join(unknown)}: leave that setting out")
    if asked.max_tokens is not None and asked.max_tokens < 1:
        raise RequestRejectedError(f"max_tokens is {asked.max_tokens}; {model} needs at least 1")
    for name in ("temperature", "top_p"):
        value = getattr(asked, name)
        if value is not None and not math.isfinite(value):
            raise RequestRejectedError(f"{name} is {value}, which is no number that {model} could take")
    if not request.messages:
        raise RequestRejectedError(f"the request to {model} has no message")
    _check_tools(request, model, capabilities)
    if asked.reasoning_effort not in (None, "none") and capabilities.reasoning is False:
        raise RequestRejectedError(f"{model} does not reason: leave reasoning_effort out")
    if request.output is not None and capabilities.json_schema is False:
        raise RequestRejectedError(f"{model} cannot be held to a JSON Schema: ask for the output in another mode")
    _check_files(request, model, capabilities)


def _check_tools(request: ModelRequest, model: str, capabilities: Capabilities) -> None:
    names = [tool.name for tool in request.tools]
    if names and capabilities.tools is False:
        raise RequestRejectedError(f"{model} cannot call tools, and the request has {', '.join(names)}")
    if request.settings.parallel_tool_calls and capabilities.parallel_tool_calls is False:
        raise RequestRejectedError(f"{model} cannot call tools in parallel: leave parallel_tool_calls out")
    choice = request.settings.tool_choice
    if choice in (None, "auto", "none"):
        return
    if not names:
        raise RequestRejectedError(f"tool_choice is {choice!r}, but the request to {model} has no tools")
    if choice != "required" and choice not in names:
        raise RequestRejectedError(f"tool_choice names {choice!r}; the tools are {', '.join(names)}")


def _check_files(request: ModelRequest, model: str, capabilities: Capabilities) -> None:
    newest = next((message for message in reversed(request.messages) if message.role == "user"), None)
    for part in newest.parts if newest is not None else ():
        if isinstance(part, FilePart) and can_read(part, capabilities) is False:
            raise RequestRejectedError(f"{model} cannot read {part.media_type}, and the message has such a file")


def can_read(part: FilePart, capabilities: Capabilities) -> bool | None:
    """Return whether a model reads a file of this kind; `None` is not known."""
    kind = part.media_type.partition("/")[0]
    if kind == "image":
        return capabilities.images
    if kind == "audio":
        return capabilities.audio
    return capabilities.files
