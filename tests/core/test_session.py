"""Sessions as an application sees them: outcomes, one turn at a time, users, seeds, settings, listeners, background."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from agentx import (
    Agent,
    AgentxError,
    Event,
    FilePart,
    MemoryStore,
    Message,
    ModelContext,
    ModelRequest,
    ModelResponse,
    ModelSettings,
    NoOutputError,
    OverloadedError,
    Plugin,
    RequestRejectedError,
    RunResult,
    SessionAccessError,
    SessionBusyError,
    SessionClosedError,
    SessionContext,
    SessionError,
    TextPart,
    ToolCall,
    ToolCallEvent,
    ToolContext,
    ToolNameError,
    TurnAborted,
    TurnContext,
    TurnEnd,
    Usage,
    kind_of,
    tool,
)
from agentx.builtin.limits import LimitsGuard
from agentx.testing import FaultyModel as Faulty
from agentx.testing import FunctionModel, Hang, ScriptedModel, call

from ._rules import agent_with, answer, at_most, kinds_of, last_of, results_of
from ._short import sent, short

pytestmark = pytest.mark.anyio


def gate() -> tuple[Any, anyio.Event, anyio.Event]:
    """Return a model's answer that waits, the event that says it has begun, and the one that lets it go on."""
    begun, go = anyio.Event(), anyio.Event()

    async def wait(request: ModelRequest) -> str:
        begun.set()
        await go.wait()
        return "waited"

    return wait, begun, go


# Outcomes


def ends_with(reason: str, text: str = "so far") -> ModelResponse:
    return ModelResponse((TextPart(text),), reason, usage=Usage(1, 1))


async def stop_it(ctx: ModelContext, call_next: Any) -> ModelResponse:
    response: ModelResponse = await call_next()
    ctx.stop("that will do")
    return response


OUTCOMES: dict[str, tuple[Sequence[Any], dict[str, Any], str]] = {
    "completed": (["hello"], {}, "hello"),
    "stopped": (["hello"], {"model": stop_it}, "hello"),
    "truncated": ([ends_with("max_tokens")], {}, "so far"),
    "refused": ([ends_with("refusal", "I will not")], {}, "I will not"),
    "empty": ([""], {}, ""),
    "limit": ([["I look", call("echo", text="x")], "never"], {"turn": "limits"}, "I look"),
}


@pytest.mark.parametrize("status", OUTCOMES)
async def test_outcomes_are_statuses_and_text_holds_what_there_is(status: str) -> None:
    script, layers, text = OUTCOMES[status]
    agent = agent_with(script)
    agent = agent.use(LimitsGuard(requests=1)) if status == "limit" else agent.use(**layers) if layers else agent
    with at_most():
        async with agent.session() as session:
            result = await session.run("go")
            assert session.last_result == last_of(session) == result

    assert (result.status, result.text) == (status, text)
    if status == "completed":
        assert result.output == "hello"
        assert result.reason is None
        return
    assert result.reason
    with pytest.raises(NoOutputError, match=status) as caught:
        _ = result.output
    assert (caught.value.status, caught.value.reason) == (status, result.reason)
    assert result.reason in str(caught.value)


@pytest.mark.parametrize("nothing", ["", " \n\t", []])
async def test_an_empty_answer_is_empty_and_never_an_older_text(nothing: Any) -> None:
    script = ["first answer", ["let me see", call("echo", text="x")], nothing, "third"]
    with at_most():
        async with agent_with(script).session() as session:
            await session.run("one")
            result = await session.run("two")
            third = await session.run("three")
            results_of(session)

    assert result.status == "empty"
    assert result.text.strip() == ""
    assert third.output == "third"


async def test_an_answer_of_a_file_alone_is_not_empty() -> None:
    picture = FilePart("image/png", data=b"\x89PNG")
    response = ModelResponse((picture,), usage=Usage(1, 1))
    with at_most():
        result = await agent_with([response]).run("draw")

    assert result.status == "completed"
    assert result.messages[-1].parts == (picture,)


async def test_a_result_says_what_its_own_turn_did() -> None:
    with at_most():
        async with agent_with([call("echo", text="x"), "one", "two"]).session(id="s") as session:
            first = await session.run("a")
            second = await session.run("b")
            turns = [event.turn_id for event in session.events if event.kind == "turn.start"]
            total = session.usage

    assert short(first.messages) == ['U"a"', 'A""[c1:echo{"text": "x"}]', 'R(c1)"x"', 'A"one"']
    assert short(second.messages) == ['U"b"', 'A"two"']
    assert (first.usage.requests, second.usage.requests) == (2, 1)
    assert total == first.usage + second.usage
    assert [first.turn_id, second.turn_id] == turns
    assert len(set(turns)) == 2
    assert first.session_id == "s"
    assert first.pending == ()
    assert first.cost is None


