"""Whatever the bytes are split into, the answer is one; whatever the history is, the request is valid."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentx import (
    FilePart,
    Message,
    ModelRequest,
    ModelResponse,
    ModelSettings,
    OpaquePart,
    Part,
    TextPart,
    ThinkingPart,
    ToolCall,
    ToolResult,
    ToolSpec,
)
from agentx_model_anthropic import AnthropicModel
from peers.messages_api import Api, call, events, found, page, redacted, says, searches, text, thought
from peers.wire import Request, WireServer, named, split, sse

ASK = ModelRequest("anthropic/x", (Message("user", (TextPart("Hi"),)),))


async def nothing(delta: Any) -> None:
    pass


# Splits

CITATION = {
    "type": "web_search_result_location",
    "cited_text": "42",
    "url": "https://a.example",
    "title": None,
    "encrypted_index": "aW5k",
}
SEARCHED = [searches("s1", "x"), found("s1", page("https://a.example")), text("42", citations=[CITATION])]
CALLS = [call("c1", "add", a="👋", b=[1, {}]), call("c2", "now")]
ANSWERS = [
    says(thought("let me sée 👋", "S1"), redacted("D"), text("Ünd"), *CALLS, stop="tool_use"),
    says(*SEARCHED, stop="pause_turn"),
    says(text("")),
]
RECORDED = [b"".join([b": hi\n\n", *named(*events(answer, size=4))]) for answer in ANSWERS]
RECORDED.append(RECORDED[0].replace(b"\n", b"\r\n"))


async def answered(pieces: list[bytes]) -> ModelResponse:
    with WireServer([sse(*pieces)]) as server:
        model = AnthropicModel("m", base_url=server.url)
        response = await model.respond(ASK, nothing)
        await model.aclose()
        return response


@pytest.mark.parametrize("recorded", RECORDED)
@settings(max_examples=30)
@given(data=st.data())
def test_any_split_of_a_stream_gives_the_same_answer(recorded: bytes, data: st.DataObject) -> None:
    places = data.draw(st.lists(st.integers(1, len(recorded) - 1), max_size=60))
    whole = anyio.run(answered, [recorded])
    assert anyio.run(answered, split(recorded, *places)) == whole


def test_a_stream_split_into_single_bytes_gives_the_same_answer() -> None:
    recorded = RECORDED[0]
    pieces = [recorded[at : at + 1] for at in range(len(recorded))]
    assert anyio.run(answered, pieces) == anyio.run(answered, [recorded])


# Histories

words = st.text(alphabet="ab \n.ü", max_size=6)
texts = st.builds(TextPart, words) | st.builds(
    TextPart, st.just("cited"), st.just({"citations": [CITATION]}), st.sampled_from(["anthropic", "openai"])
)
thoughts = st.sampled_from(
    [
        ThinkingPart("hm", "S1", None, "anthropic"),
        ThinkingPart("", "S2", None, "anthropic"),
        ThinkingPart("", None, redacted("D"), "anthropic"),
        ThinkingPart("cut", None, None, "anthropic"),
        ThinkingPart("hm", "X", None, "openai"),
    ]
)
opaques = st.sampled_from(
    [
        OpaquePart("anthropic", searches("s1", "x")),
        OpaquePart("anthropic", found("s1", page("https://a.example"))),
        OpaquePart("anthropic", searches("s2", "y")),
        OpaquePart("google", {"kind": "new"}),
    ]
)
files = st.sampled_from(
    [
        FilePart("image/png", b"x"),
        FilePart("application/pdf", url="https://a.example/x"),
        FilePart("text/plain", b"x", name="n"),
        FilePart("image/png", file_id="f", provider="anthropic"),
    ]
)
odd_files = st.sampled_from([FilePart("audio/wav", b"x"), FilePart("image/png", file_id="f", provider="openai")])
arguments = st.sampled_from(["{}", '{"a":1}', '{"b":[1,{"c":null}]}', "", "[1]", '{"a":'])
ids = st.sampled_from(["c1", "c2", "c:3", "ü", ""])
calls = st.builds(ToolCall, ids, st.sampled_from(["f", "g", "my.tool"]), arguments)
statuses = st.sampled_from(["ok", "error", "denied", "unknown"])


@st.composite
def results(draw: st.DrawFn, call: ToolCall) -> ToolResult:
    content = draw(st.lists(texts | files | odd_files, max_size=2))
    return ToolResult(call.id, call.name, tuple(content), draw(statuses))


@st.composite
def rounds(draw: st.DrawFn) -> list[Message]:
    """An answer and the results of its calls; a few are missing."""
    parts: list[Part] = draw(st.lists(texts | thoughts | opaques | files | calls, min_size=1, max_size=5))
    seen: set[str] = set()
    kept = [part for part in parts if not isinstance(part, ToolCall) or not (part.id in seen or seen.add(part.id))]  # type: ignore[func-returns-value]
    said = [Message("assistant", tuple(kept))]
    given_results = [draw(results(part)) for part in kept if isinstance(part, ToolCall) and draw(st.booleans())]
    if given_results:
        said.append(Message("tool", tuple(draw(st.permutations(given_results)))))
    return said


def _without(message: Message, begun: set[Any]) -> Message:
    """Leave out calls of the server's tools whose ids have been there: those are unique."""
    parts: list[Part] = []
    for part in message.parts:
        own = part.data.get("id") if isinstance(part, OpaquePart) else None
        if own is None or own not in begun:
            parts.append(part)
        begun.add(own)
    return Message(message.role, tuple(parts))


