"""The Gemini dialect: requests, answers, faults, against a server on a raw socket, aimock and the SDK's types."""

from __future__ import annotations

import itertools
import json
from base64 import b64encode
from typing import Any

import pytest
from google.genai import types
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentx import (
    Agent,
    AuthenticationError,
    FilePart,
    Message,
    ModelNotFoundError,
    ModelRequest,
    ModelResponse,
    ModelSettings,
    OpaquePart,
    OutputFormat,
    OverloadedError,
    PermissionDeniedError,
    QuotaError,
    RateLimitError,
    RequestRejectedError,
    ServerError,
    StreamCutError,
    TextPart,
    ThinkingPart,
    ToolCall,
    ToolResult,
    ToolSpec,
    tool,
)
from agentx_model_google import GoogleModel
from peers.oracle import check_sent
from peers.wire import WireServer, reply, split, sse

KEY = "AIzaSy-secret-key"
USAGE = {
    "promptTokenCount": 20,
    "cachedContentTokenCount": 5,
    "candidatesTokenCount": 7,
    "thoughtsTokenCount": 3,
    "totalTokenCount": 30,
}


def chunk(*parts: Any, reason: str | None = None, usage: Any = None, **more: Any) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": list(parts)}, "index": 0}
    if reason:
        candidate["finishReason"] = reason
    value: dict[str, Any] = {"candidates": [candidate], "modelVersion": "gemini-3-pro", "responseId": "r1", **more}
    return value | ({"usageMetadata": usage} if usage else {})


def stream(*values: Any) -> list[bytes]:
    return [f"data: {json.dumps(value)}\r\n\r\n".encode() for value in values]


def text(value: str, **more: Any) -> dict[str, Any]:
    return {"text": value, **more}


def model_at(server: Any, id: str = "gemini-3-pro", **options: Any) -> GoogleModel:
    return GoogleModel(id, api_key=KEY, base_url=server.url, **options)


async def ask(model: GoogleModel, request: ModelRequest | None = None) -> tuple[ModelResponse, list[Any]]:
    deltas: list[Any] = []

    async def emit(delta: Any) -> None:
        deltas.append(delta)

    try:
        return await model.respond(request or asking("Hi"), emit), deltas
    finally:
        await model.aclose()


def asking(*texts: str, **more: Any) -> ModelRequest:
    return ModelRequest("google/gemini-3-pro", tuple([Message("user", (TextPart(item),)) for item in texts]), **more)


# Answers

CALLS = [
    {"functionCall": {"name": "add", "args": {"a": 1, "b": 2}}, "thoughtSignature": "c2ln"},
    {"functionCall": {"id": "x1", "name": "add", "args": {}}},
]


@pytest.mark.parametrize("streamed", [True, False])
async def test_text_and_usage_are_read_streamed_and_whole(streamed: bool) -> None:
    whole = chunk(text("Hello you"), reason="STOP", usage=USAGE)
    pieces = stream(chunk(text("Hel")), chunk(text("lo you"), reason="STOP"), {"usageMetadata": USAGE})
    with WireServer([sse(*pieces) if streamed else reply(200, body=whole)]) as server:
        response, _ = await ask(model_at(server, stream=streamed))
        (request,) = server.requests
    assert response.text == "Hello you"
    assert (response.stop_reason, response.raw_stop_reason, response.model) == ("end_turn", "STOP", "gemini-3-pro")
    usage = response.usage
    assert usage is not None
    assert (usage.input_tokens, usage.cache_read_tokens) == (15, 5)
    assert (usage.output_tokens, usage.reasoning_tokens) == (10, 3)
    verb = "streamGenerateContent?alt=sse" if streamed else "generateContent"
    assert request.path == f"/v1beta/models/gemini-3-pro:{verb}"
    assert request.headers["x-goog-api-key"] == KEY
    assert KEY not in request.path


