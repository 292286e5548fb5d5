"""The Messages API as others serve it: aimock, and llama.cpp's server with a real model."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from agentx import (
    Agent,
    ContextWindowError,
    Message,
    ModelRequest,
    ModelSettings,
    OverloadedError,
    RateLimitError,
    ServerError,
    StreamCutError,
    TextDelta,
    TextPart,
    ThinkingPart,
    ToolCall,
    ToolResult,
    ToolSpec,
    tool,
)
from agentx.builtin.retry import Retry
from agentx.testing import FakeClock, check_history
from agentx_model_anthropic import AnthropicModel

ADD = ToolSpec(
    "add",
    "Add two numbers.",
    {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]},
)


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def nothing(delta: Any) -> None:
    pass


def agent_at(url: str, *, stream: bool = True, **options: Any) -> Agent[Any, str]:
    model = AnthropicModel("claude-sonnet-4-5", api_key="k", base_url=url, stream=stream)
    return Agent(model, autoload="none", config=False, **options)


# aimock


@pytest.mark.parametrize("stream", [True, False])
async def test_aimock_a_tool_round_with_thinking(aimock: Any, stream: bool) -> None:
    aimock.script(
        {
            "content": "I add.",
            "reasoning": "let me see",
            "toolCalls": [
                {"id": "c1", "name": "add", "arguments": {"a": 1, "b": 2}},
                {"id": "c2", "name": "add", "arguments": {"a": 3, "b": 4}},
            ],
        },
        {"content": "3 and 7"},
        chunkSize=3,
    )
    async with agent_at(aimock.url, stream=stream, tools=[add]) as agent, agent.session() as session:
        done = await session.run("1 + 2 and 3 + 4?")
        check_history(session.history)
    assert (done.status, done.text) == ("completed", "3 and 7")
    asked = done.messages[1]
    assert [(one.name, one.arguments) for one in asked.tool_calls] == [
        ("add", '{"a":1,"b":2}'),
        ("add", '{"a":3,"b":4}'),
    ]
    thoughts = [part for part in asked.parts if isinstance(part, ThinkingPart)]
    assert [part.text for part in thoughts] == ["let me see"]
    results = [one for one in aimock.requests[1]["body"]["messages"] if one["role"] == "tool"]
    assert [one["content"] for one in results] == ["3", "7"]


async def test_aimock_errors_and_their_waits(aimock: Any) -> None:
    overloaded = {"error": {"message": "Overloaded", "type": "overloaded_error"}, "status": 529}
    limited = {"error": {"message": "Slow down", "type": "rate_limit_error"}, "status": 429, "retryAfter": 3}
    aimock.script(overloaded, limited, {"content": "ok"})
    clock = FakeClock()
    done = await agent_at(aimock.url, plugins=[clock, Retry()]).run("Hi")
    assert (done.text, len(aimock.requests)) == ("ok", 3)
    aimock.script(overloaded)
    with pytest.raises(OverloadedError):
        await agent_at(aimock.url).run("Hi")
    aimock.script(limited)
    with pytest.raises(RateLimitError):
        await agent_at(aimock.url).run("Hi")


async def test_aimock_a_stream_that_is_cut_is_no_answer(aimock: Any) -> None:
    aimock.script({"content": "Hello over there", "latency": 5, "chunkSize": 2, "truncateAfterChunks": 4})
    with pytest.raises(StreamCutError):
        await agent_at(aimock.url).run("Hi")


@pytest.mark.parametrize(("finish", "status"), [("length", "truncated"), ("stop", "completed")])
async def test_aimock_says_why_it_stopped(aimock: Any, finish: str, status: str) -> None:
    aimock.script({"content": "Hello", "finishReason": finish})
    assert (await agent_at(aimock.url).run("Hi")).status == status


# llama.cpp


def shots() -> tuple[Message, ...]:
    """A conversation in which a small model goes on calling the tool."""
    said: list[Message] = []
    for number, (a, b) in enumerate(((3, 4), (5, 6), (7, 8), (9, 2))):
        call = ToolCall(f"t{number}", "add", f'{{"a":{a},"b":{b}}}')
        said.append(Message("user", (TextPart(f"Add {a} and {b}"),)))
        said.append(Message("assistant", (call,)))
        said.append(Message("tool", (ToolResult(call.id, "add", (TextPart(str(a + b)),)),)))
    return (*said, Message("user", (TextPart("Add 1 and 2"),)))


@pytest.mark.weights
@pytest.mark.parametrize("stream", [True, False])
async def test_llama_answers(llama: Any, stream: bool) -> None:
    deltas: list[Any] = []

    async def emit(delta: Any) -> None:
        deltas.append(delta)

    model = AnthropicModel("smollm2", base_url=llama.url, stream=stream)
    request = ModelRequest("anthropic/x", (Message("user", (TextPart("Hi"),)),), instructions="Be brief.")
    request = attrs.evolve(request, settings=ModelSettings(max_tokens=8, temperature=0))
    response = await model.respond(request, emit)
    await model.aclose()
    assert response.text
    assert "".join([delta.text for delta in deltas if isinstance(delta, TextDelta)]) == response.text
    assert response.stop_reason in ("end_turn", "max_tokens")
    assert response.usage is not None
    assert 0 < response.usage.output_tokens <= 8
    assert response.usage.input_tokens + response.usage.cache_read_tokens > 3


@pytest.mark.weights
@pytest.mark.parametrize("stream", [True, False])
async def test_llama_calls_a_tool_and_takes_its_result_back(llama: Any, stream: bool) -> None:
    model = AnthropicModel("smollm2", base_url=llama.url, stream=stream)
    settings = ModelSettings(max_tokens=60, temperature=0, tool_choice="required")
    request = ModelRequest("anthropic/x", shots(), tools=(ADD,), settings=settings)
    response = await model.respond(request, nothing)
    assert response.stop_reason == "tool_use"
    (call,) = response.tool_calls
    assert call.name == "add"
    result = Message("tool", (ToolResult(call.id, "add", (TextPart("3"),)),))
    more = Message("user", (TextPart("Add 2 and 2"),))
    again = attrs.evolve(request, messages=(*request.messages, response.message, result, more))
    assert [one.name for one in (await model.respond(again, nothing)).tool_calls] == ["add"]
    await model.aclose()


@pytest.mark.weights
@pytest.mark.parametrize("stream", [True, False])
async def test_llama_reports_an_error_in_a_stream_that_began_well(llama: Any, stream: bool) -> None:
    """The model calls a tool although it must not; the server notices it at the end."""
    model = AnthropicModel("smollm2", base_url=llama.url, stream=stream)
    settings = ModelSettings(max_tokens=60, temperature=0, tool_choice="none")
    call = ToolCall("t9", "add", '{"a":1,"b":2}')
    messages = (
        *shots(),
        Message("assistant", (call,)),
        Message("tool", (ToolResult(call.id, "add", (TextPart("3"),)),)),
    )
    with pytest.raises(ServerError, match="does not match the expected") as caught:
        await model.respond(ModelRequest("anthropic/x", messages, tools=(ADD,), settings=settings), nothing)
    assert caught.value.status == 500
    await model.aclose()


@pytest.mark.weights
async def test_llama_says_that_its_context_is_full_in_the_form_of_another_dialect(llama: Any) -> None:
    with pytest.raises(ContextWindowError) as caught:
        await agent_at(llama.url).run("Hi " * (llama.context + 1000))
    assert (caught.value.status, caught.value.provider_code) == (400, "exceed_context_size_error")
