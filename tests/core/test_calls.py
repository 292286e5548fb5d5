"""Tool calls of a step: together or one after the other, in threads, hung, and always with exactly one result."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from contextvars import ContextVar
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentx import (
    Deny,
    ModelContext,
    ModelResponse,
    TextPart,
    ToolCall,
    ToolContext,
    ToolResult,
    ToolStart,
    TurnAborted,
    Usage,
    tool,
)
from agentx.testing import ScriptedModel, call

from ._rules import agent_with, at_most, last_of, results_of
from ._short import short

pytestmark = pytest.mark.anyio


def sleeper(log: list[str], *, parallel: bool = True, name: str = "sleep") -> Any:
    @tool(name=name, parallel=parallel)
    async def sleep(text: str, seconds: float = 0.0) -> str:
        log.append(f"{text} begins")
        await anyio.sleep(seconds)
        log.append(f"{text} ends")
        return text

    return sleep


# Order


async def test_results_stand_in_the_order_of_the_calls_in_one_message() -> None:
    log: list[str] = []
    calls = [call("sleep", text=str(n), seconds=0.03 - n * 0.01) for n in range(4)]
    model = ScriptedModel([calls, "done"])
    with at_most():
        await agent_with(model, tools=[sleeper(log)]).run("go")
    assert short(model.requests[1].messages)[-1] == 'R(c1)"0" R(c2)"1" R(c3)"2" R(c4)"3"'
    assert log[:4] != sorted(log[:4], reverse=True)
    assert [line for line in log if line.endswith("ends")] == ["3 ends", "2 ends", "1 ends", "0 ends"]


async def test_a_tool_that_is_not_parallel_is_a_barrier() -> None:
    log: list[str] = []
    calls = [
        call("sleep", text="a", seconds=0.01),
        call("sleep", text="b"),
        call("alone", text="barrier", seconds=0.01),
        call("sleep", text="c"),
        call("alone", text="second barrier"),
        call("alone", text="third barrier"),
    ]
    with at_most():
        agent = agent_with([calls, "done"], tools=[sleeper(log), sleeper(log, parallel=False, name="alone")])
        await agent.run("go")
    assert set(log[:4]) == {"a begins", "b begins", "b ends", "a ends"}
    assert log[4:] == [
        "barrier begins",
        "barrier ends",
        "c begins",
        "c ends",
        "second barrier begins",
        "second barrier ends",
        "third barrier begins",
        "third barrier ends",
    ]


async def test_many_calls_of_one_step_all_run_and_not_all_at_once() -> None:
    running: list[int] = [0]
    most: list[int] = [0]

    @tool
    async def work(number: int) -> int:
        running[0] += 1
        most[0] = max(most[0], running[0])
        await anyio.sleep(0.001)
        running[0] -= 1
        return number

    with at_most():
        async with agent_with(
            [[call("work", number=n) for n in range(200)], "done"], tools=[work]
        ).session() as session:
            await session.run("go")
            results = results_of(session)
    assert [result.text for result in results.values()] == [str(n) for n in range(200)]
    assert 1 < most[0] < 200


# Exactly one result


class Fate:
    """What may become of a call, for random steps."""

    @staticmethod
    def tools() -> list[Any]:
        @tool
        async def ok() -> str:
            await anyio.lowlevel.checkpoint()
            return "ok"

        @tool
        def sync() -> str:
            return "sync"

        @tool
        async def boom() -> str:
            raise ValueError("boom")

        @tool(timeout=0.001)
        async def late() -> str:
            await anyio.sleep(1)
            return ""

        @tool
        async def odd() -> Any:
            return object()

        @tool
        async def stop(ctx: ToolContext) -> str:
            ctx.stop("stop")
            return "stopping"

        @tool
        async def abort(ctx: ToolContext) -> str:
            ctx.abort("abort")

        @tool(requires_approval=True)
        async def asked() -> str:
            return "never"

        @tool(parallel=False)
        async def alone() -> str:
            return "alone"

        @tool
        async def cancels(ctx: ToolContext) -> str:
            ctx.session.cancel()
            await anyio.sleep(1)
            return ""

        return [ok, sync, boom, late, odd, stop, abort, asked, alone, cancels]


FATES = [*[item.name for item in Fate.tools()], "unknown", "denied", "bad"]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_every_call_has_exactly_one_result_whatever_happened(backend: str) -> None:
    @settings(max_examples=40)
    @given(st.lists(st.sampled_from(FATES), min_size=1, max_size=6))
    def check(fates: list[str]) -> None:
        async def run() -> None:
            async def deny(ctx: ToolContext, call_next: Any) -> ToolResult:
                if ctx.tool.name == "ok" and ctx.args == {} and fates[ctx.call_index] == "denied":
                    return ctx.deny("denied")
                result: ToolResult = await call_next()
                return result

            names = {"denied": "ok", "bad": "ok"}
            calls = [call(names.get(fate, fate), *(["[1]"] if fate == "bad" else [])) for fate in fates]
            model = ScriptedModel([calls, "done", "next"])
            with anyio.fail_after(5):
                async with agent_with(model, tools=Fate.tools()).use(tool=deny).session() as session:
                    try:
                        result = await session.run("go")
                        while result.status == "paused":
                            denied = {pending.call_id: Deny("denied") for pending in session.pending}
                            result = await session.resume(denied)
                    except TurnAborted:
                        assert {"abort", "cancels"} & set(fates)
                    results = results_of(session)
                    assert list(results) == [f"c{n + 1}" for n in range(len(fates))]
                    started = {e.call_id for e in session.events if isinstance(e, ToolStart)}
                    for fate, result in zip(fates, results.values(), strict=True):
                        if fate in ("unknown", "bad", "asked", "denied"):
                            assert result.is_error
                            assert result.call_id not in started
                    last_of(session)
                    used = len(model.requests)
                    assert (await session.run("again", model=ScriptedModel(["fine"]))).output == "fine"
                    assert used <= 2

        anyio.run(run, backend=backend)

    check()


async def test_tool_start_says_what_will_run_and_comes_for_what_runs_only() -> None:
    log: list[str] = []

    async def change(ctx: ToolContext, call_next: Any) -> ToolResult:
        ctx.args = {**ctx.args, "text": "changed"}
        result: ToolResult = await call_next()
        return result

    with at_most():
        agent = agent_with([[call("sleep", text="x"), call("nothing")], "ok"], tools=[sleeper(log)]).use(tool=change)
        async with agent.session() as session:
            await session.run("go")
            starts = [(e.call_id, dict(e.args)) for e in session.events if isinstance(e, ToolStart)]
    assert starts == [("c1", {"text": "changed"})]
    assert log == ["changed begins", "changed ends"]


@pytest.mark.parametrize("args", [{"text": 7}, {}, {"text": "x", "seconds": "soon"}, {"text": object}], ids=str)
async def test_arguments_that_a_layer_replaced_are_validated_again(args: dict[str, Any]) -> None:
    log: list[str] = []

    async def change(ctx: ToolContext, call_next: Any) -> ToolResult:
        ctx.args = args
        result: ToolResult = await call_next()
        return result

    with at_most():
        async with (
            agent_with([call("sleep", text="x"), "ok"], tools=[sleeper(log)]).use(tool=change).session() as session
        ):
            result = await session.run("go")
            given = results_of(session)["c1"]
    assert log == []
    assert given.is_error
    assert result.output == "ok"


async def test_the_result_of_another_call_that_a_layer_returns_is_taken_for_its_own() -> None:
    async def confuse(ctx: ToolContext, call_next: Any) -> ToolResult:
        await call_next()
        return ToolResult("other", "other", (TextPart("swapped"),))

    with at_most():
        async with (
            agent_with([call("sleep", text="x"), "ok"], tools=[sleeper([])]).use(tool=confuse).session() as session
        ):
            await session.run("go")
            assert results_of(session)["c1"].text == "swapped"


async def test_a_call_that_needs_an_approval_waits_and_one_that_needs_none_does_not() -> None:
    ran: list[str] = []

    @tool(requires_approval=lambda args: args["euro"] > 10)
    async def pay(euro: int) -> str:
        ran.append(str(euro))
        return "paid"

    with at_most():
        async with agent_with([[call("pay", euro=5), call("pay", euro=50)], "ok"], tools=[pay]).session() as session:
            result = await session.run("go")
            assert [dict(pending.args) for pending in session.pending] == [{"euro": 50}]
    assert ran == ["5"]
    assert result.status == "paused"


async def test_a_turn_has_one_idempotency_key_for_each_call() -> None:
    keys: list[str] = []

    @tool
    async def note(ctx: ToolContext) -> str:
        keys.append(ctx.idempotency_key)
        return ""

    with at_most():
        async with agent_with(
            [[call("note"), call("note")], "1", call("note"), "2"], tools=[note]
        ).session() as session:
            await session.run("go")
            await session.run("go")
    assert len(set(keys)) == 3


async def test_progress_is_seen_while_the_tool_runs_and_is_not_stored() -> None:
    @tool
    async def long(ctx: ToolContext) -> str:
        for done in range(3):
            await ctx.progress(f"step {done}", done=done, total=3)
        return "done"

    with at_most():
        async with agent_with([call("long"), "ok"], tools=[long]).session() as session:
            async with session.stream("go") as stream:
                seen = [(e.message, e.done) async for e in stream if e.kind == "tool.progress"]  # type: ignore[attr-defined]
            assert "tool.progress" not in [event.kind for event in session.events]
    assert seen == [("step 0", 0), ("step 1", 1), ("step 2", 2)]


# Sync tools


where: ContextVar[str] = ContextVar("where", default="nowhere")


async def test_a_sync_tool_runs_in_a_thread_with_the_callers_context_variables() -> None:
    seen: list[Any] = []

    @tool
    def look() -> str:
        seen.append((where.get(), threading.current_thread() is threading.main_thread()))
        return ""

    async def sets(ctx: ToolContext, call_next: Any) -> ToolResult:
        where.set("in the layer")
        result: ToolResult = await call_next()
        return result

    with at_most():
        where.set("caller")
        await agent_with([call("look"), "ok"], tools=[look]).run("go")
        await agent_with([call("look"), "ok"], tools=[look]).use(tool=sets).run("go")
    assert seen == [("caller", False), ("in the layer", False)]


async def test_sync_tools_of_one_step_run_side_by_side() -> None:
    barrier = threading.Barrier(3, timeout=5)

    @tool
    def meet() -> str:
        barrier.wait()
        return "met"

    with at_most():
        async with agent_with([[call("meet")] * 3, "ok"], tools=[meet]).session() as session:
            await session.run("go")
            assert [result.text for result in results_of(session).values()] == ["met"] * 3


async def test_the_loop_goes_on_while_a_sync_tool_works() -> None:
    go = threading.Event()
    ticks: list[int] = []

    @tool
    def work() -> str:
        assert go.wait(5)
        return "worked"

    with at_most():
        async with (
            agent_with([call("work"), "ok"], tools=[work]).session() as session,
            anyio.create_task_group() as group,
        ):

            async def tick() -> None:
                for number in range(5):
                    ticks.append(number)
                    await anyio.lowlevel.checkpoint()
                go.set()

            group.start_soon(tick)
            assert (await session.run("go")).output == "ok"
    assert ticks == [0, 1, 2, 3, 4]


async def test_a_sync_tool_that_hangs_past_its_time_is_an_error_and_the_turn_goes_on() -> None:
    go = threading.Event()

    @tool(timeout=0.05)
    def hang() -> str:
        go.wait(5)
        return "too late"

    with at_most():
        async with agent_with([call("hang"), "ok", "again"], tools=[hang]).session() as session:
            result = await session.run("go")
            assert result.output == "ok"
            given = results_of(session)["c1"]
            go.set()
            await anyio.sleep(0.02)
            await session.run("next")
            assert "too late" not in repr(session.events)
    assert given.is_error
    assert "0.05" in given.text


async def test_cancelling_does_not_wait_for_a_sync_tool_that_hangs() -> None:
    go, started = threading.Event(), threading.Event()

    @tool
    def hang() -> str:
        started.set()
        go.wait(5)
        return "too late"

    with at_most(2):
        async with agent_with([call("hang"), "next"], tools=[hang]).session() as session:
            async with anyio.create_task_group() as group:
                group.start_soon(session.run, "go")
                while not started.is_set():
                    await anyio.sleep(0.001)
                group.cancel_scope.cancel()
            assert results_of(session)["c1"].status == "cancelled"
            assert (await session.run("again")).output == "next"
    go.set()


async def test_when_hung_tools_have_taken_all_places_the_error_names_them() -> None:
    go = threading.Event()

    @tool(timeout=0.2)
    def hang() -> str:
        go.wait(20)
        return ""

    @tool
    def quick() -> str:
        return "quick"

    try:
        with at_most(4):
            agent = agent_with([[call("hang")] * 32, [call("hang")] * 8, call("quick"), "ok"], tools=[hang, quick])
            async with agent.session() as session:
                result = await session.run("go")
                given = results_of(session)["c41"]
        assert result.output == "ok"
        assert given.is_error
        assert "hang" in given.text
        assert "40" in given.text
    finally:
        go.set()


def test_a_hung_tool_does_not_hold_up_the_exit_of_the_process() -> None:
    script = """
