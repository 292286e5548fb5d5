"""Whatever a server sends: an answer or a `ModelError`, and what was shown is what the answer holds."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any

import anyio
from hypothesis import given, settings
from hypothesis import strategies as st

from agentx import ModelError, TextDelta, ThinkingDelta, ThinkingPart, ToolArgsDelta
from peers.openai_fake import Said, chat_body, chat_chunks, response_body, response_events
from peers.wire import WireServer, named, reply, sse

from ._openai import agent_at, both_apis, model_at, respond
from .test_model_openai_answers import REASONING

SAID = Said("Let me see.", calls=[("c1", "add", '{"a": 1}'), ("c2", "now", "{}")])
THOUGHT = Said("Let me see.", calls=SAID.calls, thoughts=[REASONING])
ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 10**12),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["", "c1", "\ud83d", "stop", "error", "x" * 50]),
    st.sampled_from([[], {}, [None], [1], {"": 1}, {"type": "message"}, [{"type": "reasoning"}], {"message": "m"}]),
)


def places_in(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the way to everything inside of a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, item in items for place in ((*path, key), *places_in(item, (*path, key)))]


def changed(value: Any, place: tuple[Any, ...], odd: Any) -> Any:
    value = copy.deepcopy(value)
    inner = value
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = odd
    return value


EVENTS: Mapping[str, list[Any]] = {"chat": chat_chunks(SAID), "responses": response_events(THOUGHT)}
BODIES: Mapping[str, Any] = {"chat": chat_body(SAID), "responses": response_body(THOUGHT)}


def lines(events: list[Any]) -> list[bytes]:
    return [f"data: {json.dumps(event)}\n\n".encode() for event in events]


async def asked(api: str, answer: Any, *, stream: bool) -> None:
    with WireServer([answer]) as server:
        try:
            response, deltas = await respond(model_at(server, api=api, stream=stream))
        except ModelError:
            return
    texts = [part.text for part in response.parts if part.kind == "text"]  # type: ignore[attr-defined]
    thoughts = [part.text for part in response.parts if isinstance(part, ThinkingPart)]
    for kind, parts in ((TextDelta, texts), (ThinkingDelta, thoughts)):
        for index, text in enumerate(parts):
            assert "".join([d.text for d in deltas if isinstance(d, kind) and d.index == index]) == text
    for call in response.tool_calls:
        shown = [d.text for d in deltas if isinstance(d, ToolArgsDelta) and d.call_id == call.id]
        assert "".join(shown) == call.arguments or len({c.id for c in response.tool_calls}) < len(response.tool_calls)


@both_apis
@settings(max_examples=60)
@given(data=st.data())
def test_any_value_may_be_odd_in_a_stream(api: str, data: st.DataObject) -> None:
    events = list(EVENTS[api])
    for _ in range(data.draw(st.integers(1, 3))):
        number = data.draw(st.integers(0, len(events) - 1))
        place = data.draw(st.sampled_from(places_in(events[number]) or [()]))
        if place:
            events[number] = changed(events[number], place, data.draw(ODD))
    anyio.run(lambda: asked(api, sse(*lines(events)), stream=True))


@both_apis
@settings(max_examples=60)
@given(data=st.data())
def test_any_value_may_be_odd_in_a_whole_answer(api: str, data: st.DataObject) -> None:
    place = data.draw(st.sampled_from(places_in(BODIES[api])))
    body = changed(BODIES[api], place, data.draw(ODD))
    anyio.run(lambda: asked(api, reply(200, body=body), stream=False))


@both_apis
@settings(max_examples=40)
@given(data=st.data())
def test_events_may_be_missing_doubled_or_out_of_order(api: str, data: st.DataObject) -> None:
    events = data.draw(st.lists(st.sampled_from(EVENTS[api]), max_size=30))
    anyio.run(lambda: asked(api, sse(*lines(events), *lines(EVENTS[api][-1:])), stream=True))


# Many at once


@both_apis
async def test_twenty_sessions_at_once_are_not_mixed(api: str) -> None:
    def answer(request: Any) -> Any:
        said = str(request.json)
        number = said.rpartition("number ")[2].partition(" ")[0]
        text = Said(f"You said {number}.")
        if api == "chat":
            return sse(*lines(chat_chunks(text)))
        return sse(*named(*response_events(text)))

    answers: dict[int, str] = {}
    with WireServer(answer) as server:
        agent = agent_at(server, api=api)

        async def ask(number: int) -> None:
            answers[number] = (await agent.run(f"I say number {number} now")).text

        async with agent, anyio.create_task_group() as group:
            for number in range(20):
                group.start_soon(ask, number)
    assert answers == {number: f"You said {number}." for number in range(20)}
