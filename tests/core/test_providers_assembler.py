"""One response from pieces: its parts are what the deltas showed, and fragments find the call they belong to."""

from __future__ import annotations

from typing import Any

import pytest

from agentx import (
    ModelResponse,
    TextDelta,
    TextPart,
    ThinkingDelta,
    ThinkingPart,
    ToolArgsDelta,
    ToolCall,
    Usage,
    UsageDelta,
)
from agentx.providers import Assembler, Totals


class Heard:
    def __init__(self) -> None:
        self.deltas: list[Any] = []

    async def emit(self, delta: Any) -> None:
        self.deltas.append(delta)

    def check(self, response: ModelResponse) -> None:
        """The deltas, joined, are the parts."""
        for kind, part_kind in ((TextDelta, TextPart), (ThinkingDelta, ThinkingPart)):
            parts = [part for part in response.parts if isinstance(part, part_kind)]
            for index, part in enumerate(parts):
                shown = [one.text for one in self.deltas if isinstance(one, kind) and one.index == index]
                assert "".join(shown) == part.text  # type: ignore[attr-defined]
        for call in response.tool_calls:
            shown = [one for one in self.deltas if isinstance(one, ToolArgsDelta) and one.call_id == call.id]
            assert "".join([one.text for one in shown]) == call.arguments
            assert [one.name for one in shown] == [call.name, *[""] * (len(shown) - 1)]


async def calls_of(*pieces: tuple[Any, Any, Any, Any]) -> list[tuple[str, str, str]]:
    heard = Heard()
    out = Assembler(heard.emit)
    for key, call_id, name, arguments in pieces:
        await out.call(key, id=call_id, name=name, arguments=arguments)
    response = await out.finish("tool_use")
    heard.check(response)
    return [(call.id, call.name, call.arguments) for call in response.tool_calls]


async def test_fragments_belong_to_the_call_of_their_index() -> None:
    found = await calls_of(
        (0, "c1", "add", ""),
        (1, "c2", "mul", '{"a"'),
        (0, "", "", '{"a":1,'),
        (1, None, None, ':3,"b":4}'),
        (0, None, None, '"b":2}'),
    )
    assert found == [("c1", "add", '{"a":1,"b":2}'), ("c2", "mul", '{"a":3,"b":4}')]


async def test_without_an_index_an_id_or_a_name_begins_a_call() -> None:
    found = await calls_of(
        (None, "c1", "add", '{"a":1,"b":2}'),
        (None, "c2", "add", '{"a":5,'),
        (None, None, None, '"b":6}'),
        (None, None, None, ""),
    )
    assert found == [("c1", "add", '{"a":1,"b":2}'), ("c2", "add", '{"a":5,"b":6}')]


async def test_a_server_that_repeats_id_and_name_says_one_call() -> None:
    found = await calls_of((0, "c1", "add", '{"a"'), (0, "c1", "add", ":1}"), (None, "c1", "add", ""))
    assert found == [("c1", "add", '{"a":1}')]


async def test_a_server_that_numbers_every_call_zero_says_several() -> None:
    found = await calls_of((0, "c1", "add", '{"a":1}'), (0, "c2", "add", '{"a":2}'), (0, "c2", None, " "))
    assert found == [("c1", "add", '{"a":1}'), ("c2", "add", '{"a":2} ')]


async def test_an_id_that_changes_from_piece_to_piece_says_one_call() -> None:
    assert await calls_of((0, "c1", "add", "{"), (0, "x9", None, "}")) == [("c1", "add", "{}")]


async def test_calls_without_any_id_get_ids_that_differ() -> None:
    (first, second) = await calls_of((None, None, "add", "{}"), (None, None, "add", "{}"))
    assert first[0] != second[0]
    assert len(first[0]) <= 64


async def test_an_id_that_comes_late_counts_if_nothing_was_shown() -> None:
    assert await calls_of((0, None, None, "{"), (0, "c1", None, ""), (0, None, "add", "}")) == [("c1", "add", "{}")]


@pytest.mark.parametrize("arguments", ["", None])
async def test_a_call_without_arguments_is_a_call(arguments: Any) -> None:
    assert await calls_of((0, "c1", "now", arguments)) == [("c1", "now", "")]


async def test_arguments_that_are_an_object_become_text() -> None:
    assert await calls_of((0, "c1", "add", {"a": [1]})) == [("c1", "add", '{"a":[1]}')]


async def test_parts_stand_in_the_order_in_which_they_began() -> None:
    heard = Heard()
    out = Assembler(heard.emit, provider="acme")
    await out.thinking("hm", 0)
    await out.text("one ", 1)
    await out.call(2, id="c1", name="f", arguments="{")
    await out.text("two", 3)
    await out.text("more", 1)
    await out.thinking("", 0, signature="S")
    await out.call(2, arguments="}")
    response = await out.finish("tool_use", model="m", id="r1", raw_stop_reason="tool_calls")
    heard.check(response)
    assert response.parts == (
        ThinkingPart("hm", "S", None, "acme"),
        TextPart("one more"),
        ToolCall("c1", "f", "{}"),
        TextPart("two"),
    )
    assert (response.model, response.id, response.raw_stop_reason) == ("m", "r1", "tool_calls")


async def test_pieces_without_a_key_go_on_with_what_came_last() -> None:
    out = Assembler(Heard().emit)
    for piece in ("a", "b"):
        await out.text(piece)
    await out.thinking("t")
    await out.text("c")
    response = await out.finish("end_turn")
    assert [getattr(part, "text", "") for part in response.parts] == ["ab", "t", "c"]


async def test_reasoning_that_is_empty_but_signed_stays() -> None:
    out = Assembler(Heard().emit, provider="acme")
    await out.thinking("", 0, signature="S1")
    await out.attach("thinking", {"redacted": "D"}, 1)
    response = await out.finish("end_turn")
    assert response.parts == (ThinkingPart("", "S1", None, "acme"), ThinkingPart("", None, {"redacted": "D"}, "acme"))


async def test_totals_replace_each_other_and_what_is_missing_says_nothing() -> None:
    heard = Heard()
    out = Assembler(heard.emit, totals=Totals(input_has_cache=False))
    await out.count(input=25, cache_read=100, output=1)
    await out.count(input=None, cache_read=100, output=8)
    await out.count(input=40, cache_read=None, output=20, reasoning="many")
    response = await out.finish("end_turn")
    assert response.usage == Usage(40, 20, 100)
    assert [one.usage.output_tokens for one in heard.deltas if isinstance(one, UsageDelta)] == [1, 8, 20]


async def test_nothing_reported_is_not_zero() -> None:
    out = Assembler(Heard().emit)
    await out.count(input=None, output=None)
    assert (await out.finish("end_turn")).usage is None


def test_buckets_do_not_overlap_whatever_a_provider_counts_together() -> None:
    together = Totals(input=100, output=50, cache_read=60, cache_write=10, reasoning=20)
    assert together.usage() == Usage(30, 50, 60, 10, 20)
    apart = Totals(False, False, input=30, output=30, cache_read=60, cache_write=10, reasoning=20)
    assert apart.usage() == Usage(30, 50, 60, 10, 20)
    odd = Totals(input=10, output=1, cache_read=60)
    assert odd.usage() == Usage(0, 1, 60)