async def test_an_abort_raises_with_who_why_and_the_result_so_far() -> None:
    async def no(ctx: ModelContext, call_next: Any) -> ModelResponse:
        if ctx.call_index == 1:
            ctx.abort("too dear")
        response: ModelResponse = await call_next()
        return response

    with at_most():
        async with agent_with([["hm", call("echo", text="x")], "x"]).use(model=no).session() as session:
            with pytest.raises(TurnAborted, match="too dear") as caught:
                await session.run("go")
            result = last_of(session)

    assert caught.value.by == "function.no"
    assert caught.value.reason == "too dear"
    assert caught.value.result == result
    assert (result.status, result.by, result.reason) == ("aborted", "function.no", "too dear")
    assert result.text == "hm"
    assert len(result.messages) == 3


async def test_a_bug_raises_itself_with_nothing_attached_and_the_partial_result_is_in_the_session() -> None:
    bug = ZeroDivisionError("oops")

    async def buggy(ctx: ModelContext, call_next: Any) -> ModelResponse:
        if ctx.call_index == 1:
            raise bug
        response: ModelResponse = await call_next()
        return response

    with at_most():
        async with agent_with([call("echo", text="x"), "never"]).use(model=buggy).session() as session:
            with pytest.raises(ZeroDivisionError) as caught:
                await session.run("go")
            result = last_of(session)

    assert caught.value is bug
    assert set(vars(bug)) <= {"__notes__"}
    assert result.status == "failed"
    assert "oops" in (result.reason or "")
    assert len(result.messages) == 3


@pytest.mark.parametrize("error", [RequestRejectedError("bad"), OverloadedError("busy"), ValueError("bug")])
async def test_a_model_that_fails_raises_its_own_error_and_the_next_turn_runs(error: Exception) -> None:
    with at_most():
        async with agent_with([error, "better"]).session() as session:
            with pytest.raises(type(error)) as caught:
                await session.run("go")
            assert caught.value is error
            assert last_of(session).status == "failed"
            result = await session.run("again")

    assert result.output == "better"


async def test_last_result_follows_every_turn_however_it_ended() -> None:
    wait, begun, _ = gate()
    script = ["one", ValueError("bug"), wait, "four", ends_with("max_tokens")]
    seen: list[Any] = []
    with at_most():
        async with agent_with(script).session() as session:
            seen.append(session.last_result)
            await session.run("1")
            seen.append(last_of(session).status)
            with pytest.raises(ValueError):
                await session.run("2")
            seen.append(last_of(session).status)
            async with anyio.create_task_group() as group:
                group.start_soon(session.run, "3")
                await begun.wait()
                group.cancel_scope.cancel()
            seen.append(last_of(session).status)
            await session.run("4")
            seen.append(last_of(session).status)
            await session.run("5")
            seen.append(last_of(session).status)

    assert seen == [None, "completed", "failed", "cancelled", "completed", "truncated"]


async def test_stopping_with_an_output_completes_the_turn_with_it() -> None:
    async def cached(ctx: TurnContext, call_next: Any) -> RunResult[Any]:
        ctx.stop("known", output="from memory")
        result: RunResult[Any] = await call_next()
        return result

    with at_most():
        result = await agent_with([]).use(cached).run("go")

    assert (result.status, result.output, result.text) == ("completed", "from memory", "from memory")
    assert result.usage.requests == 0


@pytest.mark.parametrize("status", ["completed", "failed", "aborted", "nonsense", ""])
async def test_stop_takes_no_status_that_would_fake_an_outcome(status: str) -> None:
    async def stops(ctx: TurnContext, call_next: Any) -> RunResult[Any]:
        ctx.stop("why", status=status)
        result: RunResult[Any] = await call_next()
        return result

    with at_most(), pytest.raises(AgentxError, match="status"):
        await agent_with(["x"]).use(stops).run("go")


# Input


@pytest.mark.parametrize(
    "given",
    [TextPart("hi"), [TextPart("h"), TextPart("i")], (TextPart("hi"),)],
    ids=["part", "list", "tuple"],
)
async def test_input_is_text_or_parts(given: Any) -> None:
    model = ScriptedModel(["ok"])
    with at_most():
        await agent_with(model).run(given)

    assert [message.text for message in model.requests[0].messages] == ["hi"]


@pytest.mark.parametrize("nonsense", [None, 7, b"bytes", {"text": "hi"}, ["hi"], [None]], ids=repr)
async def test_nonsense_as_input_is_refused_before_a_turn_begins(nonsense: Any) -> None:
    with at_most():
        async with agent_with(["ok"]).session() as session:
            with pytest.raises((TypeError, AgentxError)):
                await session.run(nonsense)
            assert kinds_of(session) == ["session.start"]
            assert (await session.run("hi")).output == "ok"


async def test_the_users_message_appears_once_in_every_request() -> None:
    model = ScriptedModel([call("echo", text="x"), call("echo", text="y"), "ok"])
    with at_most():
        await agent_with(model, instructions="Be brief.").run("hello there")

    for request in model.requests:
        assert sent(request).count('U"hello there"') == 1
        assert request.instructions == "Be brief."


async def test_input_that_is_no_valid_utf_8_is_repaired() -> None:
    model = ScriptedModel(["ok"])
    with at_most():
        await agent_with(model).run("a\ud800b")

    assert model.requests[0].messages[0].text == "a�b"