@pytest.mark.parametrize("streamed", [True, False])
async def test_calls_have_ids_arguments_and_their_own_signature(streamed: bool) -> None:
    value = chunk(text("I add."), *CALLS, reason="STOP", usage=USAGE)
    with WireServer([sse(*stream(value)) if streamed else reply(200, body=value)]) as server:
        response, _ = await ask(model_at(server, stream=streamed))
    first, second = response.tool_calls
    assert (first.name, json.loads(first.arguments)) == ("add", {"a": 1, "b": 2})
    assert dict(first.data or {}) == {"thoughtSignature": "c2ln"}
    assert first.id
    assert (second.id, second.arguments, second.data) == ("x1", "{}", None)
    assert response.stop_reason == "tool_use"


async def test_thinking_is_no_text_and_signed_texts_stay_apart() -> None:
    values = [
        chunk(text("let me ", thought=True)),
        chunk(text("see", thought=True)),
        chunk(text("It is ")),
        chunk(text("four.")),
        chunk(text("", thoughtSignature="ZW5k"), reason="STOP"),
    ]
    with WireServer([sse(*stream(*values))]) as server:
        response, _ = await ask(model_at(server))
    assert response.text == "It is four."
    thinking, answer, end = response.parts
    assert thinking == ThinkingPart("let me see", None, None, "google")
    assert answer == TextPart("It is four.")
    assert end == OpaquePart("google", {"text": "", "thoughtSignature": "ZW5k"})


async def test_what_the_server_made_is_kept_as_it_came() -> None:
    code = {"executableCode": {"language": "PYTHON", "code": "1+1"}}
    image = {"inlineData": {"mimeType": "image/png", "data": b64encode(b"png").decode()}}
    with WireServer([sse(*stream(chunk(code, image, text("2"), reason="STOP")))]) as server:
        response, _ = await ask(model_at(server))
    assert response.parts == (OpaquePart("google", code), FilePart("image/png", data=b"png"), TextPart("2"))


REASONS = {
    "STOP": "end_turn",
    "MAX_TOKENS": "max_tokens",
    "SAFETY": "content_filter",
    "RECITATION": "content_filter",
    "PROHIBITED_CONTENT": "content_filter",
    "MALFORMED_FUNCTION_CALL": "unknown",
    "SOMETHING_NEW": "unknown",
}


@pytest.mark.parametrize("raw", REASONS)
async def test_every_reason_to_stop_keeps_its_name(raw: str) -> None:
    with WireServer([sse(*stream(chunk(text("x"), reason=raw)))]) as server:
        response, _ = await ask(model_at(server))
    assert (response.stop_reason, response.raw_stop_reason) == (REASONS[raw], raw)


async def test_a_prompt_that_is_blocked_is_refused_and_no_answer() -> None:
    with WireServer([sse(*stream({"promptFeedback": {"blockReason": "OTHER"}, "usageMetadata": USAGE}))] * 2) as server:
        response, _ = await ask(model_at(server))
        result = await Agent(model_at(server), config=False, autoload="none").run("Hi")
    assert (response.parts, response.stop_reason, response.raw_stop_reason) == ((), "content_filter", "OTHER")
    assert result.status == "refused"


# Faults


@pytest.mark.parametrize("pieces", [[], [chunk(text("Hel"))], [chunk(text("Hel")), "cut"], [chunk(*CALLS), "cut"]])
async def test_an_answer_without_a_reason_to_stop_is_cut(pieces: list[Any]) -> None:
    steps = [step if step == "cut" else stream(step)[0] for step in pieces]
    with WireServer([sse(*steps)]) as server:
        with pytest.raises(StreamCutError):
            await ask(model_at(server))


def failing(code: int, status: str, *details: Any) -> dict[str, Any]:
    return {"error": {"code": code, "message": f"no {KEY}", "status": status, "details": list(details)}}


