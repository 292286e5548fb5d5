"""The state of plugins: how it is written, merged, kept and replayed; the log alone rebuilds a session."""

from __future__ import annotations

import contextlib
import types
from collections import deque
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, ClassVar

import anyio
import anyio.lowlevel
import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentx import (
    Agent,
    Event,
    MemoryStore,
    ModelContext,
    ModelRequest,
    ModelResponse,
    OverloadedError,
    Plugin,
    PluginError,
    RunResult,
    Session,
    SessionContext,
    SessionLog,
    StateError,
    StateUpdated,
    TextPart,
    ToolCall,
    ToolContext,
    ToolResult,
    TurnAborted,
    TurnContext,
    Usage,
    reduced,
    state_field,
    tool,
)
from agentx._store import replay
from agentx.builtin.limits import LimitsGuard
from agentx.builtin.retry import Retry
from agentx.testing import FunctionModel, ScriptedModel, call, check_history

from ._rules import agent_with, at_most, last_of, results_of

pytestmark = pytest.mark.anyio


def add(old: Any, new: Any) -> Any:
    return old + new


ZERO = Decimal(0)


@attrs.frozen
class Spending:
    spent: Decimal = reduced(add, default=ZERO)  # noqa: RUF009  # a field specifier, as attrs.field
    calls: tuple[str, ...] = reduced(add, default=())
    last: str = ""
    seen: frozenset[str] = reduced(lambda old, new: old | new, default=frozenset())
    token: str = state_field(default="", secret=True)


class Spender(Plugin[Spending]):
    """Notes every tool call in its state, in fields as a test asks for."""

    id: ClassVar = "context.spender"
    changes: Callable[[ToolContext], dict[str, Any]] = lambda ctx: {"spent": Decimal("0.10")}

    async def tool(self, ctx: ToolContext, call_next: Any) -> ToolResult:
        result: ToolResult = await call_next()
        ctx.update(self, **self.changes(ctx))
        return result


@tool
async def work(name: str = "") -> str:
    await anyio.lowlevel.checkpoint()
    return name


@tool(parallel=False)
async def alone(name: str = "") -> str:
    return name


def calls(count: int, name: str = "work") -> list[ToolCall]:
    return [call(name, name=str(number)) for number in range(count)]


# Writing


async def test_a_reduced_field_is_merged_and_any_other_is_replaced() -> None:
    spender = Spender(changes=lambda ctx: {"spent": Decimal("0.10"), "calls": (ctx.call_id,), "last": ctx.call_id})
    with at_most():
        async with agent_with([calls(1), calls(1), "done"], tools=[work], plugins=[spender]).session() as session:
            assert session.state.of(spender) == Spending()
            await session.run("go")
            state = session.state.of(spender)

    assert state == Spending(Decimal("0.20"), ("c1", "c2"), "c2")
    assert isinstance(state.spent, Decimal)


async def test_reducers_take_updates_of_parallel_calls_and_none_is_lost() -> None:
    spender = Spender(
        changes=lambda ctx: {"spent": Decimal("0.01"), "calls": (ctx.call_id,), "seen": frozenset({ctx.call_id})}
    )
    with at_most():
        async with agent_with([calls(50), "done"], tools=[work], plugins=[spender]).session() as session:
            await session.run("go")
            state = session.state.of(spender)

    assert state.spent == Decimal("0.50")
    assert sorted(state.calls) == sorted([f"c{n + 1}" for n in range(50)])
    assert len(state.seen) == 50


async def test_a_replaced_field_that_overlapping_calls_update_is_an_error_that_names_the_reducer() -> None:
    spender = Spender(changes=lambda ctx: {"last": ctx.call_id})
    with at_most():
        async with agent_with([calls(2), "done"], tools=[work], plugins=[spender]).session() as session:
            with pytest.raises(StateError) as caught:
                await session.run("go")
            results_of(session)
            last_of(session)

    message = str(caught.value)
    assert all(part in message for part in ("context.spender", "last", "reduced("))


