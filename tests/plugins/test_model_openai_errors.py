"""Errors of OpenAI's dialect: by status and code, in a body or in a stream, and without a secret in any of them."""

from __future__ import annotations

import io
import logging
import traceback
from collections.abc import Iterator
from typing import Any

import anyio
import pytest

from agentx import (
    Agent,
    AuthenticationError,
    BadResponseError,
    ContentPolicyError,
    ContextWindowError,
    MemoryStore,
    ModelConnectionError,
    ModelError,
    ModelNotFoundError,
    ModelSettings,
    ModelTimeoutError,
    OverloadedError,
    PermissionDeniedError,
    QuotaError,
    RateLimitError,
    RequestRejectedError,
    ServerError,
    StreamCutError,
)
from agentx.providers import Timeouts
from agentx_model_openai import OpenAIModel, OpenAIProvider
from peers.openai_fake import Said, chat_chunks, response_body, response_events
from peers.wire import Answer, WireServer, data, named, reply, sse

from ._openai import agent_at, both_apis, model_at, request, respond, streamed_or_not


def error(status: int, code: Any = None, kind: Any = None, message: Any = "no", **headers: str) -> Answer:
    said = {"message": message, "type": kind, "param": None, "code": code}
    return reply(status, {name.replace("_", "-"): value for name, value in headers.items()}, {"error": said})


CASES = [
    (error(401, "invalid_api_key", "invalid_request_error"), AuthenticationError),
    (error(403, "unsupported_country_region_territory"), PermissionDeniedError),
    (error(404, "model_not_found", "invalid_request_error"), ModelNotFoundError),
    (error(404, "DeploymentNotFound"), ModelNotFoundError),
    (error(400, None, "invalid_request_error"), RequestRejectedError),
    (error(400, "context_length_exceeded", "invalid_request_error"), ContextWindowError),
    (error(400, 400, "exceed_context_size_error"), ContextWindowError),
    (error(400, "content_filter"), ContentPolicyError),
    (error(400, "invalid_image_url"), RequestRejectedError),
    (error(429, "rate_limit_exceeded", "tokens"), RateLimitError),
    (error(429, "insufficient_quota", "insufficient_quota"), QuotaError),
    (error(500, None, "server_error"), ServerError),
    (error(503, "slow_down"), OverloadedError),
    (error(503, 503, "unavailable_error"), OverloadedError),
    (reply(401, {}, {"error": "bad key"}), AuthenticationError),
    (reply(422, {}, {"detail": [{"loc": ["body"], "msg": "field required"}]}), RequestRejectedError),
    (
        reply(400, {}, {"object": "error", "message": "too long", "type": "BadRequestError", "code": 400}),
        RequestRejectedError,
    ),
    (reply(502, {"content-type": "text/html"}, b"<html>Bad Gateway</html>"), ServerError),
    (reply(500, {}, b""), ServerError),
    (reply(307, {"location": "http://elsewhere/"}, b""), BadResponseError),
]


@both_apis
@pytest.mark.parametrize(("answer", "cls"), CASES)
async def test_an_error_is_what_status_and_code_say(api: str, answer: Answer, cls: type[ModelError]) -> None:
    with WireServer([answer]) as server:
        with pytest.raises(ModelError) as caught:
            await respond(model_at(server, api=api))
    assert type(caught.value) is cls
    assert caught.value.status == answer.status
    assert str(caught.value).startswith("openai/gpt-test answered HTTP")


async def test_an_error_carries_what_the_provider_said_about_it() -> None:
    answer = error(429, "rate_limit_exceeded", "tokens", "Slow down.", retry_after="2", x_request_id="req_9")
    with WireServer([answer]) as server:
        with pytest.raises(RateLimitError, match=r"HTTP 429 rate_limit_exceeded: Slow down\.") as caught:
            await respond(model_at(server))
    found = caught.value
    assert (found.retry_after, found.request_id, found.provider_code) == (2, "req_9", "rate_limit_exceeded")
    assert found.retryable


# Inside of a stream

IN_STREAM = [
    ({"error": {"message": "boom", "type": "server_error", "code": None}}, ServerError, True),
    ({"error": {"message": "busy", "type": "overloaded_error"}}, OverloadedError, True),
    ({"error": {"code": 500, "message": "Context size has been exceeded.", "type": "server_error"}}, ServerError, True),
    ({"error": {"code": 502, "message": "upstream", "metadata": {}}}, ServerError, True),
    ({"error": {"code": 429, "message": "slow"}}, RateLimitError, True),
    ({"error": {"message": "no", "type": "invalid_request_error", "code": None}}, RequestRejectedError, False),
    ({"error": {"message": "no", "code": "content_filter"}}, ContentPolicyError, False),
    ({"error": "it broke"}, ServerError, True),
    ({"object": "error", "message": "no", "type": "BadRequestError", "code": 400}, RequestRejectedError, False),
]


