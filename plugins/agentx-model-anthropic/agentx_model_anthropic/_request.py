"""A request as the Messages API takes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from agentx import ModelRequest, RequestRejectedError, ToolSpec, encode
from agentx.providers import SETTINGS

from ._conversation import CONTAINER, Conversation
from ._known import Traits
from ._reasoning import thinking_of
from ._schema import enforceable

NEW_VERSION = "2026-10-21"
"""Of the API. It has no sampling; what has it is asked in the version before, which every other server knows too."""
OLD_VERSION = "2023-06-01"
SAMPLING = ("temperature", "top_p", "top_k")
CAN = frozenset(SETTINGS) - {"seed"}
MAX_TOKENS = 8_192
"""Where nothing is known; the API wants a number."""
MARKS = 4
"""Places where the cache of prompts can be told to hold."""
FILES_BETA = "files-api-2025-04-14"
BINDING_BETA = "thinking-binding-controls-2026-08-01"


@attrs.frozen
class Options:
    """What a provider's settings say about every request."""

    own: bool = True
    """The server is Anthropic's."""
    stream: bool = True
    max_tokens: int | None = None
    version: str | None = None
    betas: tuple[str, ...] = ()
    cache: Mapping[str, Any] | None = None
    """The mark of the cache of prompts; `None` marks nothing."""
    display: str | None = None
    drop_thinking: bool = True
    server_tools: tuple[Mapping[str, Any], ...] = ()


@attrs.frozen
class Wire:
    """What is sent, beside the headers of every request."""

    body: dict[str, Any]
    version: str
    betas: tuple[str, ...]


def wire_of(
    request: ModelRequest, conversation: Conversation, options: Options, traits: Traits, *, id: str, model: str
) -> Wire:
    """Return a request as it is sent.

    Args:
        conversation: has taken the history.
        id: what the server calls the model.
        model: as it stands in errors.

    Raises:
        RequestRejectedError: the model cannot do it.
    """
    settings = request.settings
    extra = dict(settings.extra)
    raw_tools = [*options.server_tools, *extra.pop("tools", ())]
    betas = [*options.betas, *extra.pop("betas", ())]
    max_tokens = settings.max_tokens or options.max_tokens or traits.capabilities.max_output or MAX_TOKENS
    binding = options.own and traits.bound and options.drop_thinking
    tools = _tools(request.tools or _called(conversation), raw_tools)
    system = [{"type": "text", "text": request.instructions}] if request.instructions.strip() else []
    if options.cache is not None:
        _mark(conversation, tools, system, options.cache)
    conversation.add(_context(request))
    if not conversation.messages:
        raise RequestRejectedError(f"the messages of the request to {model} are empty")
    body: dict[str, Any] = {"model": id, "max_tokens": max_tokens, "messages": conversation.messages}
    body.update(_settings(request, conversation, tools, system))
    _lay_over(
        body,
        thinking_of(request, traits, model=model, max_tokens=max_tokens, display=options.display, binding=binding),
        _output(request),
        {"stream": True} if options.stream else {},
        extra,
    )
    if "block_binding" in body.get("thinking", ()):
        betas.append(BINDING_BETA)
    if conversation.has_files:
        betas.append(FILES_BETA)
    return Wire(body, _version(body, options), tuple(dict.fromkeys(betas)))


def check_model(request: ModelRequest, traits: Traits, options: Options, *, model: str) -> frozenset[str]:
    """Refuse what this model cannot be asked; returns the settings that it takes.

    Raises:
        RequestRejectedError: naming the model and what to change.
    """
    settings = request.settings
    if not traits.forced_tools and settings.tool_choice not in (None, "auto", "none"):
        raise RequestRejectedError(
            f"{model} cannot be made to call a tool: leave out tool_choice {settings.tool_choice!r}"
        )
    if any(not stop.strip() for stop in settings.stop):
        raise RequestRejectedError(f"{model} takes no stop text that is empty or blank")
    able = CAN if traits.sampling else CAN.difference(SAMPLING)
    if options.version == NEW_VERSION:
        able = able.difference(SAMPLING)
    return able


def _settings(
    request: ModelRequest, conversation: Conversation, tools: Sequence[Any], system: Sequence[Any]
) -> dict[str, Any]:
    settings = request.settings
    given = {
        "system": system or None,
        "tools": tools or None,
        "tool_choice": _tool_choice(request, tools),
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "stop_sequences": list(settings.stop) or None,
        "service_tier": settings.service_tier,
        CONTAINER: conversation.container,
    }
    return {name: value for name, value in given.items() if value is not None}


def _called(conversation: Conversation) -> tuple[ToolSpec, ...]:
    """Return the tools of a history whose request has none: where there are calls, the API wants their tools."""
    return tuple([ToolSpec(name, "", {"type": "object"}) for name in conversation.tools])


def _tools(specs: Sequence[ToolSpec], raw: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    tools: list[dict[str, Any]] = []
    for spec in specs:
        tool: dict[str, Any] = {"name": spec.name, "input_schema": dict(spec.schema)}
        if spec.description:
            tool["description"] = spec.description
        tools.append(tool)
    return [*tools, *map(dict, raw)]


def _tool_choice(request: ModelRequest, tools: Sequence[Any]) -> dict[str, Any] | None:
    choice, parallel = request.settings.tool_choice, request.settings.parallel_tool_calls
    if not tools:
        return None
    if choice == "none" or (not request.tools and "input_schema" in tools[0]):
        return {"type": "none"}
    if choice is None and parallel is None:
        return None
    kinds = {None: "auto", "auto": "auto", "required": "any"}
    found: dict[str, Any] = {"type": kinds[choice]} if choice in kinds else {"type": "tool", "name": choice}
    if parallel is not None:
        found["disable_parallel_tool_use"] = not parallel
    return found


def _mark(
    conversation: Conversation,
    tools: Sequence[dict[str, Any]],
    system: Sequence[dict[str, Any]],
    mark: Mapping[str, Any],
) -> None:
    """Mark the end of what stays the same: the tools, the instructions, the history as it was, the history as it is.

    The order on the wire is tools, system, messages. Marks of the user's own count.
    """
    room = MARKS - conversation.marks - sum(["cache_control" in tool for tool in tools])
    for stable in (system, tools):
        if stable and room > 0 and "cache_control" not in stable[-1]:
            stable[-1]["cache_control"] = dict(mark)
            room -= 1
    conversation.mark(max(room, 0), mark)


def _context(request: ModelRequest) -> list[str]:
    """Return what is said for this call only."""
    output = request.output
    if output is None or _enforced(request) is not None:
        return [*request.context]
    schema = encode(output.schema).decode()
    return [*request.context, f"Answer with nothing but one JSON value that fits this JSON Schema:\n{schema}"]


def _enforced(request: ModelRequest) -> dict[str, Any] | None:
    output = request.output
    return enforceable(output.schema) if output is not None and output.strict else None


def _output(request: ModelRequest) -> dict[str, Any]:
    schema = _enforced(request)
    return {} if schema is None else {"output_config": {"format": {"type": "json_schema", "schema": schema}}}


def _lay_over(body: dict[str, Any], *layers: Mapping[str, Any]) -> None:
    """Lay fields over a body; of two objects the inner fields are joined."""
    for layer in layers:
        for name, value in layer.items():
            old = body.get(name)
            body[name] = {**old, **value} if isinstance(old, dict) and isinstance(value, Mapping) else value


def _version(body: Mapping[str, Any], options: Options) -> str:
    if options.version:
        return options.version
    return OLD_VERSION if not options.own or any(name in body for name in SAMPLING) else NEW_VERSION