@pytest.mark.parametrize("asked", ["one after the other", "barriers", "in two steps"])
async def test_calls_that_do_not_overlap_may_replace_a_field(asked: str) -> None:
    script: list[Any] = {
        "one after the other": [[call("alone"), call("work"), call("alone")], "done"],
        "barriers": [calls(3, "alone"), "done"],
        "in two steps": [calls(1), calls(1), "done"],
    }[asked]
    spender = Spender(changes=lambda ctx: {"last": ctx.call_id})
    with at_most():
        async with agent_with(script, tools=[work, alone], plugins=[spender]).session() as session:
            result = await session.run("go")
            state = session.state.of(spender)

    assert result.output == "done"
    assert state.last == f"c{2 if asked == 'in two steps' else 3}"


async def test_one_call_may_replace_a_field_twice() -> None:
    class Twice(Plugin[Spending]):
        id: ClassVar = "context.twice"

        async def tool(self, ctx: ToolContext, call_next: Any) -> ToolResult:
            ctx.update(self, last=f"{ctx.call_id} before")
            result: ToolResult = await call_next()
            if ctx.call_id == "c1":
                ctx.update(self, last=f"{ctx.call_id} after")
            return result

    twice = Twice()
    with at_most():
        async with agent_with([call("work"), "done"], tools=[work], plugins=[twice]).session() as session:
            await session.run("go")
            assert session.state.of(twice).last == "c1 after"


async def test_an_unknown_field_is_an_error_that_names_it() -> None:
    spender = Spender(changes=lambda ctx: {"spend": 1})
    with at_most():
        async with agent_with([calls(1)], tools=[work], plugins=[spender]).session() as session:
            with pytest.raises(StateError, match="spend"):
                await session.run("go")
            assert session.state.of(spender) == Spending()


async def test_an_update_is_all_or_nothing() -> None:
    spender = Spender(changes=lambda ctx: {"last": "x", "nothing": 1})
    with at_most():
        async with agent_with([calls(1)], tools=[work], plugins=[spender]).session() as session:
            with pytest.raises(StateError):
                await session.run("go")
            assert session.state.of(spender) == Spending()
            assert not [event for event in session.events if isinstance(event, StateUpdated)]


async def test_state_itself_cannot_be_changed() -> None:
    spender = Spender()
    with at_most():
        async with agent_with(["done"], plugins=[spender]).session() as session:
            with pytest.raises(attrs.exceptions.FrozenInstanceError):
                session.state.of(spender).last = "x"


async def test_a_plugin_without_state_says_how_to_declare_it() -> None:
    class Plain(Plugin):
        id: ClassVar = "context.plain"

        async def turn(self, ctx: TurnContext, call_next: Any) -> RunResult[Any]:
            ctx.update(self, count=1)
            result: RunResult[Any] = await call_next()
            return result

    with at_most(), pytest.raises(StateError, match=r"Plain\(Plugin\["):
        await agent_with(["x"], plugins=[Plain()]).run("go")


# What a state may be


def make_state(annotation: Any, default: Any) -> Any:
    return attrs.make_class("S", {"items": attrs.field(default=default, type=annotation)}, frozen=True)


@pytest.mark.parametrize(
    ("annotation", "better"),
    [
        (list, "tuple"),
        (list[int], "tuple"),
        (dict, "mapping"),
        (dict[str, int], "mapping"),
        (set, "frozenset"),
        (set[str], "frozenset"),
        (list[int] | None, "tuple"),
        (tuple[list[int], ...], "tuple"),
    ],
    ids=str,
)
def test_a_state_with_a_container_that_changes_is_refused_with_a_better_one(annotation: Any, better: str) -> None:
    state = make_state(annotation, None)
    with pytest.raises(StateError, match=better) as caught:
        types.new_class("P", (Plugin[state],), exec_body=lambda body: body.update(id="context.p"))  # type: ignore[valid-type]
    assert "items" in str(caught.value)


def test_a_state_field_needs_a_default() -> None:
    @attrs.frozen
    class NoDefault:
        count: int

    with pytest.raises(StateError, match="count"):

        class P(Plugin[NoDefault]):
            id: ClassVar = "context.p"


def test_a_state_must_be_an_attrs_class() -> None:
    class Plain:
        count: int = 0

    with pytest.raises(StateError, match="attrs"):

        class P(Plugin[Plain]):
            id: ClassVar = "context.p"


def test_a_state_must_be_frozen() -> None:
    @attrs.define
    class Open:
        count: int = 0

    with pytest.raises((StateError, PluginError), match="frozen"):

        class P(Plugin[Open]):
            id: ClassVar = "context.p"


