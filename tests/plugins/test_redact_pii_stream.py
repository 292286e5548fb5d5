"""A text that arrives in pieces is redacted as the whole is (CASES G19)."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentx import TextDelta, ThinkingDelta, ToolArgsDelta
from agentx_redact_pii._deltas import DeltaRedactor
from agentx_redact_pii._islands import LONGEST
from agentx_redact_pii._json import JsonRedactor
from agentx_redact_pii._masker import Masker
from agentx_redact_pii._stream import TextRedactor
from plugins.test_redact_pii_common import (
    CARD,
    EMAIL,
    FIND,
    FRAGMENTS,
    GERMAN_IBAN,
    IBAN,
    JWT,
    PHONE,
    PRIVATE_KEY,
    TOKEN,
    US_PHONE,
    masked,
    new_vault,
    pieces_of,
    recognisers,
    streamed,
)

TEXTS = [
    f"Mail {EMAIL} or {CARD}.",
    f"{IBAN}, {GERMAN_IBAN} and {GERMAN_IBAN.replace(' ', '')}!",
    f"Call {PHONE} or {US_PHONE}; {PHONE} {CARD} 12/27",
    f"key={TOKEN} {JWT} Bearer abcdefghij0123456789 https://u:p@h.example/x",
    f"{PRIVATE_KEY} and then",
    "no 4111 apples, GB29 pears. Or 3.14! bearer of GB29 NWBK news\n- 1\n- 2",
    r'{"a": "x\nbob@acme.example", "b": "\\"}',
    "-----BEGIN foo-----\n\n--- hi -----BEGIN RSA PRIVATE KEY----- hm",
]


def splits(text: str) -> Iterator[list[str]]:
    """Yield the text whole, in every two pieces and in single characters."""
    yield [text]
    yield list(text)
    for at in range(len(text)):
        yield [text[:at], text[at:]]


@pytest.mark.parametrize("text", TEXTS)
def test_every_split_gives_the_redaction_of_the_whole(text: str) -> None:
    whole = masked(text)
    assert EMAIL not in whole
    for deltas in splits(text):
        assert "".join(streamed(deltas)) == whole


def flags(outputs: list[Any]) -> str:
    """Return for each character of the text whether it was masked."""
    return "".join([("." if kind is None else "x") * len(text) for out in outputs for text, kind in out])


WORDS = st.sampled_from(FRAGMENTS)


@given(st.data())
def test_whatever_the_text_and_the_split_nothing_of_a_match_is_ever_out(data: st.DataObject) -> None:
    text = data.draw(st.lists(WORDS | st.text(max_size=2), max_size=14).map("".join))
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=20).map(sorted))
    deltas = [text[a:b] for a, b in pairwise([0, *cuts, len(text)])]
    find = data.draw(st.sampled_from([FIND, recognisers("US"), recognisers("DE")]))
    whole, split = pieces_of([text], find), pieces_of(deltas, find)
    assert flags(split) == flags(whole)
    assert "".join([piece for out in split for piece, _ in out]) == text
    assert "".join(streamed(deltas, find)) == "".join(streamed([text], find))


def test_nothing_of_a_match_is_out_before_its_end() -> None:
    for value in (EMAIL, CARD, IBAN, PHONE, TOKEN, JWT):
        redactor = TextRedactor(FIND)
        out = "".join([piece for char in f"Say: {value}" for piece, _ in redactor.feed(char)])
        assert out == "Say: "
        assert redactor.held == value


@pytest.mark.parametrize(
    ("text", "held"),
    [
        ("The end", "end"),  # may become end@…
        ("The end ", ""),
        ("The end,", ""),
        ("A list:\n- ", "- "),  # - 12 34 … may be a number
        ("Room 4111 ", "4111 "),  # may be a card
        ("Room 4111 i", "i"),
        ("GB29 ", "GB29 "),
        ("GB29 N", "GB29 N"),
        ("GB29 n", "GB29 n"),
        ("GB29 7", "GB29 7"),  # a number may follow a number
        ("GB29 !", "!"),
        ("FR14 x", "x"),  # a French IBAN goes on with a digit
        ("(see above) ", "above) "),
        ("x\n-----BEGIN ", "-----BEGIN "),
        ("x\n-----BEGIN\n", ""),
        ("a bearer ", "bearer "),
        ("path\\", "\\"),
    ],
)
def test_only_what_could_become_a_match_is_held(text: str, held: str) -> None:
    redactor = TextRedactor(FIND)
    redactor.feed(text)
    assert redactor.held == held


@pytest.mark.parametrize(
    "unit", ["a", "1", "1 ", "ab@", "/", "+", "DE", "-----BEGIN ", "GB29 NWBK ", TOKEN, "eyJhbGciOiJI.", "\\"]
)
def test_what_is_held_is_bounded_whatever_comes(unit: str) -> None:
    redactor = TextRedactor(FIND)
    most = 0
    for _ in range(3 * LONGEST // len(unit)):
        redactor.feed(unit)
        most = max(most, len(redactor.held))
    assert most <= LONGEST + len(unit)


def test_a_token_longer_than_the_bound_is_masked_to_its_end_in_pieces_that_restore_whole() -> None:
    text = "key sk-" + "a1B2" * 6000 + " end"
    masker = Masker(FIND, new_vault())
    whole = masker.text(text)
    assert whole == "key [TOKEN_1][TOKEN_2][TOKEN_3] end"
    assert masker.vault.restore(whole) == text
    assert "".join(streamed(["x" * 0, *[text[i : i + 7] for i in range(0, len(text), 7)]])) == whole


def test_a_match_across_the_border_of_two_windows_is_found() -> None:
    for offset in range(LONGEST - 1100, LONGEST + 100, 7):
        text = "x" * offset + "/" + EMAIL
        assert masked(text) == "x" * offset + "/[EMAIL_1]"
        assert "".join(streamed(text[i : i + 50] for i in range(0, len(text), 50))) == masked(text)


def calls_of(deltas: list[str]) -> int:
    redactor = TextRedactor(FIND)
    count = 0

    def profile(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        for delta in deltas:
            redactor.feed(delta)
        redactor.finish()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("text", ["The quick brown fox, 12 dogs. ", f"{EMAIL} ", "abcd", "12 34 "])
def test_work_grows_with_the_length_of_the_answer_and_not_faster(text: str) -> None:
    once, twice = [[(text * n)[i : i + 4] for i in range(0, len(text) * n, 4)] for n in (400, 800)]
    assert calls_of(twice) < 2.1 * calls_of(once) + 200


# Deltas


def deltas_out(deltas: list[Any]) -> list[Any]:
    redactor = DeltaRedactor(FIND, new_vault().placeholder)
    return [out for delta in deltas for out in redactor.feed(delta)] + list(redactor.finish())


def test_each_text_each_thinking_and_each_call_is_a_text_of_its_own() -> None:
    out = deltas_out(
        [
            ThinkingDelta("so bob@"),
            TextDelta("ask bob@"),
            ToolArgsDelta('{"to": "bob@', "c1", "send"),
            ToolArgsDelta('{"to": "eve@', "c2", "send"),
            ThinkingDelta("acme.example"),
            TextDelta("acme.example"),
            ToolArgsDelta('acme.example"}', "c1"),
            ToolArgsDelta('acme.example"}', "c2"),
        ]
    )

    def joined(kind: type, call_id: str = "") -> str:
        return "".join([d.text for d in out if type(d) is kind and getattr(d, "call_id", "") == call_id])

    assert joined(ThinkingDelta) == "so [EMAIL_1]"
    assert joined(TextDelta) == "ask [EMAIL_1]"
    assert joined(ToolArgsDelta, "c1") == '{"to": "[EMAIL_1]"}'
    assert joined(ToolArgsDelta, "c2") == '{"to": "[EMAIL_2]"}'
    assert [d.name for d in out if type(d) is ToolArgsDelta and d.name] == ["send", "send"]


def test_a_text_part_is_given_out_whole_before_a_later_one_begins() -> None:
    out = deltas_out([TextDelta("The ans", 0), TextDelta("is ", 1), TextDelta("42", 1)])
    assert out == [TextDelta("The ", 0), TextDelta("ans", 0), TextDelta("is ", 1), TextDelta("42", 1)]


def test_the_end_gives_everything_out_exactly_once() -> None:
    redactor = DeltaRedactor(FIND, new_vault().placeholder)
    assert redactor.feed(TextDelta("Mail bob@")) == [TextDelta("Mail ")]
    assert redactor.finish() == [TextDelta("bob@")]
    assert redactor.finish() == []


# JSON

JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | WORDS
    | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS | st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


def redacted_json(deltas: list[str], masker: Masker) -> str:
    redactor = JsonRedactor(FIND, masker.vault.placeholder)
    return "".join([redactor.feed(delta) for delta in deltas]) + redactor.finish()


@given(JSON_VALUES, st.booleans(), st.data())
def test_json_stays_json_in_which_every_text_is_masked(value: Any, ascii_only: bool, data: st.DataObject) -> None:
    text = json.dumps({"x": value}, ensure_ascii=ascii_only)
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=20).map(sorted))
    masker = Masker(FIND, new_vault())
    out = redacted_json([text[a:b] for a, b in pairwise([0, *cuts, len(text)])], masker)
    assert out == redacted_json([text], Masker(FIND, new_vault()))
    assert masker.json(out) == out
    for found in texts_in(json.loads(out)):
        assert masker.text(found) == found
    if not masker.vault.form.search(out):
        assert out == text


def texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from texts_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from texts_in(item)


def test_what_is_escaped_is_found_and_what_stays_keeps_its_spelling() -> None:
    masker = Masker(FIND, new_vault())
    text = r'{"to": "bob\u0040acme.example \ud83d\ude00 caf\u00e9 \/x", "card": 4111111111111111, "n": 7}'
    expected = r'{"to": "[EMAIL_1] \ud83d\ude00 caf\u00e9 \/x", "card": "[CARD_1]", "n": 7}'
    for deltas in splits(text):
        assert redacted_json(deltas, masker) == expected
    assert masker.vault.restore("[EMAIL_1]") == EMAIL


@pytest.mark.parametrize(
    "text", ["{bad bob@acme.example", '{"a": "bob@acme.example', '"\\', "\\u00", '{"a": "\\ux bob@acme.example"}', ""]
)
def test_text_that_is_no_json_is_redacted_all_the_same(text: str) -> None:
    outputs = {redacted_json(deltas, Masker(FIND, new_vault())) for deltas in splits(text)}
    (out,) = outputs
    assert EMAIL not in out
    assert len(out) >= min(len(text), 3)
