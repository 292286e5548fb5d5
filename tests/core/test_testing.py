"""The models, the clock, the faults and the history check that tests of agents and plugins use."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import anyio
import pytest

from agentx import (
    SYSTEM_CLOCK,
    Agent,
    Clock,
    Message,
    ModelContext,
    ModelRequest,
    ModelResponse,
    OverloadedError,
    RequestRejectedError,
    StreamCutError,
    TextDelta,
    TextPart,
    ThinkingDelta,
    ThinkingPart,
    ToolArgsDelta,
    ToolCall,
    ToolResult,
    TurnAborted,
    Usage,
    tool,
)
from agentx.testing import (
    Cut,
    Delay,
    EchoModel,
    FakeClock,
    FaultPlugin,
    FaultyModel,
    FunctionModel,
    Hang,
    HistoryError,
    ScriptedModel,
    ScriptError,
    call,
    check_history,
    pieces,
)


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def agent_of(model: Any, **options: Any) -> Agent[Any, Any]:
    return Agent(model, config=False, autoload="none", **options)


def user(text: str) -> Message:
    return Message("user", (TextPart(text),))


async def answer(model: Any, *messages: Message) -> tuple[ModelResponse, list[Any]]:
    """Return what a model answers, and its deltas."""
    deltas: list[Any] = []

    async def emit(delta: Any) -> None:
        deltas.append(delta)

    return await model.respond(ModelRequest("m", messages or (user("Hi"),)), emit), deltas


# Scripted models


async def test_each_model_call_is_answered_by_the_next_entry() -> None:
    model = ScriptedModel([[call("add", a=1, b=2), call("add", a=3, b=4)], "3 and 7."])
    result = await agent_of(model, tools=[add]).run("1 + 2 and 3 + 4?")
    assert result.text == "3 and 7."
    assert [part.text for part in result.messages[2].parts] == ["3", "7"]  # type: ignore[attr-defined]
    model.assert_finished()


async def test_calls_are_numbered_through_the_whole_script() -> None:
    model = ScriptedModel([[call("add", a=1, b=2), call("add", a=1, b=2)], call("add", a=1, b=2)])
    first, _ = await answer(model)
    second, _ = await answer(model)
    assert [item.id for item in (*first.tool_calls, *second.tool_calls)] == ["c1", "c2", "c3"]


async def test_arguments_may_be_text_that_is_no_json() -> None:
    response, _ = await answer(ScriptedModel([call("add", "{bad")]))
    assert response.tool_calls == (ToolCall("c1", "add", "{bad"),)
    with pytest.raises(TypeError, match="as JSON text or as keywords"):
        call("add", "{}", a=1)


async def test_a_response_with_calls_says_tool_use_and_one_without_end_turn() -> None:
    model = ScriptedModel([["Adding.", call("add", a=1, b=2)], "Done."])
    assert [(await answer(model))[0].stop_reason for _ in range(2)] == ["tool_use", "end_turn"]


async def test_text_thinking_and_arguments_are_streamed_in_small_deltas() -> None:
    model = ScriptedModel([[ThinkingPart("Hmmm?"), "Let me see.", call("add", a=1)]], delta_size=4)
    _, deltas = await answer(model)
    assert deltas == [
        ThinkingDelta("Hmmm"),
        ThinkingDelta("?"),
        TextDelta("Let "),
        TextDelta("me s"),
        TextDelta("ee."),
        ToolArgsDelta('{"a"', "c1", "add"),
        ToolArgsDelta(": 1}", "c1"),
    ]


async def test_a_test_may_say_where_a_text_is_cut() -> None:
    response, deltas = await answer(ScriptedModel([["A", pieces("Mail bob@", "", "acme.example")]]))
    assert deltas == [TextDelta("A"), TextDelta("Mail bob@", 1), TextDelta("", 1), TextDelta("acme.example", 1)]
    assert response.text == "AMail bob@acme.example"


async def test_a_response_is_returned_as_it_is() -> None:
    given = ModelResponse((TextPart("Cut"),), stop_reason="max_tokens", model="other")
    response, deltas = await answer(ScriptedModel([given]))
    assert response is given
    assert deltas == [TextDelta("Cut")]


async def test_an_empty_text_is_an_empty_answer() -> None:
    assert (await agent_of(ScriptedModel([""])).run("Hi")).status == "empty"


@pytest.mark.parametrize("entry", [OverloadedError("busy"), OverloadedError])
async def test_an_exception_or_its_class_is_raised(entry: Any) -> None:
    with pytest.raises(OverloadedError):
        await answer(ScriptedModel([entry]))


async def test_a_function_of_the_request_may_answer_anything() -> None:
    async def later(request: ModelRequest) -> Any:
        return [request.messages[0].text, call("add", a=1, b=2)]

    model = ScriptedModel([lambda request: request.model, later, lambda request: ValueError])
    assert (await answer(model))[0].text == "m"
    assert (await answer(model, user("Hello")))[0].text == "Hello"
    with pytest.raises(ValueError, match="raised by the test"):
        await answer(model)


@pytest.mark.parametrize("entry", [7, {"text": "Hi"}, ["Hi", 7], None])
async def test_an_entry_that_is_no_answer_is_an_error_that_says_what_is(entry: Any) -> None:
    with pytest.raises(ScriptError, match="a script holds text, call"):
        await answer(ScriptedModel([entry]))


async def test_a_script_is_a_list() -> None:
    with pytest.raises(TypeError, match="one entry per model call"):
        ScriptedModel("Hello")


async def test_running_past_the_end_says_how_many_calls_were_scripted() -> None:
    model = ScriptedModel(["One.", "Two."])
    await answer(model)
    await answer(model)
    with pytest.raises(ScriptError, match="model call 3, but the script of 'scripted' has 2 entries"):
        await answer(model)


async def test_what_is_left_of_a_script_is_told() -> None:
    model = ScriptedModel(["One.", "Two."])
    await answer(model)
    with pytest.raises(ScriptError, match="has 2 entries, of which 1 were used"):
        model.assert_finished()


async def test_requests_stay_as_they_were_sent() -> None:
    model = ScriptedModel([call("add", a=1, b=2), "3."])
    async with agent_of(model, tools=[add], instructions="Be brief.").session() as session:
        await session.run("1 + 2?")
        assert [len(request.messages) for request in model.requests] == [1, 3]
        assert model.requests[0].messages == [user("1 + 2?")]
        assert model.requests[1].messages == session.history[:3]
    assert {request.instructions for request in model.requests} == {"Be brief."}


async def test_a_changed_list_of_messages_does_not_change_the_request() -> None:
    model, messages = EchoModel(), [user("Hi")]
    await answer(model, *messages)

    async def emit(delta: Any) -> None: ...

    await model.respond(ModelRequest("m", messages), emit)
    messages.append(user("Later"))
    assert model.requests[-1].messages == [user("Hi")]


async def test_tokens_are_counted_from_the_texts() -> None:
    response, _ = await answer(ScriptedModel(["12345678"]), user("1234"), user("12345"))
    assert response.usage == Usage(input_tokens=3, output_tokens=2)


@pytest.mark.parametrize("usage", [None, Usage(input_tokens=1000)])
async def test_a_test_may_say_what_was_used(usage: Usage | None) -> None:
    assert (await answer(ScriptedModel(["Hi"], usage=usage)))[0].usage == usage


async def test_an_invalid_request_is_refused_and_takes_no_entry() -> None:
    model = ScriptedModel(["Fine."])
    half = Message("assistant", (ToolCall("c1", "add"),))
    with pytest.raises(
        RequestRejectedError, match="message 1: the history ends without a result for call 'c1' of 'add'"
    ) as caught:
        await answer(model, user("Hi"), half)
    assert caught.value.status == 400
    assert (await answer(model))[0].text == "Fine."
    assert len(model.requests) == 2


async def test_the_check_of_requests_can_be_turned_off() -> None:
    half = Message("assistant", (ToolCall("c1", "add"),))
    assert (await answer(ScriptedModel(["Fine."], check=False), user("Hi"), half))[0].text == "Fine."


async def test_a_delay_can_be_cancelled() -> None:
    with anyio.move_on_after(0.01) as scope:
        await answer(ScriptedModel(["Late."], delay=3600))
    assert scope.cancelled_caught


# Other models


async def test_a_function_model_answers_every_request() -> None:
    model = FunctionModel(lambda request: f"{len(request.messages)} messages")
    async with agent_of(model).session() as session:
        assert (await session.run("Hi")).text == "1 messages"
        assert (await session.run("Hi")).text == "3 messages"


async def test_a_function_model_may_stream_by_itself() -> None:
    async def streaming(request: ModelRequest, emit: Any) -> Any:
        await emit(TextDelta("Hel"))
        raise StreamCutError("the stream ended")

    deltas: list[Any] = []

    async def emit(delta: Any) -> None:
        deltas.append(delta)

    with pytest.raises(StreamCutError):
        await FunctionModel(streaming).respond(ModelRequest("m", [user("Hi")]), emit)
    assert deltas == [TextDelta("Hel")]


async def test_what_a_function_model_streams_by_itself_is_not_streamed_again() -> None:
    async def streaming(request: ModelRequest, emit: Any) -> str:
        for piece in ("Hel", "lo."):
            await emit(TextDelta(piece))
        return "Hello."

    response, deltas = await answer(FunctionModel(streaming))
    assert response.text == "Hello."
    assert deltas == [TextDelta("Hel"), TextDelta("lo.")]


async def test_an_echo_model_repeats_the_user_and_the_tools() -> None:
    calling = Message("assistant", (ToolCall("c1", "add"), ToolCall("c2", "add")))
    results = Message("tool", tuple([ToolResult(name, "add", (TextPart(name),)) for name in ("c1", "c2")]))
    assert (await answer(EchoModel(), user("Hello")))[0].text == "Hello"
    assert (await answer(EchoModel(), user("Hello"), calling, results))[0].text == "c1\nc2"


# The clock


class Sleeper:
    """A model layer that sleeps on the clock it is given."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    async def __call__(self, ctx: ModelContext, call_next: Any) -> ModelResponse:
        await ctx.get(Clock, SYSTEM_CLOCK).sleep(self.seconds)
        response: ModelResponse = await call_next()
        return response


