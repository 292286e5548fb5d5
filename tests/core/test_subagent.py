"""Sub-agents: agents as tools of others. What passes down, what comes up, and what stays apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import anyio
import attrs
import pytest

from agentx import (
    Agent,
    Event,
    MemoryStore,
    ModelContext,
    ModelRequest,
    ModelResponse,
    OverloadedError,
    Plugin,
    RunResult,
    SessionContext,
    SubAgentEvent,
    TextPart,
    Tool,
    ToolCall,
    ToolContext,
    ToolResult,
    TurnAborted,
    TurnContext,
    Usage,
    reduced,
    tool,
)
from agentx.builtin.limits import LimitsGuard
from agentx.testing import FunctionModel, ScriptedModel, call, check_history

from ._rules import agent_with, at_most, last_of, results_of
from ._short import short

pytestmark = pytest.mark.anyio


@tool
async def look(ctx: ToolContext) -> str:
    """Look around."""
    return f"{ctx.user} {ctx.deps} {'/'.join(ctx.path)}"


def helper(
    script: Sequence[Any] | FunctionModel, *, tools: Sequence[Tool] = (look,), **options: Any
) -> Agent[Any, str]:
    model = script if isinstance(script, FunctionModel) else ScriptedModel(list(script))
    return agent_with(model, tools=tools, name="helper", **options)


def asking(agent: Agent[Any, str], *, calls: int = 1, **options: Any) -> Agent[Any, str]:
    """Return an agent that hands one task or several to `agent` and then answers."""
    script = [[call("helper", task=f"task {number}") for number in range(calls)], "done"]
    inherit = options.pop("inherit", None)
    made = agent.as_tool() if inherit is None else agent.as_tool(inherit=inherit)
    return agent_with(script, tools=[made], **options)


async def test_a_sub_agent_is_a_tool_that_takes_a_task_and_gives_its_answer() -> None:
    child = helper([call("look"), "I saw it"])
    with at_most():
        async with asking(child).session() as session:
            result = await session.run("go")
            assert results_of(session)["c1"].text == "I saw it"
    assert result.output == "done"
    spec = child.as_tool("scout", description="Looks around.").spec
    assert (spec.name, spec.description) == ("scout", "Looks around.")
    assert list(spec.schema["properties"]) == ["task"]


async def test_user_and_deps_pass_down_and_the_path_says_where_it_is() -> None:
    child = helper([call("look"), "ok"])
    seen: list[ToolResult] = []

    async def note(ctx: ToolContext, call_next: Any) -> ToolResult:
        seen.append(await call_next())
        return seen[-1]

    with at_most():
        async with asking(child.use(tool=note)).session(user="ann", deps=42) as session:
            await session.run("go", deps=43)
    assert [result.text for result in seen] == ["ann 43 c1"]


async def test_history_does_not_pass_in_either_direction() -> None:
    model = ScriptedModel(["secret of the child", "ok"])
    child = agent_with(model, name="helper")
    with at_most():
        async with asking(child).session() as session:
            await session.run("secret of the parent")
            history = short(session.history)
    assert short(model.requests[0].messages) == ['U"task 0"']
    assert "secret of the parent" not in repr(model.requests)
    assert len(history) == 4


async def test_the_childs_session_is_named_by_its_parent_and_call() -> None:
    store = MemoryStore()
    child = helper(["ok"], store=store)
    with at_most():
        async with asking(child, store=store).session(id="s") as session:
            await session.run("go")
        async with child.session(id="s/c1") as inner:
            assert short(inner.history) == ['U"task 0"', 'A"ok"']
            check_history(inner.history)


async def test_services_pass_down_and_the_trace_is_one() -> None:
    class Client:
        pass

    client, seen, traces = Client(), list[Any](), list[str]()

    async def provide(ctx: TurnContext, call_next: Any) -> RunResult[Any]:
        ctx.provide(Client, client)
        traces.append(ctx.trace_id)
        result: RunResult[Any] = await call_next()
        return result

    async def find(ctx: TurnContext, call_next: Any) -> RunResult[Any]:
        seen.append(ctx.get(Client, None))
        traces.append(ctx.trace_id)
        result: RunResult[Any] = await call_next()
        return result

    with at_most():
        await asking(helper(["ok"]).use(find)).use(provide).run("go")
    assert seen == [client]
    assert len(set(traces)) == 1
    assert len(traces) == 2


# Layers


class Notes(Plugin):
    """Writes down which model and tool calls it wraps."""

    id: ClassVar = "context.notes"
    log: list[str]

    async def turn(self, ctx: TurnContext, call_next: Any) -> RunResult[Any]:
        self.log.append(f"turn {'/'.join(ctx.path)}")
        result: RunResult[Any] = await call_next()
        return result

    async def model(self, ctx: ModelContext, call_next: Any) -> ModelResponse:
        self.log.append(f"model {'/'.join(ctx.path)}")
        response: ModelResponse = await call_next()
        return response

    async def tool(self, ctx: ToolContext, call_next: Any) -> ToolResult:
        self.log.append(f"tool {ctx.tool.name}")
        result: ToolResult = await call_next()
        return result


PHASES = ("observe", "gate", "prepare", "redact", "verify", "route", "cache", "retry", "attempt")


@pytest.mark.parametrize("phase", PHASES)
async def test_layers_of_the_inherited_phases_wrap_the_childs_calls(phase: str) -> None:
    log: list[str] = []
    agent = asking(helper([call("look"), "ok"]))
    if phase in PHASES[:5]:
        agent.use(Notes(log=log), phase=phase)
    else:

        async def note(ctx: Any, call_next: Any) -> Any:
            log.append(f"model {'/'.join(ctx.path)}" if isinstance(ctx, ModelContext) else f"tool {ctx.tool.name}")
            return await call_next()

        agent.use(model=note, phase=phase).use(tool=note, phase=phase, name="t")
    with at_most():
        await agent.run("go")

    inside = [line for line in log if line in ("model c1", "tool look")]
    inherited = phase in ("observe", "gate", "redact", "verify")
    assert inside == (["model c1", "tool look", "model c1"] if inherited else [])
    assert [line for line in log if line not in inside and not line.startswith("turn")] == [
        "model ",
        "tool helper",
        "model ",
    ]


@pytest.mark.parametrize("inherit", [(), ("prepare",)])
async def test_which_phases_are_inherited_can_be_said(inherit: Sequence[str]) -> None:
    log: list[str] = []
    agent = asking(helper(["ok"]), inherit=inherit)
    with at_most():
        await agent.use(Notes(log=log), phase="prepare").run("go")
    assert ("model c1" in log) == (inherit == ("prepare",))


async def test_a_plugin_that_both_have_wraps_a_call_once() -> None:
    log: list[str] = []
    notes = Notes(log=log)
    child = helper(["ok"]).use(notes, phase="verify")
    with at_most():
        await asking(child).use(notes, phase="verify").run("go")
    assert log.count("model c1") == 1


async def test_a_guard_of_the_parent_denies_in_the_child() -> None:
    async def no_looking(ctx: ToolContext, call_next: Any) -> ToolResult:
        if ctx.tool.name == "look":
            return ctx.deny("not allowed")
        result: ToolResult = await call_next()
        return result

    model = ScriptedModel([call("look"), "ok"])
    with at_most():
        agent = asking(agent_with(model, tools=[look], name="helper"))
        result = await agent.use(tool=no_looking, phase="verify").run("go")
    assert result.output == "done"
    assert "not allowed" in repr(model.requests[1].messages[-1])


@attrs.frozen
class Counted:
    models: int = reduced(lambda old, new: old + new, default=0)


class Counter(Plugin[Counted]):
    """Counts model calls in its state."""

    id: ClassVar = "guard.counter"
    phase: ClassVar = "verify"

    async def model(self, ctx: ModelContext, call_next: Any) -> ModelResponse:
        ctx.update(self, models=1)
        response: ModelResponse = await call_next()
        return response


async def test_states_do_not_mix() -> None:
    counter = Counter()
    seen: list[int] = []

    async def note(ctx: TurnContext, call_next: Any) -> RunResult[Any]:
        result: RunResult[Any] = await call_next()
        seen.append(ctx.state.of(counter).models)
        return result

    with at_most():
        async with asking(helper([call("look"), "ok"]).use(note)).use(counter).session() as session:
            await session.run("go")
            assert session.state.of(counter).models == 2
    assert seen == [2]


# Events


async def test_events_of_the_child_come_up_with_their_path() -> None:
    with at_most():
        async with asking(helper([call("look"), "ok"])).session() as session:
            async with session.stream("go") as stream:
                seen = [event async for event in stream if isinstance(event, SubAgentEvent)]
            stored = [event.kind for event in session.events]

    assert {event.path for event in seen} == {("c1",)}
    kinds = [event.event.kind for event in seen]
    stages = ("user.input", "tool.call", "tool.result", "turn.end")
    assert [kind for kind in kinds if kind in stages] == list(stages)
    assert "subagent" not in stored


async def test_text_of_the_child_is_no_text_of_the_parent() -> None:
    with at_most():
        async with asking(helper(["text of the child"])).session() as session:
            async with session.stream("go") as stream:
                said = "".join([piece async for piece in stream.text])
    assert said == "done"


async def test_deltas_of_the_child_come_up_too() -> None:
    with at_most():
        async with asking(helper(["text of the child"])).session() as session:
            async with session.stream("go") as stream:
                inner: list[Event] = [event.event async for event in stream if isinstance(event, SubAgentEvent)]
    assert "".join([e.text for e in inner if e.kind == "text.delta"]) == "text of the child"  # type: ignore[attr-defined]


async def test_events_of_a_grandchild_come_up_with_the_whole_path() -> None:
    grandchild = agent_with(["deep"], name="deepest")
    asks = ToolCall("g1", "deepest", '{"task":"go"}')
    child = agent_with([asks, "ok"], tools=[grandchild.as_tool()], name="helper")
    paths: set[tuple[str, ...]] = set()
    with at_most():
        async with asking(child).session() as session:
            session.on("subagent", lambda event: paths.add(event.path))  # type: ignore[attr-defined]
            await session.run("go")
    assert paths == {("c1",), ("c1", "g1")}


async def test_events_of_parallel_children_can_be_told_apart() -> None:
    child = helper(FunctionModel(lambda request: request.messages[-1].text, delay=0.001))
    said: dict[tuple[str, ...], list[str]] = {}
    with at_most():
        async with asking(child, calls=5).session() as session:

            def note(event: Event) -> None:
                assert isinstance(event, SubAgentEvent)
                if event.event.kind == "user.input":
                    said.setdefault(event.path, []).append(event.event.message.text)  # type: ignore[attr-defined]

            session.on("subagent", note)
            await session.run("go")
            results = results_of(session)
    assert said == {(f"c{n + 1}",): [f"task {n}"] for n in range(5)}
    assert [result.text for result in results.values()] == [f"task {n}" for n in range(5)]


# Failures and ends


@pytest.mark.parametrize("how", ["truncated", "empty", "refused", "stopped"])
async def test_a_child_that_does_not_complete_is_an_error_result_that_says_how(how: str) -> None:
    async def stop(ctx: TurnContext, call_next: Any) -> RunResult[Any]:
        if how == "stopped":
            ctx.stop("no reason")
        result: RunResult[Any] = await call_next()
        return result

    reasons = {"truncated": "max_tokens", "refused": "refusal"}
    text = "" if how == "empty" else "half an answer"
    child = helper([ModelResponse((TextPart(text),), reasons.get(how, "end_turn"), usage=Usage(1, 1))]).use(stop)
    with at_most():
        async with asking(child).session() as session:
            result = await session.run("go")
            given = results_of(session)["c1"]
    assert result.output == "done"
    assert given.is_error
    assert how in given.text


async def test_a_child_that_fails_is_an_error_result_and_the_parent_goes_on() -> None:
    with at_most():
        async with asking(helper([OverloadedError("busy")])).session() as session:
            result = await session.run("go")
            given = results_of(session)["c1"]
    assert result.output == "done"
    assert given.is_error
    assert "busy" in given.text


async def test_an_abort_in_the_child_is_an_error_of_its_call() -> None:
    async def no(ctx: TurnContext, call_next: Any) -> RunResult[Any]:
        ctx.abort("the child had enough")

    with at_most():
        async with asking(helper(["x"]).use(no)).session() as session:
            try:
                result = await session.run("go")
            except TurnAborted as error:
                assert "enough" in error.reason
                assert last_of(session).status == "aborted"
            else:
                assert result.output == "done"
                assert "enough" in results_of(session)["c1"].text
            results_of(session)


async def test_an_abort_by_a_guard_of_the_parent_inside_the_child_ends_the_parents_turn() -> None:
    async def no(ctx: ToolContext, call_next: Any) -> ToolResult:
        if ctx.tool.name == "look":
            ctx.abort("never look")
        result: ToolResult = await call_next()
        return result

    with at_most():
        async with asking(helper([call("look"), "x"])).use(tool=no, phase="verify").session() as session:
            with pytest.raises(TurnAborted, match="never look"):
                await session.run("go")
            assert last_of(session).status == "aborted"
            results_of(session)


async def test_cancelling_the_parent_cancels_the_child() -> None:
    log: list[str] = []
    reached = anyio.Event()

    async def hang(request: ModelRequest) -> str:
        reached.set()
        try:
            await anyio.sleep_forever()
        finally:
            log.append("child left")
        return ""

    store = MemoryStore()
    child = helper([hang], store=store)
    with at_most():
        async with asking(child, store=store).session(id="s") as session:
            async with anyio.create_task_group() as group:

                async def run() -> None:
                    with pytest.raises(TurnAborted):
                        await session.run("go")
                    log.append("parent left")

                group.start_soon(run)
                await reached.wait()
                session.cancel()
            assert results_of(session)["c1"].status == "cancelled"
        async with child.session(id="s/c1") as inner:
            assert [e.status for e in inner.events if e.kind == "turn.end"] == ["cancelled"]  # type: ignore[attr-defined]
    assert log == ["child left", "parent left"]


async def test_sub_agents_are_at_most_five_deep() -> None:
    depths: list[int] = []

    def reply(request: ModelRequest) -> Any:
        return "bottom" if request.messages[-1].role == "tool" else call("helper", task="deeper")

    async def note(ctx: TurnContext, call_next: Any) -> RunResult[Any]:
        depths.append(len(ctx.path))
        result: RunResult[Any] = await call_next()
        return result

    agents = [agent_with(FunctionModel(reply), name="helper")]
    for _ in range(8):
        agents.append(agent_with(FunctionModel(reply), tools=[agents[-1].as_tool()], name="helper").use(note))
    with at_most():
        result = await agents[-1].run("go")
    assert result.status == "completed"
    assert depths == [0, 1, 2, 3, 4, 5]


async def test_an_agent_that_is_its_own_tool_ends() -> None:
    model = FunctionModel(lambda r: "bottom" if r.messages[-1].role == "tool" else call("helper", task="again"))
    agent = agent_with(model, tools=[], name="helper")
    agent._tools.append(agent.as_tool())
    with at_most():
        result = await agent.run("go")
    assert result.output == "bottom"
    assert len(model.requests) == 12


# Limits


async def test_limits_of_both_apply() -> None:
    model = FunctionModel(lambda request: call("look"))
    child = helper(model, plugins=[LimitsGuard(requests=4)])
    with at_most():
        async with asking(child, plugins=[LimitsGuard(requests=20)]).session() as session:
            first = await session.run("go")
    assert first.output == "done"
    assert len(model.requests) == 4

    model = FunctionModel(lambda request: call("look"))
    child = helper(model, plugins=[LimitsGuard(requests=40)])
    with at_most():
        async with asking(child, plugins=[LimitsGuard(requests=5)]).session() as session:
            second = await session.run("go")
    assert second.status == "limit"
    assert len(model.requests) == 4


async def test_tool_calls_of_the_child_count_for_the_parents_limit() -> None:
    ran: list[str] = []

    @tool
    async def tick() -> str:
        ran.append("tick")
        return ""

    child = helper([[call("tick")] * 10, "ok"], tools=[tick])
    with at_most():
        async with asking(child, plugins=[LimitsGuard(tool_calls=4)]).session() as session:
            result = await session.run("go")
            given = results_of(session)["c1"]
    assert len(ran) == 3
    assert result.status == "limit" or given.is_error


async def test_the_seconds_of_the_parent_stop_the_child() -> None:
    async def hang(request: ModelRequest) -> str:
        await anyio.sleep_forever()
        return ""

    with at_most():
        async with asking(helper([hang]), plugins=[LimitsGuard(seconds=0.05)]).session() as session:
            result = await session.run("go")
            results_of(session)
    assert result.status == "limit"


async def test_usage_of_the_child_is_in_the_turn_and_session_of_its_parent_once() -> None:
    child = helper([call("look"), "ok"])
    with at_most():
        async with asking(child).session() as session:
            result = await session.run("go")
            assert session.usage == result.usage
    assert result.usage.requests == 4


async def test_a_child_of_another_agent_has_a_lifetime_of_its_own() -> None:
    log: list[str] = []

    async def lifetime(ctx: SessionContext, call_next: Any) -> None:
        log.append(f"open {ctx.session_id}")
        await call_next()
        log.append(f"close {ctx.session_id}")

    child = helper(FunctionModel(lambda request: "ok")).use(session=lifetime)
    with at_most():
        async with asking(child, calls=2).session(id="s") as session:
            await session.run("go")
    assert sorted(log) == ["close s/c1", "close s/c2", "open s/c1", "open s/c2"]
