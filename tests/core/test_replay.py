"""Recorded sessions as cassettes: the same requests get the same answers, others fail and say what differs."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import attrs
import pytest

from agentx import (
    Agent,
    CallNext,
    Event,
    MemoryStore,
    ModelContext,
    ModelResponse,
    ModelSettings,
    Plugin,
    RateLimitError,
    TextDeltaEvent,
    TextPart,
    ToolCall,
    TurnContext,
    Usage,
    tool,
)
from agentx._store import replay
from agentx.testing import ReplayError, ReplayModel, ScriptedModel, call, read_events, record, write_events


@tool
async def add(a: int, b: int) -> str:
    """Add two numbers."""
    return str(a + b)


SCRIPT = [["Let me see. ", call("add", a=1, b=2)], "The sum is 3.", "Bye."]
INPUTS = ["1 + 2?", "Thanks"]


def agent_of(model: Any, **options: Any) -> Agent[Any, Any]:
    options.setdefault("tools", [add])
    options.setdefault("instructions", "Be brief.\nBe kind.")
    return Agent(model, config=False, autoload="none", **options)


async def events_of(agent: Agent[Any, Any], *inputs: str, **options: Any) -> list[Event]:
    async with agent.session() as session:
        for text in inputs:
            await session.run(text, **options)
        return list(session.events)


async def recorded(**options: Any) -> list[Event]:
    return await events_of(agent_of(ScriptedModel(list(SCRIPT)), **options), *INPUTS)


async def told(agent: Agent[Any, Any], *inputs: str, **options: Any) -> str:
    """Run turns of which one fails because the request differs, and return what is said of it."""
    with pytest.raises(ReplayError) as caught:
        await events_of(agent, *inputs, **options)
    return str(caught.value)


async def test_the_same_turns_get_the_same_answers() -> None:
    model = ReplayModel(await recorded())
    async with agent_of(model).session() as session:
        results = [await session.run(message.parts) for message in model.inputs]
    assert [result.text for result in results] == ["The sum is 3.", "Bye."]
    assert [result.usage.requests for result in results] == [2, 1]
    model.assert_finished()


async def test_answers_are_streamed_in_small_pieces() -> None:
    model = ReplayModel(await recorded(), delta_size=3)
    pieces: list[str] = []
    async with agent_of(model).session() as session, session.stream(INPUTS[0]) as stream:
        async for event in stream:
            if isinstance(event, TextDeltaEvent):
                pieces.append(event.text)
    assert "".join(pieces) == "Let me see. The sum is 3."
    assert max(len(piece) for piece in pieces) == 3


async def test_a_recording_is_a_file_of_lines(tmp_path: Path) -> None:
    file = tmp_path / "cassette.jsonl"
    agent = agent_of(ScriptedModel(list(SCRIPT)))
    results = await record(agent, INPUTS, file)
    assert [result.text for result in results] == ["The sum is 3.", "Bye."]
    model = ReplayModel(file)
    again = await events_of(agent_of(model), *INPUTS)
    assert replay(again).history == replay(read_events(file)).history
    model.assert_finished()


async def test_a_recording_is_written_although_a_turn_fails(tmp_path: Path) -> None:
    file = tmp_path / "cassette.jsonl"
    with pytest.raises(RateLimitError):
        await record(agent_of(ScriptedModel([RateLimitError("slow down")])), ["1"], file)
    with pytest.raises(RateLimitError, match="slow down"):
        await events_of(agent_of(ReplayModel(file)), "1")


async def test_a_file_that_is_no_recording_names_the_line(tmp_path: Path) -> None:
    file = tmp_path / "cassette.jsonl"
    write_events((await recorded())[:1], file)
    file.write_text(file.read_text() + "nonsense\n")
    with pytest.raises(Exception, match=r"cassette.jsonl, line 2: not JSON"):
        ReplayModel(file)


async def test_other_instructions_are_named_line_by_line() -> None:
    text = await told(agent_of(ReplayModel(await recorded()), instructions="Be brief.\nBe rude."), INPUTS[0])
    assert text.splitlines() == [
        "the request is not the recorded one (call 1 in turn 1; - recorded, + now)",
        "instructions:",
        "  @@ -1,2 +1,2 @@",
        "   Be brief.",
        "  -Be kind.",
        "  +Be rude.",
    ]


async def test_other_messages_are_named_line_by_line() -> None:
    text = await told(agent_of(ReplayModel(await recorded())), "1 + 3?")
    assert "  -  1 + 2?\n  +  1 + 3?" in text
    assert "messages:" in text
    assert "instructions" not in text


async def test_another_result_of_a_tool_is_a_difference() -> None:
    @tool(name="add")
    async def wrong(a: int, b: int) -> str:
        """Add two numbers."""
        return str(a + b + 1)

    text = await told(agent_of(ReplayModel(await recorded()), tools=[wrong]), INPUTS[0])
    assert "call 2 in turn 1" in text
    assert "  -  3\n  +  4" in text


async def test_other_tools_are_named_with_what_is_different() -> None:
    @tool(name="add")
    async def documented(a: int, b: int) -> str:
        """Add two integers."""
        return str(a + b)

    text = await told(agent_of(ReplayModel(await recorded()), tools=[documented]), INPUTS[0])
    assert "tools:" in text
    assert "  -  Add two numbers.\n  +  Add two integers." in text
    assert "  - add" not in text


async def test_other_settings_are_named() -> None:
    agent = agent_of(ReplayModel(await recorded()), settings=ModelSettings(temperature=0.5))
    assert "settings:\n  @@ -0,0 +1 @@\n  +temperature = 0.5" in await told(agent, INPUTS[0])


async def test_settings_of_one_turn_are_recorded_with_it() -> None:
    agent = agent_of(ScriptedModel(["one", "two"]))
    async with agent.session() as session:
        await session.run("1", settings=ModelSettings(temperature=0.5))
        await session.run("2")
        events = list(session.events)
    async with agent_of(ReplayModel(events)).session() as session:
        assert (await session.run("1", settings=ModelSettings(temperature=0.5))).text == "one"
        assert (await session.run("2")).text == "two"
    assert "settings:" in await told(agent_of(ReplayModel(events)), "1")


async def test_one_request_more_than_recorded_is_refused() -> None:
    text = await told(agent_of(ReplayModel(await recorded())), *INPUTS, "more")
    assert text == "the recording has 3 model calls, and this is one more"


async def test_requests_that_were_not_made_are_named() -> None:
    model = ReplayModel(await recorded())
    await events_of(agent_of(model), INPUTS[0])
    with pytest.raises(ReplayError, match="not asked for: call 1 in turn 2"):
        model.assert_finished()


async def test_a_lenient_model_answers_requests_that_differ() -> None:
    model = ReplayModel(await recorded(), strict=False)
    async with agent_of(model, instructions="Be rude.").session() as session:
        assert (await session.run("What is 1 + 2?")).text == "The sum is 3."
        assert (await session.run("Thank you")).text == "Bye."
        with pytest.raises(ReplayError, match="one more"):
            await session.run("more")


async def test_a_session_of_several_processes_is_one_recording() -> None:
    store = MemoryStore()
    async with agent_of(ScriptedModel(SCRIPT[:2]), store=store).session("s") as session:
        await session.run(INPUTS[0])
    async with agent_of(ScriptedModel(SCRIPT[2:]), store=store).session("s") as session:
        await session.run(INPUTS[1])
        events = list(session.events)
    assert [event.sent is not None for event in events if event.kind == "model.attempt"] == [True, False, False]  # type: ignore[attr-defined]
    await events_of(agent_of(ReplayModel(events)), *INPUTS)


# With layers


class Adds(Plugin):
    """Adds the number of the turn to every request."""

    id: ClassVar = "context.adds"
    text: str = "turn"

    async def model(self, ctx: ModelContext, call_next: CallNext[ModelResponse]) -> ModelResponse:
        ctx.add_context(f"{self.text} {ctx.turn_index}")
        return await call_next()


async def test_what_layers_add_is_compared() -> None:
    events = await recorded(plugins=[Adds()])
    await events_of(agent_of(ReplayModel(events), plugins=[Adds()]), *INPUTS)
    text = await told(agent_of(ReplayModel(events), plugins=[Adds(text="number")]), *INPUTS)
    assert "added context:" in text
    assert "  -turn 0\n  +number 0" in text
    assert "added context:" in await told(agent_of(ReplayModel(events)), *INPUTS)


class Shouts(Plugin):
    """Sends other messages than those of the history."""

    id: ClassVar = "context.shouts"
    mark: str = "!"

    async def model(self, ctx: ModelContext, call_next: CallNext[ModelResponse]) -> ModelResponse:
        messages = [
            attrs.evolve(message, parts=(TextPart(message.text.upper() + self.mark),))
            if message.role == "user"
            else message
            for message in ctx.request.messages
        ]
        ctx.request = attrs.evolve(ctx.request, messages=tuple(messages))
        return await call_next()


async def test_messages_that_layers_changed_are_compared_by_their_hash() -> None:
    events = await recorded(plugins=[Shouts()])
    model = ReplayModel(events)
    await events_of(agent_of(model, plugins=[Shouts()]), *INPUTS)
    model.assert_finished()
    text = await told(agent_of(ReplayModel(events), plugins=[Shouts(mark="?")]), *INPUTS)
    assert "hash only" in text
    assert "  -  1 + 2?\n  +  1 + 2??" in text
    assert "hash only" in await told(agent_of(ReplayModel(events)), *INPUTS)


class Asks(Plugin):
    """Asks a model of its own accord before the turn."""

    id: ClassVar = "context.asks"
    question: str = "What is this about?"

    async def turn(self, ctx: TurnContext, call_next: Any) -> Any:
        await ctx.call_model(self.question)
        return await call_next()


async def test_calls_of_plugins_are_answered_as_theirs() -> None:
    model = ScriptedModel(["About sums.", "3", "About thanks.", "Bye."])
    events = await events_of(agent_of(model, plugins=[Asks()]), *INPUTS)
    again = ReplayModel(events)
    await events_of(agent_of(again, plugins=[Asks()]), *INPUTS)
    again.assert_finished()
    without = ReplayModel(events)
    async with agent_of(without).session() as session:
        assert [(await session.run(text)).text for text in INPUTS] == ["3", "Bye."]
    with pytest.raises(ReplayError, match=r"call 1 of context\.asks in turn 1, call 1 of context\.asks in turn 2"):
        without.assert_finished()


async def test_undone_turns_are_undone_in_the_recording_too() -> None:
    async with agent_of(ScriptedModel(["one", "two", "three"])).session() as session:
        await session.run("1")
        await session.run("2")
        await session.rewind()
        await session.run("3")
        events = list(session.events)
    async with agent_of(ReplayModel(events)).session() as session:
        await session.run("1")
        await session.run("2")
        await session.rewind()
        assert (await session.run("3")).text == "three"


@attrs.frozen
class Sum:
    value: int


@pytest.mark.parametrize("native", [True, False])
async def test_answers_that_are_data_are_replayed(native: bool) -> None:
    from agentx import Capabilities

    answer = TextPart('{"value": 3}') if native else ToolCall("c1", "final_answer", '{"value": 3}')
    model = ScriptedModel([ModelResponse((answer,), "end_turn" if native else "tool_use", Usage(1, 1))])
    model.capabilities = Capabilities(json_schema=native, tools=True)  # type: ignore[attr-defined]
    events = await events_of(agent_of(model, output=Sum), "1 + 2?")
    async with agent_of(ReplayModel(events), output=Sum).session() as session:
        assert (await session.run("1 + 2?")).output == Sum(3)
