"""Calls that the prompt itself suggests: values of the right shape for everything a tool needs.

Needle is better at judging a call than at making one, so what it does not find by itself is put before it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ._choosing import Asked, Call, plain_schema
from ._grounding import numbers_in

MAX_PROPOSALS = 3
_NUMERIC = ("number", "integer")
_PATH = re.compile(r"(?<![\w/.~:-])(?:(?:~|\.{1,2})?/[\w./-]*\w|[\w-][\w./-]*\.[A-Za-z]\w{0,5}\b)")
_URL = re.compile(r"https?://[^\s<>\"']*[\w/]")
_SHAPES = (
    (re.compile(r"url|link|website", re.IGNORECASE), _URL),
    (re.compile(r"path|file", re.IGNORECASE), _PATH),
)
"""What a text parameter's name says it holds, and how that looks in a prompt."""


def propose(asked: Asked) -> tuple[Call, ...]:
    """Return the calls whose required arguments the prompt has exactly once, numbers in the order they are said."""
    calls = [call for tool in asked.tools if (call := _propose(tool.name, tool.schema, asked.query)) is not None]
    return tuple(calls[:MAX_PROPOSALS])


def _propose(name: str, schema: Mapping[str, Any], query: str) -> Call | None:
    plain = plain_schema(schema, schema.get("$defs", {}))
    needed = {key: plain["properties"][key] for key in plain.get("required", ()) if key in plain["properties"]}
    numbers = numbers_in(query)
    wanted = sum(value["type"] in _NUMERIC for value in needed.values())
    if wanted and wanted != len(numbers):
        return None
    arguments: dict[str, Any] = {}
    for key, value in needed.items():
        found = _number(numbers.pop(0), value) if value["type"] in _NUMERIC else _only(key, value, query)
        if found is None:
            return None
        arguments[key] = found
    return Call(name, arguments) if arguments else None


def _number(number: float, schema: Mapping[str, Any]) -> float | int | None:
    if number.is_integer():
        return int(number)
    return None if schema["type"] == "integer" else number


def _only(key: str, schema: Mapping[str, Any], query: str) -> Any:
    """Return the one value in the prompt that has the shape of the parameter, or `None`."""
    if "enum" in schema:
        found = [value for value in schema["enum"] if re.search(rf"\b{re.escape(str(value))}\b", query, re.IGNORECASE)]
    elif schema["type"] == "string":
        shape = next((shape for name, shape in _SHAPES if name.search(key)), None)
        found = shape.findall(query) if shape is not None else []
    else:
        found = []
    return found[0] if len(found) == 1 else None


def written(calls: Sequence[Call]) -> str:
    """Return the completion in which Needle would have made these calls, in the manner of its own."""
    reasons = [f"'{value}' -> {key} {value!r}" for call in calls for key, value in call.arguments.items()]
    made = [{"name": call.name, "arguments": dict(call.arguments)} for call in calls]
    payload = json.dumps(made, separators=(",", ":"), ensure_ascii=False)
    return f"<think>\n{', '.join(reasons)}. No other params.\n</think>\n<tool_call>{payload}</tool_call>"
