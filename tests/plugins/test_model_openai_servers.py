"""Servers that nobody here wrote, and names of servers: aimock, llama.cpp, the prefixes and their settings."""

from __future__ import annotations

from typing import Any

import pytest

from agentx import (
    Agent,
    ConfigError,
    ContextWindowError,
    ModelSettings,
    OverloadedError,
    RateLimitError,
    RequestRejectedError,
    ServerError,
    StreamCutError,
    ToolResult,
    tool,
)
from agentx.builtin.retry import Retry
from agentx.testing import FakeClock
from agentx_model_openai import SERVERS, OpenAIModel, OpenAIProvider
from peers.llama import SURE_CALL
from peers.openai_fake import OpenAIFake, Said
from peers.wire import Request, WireServer, reply

from ._openai import ADD, agent_at, both_apis, request, respond, streamed_or_not, user


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


# aimock


@both_apis
@streamed_or_not
@pytest.mark.parametrize("size", [1, 1000])
async def test_aimock_answers_and_calls(aimock: Any, api: str, stream: bool, size: int) -> None:
    calls = [
        {"name": "add", "arguments": {"a": 1, "b": 2}, "id": "c1"},
        {"name": "add", "arguments": {"a": 3, "b": 4}, "id": "c2"},
    ]
    aimock.script({"content": "Let me see.", "toolCalls": calls}, {"content": "3 and 7"}, chunkSize=size)
    result = await agent_at(f"{aimock.url}/v1", api=api, stream=stream, tools=[add]).run("1+2 and 3+4?")
    assert (result.status, result.text) == ("completed", "3 and 7")
    assert [message.text for message in result.messages if message.role == "assistant"] == ["Let me see.", "3 and 7"]
    (_, second) = aimock.requests
    assert [message["content"] for message in second["body"]["messages"] if message["role"] == "tool"] == ["3", "7"]


@streamed_or_not
async def test_aimock_counts_tokens(aimock: Any, stream: bool) -> None:
    aimock.script({"content": "Hi", "usage": {"prompt_tokens": 12, "completion_tokens": 3}})
    usage = (await agent_at(f"{aimock.url}/v1", api="chat", stream=stream).run("hi")).usage
    assert (usage.input_tokens, usage.output_tokens) == (12, 3)


@both_apis
async def test_aimock_reasons(aimock: Any, api: str) -> None:
    aimock.script({"content": "Yes.", "reasoning": "Because."})
    result = await agent_at(f"{aimock.url}/v1", api=api, id="gpt-5").run("well?")
    assert result.text == "Yes."


@both_apis
@pytest.mark.parametrize(
    ("error", "status", "cls"),
    [
        ({"message": "slow", "type": "rate_limit_error", "code": "rate_limit_exceeded"}, 429, RateLimitError),
        ({"message": "busy", "type": "server_error"}, 503, OverloadedError),
        ({"message": "boom", "type": "server_error"}, 500, ServerError),
    ],
)
async def test_aimock_fails_and_a_retry_succeeds(aimock: Any, api: str, error: Any, status: int, cls: type) -> None:
    aimock.script({"error": error, "status": status, "retryAfter": 3}, {"content": "Hi"})
    with pytest.raises(cls):
        await agent_at(f"{aimock.url}/v1", api=api).run("hi")
    aimock.script({"error": error, "status": status, "retryAfter": 3}, {"content": "Hi"})
    clock = FakeClock()
    result = await agent_at(f"{aimock.url}/v1", api=api, plugins=[clock, Retry()]).run("hi")
    assert result.text == "Hi"
    assert len(aimock.requests) == 2
    assert clock.sleeps[0] >= (3 if status == 429 else 0)


@both_apis
async def test_aimock_cuts_a_stream(aimock: Any, api: str) -> None:
    aimock.script({"content": "A long answer that is cut.", "truncateAfterChunks": 3, "latency": 5, "chunkSize": 4})
    with pytest.raises(StreamCutError):
        await agent_at(f"{aimock.url}/v1", api=api).run("hi")


