"""What goes wrong with the Messages API: the kinds of errors, waits, keys, and that nobody sees a key."""

from __future__ import annotations

import io
import logging
import traceback
from typing import Any

import pytest

from agentx import (
    Agent,
    AuthenticationError,
    ContextWindowError,
    Message,
    ModelConnectionError,
    ModelError,
    ModelNotFoundError,
    ModelRequest,
    ModelTimeoutError,
    OverloadedError,
    PermissionDeniedError,
    QuotaError,
    RateLimitError,
    RequestRejectedError,
    ServerError,
    TextPart,
    Usage,
)
from agentx.builtin.retry import Retry
from agentx.providers import Timeouts
from agentx.testing import FakeClock
from agentx_model_anthropic import AnthropicModel, AnthropicProvider
from peers.messages_api import error, events, says, text
from peers.wire import Answer, WireServer, named, reply, sse

ASK = ModelRequest("anthropic/x", (Message("user", (TextPart("Hi"),)),))


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


async def nothing(delta: Any) -> None:
    pass


async def failure(*answers: Answer, **settings: Any) -> ModelError:
    with WireServer(answers) as server:
        model = AnthropicModel("claude-opus-5", **{"api_key": "k", "base_url": server.url, **settings})
        with pytest.raises(ModelError) as caught:
            await model.respond(ASK, nothing)
        await model.aclose()
    return caught.value


KINDS = [
    (400, "invalid_request_error", RequestRejectedError, False),
    (401, "authentication_error", AuthenticationError, False),
    (402, "billing_error", QuotaError, False),
    (403, "permission_error", PermissionDeniedError, False),
    (404, "not_found_error", ModelNotFoundError, False),
    (413, "request_too_large", RequestRejectedError, False),
    (429, "rate_limit_error", RateLimitError, True),
    (500, "api_error", ServerError, True),
    (504, "timeout_error", ModelTimeoutError, True),
    (529, "overloaded_error", OverloadedError, True),
    (400, "exceed_context_size_error", ContextWindowError, False),
    (418, "of_tomorrow", RequestRejectedError, False),
    (599, "of_tomorrow", ServerError, True),
]


@pytest.mark.parametrize(("status", "kind", "cls", "retryable"), KINDS)
async def test_an_error_is_of_the_kind_that_status_and_type_say(
    status: int, kind: str, cls: type[ModelError], retryable: bool
) -> None:
    found = await failure(error(status, kind, "Because."))
    assert type(found) is cls
    assert (found.retryable, found.status, found.provider_code, found.request_id) == (retryable, status, kind, "req_1")
    assert str(found) == f"anthropic/claude-opus-5 answered HTTP {status} {kind}: Because."


@pytest.mark.parametrize(("status", "kind", "cls", "retryable"), KINDS[:10])
async def test_an_error_in_a_stream_is_of_the_same_kind(
    status: int, kind: str, cls: type[ModelError], retryable: bool
) -> None:
    problem = {"type": "error", "error": {"type": kind, "message": "Because."}}
    found = await failure(sse(*named(events(says())[0], problem)))
    assert type(found) is cls
    assert (found.retryable, found.status) == (retryable, status)
    assert found.usage == Usage(10, 1, estimated=True)


@pytest.mark.parametrize(
    ("code", "cls"),
    [("enforced_spend_limit_reached", QuotaError), ("ramp_limit_exceeded", RateLimitError), ("new", RateLimitError)],
)
async def test_a_code_says_more_than_the_type(code: str, cls: type[ModelError]) -> None:
    said = {"type": "rate_limit_error", "message": "x", "details": {"error_code": code}}
    found = await failure(reply(429, {}, {"type": "error", "error": said}))
    assert type(found) is cls
    assert found.provider_code == code


@pytest.mark.parametrize("body", [b"", b"<html>Bad gateway</html>", b"7", b'{"error": "x"}', b'{"error": null}', b"[]"])
async def test_an_error_whose_body_says_nothing_is_of_the_kind_of_its_status(body: bytes) -> None:
    assert type(await failure(reply(502, {}, body))) is ServerError