async def test_a_layer_may_mask_the_input_before_it_is_remembered() -> None:
    async def mask(ctx: TurnContext, call_next: Any) -> RunResult[Any]:
        ctx.input = "card number ****"
        result: RunResult[Any] = await call_next()
        return result

    model = ScriptedModel(["ok"])
    with at_most():
        async with agent_with(model).use(mask).session() as session:
            await session.run("card number 4111-2222")
            seen = repr(session.events) + repr(session.history) + repr(model.requests)

    assert "4111-2222" not in seen
    assert "****" in seen


# One turn at a time


async def test_a_second_turn_raises_and_the_first_goes_on() -> None:
    wait, begun, go = gate()
    results: list[str] = []
    with at_most():
        async with agent_with([wait, "next"]).session() as session, anyio.create_task_group() as group:

            async def first() -> None:
                results.append((await session.run("one")).output)

            group.start_soon(first)
            await begun.wait()
            with pytest.raises(SessionBusyError):
                await session.run("two")
            with pytest.raises(SessionBusyError):
                async with session.stream("two"):
                    pass
            go.set()
            await anyio.wait_all_tasks_blocked()
            results.append((await session.run("three")).output)
            assert short(session.history) == ['U"one"', 'A"waited"', 'U"three"', 'A"next"']

    assert results == ["waited", "next"]


async def test_turns_that_wait_run_one_after_the_other_in_the_order_they_came() -> None:
    with at_most():
        async with agent_with(FunctionModel(lambda r: r.messages[-1].text, delay=0.001)).session() as session:
            async with anyio.create_task_group() as group:
                for number in range(8):

                    async def run(text: str = str(number)) -> None:
                        await session.run(text, on_busy="wait")

                    group.start_soon(run)
                    await anyio.lowlevel.checkpoint()
            said = [message.text for message in session.history]

    assert sorted(said[::2]) == [str(n) for n in range(8)]
    assert said[::2] == said[1::2]


@pytest.mark.parametrize("how", ["fails", "is cancelled", "is aborted"])
async def test_a_turn_that_waits_runs_although_the_one_before_it_did_not_end_well(how: str) -> None:
    begun, go = anyio.Event(), anyio.Event()

    async def bad(request: ModelRequest) -> str:
        begun.set()
        await go.wait()
        raise ValueError("bug")

    async def abort(ctx: ModelContext, call_next: Any) -> ModelResponse:
        try:
            response: ModelResponse = await call_next()
        except ValueError:
            if how == "is aborted":
                ctx.abort("no")
            raise
        return response

    with at_most():
        async with agent_with([bad, "fine"]).use(model=abort).session() as session:
            async with anyio.create_task_group() as group:

                async def first() -> None:
                    with pytest.raises((ValueError, TurnAborted)):
                        await session.run("one")

                async def second() -> None:
                    result = await session.run("two", on_busy="wait")
                    assert result.output == "fine"

                group.start_soon(first)
                await begun.wait()
                group.start_soon(second)
                await anyio.wait_all_tasks_blocked()
                if how == "is cancelled":
                    session.cancel()
                else:
                    go.set()


async def test_a_turn_that_is_cancelled_while_it_waits_leaves_no_trace() -> None:
    wait, begun, go = gate()
    with at_most():
        async with agent_with([wait]).session() as session, anyio.create_task_group() as group:
            group.start_soon(session.run, "one")
            await begun.wait()
            with anyio.move_on_after(0.01):
                await session.run("two", on_busy="wait")
            go.set()
            await anyio.wait_all_tasks_blocked()
            assert short(session.history) == ['U"one"', 'A"waited"']
            assert kinds_of(session).count("turn.start") == 1


async def test_a_tool_cannot_start_a_turn_of_its_own_session() -> None:
    @tool
    async def again(ctx: ToolContext) -> str:
        return (await ctx.session.run("inner")).text

    with at_most():
        async with agent_with([call("again"), "ok"], tools=[again]).session() as session:
            result = await session.run("go")
            results = results_of(session)

    assert result.output == "ok"
    assert "SessionBusyError" in results["c1"].text


async def test_cancel_ends_the_running_turn_and_says_whether_there_was_one() -> None:
    wait, begun, _ = gate()
    with at_most():
        async with agent_with([wait, "ok"]).session() as session:
            assert session.cancel() is False
            async with anyio.create_task_group() as group:

                async def run() -> None:
                    with pytest.raises(TurnAborted) as caught:
                        await session.run("go")
                    assert caught.value.result == session.last_result

                group.start_soon(run)
                await begun.wait()
                assert session.cancel() is True
            assert last_of(session).status == "cancelled"
            assert session.cancel() is False
            assert (await session.run("again")).output == "ok"


async def test_cancel_from_a_listener_of_the_turn_itself_works() -> None:
    with at_most():
        async with agent_with([call("echo", text="x"), "never"]).session() as session:
            session.on("tool.result", lambda event: session.cancel())
            with pytest.raises(TurnAborted):
                await session.run("go")
            assert results_of(session)["c1"].text == "x"
            assert last_of(session).status == "cancelled"


# Handles


async def test_a_session_that_is_not_open_runs_each_turn_by_opening_itself() -> None:
    agent = agent_with(["one", "two"])
    session = agent.session(id="s")
    with at_most():
        first = await session.run("a")
        second = await session.run("b")

    assert (first.output, second.output) == ("one", "two")
    with at_most():
        async with agent.session(id="s") as again:
            assert len(again.history) == 4