async def test_aimock_stops_at_the_limit(aimock: Any) -> None:
    aimock.script({"content": "half", "finishReason": "length"})
    result = await agent_at(f"{aimock.url}/v1", api="chat").run("hi")
    assert (result.status, result.text) == ("truncated", "half")


# llama.cpp

SURE = ModelSettings(
    temperature=0, tool_choice="required", parallel_tool_calls=False, max_tokens=80, extra=dict(SURE_CALL)
)


def llama_model(llama: Any, **options: Any) -> OpenAIModel:
    return OpenAIModel("smollm2", server="llamacpp", base_url=f"{llama.url}/v1", **options)


@pytest.mark.weights
@both_apis
@streamed_or_not
async def test_llama_calls_a_tool_and_reads_its_result(llama: Any, api: str, stream: bool) -> None:
    model = llama_model(llama, api=api, stream=stream)
    agent = Agent(model, tools=[add], settings=SURE, autoload="none", config=False).use(turn_with_one_call)
    async with agent, agent.session() as session:
        result = await session.run("Add 2 and 3")
        answer, results = session.history[1:3]
    assert result.status == "stopped"
    (call,) = answer.tool_calls
    assert call.name == "add"
    assert isinstance(results.parts[0], ToolResult)
    assert result.usage.input_tokens + result.usage.cache_read_tokens > 50
    assert result.usage.output_tokens > 5


async def turn_with_one_call(ctx: Any, call_next: Any) -> Any:
    """Stop the turn once the tool has run; a model that must call a tool would call it for ever."""
    ctx.session.on("tool.result", lambda event: ctx.stop("enough"))
    return await call_next()


@pytest.mark.weights
@both_apis
async def test_llama_streams_text(llama: Any, api: str) -> None:
    settings = ModelSettings(max_tokens=12, temperature=0)
    response, deltas = await respond(llama_model(llama, api=api), request(user("Say hello."), settings=settings))
    assert response.text
    assert "".join([getattr(delta, "text", "") for delta in deltas]) == response.text
    assert len(deltas) > 2


@pytest.mark.weights
@both_apis
@streamed_or_not
async def test_llama_says_that_its_context_is_full(llama: Any, api: str, stream: bool) -> None:
    with pytest.raises(ContextWindowError) as caught:
        await respond(llama_model(llama, api=api, stream=stream), request(user("Hello " * 9000)))
    assert caught.value.status == 400
    assert caught.value.provider_code == "exceed_context_size_error"


@pytest.mark.weights
async def test_llama_holds_an_answer_to_a_schema(llama: Any) -> None:
    agent = Agent(llama_model(llama), settings=ModelSettings(max_tokens=60), autoload="none", config=False)
    schema = {
        "type": "object",
        "properties": {"colour": {"type": "string", "enum": ["red", "blue"]}},
        "required": ["colour"],
        "additionalProperties": False,
    }
    result = await agent.run("What is the colour of the sky?", output=schema)
    assert result.output["colour"] in ("red", "blue")


def props(supports: Any) -> Any:
    def answer(request: Request) -> Any:
        if request.path == "/props":
            return reply(200, body={"chat_template_caps": {"supports_tools": supports}})
        return reply(200, body={"choices": [{"message": {"content": "ok"}, "finish_reason": "stop"}]})

    return answer


async def test_tools_that_a_server_would_drop_are_refused_before_the_request() -> None:
    with WireServer(props(False)) as server:
        model = OpenAIModel("m", server="llamacpp", base_url=f"{server.url}/v1")
        with pytest.raises(RequestRejectedError, match=r"llamacpp/m cannot call tools: the chat template"):
            await respond(model, request(tools=(ADD,)))
        await respond(model, request())
    assert [one.path for one in server.requests] == ["/props", "/v1/chat/completions"]


@pytest.mark.parametrize("supports", [True, None])
async def test_a_server_is_asked_once_what_its_template_knows(supports: Any) -> None:
    with WireServer(props(supports)) as server:
        agent = Agent(
            OpenAIModel("m", server="llamacpp", base_url=f"{server.url}/v1"), tools=[add], autoload="none", config=False
        )
        async with agent:
            await agent.run("a")
            await agent.run("b")
    assert [one.path for one in server.requests].count("/props") == 1


# Names and settings


