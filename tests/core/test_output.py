"""Answers that are data: `output=` of agents and turns, in every mode."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any, Literal, TypedDict

import attrs
import msgspec
import pydantic
import pytest

from agentx import (
    Agent,
    Capabilities,
    Message,
    ModelContext,
    ModelRequest,
    ModelResponse,
    ModelSettings,
    NoOutputError,
    Output,
    OutputError,
    TextDelta,
    TextDeltaEvent,
    TextPart,
    ToolArgsDelta,
    ToolCall,
    Usage,
    tool,
)
from agentx.testing import ScriptedModel, call

from ._rules import at_most


class Sky(enum.Enum):
    CLEAR = "clear"
    CLOUDS = "clouds"


@attrs.frozen
class Attrs:
    city: str
    degrees: float = 20.0
    sky: Sky = Sky.CLEAR


@dataclasses.dataclass
class Data:
    city: str
    degrees: float = 20.0


class Typed(TypedDict):
    city: str
    degrees: float


class Struct(msgspec.Struct):
    city: str
    degrees: float = 20.0


class Pydantic(pydantic.BaseModel):
    city: str
    degrees: float = pydantic.Field(default=20.0, ge=-100)


SCHEMA = {
    "title": "weather",
    "type": "object",
    "properties": {"city": {"type": "string"}, "degrees": {"type": "number"}},
    "required": ["city"],
    "additionalProperties": False,
}
OSLO = '{"city": "Oslo", "degrees": 3.5}'
KINDS: dict[str, tuple[Any, Any]] = {
    "attrs": (Attrs, Attrs("Oslo", 3.5)),
    "dataclass": (Data, Data("Oslo", 3.5)),
    "TypedDict": (Typed, {"city": "Oslo", "degrees": 3.5}),
    "Struct": (Struct, Struct("Oslo", 3.5)),
    "pydantic": (Pydantic, Pydantic(city="Oslo", degrees=3.5)),
    "JSON Schema": (SCHEMA, {"city": "Oslo", "degrees": 3.5}),
}


class Answering(ScriptedModel):
    """A scripted model that says what it can do."""

    def __init__(self, script: list[Any], capabilities: Capabilities) -> None:
        super().__init__(script)
        self.capabilities = capabilities


NATIVE = Capabilities(json_schema=True, tools=True)
TOOLS = Capabilities(json_schema=False, tools=True)
NEITHER = Capabilities(json_schema=False, tools=False)


def agent_of(model: Any, output: Any, **options: Any) -> Agent[Any, Any]:
    return Agent(model, output=output, config=False, autoload="none", **options)


@pytest.mark.parametrize("kind", KINDS)
async def test_the_output_is_an_instance_of_what_was_asked_for(kind: str) -> None:
    asked, expected = KINDS[kind]
    result = await agent_of(ScriptedModel([OSLO]), asked).run("Weather in Oslo?")
    assert result.output == expected
    assert type(result.output) is type(expected)
    assert result.text == OSLO


@pytest.mark.parametrize(
    ("asked", "answer", "expected"),
    [
        (list[int], '{"value": [1, 2]}', [1, 2]),
        (list[int], "[1, 2]", [1, 2]),
        (int, '{"value": 7}', 7),
        (Literal["yes", "no"], '{"value": "yes"}', "yes"),
        (Sky, '{"value": "clouds"}', Sky.CLOUDS),
        (dict[str, int], '{"a": 1}', {"a": 1}),
        (Attrs | None, '{"value": null}', None),
        (list[Attrs], '{"value": [{"city": "Rome"}]}', [Attrs("Rome")]),
        (bool, "true", True),
    ],
)
async def test_what_is_no_object_is_asked_for_inside_of_one(asked: Any, answer: str, expected: Any) -> None:
    result = await agent_of(ScriptedModel([answer]), asked).run("?")
    assert result.output == expected


async def test_a_turn_may_ask_for_another_output_than_its_agent() -> None:
    async with agent_of(ScriptedModel([OSLO, "7", "plain"]), Attrs).session() as session:
        assert (await session.run("?")).output == Attrs("Oslo", 3.5)
        assert (await session.run("?", output=int)).output == 7
        assert (await session.run("?", output=str)).output == "plain"


async def test_a_turn_may_ask_for_an_output_where_the_agent_asks_for_none() -> None:
    agent: Agent[Any, Any] = Agent(ScriptedModel([OSLO, "plain"]), config=False, autoload="none")
    async with agent.session() as session:
        assert (await session.run("?", output=Data)).output == Data("Oslo", 3.5)
        assert (await session.run("?")).output == "plain"


# How a model is asked


async def test_a_model_that_can_is_held_to_the_schema() -> None:
    model = Answering([OSLO], NATIVE)
    await agent_of(model, Attrs).run("?")
    request = model.requests[0]
    assert request.output is not None
    assert request.output.name == "Attrs"
    assert request.output.strict
    assert request.output.schema["required"] == ["city", "degrees", "sky"]
    assert request.context == ()
    assert request.tools == ()


async def test_a_model_that_calls_tools_answers_with_one() -> None:
    model = Answering([[call("final_answer", city="Oslo", degrees=3.5)]], TOOLS)
    async with agent_of(model, Attrs).session() as session:
        result = await session.run("?")
        history = list(session.history)
    assert result.output == Attrs("Oslo", 3.5)
    request = model.requests[0]
    assert [spec.name for spec in request.tools] == ["final_answer"]
    assert request.settings.tool_choice == "required"
    assert request.output is None
    assert [message.role for message in history] == ["user", "assistant"]
    assert history[1].tool_calls == ()
    assert msgspec.json.decode(history[1].text) == {"city": "Oslo", "degrees": 3.5}


async def test_any_other_model_is_told_what_to_write() -> None:
    for model in (Answering([OSLO], NEITHER), ScriptedModel([OSLO])):
        await agent_of(model, Attrs).run("?")
        request = model.requests[0]
        assert request.output is None
        assert request.tools == ()
        assert '"city"' in request.context[-1]


@pytest.mark.parametrize("mode", ["native", "tool", "prompted"])
async def test_the_user_may_choose_the_mode(mode: Any) -> None:
    script = [call("final_answer", city="Oslo")] if mode == "tool" else '{"city": "Oslo"}'
    model = Answering([script], NEITHER if mode != "prompted" else NATIVE)
    result = await agent_of(model, Output(Attrs, mode=mode)).run("?")
    assert result.output == Attrs("Oslo")
    request = model.requests[0]
    assert (request.output is not None, bool(request.tools), bool(request.context)) == (
        mode == "native",
        mode == "tool",
        mode == "prompted",
    )


async def test_the_answering_tool_gives_way_to_a_tool_of_that_name() -> None:
    @tool
    async def final_answer() -> str:
        """Mine."""
        return "mine"

    model = Answering([[call("final_answer")], [call("final_answer_", city="Oslo")]], TOOLS)
    async with agent_of(model, Attrs, tools=[final_answer]).session() as session:
        assert (await session.run("?")).output == Attrs("Oslo")
        assert [message.role for message in session.history] == ["user", "assistant", "tool", "assistant"]


@pytest.mark.parametrize("capabilities", [NATIVE, TOOLS, NEITHER])
async def test_tools_run_before_the_answer(capabilities: Capabilities) -> None:
    @tool
    async def weather(city: str) -> str:
        """Say it."""
        return f"3.5 in {city}"

    last: Any = [call("final_answer", city="Oslo", degrees=3.5)] if capabilities is TOOLS else OSLO
    model = Answering([[call("weather", city="Oslo")], last], capabilities)
    result = await agent_of(model, Attrs, tools=[weather]).run("?")
    assert result.output == Attrs("Oslo", 3.5)
    assert model.requests[1].messages[-1].role == "tool"


async def test_an_answer_beside_real_calls_waits_for_them() -> None:
    @tool
    async def look() -> str:
        """Look."""
        return "seen"

    model = Answering([[call("final_answer", city="Rome"), call("look")], [call("final_answer", city="Oslo")]], TOOLS)
    async with agent_of(model, Attrs, tools=[look]).session() as session:
        result = await session.run("?")
        results = [part for message in session.history if message.role == "tool" for part in message.parts]
    assert result.output == Attrs("Oslo")
    assert len(results) == 1


async def test_a_choice_of_the_users_own_is_kept_beside_the_answering_tool() -> None:
    @tool
    async def look() -> str:
        """Look."""
        return "seen"

    model = Answering([[call("final_answer", city="Oslo")]], TOOLS)
    agent = agent_of(model, Attrs, tools=[look], settings=ModelSettings(tool_choice="look"))
    await agent.run("?")
    assert model.requests[0].settings.tool_choice == "look"


async def test_what_the_layers_see_and_the_log_holds_is_the_same_in_every_mode() -> None:
    seen: list[Any] = []

    async def look(ctx: ModelContext, call_next: Any) -> ModelResponse:
        response: ModelResponse = await call_next()
        seen.append((msgspec.json.decode(response.text), response.tool_calls, response.stop_reason))
        return response

    for capabilities, script in ((NATIVE, OSLO), (TOOLS, [call("final_answer", city="Oslo", degrees=3.5)])):
        await agent_of(Answering([script], capabilities), Attrs).use(model=look).run("?")
    assert seen == [({"city": "Oslo", "degrees": 3.5}, (), "end_turn")] * 2


async def test_an_answering_call_is_streamed_as_text() -> None:
    class Slow:
        name = "slow"
        capabilities = TOOLS

        async def respond(self, request: ModelRequest, emit: Any) -> ModelResponse:
            await emit(ToolArgsDelta('{"city":', "c1", "final_answer"))
            await emit(ToolArgsDelta('"Oslo"}', "c1"))
            return ModelResponse((ToolCall("c1", "final_answer", '{"city":"Oslo"}'),), "tool_use", Usage(1, 1))

    pieces: list[str] = []
    async with agent_of(Slow(), Attrs).session() as session, session.stream("?") as stream:
        async for event in stream:
            if isinstance(event, TextDeltaEvent):
                pieces.append(event.text)
    assert pieces == ['{"city":', '"Oslo"}']
    assert stream.result.output == Attrs("Oslo")


async def test_what_a_model_says_before_it_answers_with_a_tool_is_no_part_of_the_data() -> None:
    model = Answering([["Let me answer.", call("final_answer", city="Oslo")]], TOOLS)
    result = await agent_of(model, Attrs).run("?")
    assert result.output == Attrs("Oslo")
    assert result.text == 'Let me answer.{"city": "Oslo"}'


# Answers that do not fit

WRONG = {
    "no JSON": "It is cold in Oslo.",
    "cut JSON": '{"city": "Oslo", ',
    "a field is missing": '{"degrees": 1}',
    "a wrong type": '{"city": 5}',
    "a field too many": '{"city": "Oslo", "wind": 3}',
    "not one of the enum": '{"city": "Oslo", "sky": "green"}',
}


@pytest.mark.parametrize("fault", WRONG)
async def test_an_answer_that_does_not_fit_goes_back_with_the_reason(fault: str) -> None:
    wrong = WRONG[fault]
    model = ScriptedModel([wrong, OSLO])
    asked = SCHEMA if fault == "a field too many" else Attrs  # a class takes what it knows and ignores the rest
    async with agent_of(model, asked).session() as session:
        result = await session.run("?")
        history = list(session.history)
    assert result.status == "completed"
    assert [message.role for message in history] == ["user", "assistant", "user", "assistant"]
    assert history[1].text == wrong
    assert "is not a valid" in history[2].text


async def test_an_answer_that_never_fits_stops_the_turn_and_is_never_an_output() -> None:
    model = ScriptedModel(["no", "no", "no", "never asked"])
    result = await agent_of(model, Attrs).run("?")
    assert (result.status, result.by, result.text) == ("stopped", "output", "no")
    assert len(model.requests) == 3
    assert "JSON" in (result.reason or "")
    with pytest.raises(NoOutputError, match="stopped"):
        _ = result.output


@pytest.mark.parametrize("retries", [0, 1, 7])
async def test_how_often_it_goes_back_is_the_users_choice(retries: int) -> None:
    model = ScriptedModel(["no"] * (retries + 1))
    result = await agent_of(model, Output(Attrs, retries=retries)).run("?")
    assert result.status == "stopped"
    assert len(model.requests) == retries + 1


async def test_every_turn_has_its_own_tries() -> None:
    async with agent_of(ScriptedModel(["no", OSLO] * 3), Output(Attrs, retries=1)).session() as session:
        for _ in range(3):
            assert (await session.run("?")).output == Attrs("Oslo", 3.5)


@pytest.mark.parametrize(
    "answer",
    [
        f"```json\n{OSLO}\n```",
        f"```\n{OSLO}\n```",
        f"Here it is:\n```json\n{OSLO}\n```\nAnything else?",
        f"The weather: {OSLO}",
        f"  {OSLO}\n",
    ],
)
async def test_json_is_found_in_the_wrapping_that_models_put_around_it(answer: str) -> None:
    assert (await agent_of(ScriptedModel([answer]), Attrs).run("?")).output == Attrs("Oslo", 3.5)


async def test_nulls_of_a_strict_answer_are_the_defaults() -> None:
    model = Answering(['{"city": "Oslo", "degrees": null, "sky": null}'], NATIVE)
    assert (await agent_of(model, Attrs).run("?")).output == Attrs("Oslo")


@pytest.mark.parametrize("reason", ["max_tokens", "refusal", "content_filter"])
async def test_an_answer_that_was_cut_or_refused_is_not_read(reason: str) -> None:
    model = ScriptedModel([ModelResponse((TextPart(OSLO),), reason, Usage(1, 1))])
    result = await agent_of(model, Attrs).run("?")
    assert result.status in ("truncated", "refused")
    with pytest.raises(NoOutputError):
        _ = result.output


async def test_a_plugin_may_stop_with_an_output_of_its_own() -> None:
    async def stop(ctx: ModelContext, call_next: Any) -> ModelResponse:
        response: ModelResponse = await call_next()
        ctx.stop("enough", output=Attrs("Rome"))
        return response

    assert (await agent_of(ScriptedModel(["x"]), Attrs).use(model=stop).run("?")).output == Attrs("Rome")


async def test_a_layer_that_sends_back_comes_before_the_check_of_the_output() -> None:
    async def picky(ctx: ModelContext, call_next: Any) -> ModelResponse:
        response: ModelResponse = await call_next()
        if "Rome" in response.text:
            ctx.send_back("not Rome")
        return response

    model = ScriptedModel(['{"city": "Rome"}', OSLO])
    async with agent_of(model, Attrs).use(model=picky).session() as session:
        assert (await session.run("?")).output == Attrs("Oslo", 3.5)
        assert session.history[2] == Message("user", (TextPart("not Rome"),))


# Definitions


class Odd:
    def __init__(self, x: object) -> None:
        self.x = x


@pytest.mark.parametrize("asked", [Odd, complex, bytes | str, Attrs | Data])
def test_a_type_that_json_cannot_express_is_an_error_when_the_agent_is_made(asked: Any) -> None:
    with pytest.raises(OutputError, match="output"):
        agent_of(ScriptedModel([]), asked)


@pytest.mark.parametrize("schema", [{"type": "objekt"}, {"type": "object", "properties": 3}])
def test_a_schema_that_is_none_is_an_error_when_the_agent_is_made(schema: Any) -> None:
    with pytest.raises(OutputError, match="not valid"):
        agent_of(ScriptedModel([]), schema)


@pytest.mark.parametrize("options", [{"mode": "magic"}, {"retries": -1}, {"retries": "two"}])
def test_options_that_mean_nothing_are_errors(options: dict[str, Any]) -> None:
    with pytest.raises(OutputError):
        Output(Attrs, **options)


async def test_an_output_of_a_turn_that_json_cannot_express_is_an_error_before_any_request() -> None:
    model = ScriptedModel(["x"])
    agent: Agent[Any, Any] = Agent(model, config=False, autoload="none")
    with at_most():
        async with agent.session() as session:
            with pytest.raises(OutputError):
                await session.run("?", output=Odd)
            assert len(session.history) == 0
    assert model.requests == []


async def test_the_deltas_of_a_prompted_answer_are_its_text() -> None:
    async with agent_of(ScriptedModel([OSLO]), Attrs).session() as session, session.stream("?") as stream:
        pieces = [piece async for piece in stream.text]
    assert "".join(pieces) == OSLO


async def test_the_pieces_of_an_answering_call_have_a_text_of_their_own() -> None:
    class Talking:
        name = "talking"
        capabilities = TOOLS

        async def respond(self, request: ModelRequest, emit: Any) -> ModelResponse:
            await emit(TextDelta("Well: "))
            await emit(ToolArgsDelta('{"city":"Oslo"}', "c1", "final_answer"))
            answer = ToolCall("c1", "final_answer", '{"city":"Oslo"}')
            return ModelResponse((TextPart("Well: "), answer), "tool_use", Usage(1, 1))

    async with agent_of(Talking(), Attrs).session() as session, session.stream("?") as stream:
        pieces = [piece async for piece in stream.text]
    assert pieces == ["Well: ", '{"city":"Oslo"}']
    assert stream.result.text == "".join(pieces)
    assert stream.result.output == Attrs("Oslo")