# Waits (G13)

NOW = "Wed, 01 Jan 2025 00:00:00 GMT"
WAITS = [
    ("2", 2.0),
    ("0", 0.0),
    ("1.5", 1.5),
    ("Wed, 01 Jan 2025 00:00:30 GMT", 30.0),
    ("Tue, 31 Dec 2024 23:59:59 GMT", 0.0),
    ("-1", None),
    ("²", None),
    ("nan", None),
    ("inf", None),
    ("soon", None),
    ("", None),
]


@pytest.mark.parametrize("status", [429, 503, 529])
@pytest.mark.parametrize(("header", "seconds"), WAITS)
async def test_a_wait_that_the_server_asks_for_is_on_the_error(status: int, header: str, seconds: float | None) -> None:
    found = await failure(error(status, "rate_limit_error", headers={"retry-after": header, "date": NOW}))
    assert found.retry_after == seconds


async def test_a_retry_waits_as_long_as_it_was_asked_to_and_shows_the_answer_once() -> None:
    half = sse(*named(*events(says(text("Hello")), size=3)[:3]))
    whole = sse(*named(*events(says(text("Hello")))))
    clock = FakeClock()
    with WireServer([error(529, "overloaded_error", headers={"retry-after": "2"}), half, whole]) as server:
        model = AnthropicModel("m", base_url=server.url)
        agent = Agent(model, plugins=[clock, Retry()], autoload="none", config=False)
        done = await agent.run("Hi")
    assert (done.text, len(server.requests)) == ("Hello", 3)
    assert clock.sleeps[0] >= 2
    assert done.usage.input_tokens == 20  # of the attempt that was cut too


async def test_a_server_that_says_not_to_retry_is_not_retried() -> None:
    assert not (await failure(error(529, "overloaded_error", headers={"x-should-retry": "false"}))).retryable


# Connections


async def test_a_server_that_is_not_there_is_a_connection_error() -> None:
    with WireServer([]) as server:
        url = server.url
    with pytest.raises(ModelConnectionError, match="cannot connect"):
        await AnthropicModel("m", base_url=url).respond(ASK, nothing)


async def test_silence_is_a_timeout_of_its_phase() -> None:
    short = {"timeouts": Timeouts(first_byte=0.2, idle=0.2)}
    assert isinstance(await failure(sse("hang"), **short), ModelTimeoutError)
    head = named(events(says())[0])
    found = await failure(sse(*head, "hang"), **short)
    assert isinstance(found, ModelTimeoutError)
    assert "timeouts.idle" in str(found)


async def test_connections_are_kept_from_call_to_call() -> None:
    with WireServer([sse(*named(*events(says(text("ok")))))]) as server:
        model = AnthropicModel("m", base_url=server.url)
        for _ in range(3):
            await model.respond(ASK, nothing)
        await model.aclose()
    assert (len(server.requests), server.connections) == (3, 1)


# Keys


async def test_a_missing_key_is_an_error_that_names_the_variable_before_any_request() -> None:
    with pytest.raises(AuthenticationError, match="ANTHROPIC_API_KEY"):
        await AnthropicModel("claude-opus-5").respond(ASK, nothing)


async def test_a_key_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with WireServer([sse(*named(*events(says(text("ok")))))]) as server:
        for variable, key_header in (("ANTHROPIC_AUTH_TOKEN", "x-api-key"), ("ANTHROPIC_API_KEY", "authorization")):
            monkeypatch.setenv(variable, "secret-1")
            for header in (key_header, "x-api-key"):
                model = AnthropicModel("m", base_url=server.url, key_header=header)
                await model.respond(ASK, nothing)
                await model.aclose()
    found = [(one.headers.get("x-api-key"), one.headers.get("authorization")) for one in server.requests]
    token, key = (None, "Bearer secret-1"), ("secret-1", None)
    assert found == [token, token, token, key]