def info(reason: str) -> dict[str, Any]:
    return {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": reason, "domain": "googleapis.com"}


RETRY = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34.5s"}
DAILY = {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [{"quotaId": "RequestsPerDayPerKey"}]}
ERRORS: dict[str, tuple[Any, type[Exception], bool]] = {
    "bad key": (failing(400, "INVALID_ARGUMENT", info("API_KEY_INVALID")), AuthenticationError, False),
    "bad request": (failing(400, "INVALID_ARGUMENT"), RequestRejectedError, False),
    "no right": (failing(403, "PERMISSION_DENIED"), PermissionDeniedError, False),
    "no model": (failing(404, "NOT_FOUND"), ModelNotFoundError, False),
    "too fast": (failing(429, "RESOURCE_EXHAUSTED", RETRY), RateLimitError, True),
    "used up": (failing(429, "RESOURCE_EXHAUSTED", DAILY), QuotaError, False),
    "internal": (failing(500, "INTERNAL"), ServerError, True),
    "overloaded": (failing(503, "UNAVAILABLE"), OverloadedError, True),
}


@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize("where", ["status", "list", "stream"])
async def test_errors_are_told_apart_by_status_and_code_and_show_no_key(kind: str, where: str) -> None:
    body, error_class, retryable = ERRORS[kind]
    status = body["error"]["code"]
    if where == "stream":
        answer = sse(*stream(chunk(text("Hel")), body))
    else:
        answer = reply(status, body=[body] if where == "list" else body)
    with WireServer([answer]) as server, pytest.raises(error_class) as caught:
        await ask(model_at(server))
    error: Any = caught.value
    assert type(error) is error_class
    assert error.retryable is retryable
    assert error.status == status
    assert error.retry_after == (34.5 if kind == "too fast" else None)
    assert KEY not in str(error) + repr(error)


async def test_a_missing_key_is_named_before_any_request(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GEMINI_API_KEY", "GOOGLE_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    with WireServer([]) as server:
        with pytest.raises(AuthenticationError, match="GEMINI_API_KEY"):
            await ask(GoogleModel("gemini-3-pro", base_url=server.url))
        assert server.requests == []


@pytest.mark.parametrize(
    "asked", [{"parallel_tool_calls": False}, {"reasoning_effort": "none"}, {"temperature": float("nan")}]
)
async def test_what_the_dialect_cannot_say_is_refused_before_any_request(asked: dict[str, Any]) -> None:
    with WireServer([]) as server:
        with pytest.raises(RequestRejectedError):
            await ask(model_at(server), asking("Hi", settings=ModelSettings(**asked)))
        assert server.requests == []


RECORDED = b"".join(
    stream(
        chunk(text("hm ", thought=True)),
        chunk(text("Größe: ")),
        chunk(text("42\u2028m"), *CALLS),
        chunk(reason="STOP", usage=USAGE),
    )
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(places=st.lists(st.integers(1, len(RECORDED) - 1), max_size=6, unique=True))
def test_any_split_of_a_stream_gives_the_same(places: list[int]) -> None:
    import anyio

    def read(answer: Any) -> ModelResponse:
        with WireServer([answer]) as server:
            response, _ = anyio.run(ask, model_at(server))
            return response

    whole, cut = read(sse(RECORDED)), read(sse(*split(RECORDED, *sorted(places))))
    assert cut.text == whole.text
    assert [call.arguments for call in cut.tool_calls] == [call.arguments for call in whole.tool_calls]
    assert (cut.stop_reason, cut.usage) == (whole.stop_reason, whole.usage)


# Requests

ADD = ToolSpec("add", "Add.", {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})
HISTORY = (
    Message("user", (TextPart("What is this?"), FilePart("image/png", data=b"png"))),
    Message(
        "assistant",
        (
            ThinkingPart("hm", "sig", None, "google"),
            ThinkingPart("foreign", "theirs", None, "anthropic"),
            TextPart("I add."),
            ToolCall("c1", "add", '{"a": 1}', {"thoughtSignature": "c2ln"}, "google"),
            ToolCall("c2", "add", '{"a": 2}'),
        ),
    ),
    Message(
        "tool",
        (
            ToolResult("c1", "add", (TextPart("1"), FilePart("image/png", url="https://x.example/a.png"))),
            ToolResult("c2", "add", (TextPart("no"),), "error"),
        ),
    ),
    Message("user", (TextPart("And?"),)),
)


def check_body(body: dict[str, Any]) -> None:
    """Check a request against the SDK's types, and its conversation as the server does."""
    kinds = {
        "contents": list[types.Content],
        "systemInstruction": types.Content,
        "tools": list[types.Tool],
        "toolConfig": types.ToolConfig,
        "generationConfig": types.GenerationConfig,
    }
    assert set(body) <= set(kinds) | {"safetySettings"}
    for name in set(body) & set(kinds):
        check_sent(body[name], kinds[name])
    waiting: list[str] = []
    roles = [content["role"] for content in body["contents"]]
    assert roles[0] == "user"
    assert all(before != after for before, after in itertools.pairwise(roles))
    for content in body["contents"]:
        assert content["parts"]
        answered = [part["functionResponse"]["id"] for part in content["parts"] if "functionResponse" in part]
        assert sorted(answered) == sorted(waiting)
        waiting = [part["functionCall"]["id"] for part in content["parts"] if "functionCall" in part]
    assert not waiting


async def sent(request: ModelRequest, id: str = "gemini-3-pro") -> dict[str, Any]:
    with WireServer([sse(*stream(chunk(text("ok"), reason="STOP")))]) as server:
        await ask(model_at(server, id), request)
        body: dict[str, Any] = server.requests[0].json
    check_body(body)
    return body


async def test_a_history_is_sent_as_google_reads_it() -> None:
    body = await sent(ModelRequest("m", HISTORY, "Be brief.", (ADD,), context=("It is noon.",)))
    user, answer, results = body["contents"]
    assert user["parts"][1]["inlineData"] == {"mimeType": "image/png", "data": b64encode(b"png").decode()}
    assert [next(iter(part)) for part in answer["parts"]] == ["text", "text", "functionCall", "functionCall"]
    assert answer["parts"][0] == {"text": "hm", "thought": True, "thoughtSignature": "sig"}
    assert answer["parts"][2]["thoughtSignature"] == "c2ln"
    assert "thoughtSignature" not in answer["parts"][3]
    response = results["parts"][0]["functionResponse"]
    assert (response["id"], response["response"]) == ("c1", {"result": "1"})
    assert results["parts"][1]["functionResponse"]["response"] == {"error": "no"}
    assert results["parts"][2] == {"text": "[what add c1 returned:]"}
    assert results["parts"][3]["fileData"] == {"mimeType": "image/png", "fileUri": "https://x.example/a.png"}
    assert [part["text"] for part in results["parts"][4:]] == ["And?", "It is noon."]
    assert body["systemInstruction"] == {"parts": [{"text": "Be brief."}]}


async def test_calls_that_another_model_made_are_marked_where_the_model_wants_signatures() -> None:
    foreign = (HISTORY[0], Message("assistant", (ToolCall("c1", "add", "{}", {"x": 1}, "openai"),)))
    history = (*foreign, Message("tool", (ToolResult("c1", "add"),)))
    third = await sent(ModelRequest("m", history, tools=(ADD,)))
    older = await sent(ModelRequest("m", history, tools=(ADD,)), "gemini-2.5-flash")
    assert third["contents"][1]["parts"][0]["thoughtSignature"] == "skip_thought_signature_validator"
    assert "thoughtSignature" not in older["contents"][1]["parts"][0]


SETTINGS: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "sampling": (
        {"max_tokens": 9, "temperature": 0.5, "top_p": 0.9, "seed": 7, "stop": ("END",)},
        "gemini-3-pro",
        {"maxOutputTokens": 9, "temperature": 0.5, "topP": 0.9, "seed": 7, "stopSequences": ["END"]},
    ),
    "level": (
        {"reasoning_effort": "low"},
        "gemini-3-pro",
        {"thinkingConfig": {"thinkingLevel": "low", "includeThoughts": True}},
    ),
    "budget": (
        {"reasoning_effort": "low"},
        "gemini-2.5-flash",
        {"thinkingConfig": {"thinkingBudget": 1024, "includeThoughts": True}},
    ),
    "off": ({"reasoning_effort": "none"}, "gemini-2.5-flash", {"thinkingConfig": {"thinkingBudget": 0}}),
    "extra": (
        {"max_tokens": 9, "extra": {"generationConfig": {"topK": 3}}},
        "gemini-3-pro",
        {"maxOutputTokens": 9, "topK": 3},
    ),
}


@pytest.mark.parametrize("kind", SETTINGS)
async def test_settings_become_the_generation_config(kind: str) -> None:
    asked, id, expected = SETTINGS[kind]
    assert (await sent(asking("Hi", settings=ModelSettings(**asked)), id))["generationConfig"] == expected


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("auto", {"mode": "AUTO"}),
        ("none", {"mode": "NONE"}),
        ("required", {"mode": "ANY"}),
        ("add", {"mode": "ANY", "allowedFunctionNames": ["add"]}),
    ],
)
async def test_a_choice_of_tools_is_said(choice: str, expected: dict[str, Any]) -> None:
    body = await sent(asking("Hi", tools=(ADD,), settings=ModelSettings(tool_choice=choice)))
    assert body["toolConfig"] == {"functionCallingConfig": expected}


