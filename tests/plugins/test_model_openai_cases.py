"""Cases G01–G03, G05, G09, G10, G12–G14, G29 and G30 of the list collected from public bug reports, for this dialect.

Chat is given the bytes of the case; Responses what its interface makes of them, from the fake.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import attrs
import pytest

from agentx import (
    Agent,
    AuthenticationError,
    MemoryStore,
    ModelError,
    NoOutputError,
    OverloadedError,
    RateLimitError,
    Tool,
    tool,
)
from agentx.builtin.retry import Retry
from agentx.testing import FakeClock
from peers.openai_fake import OpenAIFake, Said
from peers.wire import Answer, WireServer, data, reply, sse

from ._openai import agent_at, both_apis, model_at, streamed_or_not
from .test_model_openai_answers import REASONING


@attrs.define
class Recorder:
    """Tools that keep what they were called with."""

    calls: list[tuple[str, dict[str, Any]]] = attrs.field(factory=list)

    def tools(self) -> Sequence[Tool]:
        calls = self.calls

        @tool
        def add(a: int, b: int) -> int:
            """Add."""
            calls.append(("add", {"a": a, "b": b}))
            return a + b

        @tool
        def mul(a: int, b: int) -> int:
            """Multiply."""
            calls.append(("mul", {"a": a, "b": b}))
            return a * b

        @tool
        def now() -> str:
            """Tell the time."""
            calls.append(("now", {}))
            return "noon"

        @tool
        def write(path: str, content: str = "") -> str:
            """Write a file."""
            calls.append(("write", {"path": path, "content": content}))
            return "written"

        return [add, mul, now, write]


def replayed(server: WireServer) -> list[tuple[str, str, Any]]:
    """Return the calls in the second request, with their arguments as they were sent."""
    body = server.requests[1].json
    if "messages" in body:
        calls = [call for message in body["messages"] for call in message.get("tool_calls") or []]
        return [(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in calls]
    items = [item for item in body["input"] if item.get("type") == "function_call"]
    return [(item["call_id"], item["name"], item["arguments"]) for item in items]


def result_texts(server: WireServer, number: int = 1) -> list[str]:
    body = server.requests[number].json
    if "messages" in body:
        return [message["content"] for message in body["messages"] if message["role"] == "tool"]
    return [item["output"] for item in body["input"] if item.get("type") == "function_call_output"]


# G01


def fragment(**call: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": None}]}


def finish(reason: str, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}], **more}


BEGIN: dict[str, Any] = {"index": 0, "id": "c1", "type": "function"}
NOW: dict[str, list[dict[str, Any]]] = {
    "empty": [fragment(**BEGIN, function={"name": "now", "arguments": ""})],
    "null": [fragment(**BEGIN, function={"name": "now", "arguments": None})],
    "absent": [fragment(**BEGIN, function={"name": "now"})],
    "empty again": [
        fragment(**BEGIN, function={"name": "now", "arguments": ""}),
        fragment(index=0, function={"arguments": ""}),
    ],
}


@pytest.mark.parametrize("variant", NOW)
async def test_g01_a_streamed_call_whose_arguments_stay_empty_runs_once(variant: str) -> None:
    recorder = Recorder()
    with OpenAIFake([sse(*data(*NOW[variant], finish("tool_calls"), "[DONE]")), Said("noon")]) as server:
        result = await agent_at(server, api="chat", tools=recorder.tools()).run("time?")
    assert (result.text, recorder.calls, len(server.requests)) == ("noon", [("now", {})], 2)
    assert replayed(server) == [("c1", "now", "{}")]


@both_apis
@streamed_or_not
async def test_g01_empty_arguments_are_no_arguments_in_every_form(api: str, stream: bool) -> None:
    recorder = Recorder()
    with OpenAIFake([Said(calls=[("c1", "now", "")]), Said("noon")]) as server:
        await agent_at(server, api=api, stream=stream, tools=recorder.tools()).run("time?")
    assert recorder.calls == [("now", {})]
    assert replayed(server) == [("c1", "now", "{}")]


# G02


def piece(index: int | None, id: Any = None, name: Any = None, arguments: Any = None) -> dict[str, Any]:
    call: dict[str, Any] = {"function": {"name": name, "arguments": arguments}, "id": id}
    return fragment(**call) if index is None else fragment(index=index, **call)


PARALLEL = {
    "interleaved": (
        [
            piece(0, "c1", "add", ""),
            piece(1, "c2", "mul", '{"a"'),
            piece(0, "", "", '{"a":1,'),
            piece(1, None, None, ':3,"b":4}'),
            piece(0, None, None, '"b":2}'),
            finish("stop"),
        ],
        [("c1", "add", '{"a":1,"b":2}'), ("c2", "mul", '{"a":3,"b":4}')],
    ),
    "without index": (
        [
            piece(None, "c1", "add", '{"a":1,"b":2}'),
            piece(None, "c2", "add", '{"a":5,'),
            piece(None, None, None, '"b":6}'),
            piece(None, None, None, ""),
            finish("tool_calls"),
        ],
        [("c1", "add", '{"a":1,"b":2}'), ("c2", "add", '{"a":5,"b":6}')],
    ),
    "everything repeated": (
        [
            piece(0, "c1", "add", '{"a":1,'),
            piece(0, "c1", "add", '"b":2}'),
            piece(1, "c2", "add", '{"a":5,'),
            piece(1, "c2", "add", '"b":6}'),
            finish("tool_calls"),
        ],
        [("c1", "add", '{"a":1,"b":2}'), ("c2", "add", '{"a":5,"b":6}')],
    ),
}


@pytest.mark.parametrize("variant", PARALLEL)
async def test_g02_fragments_find_their_call(variant: str) -> None:
    chunks, calls = PARALLEL[variant]
    recorder = Recorder()
    with OpenAIFake([sse(*data(*chunks, "[DONE]")), Said("done")]) as server:
        result = await agent_at(server, api="chat", tools=recorder.tools()).run("go")
    assert result.text == "done"
    ran = sorted(recorder.calls, key=str)  # trio begins what may overlap in any order
    assert ran == sorted([(name, json.loads(arguments)) for _, name, arguments in calls], key=str)
    assert replayed(server) == calls
    assert len(server.requests) == 2


# G03

PINGS = (
    b": ping\n\nretry: 3000\n\nevent: ping\ndata: \n\n"
    b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":"Hi"},"finish_reason":null}]}\n\n:\n\n'
    b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":1}}\n\n: bye\n\ndata:[DONE]\n\n'
)


async def test_g03_keep_alives_and_a_chunk_without_choices_are_nothing_new() -> None:
    with WireServer([sse(PINGS)]) as server:
        agent = agent_at(server, api="chat")
        async with agent, agent.session() as session:
            async with session.stream("hi") as stream:
                texts = [text async for text in stream.text]
            result = stream.result
    assert (texts, result.text, result.status) == (["Hi"], "Hi", "completed")
    assert (result.usage.input_tokens, result.usage.output_tokens) == (7, 1)


async def test_g03_a_frame_with_data_that_is_no_json_is_an_error() -> None:
    broken = PINGS.replace(b": bye", b"data: {oops")
    with WireServer([sse(broken)]) as server:
        with pytest.raises(ModelError, match="cannot be read"):
            await agent_at(server, api="chat").run("hi")


# G05

BAD = ["[1,2]", '"x"', "7", '{"a":1', '{"a":NaN,"b":1}', '{"a":"' + "x" * 200_000]


@both_apis
@streamed_or_not
@pytest.mark.parametrize("arguments", BAD, ids=["list", "text", "number", "cut", "nan", "huge"])
async def test_g05_arguments_that_are_no_object_reach_no_tool(api: str, stream: bool, arguments: str) -> None:
    recorder = Recorder()
    script = [Said(calls=[("c1", "add", arguments)], pieces=5000), Said("done"), Said("again")]
    with OpenAIFake(script) as server:
        agent = agent_at(server, api=api, stream=stream, tools=recorder.tools())
        async with agent, agent.session() as session:
            assert (await session.run("go")).text == "done"
            assert (await session.run("more")).text == "again"
    assert recorder.calls == []
    assert replayed(server) == [("c1", "add", "{}")]
    (told,) = result_texts(server)
    assert "the arguments are" in told
    assert len(told) <= 1000


@both_apis
async def test_g05_of_a_key_that_is_there_twice_the_last_counts(api: str) -> None:
    recorder = Recorder()
    with OpenAIFake([Said(calls=[("c1", "add", '{"a":1,"a":2,"b":3}')]), Said("done")]) as server:
        await agent_at(server, api=api, tools=recorder.tools()).run("go")
    assert recorder.calls == [("add", {"a": 2, "b": 3})]


# G09


@streamed_or_not
async def test_g09_reasoning_comes_back_unchanged_also_in_a_later_turn(stream: bool) -> None:
    items = [{**REASONING, "id": f"rs_{number}", "encrypted_content": f"S{number}"} for number in range(2)]
    items[0]["summary"] = []
    script = [Said("ok", calls=[("c1", "now", "{}")], thoughts=items), Said("done"), Said("later")]
    store = MemoryStore()
    with OpenAIFake(script) as server:
        model = model_at(server, api="responses", stream=stream, reasoning=True)

        def agent() -> Agent:
            return Agent(model, tools=Recorder().tools(), store=store, autoload="none", config=False)

        async with agent() as first, first.session("s") as session:
            await session.run("go")
        async with agent() as second, second.session("s") as session:
            await session.run("and?")
    sent = [{key: value for key, value in item.items() if value is not None} for item in items]
    for number in (1, 2):
        assert server.requests[number].json["input"][1:3] == sent
        kinds = [item.get("type", item.get("role")) for item in server.requests[number].json["input"][1:6]]
        assert kinds[:5] == ["reasoning", "reasoning", "assistant", "function_call", "function_call_output"]


# G10


@both_apis
@streamed_or_not
@pytest.mark.parametrize("stop", ["length", "content_filter", "new_reason"])
@pytest.mark.parametrize(
    "calls",
    [
        [("c1", "write", '{"path":"a.txt","content":"hel')],
        [("c1", "write", '{"path":"a.txt"}')],
        [("c1", "write", '{"path":"a.txt"}'), ("c2", "write", '{"path":"b')],
    ],
    ids=["cut", "parses", "second cut"],
)
async def test_g10_no_call_of_an_answer_that_was_cut_runs(api: str, stream: bool, stop: str, calls: Any) -> None:
    recorder = Recorder()
    with OpenAIFake([Said("", calls=calls, stop=stop)]) as server:
        agent = agent_at(server, api=api, stream=stream, tools=recorder.tools())
        async with agent, agent.session() as session:
            first = await session.run("go")
            await session.run("again")
    assert recorder.calls == []
    assert first.status == ("refused" if stop == "content_filter" else "truncated")
    assert len(server.requests) == 2  # the fake has taken the history of the second


# G12

BUSY = {"error": {"message": "Overloaded", "type": "overloaded_error"}}


def chat_text(*texts: str) -> list[bytes]:
    return data(*[{"choices": [{"index": 0, "delta": {"content": text}}]} for text in texts])


async def test_g12_an_error_in_the_middle_of_a_stream_is_no_success() -> None:
    with WireServer([sse(*chat_text("Hel"), *data(BUSY))]) as server:
        agent = agent_at(server, api="chat")
        async with agent, agent.session() as session:
            texts: list[str] = []
            with pytest.raises(OverloadedError, match="Overloaded") as caught:
                async with session.stream("hi") as stream:
                    async for text in stream.text:
                        texts.append(text)
            assert [message.role for message in session.history] == ["user"]
    assert caught.value.retryable
    assert texts == ["Hel"]


async def test_g12_a_retry_is_announced_and_nothing_of_the_first_attempt_stays() -> None:
    recorder = Recorder()
    cut = [*chat_text("Hel"), *data(piece(0, "c1", "add", '{"a":'), BUSY)]
    clock = FakeClock()
    with OpenAIFake([sse(*cut), Said("Hello", calls=[("c1", "add", '{"a":1,"b":2}')]), Said("3")]) as server:
        agent = agent_at(server, api="chat", tools=recorder.tools(), plugins=[clock, Retry()])
        async with agent, agent.session() as session:
            seen: list[str] = []
            async with session.stream("hi") as stream:
                async for event in stream:
                    if event.kind == "model.retrying":
                        seen.clear()
                    elif event.kind == "text.delta":
                        seen.append(event.text)
            history = [message.text for message in session.history if message.role == "assistant"]
    assert stream.result.text == "3"
    assert history == ["Hello", "3"]
    assert "".join(seen) == "Hello3"
    assert recorder.calls == [("add", {"a": 1, "b": 2})]


# G13


def busy(status: int, value: str | None) -> Answer:
    headers = {"date": "Wed, 01 Jan 2025 00:00:00 GMT", **({} if value is None else {"retry-after": value})}
    return reply(status, headers, {"error": {"message": "busy"}})


@pytest.mark.parametrize("status", [429, 503, 529])
@pytest.mark.parametrize(
    ("value", "least"),
    [
        ("2", 2.0),
        ("0", 0.0),
        ("1.5", 1.5),
        ("Wed, 01 Jan 2025 00:00:30 GMT", 30.0),
        ("Tue, 31 Dec 2024 23:59:59 GMT", 0.0),
        ("-1", 0.0),
        ("nan", 0.0),
        ("inf", 0.0),
        ("soon", 0.0),
        ("", 0.0),
        (None, 0.0),
    ],
)
async def test_g13_a_wait_that_is_asked_for_is_kept(status: int, value: str | None, least: float) -> None:
    clock = FakeClock()
    with OpenAIFake([busy(status, value), Said("Hello")]) as server:
        result = await agent_at(server, plugins=[clock, Retry(base_delay=0.5)]).run("hi")
    assert (result.text, len(server.requests)) == ("Hello", 2)
    (slept,) = clock.sleeps
    assert least <= slept <= least + 0.5


async def test_g13_a_wait_that_is_too_long_is_not_begun() -> None:
    clock = FakeClock()
    with OpenAIFake([busy(429, "99999999999"), Said("Hello")]) as server:
        with pytest.raises(RateLimitError) as caught:
            await agent_at(server, plugins=[clock, Retry()]).run("hi")
    assert caught.value.retry_after == 99999999999
    assert (clock.sleeps, len(server.requests)) == ([], 1)


@both_apis
async def test_g13_what_cannot_succeed_is_not_tried_again(api: str) -> None:
    with OpenAIFake([reply(401, {}, {"error": {"message": "no", "code": "invalid_api_key"}})]) as server:
        with pytest.raises(AuthenticationError):
            await agent_at(server, api=api, plugins=[FakeClock(), Retry()]).run("hi")
    assert len(server.requests) == 1


# G14


async def test_g14_usage_that_comes_again_and_again_is_a_total() -> None:
    last = {"prompt_tokens": 40, "completion_tokens": 20, "prompt_tokens_details": {"cached_tokens": 10}}
    chunks = [
        {"choices": [], "usage": {"prompt_tokens": 25, "completion_tokens": 1}},
        {"choices": [{"index": 0, "delta": {"content": "a"}}], "usage": None},
        {"choices": [], "usage": {"prompt_tokens": 25, "completion_tokens": 8}},
        finish("stop", usage=last),
    ]
    with WireServer([sse(*data(*chunks, "[DONE]"))]) as server:
        usage = (await agent_at(server, api="chat").run("hi")).usage
    assert (usage.input_tokens, usage.output_tokens, usage.cache_read_tokens) == (30, 20, 10)


@both_apis
@streamed_or_not
async def test_g14_a_turn_adds_up_its_calls(api: str, stream: bool) -> None:
    script = [Said(calls=[("c1", "now", "{}")], usage=(10, 5, 4, 2)), Said("noon", usage=(20, 7, 10, 3))]
    with OpenAIFake(script) as server:
        usage = (await agent_at(server, api=api, stream=stream, tools=Recorder().tools()).run("hi")).usage
    assert (usage.input_tokens, usage.cache_read_tokens, usage.output_tokens, usage.reasoning_tokens) == (16, 14, 12, 5)


# G29, G30


@attrs.frozen
class Address:
    street: str
    zip: str | None = None


@attrs.frozen
class Person:
    name: str
    home: Address | None = None
    n: int = 3


def objects_in(schema: Any) -> list[dict[str, Any]]:
    """Return every object of a schema, wherever in it."""
    if isinstance(schema, list):
        return [found for item in schema for found in objects_in(item)]
    if not isinstance(schema, dict):
        return []
    own = [schema] if schema.get("type") == "object" or "properties" in schema else []
    return own + [found for item in schema.values() for found in objects_in(item)]


@both_apis
@streamed_or_not
async def test_g29_a_class_is_asked_for_with_a_strict_schema(api: str, stream: bool) -> None:
    with OpenAIFake([Said('{"name":"Ann","home":null,"n":null}')]) as server:
        result = await agent_at(server, api=api, stream=stream, id="gpt-4o").run("who?", output=Person)
    assert result.output == Person("Ann")
    body = server.requests[0].json
    said = body["response_format"]["json_schema"] if api == "chat" else body["text"]["format"]
    assert said["strict"] is True
    for found in objects_in(said["schema"]):
        assert found["additionalProperties"] is False
        assert sorted(found["required"]) == sorted(found["properties"])


VERDICT = {
    "type": "object",
    "properties": {"verdict": {"type": "string", "enum": ["pass", "fail"]}},
    "required": ["verdict"],
    "additionalProperties": False,
}


@both_apis
async def test_g30_an_answer_that_does_not_fit_is_sent_back_in_a_valid_history(api: str) -> None:
    script = [Said('{"verdict":"maybe"}'), Said('{"verdict":"pass"}')]
    with OpenAIFake(script) as server:
        result = await agent_at(server, api=api, id="gpt-4o").run("well?", output=VERDICT)
    assert result.output == {"verdict": "pass"}
    assert len(server.requests) == 2
    assert result.usage.requests == 2


@both_apis
async def test_g30_attempts_are_bounded(api: str) -> None:
    with OpenAIFake([Said('{"verdict":"maybe"}')]) as server:
        agent = agent_at(server, api=api, id="gpt-4o")
        result = await agent.run("well?", output=VERDICT)
    assert len(server.requests) == 3
    assert result.usage.requests == 3
    with pytest.raises(NoOutputError, match=r"'maybe' is not one of \['pass', 'fail'\]"):
        result.output  # noqa: B018  # reading it is what raises
