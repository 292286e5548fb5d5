"""Another way from an earlier point: forks, which are sessions of their own, and turns that are undone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import anyio
import attrs
import pytest

from agentx import (
    Agent,
    Approve,
    Effect,
    Event,
    MemoryStore,
    Plugin,
    RunResult,
    SessionBusyError,
    SessionError,
    SessionForked,
    SessionRewound,
    TurnContext,
    kind_of,
    reduced,
    state_field,
    tool,
)
from agentx._store import replay
from agentx.testing import FunctionModel, ScriptedModel, call, check_history

from ._rules import at_most


@tool
async def look() -> str:
    """Look."""
    return "seen"


@tool(requires_approval=True)
async def pay(euro: int) -> str:
    """Pay."""
    return f"paid {euro}"


def agent_of(*answers: Any, **options: Any) -> Agent[Any, Any]:
    options.setdefault("tools", [look, pay])
    return Agent(ScriptedModel(list(answers)), config=False, autoload="none", **options)


def texts(messages: Sequence[Any]) -> list[str]:
    return [message.text or message.role for message in messages]


# Forks


async def test_a_fork_goes_its_own_way_and_the_other_session_does_not_notice() -> None:
    async with agent_of("one", "two", "mine", "theirs") as agent, agent.session("a", user="ann") as session:
        await session.run("1")
        at = session.events[-1].seq
        await session.run("2")
        forked = await session.fork(at, id="b")
        assert (forked.id, forked.user) == ("b", "ann")
        async with forked:
            await forked.run("other 2")
            assert texts(forked.history) == ["1", "one", "other 2", "mine"]
        await session.run("3")
        assert texts(session.history) == ["1", "one", "2", "two", "3", "theirs"]


async def test_a_fork_says_where_it_comes_from_and_keeps_the_events_of_the_other() -> None:
    async with agent_of("one").session("a") as session:
        await session.run("1")
        forked = await session.fork()
        async with forked:
            *copied, last = forked.events
            assert copied == list(session.events)
            assert isinstance(last, SessionForked)
            assert (last.origin, last.at) == ("a", session.events[-1].seq)


CUTS = [[call("look"), call("look")], [call("look"), "text"], "answer"]


async def test_a_fork_at_any_event_is_a_valid_session_that_can_go_on() -> None:
    async with agent_of(*CUTS, *["next"] * 100) as agent, agent.session("a") as session:
        await session.run("1")
        for event in session.events:
            forked = await session.fork(event.seq)
            async with forked:
                check_history(list(forked.history))
                result = await forked.run("2")
                check_history(list(forked.history))
                numbers = [one.seq for one in forked.events]
                kinds = [kind_of(one) for one in forked.events]
            assert result.text == "next"
            assert numbers == list(range(1, len(numbers) + 1))
            assert kinds.count("turn.start") == kinds.count("turn.end")
            assert kinds.count("model.start") == kinds.count("model.end")
            assert kinds.count("tool.call") == kinds.count("tool.result")


async def test_a_call_that_ran_where_the_fork_was_cut_is_unknown_and_one_that_had_not_begun_was_not_run() -> None:
    async with agent_of([call("look"), call("pay", euro=1)]).session("a") as session:
        await session.run("1")
        began = next(event for event in session.events if kind_of(event) == "tool.start")
        async with await session.fork(began.seq) as forked:
            (message,) = [message for message in forked.history if message.role == "tool"]
    assert [getattr(part, "status", "") for part in message.parts] == ["unknown", "skipped"]


async def test_what_waits_for_a_decision_waits_in_the_first_session_only() -> None:
    async with agent_of([call("pay", euro=5)], "done", "never") as agent, agent.session("a") as session:
        result = await session.run("1")
        async with await session.fork() as forked:
            assert forked.pending == ()
            check_history(list(forked.history))
            with pytest.raises(SessionError, match="no turn to resume"):
                await forked.resume({result.pending[0]: Approve()})
        assert len(session.pending) == 1
        assert (await session.resume({result.pending[0]: Approve()})).text == "done"


async def test_messages_that_wait_are_delivered_in_the_first_session_only() -> None:
    async with agent_of("one", "copy", "first") as agent, agent.session("a") as session:
        await session.run("1")
        await session.steer("wait for me")
        async with await session.fork() as forked:
            await forked.run("2")
            assert texts(forked.history) == ["1", "one", "2", "copy"]
        await session.run("2")
        assert texts(session.history) == ["1", "one", "2", "wait for me", "first"]


async def test_a_running_turn_can_be_forked() -> None:
    forks: list[Any] = []

    async def turn(ctx: TurnContext, call_next: Any) -> Any:
        result = await call_next()
        forks.append(await ctx.session.fork())
        return result

    async with agent_of("one", "two").use(turn) as agent, agent.session("a") as session:
        await session.run("1")
        async with forks[0] as forked:
            assert texts(forked.history) == ["1", "one"]
            last = [event for event in forked.events if kind_of(event) == "turn.end"][-1]
            assert (last.status, last.reason) == ("stopped", "the session was forked here")  # type: ignore[attr-defined]
        assert session.last_result is not None
        assert session.last_result.status == "completed"


@pytest.mark.parametrize("at", [0, -1, 999])
async def test_a_fork_at_no_event_is_refused_and_makes_no_session(at: int) -> None:
    store = MemoryStore()
    async with agent_of("one", store=store).session("a") as session:
        await session.run("1")
        with pytest.raises(SessionError, match=rf"'a' has no event {at}: its events are 1 to \d+"):
            await session.fork(at, id="b")
        async with agent_of(store=store).session("b") as other:
            assert len(other.history) == 0


async def test_a_fork_to_a_session_that_exists_is_refused_and_leaves_it_alone() -> None:
    async with agent_of("one", "two") as agent:
        async with agent.session("a") as session, agent.session("b") as other:
            await session.run("1")
            await other.run("2")
            before = list(other.events)
        with pytest.raises(SessionError, match="there is a session 'b' already"):
            await agent.session("a").fork(id="b")
        async with agent.session("b") as other:
            assert list(other.events) == before


# Undone turns


@attrs.frozen
class Counted:
    count: int = reduced(lambda old, new: old + new, default=0)
    last: str = ""
    key: str = state_field(default="", secret=True)


class Counter(Plugin[Counted]):
    """Counts turns in its state."""

    id: ClassVar = "test.counter"

    async def turn(self, ctx: TurnContext, call_next: Any) -> RunResult[Any]:
        ctx.update(self, count=1, last=ctx.input.text, key=f"key of {ctx.input.text}")
        return await call_next()


async def rebuilt(agent: Agent[Any, Any], live: Any) -> None:
    """Check that a session is the same when it is rebuilt from its log."""
    past = replay(live.events)
    assert past.history == list(live.history)
    assert past.totals.usage == live.usage
    assert past.seq == live.events[-1].seq


async def test_an_undone_turn_is_gone_from_history_and_state_and_stays_in_the_log() -> None:
    counter = Counter()
    async with agent_of("one", "two", "three", "other", plugins=[counter]) as agent, agent.session("a") as session:
        first = await session.run("1")
        second = await session.run("2")
        third = await session.run("3")
        before = list(session.events)
        undone = await session.rewind(second.turn_id)
        assert undone.turns == (second.turn_id, third.turn_id)
        assert undone.input is not None
        assert undone.input.text == "2"
        assert texts(session.history) == ["1", "one"]
        assert (session.state.of(counter).count, session.state.of(counter).last) == (1, "1")
        assert list(session.events)[:-1] == before
        assert isinstance(session.events[-1], SessionRewound)
        assert session.usage.requests == 3
        assert session.last_result is None
        await rebuilt(agent, session)
        again = await session.run("2b")
        assert texts(session.history) == ["1", "one", "2b", "other"]
        assert session.state.of(counter).count == 2
        assert again.turn_id not in (first.turn_id, *undone.turns)
        await rebuilt(agent, session)


async def test_a_session_that_is_opened_again_is_what_it_was_after_the_turn_was_undone() -> None:
    counter = Counter()
    async with agent_of("one", "two", plugins=[counter]) as agent:
        async with agent.session("a") as session:
            await session.run("1")
            await session.run("2")
            await session.rewind()
        async with agent.session("a") as session:
            assert texts(session.history) == ["1", "one"]
            assert (session.state.of(counter).count, session.state.of(counter).last) == (1, "1")
            assert session.usage.requests == 2


async def test_secrets_in_a_state_stay_as_they_are() -> None:
    counter = Counter()
    async with agent_of("one", "two", plugins=[counter]).session("a") as session:
        await session.run("1")
        await session.run("2")
        await session.rewind()
        assert session.state.of(counter).key == "key of 2"


async def test_the_effects_that_cannot_be_undone_are_named() -> None:
    async with agent_of("one", [call("look"), call("pay", euro=3)], "done").session("a") as session:
        await session.run("1")
        result = await session.run("2")
        await session.resume({result.pending[0]: Approve()})
        undone = await session.rewind()
    found = [(effect.turn_id, effect.tool, dict(effect.args), effect.result) for effect in undone.effects]
    assert [(turn, name, args) for turn, name, args, _ in found] == [
        (result.turn_id, "look", {}),
        (result.turn_id, "pay", {"euro": 3}),
    ]
    assert [one.text for *_, one in found if one] == ["seen", "paid 3"]
    assert all(isinstance(effect, Effect) for effect in undone.effects)


async def test_calls_that_never_ran_are_no_effects() -> None:
    async with agent_of([call("look"), call("pay", euro=3)]).session("a") as session:
        await session.run("1")
        undone = await session.rewind()
        assert session.pending == ()
        assert [effect.tool for effect in undone.effects] == ["look"]
        assert len(session.history) == 0


@pytest.mark.parametrize("which", [0, -2, "id"])
async def test_a_turn_is_named_by_its_id_its_index_or_from_the_end(which: Any) -> None:
    async with agent_of("one", "two").session("a") as session:
        first = await session.run("1")
        await session.run("2")
        undone = await session.rewind(first.turn_id if which == "id" else which)
        assert len(undone.turns) == 2
        assert len(session.history) == 0


async def test_turns_can_be_undone_again_and_again() -> None:
    async with agent_of(*"abcdef") as agent, agent.session("a") as session:
        for text in "123":
            await session.run(text)
        await session.rewind()
        await session.run("4")
        await session.rewind(-2)
        assert texts(session.history) == ["1", "a"]
        await rebuilt(agent, session)
        await session.run("5")
        assert texts(session.history) == ["1", "a", "5", "e"]
        await rebuilt(agent, session)


async def test_a_history_that_the_undone_turn_had_cut_is_whole_again() -> None:
    async def turn(ctx: TurnContext, call_next: Any) -> Any:
        if ctx.input.text == "3":
            ctx.history.replace(2, "they talked")
        return await call_next()

    async with agent_of("one", "two", "three").use(turn) as agent:
        async with agent.session("a") as session:
            for text in "123":
                await session.run(text)
            assert texts(session.history)[0].startswith("Summary")
            await session.rewind()
            assert texts(session.history) == ["1", "one", "2", "two"]
            await rebuilt(agent, session)
        async with agent.session("a") as session:
            assert texts(session.history) == ["1", "one", "2", "two"]


async def test_undoing_what_is_not_there_names_what_is() -> None:
    async with agent_of("one", "two").session("a") as session:
        first = await session.run("1")
        second = await session.run("2")
        await session.rewind()
        with pytest.raises(SessionError, match=rf"no turn '{second.turn_id}'.*0 \({first.turn_id}\)"):
            await session.rewind(second.turn_id)
        with pytest.raises(SessionError, match="no turn -2"):
            await session.rewind(-2)
        await session.rewind()
        with pytest.raises(SessionError, match="those are: none"):
            await session.rewind()


async def test_a_running_turn_cannot_be_undone() -> None:
    started = anyio.Event()

    async def slow(request: Any) -> str:
        started.set()
        await anyio.sleep_forever()
        raise AssertionError

    agent: Agent[Any, Any] = Agent(FunctionModel(slow), config=False, autoload="none")
    with at_most(5):
        async with agent.session("a") as session, anyio.create_task_group() as group:
            group.start_soon(session.run, "1")
            await started.wait()
            with pytest.raises(SessionBusyError, match="between turns"):
                await session.rewind()
            group.cancel_scope.cancel()


async def test_a_turn_whose_process_ended_can_be_undone() -> None:
    """The log of such a session ends in the middle of a turn; it is made of the log of a whole one."""
    store = MemoryStore()
    async with agent_of([call("look")], "done", store=store).session("whole") as session:
        await session.run("1")
        events = list(session.events)
    cut = next(place for place, event in enumerate(events) if kind_of(event) == "tool.start")
    log = await store.open("cut")
    for event in events[: cut + 1]:
        log.add(event)
    await log.close()
    agent = agent_of("fresh", store=store)
    async with agent.session("cut") as session:
        undone = await session.rewind()
        assert [(effect.tool, effect.result and effect.result.status) for effect in undone.effects] == [
            ("look", "unknown")
        ]
        assert len(session.history) == 0
        assert (await session.run("2")).text == "fresh"
        kinds = [kind_of(event) for event in session.events]
        assert kinds.count("turn.start") == kinds.count("turn.end")


async def test_a_fork_of_a_session_with_undone_turns_has_them_undone() -> None:
    async with agent_of("one", "two", "three").session("a") as session:
        await session.run("1")
        await session.run("2")
        await session.rewind()
        async with await session.fork() as forked:
            assert texts(forked.history) == ["1", "one"]
            await forked.run("3")
            assert texts(forked.history) == ["1", "one", "3", "three"]


async def test_listeners_hear_that_turns_were_undone() -> None:
    heard: list[Event] = []
    async with agent_of("one").session("a") as session:
        session.on("session.rewound", heard.append)
        await session.run("1")
        undone = await session.rewind()
    assert [event.turns for event in heard if isinstance(event, SessionRewound)] == [undone.turns]
