"""Strict JSON Schemas: what providers enforce, and the way back."""

from __future__ import annotations

from typing import Any

import pytest

from agentx._schema import strict_schema, without_nulls


def object_of(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required}


def test_every_property_becomes_required_and_one_that_was_not_may_be_null() -> None:
    strict = strict_schema(object_of(["city"], city={"type": "string"}, days={"type": "integer", "default": 3}))
    assert strict == {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": ["integer", "null"]}},
        "required": ["city", "days"],
        "additionalProperties": False,
    }


@pytest.mark.parametrize(
    ("optional", "expected"),
    [
        ({"type": "string"}, {"type": ["string", "null"]}),
        ({"type": ["string", "null"]}, {"type": ["string", "null"]}),
        ({"enum": ["a", "b"]}, {"anyOf": [{"enum": ["a", "b"]}, {"type": "null"}]}),
        ({"type": "string", "enum": ["a"]}, {"anyOf": [{"type": "string", "enum": ["a"]}, {"type": "null"}]}),
        ({"const": 1}, {"anyOf": [{"const": 1}, {"type": "null"}]}),
        ({"$ref": "#/$defs/A"}, {"anyOf": [{"$ref": "#/$defs/A"}, {"type": "null"}]}),
        (
            {"anyOf": [{"type": "string"}, {"type": "integer"}]},
            {"anyOf": [{"type": "string"}, {"type": "integer"}, {"type": "null"}]},
        ),
        ({"oneOf": [{"type": "string"}, {"type": "null"}]}, {"anyOf": [{"type": "string"}, {"type": "null"}]}),
    ],
)
def test_optional_properties_take_null_in_the_form_their_schema_has(
    optional: dict[str, Any], expected: dict[str, Any]
) -> None:
    strict = strict_schema(object_of([], field=optional))
    assert strict is not None
    assert strict["properties"]["field"] == expected


def test_objects_in_lists_definitions_and_choices_are_closed_too() -> None:
    inner = object_of(["a"], a={"type": "string"}, b={"type": "string"})
    schema = object_of(["list", "ref", "any"], list={"type": "array", "items": inner}, ref={"$ref": "#/$defs/X"})
    schema["properties"]["any"] = {"anyOf": [inner, {"type": "string"}]}
    schema["$defs"] = {"X": inner}
    strict = strict_schema(schema)
    assert strict is not None
    places = [
        strict["properties"]["list"]["items"],
        strict["properties"]["any"]["anyOf"][0],
        strict["$defs"]["X"],
    ]
    for place in places:
        assert place["required"] == ["a", "b"]
        assert place["additionalProperties"] is False


@pytest.mark.parametrize(
    "field",
    [
        {"type": "object", "additionalProperties": {"type": "integer"}},
        {"type": "object"},
        {"type": "array", "prefixItems": [{"type": "string"}]},
        {"not": {"type": "string"}},
        True,
        {"allOf": [{"type": "string"}, {"minLength": 1}]},
    ],
)
def test_what_no_provider_can_enforce_has_no_strict_form(field: Any) -> None:
    assert strict_schema(object_of(["field"], field=field)) is None


def test_only_an_object_has_a_strict_form() -> None:
    assert strict_schema({"type": "array", "items": {"type": "string"}}) is None


def test_what_an_answer_may_miss_is_left_out_and_what_a_provider_enforces_stays() -> None:
    strict = strict_schema(
        object_of(["tags"], tags={"type": "array", "items": {"type": "string", "pattern": "^a"}, "uniqueItems": True})
    )
    assert strict is not None
    assert strict["properties"]["tags"] == {"type": "array", "items": {"type": "string", "pattern": "^a"}}


def test_the_schema_given_is_not_changed() -> None:
    schema = object_of([], days={"type": "integer", "default": 3})
    before = repr(schema)
    strict_schema(schema)
    assert repr(schema) == before


def test_nulls_that_only_the_strict_form_allows_go_away() -> None:
    inner = object_of(["a"], a={"type": "string"}, b={"type": "string"})
    schema = object_of(
        ["must"],
        must={"type": ["string", "null"]},
        own={"type": ["string", "null"]},
        added={"type": "string"},
        items={"type": "array", "items": {"$ref": "#/$defs/X"}},
        choice={"anyOf": [{"$ref": "#/$defs/X"}, {"type": "string"}]},
    )
    schema["$defs"] = {"X": inner}
    value = {
        "must": None,
        "own": None,
        "added": None,
        "items": [{"a": "1", "b": None}],
        "choice": {"a": "2", "b": None},
        "unknown": None,
    }
    assert without_nulls(value, schema) == {
        "must": None,
        "own": None,
        "items": [{"a": "1"}],
        "choice": {"a": "2"},
        "unknown": None,
    }


def test_a_schema_that_refers_to_itself_is_walked_as_deep_as_the_value() -> None:
    node = object_of(["name"], name={"type": "string"}, next={"$ref": "#/$defs/Node"})
    schema = {**node, "$defs": {"Node": node}}
    assert strict_schema(schema) is not None
    value = {"name": "a", "next": {"name": "b", "next": None}}
    assert without_nulls(value, schema) == {"name": "a", "next": {"name": "b"}}