def test_every_server_is_an_entry_point() -> None:
    from importlib.metadata import distribution

    entries = {entry.name: entry for entry in distribution("agentx-model-openai").entry_points}
    assert set(entries) == set(SERVERS)
    assert {entry.load() for entry in entries.values()} == {OpenAIProvider}


@pytest.mark.parametrize("prefix", sorted(SERVERS))
async def test_a_server_is_asked_by_its_prefix(prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SERVERS[prefix].key_variables:
        monkeypatch.setenv(name, "sk-of-the-environment")
    with OpenAIFake([Said("Hi")], oracle=False) as server:
        config = {"models": {prefix: {"base_url": f"{server.url}/v1"}}}
        result = await Agent(f"{prefix}/some/model", config=config, autoload="none").run("hi")
    assert result.text == "Hi"
    assert server.requests[-1].json["model"] == "some/model"
    if SERVERS[prefix].key_variables:
        sent = server.requests[-1].headers
        assert "sk-of-the-environment" in (sent.get("authorization") or sent["api-key"])


async def test_a_server_of_ones_own_has_a_name_of_its_own() -> None:
    with OpenAIFake([Said("Hi")], oracle=False) as server:
        table = {
            "provider": "openai-compatible",
            "base_url": server.url,
            "api_key": "sk-mine",
            "headers": {"X-Team": "a"},
            "quirks": {"max_tokens": "max_completion_tokens", "stream_usage": False},
        }
        agent = Agent(
            "ours/big", config={"models": {"ours": table}}, autoload="none", settings=ModelSettings(max_tokens=5)
        )
        assert (await agent.run("hi")).text == "Hi"
    (sent,) = server.requests
    assert (sent.headers["x-team"], sent.headers["authorization"]) == ("a", "Bearer sk-mine")
    assert sent.json["max_completion_tokens"] == 5
    assert "stream_options" not in sent.json


async def test_a_quirk_that_nobody_knows_is_refused() -> None:
    config = {"models": {"openai-compatible": {"base_url": "http://127.0.0.1:1", "quirks": {"max_token": "x"}}}}
    with pytest.raises(ConfigError, match=r"quirks must be .*unknown key 'max_token'; did you mean 'max_tokens'"):
        await Agent("openai-compatible/m", config=config, autoload="none").run("hi")


@pytest.mark.parametrize("prefix", ["openai-compatible", "azure"])
async def test_a_server_without_an_address_names_the_setting(prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", "x")
    with pytest.raises(ConfigError, match=rf"there is no address; set models\.{prefix}\.base_url"):
        await Agent(f"{prefix}/m", config=False, autoload="none").run("hi")


def test_an_unknown_server_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"no server is called 'opnai'; did you mean 'openai'"):
        OpenAIModel("m", server="opnai")


def test_models_are_listed_with_where_the_key_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    missing = OpenAIProvider(prefix="openai").models()
    assert {info.ready for info in missing} == {False}
    assert "OPENAI_API_KEY" in missing[0].detail
    monkeypatch.setenv("OPENAI_API_KEY", "sk-SECRET")
    listed = {info.id: info for info in OpenAIProvider(prefix="openai").models()}
    assert listed["openai/gpt-5"].key == "environment OPENAI_API_KEY"
    assert listed["openai/gpt-5"].capabilities.reasoning is True
    assert listed["openai/gpt-4o"].capabilities.reasoning is False
    assert "SECRET" not in repr(listed)


def test_other_servers_are_listed_once_they_are_set_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GROQ_API_KEY", raising=False)
    assert OpenAIProvider(prefix="groq", provider="groq").models() == []
    monkeypatch.setenv("GROQ_API_KEY", "sk-x")
    (info,) = OpenAIProvider(prefix="groq", provider="groq").models()
    assert (info.id, info.ready, info.key) == ("groq/…", True, "environment GROQ_API_KEY")


def test_importing_the_plugin_leaves_agentx_as_light_as_it_was() -> None:
    import subprocess
    import sys

    code = "import sys, agentx; print({'httpx', 'agentx_model_openai', 'agentx.providers'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, check=True)
    assert done.stdout.strip() == "set()"
