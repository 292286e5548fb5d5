"""What a local model can be asked for. What it cannot do is an error before any work, not silence."""

from __future__ import annotations

import os
from collections.abc import Iterable

from agentx import FilePart, ModelRequest, ModelSettings, RequestRejectedError

SAMPLING = frozenset({"max_tokens", "temperature", "top_p", "seed", "stop", "extra"})
NEEDLE_SAMPLING = frozenset({"max_tokens", "temperature", "seed"})
_EVERYWHERE = frozenset({"tool_choice", "timeout", "parallel_tool_calls"})
_ALL = ("max_tokens", "temperature", "top_p", "seed", "stop", "reasoning_effort", "service_tier", "extra")


def check(request: ModelRequest, *, model: str, can: Iterable[str]) -> None:
    """Raise `RequestRejectedError` for anything in `request` that `model` cannot do."""
    settings = request.settings
    able = _EVERYWHERE.union(can)
    given = [name for name in _ALL if getattr(settings, name) not in (None, (), {}) and name not in able]
    if given:
        raise RequestRejectedError(f"{model} cannot do {', '.join(given)}: leave that setting out")
    if settings.max_tokens is not None and settings.max_tokens < 1:
        raise RequestRejectedError(f"max_tokens is {settings.max_tokens}; {model} needs at least 1")
    _check_tools(request, model)
    _check_parts(request, model)


def _check_tools(request: ModelRequest, model: str) -> None:
    choice, names = request.settings.tool_choice, [tool.name for tool in request.tools]
    if choice in (None, "auto", "none"):
        return
    if not names:
        raise RequestRejectedError(f"tool_choice is {choice!r}, but the request to {model} has no tools")
    if choice != "required" and choice not in names:
        raise RequestRejectedError(f"tool_choice names {choice!r}; the tools are {', '.join(names)}")


def _check_parts(request: ModelRequest, model: str) -> None:
    if not request.messages:
        raise RequestRejectedError(f"the request to {model} has no message")
    for message in request.messages:
        if message.role == "user" and any(isinstance(part, FilePart) for part in message.parts):
            raise RequestRejectedError(f"{model} reads text only, and a message has a file in it")


def is_forced(settings: ModelSettings) -> bool:
    """Whether the answer has to be a tool call."""
    return settings.tool_choice not in (None, "auto", "none")


def threads() -> int:
    """Return how many threads a model may use: `AGENTX_LOCAL_THREADS`, else 1.

    Two spinning threads gain 1.5 × on an idle machine and lose 10 to 60 × on a busy one.
    """
    return _positive("AGENTX_LOCAL_THREADS", 1)


def context_limit() -> int:
    """Return the tokens of context given to a GGUF file of the user's: `AGENTX_LOCAL_CONTEXT`, else 8192."""
    return _positive("AGENTX_LOCAL_CONTEXT", 8192)


def _positive(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    if not text:
        return default
    if not text.isdecimal() or int(text) < 1:
        raise RequestRejectedError(f"the environment variable {name} is {text!r}, not a whole number from 1 up")
    return int(text)
