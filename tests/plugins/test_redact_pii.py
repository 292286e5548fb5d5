"""agentx-redact-pii in an agent: what the model, the log, the listeners, the tools and the caller get to see."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import Any, ClassVar

import anyio
import attrs
import pytest

import agentx
from agentx import (
    Agent,
    CallNext,
    FilePart,
    MemoryStore,
    Message,
    ModelContext,
    ModelResponse,
    Plugin,
    PluginError,
    SessionContext,
    StreamCutError,
    TextPart,
    ThinkingPart,
    ToolContext,
    ToolFailed,
    ToolResult,
    hookimpl,
    tool,
)
from agentx.testing import Cut, FaultyModel, FunctionModel, Hang, ScriptedModel, call, pieces
from agentx_pytest import PluginConformance
from agentx_redact_pii import VAULT, RedactPii
from plugins.test_redact_pii_common import CARD, EMAIL, IBAN, PHONE, TOKEN

SECRETS = ("bob@", "acme.example", "4111 1111", "4111111", "1111 1111", "NWBK", "1234567", "ghp_")
EVERYTHING = f"Mail {EMAIL}, card {CARD}, account {IBAN}, phone {PHONE}, key {TOKEN}."


def new_agent(model: Any, *, tools: Sequence[Any] = (), plugins: Sequence[Any] = (), **options: Any) -> Agent[Any, Any]:
    return Agent(model, tools=tools, plugins=[*plugins, RedactPii()], config=False, autoload="none", **options)


class Sinks:
    """Everything that somebody else may write down of a session."""

    def __init__(self, model: ScriptedModel, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.DEBUG)
        self.model = model
        self.caplog = caplog
        self.seen: list[Any] = []

    def watch(self, session: Any) -> None:
        session.on("*", self.seen.append)

    def leaks(self, session: Any, *more: Any) -> list[str]:
        """Return what of the secrets is in any sink."""
        requests = [(list(request.wire_messages), request.instructions) for request in self.model.requests]
        sinks = {
            "events": session.events,
            "history": list(session.history),
            "listener": self.seen,
            "requests": requests,
            "log": self.caplog.text,
            "result": session.last_result,
            "more": more,
        }
        return [f"{secret} in {name}" for name, sink in sinks.items() for secret in SECRETS if secret in repr(sink)]


async def test_nothing_personal_is_in_any_sink_and_the_tool_gets_the_real_values(
    caplog: pytest.LogCaptureFixture,
) -> None:
    given: list[Any] = []

    @tool
    async def send(to: list[str], text: str, options: dict[str, str], ctx: ToolContext) -> str:
        """Send a mail."""
        given.append((to, text, options))
        await ctx.progress(f"sending to {to[0]}")
        return f"sent to {to[0]} by {PHONE}"

    asked = call("send", to=["[EMAIL_1]"], text="Card [CARD_1], IBAN [IBAN_1]!", options={"[PHONE_1]": "[TOKEN_1]"})
    model = ScriptedModel([["I send it.", asked], [pieces("Sent to [EMA", "IL_1] and bob@", "acme.example.")]])
    sinks = Sinks(model, caplog)
    async with new_agent(model, tools=[send]) as agent, agent.session() as session:
        sinks.watch(session)
        async with session.stream(EVERYTHING) as stream:
            streamed = [event async for event in stream]
        assert given == [([EMAIL], f"Card {CARD}, IBAN {IBAN}!", {PHONE: TOKEN})]
        assert stream.result.text == "Sent to [EMAIL_1] and [EMAIL_1]."
        assert "".join([e.text for e in streamed if e.kind == "text.delta"]) == "I send it." + stream.result.text
        assert session.history[0].text == (
            "Mail [EMAIL_1], card [CARD_1], account [IBAN_1], phone [PHONE_1], key [TOKEN_1]."
        )
        assert sinks.leaks(session, streamed, stream.result) == []
        assert "tool.progress" in [event.kind for event in sinks.seen]


@attrs.frozen
class NoteState:
    text: str = ""


class Notes(Plugin[NoteState]):
    """Says personal things wherever a plugin can say something."""

    id: ClassVar = "memory.notes"

    async def session(self, ctx: SessionContext, call_next: CallNext[None]) -> None:
        ctx.add_instructions(f"Help is at {EMAIL}.")
        await call_next()

    async def model(self, ctx: ModelContext, call_next: CallNext[ModelResponse]) -> ModelResponse:
        ctx.emit("asked", who=EMAIL, cards=[CARD, 4111111111111111])
        ctx.update(self, text=EMAIL)
        ctx.add_context(f"The user's number is {PHONE}.")
        return await call_next()


async def test_what_other_plugins_say_is_masked_too(caplog: pytest.LogCaptureFixture) -> None:
    model = ScriptedModel(["Hello."])
    sinks = Sinks(model, caplog)
    async with new_agent(model, plugins=[Notes()], instructions=f"You are {EMAIL}.") as agent:
        async with agent.session() as session:
            sinks.watch(session)
            result = await session.run("Hi", metadata={"who": EMAIL})
            assert sinks.leaks(session, result) == []
            request = model.requests[0]
            assert request.instructions == "You are [EMAIL_1].\n\nHelp is at [EMAIL_1]."
            assert request.context == ("The user's number is [PHONE_1].",)


async def test_a_failing_tool_does_not_say_what_it_was_given(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[ToolFailed] = []

    @tool
    async def send(to: str) -> str:
        """Send a mail."""
        raise ValueError(f"no such user: {to}")

    async def watching(ctx: ToolContext, call_next: CallNext[ToolResult]) -> ToolResult:
        try:
            return await call_next()
        except ToolFailed as failure:
            seen.append(failure)
            raise

    model = ScriptedModel([call("send", to="[EMAIL_1]"), call("send", too="[EMAIL_1]"), "Sorry."])
    sinks = Sinks(model, caplog)
    agent = new_agent(model, tools=[send]).use(tool=watching, phase="observe")
    async with agent, agent.session() as session:
        result = await session.run(f"Mail {EMAIL}")
        assert sinks.leaks(session, result, *map(str, seen)) == []
        assert "no such user: [EMAIL_1]" in session.history[2].parts[0].text
        assert seen[0].__cause__ is None and seen[0].__suppress_context__


async def test_a_failure_without_personal_data_keeps_its_cause() -> None:
    causes: list[BaseException | None] = []

    @tool
    async def fail() -> str:
        """Fail."""
        raise ValueError("out of paper")

    async def watching(ctx: ToolContext, call_next: CallNext[ToolResult]) -> ToolResult:
        try:
            return await call_next()
        except ToolFailed as failure:
            causes.append(failure.__cause__)
            raise

    agent = new_agent(ScriptedModel([call("fail"), "Sorry."]), tools=[fail]).use(tool=watching, phase="observe")
    await agent.run("Go")
    assert [type(cause) for cause in causes] == [ValueError]


async def test_a_failing_turn_does_not_write_down_what_failed_it(caplog: pytest.LogCaptureFixture) -> None:
    async def failing(ctx: ModelContext, call_next: CallNext[ModelResponse]) -> ModelResponse:
        raise RuntimeError(f"cannot reach {EMAIL}")

    model = ScriptedModel([])
    sinks = Sinks(model, caplog)
    agent = new_agent(model).use(model=failing)
    async with agent, agent.session() as session:
        with pytest.raises(RuntimeError):
            await session.run(f"Mail {EMAIL}")
        assert [leak for leak in sinks.leaks(session) if "in result" not in leak] == []
        assert session.events[-1].reason == "RuntimeError: cannot reach [EMAIL_1]"


# Streams that end in the middle of something (CASES G19)


async def test_a_text_that_ends_inside_a_candidate_is_given_out_whole_at_the_end() -> None:
    agent = new_agent(ScriptedModel([[pieces("Write to bo", "b@")]]))
    async with agent, agent.stream("Who?") as stream:
        assert "".join([text async for text in stream.text]) == "Write to bob@"
    assert stream.result.text == "Write to bob@"


async def test_what_is_held_is_given_out_before_a_tool_runs() -> None:
    @tool
    async def look() -> str:
        """Look."""
        return "ok"

    agent = new_agent(ScriptedModel([[pieces("I ask bob@"), call("look")], "Done."]), tools=[look])
    async with agent, agent.stream("Go") as stream:
        seen = [getattr(event, "text", event.kind) async for event in stream]
    assert seen.count("bob@") == 1
    assert seen.index("I ask ") < seen.index("bob@") < seen.index("tool.call") < seen.index("tool.start")


@pytest.mark.parametrize("fault", [Cut(after=2), Hang(after=2)])
async def test_an_error_or_a_cancel_gives_out_nothing_that_may_be_the_start_of_a_match(
    fault: Any, caplog: pytest.LogCaptureFixture
) -> None:
    inner = ScriptedModel([[pieces("Write to bob@", "acme.exam", "ple now")]])
    model = FaultyModel(inner, {1: fault})
    sinks = Sinks(inner, caplog)
    seen: list[str] = []
    async with new_agent(model) as agent, agent.session() as session:
        sinks.watch(session)
        with anyio.move_on_after(0.2), pytest.raises((StreamCutError, anyio.get_cancelled_exc_class())):
            async with session.stream("Who?") as stream:
                async for text in stream.text:
                    seen.append(text)
        assert "".join(seen) == "Write to "
        assert sinks.leaks(session) == []


async def test_each_attempt_begins_with_nothing_held() -> None:
    class Again(Plugin[None]):
        id: ClassVar = "model.retry"

        @hookimpl(repeats=True)
        async def model(self, ctx: ModelContext, call_next: CallNext[ModelResponse]) -> ModelResponse:
            try:
                return await call_next()
            except StreamCutError:
                return await call_next()

    model = ScriptedModel([[pieces("Write to bob@", "acme.ex", "ample")], [pieces("Call +49 ", "30 1234567", " now")]])
    async with new_agent(FaultyModel(model, {1: Cut(after=2)}), plugins=[Again()]) as agent:
        async with agent.stream("Who?") as stream:
            assert "".join([text async for text in stream.text]) == "Write to Call [PHONE_1] now"
    assert stream.result.text == "Call [PHONE_1] now"


# Placeholders


async def test_an_unknown_placeholder_denies_its_call_and_no_other() -> None:
    sent: list[str] = []

    @tool
    async def send(to: str) -> str:
        """Send a mail."""
        sent.append(to)
        return "sent"

    model = ScriptedModel(
        [[call("send", to="[EMAIL_1]"), call("send", to="[EMAIL_9]")], f"Then {EMAIL}, eve@x.example."]
    )
    async with new_agent(model, tools=[send]) as agent, agent.session() as session:
        result = await session.run(f"Mail {EMAIL}")
        assert sent == [EMAIL]
        good, bad = session.history[2].parts
        assert (good.status, bad.status) == ("ok", "denied")
        assert "[EMAIL_9]: no value is known for it" in bad.text
        assert result.text == "Then [EMAIL_1], [EMAIL_10]."  # the number that the model invented stays unused


async def test_what_the_user_types_as_a_placeholder_is_a_text_like_any_other() -> None:
    written: list[str] = []

    @tool
    async def write(text: str) -> str:
        """Write a file."""
        written.append(text)
        return f"wrote {text}, also [CARD_1]"

    model = ScriptedModel([call("write", text="[LITERAL_1] for [EMAIL_1]"), "Done."])
    async with new_agent(model, tools=[write]) as agent, agent.session() as session:
        await session.run(f"I am {EMAIL}. Write '[EMAIL_1]' and my address")
        assert session.history[0].text == "I am [EMAIL_1]. Write '[LITERAL_1]' and my address"
        assert written == [f"[EMAIL_1] for {EMAIL}"]
        assert session.history[2].parts[0].text == "wrote [LITERAL_1] for [EMAIL_1], also [LITERAL_2]"


async def test_a_placeholder_split_over_deltas_is_whole_for_the_tool() -> None:
    sent: list[str] = []

    @tool
    async def send(to: str) -> str:
        """Send a mail."""
        sent.append(to)
        return "sent"

    for size in (1, 2, 5):
        model = ScriptedModel([call("send", to="Bob <[EMAIL_1]>"), "Done."], delta_size=size)
        async with new_agent(model, tools=[send]) as agent, agent.stream(f"Mail {EMAIL}") as stream:
            args = "".join([event.text async for event in stream if event.kind == "tool.args.delta"])
        assert args == '{"to": "Bob <[EMAIL_1]>"}'
    assert sent == [f"Bob <{EMAIL}>"] * 3


async def test_what_the_model_makes_up_is_masked_in_its_call_and_real_for_the_tool() -> None:
    sent: list[Any] = []

    @tool
    async def pay(to: str, card: int) -> str:
        """Pay."""
        sent.append((to, card))
        return "paid"

    model = ScriptedModel([call("pay", to=EMAIL, card=4111111111111111), "Done."], delta_size=3)
    async with new_agent(model, tools=[pay]) as agent, agent.session() as session:
        async with session.stream("Pay") as stream:
            args = "".join([event.text async for event in stream if event.kind == "tool.args.delta"])
        assert args == session.history[1].tool_calls[0].arguments == '{"to": "[EMAIL_1]", "card": "[CARD_1]"}'
        assert sent == [(EMAIL, 4111111111111111)]


async def test_a_reopened_session_gives_no_wrong_value_to_an_old_placeholder(caplog: pytest.LogCaptureFixture) -> None:
    sent: list[str] = []

    @tool
    async def send(to: str) -> str:
        """Send a mail."""
        sent.append(to)
        return "sent"

    store = MemoryStore()
    async with new_agent(ScriptedModel(["Noted."]), store=store) as agent, agent.session("s") as session:
        await session.run(f"I am {EMAIL}")
    model = ScriptedModel([[call("send", to="[EMAIL_1]"), call("send", to="[EMAIL_2]")], "Done."])
    sinks = Sinks(model, caplog)
    async with new_agent(model, store=store, tools=[send]) as agent, agent.session("s") as session:
        await session.run("Mail me and eve@else.example")
        assert sent == ["eve@else.example"]
        assert [part.status for part in session.history[-2].parts] == ["denied", "ok"]
        assert sinks.leaks(session) == []


async def test_a_history_that_the_application_gives_is_masked_for_the_model() -> None:
    model = ScriptedModel(["Yes."])
    seed = [Message("user", (TextPart(f"I am {EMAIL}, not [EMAIL_4]"),)), Message("assistant", (TextPart("Hello"),))]
    async with new_agent(model) as agent, agent.session(history=seed) as session:
        await session.run("Is eve@else.example here?")
    texts = [message.text for message in model.requests[0].messages]
    assert EMAIL not in repr(texts)
    assert "eve@else.example" not in repr(texts)
    assert "[EMAIL_4]" in texts[0]  # and is not given to anybody else
    assert len({text.partition("[EMAIL_")[2][:2] for text in (texts[0], texts[2])}) == 2


async def test_a_tool_may_ask_for_the_vault() -> None:
    found: list[str] = []

    @tool
    async def look(text: str, ctx: ToolContext) -> str:
        """Look."""
        found.append(ctx.get(VAULT).restore(f"{ctx.history[0].text}"))
        return text

    async with new_agent(ScriptedModel([call("look", text="x"), "Done."]), tools=[look]) as agent:
        await agent.run(f"I am {EMAIL}")
    assert found == [f"I am {EMAIL}"]


# Signed parts (CASES G09), files


async def test_signed_thinking_is_never_changed_and_unsigned_thinking_is_masked() -> None:
    signed = ThinkingPart(f"ask {EMAIL}", "S1", {"raw": EMAIL})

    @tool
    async def look() -> str:
        """Look."""
        return "1"

    model = ScriptedModel([[signed, "ok", call("look")], [ThinkingPart(f"or {EMAIL}"), call("look")], "Done."])
    async with new_agent(model, tools=[look]) as agent, agent.session() as session:
        async with session.stream("Go") as stream:
            thinking = "".join([event.text async for event in stream if event.kind == "thinking.delta"])
    assert model.requests[1].messages[1].parts[0] == signed
    assert model.requests[2].messages[1].parts[0] == signed
    assert model.requests[2].messages[3].parts[0] == ThinkingPart("or [EMAIL_1]")
    assert thinking == "ask [EMAIL_1]or [EMAIL_1]"


async def test_a_text_file_is_masked_and_other_files_are_left() -> None:
    model = ScriptedModel(["Read."])
    image = FilePart("image/png", b"bob@acme.example", name="bob@acme.example.png")
    text = FilePart("text/plain; charset=utf-8", f"From {EMAIL}".encode())
    await new_agent(model).run([text, image])
    sent = model.requests[0].messages[0].parts
    assert sent[0].data == b"From [EMAIL_1]"
    assert (sent[1].data, sent[1].name) == (image.data, "[EMAIL_2]")


# Sessions apart


async def test_two_sessions_never_share_a_vault() -> None:
    sent: list[str] = []

    @tool
    async def send(to: str) -> str:
        """Send a mail."""
        sent.append(to)
        return "sent"

    model = ScriptedModel([call("send", to="[EMAIL_1]"), "Done.", call("send", to="[EMAIL_1]"), "Done."])
    async with new_agent(model, tools=[send]) as agent, agent.session() as first, agent.session() as second:
        await first.run("I am a@x.example")
        await second.run("I am b@x.example")
    assert sent == ["a@x.example", "b@x.example"]


async def test_twenty_sessions_at_once_are_not_mixed() -> None:
    @tool
    async def send(to: str, me: str) -> str:
        """Send a mail."""
        await anyio.sleep(0.001)
        return "right" if to == f"user{me}@x.example" else f"wrong: {to} for {me}"

    def answer(request: Any) -> Any:
        if request.messages[-1].role == "tool":
            return request.messages[-1].parts[0].text
        return call("send", to="[EMAIL_1]", me=request.messages[-1].text.split()[-1])

    async with new_agent(FunctionModel(answer, delay=0.001), tools=[send]) as agent:
        results: list[str] = []

        async def one(number: int) -> None:
            async with agent.session() as session:
                results.append((await session.run(f"I am user{number}@x.example number {number}")).text)

        async with anyio.create_task_group() as group:
            for number in range(20):
                group.start_soon(one, number)
    assert results == ["right"] * 20


# Other layers, sub-agents, a plugin's own calls


async def test_layers_outside_see_masked_arguments_and_guards_inside_the_real_ones() -> None:
    seen: list[Any] = []

    @tool
    async def send(to: str) -> str:
        """Send a mail."""
        return "sent"

    async def outside(ctx: ToolContext, call_next: CallNext[ToolResult]) -> ToolResult:
        result = await call_next()
        seen.append(("outside", ctx.args["to"]))
        return result

    async def inside(ctx: ToolContext, call_next: CallNext[ToolResult]) -> ToolResult:
        seen.append(("inside", ctx.args["to"]))
        return await call_next()

    agent = new_agent(ScriptedModel([call("send", to="[EMAIL_1]"), "Done."]), tools=[send])
    agent.use(tool=outside, phase="observe", name="out").use(tool=inside, phase="verify", name="in")
    await agent.run(f"Mail {EMAIL}")
    assert seen == [("inside", EMAIL), ("outside", "[EMAIL_1]")]


@pytest.mark.parametrize("child_has_it", [True, False])
async def test_a_sub_agent_uses_the_vault_of_its_parent(child_has_it: bool, caplog: pytest.LogCaptureFixture) -> None:
    sent: list[str] = []

    @tool
    async def send(to: str) -> str:
        """Send a mail."""
        sent.append(to)
        return f"sent to {to}"

    child_model = ScriptedModel(
        [call("send", to="[EMAIL_1]"), "Sent to [EMAIL_1] and eve@else.example, not [LITERAL_1]."]
    )
    own = [RedactPii()] if child_has_it else []
    child = Agent(child_model, name="mailer", tools=[send], plugins=own, config=False, autoload="none")
    model = ScriptedModel([call("mailer", task="Mail [EMAIL_1], not [LITERAL_1]"), "Done: [EMAIL_2]."])
    sinks = Sinks(model, caplog)
    async with new_agent(model, tools=[child.as_tool()]) as agent, agent.session() as session:
        sinks.watch(session)
        result = await session.run(f"Mail {EMAIL}, not [EMAIL_1]")
        assert sent == [EMAIL]
        assert child_model.requests[0].messages[0].text.startswith("Mail [EMAIL_1]")
        assert session.history[2].parts[0].text == "Sent to [EMAIL_1] and [EMAIL_2], not [LITERAL_1]."
        assert result.text == "Done: [EMAIL_2]."
        assert sinks.leaks(session, [list(r.messages) for r in child_model.requests]) == []


async def test_a_plugins_own_model_call_is_masked() -> None:
    class Judge(Plugin[None]):
        id: ClassVar = "memory.judge"

        async def turn(self, ctx: Any, call_next: CallNext[Any]) -> Any:
            answers.append((await ctx.call_model(f"Is {EMAIL} fine?")).text)
            return await call_next()

    answers: list[str] = []
    model = ScriptedModel([f"{EMAIL} is fine", "Hello"])
    await new_agent(model, plugins=[Judge()]).run("Hi")
    assert model.requests[0].messages[0].text == "Is [EMAIL_1] fine?"
    assert answers == ["[EMAIL_1] is fine"]


async def test_an_answer_that_no_model_gave_is_masked_too() -> None:
    async def cached(ctx: ModelContext, call_next: CallNext[ModelResponse]) -> ModelResponse:
        return ModelResponse((TextPart(f"Ask {EMAIL}"),))

    agent = new_agent(ScriptedModel([])).use(model=cached, phase="cache")
    async with agent, agent.stream("Who?") as stream:
        assert "".join([text async for text in stream.text]) == "Ask [EMAIL_1]"
    assert stream.result.output == stream.result.text == "Ask [EMAIL_1]"


async def test_what_a_layer_ends_the_turn_with_is_masked_too() -> None:
    async def ending(ctx: ModelContext, call_next: CallNext[ModelResponse]) -> ModelResponse:
        ctx.stop(f"{EMAIL} is known", output=f"Ask {EMAIL}")
        return await call_next()

    result = await new_agent(ScriptedModel(["Hello"])).use(model=ending).run("Who?")
    assert (result.status, result.output) == ("completed", "Ask [EMAIL_1]")
    assert EMAIL not in repr(result)


async def test_a_message_is_masked_once_however_often_it_is_sent() -> None:
    @tool
    async def look() -> str:
        """Look."""
        return "nothing"

    class Blind:
        """Does not read its requests, so that what remains is the plugin's own work."""

        name = "blind"
        calls: ClassVar[list[int]] = []

        async def respond(self, request: Any, emit: Any) -> ModelResponse:
            self.calls.append(count)
            if len(self.calls) > 100:
                return ModelResponse((TextPart("Done."),))
            return ModelResponse((attrs.evolve(call("look"), id=f"c{len(self.calls)}"),), "tool_use")

    count = 0

    def profile(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "call" and "agentx_redact_pii" in frame.f_code.co_filename

    model = Blind()
    model.calls.clear()
    sys.setprofile(profile)
    try:
        await new_agent(model, tools=[look]).run("Go")
    finally:
        sys.setprofile(None)
    early, late = model.calls[20] - model.calls[10], model.calls[95] - model.calls[85]
    assert late <= early * 1.01 + 10


# What is recorded before the layer is entered


async def test_what_an_outer_layer_says_while_the_session_opens_is_masked(caplog: pytest.LogCaptureFixture) -> None:
    async def opening(ctx: SessionContext, call_next: CallNext[None]) -> None:
        ctx.emit("opened", who=EMAIL)
        await call_next()

    model = ScriptedModel(["Hello."])
    sinks = Sinks(model, caplog)
    async with new_agent(model).use(session=opening) as agent, agent.session() as session:
        await session.run("Hi")
        assert sinks.leaks(session) == []


async def test_a_history_that_the_application_gives_is_masked_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    model = ScriptedModel(["Hello."])
    sinks = Sinks(model, caplog)
    seed = [Message("user", (TextPart(f"I am {EMAIL}"),)), Message("assistant", (TextPart("Hello"),))]
    async with new_agent(model) as agent, agent.session(history=seed) as session:
        await session.run("Hi")
        assert sinks.leaks(session) == []


async def test_the_log_of_a_sub_agent_without_the_plugin_is_masked() -> None:
    store = MemoryStore()
    child = Agent(ScriptedModel(["Ok."]), name="child", store=store, config=False, autoload="none")
    model = ScriptedModel([call("child", task="Mail [EMAIL_1]"), "Done."])
    async with new_agent(model, tools=[child.as_tool()]) as agent, agent.session() as session:
        await session.run(f"Mail {EMAIL}")
    logs = [await store.open(name) for name in await store.sessions()]
    assert logs
    assert EMAIL not in repr([log.events for log in logs])


# Settings


async def test_settings_say_what_is_masked_and_how() -> None:
    model = ScriptedModel(["Hello <EMAIL:1>, (415) 555-2671."])
    settings = {
        "kinds": ["email", "phone"],
        "allow": ["*@acme.example"],
        "phone_region": "US",
        "placeholder": "<{kind}:{number}>",
    }
    config = {"plugins": {"redact": {"pii": settings}}}
    agent = Agent(model, plugins=[RedactPii], config=config, autoload="none")
    result = await agent.run(f"{EMAIL} eve@else.example {CARD}")
    assert model.requests[0].messages[0].text == f"{EMAIL} <EMAIL:1> {CARD}"
    assert result.text == "Hello <EMAIL:1>, <PHONE:1>."


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kinds": ("mail",)}, "knows no kind 'mail'"),
        ({"placeholder": "EMAIL{number}"}, "cannot find placeholders like"),
        ({"phone_region": "XX"}, "no region 'XX'"),
    ],
)
def test_a_wrong_setting_is_refused_with_what_to_write(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RedactPii(**settings)


async def test_two_instances_in_one_agent_are_refused() -> None:
    agent = new_agent(ScriptedModel(["Hi"])).use(RedactPii(), name="tenant")
    with pytest.raises(PluginError, match="twice in one agent"):
        await agent.run("Hi")


async def test_without_the_plugin_everything_is_as_it_was() -> None:
    model = ScriptedModel([f"You are {EMAIL}."] * 2)
    bare = Agent(model, config=False, autoload="none")
    assert (await bare.run(f"I am {EMAIL}")).text == f"You are {EMAIL}."
    assert model.requests[0].messages[0].text == f"I am {EMAIL}"
    agent = new_agent(model)
    with agent.override(disable=["redact.pii"]):
        assert (await agent.run(f"I am {EMAIL}")).text == f"You are {EMAIL}."


class TestRedactPii(PluginConformance):
    def plugin(self) -> Plugin[Any]:
        return RedactPii()


class TestRedactPiiWithSomethingToMask(PluginConformance):
    prompt: ClassVar = "Please look up {word} for {word}@acme.example."
    changes: ClassVar = ("turn", "model", "tool")

    def plugin(self) -> Plugin[Any]:
        return RedactPii()


def test_only_the_public_names_of_agentx_are_used() -> None:
    assert agentx.Key("redact.pii") == VAULT
