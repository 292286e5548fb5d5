"""Answers of both interfaces, streamed and whole: the same response, however the bytes are split."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from agentx import (
    BadResponseError,
    OpaquePart,
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
from peers.openai_fake import OpenAIFake, Said, chat_body, chat_chunks, response_body, response_events
from peers.oracle import check_answered
from peers.wire import WireServer, data, flat, named, reply, split, sse

from ._openai import ADD, assistant, both_apis, model_at, request, respond, streamed_or_not, user

REASONING = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [{"type": "summary_text", "text": "First this."}, {"type": "summary_text", "text": "Then that."}],
    "encrypted_content": "gAAAA==",
    "status": None,
}
CUT = Said("a", calls=[("c1", "add", "{}")], stop="length")
SAID = [
    Said("Hello, wörld \u2028 \U0001f600!"),
    Said("Let me see.", calls=[("c1", "add", '{"a": 1, "b": 2}'), ("c2", "now", "{}")]),
    Said(refusal="I cannot do that."),
    Said("half", stop="length"),
    Said("", stop="content_filter"),
    Said("Done.", usage=(100, 40, 60, 25)),
]


def test_what_the_fake_says_is_what_openai_says() -> None:
    for said in [*SAID, Said("x", thoughts=[REASONING])]:
        check_answered(chat_body(said), ChatCompletion)
        check_answered(response_body(said), Response)
        for chunk in chat_chunks(said):
            check_answered(chunk, ChatCompletionChunk)
        for event in response_events(said):
            check_answered(event, type(TypeAdapter(ResponseStreamEvent).validate_python(event)))


@both_apis
@pytest.mark.parametrize("said", SAID, ids=lambda said: said.text[:5] or said.refusal[:5] or said.stop)
async def test_streamed_and_whole_are_the_same_response(api: str, said: Said) -> None:
    with OpenAIFake([said]) as server:
        streamed, deltas = await respond(model_at(server, api=api))
        whole, _ = await respond(model_at(server, api=api, stream=False))
    assert streamed == whole
    texts = "".join([delta.text for delta in deltas if isinstance(delta, TextDelta)])
    assert texts == said.text + said.refusal == streamed.text
    for call in streamed.tool_calls:
        pieces = [delta.text for delta in deltas if isinstance(delta, ToolArgsDelta) and delta.call_id == call.id]
        assert "".join(pieces) == call.arguments


@both_apis
@streamed_or_not
@pytest.mark.parametrize(
    ("said", "reason", "raw"),
    [
        (Said("a"), "end_turn", {"chat": "stop", "responses": "completed"}),
        (Said("a", calls=[("c1", "add", "{}")]), "tool_use", {"chat": "tool_calls", "responses": "completed"}),
        (
            Said("a", calls=[("c1", "add", "{}")], stop="length"),
            "max_tokens",
            {"chat": "length", "responses": "max_output_tokens"},
        ),
        (Said("a", stop="content_filter"), "content_filter", {"chat": "content_filter", "responses": "content_filter"}),
        (Said(refusal="no"), "refusal", {"chat": "stop", "responses": "completed"}),
        (Said("a", stop="new_reason"), "unknown", {"chat": "new_reason", "responses": "new_reason"}),
    ],
)
async def test_why_it_stopped(api: str, stream: bool, said: Said, reason: str, raw: dict[str, str]) -> None:
    with OpenAIFake([said]) as server:
        response, _ = await respond(model_at(server, api=api, stream=stream))
    assert (response.stop_reason, response.raw_stop_reason) == (reason, raw[api])


@both_apis
@streamed_or_not
async def test_usage_is_counted_in_buckets_that_do_not_overlap(api: str, stream: bool) -> None:
    with OpenAIFake([Said("a", usage=(100, 40, 60, 25))]) as server:
        response, deltas = await respond(model_at(server, api=api, stream=stream))
    assert response.usage == Usage(40, 40, 60, 0, 25)
    assert [delta for delta in deltas if isinstance(delta, UsageDelta)] == [UsageDelta(Usage(40, 40, 60, 0, 25))]
    assert (response.model, response.id) == ("gpt-test-1", {"chat": "chatcmpl-1", "responses": "resp_1"}[api])


@streamed_or_not
async def test_reasoning_is_shown_and_kept_as_it_came(stream: bool) -> None:
    with OpenAIFake([Said("So.", thoughts=[REASONING])]) as server:
        response, deltas = await respond(model_at(server, api="responses", stream=stream))
    assert response.parts == (ThinkingPart("First this.\n\nThen that.", None, REASONING, "openai"), TextPart("So."))
    assert "".join([d.text for d in deltas if isinstance(d, ThinkingDelta)]) == "First this.\n\nThen that."


@streamed_or_not
async def test_items_that_nobody_reads_are_kept_in_their_place(stream: bool) -> None:
    search = {
        "type": "web_search_call",
        "id": "ws_1",
        "status": "completed",
        "action": {"type": "search", "query": "x"},
    }
    with OpenAIFake([Said("Found.", thoughts=[REASONING, search])]) as server:
        response, _ = await respond(model_at(server, api="responses", stream=stream))
    assert [part.kind for part in response.parts] == ["thinking", "opaque", "text"]
    assert response.parts[1] == OpaquePart("openai", search)


async def test_citations_and_the_phase_of_a_message_are_kept() -> None:
    body = response_body(Said("See there."))
    annotation = {"type": "url_citation", "url": "https://example.com", "title": "t", "start_index": 0, "end_index": 3}
    body["output"][0]["phase"] = "commentary"
    body["output"][0]["content"][0]["annotations"] = [annotation]
    with WireServer([reply(200, body=body)]) as server:
        response, _ = await respond(model_at(server, api="responses"))
    assert response.parts == (TextPart("See there.", {"phase": "commentary", "annotations": [annotation]}, "openai"),)


# Splits

STREAMS: dict[str, Callable[[], bytes]] = {
    "chat": lambda: flat(data(*chat_chunks(SAID[1]), "[DONE]")),
    "responses": lambda: flat(named(*response_events(Said("Hé!", calls=SAID[1].calls, thoughts=[REASONING])))),
}


@both_apis
@settings(max_examples=30)
@given(places=st.lists(st.integers(0, 6000), max_size=12), crlf=st.booleans())
def test_any_split_of_a_stream_gives_the_same_response(api: str, places: list[int], crlf: bool) -> None:
    stream = STREAMS[api]()
    if crlf:
        stream = stream.replace(b"\n", b"\r\n")
    places = [place for place in places if place < len(stream)]

    async def ask(*steps: bytes) -> Any:
        with WireServer([sse(*steps)]) as server:
            response, deltas = await respond(model_at(server, api=api))
            return response, deltas

    assert anyio.run(ask, *split(stream, *places)) == anyio.run(ask, STREAMS[api]())


@both_apis
async def test_one_byte_at_a_time_is_a_split_like_any_other(api: str) -> None:
    stream = STREAMS[api]()
    with WireServer([sse(*split(stream, *range(len(stream)))), sse(stream)]) as server:
        slow, _ = await respond(model_at(server, api=api))
        fast, _ = await respond(model_at(server, api=api))
    assert slow == fast


# Ends


@both_apis
@pytest.mark.parametrize("how", ["clean", "cut"])
async def test_a_stream_that_ends_early_is_an_error_wherever_it_ends(api: str, how: Any) -> None:
    """Only after the server has said why it stopped there may be an answer."""
    pieces = data(*chat_chunks(SAID[1])) if api == "chat" else named(*response_events(SAID[1]))
    last = len(pieces) - (2 if api == "chat" else 1)
    for kept in (0, 1, len(pieces) // 2, last):
        steps: list[Any] = [*pieces[:kept], *(["cut"] if how == "cut" else [])]
        with WireServer([sse(*steps)]) as server:
            with pytest.raises(StreamCutError) as caught:
                await respond(model_at(server, api=api))
            assert caught.value.retryable


async def test_a_chat_may_end_without_its_marker_once_it_said_why() -> None:
    with WireServer([sse(*data(*chat_chunks(SAID[0])))]) as server:
        response, _ = await respond(model_at(server, api="chat"))
    assert response.text == SAID[0].text


async def test_the_marker_alone_is_no_reason_to_stop() -> None:
    """A gateway turns a cut of the server behind it into a clean end."""
    with WireServer([sse(*data(*chat_chunks(SAID[0])[:3], "[DONE]"))]) as server:
        with pytest.raises(StreamCutError, match="no finish_reason"):
            await respond(model_at(server, api="chat"))


@both_apis
async def test_an_empty_body_is_no_answer(api: str) -> None:
    with WireServer([sse(), reply(200, {"content-type": "application/json"}, b"")]) as server:
        with pytest.raises(StreamCutError):
            await respond(model_at(server, api=api))
        with pytest.raises(BadResponseError):
            await respond(model_at(server, api=api))


ODD = b'{"choices": 3, "output": 3, "response": 3}'


@both_apis
@pytest.mark.parametrize("body", [b"{", b"[]", b"7", b"null", b'"x"', b"<html>busy</html>", ODD])
async def test_what_is_no_answer_is_a_bad_response(api: str, body: bytes) -> None:
    streamed, whole = sse(b"data: " + body + b"\n\n"), reply(200, {"content-type": "application/json"}, body)
    with WireServer([streamed, whole]) as server:
        for stream in (True, False):
            with pytest.raises(BadResponseError, match="openai/gpt-test sent what cannot be read"):
                await respond(model_at(server, api=api, stream=stream))


async def test_an_answer_that_is_not_finished_is_no_answer() -> None:
    with WireServer([reply(200, body=response_body(Said("a"), status="queued"))]) as server:
        with pytest.raises(BadResponseError, match="status 'queued'"):
            await respond(model_at(server, api="responses", stream=False))


async def test_a_server_that_cannot_stream_is_understood() -> None:
    with WireServer([reply(200, body=chat_body(SAID[1]))]) as server:
        response, _ = await respond(model_at(server, api="chat"))
    assert [call.name for call in response.tool_calls] == ["add", "now"]


async def test_invalid_utf8_in_a_stream_is_replaced() -> None:
    chunk = b'data: {"choices":[{"index":0,"delta":{"content":"a\xffb"},"finish_reason":"stop"}]}\n\n'
    with WireServer([sse(chunk)]) as server:
        response, _ = await respond(model_at(server, api="chat"))
    assert response.text == "a\ufffdb"


# Dialects of chat


def chat(*deltas: dict[str, Any], finish: str = "stop", **more: Any) -> list[bytes]:
    chunks = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    return data(*chunks, {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}], **more}, "[DONE]")


async def asked(*steps: Any, server: str = "openai-compatible", **options: Any) -> Any:
    with WireServer([sse(*steps)]) as at:
        response, _ = await respond(model_at(at, server=server, **options))
    return response


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
async def test_reasoning_of_other_servers_is_shown(field: str) -> None:
    response = await asked(*chat({field: "hm "}, {field: "well"}, {"content": "Yes."}))
    assert response.parts == (ThinkingPart("hm well", None, None, "openai-compatible"), TextPart("Yes."))


async def test_content_in_typed_pieces_is_read() -> None:
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}
    response = await asked(*chat({"content": [thinking]}, {"content": [{"type": "text", "text": "Yes."}]}))
    assert [part.kind for part in response.parts] == ["thinking", "text"]
    assert response.text == "Yes."


async def test_reasoning_details_are_kept_as_they_came() -> None:
    response = await asked(
        *chat(
            {"reasoning": "a", "reasoning_details": [{"type": "reasoning.text", "index": 0, "text": "a"}]},
            {"reasoning": "b", "reasoning_details": [{"type": "reasoning.text", "index": 0, "text": "b"}]},
            {"reasoning_details": [{"type": "reasoning.text", "index": 0, "signature": "S", "text": ""}]},
            {"reasoning_details": [{"type": "reasoning.encrypted", "index": 1, "data": "D", "id": "r1"}]},
            {"content": "Yes."},
        ),
        server="openrouter",
    )
    details = [
        {"type": "reasoning.text", "index": 0, "text": "ab", "signature": "S"},
        {"type": "reasoning.encrypted", "index": 1, "data": "D", "id": "r1"},
    ]
    assert response.parts[0] == ThinkingPart("ab", None, {"reasoning_details": details}, "openrouter")


async def test_a_price_that_the_server_states_is_the_cost() -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "cost": 0.00014}
    response = await asked(*chat({"content": "Yes."}, usage=usage), server="openrouter")
    assert response.cost == Decimal("0.00014")


async def test_reasoning_that_is_not_in_the_output_is_added_to_it() -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "completion_tokens_details": {"reasoning_tokens": 40}}
    response = await asked(*chat({"content": "Yes."}, usage=usage), server="xai")
    assert response.usage == Usage(3, 42, 0, 0, 40)


async def test_usage_that_is_not_reported_is_unknown_and_not_zero() -> None:
    assert (await asked(*chat({"content": "Yes."}))).usage is None


async def test_a_function_call_of_old_is_a_tool_call() -> None:
    pieces = [{"name": "add", "arguments": '{"a"'}, {"arguments": ":1}"}]
    response = await asked(*chat(*[{"function_call": piece} for piece in pieces], finish="function_call"))
    (call,) = response.tool_calls
    assert (call.name, call.arguments, response.stop_reason) == ("add", '{"a":1}', "tool_use")


async def test_other_choices_are_not_read() -> None:
    choices = [{"index": 1, "delta": {"content": "no"}}, {"index": 0, "delta": {"content": "yes"}}]
    assert (await asked(*data(*[{"choices": [choice]} for choice in choices]), *chat())).text == "yes"


async def test_keys_that_nobody_knows_change_nothing() -> None:
    choice = {"index": 0, "delta": {"content": "a", "new": {"x": [1]}}, "logprobs": 7}
    assert (await asked(*data({"choices": [choice], "timings": {}}), *chat())).text == "a"


# Dialects of Responses


async def test_items_of_a_server_without_places_are_known_by_their_ids() -> None:
    events = [
        {key: value for key, value in event.items() if key not in ("output_index", "content_index", "sequence_number")}
        for event in response_events(SAID[1])
    ]
    with WireServer([sse(*named(*events))]) as server:
        response, _ = await respond(model_at(server, api="responses"))
    assert response.text == "Let me see."
    assert response.tool_calls == (ToolCall("c1", "add", '{"a": 1, "b": 2}'), ToolCall("c2", "now", "{}"))


async def test_ids_that_change_from_event_to_event_do_not_matter() -> None:
    events = [
        json.loads(json.dumps(event).replace("msg_1", f"msg_{number}").replace("fc_", f"fc_{number}_"))
        for number, event in enumerate(response_events(SAID[1]))
    ]
    with WireServer([sse(*named(*events))]) as server:
        response, _ = await respond(model_at(server, api="responses"))
    assert response.text == "Let me see."
    assert len(response.tool_calls) == 2


async def test_what_no_delta_brought_is_taken_from_the_end() -> None:
    last = response_events(SAID[1])[-1:]
    with WireServer([sse(*named(*last))]) as server:
        response, deltas = await respond(model_at(server, api="responses"))
    assert response.text == "Let me see."
    assert "".join([delta.text for delta in deltas if isinstance(delta, TextDelta)]) == "Let me see."
    assert len(response.tool_calls) == 2


async def test_the_type_of_an_event_may_stand_in_its_name_only() -> None:
    events = response_events(SAID[0])
    lines = [
        f"event: {event.pop('type')}\ndata: {json.dumps(event)}\n\n".encode() for event in [dict(one) for one in events]
    ]
    with WireServer([sse(*lines)]) as server:
        response, _ = await respond(model_at(server, api="responses"))
    assert response.text == SAID[0].text


async def test_a_call_keeps_what_else_came_with_it() -> None:
    body = response_body(Said(calls=[("c1", "add", "{}")]))
    body["output"][0]["namespace"] = "math"
    with OpenAIFake([reply(200, body=body), Said("ok")]) as server:
        response, _ = await respond(model_at(server, api="responses"))
        (call,) = response.tool_calls
        assert call == ToolCall("c1", "add", "{}", {"namespace": "math"}, "openai")
        again = request(user("a"), assistant(call), tools=(ADD,))
        await respond(model_at(server, api="responses"), again)
    assert server.requests[1].json["input"][1] == {
        "namespace": "math",
        "type": "function_call",
        "call_id": "c1",
        "name": "add",
        "arguments": "{}",
    }
