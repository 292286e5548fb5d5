"""Turns that pause for a decision, that are steered, or whose process ended: nothing is lost, nothing runs twice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from agentx import (
    Agent,
    ApprovalDecided,
    ApprovalError,
    Approve,
    Deny,
    Edit,
    Event,
    MemoryStore,
    ModelRequest,
    PendingCall,
    Respond,
    SessionContext,
    SessionError,
    SessionPausedError,
    ToolContext,
    ToolResult,
    TurnContext,
    TurnEnd,
    hookimpl,
    kind_of,
    tool,
)
from agentx.testing import FunctionModel, ScriptedModel, call, check_history

from ._rules import at_most

ASK = [call("pay", euro=5), call("look")]


class Bank:
    """Tools with effects that can be counted."""

    def __init__(self) -> None:
        self.paid: list[int] = []
        self.looks = 0

    @property
    def tools(self) -> list[Any]:
        @tool(requires_approval=True)
        async def pay(euro: int) -> str:
            """Pay."""
            self.paid.append(euro)
            return f"paid {euro}"

        @tool
        async def look() -> str:
            """Look."""
            self.looks += 1
            return "seen"

        return [pay, look]


def agent_of(*answers: Any, **options: Any) -> Agent[Any, Any]:
    return Agent(ScriptedModel(list(answers)), config=False, autoload="none", **options)


def results_of(session: Any) -> dict[str, tuple[str, str]]:
    parts = [part for message in session.history if message.role == "tool" for part in message.parts]
    return {part.name: (part.status, part.text) for part in parts if isinstance(part, ToolResult)}


async def paused(agent: Agent[Any, Any], session: Any) -> str:
    """Run a turn that pauses and return the call that waits."""
    result = await session.run("go")
    assert (result.status, len(result.pending)) == ("paused", 1)
    assert [pending.call_id for pending in session.pending] == list(result.pending)
    return str(result.pending[0])


# Pausing


async def test_a_call_that_waits_does_not_run_and_its_siblings_do() -> None:
    bank = Bank()
    async with agent_of(ASK, "never", tools=bank.tools).session() as session:
        waiting = await paused(agent_of(), session)
        assert (bank.paid, bank.looks) == ([], 1)
        (pending,) = session.pending
        assert (pending.tool, dict(pending.args), pending.by) == ("pay", {"euro": 5}, "tool pay")
        assert pending.call_id == waiting
        assert session.history[-1].role == "assistant"


DECISIONS: dict[str, tuple[Any, list[int], tuple[str, str]]] = {
    "approve": (Approve(by="ann"), [5], ("ok", "paid 5")),
    "deny": (Deny("too much", by="ann"), [], ("denied", "denied: too much")),
    "edit": (Edit({"euro": 2}), [2], ("ok", "paid 2")),
    "respond": (Respond("paid by hand"), [], ("ok", "paid by hand")),
    "edit to nonsense": (Edit({"euro": "much"}), [], ("error", "invalid arguments")),
}


@pytest.mark.parametrize("kind", DECISIONS)
@pytest.mark.parametrize("reopened", [False, True])
async def test_a_decision_brings_the_call_to_its_result_and_the_turn_to_its_end(kind: str, reopened: bool) -> None:
    decision, paid, (status, text) = DECISIONS[kind]
    bank, store = Bank(), MemoryStore()
    async with agent_of(ASK, "done", tools=bank.tools, store=store) as agent:
        async with agent.session("s") as session:
            waiting = await paused(agent, session)
            if not reopened:
                result = await session.resume({waiting: decision})
        if reopened:
            result = await agent.session("s").resume({waiting: decision})
        async with agent.session("s") as session:
            assert session.pending == ()
            found = results_of(session)
            check_history(list(session.history))
            kinds = [kind_of(event) for event in session.events]
    assert (result.status, result.text) == ("completed", "done")
    assert bank.paid == paid
    assert bank.looks == 1
    assert found["pay"][0] == status
    assert text in found["pay"][1]
    assert kinds.count("turn.start") == kinds.count("turn.end") == 2
    assert kinds.count("approval.decided") == 1


async def test_a_resumed_turn_is_the_same_turn() -> None:
    bank = Bank()
    async with agent_of(ASK, "done", tools=bank.tools).session() as session:
        first = await session.run("go")
        result = await session.resume({first.pending[0]: Approve()})
        assert result.turn_id == first.turn_id
        assert [message.role for message in result.messages] == ["user", "assistant", "tool", "assistant"]
        assert result.usage.requests == 2
        assert session.usage.requests == 2
        assert [event.turn_id for event in session.events if event.turn_id] == [first.turn_id] * (
            len(session.events) - 1
        )


async def test_layers_of_a_resumed_turn_know_it_and_settled_calls_do_not_enter_theirs_again() -> None:
    entered: list[str] = []

    async def turn(ctx: TurnContext, call_next: Any) -> Any:
        entered.append(f"turn {ctx.is_resumed}")
        return await call_next()

    async def around(ctx: ToolContext, call_next: Any) -> Any:
        entered.append(f"{ctx.tool.name} {ctx.is_resumed}")
        return await call_next()

    bank = Bank()
    async with agent_of(ASK, "done", tools=bank.tools).use(turn).use(tool=around).session() as session:
        waiting = await paused(agent_of(), session)
        await session.resume({waiting: Approve()})
    assert entered[0] == "turn False"
    assert sorted(entered[1:3]) == ["look False", "pay False"]
    assert entered[3:] == ["turn True", "pay True"]


async def test_calls_behind_a_waiting_barrier_wait_too() -> None:
    order: list[str] = []

    @tool(parallel=False, requires_approval=True)
    async def first() -> str:
        """First."""
        order.append("first")
        return "1"

    @tool
    async def second() -> str:
        """Second."""
        order.append("second")
        return "2"

    agent = agent_of([call("first"), call("second")], "done", tools=[first, second])
    async with agent.session() as session:
        result = await session.run("go")
        assert len(result.pending) == 2
        assert [pending.tool for pending in session.pending] == ["first"]
        assert order == []
        await session.resume({result.pending[0]: Approve()})
    assert order == ["first", "second"]


async def test_calls_without_a_decision_go_on_waiting_without_being_asked_again() -> None:
    bank = Bank()
    asked: list[str] = []

    async def around(ctx: ToolContext, call_next: Any) -> Any:
        asked.append(ctx.call_id)
        return await call_next()

    agent = agent_of([call("pay", euro=1), call("pay", euro=2)], "done", tools=bank.tools).use(tool=around)
    async with agent.session() as session:
        first = await session.run("go")
        again = await session.resume({first.pending[1]: Approve()})
        assert (again.status, again.pending) == ("paused", (first.pending[0],))
        assert bank.paid == [2]
        await session.resume({first.pending[0]: Approve()})
    assert bank.paid == [2, 1]
    assert sorted(asked[:2]) == sorted(first.pending)
    assert asked[2:] == [first.pending[1], first.pending[0]]


async def test_a_layer_may_ask_and_who_resumes_may_edit_what_it_sees() -> None:
    seen: list[Any] = []

    async def guard(ctx: ToolContext, call_next: Any) -> Any:
        await ctx.require_approval("it looks risky", expires=60)
        seen.append(dict(ctx.args))
        return await call_next()

    @tool
    async def pay(euro: int) -> str:
        """Pay."""
        return f"paid {euro}"

    async with (
        agent_of([call("pay", euro=5)], "done", tools=[pay]).use(tool=guard, phase="verify").session() as session
    ):
        result = await session.run("go")
        (pending,) = session.pending
        assert (pending.reason, pending.by) == ("it looks risky", "function.guard")
        assert pending.expires is not None
        await session.resume({result.pending[0]: Edit({"euro": 1})})
        assert results_of(session)["pay"] == ("ok", "paid 1")
    assert seen == [{"euro": 1}]


async def test_one_approval_holds_for_all_who_ask_about_the_same_call() -> None:
    async def guard(ctx: ToolContext, call_next: Any) -> Any:
        await ctx.require_approval("me too")
        return await call_next()

    bank = Bank()
    async with agent_of([call("pay", euro=5)], "done", tools=bank.tools).use(tool=guard).session() as session:
        waiting = await paused(agent_of(), session)
        assert (await session.resume({waiting: Approve()})).status == "completed"
    assert bank.paid == [5]


async def test_a_layer_cannot_make_a_result_of_a_call_that_waits() -> None:
    class Swallows:
        @hookimpl(repeats=True)
        async def tool(self, ctx: ToolContext, call_next: Any) -> ToolResult:
            try:
                result: ToolResult = await call_next()
            except BaseException:
                result = ToolResult(ctx.call_id, ctx.tool.name)
            return result

    bank = Bank()
    async with (
        agent_of([call("pay", euro=5)], "never", tools=bank.tools).use(tool=Swallows().tool).session() as session
    ):
        await paused(agent_of(), session)
    assert bank.paid == []


# Decisions that are none


@pytest.mark.parametrize("decision", ["approve", True, None, {"decision": "approve"}])
async def test_text_and_other_things_are_no_decisions(decision: Any) -> None:
    bank = Bank()
    async with agent_of(ASK, tools=bank.tools).session() as session:
        waiting = await paused(agent_of(), session)
        with pytest.raises(ApprovalError, match="is no decision"):
            await session.resume({waiting: decision})
        assert [pending.call_id for pending in session.pending] == [waiting]
    assert bank.paid == []


async def test_a_decision_about_another_call_decides_nothing() -> None:
    bank = Bank()
    async with agent_of(ASK, "done", tools=bank.tools).session() as session:
        waiting = await paused(agent_of(), session)
        with pytest.raises(ApprovalError, match="no call 'other' waits"):
            await session.resume({waiting: Approve(), "other": Approve()})
        assert bank.paid == []
        await session.resume({waiting: Approve()})
        with pytest.raises(SessionError, match="no turn to resume"):
            await session.resume({waiting: Approve()})
    assert bank.paid == [5]


async def test_a_decision_is_bound_to_the_arguments_that_were_asked_about() -> None:
    """A layer that changes the arguments differently when the turn goes on makes the decision stale: it asks anew."""
    euros = iter([5, 5000])

    async def changes(ctx: ToolContext, call_next: Any) -> Any:
        ctx.args = {"euro": next(euros)}
        return await call_next()

    bank = Bank()
    async with agent_of([call("pay", euro=1)], tools=bank.tools).use(tool=changes).session() as session:
        waiting = await paused(agent_of(), session)
        again = await session.resume({waiting: Approve()})
        assert again.status == "paused"
        assert dict(session.pending[0].args) == {"euro": 5000}
    assert bank.paid == []


async def test_an_approval_whose_time_is_over_is_a_denial() -> None:
    async def guard(ctx: ToolContext, call_next: Any) -> Any:
        await ctx.require_approval("quick", expires=0.0)
        return await call_next()

    async with agent_of([call("look")], "done", tools=Bank().tools).use(tool=guard).session() as session:
        waiting = await paused(agent_of(), session)
        await session.resume({waiting: Approve()})
        assert results_of(session)["look"][0] == "denied"


async def test_a_paused_session_takes_no_turn_unless_its_calls_are_denied() -> None:
    bank = Bank()
    async with agent_of(ASK, "fine", tools=bank.tools).session() as session:
        await paused(agent_of(), session)
        with pytest.raises(SessionPausedError, match="resume"):
            await session.run("next")
        assert (await session.run("next", pending="deny")).text == "fine"
        assert results_of(session)["pay"][0] == "denied"
        check_history(list(session.history))
        assert session.pending == ()
    assert bank.paid == []


# Deciding in this process


class Asked:
    def __init__(self, *decisions: Any) -> None:
        self.decisions = list(decisions)
        self.calls: list[PendingCall] = []

    async def decide(self, call: PendingCall) -> Any:
        self.calls.append(call)
        await anyio.lowlevel.checkpoint()
        return self.decisions.pop(0)


class Sleeps:
    """Somebody who does not answer."""

    async def decide(self, call: PendingCall) -> Any:
        await anyio.sleep_forever()


def deciding(asked: Any) -> Callable[..., Any]:
    from agentx import Approver

    async def provides(ctx: SessionContext, call_next: Any) -> None:
        ctx.provide(Approver, asked)
        await call_next()

    return provides


@pytest.mark.parametrize("kind", DECISIONS)
async def test_an_approver_in_this_process_decides_without_a_pause(kind: str) -> None:
    decision, paid, (status, text) = DECISIONS[kind]
    bank, asked = Bank(), Asked(decision)
    async with agent_of(ASK, "done", tools=bank.tools).use(session=deciding(asked)).session() as session:
        assert (await session.run("go")).status == "completed"
        assert results_of(session)["pay"][0] == status
        assert text in results_of(session)["pay"][1]
    assert bank.paid == paid
    assert [pending.tool for pending in asked.calls] == ["pay"]


async def test_an_approver_that_cannot_decide_now_pauses_the_turn() -> None:
    bank = Bank()
    async with agent_of(ASK, "done", tools=bank.tools).use(session=deciding(Asked(None))).session() as session:
        waiting = await paused(agent_of(), session)
        assert (await session.resume({waiting: Approve()})).status == "completed"


async def test_an_approver_that_answers_nonsense_approves_nothing() -> None:
    bank = Bank()
    async with agent_of(ASK, tools=bank.tools).use(session=deciding(Asked("yes"))).session() as session:
        with pytest.raises(ApprovalError):
            await session.run("go")
    assert bank.paid == []


async def test_an_approver_that_does_not_answer_in_time_has_denied() -> None:
    async def guard(ctx: ToolContext, call_next: Any) -> Any:
        await ctx.require_approval("quick", expires=0.01)
        return await call_next()

    bank = Bank()
    agent = agent_of([call("look")], "done", tools=bank.tools).use(session=deciding(Sleeps())).use(tool=guard)
    async with agent.session() as session:
        assert (await session.run("go")).status == "completed"
        assert results_of(session)["look"] == ("denied", "denied: the time to approve it is over")
    assert bank.looks == 0


# What else a decision is bound to


async def asks(ctx: ToolContext, call_next: Any) -> Any:
    decision = await ctx.require_approval("why not", scopes=("session",), covers="all looks")
    ctx.emit("decided", decision=type(decision).__name__, scope=getattr(decision, "scope", ""))
    return await call_next()


async def test_an_approval_may_hold_for_longer_where_the_asking_layer_says_so() -> None:
    async with agent_of([call("look")], "done", tools=Bank().tools).use(tool=asks).session() as session:
        waiting = await paused(agent_of(), session)
        assert (session.pending[0].scopes, session.pending[0].covers) == (("session",), "all looks")
        with pytest.raises(ApprovalError, match="holds 'once' or 'session', not 'always'"):
            await session.resume({waiting: Approve(scope="always")})
        await session.resume({waiting: Approve(scope="session")})
        (event,) = [event for event in session.events if kind_of(event) == "plugin.function.asks.decided"]
        (decided,) = [event for event in session.events if isinstance(event, ApprovalDecided)]
    assert event.data == {"decision": "Approve", "scope": "session"}  # type: ignore[attr-defined]  # the kind says so
    assert decided.scope == "session"


@pytest.mark.parametrize("decision", [Approve, Deny, partial(Edit, {"euro": 1}), partial(Respond, "paid")])
async def test_a_decision_may_say_what_was_shown_and_is_refused_where_that_has_changed(
    decision: Any, caplog: pytest.LogCaptureFixture
) -> None:
    bank = Bank()
    async with agent_of(ASK, "done", tools=bank.tools).session("s") as session:
        waiting = await paused(agent_of(), session)
        with pytest.raises(ApprovalError, match="other arguments"):
            await session.resume({waiting: decision(fingerprint="of something else")})
        assert bank.paid == []
        assert "session 's' refused a decision" in caplog.text
        fingerprint = session.pending[0].fingerprint
        assert (await session.resume({waiting: decision(fingerprint=fingerprint)})).status == "completed"


@pytest.mark.parametrize("decision", [Approve(), Edit({}), Respond("seen")])
async def test_only_a_denial_comes_in_time_when_the_time_is_over(decision: Any) -> None:
    async def guard(ctx: ToolContext, call_next: Any) -> Any:
        await ctx.require_approval("quick", expires=0.0)
        return await call_next()

    bank = Bank()
    async with agent_of([call("look")], "done", tools=bank.tools).use(tool=guard).session() as session:
        await session.resume({await paused(agent_of(), session): decision})
        assert results_of(session)["look"][0] == "denied"
    assert bank.looks == 0


# Sub-agents


async def test_a_sub_agents_call_waits_in_the_session_of_its_caller() -> None:
    bank, store = Bank(), MemoryStore()
    child = agent_of([call("pay", euro=5)], "child done", tools=bank.tools, name="child")
    parent = agent_of([call("child", task="pay")], "all done", tools=[child.as_tool()], store=store)
    async with parent, parent.session("s") as session:
        result = await session.run("go")
        assert result.status == "paused"
        (pending,) = session.pending
        assert pending.call_id == f"{result.pending[0]}/{pending.call_id.partition('/')[2]}"
        assert pending.tool == "pay"
        final = await session.resume({pending.call_id: Approve()})
    assert (final.status, final.text) == ("completed", "all done")
    assert bank.paid == [5]


# Steering


def waiting_model(*answers: Any) -> tuple[FunctionModel, anyio.Event, anyio.Event]:
    """Return a model whose first answer waits, the event that says it has begun, and the one that lets it go on."""
    begun, go = anyio.Event(), anyio.Event()
    left = list(answers)

    async def reply(request: ModelRequest) -> Any:
        if not begun.is_set():
            begun.set()
            await go.wait()
        return left.pop(0)

    return FunctionModel(reply), begun, go


async def test_what_is_steered_reaches_the_next_model_call_once_and_in_order() -> None:
    model, begun, go = waiting_model([call("look")], "done")
    agent: Agent[Any, Any] = Agent(model, tools=Bank().tools, config=False, autoload="none")
    results: list[Any] = []
    with at_most():
        async with agent.session() as session, anyio.create_task_group() as group:

            async def run() -> None:
                results.append(await session.run("go"))

            group.start_soon(run)
            await begun.wait()
            for text in ("same", "same", "other"):
                await session.steer(text)
            go.set()
        texts = [message.text for message in model.requests[1].messages if message.role == "user"]
    assert texts == ["go", "same", "same", "other"]
    assert results[0].text == "done"


async def test_what_is_steered_during_the_last_answer_is_still_answered() -> None:
    model, begun, go = waiting_model("first", "second")
    agent: Agent[Any, Any] = Agent(model, config=False, autoload="none")
    with at_most():
        async with agent.session() as session, anyio.create_task_group() as group:
            group.start_soon(session.run, "go")
            await begun.wait()
            await session.steer("wait")
            go.set()
        assert model.requests[1].messages[-1].text == "wait"


async def test_an_interrupting_message_stops_the_running_call_and_the_turn_goes_on() -> None:
    stopped: list[str] = []

    @tool
    async def long() -> str:
        """Take long."""
        try:
            await anyio.sleep_forever()
        finally:
            stopped.append("long")
        return "never"

    begun = anyio.Event()

    async def around(ctx: ToolContext, call_next: Any) -> Any:
        begun.set()
        return await call_next()

    agent = agent_of([call("long")], "as you wish", tools=[long]).use(tool=around)
    results: list[Any] = []
    with at_most():
        async with agent.session() as session, anyio.create_task_group() as group:

            async def run() -> None:
                results.append(await session.run("go"))

            group.start_soon(run)
            await begun.wait()
            await session.steer("stop that", interrupt=True)
            while not results:
                await anyio.sleep(0.001)
            history = list(session.history)
    assert stopped == ["long"]
    assert results[0].text == "as you wish"
    assert [message.role for message in history] == ["user", "assistant", "tool", "user", "assistant"]
    check_history(history)


async def test_what_was_steered_survives_an_abort_and_reaches_the_next_turn() -> None:
    model, begun, go = waiting_model("never", "fine")
    agent: Agent[Any, Any] = Agent(model, config=False, autoload="none")
    with at_most():
        async with agent.session() as session:
            async with anyio.create_task_group() as group:

                async def run() -> None:
                    with pytest.raises(Exception, match="cancel"):
                        await session.run("go")

                group.start_soon(run)
                await begun.wait()
                await session.steer("remember")
                session.cancel()
            go.set()
            assert (await session.run("next")).text in ("never", "fine")
            assert "remember" in [message.text for message in model.requests[1].messages]


async def test_a_follow_up_gets_a_turn_of_its_own_after_the_running_one() -> None:
    model, begun, go = waiting_model("one", "two")
    agent: Agent[Any, Any] = Agent(model, config=False, autoload="none")
    with at_most():
        async with agent.session() as session, anyio.create_task_group() as group:
            group.start_soon(session.run, "go")
            await begun.wait()
            await session.follow_up("and then?")
            go.set()
            while len(model.responses) < 2 or session.last_result is None or session.last_result.text != "two":
                await anyio.sleep(0.001)
            assert [message.text for message in session.history] == ["go", "one", "and then?", "two"]
            assert len([event for event in session.events if isinstance(event, TurnEnd)]) == 2


async def test_a_second_run_may_steer_the_first() -> None:
    model, begun, go = waiting_model([call("look")], "both")
    agent: Agent[Any, Any] = Agent(model, tools=Bank().tools, config=False, autoload="none")
    texts: list[str] = []
    with at_most():
        async with agent.session() as session, anyio.create_task_group() as group:

            async def run(text: str, on_busy: Any) -> None:
                texts.append((await session.run(text, on_busy=on_busy)).text)

            group.start_soon(run, "go", "raise")
            await begun.wait()
            group.start_soon(run, "also", "steer")
            await anyio.wait_all_tasks_blocked()
            go.set()
    assert texts == ["both", "both"]


# A process that ends


@tool
async def safe(n: int) -> str:
    """Do it."""
    return f"safe {n}"


async def full_log(script: Sequence[Any], tools: Sequence[Any]) -> list[Event]:
    store = MemoryStore()
    agent = agent_of(*script, tools=list(tools), store=store)
    async with agent.session("s") as session:
        await session.run("go")
        return list(session.events)


async def store_with(events: Sequence[Event]) -> MemoryStore:
    store = MemoryStore()
    log = await store.open("s")
    for event in events:
        log.add(event)
    await log.close()
    return store


SCRIPT: list[Any] = [[call("safe", n=1), call("once", n=2)], [call("once", n=3)], "done"]


async def test_a_turn_can_be_resumed_wherever_its_process_ended() -> None:
    """Every prefix of a log is a place where a process may have ended."""

    def tools(effects: list[int]) -> list[Any]:
        @tool
        async def once(n: int) -> str:
            """Do it once."""
            effects.append(n)
            return f"once {n}"

        return [safe, once]

    events = await full_log(SCRIPT, tools([]))
    for cut in range(2, len(events)):
        before = events[:cut]
        kinds = [kind_of(event) for event in before]
        started = [event for event in before if kind_of(event) == "tool.start" and event.tool == "once"]  # type: ignore[attr-defined]  # the kind says so
        effects = [event.args["n"] for event in started]  # type: ignore[attr-defined]  # the kind says so
        answered = len([1 for event in before if kind_of(event) == "model.end"])
        agent = agent_of(*SCRIPT[answered:], tools=tools(effects), store=await store_with(before))
        async with agent.session("s") as session:
            if "user.input" not in kinds:
                with pytest.raises(SessionError, match="no turn to resume"):
                    await session.resume()
                continue
            result = await session.resume()
            assert result.status == "completed", cut
            check_history(list(session.history))
            after = [kind_of(event) for event in session.events]
            for begin, end in (("turn.start", "turn.end"), ("model.start", "model.end")):
                assert after.count(begin) - after.count(end) == (1 if begin == "turn.start" else 0), cut
            assert [event.seq for event in session.events] == list(range(1, len(session.events) + 1))
        assert sorted(effects) == [2, 3], (cut, effects)


async def test_a_turn_that_another_follows_is_ended_first_wherever_its_process_ended() -> None:
    @tool
    async def once(n: int) -> str:
        """Do it once."""
        return "once"

    events = await full_log(SCRIPT, [safe, once])
    for cut in range(2, len(events)):
        agent = agent_of("next answer", tools=[safe], store=await store_with(events[:cut]))
        async with agent.session("s") as session:
            assert (await session.run("next")).text == "next answer", cut
            check_history(list(session.history))
            ends = [event.status for event in session.events if isinstance(event, TurnEnd)]
            assert ends == ["failed", "completed"], cut


@pytest.mark.parametrize("idempotent", [True, False])
async def test_a_call_that_had_begun_runs_again_only_if_its_tool_allows_it(idempotent: bool) -> None:
    ran: list[int] = []

    @tool(idempotent=idempotent)
    async def send(n: int) -> str:
        """Send."""
        ran.append(n)
        return "sent"

    events = await full_log([[call("send", n=1)], "done"], [send])
    start = next(number for number, event in enumerate(events) if kind_of(event) == "tool.start")
    ran.clear()
    agent = agent_of("done", tools=[send], store=await store_with(events[: start + 1]))
    async with agent.session("s") as session:
        await session.resume()
        status, text = results_of(session)["send"]
    assert ran == ([1] if idempotent else [])
    assert status == ("ok" if idempotent else "unknown")
    assert ("sent" if idempotent else "outcome unknown") in text


async def test_messages_that_wait_are_there_again_after_the_process_ended() -> None:
    store = MemoryStore()
    agent = agent_of("one", "two", store=store)
    async with agent.session("s") as session:
        await session.steer("first thing")
        events = list(session.events)
    agent = agent_of("one", store=await store_with(events))
    async with agent.session("s") as session:
        await session.run("go")
        assert [message.text for message in session.history] == ["go", "first thing", "one"]
