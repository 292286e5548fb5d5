"""Requests: what is sent fits the SDK's types and the conversation's rules; what cannot be said is refused before."""

from __future__ import annotations

from base64 import b64encode
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat.completion_create_params import CompletionCreateParams
from openai.types.responses.response_create_params import ResponseCreateParams

from agentx import (
    AdaptedDelta,
    AuthenticationError,
    FilePart,
    Message,
    ModelSettings,
    OpaquePart,
    OutputFormat,
    RequestRejectedError,
    TextPart,
    ThinkingPart,
    ToolCall,
    ToolResult,
    tool,
)
from agentx_model_openai import Quirks
from peers.openai_fake import OpenAIFake, Said, chat_problems, responses_problems
from peers.oracle import check_sent
from peers.wire import WireServer, reply

from ._openai import ADD, KEY, agent_at, assistant, both_apis, model_at, request, respond, streamed_or_not, user
from .test_model_openai_answers import REASONING


async def sent(asked: Any, *, api: str = "chat", **options: Any) -> dict[str, Any]:
    """Return the body of a request that the fake has taken."""
    with OpenAIFake([Said("ok")]) as server:
        await respond(model_at(server, api=api, **options), asked)
    body: dict[str, Any] = server.requests[0].json
    return body


PNG, WAV, PDF = b"\x89PNG", b"RIFF", b"%PDF-1"


@both_apis
@streamed_or_not
async def test_a_request_has_no_more_than_it_needs(api: str, stream: bool) -> None:
    body = await sent(request(user("hi")), api=api, stream=stream)
    streams: dict[str, Any] = {"stream": True} if stream else {}
    if api == "chat":
        usage = {"stream_options": {"include_usage": True}} if stream else {}
        assert body == {"model": "gpt-test", "messages": [{"role": "user", "content": "hi"}], **streams, **usage}
    else:
        content = [{"type": "input_text", "text": "hi"}]
        assert body == {"model": "gpt-test", "input": [{"role": "user", "content": content}], "store": False, **streams}


async def test_every_setting_has_its_place_in_a_chat() -> None:
    settings = ModelSettings(
        max_tokens=9,
        temperature=0.5,
        top_p=0.9,
        seed=7,
        stop=("END",),
        tool_choice="add",
        parallel_tool_calls=False,
        reasoning_effort="low",
        service_tier="flex",
        extra={"user": "u", "logit_bias": {"1": 5}},
    )
    body = await sent(request(user("hi"), settings=settings, tools=(ADD,), instructions="Be brief."))
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert {
        key: value for key, value in body.items() if key not in ("messages", "tools", "stream", "stream_options")
    } == {
        "model": "gpt-test",
        "max_completion_tokens": 9,
        "temperature": 0.5,
        "top_p": 0.9,
        "seed": 7,
        "stop": ["END"],
        "tool_choice": {"type": "function", "function": {"name": "add"}},
        "parallel_tool_calls": False,
        "reasoning_effort": "low",
        "service_tier": "flex",
        "user": "u",
        "logit_bias": {"1": 5},
    }


async def test_every_setting_that_responses_has_is_said() -> None:
    settings = ModelSettings(
        max_tokens=9,
        temperature=0.5,
        top_p=0.9,
        tool_choice="add",
        parallel_tool_calls=False,
        reasoning_effort="low",
        service_tier="flex",
        extra={"user": "u"},
    )
    asked = request(user("hi"), settings=settings, tools=(ADD,), instructions="Be brief.")
    body = await sent(asked, api="responses", reasoning=True, reasoning_summary="auto")
    assert {key: value for key, value in body.items() if key not in ("input", "tools", "stream")} == {
        "model": "gpt-test",
        "store": False,
        "instructions": "Be brief.",
        "include": ["reasoning.encrypted_content"],
        "max_output_tokens": 9,
        "temperature": 0.5,
        "top_p": 0.9,
        "service_tier": "flex",
        "reasoning": {"effort": "low", "summary": "auto"},
        "tool_choice": {"type": "function", "name": "add"},
        "parallel_tool_calls": False,
        "user": "u",
    }
    assert body["tools"] == [
        {
            "type": "function",
            "name": "add",
            "description": "Add two numbers.",
            "parameters": ADD.schema,
            "strict": False,
        }
    ]