async def test_an_answer_is_held_to_a_schema_beside_tools_by_newer_models_only() -> None:
    form = OutputFormat("answer", {"type": "object", "properties": {"a": {"type": "integer"}}})
    held = {"responseMimeType": "application/json", "responseJsonSchema": dict(form.schema)}
    assert (await sent(asking("Hi", output=form, tools=(ADD,))))["generationConfig"] == held
    assert (await sent(asking("Hi", output=form), "gemini-2.5-flash"))["generationConfig"] == held
    with WireServer([]) as server, pytest.raises(RequestRejectedError, match="JSON Schema beside tools"):
        await ask(model_at(server, "gemini-2.5-flash"), asking("Hi", output=form, tools=(ADD,)))


# Through an agent


@tool
async def add(a: int, b: int) -> int:
    """Add."""
    return a + b


async def test_an_agent_calls_a_tool_and_sends_its_signature_back() -> None:
    answers = [sse(*stream(chunk(CALLS[0], reason="STOP"))), sse(*stream(chunk(text("3"), reason="STOP")))]
    with WireServer(answers) as server:
        agent = Agent(model_at(server), tools=[add], config=False, autoload="none")
        assert (await agent.run("1 + 2?")).text == "3"
        body = server.requests[1].json
    check_body(body)
    assert body["contents"][1]["parts"][0]["thoughtSignature"] == "c2ln"
    assert body["contents"][2]["parts"][0]["functionResponse"]["response"] == {"result": "3"}


async def test_aimock_answers_an_agent_that_calls_a_tool(aimock: Any) -> None:
    aimock.script({"toolCalls": [{"name": "add", "arguments": {"a": 1, "b": 2}}]}, {"content": "It is three."})
    agent = Agent(model_at(aimock), tools=[add], config=False, autoload="none")
    async with agent.session() as session, session.stream("1 + 2?") as stream_:
        pieces = [piece async for piece in stream_.text]
    assert "".join(pieces) == "It is three."
    assert len(aimock.requests) == 2


async def test_a_model_is_found_by_its_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_API_KEY", KEY)
    with WireServer([sse(*stream(chunk(text("ok"), reason="STOP")))]) as server:
        config = {"models": {"google": {"base_url": f"{server.url}/v1beta"}}}
        agent: Agent[Any, Any] = Agent("google/gemini-3-pro", config=config, autoload="none")
        assert (await agent.run("Hi")).text == "ok"
        assert server.requests[0].path.startswith("/v1beta/models/gemini-3-pro:")
