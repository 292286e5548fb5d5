"""The same script through agentx and through another agent framework: the servers are told the same."""

from __future__ import annotations

import json
from typing import Any

import anyio
import httpx2
from pydantic_ai import Agent as OtherAgent
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider as OtherProvider

from agentx import tool
from peers.openai_fake import OpenAIFake, Said

from ._openai import KEY, agent_at, both_apis

INSTRUCTIONS = "Use the tools."
SCRIPT = [
    Said("Let me see.", calls=[("c1", "add", '{"a": 1, "b": 2}'), ("c2", "shout", '{"text": "hé"}')]),
    Said(calls=[("c3", "add", '{"a": 3, "b": 4}')]),
    Said("3, HÉ and 7."),
]


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def shout(text: str) -> str:
    """Make a text loud."""
    return text.upper()


async def ours(api: str) -> list[Any]:
    with OpenAIFake(SCRIPT) as server:
        agent = agent_at(server, api=api, stream=False, tools=[tool(add), tool(shout)])
        agent.instructions = INSTRUCTIONS
        assert (await agent.run("1+2, and shout hé")).text == SCRIPT[-1].text
    return [request.json for request in server.requests]


async def theirs(api: str) -> list[Any]:
    async with httpx2.AsyncClient() as client:
        return await _theirs(api, client)


async def _theirs(api: str, client: httpx2.AsyncClient) -> list[Any]:
    with OpenAIFake(SCRIPT, oracle=False) as server:
        cls = OpenAIChatModel if api == "chat" else OpenAIResponsesModel
        provider = OtherProvider(base_url=server.url, api_key=KEY, http_client=client)
        model = cls("gpt-test", provider=provider)
        agent = OtherAgent(model, instructions=INSTRUCTIONS, tools=[add, shout])
        assert (await agent.run("1+2, and shout hé")).output == SCRIPT[-1].text
    return [request.json for request in server.requests]


def conversation(body: Any) -> list[tuple[Any, ...]]:
    """Return what a request tells, without the forms in which the same can be said."""
    if "messages" in body:
        return [one for message in body["messages"] for one in _message(message)]
    told = [("instructions", body["instructions"])] if body.get("instructions") else []
    return told + [one for item in body["input"] for one in _item(item)]


def _message(message: Any) -> list[tuple[Any, ...]]:
    role, text = message["role"], _text(message.get("content"))
    if role == "tool":
        return [("result", message["tool_call_id"], text)]
    role = "instructions" if role in ("system", "developer") else role
    said = [(role, text)] if text else []
    calls = [(call["id"], call["function"]) for call in message.get("tool_calls") or []]
    return said + [("call", call_id, one["name"], json.loads(one["arguments"])) for call_id, one in calls]


def _item(item: Any) -> list[tuple[Any, ...]]:
    kind = item.get("type", "message")
    if kind == "function_call":
        return [("call", item["call_id"], item["name"], json.loads(item["arguments"]))]
    if kind == "function_call_output":
        return [("result", item["call_id"], _text(item["output"]))]
    role = "instructions" if item["role"] in ("system", "developer") else item["role"]
    return [(role, _text(item["content"]))]


def _text(content: Any) -> str:
    if isinstance(content, str) or content is None:
        return content or ""
    return "".join([part["text"] for part in content])


def tools_of(body: Any) -> dict[str, Any]:
    tools = [one.get("function", one) for one in body["tools"]]
    return {one["name"]: (one["description"], sorted(one["parameters"]["required"])) for one in tools}


@both_apis
def test_the_same_script_tells_a_server_the_same(api: str) -> None:
    """On asyncio alone, which the other framework needs."""
    mine, other = anyio.run(ours, api), anyio.run(theirs, api)
    assert len(mine) == len(other) == 3
    for one, another in zip(mine, other, strict=True):
        assert conversation(one) == conversation(another)
        assert tools_of(one) == tools_of(another)


def test_what_is_compared_is_not_empty() -> None:
    told = conversation(anyio.run(ours, "chat")[2])
    assert told[:2] == [("instructions", INSTRUCTIONS), ("user", "1+2, and shout hé")]
    assert told[-2:] == [("call", "c3", "add", {"a": 3, "b": 4}), ("result", "c3", "7")]