@both_apis
async def test_a_schema_for_the_answer_is_said_natively(api: str) -> None:
    schema = {
        "type": "object",
        "properties": {"x": {"type": "integer"}},
        "required": ["x"],
        "additionalProperties": False,
    }
    body = await sent(request(user("hi"), output=OutputFormat("answer", schema, description="The answer.")), api=api)
    said = {"name": "answer", "schema": schema, "strict": True, "description": "The answer."}
    if api == "chat":
        assert body["response_format"] == {"type": "json_schema", "json_schema": said}
    else:
        assert body["text"] == {"format": {"type": "json_schema", **said}}


# What cannot be said


@both_apis
@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"tool_choice": "required"}, "has no tools"),
    ],
)
async def test_settings_that_mean_nothing_are_refused_before_the_request(
    api: str, settings: dict[str, Any], complaint: str
) -> None:
    with OpenAIFake([Said("ok")]) as server:
        with pytest.raises(RequestRejectedError, match=f"openai/gpt-test|{complaint}"):
            await respond(model_at(server, api=api), request(settings=ModelSettings(**settings)))
    assert server.requests == []


@pytest.mark.parametrize("settings", [{"stop": ("END",)}, {"seed": 7}])
async def test_what_responses_cannot_do_names_the_interface_that_can(settings: dict[str, Any]) -> None:
    with OpenAIFake([Said("ok")]) as server:
        with pytest.raises(RequestRejectedError, match=r"cannot do (stop|seed)") as caught:
            await respond(model_at(server, api="responses"), request(settings=ModelSettings(**settings)))
        assert "'chat' takes more settings" in str(caught.value)
    assert server.requests == []


async def test_what_a_server_is_known_not_to_take_is_refused() -> None:
    with OpenAIFake([Said("ok")]) as server:
        with pytest.raises(RequestRejectedError, match="deepseek/gpt-test cannot do seed"):
            await respond(model_at(server, server="deepseek"), request(settings=ModelSettings(seed=1)))
        with pytest.raises(RequestRejectedError, match="cannot be held to a JSON Schema"):
            await respond(model_at(server, server="deepseek"), request(output=OutputFormat("x", {"type": "object"})))
    assert server.requests == []


@pytest.mark.parametrize(
    ("model", "asked", "complaint"),
    [
        ("gpt-4o", {"settings": ModelSettings(reasoning_effort="low")}, "does not reason"),
        ("gpt-3.5-turbo", {"output": OutputFormat("x", {"type": "object"})}, "cannot be held to a JSON Schema"),
        ("chatgpt-4o-latest", {"tools": (ADD,)}, "cannot call tools"),
    ],
)
async def test_what_a_known_model_cannot_do_is_refused(model: str, asked: dict[str, Any], complaint: str) -> None:
    with OpenAIFake([Said("ok")]) as server:
        with pytest.raises(RequestRejectedError, match=complaint):
            await respond(model_at(server, id=model), request(**asked))
    assert server.requests == []


@pytest.mark.parametrize(
    ("api", "part"),
    [
        ("responses", FilePart("audio/wav", data=WAV)),
        ("chat", FilePart("application/pdf", url="https://example.com/a.pdf")),
        ("chat", FilePart("audio/ogg", data=b"x")),
        ("chat", FilePart("image/png", file_id="file_1")),
        ("chat", FilePart("image/png", file_id="file_1", provider="anthropic")),
    ],
)
async def test_a_file_that_the_interface_cannot_take_is_refused(api: str, part: FilePart) -> None:
    with OpenAIFake([Said("ok")]) as server:
        with pytest.raises(RequestRejectedError, match=r"the file .* cannot be sent to openai"):
            await respond(model_at(server, api=api), request(user("see", part)))
    assert server.requests == []


async def test_a_missing_key_names_the_variable_before_any_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with OpenAIFake([Said("ok")]) as server:
        with pytest.raises(AuthenticationError, match="no key for openai: set the environment variable OPENAI_API_KEY"):
            await respond(model_at(server, api_key=None))
    assert server.requests == []