# Secrets


async def test_a_secret_field_lives_in_the_state_and_is_in_no_event() -> None:
    spender = Spender(changes=lambda ctx: {"token": "hunter2", "last": "x"})
    store = MemoryStore()
    heard: list[Event] = []
    with at_most():
        agent = agent_with([calls(1), "done"], tools=[work], plugins=[spender], store=store)
        async with agent.session(id="s") as session:
            session.on("*", heard.append)
            await session.run("go")
            assert session.state.of(spender).token == "hunter2"
            assert session.state.of(spender).last == "x"
            assert "hunter2" not in repr(session.events) + repr(heard)
        async with agent_with([], plugins=[spender], store=store).session(id="s") as session:
            assert session.state.of(spender).last == "x"
            assert session.state.of(spender).token == ""


# Keeping


async def test_state_survives_reopening_in_a_fresh_agent() -> None:
    changes: Any = lambda ctx: {  # noqa: E731  # a field's value
        "spent": Decimal("0.10"),
        "calls": (ctx.call_id,),
        "last": ctx.call_id,
        "seen": frozenset({ctx.call_id}),
    }
    store = MemoryStore()
    with at_most():
        first = Spender(changes=changes)
        agent = agent_with([calls(1), "done"], tools=[work], plugins=[first], store=store)
        async with agent.session(id="s", user="u") as session:
            await session.run("go")
            before = session.state.of(first)
        second = Spender(changes=changes)
        agent = agent_with([calls(1), "done"], tools=[work], plugins=[second], store=store)
        async with agent.session(id="s", user="u") as session:
            assert session.state.of(second) == before
            await session.run("go")
            after = session.state.of(second)

    assert after.spent == Decimal("0.20")
    assert len(after.calls) == 2


async def test_state_survives_a_time_in_which_its_plugin_is_not_there() -> None:
    store = MemoryStore()
    with at_most():
        spender = Spender()
        async with agent_with([calls(1), "1"], tools=[work], plugins=[spender], store=store).session(id="s") as session:
            await session.run("go")
        async with agent_with(["2"], store=store).session(id="s") as session:
            await session.run("go")
        async with agent_with([], plugins=[spender], store=store).session(id="s") as session:
            assert session.state.of(spender).spent == Decimal("0.10")


async def test_every_update_is_an_event_with_the_resulting_value() -> None:
    spender = Spender()
    with at_most():
        async with agent_with([calls(3), "done"], tools=[work], plugins=[spender]).session() as session:
            await session.run("go")
            updates = [(e.plugin, dict(e.values)) for e in session.events if isinstance(e, StateUpdated)]

    assert updates == [("context.spender", {"spent": Decimal(f"0.{n}0")}) for n in (1, 2, 3)]


async def test_state_that_was_written_before_a_turn_broke_is_kept() -> None:
    @tool
    async def boom(ctx: ToolContext) -> str:
        ctx.abort("no")

    spender = Spender()
    with at_most():
        agent = agent_with([[call("alone"), call("boom")]], tools=[alone, boom], plugins=[spender])
        async with agent.session() as session:
            with pytest.raises(TurnAborted):
                await session.run("go")
            assert session.state.of(spender).spent == Decimal("0.10")


async def test_sessions_have_states_of_their_own() -> None:
    spender = Spender()
    agent = agent_with(
        FunctionModel(lambda r: calls(len(r.messages[0].text)) if len(r.messages) < 3 else "done"),
        tools=[work],
        plugins=[spender],
    )
    spent: dict[int, Decimal] = {}
    with at_most():
        async with agent, anyio.create_task_group() as group:

            async def talk(count: int) -> None:
                async with agent.session() as session:
                    await session.run("x" * count)
                    spent[count] = session.state.of(spender).spent

            for count in range(1, 21):
                group.start_soon(talk, count)

    assert spent == {count: Decimal("0.10") * count for count in range(1, 21)}


async def test_two_instances_of_a_plugin_have_states_of_their_own() -> None:
    one, two = Spender(changes=lambda ctx: {"last": "one"}), Spender(changes=lambda ctx: {"last": "two"})
    agent = agent_with([calls(1), "done"], tools=[work]).use(one).use(two, name="second")
    with at_most():
        async with agent.session() as session:
            await session.run("go")
            assert (session.state.of(one).last, session.state.of(two).last) == ("one", "two")
            assert {e.plugin for e in session.events if isinstance(e, StateUpdated)} == {
                "context.spender",
                "context.spender#second",
            }


