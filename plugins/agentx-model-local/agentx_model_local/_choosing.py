"""What Needle is shown, and which of its calls are believed. Pure functions; `_needle` does the asking."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from agentx import ToolSpec

from ._grounding import grounded, numbers_in

MIN_CONFIDENCE = 0.3
"""A call the model is less sure of than this is no call."""
MAX_QUERY = 1_000
MAX_TOOLS = 4_000
"""Characters: Needle reads about 60 tokens a second on one core, twice."""
MAX_DESCRIPTION = 160
_NUMERIC = ("number", "integer")


@attrs.frozen
class Asked:
    """What Needle is asked: the text, the tools as compact JSON, and notes on what was cut."""

    query: str
    tools: tuple[ToolSpec, ...]
    tools_json: str
    notes: tuple[str, ...] = ()


@attrs.frozen
class Call:
    name: str
    arguments: Mapping[str, Any]


class Refusal(Exception):
    """A call of the model's that is not believed; the message says why."""


def prepare(query: str, tools: Sequence[ToolSpec], *, forced: bool) -> Asked:
    """Choose what of the prompt and the tools the model is shown."""
    short = shortened(query, MAX_QUERY)
    notes = [] if short == query else [f"only {MAX_QUERY} characters of the prompt were read to choose a tool"]
    offered = list(tools) if forced else [tool for tool in tools if is_fillable(tool, short)]
    kept = _most_likely(offered, short)
    if len(kept) < len(offered):
        notes.append(f"only {len(kept)} of {len(offered)} tools were considered")
    shown = json.dumps([shown_tool(tool) for tool in kept], separators=(",", ":"), ensure_ascii=False)
    return Asked(short, tuple(kept), shown, tuple(notes))


def shortened(text: str, limit: int) -> str:
    """Return the beginning and the end of `text`, where what is asked mostly stands."""
    if len(text) <= limit:
        return text
    half = (limit - 3) // 2
    return f"{text[:half]} … {text[-half:]}"


def is_fillable(tool: ToolSpec, query: str) -> bool:
    """Whether the prompt has at least as many numbers as the tool needs; no other argument can be told in advance."""
    properties = tool.schema.get("properties", {})
    needed = [name for name in tool.schema.get("required", ()) if properties.get(name, {}).get("type") in _NUMERIC]
    return len(needed) <= len(numbers_in(query))


def _most_likely(tools: list[ToolSpec], query: str) -> list[ToolSpec]:
    """Return the tools that fit the limit, those first that share words with the query, in their own order."""
    words = _words(query)
    ranked = sorted(tools, key=lambda tool: -len(words & _words(f"{tool.name} {tool.description}")))
    room = MAX_TOOLS
    kept: set[str] = set()
    for tool in ranked:
        room -= len(json.dumps(shown_tool(tool)))
        if room < 0 and kept:
            break
        kept.add(tool.name)
    return [tool for tool in tools if tool.name in kept]


def _words(text: str) -> set[str]:
    return set(re.findall(r"[a-z0-9]{3,}", text.lower().replace("_", " ")))


def shown_tool(tool: ToolSpec) -> dict[str, Any]:
    """Return the tool as the model was trained to see one: first paragraph, plain types, nothing else."""
    paragraph = " ".join(tool.description.strip().split("\n\n", 1)[0].split())
    return {
        "name": tool.name,
        "description": shortened(paragraph, MAX_DESCRIPTION),
        "parameters": plain_schema(tool.schema, tool.schema.get("$defs", {})),
    }


def plain_schema(schema: Mapping[str, Any], defs: Mapping[str, Any], depth: int = 0) -> dict[str, Any]:
    """Return the schema with references resolved, optional types unwrapped and everything decorative left out."""
    if depth > 8:
        return {"type": "object"}
    if "$ref" in schema:
        schema = defs.get(str(schema["$ref"]).rsplit("/", 1)[-1], {})
    for choice in [*schema.get("anyOf", ()), *schema.get("oneOf", ())]:
        if choice.get("type") != "null":
            return {**_described(schema), **plain_schema(choice, defs, depth + 1)}
    kind = schema.get("type", "string")
    plain: dict[str, Any] = {
        "type": kind if isinstance(kind, str) else next(iter(kind), "string"),
        **_described(schema),
    }
    if "const" in schema or "enum" in schema:
        plain["enum"] = list(schema.get("enum", [schema.get("const")]))
    if "items" in schema:
        plain["items"] = plain_schema(schema["items"], defs, depth + 1)
    if plain["type"] == "object":
        properties = schema.get("properties", {})
        plain["properties"] = {name: plain_schema(value, defs, depth + 1) for name, value in properties.items()}
        plain["required"] = list(schema.get("required", ()))
    return plain


def _described(schema: Mapping[str, Any]) -> dict[str, Any]:
    text = " ".join(str(schema.get("description", "")).split())
    return {"description": shortened(text, MAX_DESCRIPTION)} if text else {}


def read_calls(payload: str | None, asked: Asked) -> tuple[Call, ...]:
    """Return the calls in what the model wrote, with the arguments in the prompt's own spelling; none is an answer too.

    Raises:
        Refusal: one of them is no call of these tools, or its arguments are not in the prompt.
    """
    try:
        items = json.loads(payload or "[]")
    except ValueError as error:
        raise Refusal(f"not JSON: {payload!r}") from error
    calls: list[Call] = []
    for item in items if isinstance(items, list) else [items]:
        call = _read_call(item, asked)
        if call not in calls:
            calls.append(call)
    return tuple(calls)


def _read_call(item: Any, asked: Asked) -> Call:
    name = item.get("name") if isinstance(item, dict) else None
    tool = next((tool for tool in asked.tools if tool.name == name), None)
    if tool is None:
        raise Refusal(f"no such tool: {item!r}")
    schema = plain_schema(tool.schema, tool.schema.get("$defs", {}))
    given = item.get("arguments") or {}
    missing = [key for key in schema.get("required", ()) if key not in given]
    if missing or not isinstance(given, dict):
        raise Refusal(f"{name} without {', '.join(missing) or 'arguments'}")
    known = {key: value for key, value in given.items() if key in schema.get("properties", {})}
    return Call(tool.name, {key: _argument(value, schema["properties"][key], asked) for key, value in known.items()})


def _argument(value: Any, schema: Mapping[str, Any], asked: Asked) -> Any:
    if "enum" in schema:
        if value not in schema["enum"]:
            raise Refusal(f"{value!r} is not one of {schema['enum']}")
        return value
    if not _fits(value, schema["type"]):
        raise Refusal(f"{value!r} is no {schema['type']}")
    try:
        found = grounded(value, asked.query)
    except LookupError as error:
        raise Refusal(str(error)) from error
    return int(found) if schema["type"] == "integer" else found


def _fits(value: Any, kind: str) -> bool:
    if kind in _NUMERIC:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number and (kind == "number" or float(value).is_integer())
    types: dict[str, type] = {"string": str, "boolean": bool, "array": list, "object": dict}
    return kind not in types or isinstance(value, types[kind])
