"""Answers of the Messages API: whatever way they come, one response."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentx import (
    BadResponseError,
    ContextWindowError,
    Message,
    ModelRequest,
    ModelResponse,
    OpaquePart,
    OverloadedError,
    ServerError,
    StreamCutError,
    TextDelta,
    TextPart,
    ThinkingDelta,
    ThinkingPart,
    ToolArgsDelta,
    ToolCall,
    Usage,
    UsageDelta,
)
from agentx_model_anthropic import AnthropicModel
from peers.messages_api import call, events, found, page, redacted, says, searches, text, thought
from peers.wire import WireServer, named, reply, sse

ASK = ModelRequest("anthropic/x", (Message("user", (TextPart("Hi"),)),))


async def respond(answer: Any, request: ModelRequest = ASK, **settings: Any) -> tuple[ModelResponse, list[Any]]:
    deltas: list[Any] = []

    async def emit(delta: Any) -> None:
        deltas.append(delta)

    with WireServer([answer]) as server:
        model = AnthropicModel("claude-opus-5", api_key="k", base_url=server.url, **settings)
        try:
            return await model.respond(request, emit), deltas
        finally:
            await model.aclose()


CITED = {
    "type": "web_search_result_location",
    "cited_text": "42",
    "url": "https://a.example",
    "title": "A page",
    "encrypted_index": "aW5k",
}
ANSWERS = {
    "text": says(text("Hello, wörld 👋")),
    "thinking": says(thought("let me see", "S1"), thought("", "S2"), redacted("D"), text("ok")),
    "calls": says(text("I add."), call("c1", "add", a=1, b=[2, {"c": None}]), call("c2", "now"), stop="tool_use"),
    "search": says(searches("s1", "x"), found("s1", page("https://a.example")), text("42", citations=[CITED])),
    "pause": says(text("searching"), searches("s1", "x"), stop="pause_turn"),
    "refusal": says(text("no"), stop="refusal"),
    "empty": says(),
}


@pytest.mark.parametrize("name", ANSWERS)
async def test_an_answer_is_the_same_streamed_and_in_one_piece(name: str) -> None:
    message = ANSWERS[name]
    streamed, deltas = await respond(sse(*named(*events(message))))
    whole, _ = await respond(reply(200, {}, message), stream=False)
    assert streamed == whole
    shown = "".join([delta.text for delta in deltas if isinstance(delta, TextDelta)])
    assert shown == streamed.text == "".join([b["text"] for b in message["content"] if b["type"] == "text"])


@pytest.mark.parametrize("name", ANSWERS)
async def test_a_server_may_answer_in_the_other_form_than_it_was_asked_for(name: str) -> None:
    message = ANSWERS[name]
    streamed, _ = await respond(sse(*named(*events(message))), stream=False)
    whole, _ = await respond(reply(200, {}, message), stream=True)
    assert streamed == whole


async def test_every_kind_of_block_becomes_its_part() -> None:
    response, deltas = await respond(sse(*named(*events(ANSWERS["thinking"]))))
    assert response.parts == (
        ThinkingPart("let me see", "S1", None, "anthropic"),
        ThinkingPart("", "S2", None, "anthropic"),
        ThinkingPart("", None, redacted("D"), "anthropic"),
        TextPart("ok"),
    )
    assert "".join([delta.text for delta in deltas if isinstance(delta, ThinkingDelta)]) == "let me see"
    response, _ = await respond(sse(*named(*events(ANSWERS["search"]))))
    assert response.parts == (
        OpaquePart("anthropic", searches("s1", "x")),
        OpaquePart("anthropic", found("s1", page("https://a.example"))),
        TextPart("42", {"citations": [CITED]}, "anthropic"),
    )


async def test_calls_are_shown_piece_by_piece_and_kept_as_they_were_written() -> None:
    response, deltas = await respond(sse(*named(*events(ANSWERS["calls"], size=3))))
    calls = response.tool_calls
    assert [(c.id, c.name, json.loads(c.arguments or "{}")) for c in calls] == [
        ("c1", "add", {"a": 1, "b": [2, {"c": None}]}),
        ("c2", "now", {}),
    ]
    for one in calls:
        pieces = [delta for delta in deltas if isinstance(delta, ToolArgsDelta) and delta.call_id == one.id]
        assert "".join([piece.text for piece in pieces]) == one.arguments
        assert pieces[0].name == one.name


STOPS = {
    "end_turn": "end_turn",
    "max_tokens": "max_tokens",
    "stop_sequence": "stop_sequence",
    "refusal": "refusal",
    "pause_turn": "pause_turn",
    "model_context_window_exceeded": "context_window",
}


@pytest.mark.parametrize("raw", [*STOPS, "of_tomorrow", None])
async def test_stop_reasons_are_mapped_and_the_raw_one_is_kept(raw: str | None) -> None:
    message = {**says(text("x")), "stop_reason": raw}
    response, _ = await respond(reply(200, {}, message))
    assert response.stop_reason == STOPS.get(raw or "", "unknown")
    assert response.raw_stop_reason == raw


# Usage: running totals (G14)


def start(**usage: int) -> dict[str, Any]:
    return {"type": "message_start", "message": {**says(), "stop_reason": None, "usage": usage}}


def end(**usage: int) -> dict[str, Any]:
    return {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": usage}


STOP = {"type": "message_stop"}
HI = events(says(text("Hi")))[1:-2]


async def test_totals_of_a_stream_are_not_added_up() -> None:
    response, _ = await respond(sse(*named(start(input_tokens=25, output_tokens=1), *HI, end(output_tokens=15), STOP)))
    assert response.usage == Usage(25, 15)


async def test_the_last_totals_count() -> None:
    cached = {"cache_read_input_tokens": 100, "cache_creation_input_tokens": 7}
    said = [
        start(input_tokens=25, output_tokens=1, **cached),
        *HI,
        end(input_tokens=25, output_tokens=8, **cached),
        end(input_tokens=40, output_tokens=20, **cached),
        end(input_tokens=0, cache_read_input_tokens=0, output_tokens=20),
        STOP,
    ]
    response, deltas = await respond(sse(*named(*said)))
    assert response.usage == Usage(40, 20, cache_read_tokens=100, cache_write_tokens=7)
    assert next(delta for delta in deltas if isinstance(delta, UsageDelta)).usage.input_tokens == 25


async def test_thinking_is_a_part_of_the_output_that_is_counted() -> None:
    used = {"output_tokens": 9, "output_tokens_details": {"thinking_tokens": 4}}
    response, _ = await respond(reply(200, {}, says(text("x"), usage=used)))
    assert response.usage == Usage(10, 9, reasoning_tokens=4)


# Odd streams (G01, G02, G03)


@pytest.mark.parametrize("pieces", [[], [""], [None], ["", ""], ["{}"]])
async def test_a_call_without_arguments_is_a_call(pieces: list[str | None]) -> None:
    deltas = [
        {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": piece}}
        for piece in pieces
    ]
    block = {"type": "content_block_start", "index": 0, "content_block": call("c1", "now")}
    said = [start(input_tokens=1), block, *deltas, {"type": "content_block_stop", "index": 0}, end(), STOP]
    response, _ = await respond(sse(*named(*said)))
    assert [(c.id, c.name) for c in response.tool_calls] == [("c1", "now")]
    assert json.loads(response.tool_calls[0].arguments or "{}") == {}


async def test_a_call_whose_arguments_come_with_its_beginning_has_them() -> None:
    block = {"type": "content_block_start", "index": 0, "content_block": call("c1", "add", a=1)}
    said = [start(input_tokens=1), block, {"type": "content_block_stop", "index": 0}, end(), STOP]
    response, _ = await respond(sse(*named(*said)))
    assert response.tool_calls == (ToolCall("c1", "add", '{"a":1}'),)


def begun(index: int | None, block: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": block}


def more(index: int | None, kind: str, field: str, value: str) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, field: value}}


def args(index: int | None, value: str) -> dict[str, Any]:
    return more(index, "input_json_delta", "partial_json", value)


def over(index: int | None) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": index}


TWO = (("c1", "add", '{"a":1,"b":2}'), ("c2", "mul", '{"a":3}'))
OVERLAPPING = [
    begun(0, call("c1", "add")),
    args(0, '{"a":1,'),
    begun(1, call("c2", "mul")),
    args(1, '{"a"'),
    args(0, '"b":2}'),
    args(1, ":3}"),
    over(0),
    over(1),
]
REPEATED = [
    begun(0, call("c1", "add")),
    args(0, '{"a":1,"b":2}'),
    over(0),
    begun(0, call("c2", "mul")),
    args(0, '{"a":3}'),
    over(0),
]
UNSTOPPED = [begun(0, call("c1", "add")), args(0, '{"a":1,"b":2}'), begun(0, call("c2", "mul")), args(0, '{"a":3}')]
WITHOUT = [
    begun(None, call("c1", "add")),
    args(None, '{"a":1,"b":2}'),
    over(None),
    begun(None, call("c2", "mul")),
    args(None, '{"a":3}'),
    over(None),
]


@pytest.mark.parametrize("said", [OVERLAPPING, REPEATED, UNSTOPPED, WITHOUT])
async def test_pieces_belong_to_their_call_however_blocks_are_numbered(said: list[dict[str, Any]]) -> None:
    response, _ = await respond(sse(*named(start(input_tokens=1), *said, end(), STOP)))
    assert tuple((c.id, c.name, c.arguments) for c in response.tool_calls) == TWO


async def test_blocks_that_overlap_stand_in_the_order_of_their_first_pieces() -> None:
    said = [begun(0, text("")), more(0, "text_delta", "text", "H"), begun(1, searches("s", "")), args(1, '{"query":')]
    said += [more(0, "text_delta", "text", "i"), over(0), args(1, '"q"}'), over(1)]
    response, _ = await respond(sse(*named(start(input_tokens=1), *said, end(), STOP)))
    assert response.parts == (TextPart("Hi"), OpaquePart("anthropic", searches("s", "q")))


async def test_a_piece_whose_beginning_is_missing_is_not_lost() -> None:
    said = [more(0, "text_delta", "text", "Hel"), more(0, "text_delta", "text", "lo")]
    response, _ = await respond(sse(*named(start(input_tokens=1), *said, end(), STOP)))
    assert response.text == "Hello"


async def test_keep_alives_and_events_of_tomorrow_say_nothing() -> None:
    ping, new = {"type": "ping"}, {"type": "weather", "delta": 7}
    said = named(start(input_tokens=7, output_tokens=1), ping, *HI, end(output_tokens=1), STOP)
    noise = [b": ping\n\n", b"retry: 3000\n\n", b"event: ping\ndata: \n\n", b"event: weather\ndata: 7x\n\n"]
    response, deltas = await respond(sse(noise[0], noise[1], noise[2], *said[:-1], b":\n\n", said[-1], b": bye\n\n"))
    assert (response.text, response.usage) == ("Hi", Usage(7, 1))
    assert "".join([delta.text for delta in deltas if isinstance(delta, TextDelta)]) == "Hi"
    response, _ = await respond(sse(*named(start(input_tokens=7), {**new, "delta": None}, *HI, end(), STOP)))
    assert response.text == "Hi"


async def test_blocks_and_deltas_of_tomorrow_are_kept() -> None:
    block = {"type": "compaction", "content": "so ", "encrypted_content": None}
    delta = {"type": "compaction_delta", "content": "far", "encrypted_content": "E", "list": [1]}
    said = [begun(0, block), {"type": "content_block_delta", "index": 0, "delta": delta}, over(0)]
    response, _ = await respond(sse(*named(start(input_tokens=1), *said, end(), STOP)))
    kept = {"type": "compaction", "content": "so far", "encrypted_content": "E", "list": [1]}
    assert response.parts == (OpaquePart("anthropic", kept),)


async def test_what_a_call_has_beside_its_arguments_is_attached() -> None:
    caller = {"type": "code_execution_20260120", "tool_id": "s1"}
    response, _ = await respond(reply(200, {}, says({**call("c1", "add", a=1), "caller": caller}, stop="tool_use")))
    assert response.tool_calls == (ToolCall("c1", "add", '{"a":1}', {"caller": caller}, "anthropic"),)


@pytest.mark.parametrize(
    "frame", [b"data: {oops\n\n", b"data: 7\n\n", b'data: {"type":"content_block_delta","delta":7}\n\n']
)
async def test_an_event_that_cannot_be_read_is_an_error(frame: bytes) -> None:
    with pytest.raises(BadResponseError, match="anthropic/claude-opus-5 sent what cannot be read"):
        await respond(sse(*named(start(input_tokens=1)), frame, *named(end(), STOP)))


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b"{}", b'{"type":"message"}'])
async def test_an_answer_that_is_no_message_is_an_error(body: bytes) -> None:
    with pytest.raises(BadResponseError):
        await respond(reply(200, {"content-type": "application/json"}, body))


# Ends (G12)


@pytest.mark.parametrize("kept", [0, 1, 3, -2, -1])
async def test_a_stream_without_its_end_marker_is_an_error_and_not_an_answer(kept: int) -> None:
    said = named(*events(says(text("Hello there"))))
    with pytest.raises(StreamCutError, match="message_stop") as caught:
        await respond(sse(*said[:kept]))
    assert caught.value.retryable
    if kept:
        assert caught.value.usage is not None and caught.value.usage.estimated
        assert caught.value.usage.input_tokens == 10


@pytest.mark.parametrize("how", ["cut", "reset"])
async def test_a_connection_that_breaks_in_the_middle_is_an_error(how: Any) -> None:
    said = named(*events(says(call("c1", "add", a=1), stop="tool_use")))
    with pytest.raises(StreamCutError):
        await respond(sse(*said[:-1], how))


async def test_an_error_in_a_stream_is_the_same_error_as_its_status() -> None:
    problem = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}, "request_id": "req_9"}
    with pytest.raises(OverloadedError, match="Overloaded") as caught:
        await respond(sse(*named(start(input_tokens=25, output_tokens=1), *HI[:2], problem)))
    error = caught.value
    assert (error.retryable, error.status, error.provider_code, error.request_id) == (
        True,
        529,
        "overloaded_error",
        "req_9",
    )
    assert error.usage == Usage(25, 1, estimated=True)


async def test_an_error_in_the_form_of_another_dialect_is_read() -> None:
    with pytest.raises(ServerError, match="boom") as caught:
        await respond(
            sse(*named(start(input_tokens=1)), b'data: {"error":{"code":500,"message":"boom","type":"x"}}\n\n')
        )
    assert caught.value.status == 500
    bare = b'event: error\ndata: {"code":500,"message":"boom","type":"server_error"}\n\n'
    with pytest.raises(ServerError, match="boom"):
        await respond(sse(*named(start(input_tokens=1)), bare))
    with pytest.raises(ServerError, match="boom"):
        await respond(sse(*named(start(input_tokens=1)), b"event: error\ndata: boom\n\n"))
    body = {"error": {"code": 400, "message": "too long", "type": "exceed_context_size_error"}}
    with pytest.raises(ContextWindowError, match="too long"):
        await respond(reply(400, {}, body))


async def test_an_error_instead_of_a_message_is_read_in_one_piece_too() -> None:
    with pytest.raises(OverloadedError):
        await respond(reply(200, {}, {"type": "error", "error": {"type": "overloaded_error", "message": "x"}}))


async def test_bytes_that_are_no_utf_8_are_replaced() -> None:
    said = b"".join(named(*events(says(text("Hxllo"))))).replace(b"Hxllo", b"H\xffllo")
    response, _ = await respond(sse(said))
    assert response.text == "H�llo"


async def test_thinking_that_the_server_left_out_is_told() -> None:
    head = start(input_tokens=1)
    dropped = {"type": "thinking_dropped", "path": "messages.1.content.0", "reason": "prefix_binding_mismatch"}
    head["message"]["input_transformations"] = [dropped, {"type": "of_tomorrow"}]
    _, deltas = await respond(sse(*named(head, *HI, end(), STOP)))
    told = [delta.dropped for delta in deltas if hasattr(delta, "dropped")]
    assert told == [("reasoning of anthropic (prefix_binding_mismatch)",)]
