"""agentx as a peer: the five built-in plugins on, sessions in memory."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import anyio
from common import DELTA, FINAL, Count, Script, step

import agentx
from agentx import (
    Agent,
    ModelRequest,
    ModelResponse,
    Plugin,
    Session,
    TextDelta,
    TextPart,
    ToolCall,
    Usage,
    tool,
)

DIST = "agentx-core"
IMPORTS = "from agentx import Agent, Session, tool"
VARIANTS: dict[str, list[str]] = {"w4": [], "w6": ["none"], "w8": []}
NOTES = "the built-in plugins are on, their limit on requests is raised; sessions live in memory"
BUILTIN = ("observe.usage", "observe.tools", "observe.duration", "guard.limits", "model.retry")
USAGE = Usage(10, 2)


class Fake:
    """Answers at once, by the last message alone."""

    name = "fake"

    def __init__(self, script: Script) -> None:
        self.script = script

    async def respond(self, request: ModelRequest, emit: agentx.Emit) -> ModelResponse:
        script = self.script
        if script.delay:
            await anyio.sleep(script.delay)
        messages = request.messages
        Count.seen = len(messages)
        if script.deltas:
            for _ in range(script.deltas):
                await emit(TextDelta(DELTA))
            return ModelResponse((TextPart(DELTA * script.deltas),), "end_turn", USAGE)
        last = messages[-1]
        k = int(last.parts[-1].text) if last.role == "tool" else 0  # type: ignore[attr-defined]  # a tool result
        if k >= script.steps:
            return ModelResponse((TextPart(FINAL),), "end_turn", USAGE)
        args = json.dumps({"n": k})
        calls = [ToolCall(f"call_{k}_{i}", "step", args) for i in range(script.width)]
        return ModelResponse(tuple(calls), "tool_use", USAGE)


class Noop(Plugin):
    """A layer that only counts, around the model and the tools."""

    id = "test.noop"

    async def model(self, ctx: Any, call_next: Any) -> Any:
        Count.model_wraps += 1
        return await call_next()

    async def tool(self, ctx: Any, call_next: Any) -> Any:
        Count.tool_wraps += 1
        return await call_next()


async def build(script: Script, *, middleware: int = 0, variant: str = "", folder: str = "") -> Agent[Any, str]:
    agent: Agent[Any, str] = Agent(Fake(script), tools=[tool(step)], config=False, limits={"requests": 1_000_000})
    for number in range(middleware):
        agent.use(Noop(), name=f"n{number}")
    await agent.__aenter__()
    active = {row.id for row in agent.plugins if row.status == "enabled"}
    assert active.issuperset(BUILTIN), active
    return agent


async def session(agent: Agent[Any, str], key: str) -> Session[str]:
    return await agent.session(key).__aenter__()


async def turn(agent: Agent[Any, str], session: Session[str], text: str) -> str:
    return (await session.run(text)).text


async def stream(agent: Agent[Any, str], session: Session[str], text: str) -> AsyncIterator[str]:
    async with session.stream(text) as running:
        async for piece in running.text:
            yield piece


async def close(agent: Agent[Any, str]) -> None:
    await agent.__aexit__(None, None, None)