@pytest.mark.parametrize("name", ["history", "state", "usage", "events", "last_result"])
async def test_what_needs_an_open_session_says_so(name: str) -> None:
    session = agent_with([]).session()
    with pytest.raises(SessionClosedError, match=name):
        getattr(session, name)
    with at_most():
        async with session:
            getattr(session, name)
    with pytest.raises(SessionClosedError, match=name):
        getattr(session, name)


async def test_a_handle_opens_once_but_may_be_opened_again_after_it_was_closed() -> None:
    with at_most():
        session = agent_with(["one", "two"]).session()
        async with session:
            with pytest.raises(SessionBusyError):
                await session.__aenter__()
            await session.run("a")
        async with session:
            await session.run("b")
            assert len(session.history) == 4


async def test_two_handles_are_one_session_and_the_last_one_closes_it() -> None:
    closed: list[str] = []

    async def lifetime(ctx: SessionContext, call_next: Any) -> None:
        await call_next()
        closed.append("closed")

    agent = agent_with(["one", "two"]).use(session=lifetime)
    with at_most():
        async with agent:
            first, second = agent.session(id="s", user="u"), agent.session(id="s", user="u")
            await first.__aenter__()
            await second.__aenter__()
            await first.run("a")
            assert [message.text for message in second.history] == ["a", "one"]
            await first.__aexit__(None, None, None)
            assert closed == []
            await second.run("b")
            await second.__aexit__(None, None, None)
            assert closed == ["closed"]


async def test_many_handles_that_open_at_once_open_the_session_once() -> None:
    opened: list[int] = []

    async def lifetime(ctx: SessionContext, call_next: Any) -> None:
        await anyio.lowlevel.checkpoint()
        opened.append(1)
        await call_next()

    agent = agent_with(FunctionModel(lambda r: "ok")).use(session=lifetime)
    everybody_is_in = anyio.Event()
    inside: list[int] = []
    with at_most():
        async with agent, anyio.create_task_group() as group:

            async def use() -> None:
                async with agent.session(id="s") as session:
                    inside.append(1)
                    if len(inside) == 10:
                        everybody_is_in.set()
                    await everybody_is_in.wait()
                    await session.run("go", on_busy="wait")

            for _ in range(10):
                group.start_soon(use)

    assert opened == [1]


async def test_sessions_do_not_see_each_other() -> None:
    model = FunctionModel(lambda request: request.messages[-1].text.upper())
    agent = agent_with(model)
    with at_most():
        async with agent, anyio.create_task_group() as group:

            async def talk(name: str) -> None:
                async with agent.session(id=name) as session:
                    for turn in range(3):
                        await session.run(f"{name}{turn}")
                    assert {message.text.lower()[0] for message in session.history} == {name}
                    assert session.usage.requests == 3

            for name in "abcdefgh":
                group.start_soon(talk, name)


async def test_run_of_the_agent_leaves_nothing_in_a_memory_store() -> None:
    store = MemoryStore()
    agent = agent_with(["one", ValueError("bug")], store=store)
    with at_most():
        await agent.run("go")
        with pytest.raises(ValueError):
            await agent.run("go")
        assert await store.sessions() == []


# Users


@pytest.mark.parametrize("user", ["bob", None, "ANN", ""])
@pytest.mark.parametrize("is_open", [True, False])
async def test_nobody_else_gets_at_a_users_session(user: str | None, is_open: bool) -> None:
    agent = agent_with(["hello ann", "again"])
    with at_most():
        async with agent, agent.session(id="s", user="ann") as mine:
            await mine.run("my secret")
            if not is_open:
                await mine.__aexit__(None, None, None)
            with pytest.raises(SessionAccessError) as caught:
                async with agent.session(id="s", user=user):
                    pass
            assert "ann" not in str(caught.value)
            assert "secret" not in str(caught.value)
            if not is_open:
                await mine.__aenter__()
            assert (await mine.run("more")).output == "again"


async def test_a_session_without_a_user_is_not_open_to_every_user() -> None:
    agent = agent_with(["ok"])
    with at_most():
        async with agent, agent.session(id="s") as session:
            await session.run("hi")
            with pytest.raises(SessionAccessError):
                await agent.session(id="s", user="ann").run("hi")


async def test_layers_and_tools_see_user_session_and_deps() -> None:
    seen: list[Any] = []

    @tool
    async def who(ctx: ToolContext[dict[str, int]]) -> str:
        seen.append((ctx.user, ctx.session_id, ctx.deps, ctx.turn_index, ctx.metadata))
        return "ok"

    agent: Agent[Any, str] = agent_with([call("who"), "1", call("who"), "2"], tools=[who])
    with at_most():
        async with agent.session(id="s", user="ann", deps={"a": 1}) as session:
            await session.run("go")
            await session.run("go", deps={"b": 2}, metadata={"ip": "10.0.0.1"})

    assert seen == [("ann", "s", {"a": 1}, 0, {}), ("ann", "s", {"b": 2}, 1, {"ip": "10.0.0.1"})]