# Files


async def test_files_in_a_chat() -> None:
    parts = [
        FilePart("image/png", data=PNG),
        FilePart("image/png", url="https://example.com/a.png"),
        FilePart("audio/mpeg", data=WAV),
        FilePart("application/pdf", data=PDF, name="a.pdf"),
        FilePart("application/pdf", file_id="file_1"),
        FilePart("text/plain", data="héllo".encode(), name="a.txt"),
    ]
    body = await sent(request(user("see", *parts)))
    assert body["messages"][0]["content"] == [
        {"type": "text", "text": "see"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{b64encode(PNG).decode()}"}},
        {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
        {"type": "input_audio", "input_audio": {"data": b64encode(WAV).decode(), "format": "mp3"}},
        {
            "type": "file",
            "file": {"filename": "a.pdf", "file_data": f"data:application/pdf;base64,{b64encode(PDF).decode()}"},
        },
        {"type": "file", "file": {"file_id": "file_1"}},
        {"type": "text", "text": "[file a.txt]\nhéllo"},
    ]


async def test_files_in_responses() -> None:
    parts = [
        FilePart("image/png", data=PNG),
        FilePart("image/png", file_id="file_2"),
        FilePart("application/pdf", url="https://example.com/a.pdf"),
        FilePart("application/pdf", data=PDF),
        FilePart("application/pdf", file_id="file_1", provider="openai"),
        FilePart("application/json", data=b"{}"),
    ]
    body = await sent(request(user(*parts)), api="responses")
    assert body["input"][0]["content"] == [
        {"type": "input_image", "detail": "auto", "image_url": f"data:image/png;base64,{b64encode(PNG).decode()}"},
        {"type": "input_image", "detail": "auto", "file_id": "file_2"},
        {"type": "input_file", "file_url": "https://example.com/a.pdf"},
        {
            "type": "input_file",
            "filename": "file.pdf",
            "file_data": f"data:application/pdf;base64,{b64encode(PDF).decode()}",
        },
        {"type": "input_file", "file_id": "file_1"},
        {"type": "input_text", "text": "[file]\n{}"},
    ]


PICTURE = Message("tool", (ToolResult("c1", "shot", (TextPart("A picture:"), FilePart("image/png", data=PNG))),))


async def test_a_picture_in_a_result_follows_the_results_of_a_chat() -> None:
    asked = request(user("look"), assistant(ToolCall("c1", "shot", "{}")), PICTURE)
    messages = (await sent(asked))["messages"]
    assert messages[2] == {
        "role": "tool",
        "tool_call_id": "c1",
        "content": "A picture:\n\n[1 file(s) of this result follow]",
    }
    assert [part["type"] for part in messages[3]["content"]] == ["text", "image_url"]
    assert messages[3]["role"] == "user"


async def test_a_picture_in_a_result_is_part_of_it_in_responses() -> None:
    asked = request(user("look"), assistant(ToolCall("c1", "shot", "{}")), PICTURE)
    output = (await sent(asked, api="responses"))["input"][2]["output"]
    assert [part["type"] for part in output] == ["input_text", "input_image"]


# Histories


async def test_reasoning_goes_back_as_it_came() -> None:
    with OpenAIFake([Said(calls=[("c1", "add", '{"a":1,"b":2}')], thoughts=[REASONING]), Said("3")]) as server:

        @tool
        def add(a: int, b: int) -> int:
            """Add two numbers."""
            return a + b

        result = await agent_at(server, tools=[add], api="responses", reasoning=True).run("1 + 2?")
    assert result.text == "3"
    items = server.requests[1].json["input"]
    reasoning = {key: value for key, value in REASONING.items() if value is not None}
    assert items[1:] == [
        reasoning,
        {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a":1,"b":2}'},
        {"type": "function_call_output", "call_id": "c1", "output": "3"},
    ]


async def test_reasoning_that_the_server_neither_keeps_nor_sent_stays_here() -> None:
    bare = {**REASONING, "encrypted_content": None}
    history = (user("a"), assistant(ThinkingPart("t", None, bare, "openai"), TextPart("b")), user("c"))
    assert [item.get("type") for item in (await sent(request(*history), api="responses"))["input"]] == [None] * 3
    kept = (await sent(request(*history), api="responses", store=True))["input"]
    assert [item.get("type") for item in kept] == [None, "reasoning", None, None]


async def test_reasoning_that_nothing_follows_stays_here() -> None:
    history = (user("a"), assistant(ThinkingPart("t", None, REASONING, "openai")), user("c"))
    assert len((await sent(request(*history), api="responses"))["input"]) == 2


async def test_a_chat_cannot_read_what_responses_kept_and_says_so() -> None:
    search = OpaquePart("openai", {"type": "web_search_call", "id": "ws_1"})
    history = (user("a"), assistant(ThinkingPart("t", None, REASONING, "openai"), search, "b"), user("c"))
    with OpenAIFake([Said("ok")]) as server:
        _, deltas = await respond(model_at(server, api="chat"), request(*history))
    assert deltas[0] == AdaptedDelta(("reasoning of openai", "web_search_call of openai"))


async def test_switching_provider_in_a_session_is_an_event() -> None:
    from agentx import ModelResponse
    from agentx.testing import ScriptedModel

    other = ScriptedModel([ModelResponse((ThinkingPart("t", "sig", None, "anthropic"), TextPart("b")))])
    with OpenAIFake([Said("ok")]) as server:
        agent = agent_at(server, api="responses")
        async with agent, agent.session() as session:
            await session.run("a", model=other)
            await session.run("c")
            await session.run("d")
            told = [event for event in session.events if event.kind == "history.adapted"]
    assert [(event.dropped, event.model) for event in told] == [(("reasoning of anthropic",), "openai/gpt-test")]


@both_apis
async def test_a_refusal_in_the_history_can_be_sent(api: str) -> None:
    with OpenAIFake([Said(refusal="no"), Said("ok")]) as server:
        first, _ = await respond(model_at(server, api=api))
        await respond(model_at(server, api=api), request(user("a"), first.message, user("b")))
    if api == "chat":
        assert server.requests[1].json["messages"][1] == {"role": "assistant", "content": None, "refusal": "no"}


async def test_a_server_that_refuses_null_gets_text() -> None:
    call = assistant(ToolCall("c1", "add", "{}"))
    result = Message("tool", (ToolResult("c1", "add", (TextPart("3"),)),))
    body = await sent(request(user("a"), call, result), server="llama-cpp-python")
    assert body["messages"][1]["content"] == ""


async def test_reasoning_goes_back_with_its_calls_where_the_server_wants_it() -> None:
    history = (
        user("a"),
        assistant(ThinkingPart("because", provider="deepseek"), ToolCall("c1", "add", "{}")),
        Message("tool", (ToolResult("c1", "add", (TextPart("3"),)),)),
    )
    with WireServer(
        [reply(200, body={"choices": [{"message": {"content": "ok"}, "finish_reason": "stop"}]})]
    ) as server:
        await respond(model_at(server, server="deepseek"), request(*history))
    assert server.requests[0].json["messages"][1]["reasoning_content"] == "because"


@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_context_of_layers_goes_to_the_tail(api: str) -> None:
    body = await sent(request(user("a"), assistant("b"), user("c"), context=("note",)), api=api)
    last = (body.get("messages") or body["input"])[-1]
    assert "note" in str(last["content"])


async def test_text_that_no_json_can_hold_is_mended() -> None:
    body = await sent(request(user("x\ud800y"), instructions="a\ud800"))
    assert body["messages"][0]["content"] == "a\ufffd"
    assert body["messages"][1]["content"] == "x\ufffdy"


TEXTS = st.sampled_from(["", "a", "\n", "é\U0001f600"])
THINKING = st.one_of(
    st.just(ThinkingPart("t", None, REASONING, "openai")),
    st.just(ThinkingPart("t", "s", None, "anthropic")),
    st.just(ThinkingPart("t", None, {**REASONING, "encrypted_content": None}, "openai")),
)
ANSWERS = st.lists(
    st.one_of(
        TEXTS.map(TextPart),
        THINKING,
        st.sampled_from(["c1", "c2", "c3"]).map(lambda call_id: ToolCall(call_id, "add", '{"a": 1}')),
        st.just(OpaquePart("google", {"type": "x"})),
        st.just(TextPart("no", {"type": "refusal"}, "openai")),
    ),
    max_size=5,
    unique_by=lambda part: getattr(part, "id", id(part)),
).map(lambda parts: Message("assistant", tuple(parts)))
RESULT = st.sampled_from([(), (TextPart("3"),), (FilePart("image/png", data=PNG),), (TextPart("a"), TextPart("b"))])
TOOL = st.dictionaries(st.sampled_from(["c1", "c2", "c3"]), RESULT, min_size=1).map(
    lambda found: Message("tool", tuple([ToolResult(call_id, "add", content) for call_id, content in found.items()]))
)
HISTORIES = st.lists(st.one_of(st.just(user("u")), ANSWERS, TOOL), max_size=7)


@both_apis
@given(history=HISTORIES, extra=st.booleans())
def test_whatever_the_history_openai_takes_it(api: str, history: list[Message], extra: bool) -> None:
    """The same check as the fake's, on many more histories than a server could be asked."""
    from agentx.providers import adapt

    model = model_at("http://127.0.0.1:1", api=api, reasoning=True)
    asked = request(user("first"), *history, tools=(ADD,), context=("note",) if extra else ())
    found = adapt(asked, provider="openai", reads=model._reads)
    body = model._body(asked, found.messages, stream=True)
    check_sent(body, CompletionCreateParams if api == "chat" else ResponseCreateParams)
    problems = chat_problems(body) if api == "chat" else responses_problems(body)
    assert list(problems) == []
    if api == "chat":
        assert all(one["role"] != "tool" or other["role"] != "system" for one, other in pairwise(body["messages"]))


# Addresses and keys


@pytest.mark.parametrize(
    ("options", "path", "header"),
    [
        ({}, "/chat/completions", ("authorization", f"Bearer {KEY}")),
        ({"base_url": "{url}/v1/"}, "/v1/chat/completions", ("authorization", f"Bearer {KEY}")),
        (
            {"base_url": "{url}/openai/deployments/{{model}}?api-version=7", "server": "azure", "id": "my gpt"},
            "/openai/deployments/my%20gpt/chat/completions?api-version=7",
            ("api-key", KEY),
        ),
        ({"server": "azure", "query": {"api-version": "v1"}}, "/openai/v1/responses?api-version=v1", ("api-key", KEY)),
        ({"headers": {"Authorization": "Basic xyz"}}, "/chat/completions", ("authorization", "Basic xyz")),
        ({"organization": "org_1"}, "/chat/completions", ("openai-organization", "org_1")),
    ],
)
async def test_where_a_request_goes_and_with_which_key(
    options: dict[str, Any], path: str, header: tuple[str, str]
) -> None:
    api = "auto" if options.get("server") == "azure" else "chat"
    with OpenAIFake([Said("ok")], oracle=False) as server:
        if "base_url" in options:
            options = {**options, "base_url": options["base_url"].format(url=server.url)}
        await respond(model_at(server, **{"api": api, **options}))
    (sent_one,) = server.requests
    assert sent_one.path == path
    assert sent_one.headers[header[0]] == header[1]


def test_the_interface_is_chosen_by_server_and_model() -> None:
    def api(id: str, **options: Any) -> str:
        return model_at("http://127.0.0.1:1", id=id, **options).api

    assert api("gpt-5") == api("gpt-4o") == api("o3") == api("gpt-99") == "responses"
    assert api("gpt-4o-audio-preview") == api("gpt-3.5-turbo") == "chat"
    assert api("gpt-5", server="openai-compatible") == api("llama", server="vllm") == "chat"
    assert api("gpt-5", api="chat") == "chat"
    assert api("gpt-5", server="groq", api="responses") == "responses"


def test_what_is_configured_of_a_server_is_laid_over_what_is_known() -> None:
    model = model_at("http://127.0.0.1:1", server="llamacpp", quirks=Quirks(max_tokens="max_completion_tokens"))
    assert model._quirks.tool_probe == "/props"
    assert model._quirks.max_tokens == "max_completion_tokens"