SECRET = "sk-ant-SECRET"


@pytest.fixture
def everything(caplog: pytest.LogCaptureFixture) -> Any:
    """All that is logged, and a way to show an error with its causes."""
    caplog.set_level(logging.DEBUG)

    def shown(failure: BaseException) -> str:
        out = io.StringIO()
        traceback.print_exception(failure, file=out)
        return f"{out.getvalue()}{failure!r}{caplog.text}"

    return shown


@pytest.mark.parametrize("key", [f"{SECRET}\r", f"{SECRET} x", f"ä{SECRET}"])
async def test_a_key_that_no_header_can_carry_is_named_and_not_shown(key: str, everything: Any) -> None:
    with pytest.raises(AuthenticationError) as caught:
        await AnthropicModel("claude-opus-5", api_key=key).respond(ASK, nothing)
    assert "contains a" in str(caught.value)
    assert "SECRET" not in everything(caught.value)


@pytest.mark.parametrize("where", ["body", "stream"])
async def test_a_server_that_echoes_the_key_shows_it_to_nobody(where: str, everything: Any) -> None:
    said = {"type": "error", "error": {"type": "authentication_error", "message": f"bad x-api-key: {SECRET}"}}
    answer = reply(401, {}, said) if where == "body" else sse(*named(events(says())[0], said))
    found = await failure(answer, api_key=SECRET)
    assert isinstance(found, AuthenticationError)
    assert "bad x-api-key: ***" in str(found)
    assert "SECRET" not in everything(found)
    broken = await failure(sse(f"data: {{{SECRET}\n\n".encode()), api_key=SECRET)
    assert "SECRET" not in everything(broken)


async def test_secrets_in_the_address_and_in_headers_are_shown_to_nobody(everything: Any) -> None:
    with WireServer([]) as server:
        url = server.url
    model = AnthropicModel("m", base_url=f"{url}/?key={SECRET}", headers={"x-gateway": SECRET})
    with pytest.raises(ModelConnectionError) as caught:
        await model.respond(ASK, nothing)
    assert "SECRET" not in everything(caught.value)
    assert "SECRET" not in repr(model)


def test_no_setting_that_is_secret_is_shown() -> None:
    provider = AnthropicProvider(prefix="anthropic", api_key=SECRET, headers={"x-gateway": SECRET})
    assert "SECRET" not in f"{provider!r}{provider.model('m')!r}{provider.models()!r}"


# Providers


def test_the_models_are_listed_with_where_the_key_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = AnthropicProvider(prefix="anthropic").models()
    assert not any(one.ready for one in listed)
    assert "ANTHROPIC_API_KEY" in listed[0].detail
    monkeypatch.setenv("ANTHROPIC_API_KEY", SECRET)
    listed = AnthropicProvider(prefix="anthropic").models()
    assert [one.key for one in listed] == ["environment ANTHROPIC_API_KEY"] * len(listed)
    assert all(one.ready and one.capabilities.json_schema for one in listed)
    assert "SECRET" not in repr(listed)
    other = AnthropicProvider(prefix="mine", base_url="http://127.0.0.1:1").models()
    assert [(one.id, one.ready) for one in other] == [("mine/…", True)]


async def test_an_agent_finds_the_provider_by_its_prefix_and_its_settings() -> None:
    with WireServer([sse(*named(*events(says(text("ok")))))]) as server:
        tables = {"anthropic": {"base_url": server.url, "max_tokens": 77}}
        tables["mine"] = {"provider": "anthropic", "base_url": server.url, "betas": ["b-1"]}  # type: ignore[dict-item]
        async with Agent("anthropic/claude-opus-5", autoload="none", config={"models": tables}) as agent:
            assert (await agent.run("Hi")).text == "ok"
            assert (await agent.run("Hi", model="mine/m")).text == "ok"
    assert [one.json["max_tokens"] for one in server.requests] == [77, 8192]
    assert server.requests[1].headers["anthropic-beta"] == "b-1"