async def test_metadata_is_kept_with_the_turn_and_not_shown_to_the_model() -> None:
    model = ScriptedModel(["ok"])
    with at_most():
        async with agent_with(model).session() as session:
            await session.run("go", metadata={"ticket": "T-1"})
            assert [e.metadata for e in session.events if e.kind == "turn.start"] == [  # type: ignore[attr-defined]
                {"ticket": "T-1"}
            ]

    assert "T-1" not in repr(model.requests)


# Seeds


SEED = [Message("user", (TextPart("before"),)), Message("assistant", (TextPart("I know"),))]


async def test_a_session_begins_with_the_history_that_was_given() -> None:
    model = ScriptedModel(["ok", "ok"])
    given = list(SEED)
    with at_most():
        async with agent_with(model).session(history=given) as session:
            given.append(Message("user", (TextPart("sneaked in"),)))
            result = await session.run("and now?")

    assert sent(model.requests[0]) == ['U"before"', 'A"I know"', 'U"and now?"']
    assert short(result.messages) == ['U"and now?"', 'A"ok"']


async def test_an_application_can_keep_the_history_itself() -> None:
    model = ScriptedModel([call("echo", text="x"), "one", "two", "three"])
    kept: list[Message] = []
    with at_most():
        for text in ("a", "b", "c"):
            async with agent_with(model).session(history=kept) as session:
                result = await session.run(text)
                kept += result.messages
                assert list(session.history) == kept

    assert [m.text for m in kept if m.role == "user"] == ["a", "b", "c"]
    assert len(model.requests[-1].messages) == 7


async def test_a_seed_survives_a_restart_and_a_second_one_is_refused() -> None:
    store = MemoryStore()
    with at_most():
        async with agent_with(["ok"], store=store).session(id="s", history=SEED) as session:
            await session.run("hi")
        async with agent_with([], store=store).session(id="s") as session:
            assert short(session.history) == ['U"before"', 'A"I know"', 'U"hi"', 'A"ok"']
        with pytest.raises(SessionError, match="history"):
            async with agent_with([], store=store).session(id="s", history=SEED):
                pass
        async with agent_with(["still"], store=store).session(id="s") as session:
            assert (await session.run("there?")).output == "still"


async def test_an_empty_seed_is_a_new_session() -> None:
    with at_most():
        async with agent_with(["ok"]).session(history=[]) as session:
            assert (await session.run("hi")).output == "ok"


# Options of a turn, and settings of a session


async def test_a_turn_may_have_another_model_and_other_settings() -> None:
    usual, other = ScriptedModel(["a", "c"]), ScriptedModel(["b"], name="other")
    agent = agent_with(usual, settings=ModelSettings(temperature=0.5, max_tokens=100))
    with at_most():
        async with agent.session() as session:
            said = [
                (await session.run("1")).output,
                (await session.run("2", model=other, settings=ModelSettings(temperature=1.0))).output,
                (await session.run("3")).output,
            ]

    assert said == ["a", "b", "c"]
    [request] = other.requests
    assert (request.settings.temperature, request.settings.max_tokens) == (1.0, 100)
    assert request.model == "other"
    assert usual.requests[1].settings.temperature == 0.5
    assert len(request.messages) == 3


@tool
async def extra() -> str:
    """Do more."""
    return "more"


async def test_configure_counts_from_the_next_turn_on() -> None:
    usual, other = ScriptedModel(["a"]), ScriptedModel(["b", "c"], name="other")
    with at_most():
        async with agent_with(usual, instructions="old").session() as session:
            await session.run("1")
            session.configure(model=other, instructions="new", tools=[extra], settings=ModelSettings(max_tokens=7))
            await session.run("2")
            session.configure(settings=ModelSettings(temperature=0.1))
            await session.run("3")

    second, third = other.requests
    assert usual.requests[0].instructions == "old"
    assert (second.instructions, second.settings.max_tokens) == ("new", 7)
    assert [spec.name for spec in second.tools] == ["echo", "extra"]
    assert (third.settings.max_tokens, third.settings.temperature) == (7, 0.1)
    assert [spec.name for spec in third.tools] == ["echo", "extra"]


async def test_configure_holds_for_its_own_session_only() -> None:
    model = FunctionModel(lambda request: "ok")
    agent = agent_with(model, instructions="old")
    with at_most():
        async with agent, agent.session() as one, agent.session() as two:
            one.configure(instructions="new", tools=[extra])
            await two.run("go")

    assert model.requests[0].instructions == "old"
    assert [spec.name for spec in model.requests[0].tools] == ["echo"]


async def test_configure_replaces_the_tools_it_gave_before_and_tells_it() -> None:
    @tool
    async def third() -> str:
        return "3"

    model = ScriptedModel(["ok", [call("extra"), call("third")], "ok"])
    with at_most():
        async with agent_with(model).session() as session:
            session.configure(tools=[extra])
            await session.run("1")
            session.configure(tools=[third])
            await session.run("2")
            results = results_of(session)
            changed = [e for e in session.events if e.kind == "tools.changed"]

    assert results["c1"].is_error
    assert results["c2"].text == "3"
    assert [(e.added, e.removed) for e in changed] == [  # type: ignore[attr-defined]
        (("extra",), ()),
        (("third",), ("extra",)),
    ]