@pytest.mark.parametrize(("value", "cls", "retryable"), IN_STREAM)
async def test_an_error_inside_of_a_chat_stream_is_that_error(
    value: Any, cls: type[ModelError], retryable: bool
) -> None:
    begun = data(*chat_chunks(Said("Hello"))[:3])
    with WireServer([sse(*begun, *data(value)), sse(*begun, *data(value, "[DONE]"))]) as server:
        for _ in range(2):
            with pytest.raises(ModelError) as caught:
                await respond(model_at(server, api="chat"))
            assert (type(caught.value), caught.value.retryable) == (cls, retryable)


async def test_a_finish_reason_can_be_an_error() -> None:
    choice = {"index": 0, "delta": {}, "finish_reason": "error", "error": {"code": 529, "message": "upstream is busy"}}
    with WireServer([sse(*data({"choices": [choice]}, "[DONE]"))]) as server:
        with pytest.raises(OverloadedError, match="upstream is busy"):
            await respond(model_at(server, server="openrouter"))


def failed(code: str) -> list[dict[str, Any]]:
    error = {"code": code, "message": "it failed"}
    return [{"type": "response.failed", "response": response_body(Said("x"), status="failed", error=error)}]


@pytest.mark.parametrize(
    ("events", "cls"),
    [
        (failed("server_error"), ServerError),
        (failed("rate_limit_exceeded"), RateLimitError),
        (failed("invalid_prompt"), ContentPolicyError),
        (failed("image_too_large"), RequestRejectedError),
        ([{"type": "error", "code": "server_error", "message": "it failed", "param": None}], ServerError),
        ([{"type": "error", "error": {"type": "invalid_request_error", "message": "it failed"}}], RequestRejectedError),
        ([{"type": "error", "code": "context_length_exceeded", "message": "it failed"}], ContextWindowError),
    ],
)
async def test_an_error_inside_of_a_responses_stream_is_that_error(events: Any, cls: type[ModelError]) -> None:
    begun = named(*response_events(Said("Hello"))[:6])
    with WireServer([sse(*begun, *named(*events))]) as server:
        with pytest.raises(cls, match="it failed"):
            await respond(model_at(server, api="responses"))


async def test_a_failed_response_that_is_whole_is_an_error_too() -> None:
    (event,) = failed("server_error")
    with WireServer([reply(200, body=event["response"])]) as server:
        with pytest.raises(ServerError, match="it failed"):
            await respond(model_at(server, api="responses", stream=False))


async def test_an_answer_of_200_that_is_an_error_is_one() -> None:
    with WireServer([reply(200, body={"error": {"message": "no credit", "code": 402}})]) as server:
        for stream in (True, False):
            with pytest.raises(QuotaError, match="no credit"):
                await respond(model_at(server, api="chat", stream=stream))


# Usage of what failed


async def test_what_a_broken_stream_has_used_is_on_its_error() -> None:
    chunks = chat_chunks(Said("Hello"))
    with WireServer([sse(*data(chunks[0], {"choices": [], "usage": chunks[-1]["usage"]}), "cut")]) as server:
        agent = agent_at(server, api="chat")
        async with agent, agent.session() as session:
            with pytest.raises(StreamCutError):
                await session.run("hi")
            attempt = next(event for event in session.events if event.kind == "model.attempt")
    assert attempt.usage is not None
    assert (attempt.usage.input_tokens, attempt.usage.output_tokens, attempt.usage.estimated) == (10, 5, True)


async def test_what_a_call_has_used_before_it_was_cancelled_is_counted() -> None:
    chunks = chat_chunks(Said("Hello"))
    with WireServer([sse(*data(chunks[1], {"choices": [], "usage": chunks[-1]["usage"]}), "hang")]) as server:
        agent = agent_at(server, api="chat")
        async with agent, agent.session() as session:
            with anyio.move_on_after(0.5):
                await session.run("hi")
            attempt = next(event for event in session.events if event.kind == "model.attempt")
    assert attempt.usage is not None
    assert (attempt.usage.input_tokens, attempt.usage.estimated) == (10, True)


# Time


async def test_silence_has_limits_by_phase() -> None:
    timeouts = Timeouts(first_byte=0.2, idle=0.2)
    with WireServer([sse("hang"), sse(*data(*chat_chunks(Said("Hello"))[:2]), "hang")]) as server:
        with pytest.raises(ModelTimeoutError, match=r"openai/gpt-test.*first_byte"):
            await respond(model_at(server, timeouts=timeouts))
        with pytest.raises(ModelTimeoutError, match=r"openai/gpt-test.*idle"):
            await respond(model_at(server, timeouts=timeouts, api="chat"))


