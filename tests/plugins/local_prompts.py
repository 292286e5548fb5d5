"""Forty prompts for three tools: what a small model should call, or that it should call nothing.

Twelve want no tool. The set was written before the model was first asked and nothing was tuned on it; prompt format
and thresholds were chosen on other prompts. `python tests/plugins/local_prompts.py [auto | needle | smollm2]` prints
the number.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import anyio

from agentx import Message, Model, ModelRequest, ModelSettings, TextPart, ToolSpec
from agentx_model_local import PROVIDER

Prompt = tuple[str, str | None, dict[str, Any]]
"""The prompt, the tool it wants (or `None`) and the arguments of that call."""

PROMPTS: tuple[Prompt, ...] = (
    ("Weather in Oslo?", "weather", {"city": "Oslo"}),
    ("What is the weather like in Rome today?", "weather", {"city": "Rome"}),
    ("Tell me the current weather in Buenos Aires.", "weather", {"city": "Buenos Aires"}),
    ("Is it raining in Seattle right now?", "weather", {"city": "Seattle"}),
    ("How cold is it in Reykjavik?", "weather", {"city": "Reykjavik"}),
    ("I'm flying to Nairobi tomorrow, what's the weather there?", "weather", {"city": "Nairobi"}),
    ("Do I need an umbrella in Dublin?", "weather", {"city": "Dublin"}),
    ("weather new york", "weather", {"city": "new york"}),
    ("Please check the weather for Hanoi", "weather", {"city": "Hanoi"}),
    ("Can you look up the temperature in Cairo?", "weather", {"city": "Cairo"}),
    ("What is 17 plus 25?", "add", {"a": 17, "b": 25}),
    ("Add 3 and 4.", "add", {"a": 3, "b": 4}),
    ("Please sum 120 and 35.", "add", {"a": 120, "b": 35}),
    ("How much is 2.5 + 7?", "add", {"a": 2.5, "b": 7}),
    ("12 + 30", "add", {"a": 12, "b": 30}),
    ("What do I get when I add 999 to 1?", "add", {"a": 999, "b": 1}),
    ("Calculate the sum of 8 and 15", "add", {"a": 8, "b": 15}),
    ("I have 14 apples and buy 6 more, how many are there in total?", "add", {"a": 14, "b": 6}),
    ("Use the tool to add -5 and 20", "add", {"a": -5, "b": 20}),
    ("Read the file notes.txt", "read_file", {"path": "notes.txt"}),
    ("Show me what is in README.md", "read_file", {"path": "README.md"}),
    ("Open /etc/hostname and print it", "read_file", {"path": "/etc/hostname"}),
    ("What does config/settings.toml say?", "read_file", {"path": "config/settings.toml"}),
    ("cat src/main.py", "read_file", {"path": "src/main.py"}),
    ("Can you read data.csv for me?", "read_file", {"path": "data.csv"}),
    ("Please give me the contents of ../todo.md", "read_file", {"path": "../todo.md"}),
    ("Load report_2024.json", "read_file", {"path": "report_2024.json"}),
    ("I want to see the text inside letter.txt", "read_file", {"path": "letter.txt"}),
    ("Hello!", None, {}),
    ("Who are you?", None, {}),
    ("Write a short poem about the sea.", None, {}),
    ("What is the capital of France?", None, {}),
    ("Tell me a joke.", None, {}),
    ("Thanks, that was helpful.", None, {}),
    ("Explain photosynthesis in one sentence.", None, {}),
    ("Translate 'good morning' into Spanish.", None, {}),
    ("Which is better for beginners, Python or Java?", None, {}),
    ("What can you do?", None, {}),
    ("Write a haiku about autumn leaves.", None, {}),
    ("Why is the sky blue?", None, {}),
)


def _object(**types: str) -> dict[str, Any]:
    properties = {name: {"type": kind} for name, kind in types.items()}
    return {"type": "object", "properties": properties, "required": list(types)}


TOOLS = (
    ToolSpec("add", "Add two numbers.", _object(a="number", b="number")),
    ToolSpec("read_file", "Read a file.", _object(path="string")),
    ToolSpec("weather", "Current weather in a city.", _object(city="string")),
)
ANSWER = ModelSettings(max_tokens=1)
"""What the model would write does not count, so it need not write it."""


async def is_exact(model: Model, prompt: Prompt) -> bool:
    """Whether `model` makes exactly the wanted call, or none if none is wanted."""
    text, tool, arguments = prompt
    request = ModelRequest(model.name, [Message("user", (TextPart(text),))], tools=TOOLS, settings=ANSWER)
    response = await model.respond(request, _ignore)
    made = [(call.name, json.loads(call.arguments)) for call in response.tool_calls]
    return made == ([] if tool is None else [(tool, arguments)])


async def score(model: Model, report: Callable[[str, bool], None] | None = None) -> int:
    """Return how many of the prompts are exact."""
    exact = 0
    for prompt in PROMPTS:
        right = await is_exact(model, prompt)
        exact += right
        if report is not None:
            report(prompt[0], right)
    return exact


async def _ignore(delta: object) -> None:
    return None


def _say(text: str, right: bool) -> None:
    print("right" if right else "WRONG", text, flush=True)  # noqa: T201  # a script


async def main(name: str) -> None:
    model = PROVIDER.model(name)
    started = time.monotonic()
    try:
        exact = await score(model, _say)
    finally:
        await model.aclose()  # type: ignore[attr-defined]  # every local model has one
    seconds = (time.monotonic() - started) / len(PROMPTS)
    print(f"{model.name}: {exact} of {len(PROMPTS)} exact, {seconds:.1f} s a prompt")  # noqa: T201  # a script


if __name__ == "__main__":
    anyio.run(main, sys.argv[1] if len(sys.argv) > 1 else "auto")