async def test_configure_is_refused_while_a_turn_runs() -> None:
    wait, begun, go = gate()
    with at_most():
        async with agent_with([wait]).session() as session, anyio.create_task_group() as group:
            group.start_soon(session.run, "one")
            await begun.wait()
            with pytest.raises(SessionBusyError):
                session.configure(instructions="new")
            go.set()


@tool(name="echo")
async def another_echo() -> str:
    return ""


async def test_a_configuration_that_is_refused_changes_nothing() -> None:
    model = ScriptedModel(["ok"])
    with at_most():
        async with agent_with(model, instructions="old").session() as session:
            with pytest.raises(ToolNameError):
                session.configure(instructions="new", tools=[extra, another_echo])
            await session.run("go")

    assert model.requests[0].instructions == "old"
    assert [spec.name for spec in model.requests[0].tools] == ["echo"]


@pytest.mark.parametrize("model", ["no-slash", "nowhere/model", 7], ids=repr)
async def test_configure_checks_the_model_at_once(model: Any) -> None:
    with at_most():
        async with agent_with(["ok"]).session() as session:
            with pytest.raises((AgentxError, ValueError)):
                session.configure(model=model)
            assert (await session.run("go")).output == "ok"


# Events and listeners


ONE_TOOL = [call("echo", text="x"), "done"]
ONE_TURN = [
    "turn.start",
    "user.input",
    "model.start",
    "model.attempt",
    "model.end",
    "tool.call",
    "tool.start",
    "tool.result",
    "model.start",
    "model.attempt",
    "model.end",
    "turn.end",
]


async def test_a_turn_is_told_in_the_order_of_the_design() -> None:
    heard: list[str] = []
    with at_most():
        async with agent_with(ONE_TOOL).session() as session:
            session.on("*", lambda event: heard.append(event.kind))
            await session.run("go")
            assert kinds_of(session) == ["session.start", *ONE_TURN]
            assert heard == ONE_TURN
            heard.append("the caller has it")
        assert heard[-1] == "session.end"


async def test_stored_events_are_numbered_without_gaps_and_carry_their_turn() -> None:
    with at_most():
        async with agent_with([*ONE_TOOL, "two"]).session() as session:
            first = await session.run("go")
            second = await session.run("go")
            events = session.events

    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert [event.turn_id for event in events] == [None] + [first.turn_id] * 12 + [second.turn_id] * 6
    assert [event.time for event in events] == sorted([event.time for event in events])


@pytest.mark.parametrize(
    ("kind", "heard"),
    [
        ("tool.result", ["tool.result"]),
        ("tool.*", ["tool.call", "tool.start", "tool.result"]),
        ("turn.*", ["turn.start", "turn.end"]),
        ("limit.*", []),
        ("plugin.guard.other.*", []),
    ],
)
async def test_a_listener_hears_the_kinds_it_asked_for(kind: str, heard: list[str]) -> None:
    got: list[str] = []
    with at_most():
        async with agent_with(ONE_TOOL).session() as session:
            session.on(kind, lambda event: got.append(kind_of(event)))
            await session.run("go")

    assert got == heard


async def test_a_listener_that_fails_is_isolated_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[str] = []

    def broken(event: Event) -> None:
        raise KeyError("broken listener")

    async def broken_too(event: Event) -> None:
        await anyio.lowlevel.checkpoint()
        raise AssertionError("broken as well")

    with at_most(), caplog.at_level(logging.ERROR, "agentx"):
        async with agent_with(ONE_TOOL).session() as session:
            session.on("*", broken)
            session.on("*", broken_too)
            session.on("*", lambda event: heard.append(event.kind))
            result = await session.run("go")

    assert result.output == "done"
    assert heard == [*ONE_TURN, "session.end"]
    assert "broken listener" in caplog.text
    assert "broken as well" in caplog.text


async def test_async_listeners_are_awaited_in_order() -> None:
    heard: list[str] = []

    async def slow(event: Event) -> None:
        await anyio.sleep(0.001)
        heard.append(f"slow {event.kind}")

    with at_most():
        async with agent_with(["done"]).session() as session:
            session.on("turn.*", slow)
            session.on("turn.*", lambda event: heard.append(f"quick {event.kind}"))
            await session.run("go")
            heard.append("result")

    assert heard == ["slow turn.start", "quick turn.start", "slow turn.end", "quick turn.end", "result"]


async def test_a_listener_can_be_ended_also_by_itself() -> None:
    heard: list[str] = []

    def once(event: Event) -> None:
        heard.append(event.kind)
        end()

    with at_most():
        async with agent_with(["one", "two"]).session() as session:
            end = session.on("turn.*", once)
            others = session.on("turn.*", lambda event: heard.append(f"other {event.kind}"))
            await session.run("go")
            others()
            others()
            await session.run("go")

    assert heard == ["turn.start", "other turn.start", "other turn.end"]