async def test_state_can_be_written_while_the_session_opens_and_closes() -> None:
    class Openings(Plugin[Spending]):
        id: ClassVar = "context.openings"

        async def session(self, ctx: SessionContext, call_next: Any) -> None:
            ctx.update(self, calls=("opened again" if ctx.is_resumed else "opened",))
            await call_next()
            ctx.update(self, calls=("closed",))

    store, plugin = MemoryStore(), Openings()
    with at_most():
        async with agent_with([], plugins=[plugin], store=store).session(id="s") as session:
            assert session.state.of(plugin).calls == ("opened",)
        async with agent_with([], plugins=[plugin], store=store).session(id="s") as session:
            assert session.state.of(plugin).calls == ("opened", "closed", "opened again")


# The log alone rebuilds history, state and usage


@attrs.frozen
class Seen:
    tools: int = reduced(add, default=0)
    models: int = reduced(add, default=0)
    last_turn: int = -1


class Watcher(Plugin[Seen]):
    """Counts calls in its state, also those of sub-agents, and denies every call of `pay`."""

    id: ClassVar = "guard.watcher"
    phase: ClassVar = "verify"

    async def turn(self, ctx: TurnContext, call_next: Any) -> RunResult[Any]:
        ctx.update(self, last_turn=ctx.turn_index)
        result: RunResult[Any] = await call_next()
        return result

    async def model(self, ctx: ModelContext, call_next: Any) -> ModelResponse:
        ctx.update(self, models=1)
        response: ModelResponse = await call_next()
        return response

    async def tool(self, ctx: ToolContext, call_next: Any) -> ToolResult:
        if ctx.tool.name == "pay":
            return ctx.deny("too much")
        result: ToolResult = await call_next()
        ctx.update(self, tools=1)
        return result


@tool
async def good() -> str:
    await anyio.lowlevel.checkpoint()
    return "good"


@tool
def sync() -> str:
    return "sync"


@tool
async def boom() -> str:
    raise ValueError("boom")


@tool
async def pay() -> str:
    return "paid"


@tool
async def abort(ctx: ToolContext) -> str:
    ctx.abort("enough")


@tool
async def stop(ctx: ToolContext) -> str:
    ctx.stop("stopped by a tool")
    return "stopping"


@tool(parallel=False)
async def barrier() -> str:
    return "barrier"


@tool
async def forget(ctx: ToolContext) -> str:
    ctx.history.replace(len(ctx.history.exchanges), "what was")
    return "forgotten"


TOOLS = [good, sync, boom, pay, abort, stop, barrier, forget]
NAMES = [*[item.name for item in TOOLS], "unknown", "helper"]

step = st.one_of(
    st.lists(st.sampled_from(NAMES), min_size=1, max_size=4),
    st.sampled_from(["overloaded", "bad arguments", "truncated", "pause", "fails"]),
)


@attrs.frozen
class Turn:
    """What the model does in a turn, and the stored event at which the turn is cancelled."""

    steps: Sequence[Any]
    cancel_at: int | None = None


turns = st.lists(
    st.builds(Turn, st.lists(step, max_size=4), st.none() | st.integers(1, 25)),
    min_size=1,
    max_size=3,
)


def reply_to(step: Any) -> Any:
    if step == "overloaded":
        return OverloadedError("busy", usage=Usage(1, 0))
    if step == "fails":
        return ValueError("bug")
    if step == "bad arguments":
        return [call("good", "[1]"), call("good")]
    if step == "truncated":
        return ModelResponse((TextPart("cut"), ToolCall("t", "good")), "max_tokens", usage=Usage(2, 2))
    if step == "pause":
        return ModelResponse((TextPart("wait"),), "pause_turn", usage=Usage(2, 2))
    return [call(name, task="help") if name == "helper" else call(name) for name in step]


class CheckedLog:
    """A durable log that checks the live session whenever it is committed."""

    is_durable = True

    def __init__(self, log: SessionLog, checks: list[Callable[[], None]]) -> None:
        self.events = log.events
        self.add = log.add
        self.checks = checks

    async def commit(self, point: str) -> None:
        for check in self.checks:
            check()

    async def close(self) -> None:
        """Nothing to close."""


