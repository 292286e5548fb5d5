"""Streams: what a consumer sees of a turn, and when; what transforms make of a model's deltas."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import anyio
import anyio.lowlevel
import attrs
import pytest

from agentx import (
    Event,
    ModelContext,
    ModelRequest,
    ModelResponse,
    OverloadedError,
    SessionBusyError,
    StreamCutError,
    TextDelta,
    TextDeltaEvent,
    TextPart,
    ThinkingDelta,
    ThinkingPart,
    ToolArgsDelta,
    ToolCall,
    TurnAborted,
    TurnContext,
    Usage,
    tool,
)
from agentx.builtin.retry import Retry
from agentx.testing import Cut, FaultyModel, ScriptedModel, call, pieces

from ._rules import agent_with, at_most, last_of
from ._short import short

pytestmark = pytest.mark.anyio

Delta = TextDelta | ThinkingDelta | ToolArgsDelta


class Typing:
    """A model that streams `pieces` and notes in `log` when each is made; it can be cancelled between them."""

    name = "typing"

    def __init__(self, pieces: Sequence[str], log: list[str] | None = None, *, end: Any = None) -> None:
        self.pieces = pieces
        self.log = log if log is not None else []
        self.end = end

    async def respond(self, request: ModelRequest, emit: Any) -> ModelResponse:
        try:
            for number, piece in enumerate(self.pieces):
                self.log.append(f"made {number}")
                await emit(TextDelta(piece))
                await anyio.lowlevel.checkpoint()
            if isinstance(self.end, BaseException):
                raise self.end
            if self.end == "hang":
                await anyio.sleep_forever()
        finally:
            self.log.append("model left")
        return ModelResponse((TextPart("".join(self.pieces)),), usage=Usage(1, len(self.pieces)))


@tool
async def echo(text: str) -> str:
    return text


# What comes, and in what order


async def test_the_pieces_of_text_are_the_text() -> None:
    with at_most():
        async with agent_with([["I look. ", call("echo", text="x")], "The answer is x."]).session() as session:
            async with session.stream("go") as stream:
                said = [piece async for piece in stream.text]
            assert stream.result == last_of(session)

    assert "".join(said) == "I look. The answer is x."
    assert len(said) > 4
    assert stream.result.output == "The answer is x."


async def test_a_stream_tells_the_same_as_a_run_and_the_deltas_between() -> None:
    script = [["I look.", call("echo", text="x")], "Done it."]
    with at_most():
        async with agent_with(script).session() as session:
            async with session.stream("go") as stream:
                seen = [event async for event in stream]
            stored = [event for event in session.events if event.turn_id is not None]

    assert [event for event in seen if event.stored] == stored
    kinds = [event.kind for event in seen]
    assert [kind for index, kind in enumerate(kinds) if index == 0 or kinds[index - 1] != kind] == [
        "turn.start",
        "user.input",
        "model.start",
        "text.delta",
        "tool.args.delta",
        "model.attempt",
        "model.end",
        "tool.call",
        "tool.start",
        "tool.result",
        "model.start",
        "text.delta",
        "model.attempt",
        "model.end",
        "turn.end",
    ]


async def test_seq_has_no_gaps_over_the_stored_events_and_a_delta_has_that_of_the_one_before() -> None:
    with at_most():
        async with agent_with(["one", [call("echo", text="x")], "two is longer"]).session() as session:
            await session.run("first")
            async with session.stream("go") as stream:
                seen = [event async for event in stream]

    previous = seen[0].seq - 1
    for event in seen:
        assert event.seq == previous + (1 if event.stored else 0)
        assert event.turn_id == stream.result.turn_id
        previous = event.seq


async def test_deltas_say_which_call_and_attempt_they_belong_to() -> None:
    with at_most():
        async with agent_with([call("echo", text="x"), "done"]).session() as session:
            async with session.stream("go") as stream:
                seen = [event async for event in stream]

    arguments = [event for event in seen if event.kind == "tool.args.delta"]
    texts = [event for event in seen if isinstance(event, TextDeltaEvent)]
    assert "".join([event.text for event in arguments]) == '{"text": "x"}'  # type: ignore[attr-defined]
    assert {event.call_id for event in arguments} == {"c1"}  # type: ignore[attr-defined]
    assert {(event.call_index, event.attempt) for event in texts} == {(1, 1)}


async def test_thinking_is_seen_as_an_event_and_is_not_text() -> None:
    response = ModelResponse((ThinkingPart("let me think", signature="s"), TextPart("42")), usage=Usage(1, 1))
    with at_most():
        async with agent_with([response, response]).session() as session:
            async with session.stream("go") as stream:
                assert "".join([piece async for piece in stream.text]) == "42"
            async with session.stream("go") as stream:
                thoughts = [e.text async for e in stream if e.kind == "thinking.delta"]  # type: ignore[attr-defined]

    assert "".join(thoughts) == "let me think"


async def test_a_model_that_does_not_stream_is_seen_as_one_piece() -> None:
    class Silent:
        name = "silent"

        async def respond(self, request: ModelRequest, emit: Any) -> ModelResponse:
            return ModelResponse((TextPart("all at once"),), usage=Usage(1, 1))

    with at_most():
        async with agent_with(Silent()).session() as session, session.stream("go") as stream:
            assert [piece async for piece in stream.text] == ["all at once"]


async def test_agent_stream_is_a_turn_in_a_session_of_its_own() -> None:
    agent = agent_with(["hello there"])
    with at_most():
        async with agent.stream("go") as stream:
            said = "".join([piece async for piece in stream.text])
        assert await agent.store.sessions() == []

    assert said == stream.result.output == "hello there"


async def test_streams_of_many_sessions_do_not_mix() -> None:
    class Echoing:
        name = "echoing"

        async def respond(self, request: ModelRequest, emit: Any) -> ModelResponse:
            word = request.messages[-1].text
            for letter in word * 20:
                await emit(TextDelta(letter))
                await anyio.lowlevel.checkpoint()
            return ModelResponse((TextPart(word * 20),), usage=Usage(1, 1))

    agent = agent_with(Echoing())
    with at_most():
        async with agent, anyio.create_task_group() as group:

            async def talk(word: str) -> None:
                async with agent.session() as session, session.stream(word) as stream:
                    assert "".join([piece async for piece in stream.text]) == word * 20

            for letter in "abcdefgh":
                group.start_soon(talk, letter * 3)


async def test_listeners_hear_deltas_too() -> None:
    heard: list[str] = []
    with at_most():
        async with agent_with(["hello there", "good bye"]).session() as session:
            session.on("text.delta", lambda event: heard.append(event.text))  # type: ignore[attr-defined]
            await session.run("go")
            assert "".join(heard) == "hello there"
            async with session.stream("go") as stream:
                said = [piece async for piece in stream.text]

    assert "".join(said) == "good bye"
    assert "".join(heard) == "hello theregood bye"


# The result


async def test_the_result_is_there_when_the_turn_has_ended_and_not_before() -> None:
    with at_most():
        async with agent_with(["hello"]).session() as session:
            async with session.stream("go") as stream:
                with pytest.raises(SessionBusyError, match="not ended"):
                    _ = stream.result
                async for _ in stream.text:
                    pass
                assert stream.result.output == "hello"
            assert stream.result.output == "hello"


async def test_the_stream_of_a_running_session_is_refused() -> None:
    with at_most():
        async with agent_with(Typing("abc")).session() as session:
            async with session.stream("one") as first:
                said = await anext(first.text)
                with pytest.raises(SessionBusyError):
                    async with session.stream("two") as second:
                        async for _ in second:
                            pass
                assert said + "".join([piece async for piece in first.text]) == "abc"
            async with session.stream("three") as third:
                assert "".join([piece async for piece in third.text]) == "abc"


async def test_a_stream_may_wait_for_its_turn() -> None:
    said: list[str] = []
    with at_most():
        async with agent_with(Typing("abc")).session() as session, anyio.create_task_group() as group:

            async def talk(text: str) -> None:
                async with session.stream(text, on_busy="wait") as stream:
                    said.append("".join([piece async for piece in stream.text]))

            for text in ("one", "two", "three"):
                group.start_soon(talk, text)

    assert said == ["abc", "abc", "abc"]


async def test_the_stream_that_was_entered_first_has_the_turn() -> None:
    with at_most():
        for _ in range(10):
            async with agent_with(Typing("abc")).session() as session:
                async with session.stream("one") as first:
                    with pytest.raises(SessionBusyError):
                        async with session.stream("two") as second:
                            async for _ in second:
                                pass
                    assert "".join([piece async for piece in first.text]) == "abc"


@pytest.mark.parametrize("iterate", ["events", "text", "not at all"])
async def test_an_error_of_the_turn_comes_out_of_the_stream_as_it_is_and_once(iterate: str) -> None:
    bug = ValueError("bug")
    caught: list[BaseException] = []
    with at_most():
        async with agent_with(Typing(["a", "b"], end=bug)).session() as session:
            try:
                async with session.stream("go") as stream:
                    try:
                        if iterate == "text":
                            async for _ in stream.text:
                                pass
                        elif iterate == "events":
                            async for _ in stream:
                                pass
                        else:
                            await anyio.wait_all_tasks_blocked()
                            async for _ in stream.text:
                                pass
                    except ValueError as error:
                        caught.append(error)
                        raise
            except ValueError as error:
                caught.append(error)
            assert last_of(session).status == "failed"

    assert caught == [bug, bug]


async def test_an_error_that_the_body_has_handled_does_not_come_again() -> None:
    with at_most():
        async with agent_with(Typing(["a"], end=ValueError("bug"))).session() as session:
            async with session.stream("go") as stream:
                with pytest.raises(ValueError):
                    async for _ in stream.text:
                        pass
            assert stream.result.status == "failed"


async def test_an_abort_comes_out_of_the_stream() -> None:
    async def no(ctx: TurnContext, call_next: Any) -> Any:
        await call_next()
        ctx.abort("no")

    with at_most():
        async with agent_with(["hello"]).use(no).session() as session:
            with pytest.raises(TurnAborted) as caught:
                async with session.stream("go") as stream:
                    async for _ in stream:
                        pass
            assert caught.value.result == last_of(session)


# Leaving early


async def test_leaving_early_cancels_the_turn_and_waits_for_it() -> None:
    log: list[str] = []

    @tool
    async def slow() -> str:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.02)
            log.append("tool left")
        return ""

    with at_most():
        async with agent_with([call("slow"), "ok"], tools=[slow]).session() as session:
            async with session.stream("go") as stream:
                async for event in stream:
                    if event.kind == "tool.start":
                        break
            log.append("stream left")
            assert last_of(session).status == "cancelled"
            assert stream.result == session.last_result
            assert (await session.run("again")).output == "ok"

    assert log == ["tool left", "stream left"]


@pytest.mark.parametrize("error", [KeyError("mine"), RuntimeError("x"), anyio.ClosedResourceError(), StopIteration()])
@pytest.mark.parametrize("when", ["at once", "in the text", "after the end"])
async def test_the_bodys_exception_leaves_unchanged(error: Exception, when: str) -> None:
    with at_most():
        async with agent_with(Typing(["a", "b", "c"])).session() as session:
            with pytest.raises(type(error)) as caught:
                async with session.stream("go") as stream:
                    if when == "at once":
                        raise error
                    async for _ in stream.text:
                        if when == "in the text":
                            raise error
                    raise error
            assert caught.value is error
            assert last_of(session).status == ("completed" if when == "after the end" else "cancelled")
            assert (await session.run("again")).output == "abc"


async def test_a_base_exception_of_the_body_leaves_unchanged_too() -> None:
    class Bye(BaseException):
        pass

    bye = Bye()
    with at_most():
        async with agent_with(Typing(["a", "b"])).session() as session:
            with pytest.raises(Bye) as caught:
                async with session.stream("go"):
                    raise bye
            assert last_of(session).status == "cancelled"

    assert caught.value is bye


async def test_the_bodys_exception_wins_over_that_of_the_turn() -> None:
    mine = KeyError("mine")
    with at_most():
        async with agent_with(Typing(["a"], end=ValueError("bug"))).session() as session:
            with pytest.raises(KeyError) as caught:
                async with session.stream("go") as stream:
                    try:
                        async for _ in stream:
                            pass
                    except ValueError:
                        raise mine from None

    assert caught.value is mine


async def test_a_cancellation_of_the_consumer_cancels_the_turn_and_goes_on() -> None:
    log: list[str] = []
    with at_most():
        async with agent_with(Typing(["a"], log, end="hang")).session() as session:
            with anyio.CancelScope() as scope:
                async with session.stream("go") as stream:
                    async for _ in stream.text:
                        scope.cancel()
                log.append("not reached")
            assert scope.cancelled_caught
            assert last_of(session).status == "cancelled"

    assert log == ["made 0", "model left"]


async def test_a_time_limit_around_a_stream_that_hangs_works() -> None:
    with at_most():
        async with agent_with(Typing(["a"], end="hang")).session() as session:
            with pytest.raises(TimeoutError):
                with anyio.fail_after(0.05):
                    async with session.stream("go") as stream:
                        async for _ in stream:
                            pass
            assert last_of(session).status == "cancelled"
            assert short(session.history) == ['U"go"']


async def test_session_cancel_ends_a_stream_with_turn_aborted() -> None:
    with at_most():
        async with agent_with(Typing(["a"], end="hang")).session() as session:
            with pytest.raises(TurnAborted):
                async with session.stream("go") as stream:
                    async for _ in stream.text:
                        session.cancel()
            assert last_of(session).status == "cancelled"


async def test_leaving_agent_stream_early_closes_session_and_agent() -> None:
    log: list[str] = []

    async def lifetime(ctx: Any, call_next: Any) -> None:
        await call_next()
        log.append("closed")

    agent = agent_with(Typing("abc", end="hang")).use(init=lifetime).use(session=lifetime, name="s")
    with at_most():
        async with agent.stream("go") as stream:
            async for _ in stream.text:
                break

    assert log == ["closed", "closed"]


# Back-pressure


async def test_the_first_piece_arrives_before_the_second_is_made() -> None:
    log: list[str] = []
    with at_most():
        async with agent_with(Typing("abcd", log)).session() as session, session.stream("go") as stream:
            async for piece in stream.text:
                log.append(f"got {piece}")

    assert log[:3] == ["made 0", "got a", "made 1"]


async def test_the_first_event_of_a_delta_arrives_before_the_second_is_made() -> None:
    log: list[str] = []
    with at_most():
        async with agent_with(Typing("abcd", log)).session() as session, session.stream("go") as stream:
            async for event in stream:
                if event.kind == "text.delta":
                    log.append(f"got {event.text}")  # type: ignore[attr-defined]

    assert log[:3] == ["made 0", "got a", "made 1"]


@pytest.mark.parametrize("taken", [0, 1, 5, 300])
async def test_a_slow_consumer_bounds_the_producer(taken: int) -> None:
    log: list[str] = []
    ahead: list[int] = []
    with at_most():
        async with agent_with(Typing("x" * 2000, log)).session() as session, session.stream("go") as stream:
            pieces = aiter(stream.text)
            for number in range(taken):
                await anext(pieces)
                await anyio.wait_all_tasks_blocked()
                ahead.append(len(log) - number)
            await anyio.wait_all_tasks_blocked()
            ahead.append(len(log) - taken)
            assert max(ahead) <= 130
            said = [piece async for piece in pieces]

    assert len(said) == 2000 - taken
    assert stream.result.output == "x" * 2000


async def test_a_stream_that_nobody_takes_from_does_not_run_away() -> None:
    log: list[str] = []
    with at_most():
        async with agent_with(Typing("x" * 2000, log)).session() as session:
            async with session.stream("go"):
                await anyio.wait_all_tasks_blocked()
                assert len(log) <= 1
            assert last_of(session).status == "cancelled"


async def test_tools_wait_for_a_consumer_that_is_behind() -> None:
    log: list[str] = []

    @tool
    async def note() -> str:
        log.append("tool")
        return ""

    script = [call("note") for _ in range(200)]
    with at_most():
        async with agent_with([*script, "done"], tools=[note]).session() as session:
            async with session.stream("go") as stream:
                async for event in stream:
                    if event.kind == "tool.result":
                        break
                await anyio.wait_all_tasks_blocked()
                assert len(log) < 100


# Retries


async def test_a_retry_after_visible_text_is_announced_before_the_new_text() -> None:
    model = FaultyModel(ScriptedModel([pieces("Hel", "lo"), pieces("Hel", "lo")]), {1: Cut(after=1)})
    with at_most():
        async with agent_with(model).use(Retry(base_delay=0.0)).session() as session:
            async with session.stream("go") as stream:
                seen = [event async for event in stream if event.kind in ("text.delta", "model.retrying")]
            assert short(session.history) == ['U"go"', 'A"Hello"']

    assert [event.kind for event in seen] == ["text.delta", "model.retrying", "text.delta", "text.delta"]
    assert [event.attempt for event in seen] == [1, 2, 2, 2]  # type: ignore[attr-defined]
    assert seen[1].by == "model.retry"  # type: ignore[attr-defined]
    assert stream.result.output == "Hello"
    assert stream.result.usage.requests == 2


async def test_a_consumer_that_resets_at_model_retrying_has_the_text_of_the_result() -> None:
    model = FaultyModel(
        ScriptedModel([pieces("a", "b", "c")] * 3), {1: Cut(after=2, error=OverloadedError), 2: Cut(after=1)}
    )
    shown: list[str] = []
    with at_most():
        async with agent_with(model).use(Retry(base_delay=0.0)).session() as session:
            async with session.stream("go") as stream:
                async for event in stream:
                    if event.kind == "model.retrying":
                        shown.clear()
                    elif isinstance(event, TextDeltaEvent):
                        shown.append(event.text)

    assert "".join(shown) == stream.result.output == "abc"


async def test_arguments_of_a_broken_attempt_are_not_glued_to_those_of_the_next() -> None:
    class Breaks:
        name = "breaks"
        calls = 0

        async def respond(self, request: ModelRequest, emit: Any) -> ModelResponse:
            self.calls += 1
            if self.calls == 1:
                await emit(ToolArgsDelta('{"text":', "c1", "echo"))
                raise StreamCutError("cut")
            if self.calls == 2:
                await emit(ToolArgsDelta('{"text":"1"}', "c1", "echo"))
                return ModelResponse((ToolCall("c1", "echo", '{"text":"1"}'),), "tool_use", usage=Usage(1, 1))
            return ModelResponse((TextPart("done"),), usage=Usage(1, 1))

    ran: list[str] = []

    @tool(name="echo")
    async def echo_once(text: str) -> str:
        ran.append(text)
        return text

    with at_most():
        async with agent_with(Breaks(), tools=[echo_once]).use(Retry(base_delay=0.0)).session() as session:
            result = await session.run("go")

    assert ran == ["1"]
    assert result.output == "done"


async def test_without_a_retry_the_text_so_far_was_shown_and_nothing_is_remembered() -> None:
    model = FaultyModel(ScriptedModel([pieces("Hel", "lo")]), {1: Cut(after=1)})
    said: list[str] = []
    with at_most():
        async with agent_with(model).session() as session:
            with pytest.raises(StreamCutError):
                async with session.stream("go") as stream:
                    async for piece in stream.text:
                        said.append(piece)
            assert short(session.history) == ['U"go"']
            assert last_of(session).text == ""

    assert said == ["Hel"]


# Transforms


@attrs.define
class Mapped:
    """A transform that changes each piece of text by itself."""

    change: Callable[[str], str]

    def feed(self, delta: Delta) -> Iterable[Delta]:
        yield TextDelta(self.change(delta.text), delta.index) if isinstance(delta, TextDelta) else delta

    def finish(self) -> Iterable[Delta]:
        return ()


@attrs.define
class Held:
    """A transform that holds all text back until the end."""

    log: list[str] = attrs.Factory(list)
    held: list[TextDelta] = attrs.Factory(list)

    def feed(self, delta: Delta) -> Iterable[Delta]:
        if isinstance(delta, TextDelta):
            self.held.append(delta)
            return ()
        return (delta,)

    def finish(self) -> Iterable[Delta]:
        self.log.append("finished")
        held, self.held = self.held, []
        return [TextDelta("".join([delta.text for delta in held]))] if held else []


def transforming(*factories: Callable[[], Any]) -> Any:
    async def transform(ctx: ModelContext, call_next: Any) -> ModelResponse:
        for factory in factories:
            ctx.transform_deltas(factory)
        response: ModelResponse = await call_next()
        return response

    return transform


TRANSFORMS: dict[str, tuple[Callable[[], Any], str]] = {
    "upper": (lambda: Mapped(str.upper), "HELLO THERE"),
    "drop": (lambda: Mapped(lambda text: ""), ""),
    "double": (lambda: Mapped(lambda text: text * 2), "hellhello tho thereere"),
    "hold": (Held, "hello there"),
}


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("streamed", [True, False])
async def test_the_text_of_the_response_is_the_transformed_deltas_joined(name: str, streamed: bool) -> None:
    factory, expected = TRANSFORMS[name]
    with at_most():
        async with agent_with(["hello there"]).use(model=transforming(factory)).session() as session:
            if streamed:
                async with session.stream("go") as stream:
                    said = "".join([piece async for piece in stream.text])
                result = stream.result
                assert said == expected
            else:
                result = await session.run("go")
            assert "".join([message.text for message in session.history[1:]]) == expected

    assert result.text == expected
    assert result.status == ("completed" if expected else "empty")


async def test_transforms_of_inner_layers_come_first() -> None:
    outer = transforming(lambda: Mapped(lambda text: text + "o"))
    inner = transforming(lambda: Mapped(lambda text: text + "i"))
    with at_most():
        result = await agent_with([pieces("a", "b")]).use(model=outer).use(model=inner, name="inner").run("go")

    assert result.output == "aiobio"


async def test_a_short_circuited_response_goes_through_the_outer_transforms_as_one_delta() -> None:
    fed: list[str] = []

    def noting(name: str) -> Callable[[], Any]:
        def change(text: str) -> str:
            fed.append(f"{name} {text}")
            return text.upper()

        return lambda: Mapped(change)

    async def cache(ctx: ModelContext, call_next: Any) -> ModelResponse:
        return ModelResponse((TextPart("from the cache"),))

    agent = agent_with([]).use(model=transforming(noting("outer"))).use(model=cache)
    agent = agent.use(model=transforming(noting("inner")), name="inner")
    with at_most():
        async with agent.session() as session:
            async with session.stream("go") as stream:
                said = [piece async for piece in stream.text]
            assert short(session.history) == ['U"go"', 'A"FROM THE CACHE"']

    assert fed == ["outer from the cache"]
    assert said == ["FROM THE CACHE"]
    assert stream.result.output == "FROM THE CACHE"
    assert stream.result.usage.requests == 0


async def test_held_text_is_out_before_a_tool_call_and_before_the_tool_runs() -> None:
    script = [["I look.", call("echo", text="x")], "done"]
    with at_most():
        async with agent_with(script).use(model=transforming(Held)).session() as session:
            async with session.stream("go") as stream:
                seen = [event.kind async for event in stream if "delta" in event.kind or event.kind == "tool.start"]

    assert seen[0] == "text.delta"
    assert seen[1:-1] == ["tool.args.delta"] * len(seen[1:-2]) + ["tool.start"]


@pytest.mark.parametrize("how", ["error", "cancel"])
async def test_a_transform_that_holds_something_gives_out_nothing_when_the_stream_breaks(how: str) -> None:
    log: list[str] = []
    model = Typing(["write to ", "bob@"], end=StreamCutError("cut") if how == "error" else "hang")
    said: list[str] = []
    with at_most():
        async with agent_with(model).use(model=transforming(lambda: Held(log))).session() as session:
            if how == "error":
                with pytest.raises(StreamCutError):
                    async with session.stream("go") as stream:
                        said += [piece async for piece in stream.text]
            else:
                async with session.stream("go") as stream:
                    async for event in stream:
                        if event.kind == "model.start":
                            await anyio.wait_all_tasks_blocked()
                            break
            everything = repr(session.events)

    assert said == []
    assert "bob@" not in everything


async def test_every_attempt_has_transforms_of_its_own() -> None:
    made: list[Held] = []

    def factory() -> Held:
        made.append(Held())
        return made[-1]

    model = FaultyModel(ScriptedModel([pieces("Hel", "lo"), pieces("Hel", "lo")]), {1: Cut(after=1)})
    agent = agent_with(model).use(Retry(base_delay=0.0)).use(model=transforming(factory))
    with at_most():
        result = await agent.run("go")

    assert result.output == "Hello"
    assert len(made) == 2


async def test_a_transform_that_raises_is_an_error_of_the_turn() -> None:
    def broken(text: str) -> str:
        raise ValueError("transform")

    with at_most():
        async with agent_with(["hello", "again"]).use(model=transforming(lambda: Mapped(broken))).session() as session:
            with pytest.raises(ValueError, match="transform"):
                await session.run("go")
            assert last_of(session).status == "failed"


async def test_several_texts_of_one_response_stay_apart() -> None:
    response = ModelResponse(
        (TextPart("one"), ToolCall("c1", "echo", '{"text":"x"}'), TextPart("two")), "tool_use", usage=Usage(1, 1)
    )
    with at_most():
        async with agent_with([response, "done"]).use(model=transforming(TRANSFORMS["upper"][0])).session() as session:
            await session.run("go")
            parts = session.history[1].parts

    assert [part.text if isinstance(part, TextPart) else part.kind for part in parts] == ["ONE", "tool_call", "TWO"]


async def test_a_plugins_own_model_call_is_not_shown() -> None:
    async def asks(ctx: TurnContext, call_next: Any) -> Any:
        await ctx.call_model("secret question")
        return await call_next()

    seen: list[Event] = []
    with at_most():
        async with agent_with(["secret answer", "hello"]).use(asks).session() as session:
            async with session.stream("go") as stream:
                async for event in stream:
                    seen.append(event)

    assert "".join([event.text for event in seen if isinstance(event, TextDeltaEvent)]) == "hello"