async def test_the_commit_points_come_in_the_order_of_the_design() -> None:
    order: list[str] = []

    def reply(request: ModelRequest) -> Any:
        order.append("model")
        return call("echo", text="x") if len(request.messages) < 3 else "done"

    with at_most():
        async with agent_with(FunctionModel(reply)).session() as session:
            for kind in ("user.input", "model.end", "tool.start", "tool.result", "turn.end"):
                session.on(kind, lambda event: order.append(event.kind))
            await session.run("go")

    assert order == ["user.input", "model", "model.end", "tool.start", "tool.result", "model", "model.end", "turn.end"]


async def test_what_a_tool_call_event_says_of_bad_arguments_is_bounded() -> None:
    with at_most():
        async with agent_with([call("echo", "[" * 5000), "ok"]).session() as session:
            await session.run("go")
            [event] = [event for event in session.events if isinstance(event, ToolCallEvent)]

    assert len(event.arguments) <= 1000


async def test_turn_end_tells_status_usage_and_reason() -> None:
    with at_most():
        async with agent_with([ends_with("max_tokens")]).session() as session:
            result = await session.run("go")
            end = session.events[-1]

    assert isinstance(end, TurnEnd)
    assert (end.status, end.reason, end.usage) == ("truncated", result.reason, result.usage)


# Work after and beside the turn


async def test_after_turn_runs_when_the_caller_has_its_result_and_before_the_next_turn() -> None:
    order: list[str] = []

    async def later() -> None:
        await anyio.lowlevel.checkpoint()
        order.append("after")

    async def layer(ctx: TurnContext, call_next: Any) -> RunResult[Any]:
        order.append("turn")
        ctx.after_turn(later)
        result: RunResult[Any] = await call_next()
        return result

    with at_most():
        async with agent_with(["one", "two"]).use(layer).session() as session:
            await session.run("a")
            order.append("result")
            await session.run("b")
            order.append("result")

    assert order == ["turn", "result", "after", "turn", "result", "after"]


async def test_a_failing_after_turn_is_logged_and_the_others_run(caplog: pytest.LogCaptureFixture) -> None:
    ran: list[str] = []

    async def bad() -> None:
        raise ValueError("after all")

    async def good() -> None:
        ran.append("good")

    async def layer(ctx: TurnContext, call_next: Any) -> RunResult[Any]:
        ctx.after_turn(bad)
        ctx.after_turn(good)
        result: RunResult[Any] = await call_next()
        return result

    with at_most(), caplog.at_level(logging.ERROR, "agentx"):
        async with agent_with(["one", "two"]).use(layer).session() as session:
            await session.run("a")
            await session.run("b")

    assert ran == ["good", "good"]
    assert "after all" in caplog.text
    assert "function.layer" in caplog.text


async def test_after_turn_runs_after_a_turn_that_failed_too() -> None:
    ran: list[str] = []

    async def layer(ctx: TurnContext, call_next: Any) -> RunResult[Any]:
        async def note() -> None:
            ran.append("after")

        ctx.after_turn(note)
        result: RunResult[Any] = await call_next()
        return result

    with at_most():
        async with agent_with([ValueError("bug")]).use(layer).session() as session:
            with pytest.raises(ValueError):
                await session.run("a")

    assert ran == ["after"]


class Worker(Plugin):
    """Starts `work` in the background of its session or its agent."""

    id = "tools.worker"
    level: str = "session"
    on_failure: str = "log"
    work: Any = None

    async def init(self, ctx: Any, call_next: Any) -> None:
        if self.level == "init":
            ctx.start_soon(self.work, on_error=self.on_failure)
        await call_next()

    async def session(self, ctx: Any, call_next: Any) -> None:
        if self.level == "session":
            ctx.start_soon(self.work, on_error=self.on_failure)
        await call_next()


@pytest.mark.parametrize("level", ["init", "session"])
async def test_closing_waits_for_background_work(level: str) -> None:
    log: list[str] = []
    go = anyio.Event()

    async def work() -> None:
        await go.wait()
        await anyio.sleep(0.01)
        log.append("work done")

    with at_most():
        agent = agent_with(["ok"], plugins=[Worker(level=level, work=work)])
        async with agent, agent.session() as session:
            await session.run("hi")
            log.append("turn done")
            go.set()
        log.append("closed")

    assert log == ["turn done", "work done", "closed"]