@st.composite
def histories(draw: st.DrawFn) -> tuple[Message, ...]:
    said: list[Message] = []
    begun: set[Any] = set()
    for _ in range(draw(st.integers(0, 4))):
        if draw(st.booleans()):
            said.append(Message("user", tuple(draw(st.lists(texts | files | odd_files, min_size=1, max_size=3)))))
        else:
            said += [_without(message, begun) for message in draw(rounds())]
    said = [message for message in said if message.parts]
    return (*said, Message("user", (TextPart("And now?"), *draw(st.lists(texts | files, max_size=2)))))


requests = st.builds(
    ModelRequest,
    st.just("anthropic/x"),
    histories(),
    instructions=words,
    tools=st.sampled_from([(), (ToolSpec("f", "F.", {"type": "object"}), ToolSpec("g", "", {"type": "object"}))]),
    context=st.lists(words, max_size=2).map(tuple),
    settings=st.builds(
        ModelSettings,
        max_tokens=st.sampled_from([None, 5000]),
        tool_choice=st.sampled_from([None, "auto", "none"]),
        parallel_tool_calls=st.sampled_from([None, True, False]),
        reasoning_effort=st.sampled_from([None, "low", "high"]),
        stop=st.sampled_from([(), ("END",)]),
    ),
)


async def refusals(request: ModelRequest, stream: bool) -> list[str]:
    api = Api([says(text("ok"))], own=False)
    with WireServer(api) as server:
        model = AnthropicModel("claude-sonnet-4-6", base_url=server.url, stream=stream)
        await model.respond(request, nothing)
        await model.aclose()
    return api.refusals


@settings(max_examples=150)
@given(request=requests, stream=st.booleans())
def test_any_history_becomes_a_request_that_the_server_takes(request: ModelRequest, stream: bool) -> None:
    assert anyio.run(refusals, request, stream) == []


@settings(max_examples=30)
@given(request=requests)
def test_a_request_is_the_same_each_time(request: ModelRequest) -> None:
    bodies: list[bytes] = []

    async def twice() -> None:
        def keep(sent: Request) -> Any:
            bodies.append(sent.body)
            return sse(*named(*events(says(text("ok")))))

        with WireServer(keep) as server:
            model = AnthropicModel("m", base_url=server.url)
            await model.respond(request, nothing)
            await model.respond(request, nothing)
            await model.aclose()

    anyio.run(twice)
    assert bodies[0] == bodies[1]
