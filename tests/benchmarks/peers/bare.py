"""A loop written by hand over dicts: no framework, no checks, no events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from common import DELTA, FINAL, Count, Script, step

IMPORTS = "import asyncio, json"
Message = dict[str, Any]
Call = Callable[..., Awaitable[Any]]


class Bare:
    """A model, a tool, and closures around both."""

    def __init__(self, script: Script, middleware: int) -> None:
        self.script = script
        self.model: Call = self.answer
        self.tool: Call = self.run_tool
        for _ in range(middleware):
            self.model, self.tool = around_model(self.model), around_tool(self.tool)

    async def answer(self, messages: list[Message]) -> Message:
        script = self.script
        if script.delay:
            await asyncio.sleep(script.delay)
        Count.seen = len(messages)
        last = messages[-1]
        k = int(last["content"]) if last["role"] == "tool" else 0
        if k >= script.steps:
            return {"role": "assistant", "content": FINAL, "calls": ()}
        args = json.dumps({"n": k})
        calls = [{"id": f"call_{k}_{i}", "name": "step", "args": args} for i in range(script.width)]
        return {"role": "assistant", "content": None, "calls": calls}

    async def run_tool(self, call: Message) -> Message:
        return {"role": "tool", "id": call["id"], "content": await step(**json.loads(call["args"]))}

    async def run(self, messages: list[Message]) -> str:
        while True:
            reply = await self.model(messages)
            messages.append(reply)
            calls = reply["calls"]
            if not calls:
                return str(reply["content"])
            if len(calls) == 1:
                messages.append(await self.tool(calls[0]))
            else:
                messages.extend(await asyncio.gather(*[self.tool(call) for call in calls]))


def around_model(inner: Call) -> Call:
    async def wrapped(messages: list[Message]) -> Any:
        Count.model_wraps += 1
        return await inner(messages)

    return wrapped


def around_tool(inner: Call) -> Call:
    async def wrapped(call: Message) -> Any:
        Count.tool_wraps += 1
        return await inner(call)

    return wrapped


async def build(script: Script, *, middleware: int = 0) -> Bare:
    return Bare(script, middleware)


async def session(agent: Bare, key: str) -> list[Message]:
    return []


async def turn(agent: Bare, messages: list[Message], text: str) -> str:
    messages.append({"role": "user", "content": text})
    return await agent.run(messages)


async def stream(agent: Bare, messages: list[Message], text: str) -> AsyncIterator[str]:
    for _ in range(agent.script.deltas):
        yield DELTA


async def close(agent: Bare) -> None:
    """Nothing is open."""