async def test_a_timeout_of_the_settings_is_for_the_whole_call() -> None:
    steps = [step for _ in range(40) for step in (b": alive\n\n", 0.05)]
    with WireServer([sse(*steps)]) as server:
        with pytest.raises(ModelTimeoutError, match=r"took longer than 0\.3 s"):
            await respond(model_at(server), request(settings=ModelSettings(timeout=0.3)))


# Secrets


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    """Everything that anybody logs."""
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield text
    root.removeHandler(handler)
    root.setLevel(level)


async def everything_shown(agent: Agent, store: MemoryStore, logged: io.StringIO) -> tuple[BaseException, str]:
    """Run a turn that fails and return its error with all texts that come of it."""
    shown: list[str] = []
    async with agent, agent.session(id="s") as session:
        with pytest.raises(ModelError) as caught:
            async with session.stream("hi") as stream:
                async for event in stream:
                    shown.append(repr(event))
        shown += [repr(event) for event in session.events]
        shown.append(repr(session.last_result))
    causes: BaseException | None = caught.value
    while causes is not None:
        shown += [str(causes), repr(causes), repr(vars(causes))]
        causes = causes.__cause__ or causes.__context__
    shown += traceback.format_exception(caught.value)
    shown += [repr(agent), repr(agent.model), repr(vars(store)), logged.getvalue()]
    return caught.value, "\n".join(shown)


@both_apis
async def test_a_key_with_a_line_end_is_named_and_not_shown(
    api: str, monkeypatch: pytest.MonkeyPatch, logged: io.StringIO
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-SECRET1\r")
    store = MemoryStore()
    model = OpenAIModel("gpt-test", base_url="http://127.0.0.1:1", api=api)  # type: ignore[arg-type]
    error, shown = await everything_shown(Agent(model, store=store, autoload="none", config=False), store, logged)
    assert "OPENAI_API_KEY" in str(error)
    assert "contains a control character" in str(error)
    assert "SECRET" not in shown


@both_apis
@streamed_or_not
async def test_a_server_that_repeats_the_key_is_not_repeated(api: str, stream: bool, logged: io.StringIO) -> None:
    def tell(request: Any) -> Answer:
        return error(401, "invalid_api_key", message=f"no good: {request.headers['authorization']}")

    store = MemoryStore()
    with WireServer(tell) as server:
        model = OpenAIModel("gpt-test", api_key="sk-SECRET2", base_url=server.url, api=api, stream=stream)  # type: ignore[arg-type]
        error_found, shown = await everything_shown(
            Agent(model, store=store, autoload="none", config=False), store, logged
        )
    assert isinstance(error_found, AuthenticationError)
    assert "no good: Bearer ***" in str(error_found)
    assert "SECRET" not in shown


async def test_a_key_in_the_address_is_not_shown(logged: io.StringIO) -> None:
    store = MemoryStore()
    model = OpenAIModel("gpt-test", api_key="sk-test", base_url="http://127.0.0.1:1/v1?key=SECRET3")
    found, shown = await everything_shown(Agent(model, store=store, autoload="none", config=False), store, logged)
    assert isinstance(found, ModelConnectionError)
    assert "127.0.0.1:1" in str(found)
    assert "SECRET" not in shown


async def test_what_users_put_into_headers_and_addresses_is_masked_in_what_servers_say(logged: io.StringIO) -> None:
    def tell(request: Any) -> Answer:
        return error(
            400, "bad", message=f"{request.path} {request.headers['x-token']} {request.headers['authorization']}"
        )

    store = MemoryStore()
    with WireServer(tell) as server:
        model = OpenAIModel(
            "gpt-test", api_key="sk-SECRET2", base_url=f"{server.url}/v1?key=SECRET3", headers={"X-Token": "SECRET4"}
        )
        _, shown = await everything_shown(Agent(model, store=store, autoload="none", config=False), store, logged)
    assert "SECRET" not in shown


async def test_what_is_no_json_is_shown_without_secrets() -> None:
    with WireServer([sse(b"data: oops sk-SECRET2 {\n\n")]) as server:
        with pytest.raises(BadResponseError, match=r"oops \*\*\*") as caught:
            await respond(model_at(server, api_key="sk-SECRET2", api="chat"))
    assert "SECRET" not in str(caught.value)


def test_a_provider_shows_no_secret() -> None:
    provider = OpenAIProvider(
        prefix="openai", api_key="sk-SECRET", base_url="https://u:SECRET@h/v1?key=SECRET", headers={"x": "SECRET"}
    )
    provider.credentials()
    assert "SECRET" not in f"{provider!r} {provider.model('gpt-5')!r} {provider.models()!r} {provider.key_source!r}"
