"""JSON Schemas as Anthropic enforces them.

Source: https://platform.claude.com/docs/en/build-with-claude/structured-outputs: no recursion, no limits of numbers,
texts and lists, and not too many unions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

KEPT = frozenset({"$ref", "type", "enum", "const", "required", "additionalProperties", "title", "description"})
FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"})
MAX_UNIONS = 16


class _Unsupported(Exception):
    """A schema that cannot be enforced."""


def enforceable(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a strict schema in the form that the API takes; `None` if it cannot enforce it.

    What it does not check is told the model in the description; the answer is validated anyway.
    """
    try:
        found = _Rewriting().rewrite(schema)
        _refuse_recursion(found.get("$defs", {}))
    except _Unsupported:
        return None
    return found


class _Rewriting:
    def __init__(self) -> None:
        self._unions = 0

    def rewrite(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        kept: dict[str, Any] = {}
        limits: list[str] = []
        for key, value in schema.items():
            if key in KEPT or (key == "format" and value in FORMATS):
                kept[key] = value
            elif key in ("properties", "$defs"):
                kept[key] = {name: self.rewrite(item) for name, item in value.items()}
            elif key == "anyOf":
                kept[key] = [self.rewrite(item) for item in value]
            elif key == "items" and isinstance(value, Mapping):
                kept[key] = self.rewrite(value)
            else:
                limits.append(f"{key}: {value}")
        if "anyOf" in kept or isinstance(kept.get("type"), list):
            self._unions += 1
        if self._unions > MAX_UNIONS or kept.get("additionalProperties", False) is not False:
            raise _Unsupported
        if limits:
            kept["description"] = " ".join([*filter(None, [kept.get("description")]), f"({', '.join(limits)})"])
        return kept


def _refuse_recursion(defs: Mapping[str, Any]) -> None:
    edges = {name: set(_refs(item)) for name, item in defs.items()}
    for name in edges:
        reached, todo = set[str](), list(edges[name])
        while todo:
            ref = todo.pop()
            if ref == name:
                raise _Unsupported
            if ref not in reached:
                reached.add(ref)
                todo += edges.get(ref, ())


def _refs(schema: Any) -> list[str]:
    if isinstance(schema, Mapping):
        own = [schema["$ref"].rpartition("/")[2]] if isinstance(schema.get("$ref"), str) else []
        return [*own, *[ref for item in schema.values() for ref in _refs(item)]]
    if isinstance(schema, list):
        return [ref for item in schema for ref in _refs(item)]
    return []