class CheckedStore(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.checks: list[Callable[[], None]] = []

    async def open(self, session_id: str) -> SessionLog:
        log = await super().open(session_id)
        return CheckedLog(log, self.checks) if "/" not in session_id else log


def is_replayed(session: Session[str], watcher: Watcher) -> None:
    """Check that the live session is what its log says.

    The one message with the results of a step enters the live history when the step is closed, so it may be behind.
    """
    replayed = replay(session.events)
    history = list(session.history)
    assert replayed.history[: len(history)] == history
    assert [message.role for message in replayed.history[len(history) :]] in ([], ["tool"])
    assert session.usage == replayed.totals.usage
    assert session.state.of(watcher) == Seen(**replayed.state.get(watcher.id, {}))
    assert [event.seq for event in session.events] == list(range(1, len(session.events) + 1))


def playing(queue: deque[Any], store: MemoryStore, watcher: Watcher) -> Agent[Any, str]:
    """Return an agent whose model does what is in `queue`, and has a sub-agent."""
    number = 0

    def reply(request: ModelRequest) -> Any:
        nonlocal number
        number += 1
        return reply_to(queue.popleft()) if queue else f"answer {number}"

    helping = FunctionModel(lambda r: [call("good"), call("boom")] if len(r.messages) < 3 else "helped")
    helper = agent_with(helping, tools=[good, boom], name="helper")
    plugins = [LimitsGuard(requests=12), Retry(base_delay=0.0, attempts=2), watcher]
    return agent_with(FunctionModel(reply), tools=[*TOOLS, helper.as_tool()], plugins=plugins, store=store)


async def play(script: Sequence[Turn], store: MemoryStore, *, listen: bool = False) -> None:
    """Run turns and check the session all the time: when a listener hears something, or when the log is committed."""
    queue: deque[Any] = deque()
    watcher = Watcher()
    problems: list[AssertionError] = []

    def check(event: Event | None = None) -> None:
        try:
            is_replayed(session, watcher)
        except AssertionError as error:
            problems.append(error)

    async with playing(queue, store, watcher).session(id="s", user="u") as session:
        if isinstance(store, CheckedStore):
            store.checks.append(check)
        if listen:
            session.on("*", check)
        for turn in script:
            queue.clear()
            queue.extend(turn.steps)
            end = session.on("*", canceller(session, turn.cancel_at))
            with contextlib.suppress(TurnAborted, ValueError, OverloadedError):
                await session.run("go")
            end()
            check()
            last_of(session)
            check_history(session.history)
        assert list(session.history) == replay(session.events).history
        events, history, state, usage = session.events, list(session.history), session.state.of(watcher), session.usage
    assert problems == []
    if isinstance(store, CheckedStore):
        store.checks.clear()
    again = Watcher()
    async with agent_with(ScriptedModel(["here"]), plugins=[again], store=store).session(id="s", user="u") as session:
        assert (list(session.history), session.usage) == (history, usage)
        assert session.events[: len(events)] == events
        assert session.state.of(again) == state
        assert (await session.run("still there?")).output == "here"


def canceller(session: Session[str], at: int | None) -> Callable[[Event], None]:
    """Return a listener that cancels the turn at its stored event number `at`."""
    start = len(session.events)

    def cancel(event: Event) -> None:
        if at is not None and event.seq >= start + at:
            session.cancel()

    return cancel


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("listen", [False, True], ids=["at commit points", "when listeners hear"])
def test_the_live_session_is_always_what_its_log_replays(backend: str, listen: bool) -> None:
    @settings(max_examples=30)
    @given(turns)
    def check(script: Sequence[Turn]) -> None:
        async def bounded() -> None:
            with anyio.fail_after(10):
                await play(script, MemoryStore() if listen else CheckedStore(), listen=listen)

        anyio.run(bounded, backend=backend)

    check()


@pytest.mark.parametrize("at", range(1, 24))
async def test_a_cancel_at_any_stored_event_leaves_a_valid_history(at: int) -> None:
    with at_most():
        await play([Turn([["good", "pay"], ["helper", "good"]], at), Turn([["good"]])], MemoryStore(), listen=True)