async def test_plugins_sleep_on_a_fake_clock_without_waiting() -> None:
    clock = FakeClock(start=1000.0)
    agent = agent_of(ScriptedModel(["Hi"]), plugins=[clock]).use(model=Sleeper(3600))
    with anyio.fail_after(60):
        assert (await agent.run("Hi")).text == "Hi"
    assert clock.sleeps == [3600]
    assert clock.time() == 4600.0


async def test_a_test_may_move_the_clock_by_hand() -> None:
    clock = FakeClock(auto=False)
    woken: list[float] = []

    async def sleep(seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append(seconds)

    async with anyio.create_task_group() as group:
        for seconds in (20, 10):
            group.start_soon(sleep, seconds)
        await anyio.wait_all_tasks_blocked()
        clock.advance(9)
        await anyio.wait_all_tasks_blocked()
        assert (woken, clock.sleeping) == ([], 2)
        clock.advance(1)
        await anyio.wait_all_tasks_blocked()
        assert (woken, clock.sleeping) == ([10], 1)
        clock.advance(100)
    assert woken == [10, 20]


async def test_a_sleeper_on_a_fake_clock_can_be_cancelled() -> None:
    clock = FakeClock(auto=False)
    with anyio.move_on_after(0.01) as scope:
        await clock.sleep(10)
    assert scope.cancelled_caught
    assert clock.sleeping == 0


# Faults


async def test_chosen_calls_of_a_model_fail() -> None:
    inner = ScriptedModel(["One.", "Three."])
    model = FaultyModel(inner, {2: OverloadedError("busy")})
    assert (await answer(model))[0].text == "One."
    with pytest.raises(OverloadedError, match="busy"):
        await answer(model)
    assert (await answer(model))[0].text == "Three."
    assert len(inner.requests) == 2


@pytest.mark.parametrize(("after", "seen"), [(0, ""), (2, "abcdefgh"), (99, "abcdefghij")])
async def test_a_stream_breaks_off_after_some_deltas(after: int, seen: str) -> None:
    model = FaultyModel(ScriptedModel(["abcdefghij"]), {1: Cut(after=after)})
    text = ""
    with pytest.raises(StreamCutError):
        async with agent_of(model).stream("Hi") as stream:
            async for piece in stream.text:
                text += piece
    assert text == seen


@pytest.mark.parametrize("after", [0, 2])
async def test_a_turn_can_be_cancelled_where_a_model_hangs(after: int) -> None:
    model = FaultyModel(ScriptedModel(["abcdefghij"]), {1: Hang(after=after)})
    async with agent_of(model).session() as session, anyio.create_task_group() as group:

        async def cancel() -> None:
            await model.reached.wait()
            session.cancel()

        group.start_soon(cancel)
        with pytest.raises(TurnAborted, match="cancelled"):
            await session.run("Hi")


async def test_a_delayed_call_is_answered_in_the_end() -> None:
    assert (await answer(FaultyModel(EchoModel(), {1: Delay(0.001)})))[0].text == "Hi"


@pytest.mark.parametrize(("faults", "error"), [({0: Hang()}, ValueError), ({1: "busy"}, TypeError)])
def test_a_wrong_fault_is_refused(faults: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        FaultyModel(EchoModel(), faults)


async def test_chosen_hooks_fail() -> None:
    faults = FaultPlugin(entering={("tool", 2): ValueError("no second tool")})
    model = ScriptedModel([call("add", a=1, b=2), call("add", a=3, b=4)])
    async with agent_of(model, tools=[add], plugins=[faults]).session() as session:
        with pytest.raises(ValueError, match="no second tool"):
            await session.run("Add.")
        check_history(session.history)
        assert isinstance(result := session.history[4].parts[0], ToolResult)
        assert result.status == "cancelled"
    assert faults.reached.is_set()


async def test_a_hook_may_be_left_by_a_function_of_the_context() -> None:
    faults = FaultPlugin(leaving={"model": lambda ctx: ctx.stop("enough")})
    result = await agent_of(ScriptedModel(["Hi"]), plugins=[faults]).run("Hi")
    assert (result.status, result.reason, result.by) == ("stopped", "enough", "test.faults")


async def test_an_opening_can_fail() -> None:
    faults = FaultPlugin(entering={"init": OSError("no such server")})
    with pytest.raises(OSError, match="no such server"):
        await agent_of(EchoModel(), plugins=[faults]).run("Hi")


def test_a_fault_in_an_unknown_hook_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no hook 'step'"):
        FaultPlugin(entering={"step": Hang()})


# Histories

CALLING = Message("assistant", (TextPart("Let me see."), ToolCall("c1", "add"), ToolCall("c2", "add")))
ANSWER = Message("assistant", (TextPart("3."),))


def results(*ids: str) -> Message:
    return Message("tool", tuple([ToolResult(call_id, "add") for call_id in ids]))


def calls(*parts: ToolCall) -> Message:
    return Message("assistant", parts)


@pytest.mark.parametrize(
    "messages",
    [
        (),
        (user("Hi"), ANSWER, user("Hi"), user("Again")),
        (user("Hi"), CALLING, results("c1", "c2"), ANSWER),
        (user("Hi"), CALLING, results("c2"), results("c1"), ANSWER),
        (user("Hi"), CALLING, results("c1", "c2"), CALLING, results("c1", "c2")),
    ],
)
def test_a_valid_history_passes(messages: tuple[Message, ...]) -> None:
    check_history(messages)


@pytest.mark.parametrize(
    ("problem", "index", "messages"),
    [
        ("history ends without a result for call 'c1' of 'add' and call 'c2'", 1, (user("Hi"), CALLING)),
        ("role 'assistant' comes before a result for call 'c1'", 2, (user("Hi"), CALLING, ANSWER)),
        (
            "role 'user' comes before a result for call 'c2'",
            3,
            (user("Hi"), CALLING, results("c1"), user("Hi"), results("c2")),
        ),
        ("a second result for call 'c1'", 2, (user("Hi"), CALLING, results("c1", "c1", "c2"))),
        ("a result for 'c3', which was not called", 2, (user("Hi"), CALLING, results("c1", "c2", "c3"))),
        ("a result for 'c1', which was not called", 2, (user("Hi"), ANSWER, results("c1"))),
        ("two calls have the id 'c1'", 0, (calls(ToolCall("c1", "add"), ToolCall("c1", "add")),)),
        ("has no id", 0, (calls(ToolCall("", "add")),)),
        ("are not JSON", 0, (calls(ToolCall("c1", "add", "")),)),
        ("are no object", 0, (calls(ToolCall("c1", "add", "[1]")),)),
        ("not valid UTF-8", 0, (user("\ud800"),)),
        ("not valid UTF-8", 0, (calls(ToolCall("c1", "add", '{"a": "\ud800"}')),)),
        ("a tool result in a user message", 0, (Message("user", (ToolResult("c1", "add"),)),)),
        ("a tool call in a user message", 0, (Message("user", (ToolCall("c1", "add"),)),)),
        ("a tool message holds a text part", 0, (Message("tool", (TextPart("3"),)),)),
        ("no role 'system'", 0, (Message("system", (TextPart("Hi"),)),)),  # type: ignore[arg-type]
    ],
)
def test_an_invalid_history_is_refused_at_the_message_at_fault(
    problem: str, index: int, messages: tuple[Message, ...]
) -> None:
    with pytest.raises(HistoryError, match=problem) as caught:
        check_history(messages)
    assert caught.value.index == index


def test_agentx_does_not_import_its_testing_kit() -> None:
    code = "import sys, agentx; agentx.Agent; sys.exit(any(name.startswith('agentx.testing') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
