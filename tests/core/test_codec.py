"""What becomes JSON comes back the same."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import functools
import json
import math
import subprocess
import sys
import types
import typing
import uuid
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import attrs
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentx import _events, _messages
from agentx._codec import (
    FORMAT,
    canonical,
    clean_text,
    decode,
    decode_event,
    digest,
    encode,
    encode_event,
    from_plain,
    to_plain,
)
from agentx._errors import CodecError
from agentx._events import EVENTS, Event, PluginEvent, SessionStart, SubAgentEvent, TurnEnd, UnknownEvent, UserInput
from agentx._messages import PARTS, FilePart, Message, OpaquePart, Part, TextPart, ToolResult

ANY_TEXT = st.text(st.characters(exclude_categories=()))
THOROUGH = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
CLEAN_TEXT = ANY_TEXT.map(clean_text)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
DECIMALS = st.decimals(allow_nan=False, allow_infinity=False)


def json_values(text: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    scalars = st.none() | st.booleans() | st.integers() | FINITE | text
    return st.recursive(
        scalars, lambda inner: st.lists(inner) | st.dictionaries(CLEAN_TEXT, inner, max_size=3), max_leaves=5
    )


@functools.cache
def instances(cls: Any, text: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    """Any instance of a class of events or messages, from the annotations of its fields."""
    hints = typing.get_type_hints(cls, {**vars(_messages), **vars(_events), "Decimal": Decimal})
    fields = {field.name: values(hints[field.name], text) for field in attrs.fields(cls)}
    if cls is FilePart:
        sources = st.fixed_dictionaries({"data": st.binary()}) | st.sampled_from([{"url": "u"}, {"file_id": "f"}])
        return st.builds(lambda source, **rest: FilePart(**{**rest, **source}), sources, media_type=text, name=text)
    if cls is OpaquePart:
        fields["provider"] = text.filter(bool)
    return st.builds(cls, **fields)


def values(annotation: Any, text: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return st.one_of([values(item, text) for item in args])
    if origin is tuple:
        return st.lists(values(args[0], text), max_size=2).map(tuple)
    if origin is Mapping:
        return st.dictionaries(CLEAN_TEXT, json_values(text), max_size=3)
    if origin is typing.Literal:
        return st.sampled_from(args)
    if annotation is Part:
        return st.deferred(lambda: st.one_of([instances(cls, text) for cls in list[Any](PARTS.values())]))
    if annotation is Event:
        return instances(UserInput, text) | instances(TurnEnd, text)
    if attrs.has(annotation):
        return st.deferred(lambda: instances(annotation, text))
    return {
        str: text,
        int: st.integers(),
        float: FINITE,
        bool: st.booleans(),
        bytes: st.binary(),
        Decimal: DECIMALS,
        type(None): st.none(),
    }[annotation]


@pytest.mark.parametrize("cls", EVENTS.values(), ids=EVENTS)
@THOROUGH
@given(data=st.data())
def test_every_event_comes_back_equal(cls: Any, data: st.DataObject) -> None:
    event = data.draw(instances(cls, CLEAN_TEXT))
    assert decode_event(encode_event(event)) == event


@pytest.mark.parametrize("cls", EVENTS.values(), ids=EVENTS)
@THOROUGH
@given(data=st.data())
def test_events_with_any_text_are_valid_json_and_stay_what_they_became(cls: Any, data: st.DataObject) -> None:
    line = encode_event(data.draw(instances(cls, ANY_TEXT)))
    assert "\0" not in str(json.loads(line.decode("utf-8")))
    assert b"\n" not in line
    assert encode_event(decode_event(line)) == line


@pytest.mark.parametrize("cls", PARTS.values(), ids=PARTS)
@THOROUGH
@given(data=st.data())
def test_every_part_comes_back_equal(cls: Any, data: st.DataObject) -> None:
    part = data.draw(instances(cls, CLEAN_TEXT))
    assert from_plain(decode(encode(part)), Part) == part
    message = Message("user", (part,))
    assert from_plain(to_plain(message), Message) == message


@THOROUGH
@given(ANY_TEXT)
def test_cleaned_text_is_utf8_without_nul_and_is_clean(text: str) -> None:
    cleaned = clean_text(text)
    assert "\0" not in cleaned.encode().decode()
    assert clean_text(cleaned) == cleaned


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("a\0b", "a�b"),
        ("x\ud800y", "x�y"),
        (b"\xff".decode(errors="surrogateescape"), "�"),
        ("\\u0000 and \\ud800", "\\u0000 and \\ud800"),
        ("\ud83d\ude00", "😀"),
        ("plain", "plain"),
        ("blåbær 😀", "blåbær 😀"),
    ],
)
def test_text_that_a_store_cannot_hold_is_replaced(text: str, cleaned: str) -> None:
    assert clean_text(text) == cleaned
    event = UserInput(1, 1.0, "t", Message("user", (TextPart(text), ToolResult("c", "f", (TextPart(text),)))))
    reloaded = decode_event(encode_event(event))
    assert isinstance(reloaded, UserInput)
    assert reloaded.message.text == cleaned


def test_text_that_is_clean_is_not_copied() -> None:
    text = "ø" * 1000
    assert clean_text(text) is text


def test_an_event_of_an_unknown_kind_is_written_as_it_came() -> None:
    line = '{"kind":"moon.phase","seq":3,"time":1.5,"turn_id":null,"phase":{"full":[true]}}'
    event = decode_event(line)
    assert event == UnknownEvent(3, 1.5, None, "moon.phase", {"phase": {"full": [True]}})
    assert encode_event(event).decode() == line


def test_a_part_of_an_unknown_kind_is_written_as_it_came() -> None:
    raw = {"role": "user", "parts": [{"kind": "hologram", "beams": 3}]}
    message = from_plain(raw, Message)
    assert message.parts == (OpaquePart("", {"kind": "hologram", "beams": 3}),)
    assert to_plain(message) == raw


def test_keys_that_a_newer_version_added_to_a_known_event_are_dropped() -> None:
    event = TurnEnd(1, 1.0, "t", "completed")
    newer = {**decode(encode_event(event)), "mood": "good"}
    assert decode_event(encode(newer)) == event


def test_a_plugins_event_and_a_sub_agents_event_come_back() -> None:
    inner = PluginEvent(1, 1.0, "t", "guard.budget", "warned", {"left": "0.10"})
    outer = SubAgentEvent(0, 1.0, "t", ("c1", "c2"), inner)
    assert decode_event(encode_event(outer)) == outer


def test_the_log_states_the_format_that_this_version_writes() -> None:
    assert SessionStart(1, 1.0, None, "agent").format == FORMAT


def test_a_log_of_a_newer_format_is_refused() -> None:
    with pytest.raises(CodecError, match="use a newer one"):
        decode_event(encode_event(TurnEnd(1, 1.0, "t", "completed")), format=FORMAT + 1)


@pytest.mark.parametrize(
    "line",
    [
        "",
        '{"kind":"turn.en',
        "[]",
        "{}",
        '{"kind":7,"seq":1}',
        '{"kind":"turn.end","seq":1,"time":1,"turn_id":null,"status":[]}',
        '{"kind":"user.input","seq":1,"time":1,"turn_id":null,"message":{"role":"user","parts":[{"kind":"file"}]}}',
        '{"kind":"user.input","seq":1,"time":NaN,"turn_id":null}',
        b"\xff\xfe",
        "[" * 100_000,
    ],
)
def test_what_is_no_event_is_a_codec_error(line: str | bytes) -> None:
    with pytest.raises(CodecError):
        decode_event(line)


class Colour(enum.Enum):
    RED = "red"
    BLUE = 2


@attrs.frozen
class Entry:
    cost: Decimal = Decimal(0)
    _note: str = ""
    size: int = attrs.field(default=0, converter=int)


@attrs.frozen
class State:
    spent: Decimal = Decimal("1.10")
    entries: tuple[Entry, ...] = ()
    pair: tuple[int, str] = (1, "a")
    names: frozenset[str] = frozenset()
    colour: Colour | None = None
    since: datetime.datetime | None = None
    day: datetime.date = datetime.date(2024, 2, 29)
    wait: datetime.timedelta = datetime.timedelta(seconds=1.5)
    id: uuid.UUID | None = None
    blob: bytes = b"\0\xff"
    counts: Mapping[str, int] = types.MappingProxyType({})
    by_number: types.MappingProxyType[int, Decimal] = types.MappingProxyType({})
    anything: str | int | float | bool | None = None
    best: Entry | None = None


entries = st.builds(Entry, cost=DECIMALS, note=CLEAN_TEXT, size=st.integers())
states = st.builds(
    State,
    spent=DECIMALS,
    entries=st.lists(entries, max_size=2).map(tuple),
    pair=st.tuples(st.integers(), CLEAN_TEXT),
    names=st.frozensets(CLEAN_TEXT),
    colour=st.none() | st.sampled_from(Colour),
    since=st.none() | st.datetimes(timezones=st.none() | st.just(datetime.UTC)),
    day=st.dates(),
    wait=st.timedeltas(datetime.timedelta(-999), datetime.timedelta(999)),
    id=st.none() | st.uuids(),
    blob=st.binary(),
    counts=st.dictionaries(CLEAN_TEXT, st.integers()),
    by_number=st.dictionaries(st.integers(), DECIMALS).map(types.MappingProxyType),
    anything=st.none() | CLEAN_TEXT | st.integers() | FINITE | st.booleans(),
    best=st.none() | entries,
)


@THOROUGH
@given(states)
def test_a_state_class_comes_back_equal(state: State) -> None:
    reloaded = from_plain(decode(encode(state)), State)
    assert reloaded == state
    assert type(reloaded.anything) is type(state.anything)


def test_a_state_of_another_version_keeps_what_still_has_a_field() -> None:
    assert from_plain({"spent": "2.50", "gone": 1}, State) == State(spent=Decimal("2.50"))


def test_values_that_do_not_fit_the_class_are_a_codec_error_naming_it() -> None:
    with pytest.raises(CodecError, match="State"):
        from_plain({"spent": "a lot"}, State)


@dataclasses.dataclass
class Point:
    x: int
    y: float


class Struct(msgspec.Struct, rename="camel", tag="s"):
    some_field: int
    other: int | msgspec.UnsetType = msgspec.UNSET


class Name(str):
    """A subclass, as markup libraries have."""


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        ([True, 1, 1.5, "ø"], '[true,1,1.5,"ø"]'),
        (2**70, str(2**70)),
        ({"b": 1, "a": 2}, '{"b":1,"a":2}'),
        ({7: "a", None: "b", True: "c", Colour.RED: "d"}, '{"7":"a","null":"b","true":"c","red":"d"}'),
        (Decimal("1.10"), '"1.10"'),
        (datetime.date(2024, 2, 29), '"2024-02-29"'),
        (datetime.datetime(2024, 2, 29, 1, 2, 3, tzinfo=datetime.UTC), '"2024-02-29T01:02:03Z"'),
        (uuid.UUID(int=0), '"00000000-0000-0000-0000-000000000000"'),
        (b"\0\xff", '"AP8="'),
        (bytearray(b"\0\xff"), '"AP8="'),
        (Colour.BLUE, "2"),
        ({3, 1, 2}, "[1,2,3]"),
        (frozenset({"b", "a"}), '["a","b"]'),
        (frozenset({"b", 1, None}), '[1,"b",null]'),
        (Path("a/b"), '"a/b"'),
        (Path("a\udcffb"), '"a�b"'),
        ((1, (2,)), "[1,[2]]"),
        (range(3), "[0,1,2]"),
        (Point(1, 2.0), '{"x":1,"y":2.0}'),
        (Struct(1), '{"type":"s","someField":1}'),
        (Entry(Decimal(1), "n"), '{"cost":"1","_note":"n","size":0}'),
        (Name("x\0"), '"x�"'),
        (types.MappingProxyType({"a": 1}), '{"a":1}'),
        (FilePart("text/plain", data=b"a"), '{"kind":"file","media_type":"text/plain","data":"YQ==","url":null,'
         '"file_id":null,"name":null,"provider":""}'),
    ],
)  # fmt: skip
def test_values_have_one_json_form(value: Any, text: str) -> None:
    assert encode(value).decode() == text


def test_pydantic_models_are_dumped() -> None:
    pydantic = pytest.importorskip("pydantic")
    model = pydantic.create_model("Model", price=(Decimal, ...), name=(str, "\0"))
    assert encode([model(price=Decimal("1.10"))]).decode() == '[{"price":"1.10","name":"�"}]'


def circle() -> list[Any]:
    loop: list[Any] = []
    loop.append(loop)
    return loop


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (math.nan, "nan is no JSON number"),
        ({"a": [1, {"b": math.inf}]}, r"inf is no JSON number; use None or a string at \.a\[1\]\.b"),
        (Point(1, -math.inf), r"at \.y"),
        (Decimal("NaN"), "NaN"),
        (object(), "object cannot become JSON"),
        ([1, lambda: 1], r"function cannot become JSON.* at \[1\]"),
        ((item for item in "ab"), "generator cannot become JSON"),
        ({(1, 2): 1}, "key of type tuple"),
        ({1: "a", "1": "b"}, "two keys become '1'"),
        (Point, "type cannot become JSON"),
        (circle(), "contains itself"),
        ([10**5000], "cannot become JSON"),
    ],
)
def test_what_cannot_become_json_is_refused_with_its_place(value: Any, problem: str) -> None:
    with pytest.raises(CodecError, match=problem):
        encode(value)


@THOROUGH
@given(json_values(ANY_TEXT))
def test_equal_values_have_one_canonical_form_and_digest(value: Any) -> None:
    shuffled = json.loads(json.dumps(to_plain(value)), object_pairs_hook=lambda pairs: dict(reversed(pairs)))
    assert canonical(value) == canonical(shuffled)
    assert digest(value) == digest(shuffled)
    assert len(digest(value)) == 64


def test_sorting_does_not_depend_on_the_hash_seed() -> None:
    code = "from agentx._codec import encode; print(encode({'b', 'a', 'c', 'ø', (1, 2), None, 3.5}).decode())"
    texts = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path), "PYTHONIOENCODING": "utf-8"},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(texts) == 1


def test_cattrs_is_imported_only_for_reading_classes() -> None:
    code = "import sys; from agentx._codec import encode, decode; decode(encode([1])); print('cattrs' in sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": ":".join(sys.path)}, capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "False"