@pytest.mark.parametrize("level", ["init", "session"])
async def test_background_work_that_fails_is_logged_and_harms_nobody(
    level: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        raise ValueError("in the background")

    with at_most(), caplog.at_level(logging.ERROR, "agentx"):
        agent = agent_with(["ok"], plugins=[Worker(level=level, work=work)])
        async with agent, agent.session() as session:
            await anyio.wait_all_tasks_blocked()
            assert (await session.run("hi")).output == "ok"

    assert "in the background" in caplog.text
    assert "tools.worker" in caplog.text


@pytest.mark.parametrize("level", ["init", "session"])
async def test_background_work_that_must_not_fail_fails_its_level(level: str) -> None:
    wait, begun, _ = gate()

    async def work() -> None:
        await begun.wait()
        raise ValueError("connection lost")

    with at_most():
        agent = agent_with([wait, "never"], plugins=[Worker(level=level, work=work, on_failure="fail")])
        with pytest.raises((SessionClosedError, ValueError)):
            async with agent, agent.session() as session:
                with pytest.raises(SessionClosedError) as running:
                    await session.run("hi")
                assert isinstance(running.value.__cause__, ValueError)
                last_of(session)
                with pytest.raises(SessionClosedError) as later:
                    await session.run("hi")
                assert isinstance(later.value.__cause__, ValueError)
                raise later.value


# A model that answers with nonsense


class Nonsense:
    """A model that answers with whatever it is given."""

    name = "nonsense"

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    async def respond(self, request: ModelRequest, emit: Any) -> Any:
        return self.answer


NONSENSE: dict[str, Any] = {
    "None": None,
    "text": "hello",
    "message": Message("assistant", (TextPart("hello"),)),
    "parts": (TextPart("hello"),),
    "class": ModelResponse,
    "no part": ModelResponse((None,)),  # type: ignore[arg-type]
    "parts are text": ModelResponse("hello"),  # type: ignore[arg-type]
    "parts are None": ModelResponse(None),  # type: ignore[arg-type]
    "text is None": ModelResponse((TextPart(None),)),  # type: ignore[arg-type]
    "name is None": ModelResponse((call("x"),)),
    "usage is a dict": ModelResponse((TextPart("hi"),), usage={"input": 1}),  # type: ignore[arg-type]
    "stop reason is None": ModelResponse((TextPart("hi"),), None),  # type: ignore[arg-type]
    "a list of parts": ModelResponse([TextPart("hi")]),  # type: ignore[arg-type]
}
LEGAL = ("stop reason is None", "a list of parts", "name is None")
"""Where going on is as good as refusing."""


@pytest.mark.parametrize("name", NONSENSE)
async def test_a_model_that_answers_nonsense_is_named_and_the_session_survives(name: str) -> None:
    agent = agent_with(Nonsense(NONSENSE[name]))
    limited = agent.use(LimitsGuard(requests=3))
    with at_most():
        async with limited.session() as session:
            try:
                await session.run("go")
            except AgentxError as error:
                assert "nonsense" in str(error)
            else:
                assert name in LEGAL
            last_of(session)
            other = ScriptedModel(["ok"])
            assert (await session.run("again", model=other)).output == "ok"
            for message in session.history:
                assert isinstance(message.parts, tuple)
                hash(message)


async def test_a_coroutine_function_that_is_no_coroutine_is_named() -> None:
    class Sync:
        name = "synchronous"

        def respond(self, request: ModelRequest, emit: Any) -> ModelResponse:
            return answer("hello")

    with at_most():
        async with agent_with(Sync()).session() as session:
            with pytest.raises((AgentxError, TypeError)):
                await session.run("go")
            last_of(session)


@pytest.mark.parametrize("ids", [["", ""], ["a", "a"], ["a", "a", "a_0_1"], ["x" * 200, "x" * 200]], ids=repr)
async def test_call_ids_that_are_missing_or_double_become_distinct(ids: list[str]) -> None:
    calls = [ToolCall(call_id, "echo", f'{{"text":"{number}"}}') for number, call_id in enumerate(ids)]
    response = ModelResponse(tuple(calls), "tool_use", usage=Usage(1, 1))
    turns = iter([response, answer("ok")])

    class Double:
        name = "double"

        async def respond(self, request: ModelRequest, emit: Any) -> ModelResponse:
            return next(turns)

    with at_most():
        async with agent_with(Double()).session() as session:
            await session.run("go")
            results = results_of(session)

    assert [result.text for result in results.values()] == [str(n) for n in range(len(ids))]


async def test_call_ids_that_come_again_in_a_later_step_are_kept_apart() -> None:
    same = ModelResponse((ToolCall("id", "echo", '{"text":"x"}'),), "tool_use", usage=Usage(1, 1))
    model = ScriptedModel([same, same, "ok", same, "ok"])
    with at_most():
        async with agent_with(model).session(id="s") as session:
            await session.run("go")
            result = await session.run("go")
            store = session.events
    assert result.output == "ok"
    assert [event.kind for event in store].count("tool.result") == 3


async def test_a_hung_model_can_be_cancelled() -> None:
    model = Faulty(ScriptedModel(["never", "ok"]), {1: Hang(after=0)})
    with at_most():
        async with agent_with(model).session() as session:
            async with anyio.create_task_group() as group:
                group.start_soon(session.run, "go")
                await model.reached.wait()
                group.cancel_scope.cancel()
            assert last_of(session).status == "cancelled"


async def test_asyncio_cancel_of_a_task_that_waits_for_its_turn(anyio_backend_name: str) -> None:
    if anyio_backend_name != "asyncio":
        pytest.skip("asyncio's own task.cancel()")
    wait, begun, go = gate()
    with at_most():
        async with agent_with([wait]).session() as session:
            first = asyncio.ensure_future(session.run("one"))
            await begun.wait()
            second = asyncio.ensure_future(session.run("two", on_busy="wait"))
            await anyio.wait_all_tasks_blocked()
            second.cancel()
            with pytest.raises(asyncio.CancelledError):
                await second
            go.set()
            assert (await first).output == "waited"
