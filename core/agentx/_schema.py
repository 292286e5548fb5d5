"""JSON Schemas as providers enforce them: every field required, nothing else allowed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_NOT_STRICT = ("patternProperties", "prefixItems", "if", "not", "dependentSchemas", "dependentRequired", "$dynamicRef")
"""What no provider enforces, and what means something else when it is left out."""
_DROPPED = (
    "contains",
    "default",
    "examples",
    "maxContains",
    "maxProperties",
    "minContains",
    "minProperties",
    "propertyNames",
    "title",
    "uniqueItems",
)
"""What providers refuse and an answer may miss: it is validated anyway."""


class _Loose(Exception):
    """A schema that has no strict form."""


def strict_schema(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return `schema` in the form that providers enforce, or `None` if it has none.

    Every property becomes required, one that was not may be null, and no others are allowed: what OpenAI calls
    Structured Outputs (https://platform.openai.com/docs/guides/structured-outputs#supported-schemas).
    """
    try:
        strict = _strict(schema)
    except _Loose:
        return None
    return strict if strict.get("type") == "object" else None


def _strict(schema: Any) -> dict[str, Any]:
    if not isinstance(schema, Mapping) or any(key in schema for key in _NOT_STRICT):
        raise _Loose
    strict = {key: value for key, value in schema.items() if key not in _DROPPED}
    if "oneOf" in strict:
        strict["anyOf"] = strict.pop("oneOf")
    if "allOf" in strict:
        if len(strict["allOf"]) != 1 or "$ref" in strict:
            raise _Loose
        strict = {**_strict(strict.pop("allOf")[0]), **strict}
    if "anyOf" in strict:
        strict["anyOf"] = [_strict(item) for item in strict["anyOf"]]
    if "items" in strict:
        strict["items"] = _strict(strict["items"])
    if "$defs" in strict:
        strict["$defs"] = {name: _strict(item) for name, item in strict["$defs"].items()}
    if _is_object(strict):
        _close(strict)
    return strict


def _is_object(schema: Mapping[str, Any]) -> bool:
    kind = schema.get("type")
    return kind == "object" or (isinstance(kind, list) and "object" in kind) or "properties" in schema


def _close(schema: dict[str, Any]) -> None:
    """Allow and require what an object's schema names, and nothing else."""
    if schema.get("additionalProperties", False) not in (False, True) or "properties" not in schema:
        raise _Loose  # a mapping with keys of the model's own
    required = schema.get("required", ())
    schema["properties"] = {
        name: _strict(item) if name in required else _or_null(_strict(item))
        for name, item in schema["properties"].items()
    }
    schema["required"] = list(schema["properties"])
    schema["additionalProperties"] = False


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    if _takes_null(schema):
        return schema
    kind = schema.get("type")
    if isinstance(kind, str) and "enum" not in schema and "const" not in schema:
        return {**schema, "type": [kind, "null"]}
    if "anyOf" in schema:
        return {**schema, "anyOf": [*schema["anyOf"], {"type": "null"}]}
    return {"anyOf": [schema, {"type": "null"}]}


def _takes_null(schema: Mapping[str, Any]) -> bool:
    kind = schema.get("type")
    if kind == "null" or (isinstance(kind, list) and "null" in kind):
        return True
    if None in schema.get("enum", ()) or ("const" in schema and schema["const"] is None):
        return True
    return any(_takes_null(item) for item in schema.get("anyOf", ()))


def without_nulls(value: Any, schema: Mapping[str, Any]) -> Any:
    """Return `value` without the nulls that only the strict form of `schema` allows."""
    return _without_nulls(value, schema, schema.get("$defs", {}))


def _without_nulls(value: Any, schema: Mapping[str, Any], defs: Mapping[str, Any]) -> Any:
    variants = list(_variants(schema, defs, 0))
    if isinstance(value, list):
        items = next((item["items"] for item in variants if isinstance(item.get("items"), Mapping)), None)
        return value if items is None else [_without_nulls(item, items, defs) for item in value]
    if not isinstance(value, dict):
        return value
    kept = {}
    for name, item in value.items():
        owner = next((variant for variant in variants if name in variant.get("properties", {})), None)
        if owner is None:
            kept[name] = item
            continue
        about = owner["properties"][name]
        is_added = item is None and name not in owner.get("required", ())
        if not is_added or any(_takes_null(variant) for variant in _variants(about, defs, 0)):
            kept[name] = _without_nulls(item, about, defs)
    return kept


def _variants(schema: Mapping[str, Any], defs: Mapping[str, Any], depth: int) -> Iterator[Mapping[str, Any]]:
    """Yield the schema and those it refers to or chooses between."""
    if depth > 8:
        return
    yield schema
    reference = str(schema.get("$ref", "")).removeprefix("#/$defs/")
    if reference in defs:
        yield from _variants(defs[reference], defs, depth + 1)
    for key in ("anyOf", "oneOf", "allOf"):
        for item in schema.get(key, ()):
            yield from _variants(item, defs, depth + 1)
