"""The public face: what is exported, what an import costs, how far one turn travels."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

import agentx
from agentx import Agent, ModelRequest, ModelResponse, TextPart, ToolCall, Usage, tool

REPO = Path(__file__).resolve().parents[2]
CORE = REPO / "core" / "agentx"
HEAVY = ("httpx", "click", "rich", "opentelemetry", "importlib.metadata")


def test_every_exported_name_is_documented_and_no_other() -> None:
    page = (REPO / "docs/reference/api.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^- `(\w+)`", page, re.MULTILINE)) == agentx.__all__


def test_what_type_checkers_see_is_what_is_exported() -> None:
    tree = ast.parse((CORE / "__init__.py").read_text(encoding="utf-8"))
    imported = [alias.asname for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert sorted([name for name in imported if name and not name.startswith("__")]) == agentx.__all__
    assert all(hasattr(agentx, name) for name in agentx.__all__)


@pytest.mark.parametrize("statement", ["import agentx", "from agentx import Agent, Session, tool"])
def test_importing_agentx_imports_nothing_heavy(statement: str) -> None:
    code = f"import sys\n{statement}\nprint([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, check=True)
    assert done.stdout.strip() == "[]"


def test_one_turn_with_a_tool_call_crosses_few_files_of_core() -> None:
    """The built-in plugins are not core; data classes and frames count as files too."""

    @tool
    async def weather(city: str) -> str:
        """Say how it is."""
        return f"sun in {city}"

    asks = ModelResponse((ToolCall("c1", "weather", '{"city": "Oslo"}'),), "tool_use", Usage(1, 1))
    answers = [asks, ModelResponse((TextPart("Sun."),), "end_turn", Usage(1, 1))] * 2

    class Scripted:
        name = "scripted"

        async def respond(self, request: ModelRequest, emit: object) -> ModelResponse:
            return answers.pop(0)

    async def main() -> list[str]:
        agent = Agent(Scripted(), tools=[weather], autoload="none", config=False)
        async with agent, agent.session() as session:
            await session.run("warm up")
            seen: list[str] = []

            def note(frame: object, event: str, _: object) -> None:
                if event == "call":
                    file = Path(frame.f_code.co_filename)  # type: ignore[attr-defined]  # a frame
                    if file.parent == CORE and (not seen or seen[-1] != file.stem):
                        seen.append(file.stem)

            sys.setprofile(note)
            try:
                await session.run("Weather in Oslo?")
            finally:
                sys.setprofile(None)
            return seen

    hops = anyio.run(main)
    assert len(set(hops)) <= MOST_FILES
    assert len(hops) - 1 <= MOST_HOPS


MOST_FILES, MOST_HOPS = 8, 48  # the aim is 35 hops; most of what is left goes to `SessionFrame.record` and back
