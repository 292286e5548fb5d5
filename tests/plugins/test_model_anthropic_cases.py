"""Whole turns through the Messages API: answers that are data (G29, G30), retries (G12), who leaves early (G14)."""

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest

from agentx import Agent, ModelAttempt, ModelRetrying, Output, TextDeltaEvent, Usage, tool
from agentx.builtin.retry import Retry
from agentx.testing import FakeClock, check_history
from agentx_model_anthropic import AnthropicModel
from peers.messages_api import Api, call, events, messages_api, says, text
from peers.wire import WireServer, named, sse


@attrs.frozen
class Place:
    street: str
    zip: str | None = None


@attrs.frozen
class Review:
    verdict: str
    home: Place | None = None
    stars: int = 3


SCHEMA = {"type": "object", "properties": {"verdict": {"enum": ["pass", "fail"]}}, "required": ["verdict"]}


def agent_on(api: Api, model: str = "claude-opus-5", **options: Any) -> Agent[Any, Any]:
    given = options.pop("given", {})
    return Agent(AnthropicModel(model, base_url=api.url, **given), autoload="none", config=False, **options)


# Answers that are data


@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_is_held_to_the_schema_of_a_class_and_becomes_an_object(stream: bool) -> None:
    said = says(text('{"verdict":"pass","home":{"street":"x","zip":null},"stars":null}'))
    with messages_api(said) as api:
        done = await agent_on(api, output=Review, given={"stream": stream}).run("Judge.")
    assert done.output == Review("pass", Place("x"), 3)
    schema = api.bodies[0]["output_config"]["format"]["schema"]
    objects = [schema, *schema.get("$defs", {}).values()]
    assert all(one["additionalProperties"] is False for one in objects)
    assert all(sorted(one["required"]) == sorted(one["properties"]) for one in objects)


@pytest.mark.parametrize("given", [{}, {"json_schema": False, "tools": True}, {"json_schema": False, "tools": False}])
async def test_an_answer_that_does_not_fit_goes_back_a_bounded_number_of_times(given: dict[str, Any]) -> None:
    """Held to a schema, through a tool, and only told: a schema as JSON is checked like a class."""
    has_tool, model = bool(given.get("tools")), "claude-opus-5" if not given else "some-model"

    def answer(verdict: str) -> Any:
        if has_tool:
            return says(call(f"c-{verdict}", "final_answer", verdict=verdict), stop="tool_use")
        return says(text(f'{{"verdict":"{verdict}"}}'))

    with messages_api(answer("maybe")) as api:
        done = await agent_on(api, model, output=Output(SCHEMA, retries=2), given=given).run("Judge.")
    assert (done.status, len(api.bodies), api.refusals) == ("stopped", 3, [])
    assert "maybe" in (done.reason or "")
    assert done.usage.output_tokens == 15
    with messages_api(answer("maybe"), answer("pass")) as api:
        async with agent_on(api, model, output=SCHEMA, given=given) as agent, agent.session() as session:
            assert (await session.run("Judge.")).output == {"verdict": "pass"}
            check_history(session.history)
    assert (len(api.bodies), api.refusals) == (2, [])


# Retries

OVERLOADED = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}


async def test_an_answer_that_broke_off_is_begun_anew_and_shown_once() -> None:
    half = [*events(says(text("Hello")), size=3)[:3], OVERLOADED]
    shown: list[str] = []
    with WireServer([sse(*named(*half)), sse(*named(*events(says(text("Hello")))))]) as server:
        model = AnthropicModel("m", base_url=server.url)
        agent = Agent(model, plugins=[FakeClock(), Retry()], autoload="none", config=False)
        async with agent, agent.session() as session:
            attempts: list[ModelAttempt] = []
            session.on("model.attempt", attempts.append)
            async with session.stream("Hi") as stream:
                async for event in stream:
                    if isinstance(event, ModelRetrying):
                        shown.clear()
                    elif isinstance(event, TextDeltaEvent):
                        shown.append(event.text)
            assert stream.result is not None
            assert stream.result.text == "".join(shown) == "Hello"
            assert [message.text for message in session.history] == ["Hi", "Hello"]
    assert [one.usage for one in attempts] == [Usage(10, 1, estimated=True), Usage(10, 5)]


async def test_arguments_of_a_call_that_broke_off_are_not_glued_to_those_of_the_next() -> None:
    ran: list[int] = []

    @tool
    def f(x: int) -> str:
        """Take x."""
        ran.append(x)
        return "ok"

    asked = says(call("c1", "f", x=1), stop="tool_use")
    half = [*events(asked, size=5)[:4], OVERLOADED]
    script = [half, events(asked), events(says(text("done")))]
    with WireServer([sse(*named(*one)) for one in script]) as server:
        model = AnthropicModel("m", base_url=server.url)
        agent = Agent(model, plugins=[FakeClock(), Retry()], tools=[f], autoload="none", config=False)
        assert (await agent.run("go")).text == "done"
    assert ran == [1]
    assert json.loads(server.requests[2].body)["messages"][1]["content"][0]["input"] == {"x": 1}


async def test_what_an_answer_used_is_booked_also_when_nobody_waits_for_its_end() -> None:
    said = named(*events(says(text("Hello there, how are you?")), size=3)[:5])
    with WireServer([sse(*said, "hang")]) as server:
        model = AnthropicModel("m", base_url=server.url)
        agent = Agent(model, autoload="none", config=False)
        async with agent, agent.session() as session:
            async with session.stream("Hi") as stream:
                async for _ in stream.text:
                    break
            assert session.usage == Usage(10, 1, estimated=True)
