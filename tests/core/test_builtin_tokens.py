"""How many tokens a request may use, as limits reserve them."""

from __future__ import annotations

import cProfile
import gc
import pstats
import string
from collections.abc import Sequence
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentx import (
    FilePart,
    Message,
    ModelRequest,
    ModelSettings,
    OpaquePart,
    Part,
    TextPart,
    ThinkingPart,
    ToolCall,
    ToolResult,
    ToolSpec,
    Usage,
)
from agentx._tokens import TokenMeter, message_tokens, text_tokens


def say(text: str, role: Any = "user") -> Message:
    return Message(role, (TextPart(text),))


def request(messages: Sequence[Message], **changes: Any) -> ModelRequest:
    return attrs.evolve(ModelRequest("acme/large", messages), **changes)


@pytest.mark.parametrize(("text", "tokens"), [("", 0), ("abc", 1), ("abcd", 2), ("漢字", 2), ("🦊", 2)])
def test_three_bytes_of_text_are_a_token(text: str, tokens: int) -> None:
    assert text_tokens(text) == tokens


@pytest.mark.parametrize(
    "part",
    [
        TextPart("x" * 300),
        ToolCall("c1", "add", '{"text": "' + "x" * 300 + '"}'),
        ToolResult("c1", "add", (TextPart("x" * 300),)),
        ThinkingPart("x" * 200, signature="s" * 100),
        ThinkingPart(data={"sealed": "x" * 300}),
        OpaquePart("acme", {"item": "x" * 300}),
        FilePart("image/png", data=b"\x89PNG"),
        FilePart("application/pdf", url="https://example.org/a.pdf"),
        FilePart("application/pdf", data=b"x" * 64_000),
        FilePart("text/plain", data=b"x" * 300),
    ],
    ids=lambda part: f"{part.kind}",
)
def test_every_kind_of_part_counts(part: Part) -> None:
    assert message_tokens(Message("user", (part,))) >= 100


def test_a_text_that_no_utf8_can_hold_counts_too() -> None:
    assert text_tokens("\ud800" * 3) == 3


def test_what_is_sent_beside_the_messages_counts() -> None:
    meter, plain = TokenMeter(), request([say("hi")])
    spec = ToolSpec("add", "Add two numbers." * 10, {"type": "object"})
    least = meter.input_tokens(plain)
    for more in ({"instructions": "Be brief." * 30}, {"tools": (spec,)}, {"context": ("It is Monday." * 20,)}):
        assert meter.input_tokens(attrs.evolve(plain, **more)) > least + 50


def test_an_answer_has_at_most_what_the_request_says_or_else_the_meter() -> None:
    meter = TokenMeter(max_output=1000)
    assert meter.output_tokens(request([say("hi")])) == 1000
    limited = request([say("hi")], settings=ModelSettings(max_tokens=50))
    assert meter.output_tokens(limited) == 50
    assert meter.tokens(limited) == meter.input_tokens(limited) + 50


texts = st.text(string.ascii_letters + "é漢🦊", max_size=40)


@given(st.lists(texts, min_size=1, max_size=12))
def test_a_conversation_that_grows_is_counted_as_if_it_were_new(said: list[str]) -> None:
    meter, messages = TokenMeter(), [say(text) for text in said]
    for length in range(1, len(messages) + 1):
        grown = request(messages[:length])
        assert meter.input_tokens(grown) == TokenMeter().input_tokens(grown)


@given(st.lists(texts, min_size=2, max_size=8), st.data())
def test_a_conversation_that_was_cut_is_counted_anew(said: list[str], data: st.DataObject) -> None:
    meter, messages = TokenMeter(), [say(text) for text in said]
    meter.input_tokens(request(messages))
    cut = messages[data.draw(st.integers(0, len(messages) - 1)) :]
    assert meter.input_tokens(request(cut)) == TokenMeter().input_tokens(request(cut))


def test_what_was_reported_takes_the_place_of_the_estimate() -> None:
    meter, messages = TokenMeter(), [say("x" * 3000)]
    first = request(messages, instructions="Be brief.")
    assert meter.input_tokens(first) > 1000
    meter.learn(first, Usage(100, 40, 200, 50))
    assert meter.input_tokens(first) == 350
    answer = say("y" * 30, "assistant")
    assert meter.input_tokens(request([*messages, answer], instructions="Be brief.")) == 350 + message_tokens(answer)


@pytest.mark.parametrize("usage", [Usage(0, 10), Usage(5, 5, estimated=True)], ids=["nothing", "an estimate"])
def test_a_report_that_says_nothing_is_not_learnt_from(usage: Usage) -> None:
    meter, long = TokenMeter(), request([say("x" * 3000)])
    before = meter.input_tokens(long)
    meter.learn(long, usage)
    assert meter.input_tokens(long) == before


def test_another_model_is_counted_for_itself() -> None:
    meter, messages = TokenMeter(), [say("x" * 3000)]
    meter.learn(request(messages), Usage(5, 5))
    assert meter.input_tokens(request(messages, model="acme/small")) > 1000


def test_conversations_side_by_side_do_not_disturb_each_other() -> None:
    meter = TokenMeter()
    pairs = [[say(f"question {number}"), say("answer" * number, "assistant")] for number in range(20)]
    for pair in pairs:
        meter.input_tokens(request(pair[:1]))
    for pair in pairs:
        assert meter.input_tokens(request(pair)) == TokenMeter().input_tokens(request(pair))


def test_a_request_without_messages_has_what_is_around_them() -> None:
    assert TokenMeter().input_tokens(request([], instructions="x" * 300)) >= 100


def test_a_step_costs_the_same_however_long_the_history_is() -> None:
    def calls_at(length: int) -> int:
        meter, messages = TokenMeter(), [say("some text") for _ in range(length)]
        meter.input_tokens(request(messages))
        grown = request([*messages, say("call", "assistant"), say("result", "tool")])
        profile = cProfile.Profile()
        gc.disable()  # what listens to the collector would be counted too
        profile.enable()
        meter.tokens(grown)
        profile.disable()
        gc.enable()
        return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]  # it is there

    assert calls_at(10) == calls_at(5000) < 60