import time
from agentx import Agent, tool
from agentx.testing import ScriptedModel, call

@tool(timeout=0.05)
def hang() -> str:
    time.sleep(60)
    return ""

agent = Agent(ScriptedModel([call("hang"), "done"]), tools=[hang], config=False, autoload="none")
print(agent.run_sync("go").output)
"""
    begun = time.monotonic()
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == "done\n"
    assert time.monotonic() - begun < 30


async def test_an_async_tool_may_limit_itself_and_start_tasks() -> None:
    @tool
    async def gathers() -> str:
        found: list[int] = []

        async def one(number: int) -> None:
            await anyio.lowlevel.checkpoint()
            found.append(number)

        async with anyio.create_task_group() as group:
            for number in range(5):
                group.start_soon(one, number)
        with anyio.move_on_after(0.01):
            await anyio.sleep_forever()
        return str(sorted(found))

    with at_most():
        async with agent_with([call("gathers"), "ok"], tools=[gathers]).session() as session:
            await session.run("go")
            assert results_of(session)["c1"].text == "[0, 1, 2, 3, 4]"


async def test_a_tool_that_raises_a_cancellation_by_itself_is_a_tool_that_failed(anyio_backend_name: str) -> None:
    if anyio_backend_name != "asyncio":
        pytest.skip("on trio nobody can raise Cancelled")

    @tool
    async def odd() -> str:
        raise asyncio.CancelledError("odd")

    with at_most():
        async with agent_with([call("odd"), "ok"], tools=[odd]).session() as session:
            assert (await session.run("go")).output == "ok"
            assert results_of(session)["c1"].is_error


# What tools give back


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("text", "text"),
        (None, ""),
        (7, "7"),
        ({"a": [1, None]}, '{"a":[1,null]}'),
        ("a\ud800b", "a�b"),
        (TextPart("part"), "part"),
        ([TextPart("a"), "b"], "ab"),
    ],
    ids=repr,
)
async def test_what_a_tool_returns_becomes_text(value: Any, text: str) -> None:
    @tool
    async def give() -> Any:
        return value

    with at_most():
        async with agent_with([call("give"), "ok"], tools=[give]).session() as session:
            await session.run("go")
            given = results_of(session)["c1"]
    assert (given.text, given.status) == (text, "ok")


@pytest.mark.parametrize("value", [object, float("nan"), {1: object()}, lambda: 1], ids=["object", "nan", "key", "fn"])
async def test_what_cannot_be_sent_to_a_model_is_an_error_result(value: Any) -> None:
    @tool
    async def give() -> Any:
        return value

    with at_most():
        async with agent_with([call("give"), "ok"], tools=[give]).session() as session:
            assert (await session.run("go")).output == "ok"
            assert results_of(session)["c1"].is_error


# A layer that answers with calls, and empty ends


async def test_calls_that_a_layer_adds_to_a_response_run_too() -> None:
    log: list[str] = []

    async def adds(ctx: ModelContext, call_next: Any) -> ModelResponse:
        response: ModelResponse = await call_next()
        if ctx.call_index == 0:
            parts = (*response.parts, ToolCall("extra", "sleep", '{"text":"added"}'))
            return ModelResponse(parts, response.stop_reason, Usage(1, 1))
        return response

    with at_most():
        result = await agent_with(["I am done", "now really"], tools=[sleeper(log)]).use(model=adds).run("go")
    assert log == ["added begins", "added ends"]
    assert result.output == "now really"
