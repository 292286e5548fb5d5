"""Cases G04–G08, G10, G11, G14 and G16 of the list collected from public bug reports of other frameworks.

Each test states the case's own input and what is right for it. "A new process" is, without a durable store, a fresh
`Agent` on the same store.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, ClassVar

import anyio
import anyio.lowlevel
import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentx import (
    Agent,
    Event,
    HistoryReplaced,
    Limit,
    MemoryStore,
    Message,
    ModelAttempt,
    ModelContext,
    ModelEnd,
    ModelRequest,
    ModelResponse,
    NoOutputError,
    OpaquePart,
    OverloadedError,
    Plugin,
    Session,
    SessionContext,
    SessionError,
    TextDelta,
    TextPart,
    ThinkingPart,
    Tool,
    ToolArgsDelta,
    ToolCall,
    ToolContext,
    ToolResult,
    TurnAborted,
    Usage,
    keep_recent,
    tool,
)
from agentx.builtin.limits import LimitsGuard
from agentx.builtin.retry import Retry
from agentx.testing import Cut, FaultyModel, FunctionModel, ScriptedModel, call, check_history

from ._rules import agent_with, at_most, last_of, results_of
from ._short import sent, short

pytestmark = pytest.mark.anyio

PROVIDER_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def recorder(name: str = "add", **options: Any) -> tuple[Tool, list[Any]]:
    """Return the tool `add(a: int, b: int)` and the arguments it ran with."""
    ran: list[Any] = []

    @tool(name=name, **options)
    async def add(a: int, b: int) -> int:
        """Add two numbers."""
        ran.append((a, b))
        return a + b

    return add, ran


def asks_for(arguments: Any, name: str = "add") -> ModelResponse:
    """Return the response of a model that wrote `arguments` as the text of a call."""
    return ModelResponse((ToolCall("c1", name, arguments),), "tool_use", usage=Usage(1, 1))


# G04: call to a tool that does not exist


async def test_g04_an_unknown_tool_gets_an_error_result_and_its_valid_sibling_runs() -> None:
    add, ran = recorder()
    entered: list[str] = []

    async def trace(ctx: ToolContext, call_next: Any) -> ToolResult:
        entered.append(ctx.call_id)
        result: ToolResult = await call_next()
        return result

    model = ScriptedModel([[call("bad name!"), call("add", a=1, b=2)], "3", "ok"])
    agent = agent_with(model, tools=[add]).use(tool=trace)
    with at_most():
        async with agent.session(id="s") as session:
            first = await session.run("go")
            second = await session.run("again")

    assert ran == [(1, 2)]
    assert entered == ["c2"]
    assert (first.output, second.output) == ("3", "ok")
    answered = {r.call_id: r for r in model.requests[1].messages[-1].parts if isinstance(r, ToolResult)}
    assert list(answered) == ["c1", "c2"]
    assert answered["c1"].is_error
    assert "add" in answered["c1"].text
    assert answered["c2"].text == "3"
    check_history(model.requests[2].messages)


async def test_g04_the_name_that_is_replayed_is_one_that_providers_accept() -> None:
    add, _ = recorder()
    names = ["bad name!", "", "x" * 300, "günther", "a.b"]
    model = ScriptedModel([[ToolCall("", name) for name in names], "sorry", "ok"])
    with at_most():
        async with agent_with(model, tools=[add]).session(id="s") as session:
            await session.run("go")
            await session.run("again")

    replayed = [c.name for message in model.requests[2].messages for c in message.tool_calls]
    assert len(replayed) == len(names)
    assert [name for name in replayed if not PROVIDER_NAME.fullmatch(name)] == []


async def test_g04_a_name_that_is_no_valid_text_does_not_spoil_the_history() -> None:
    with at_most():
        async with agent_with([ToolCall("", "\ud800"), "sorry", "ok"], tools=[]).session() as session:
            await session.run("go")
            result = await session.run("again")
            results_of(session)

    assert result.output == "ok"


async def test_g04_unknown_names_fail_nothing_but_themselves_however_often_they_come() -> None:
    add, ran = recorder()
    model = ScriptedModel([*[call(f"nothing_{n}") for n in range(20)], call("add", a=1, b=2), "3"])
    with at_most():
        result = await agent_with(model, tools=[add]).run("go")

    assert result.output == "3"
    assert ran == [(1, 2)]


async def test_g04_a_loop_of_unknown_names_ends_at_the_usual_limit() -> None:
    model = FunctionModel(lambda request: call("nothing"))
    with at_most():
        async with agent_with(model, tools=[]).use(LimitsGuard(requests=7)).session() as session:
            result = await session.run("go")
            last_of(session)

    assert result.status == "limit"
    assert len(model.requests) == 7


async def test_g04_without_any_plugin_a_loop_of_unknown_names_ends_at_the_backstop() -> None:
    class Stubborn:
        name = "stubborn"

        async def respond(self, request: ModelRequest, emit: Any) -> ModelResponse:
            return asks_for("{}", "nothing")

    with at_most():
        result = await agent_with(Stubborn(), tools=[]).run("go")

    assert result.status == "limit"
    assert result.usage.requests == 1000


@pytest.mark.parametrize("name", ["ADD", "add ", "functions.add", "add\n"])
async def test_g04_a_name_that_is_nearly_right_is_not_guessed(name: str) -> None:
    add, ran = recorder()
    with at_most():
        async with agent_with([call(name, a=1, b=2), "done"], tools=[add]).session() as session:
            await session.run("go")
            results = results_of(session)

    assert ran == []
    assert results["c1"].is_error


async def test_g04_an_agent_without_tools_says_so() -> None:
    with at_most():
        async with agent_with([call("add", a=1, b=2), "done"], tools=[]).session() as session:
            result = await session.run("go")
            results = results_of(session)

    assert result.output == "done"
    assert results["c1"].is_error


# G05: arguments that are not a JSON object

HUGE = '{"a":"' + "x" * 200_000
BAD_ARGUMENTS = [
    "[1,2]",
    '"x"',
    "7",
    "null",
    '{"a":1',
    '{"a":NaN,"b":1}',
    '{"a":Infinity,"b":1}',
    HUGE,
    "true",
    "[" * 50_000,
    '{"a":' * 5_000,
    "{'a': 1, 'b': 2}",
    '{"a":1,"b":2} trailing',
    '{"a":1,"b":2}{"a":1,"b":2}',
    '{"a":"1","b":"2"}',
    '{"a":1.5,"b":2}',
    '{"a":1}',
    '{"a":1,"b":null}',
    '{"a":"\ud800","b":1}',
    '{"a":"' + "\\ud800" * 3 + '","b":1}',
    "\x00",
    "   ",
    "",
]


@pytest.mark.parametrize("arguments", BAD_ARGUMENTS, ids=lambda value: repr(value[:20]))
async def test_g05_bad_arguments_become_an_error_result_with_a_bounded_excerpt(arguments: str) -> None:
    add, ran = recorder()
    model = ScriptedModel([asks_for(arguments), "done", "ok"])
    with at_most():
        async with agent_with(model, tools=[add]).session() as session:
            first = await session.run("go")
            second = await session.run("again")
            results = results_of(session)

    assert ran == []
    assert (first.output, second.output) == ("done", "ok")
    assert results["c1"].is_error
    assert 0 < len(results["c1"].text) <= 1100
    for request in model.requests[1:]:
        replayed = [c.arguments for message in request.messages for c in message.tool_calls]
        assert [type(json.loads(text)) for text in replayed] == [dict]


async def test_g05_of_a_key_that_is_there_twice_the_last_one_counts() -> None:
    add, ran = recorder()
    with at_most():
        async with agent_with([asks_for('{"a":1,"a":2,"b":3}'), "done"], tools=[add]).session() as session:
            result = await session.run("go")

    assert ran == [(2, 3)]
    assert result.output == "done"


@pytest.mark.parametrize("arguments", ["", "null", "{}", " null ", "\n"])
async def test_g05_nothing_and_null_mean_no_arguments_where_none_are_required(arguments: str) -> None:
    ran: list[int] = []

    @tool
    async def now(zone: str = "UTC") -> str:
        ran.append(1)
        return "12:00"

    model = ScriptedModel([asks_for(arguments, "now"), "noon"])
    with at_most():
        result = await agent_with(model, tools=[now]).run("go")

    assert ran == [1]
    assert result.output == "noon"
    assert [c.arguments for m in model.requests[1].messages for c in m.tool_calls] == ["{}"]


@pytest.mark.parametrize("arguments", [None, {"a": 1, "b": 2}, [1], 7, b'{"a":1,"b":2}', object], ids=repr)
async def test_g05_arguments_that_are_no_text_at_all_end_in_a_valid_history(arguments: Any) -> None:
    add, ran = recorder()
    model = ScriptedModel([asks_for("{}"), "done", "ok"], check=False)

    async def broken(ctx: ModelContext, call_next: Any) -> ModelResponse:
        response: ModelResponse = await call_next()
        parts = [attrs.evolve(p, arguments=arguments) if isinstance(p, ToolCall) else p for p in response.parts]
        return attrs.evolve(response, parts=tuple(parts))

    with at_most():
        async with agent_with(model, tools=[add]).use(model=broken).session() as session:
            result = await session.run("go")
            results = results_of(session)

    assert result.output == "done"
    assert results["c1"].is_error or ran == [(1, 2)]


async def test_g05_bad_arguments_beside_good_ones_cost_only_their_own_call() -> None:
    add, ran = recorder()
    calls = [call("add", "[1]"), call("add", a=1, b=2), call("add", "{")]
    with at_most():
        async with agent_with([calls, "3"], tools=[add]).session() as session:
            await session.run("go")
            results = results_of(session)

    assert ran == [(1, 2)]
    assert [(r.call_id, r.is_error) for r in results.values()] == [("c1", True), ("c2", False), ("c3", True)]


@given(
    st.text(max_size=40) | st.recursive(st.none() | st.integers() | st.floats() | st.text(), st.lists).map(json.dumps)
)
def test_g05_whatever_a_model_writes_as_arguments_the_turn_goes_on(arguments: str) -> None:
    add, _ = recorder()

    async def turn() -> None:
        model = ScriptedModel([asks_for(arguments), "done"])
        async with agent_with(model, tools=[add]).session() as session:
            result = await session.run("go")
            assert result.output == "done"
            assert len(results_of(session)["c1"].text) <= 1100

    anyio.run(turn)


# G06: one of several parallel tools raises


def running_tasks(backend: str) -> int:
    """Return how many tasks there are."""
    if backend == "asyncio":
        return len(asyncio.all_tasks())
    import trio

    return trio.lowlevel.current_statistics().tasks_living


async def test_g06_a_tool_that_raises_leaves_its_sibling_alone(
    anyio_backend_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    done: list[str] = []

    @tool
    async def boom() -> str:
        raise ValueError("no")

    @tool
    async def slow() -> str:
        await anyio.sleep(0.05)
        done.append("slow")
        return "ok"

    model = ScriptedModel([[call("boom"), call("slow")], "fine"])
    before = running_tasks(anyio_backend_name)
    with at_most(), caplog.at_level(logging.WARNING):
        async with agent_with(model, tools=[boom, slow]).session() as session:
            result = await session.run("go")

    assert result.output == "fine"
    assert done == ["slow"]
    assert sent(model.requests[1])[-1] == 'R!(c1)"ValueError: no" R(c2)"ok"'
    assert running_tasks(anyio_backend_name) == before
    assert caplog.text == ""


async def test_g06_a_tool_that_aborts_ends_the_turn_after_its_sibling_has_ended(
    anyio_backend_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    log: list[str] = []

    @tool
    async def boom(ctx: ToolContext) -> str:
        ctx.abort("enough")

    @tool
    async def slow() -> str:
        try:
            await anyio.sleep(0.05)
            log.append("slow finished")
        finally:
            log.append("slow ended")
        return "ok"

    before = running_tasks(anyio_backend_name)
    with at_most(), caplog.at_level(logging.WARNING):
        async with agent_with([[call("boom"), call("slow")]], tools=[boom, slow]).session() as session:
            with pytest.raises(TurnAborted) as caught:
                await session.run("go")
            log.append("the caller has it")
            results = results_of(session)
            last_of(session)

    assert caught.value.reason == "enough"
    assert log[-2:] == ["slow ended", "the caller has it"]
    assert results["c2"].is_error == ("slow finished" not in log)
    assert running_tasks(anyio_backend_name) == before
    assert caplog.text == ""


async def test_g06_when_every_parallel_tool_raises_each_has_its_own_error() -> None:
    @tool
    async def fail(text: str) -> str:
        await anyio.lowlevel.checkpoint()
        raise RuntimeError(text)

    calls = [call("fail", text=str(n)) for n in range(40)]
    model = ScriptedModel([calls, "ok"])
    with at_most():
        result = await agent_with(model, tools=[fail]).run("go")

    assert result.output == "ok"
    [message] = model.requests[1].messages[2:]
    assert [(part.call_id, part.text) for part in message.parts if isinstance(part, ToolResult)] == [
        (f"c{n + 1}", f"RuntimeError: {n}") for n in range(40)
    ]


@pytest.mark.parametrize("how", ["raises", "times out", "returns nonsense"])
async def test_g06_a_sync_sibling_is_unharmed_too(how: str) -> None:
    @tool(timeout=0.02)
    async def boom() -> Any:
        if how == "raises":
            raise ValueError("no")
        if how == "times out":
            await anyio.sleep(10)
        return object()

    @tool
    def quiet() -> str:
        return "ok"

    with at_most():
        async with agent_with([[call("boom"), call("quiet")], "fine"], tools=[boom, quiet]).session() as session:
            await session.run("go")
            results = results_of(session)

    assert results["c1"].is_error
    assert results["c2"].text == "ok"


# G07: interrupt while parallel tools run, then resume in a new process


class Places:
    """An agent with `fast` and `hang`, and the one place of its turn in which it hangs, to be cancelled there."""

    def __init__(self, place: str) -> None:
        self.place = place
        self.there = anyio.Event()
        self.store = MemoryStore()
        self.ran: list[str] = []

    async def hang_at(self, place: str) -> None:
        if place == self.place:
            self.there.set()
            await anyio.sleep_forever()

    def agent(self) -> Agent[Any, str]:
        fast_done = anyio.Event()

        @tool
        async def fast() -> str:
            self.ran.append("fast")
            fast_done.set()
            return "1"

        @tool
        async def hang() -> str:
            self.ran.append("hang")
            if self.place == "tools":
                await fast_done.wait()
                for _ in range(5):
                    await anyio.lowlevel.checkpoint()
            await self.hang_at("tools")
            return "2"

        async def turn_layer(ctx: Any, call_next: Any) -> Any:
            await self.hang_at("turn before")
            result = await call_next()
            await self.hang_at("turn after")
            return result

        async def model_layer(ctx: Any, call_next: Any) -> Any:
            await self.hang_at("model before")
            response = await call_next()
            await self.hang_at("model after")
            return response

        async def tool_layer(ctx: Any, call_next: Any) -> Any:
            await self.hang_at("tool before")
            result = await call_next()
            if ctx.tool.name == "hang":
                await self.hang_at("tool after")
            return result

        agent = agent_with(self, tools=[fast, hang], store=self.store)
        return agent.use(turn_layer).use(model=model_layer).use(tool=tool_layer)

    name = "places"
    calls = 0

    async def respond(self, request: ModelRequest, emit: Any) -> ModelResponse:
        check_history(request.wire_messages)
        self.calls += 1
        if self.calls > 1:
            await self.hang_at("second model call")
            return ModelResponse((TextPart("done"),), usage=Usage(1, 1))
        await emit(TextDelta("I will"))
        await self.hang_at("text")
        await emit(ToolArgsDelta("{}", "c1", "fast"))
        await emit(ToolArgsDelta("{", "c2", "hang"))
        await self.hang_at("second call")
        await emit(ToolArgsDelta("}", "c2"))
        parts = (TextPart("I will"), ToolCall("c1", "fast"), ToolCall("c2", "hang"))
        return ModelResponse(parts, "tool_use", usage=Usage(1, 1))


ASKED = ['U"go"', 'A"I will"[c1:fast{}][c2:hang{}]']
INTERRUPTED = re.compile(r'R!\(c2\)"interrupted.*"')
PLACES: dict[str, list[str]] = {
    "turn before": [],
    "model before": ['U"go"'],
    "text": ['U"go"'],
    "second call": ['U"go"'],
    "model after": ['U"go"'],
    "tool before": [*ASKED, "R!(c1) R!(c2)"],
    "tools": [*ASKED, "R(c1)1 R!(c2)"],
    "tool after": [*ASKED, "R(c1)1 R!(c2)"],
    "second model call": [*ASKED, "R(c1)1 R(c2)2"],
    "turn after": [*ASKED, "R(c1)1 R(c2)2", 'A"done"'],
}
"""Where the turn is cancelled, and the history that has to be there afterwards."""


def compact(messages: Sequence[Message]) -> list[str]:
    """Return the short form, of results only what is settled: the text of one that is no error."""
    return [
        " ".join(
            [
                f"R!({part.call_id})" if part.is_error else f"R({part.call_id}){part.text}"
                for part in message.parts
                if isinstance(part, ToolResult)
            ]
        )
        if message.role == "tool"
        else line
        for message, line in zip(messages, short(messages), strict=True)
    ]


async def cancelled_run(how: str, backend: str, places: Places, session: Session[str]) -> str:
    """Run a turn and cancel it where it hangs; return what the caller of `run` gets."""
    got: list[str] = []

    async def run() -> None:
        try:
            await session.run("go")
            got.append("a result")
        except BaseException as error:
            is_cancel = isinstance(error, anyio.get_cancelled_exc_class())
            got.append("cancelled" if is_cancel else type(error).__name__)
            if is_cancel:
                raise

    if how == "native" and backend == "asyncio":
        task = asyncio.ensure_future(run())
        await places.there.wait()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        return got[0]
    async with anyio.create_task_group() as group:
        group.start_soon(run)
        await places.there.wait()
        if how == "session":
            assert session.cancel()
        else:
            group.cancel_scope.cancel()
    return got[0]


@pytest.mark.parametrize("how", ["scope", "native", "session"])
@pytest.mark.parametrize("place", PLACES)
async def test_g07_a_turn_cancelled_anywhere_can_be_resumed_in_a_new_process(
    place: str, how: str, anyio_backend_name: str
) -> None:
    places = Places(place)
    with at_most():
        async with places.agent().session(id="s", user="ann") as session:
            got = await cancelled_run(how, anyio_backend_name, places, session)
            result = last_of(session)
            before = compact(session.history)
    assert got == ("TurnAborted" if how == "session" else "cancelled")
    assert result.status == "cancelled"
    assert before == PLACES[place]

    model = ScriptedModel(["here"])
    with at_most():
        async with agent_with(model, store=places.store).session(id="s", user="ann") as again:
            answered = await again.run("and now?")
    assert answered.output == "here"
    assert compact(model.requests[0].messages) == [*PLACES[place], 'U"and now?"']


async def test_g07_the_result_of_the_finished_call_is_kept_and_the_other_says_that_it_was_interrupted() -> None:
    places = Places("tools")
    with at_most():
        async with places.agent().session(id="s") as session:
            await cancelled_run("scope", "", places, session)
            history = short(session.history)

    first, second = history[2].split(" ", 1)
    assert first == 'R(c1)"1"'
    assert INTERRUPTED.match(second)


async def test_g07_what_was_cancelled_before_it_started_has_no_start_in_the_log() -> None:
    places = Places("tool before")
    with at_most():
        async with places.agent().session(id="s") as session:
            await cancelled_run("scope", "", places, session)
            kinds = [event.kind for event in session.events]

    assert places.ran == []
    assert "tool.start" not in kinds
    assert kinds.count("tool.call") == kinds.count("tool.result") == 2


@pytest.mark.parametrize("place", ["text", "second call", "tools", "second model call"])
async def test_g07_leaving_a_stream_cancels_at_the_same_places(place: str) -> None:
    places = Places(place)
    with at_most():
        async with places.agent().session(id="s") as session:
            async with session.stream("go") as stream:
                async with anyio.create_task_group() as group:

                    async def drain() -> None:
                        async for _ in stream:
                            pass

                    group.start_soon(drain)
                    await places.there.wait()
                    group.cancel_scope.cancel()
            assert last_of(session).status == "cancelled"
            assert compact(session.history) == PLACES[place]


def hanging(started: anyio.Event) -> Tool:
    """Return a tool that says when it has started and never ends."""

    @tool
    async def hang() -> str:
        started.set()
        await anyio.sleep_forever()
        return ""

    return hang


async def test_g07_a_session_survives_ten_interrupted_turns_in_ten_processes() -> None:
    store = MemoryStore()
    model = ScriptedModel([*[[call("hang"), call("hang")] for _ in range(10)], "at last"])
    with at_most():
        for number in range(10):
            started = anyio.Event()
            async with agent_with(model, tools=[hanging(started)], store=store).session(id="s") as session:
                async with anyio.create_task_group() as group:
                    group.start_soon(session.run, f"turn {number}")
                    await started.wait()
                    group.cancel_scope.cancel()
        async with agent_with(model, store=store).session(id="s") as session:
            result = await session.run("now?")

    assert result.output == "at last"
    assert len(model.requests[-1].messages) == 31


async def test_g07_a_cancelled_retry_leaves_no_half_answer() -> None:
    model = ScriptedModel([OverloadedError("busy", retry_after=3), "never"])
    with at_most():
        async with agent_with(model).use(Retry(base_delay=0.0)).session() as session:
            async with anyio.create_task_group() as group:
                group.start_soon(session.run, "go")
                await anyio.wait_all_tasks_blocked()
                group.cancel_scope.cancel()
            assert last_of(session).status == "cancelled"
            assert short(session.history) == ['U"go"']
            assert session.usage.requests == 1


async def test_g07_a_cancelled_sub_agent_leaves_both_histories_valid() -> None:
    store, started = MemoryStore(), anyio.Event()
    child = agent_with([call("hang"), "never"], tools=[hanging(started)], name="child", store=store)
    agent = agent_with([call("child", task="help"), "never"], tools=[child.as_tool()], store=store)
    with at_most():
        async with agent.session(id="s") as session:
            async with anyio.create_task_group() as group:
                group.start_soon(session.run, "go")
                await started.wait()
                group.cancel_scope.cancel()
            assert results_of(session)["c1"].status == "cancelled"
        async with agent_with([], store=store).session(id="s/c1") as inner:
            assert compact(inner.history) == ['U"help"', 'A""[c1:hang{}]', "R!(c1)"]


@tool
async def steps(count: int) -> str:
    for _ in range(count):
        await anyio.lowlevel.checkpoint()
    return str(count)


@tool
def in_a_thread() -> str:
    return "sync"


def busy() -> Agent[Any, str]:
    """Return an agent whose turn has many places to be cancelled at: layers, a retry, parallel tools, a sub-agent."""
    asked = [call("steps", count=2), call("in_a_thread"), call("child", task="help"), call("nothing")]
    child = agent_with(FunctionModel(helping), tools=[steps], name="child")
    model = FaultyModel(ScriptedModel([["one", *asked], "two", "three", "four"]), {2: Cut(after=1)})

    async def waits(ctx: Any, call_next: Any) -> Any:
        await anyio.lowlevel.checkpoint()
        try:
            return await call_next()
        finally:
            with ctx.shield(1):
                await anyio.lowlevel.checkpoint()

    agent = agent_with(model, tools=[steps, in_a_thread, child.as_tool()], plugins=[Retry(base_delay=0.0)])
    return agent.use(waits).use(model=waits, name="m").use(tool=waits, name="t")


def helping(request: ModelRequest) -> Any:
    return call("steps", count=1) if len(request.messages) < 3 else "helped"


@pytest.mark.parametrize("how", ["scope", "native", "session"])
async def test_g07_a_turn_cancelled_after_any_number_of_switches_leaves_a_valid_session(
    how: str, anyio_backend_name: str
) -> None:
    ended: set[str] = set()
    for switches in range(35):
        async with busy().session() as session:
            with at_most():
                await cancelled_after(switches, how, anyio_backend_name, session)
                if session.last_result is not None and session.last_result.status != "completed":
                    ended.add(last_of(session).status)
                check_history(session.history)
                kinds = [event.kind for event in session.events]
                assert kinds.count("turn.start") == kinds.count("turn.end")
                assert kinds.count("model.start") == kinds.count("model.end")
                assert kinds.count("tool.call") == kinds.count("tool.result")
                result = await session.run("and now?", model=ScriptedModel(["here"]))
        assert result.output == "here"
    assert ended == {"cancelled"}


async def cancelled_after(switches: int, how: str, backend: str, session: Session[str]) -> None:
    """Run a turn in a task of its own and cancel it after this task has had so many turns."""

    async def run() -> None:
        if how == "stream":
            async with session.stream("go") as stream:
                async for _ in stream:
                    pass
        else:
            with contextlib.suppress(TurnAborted):
                await session.run("go")

    if how == "native" and backend == "asyncio":
        task = asyncio.ensure_future(run())
        for _ in range(switches):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        return
    async with anyio.create_task_group() as group:
        group.start_soon(run)
        for _ in range(switches):
            await anyio.lowlevel.checkpoint()
        if how == "session":
            session.cancel()
        else:
            group.cancel_scope.cancel()


@pytest.mark.parametrize("events", range(0, 40, 3))
async def test_g07_a_stream_left_after_any_number_of_events_leaves_a_valid_session(events: int) -> None:
    with at_most():
        async with busy().session() as session:
            async with session.stream("go") as stream:
                seen = 0
                async for _ in stream:
                    seen += 1
                    if seen >= events:
                        break
            if session.last_result is not None:
                last_of(session)
            result = await session.run("and now?", model=ScriptedModel(["here"]))
            check_history(session.history)
    assert result.output == "here"


# G08: trimming or compaction cuts through call/result pairs


def user(text: str) -> Message:
    return Message("user", (TextPart(text),))


def asks(*ids: str, thinking: str = "") -> Message:
    signed = (ThinkingPart(thinking, signature=f"sig {thinking}"),) if thinking else ()
    return Message("assistant", (*signed, *[ToolCall(call_id, "f") for call_id in ids]))


def says(text: str) -> Message:
    return Message("assistant", (TextPart(text),))


def gives(*ids: str) -> Message:
    return Message("tool", tuple([ToolResult(call_id, "f", (TextPart(f"result of {call_id}"),)) for call_id in ids]))


OPEN_ROUND = [asks("c4", thinking="hm"), gives("c4")]
LONG = [user("a"), asks("c1"), gives("c1"), asks("c2", "c3"), gives("c2", "c3"), says("x"), user("b"), *OPEN_ROUND]


def is_sendable(messages: Sequence[Message], newest: str) -> bool:
    check_history(messages)
    return messages[0].role == "user" and [m.text for m in messages if m.role == "user"][-1] == newest


@pytest.mark.parametrize("keep", range(11))
def test_g08_whatever_number_is_kept_the_request_is_valid(keep: int) -> None:
    kept = keep_recent(LONG, keep)

    assert is_sendable(kept, "b")
    assert kept[-2:] == OPEN_ROUND
    assert kept == LONG[len(LONG) - len(kept) :]


@pytest.mark.parametrize("tokens", [0, 1, 5, 10, 17, 23, 40, 1000])
def test_g08_a_token_limit_inside_a_message_cuts_at_an_exchange_too(tokens: int) -> None:
    kept = keep_recent(LONG, 100, max_tokens=tokens, count=lambda message: 7)

    assert is_sendable(kept, "b")
    assert kept[-2:] == OPEN_ROUND
    assert len(kept) == (9 if tokens >= 63 else 3)


def test_g08_keeping_more_never_keeps_less() -> None:
    sizes = [len(keep_recent(LONG, keep)) for keep in range(11)]

    assert sizes == sorted(sizes)
    assert sizes[-1] == len(LONG)


@st.composite
def histories(draw: st.DrawFn) -> list[Message]:
    """Return a history as turns leave it: exchanges, each with rounds of calls, perhaps without an answer."""
    messages: list[Message] = []
    number = 0
    for exchange in range(draw(st.integers(1, 5))):
        messages.append(user(f"question {exchange}"))
        for _ in range(draw(st.integers(0, 3))):
            ids = [f"c{number + n}" for n in range(draw(st.integers(1, 3)))]
            number += len(ids)
            messages += [asks(*ids, thinking=draw(st.sampled_from(["", "hm"]))), gives(*ids)]
        if draw(st.booleans()):
            messages.append(says("answer"))
    return messages


@given(histories(), st.integers(-1, 30), st.none() | st.integers(0, 200))
def test_g08_every_history_can_be_cut_to_every_size(messages: list[Message], keep: int, tokens: int | None) -> None:
    before = list(messages)
    kept = keep_recent(messages, keep, max_tokens=tokens)

    check_history(kept)
    assert messages == before
    assert kept == messages[len(messages) - len(kept) :]
    assert kept[0].role == "user"
    newest = max(index for index, message in enumerate(messages) if message.role == "user")
    assert kept[-len(messages[newest:]) :] == messages[newest:]
    if len(kept) > keep:
        assert kept == messages[newest:]


def test_g08_an_empty_history_stays_empty() -> None:
    assert keep_recent([], 3) == []


async def test_g08_a_trim_of_the_request_leaves_the_stored_history_alone() -> None:
    async def trim(ctx: ModelContext, call_next: Any) -> ModelResponse:
        ctx.request = attrs.evolve(ctx.request, messages=keep_recent(ctx.request.messages, 3))
        response: ModelResponse = await call_next()
        return response

    model = ScriptedModel([[call("f"), call("f")], "one", call("f"), "two"])
    f, _ = returning("f")
    with at_most():
        async with agent_with(model, tools=[f]).use(model=trim).session() as session:
            await session.run("a")
            await session.run("b")
            assert len(session.history) == 8

    assert [message.role for message in model.requests[3].messages] == ["user", "assistant", "tool"]
    assert model.requests[3].messages[0].text == "b"


def returning(name: str, text: str = "result") -> tuple[Tool, list[int]]:
    ran: list[int] = []

    @tool(name=name)
    async def f() -> str:
        ran.append(1)
        return text

    return f, ran


@attrs.frozen
class Ran:
    """What is left of three turns after the session was closed."""

    requests: Sequence[ModelRequest]
    history: Sequence[str]
    events: Sequence[Event]


async def run_with_cut(cut: Callable[[ModelContext], Any], at_call: int = 4) -> Ran:
    """Run four turns of one session; before model call `at_call` a layer cuts the history."""
    calls: list[int] = []

    async def cutter(ctx: ModelContext, call_next: Any) -> ModelResponse:
        if len(calls) == at_call:
            ctx.add_context("added")
            cut(ctx)
        calls.append(1)
        response: ModelResponse = await call_next()
        return response

    f, _ = returning("f")
    model = ScriptedModel([[call("f"), call("f")], "one", "two", call("f"), "three", "four"])
    async with agent_with(model, tools=[f]).use(model=cutter).session(id="s") as session:
        for text in ("a", "b", "c", "d"):
            await session.run(text)
        return Ran(model.requests, short(session.history), session.events)


TURN_C = ['U"c"', 'A""[c3:f{}]', 'R(c3)"result"']
CUTS: dict[str, tuple[Callable[[ModelContext], Any], list[str]]] = {
    "replace": (
        lambda ctx: ctx.history.replace(2, "they talked"),
        ['U"Summary of the conversation so far:\nthey talked"', *TURN_C],
    ),
    "drop": (lambda ctx: ctx.history.drop(1), ['U"b"', 'A"two"', *TURN_C]),
    "drop all": (lambda ctx: ctx.history.drop(len(ctx.history.exchanges)), TURN_C),
    "clear_results": (
        lambda ctx: ctx.history.clear_results(["c1", "c3"], "cleared"),
        [
            'U"a"',
            'A""[c1:f{}][c2:f{}]',
            'R(c1)"cleared" R(c2)"result"',
            'A"one"',
            'U"b"',
            'A"two"',
            *TURN_C,
        ],
    ),
}


@pytest.mark.parametrize("name", CUTS)
async def test_g08_a_durable_cut_refreshes_the_request_keeps_pairs_and_the_log_keeps_the_originals(name: str) -> None:
    cut, expected = CUTS[name]
    with at_most():
        ran = await run_with_cut(cut)

    assert short(ran.requests[4].messages) == expected
    assert ran.requests[4].context == ("added",)
    assert short(ran.requests[5].messages) == [*expected, 'A"three"', 'U"d"']
    assert ran.history == [*expected, 'A"three"', 'U"d"', 'A"four"']
    assert [type(event) for event in ran.events].count(HistoryReplaced) == 1
    said = [e.response.text for e in ran.events if isinstance(e, ModelEnd) and e.response is not None]
    assert said == ["", "one", "two", "", "three", "four"]


@pytest.mark.parametrize("count", [-1, 3, 100])
async def test_g08_more_exchanges_than_are_closed_cannot_be_cut(count: int) -> None:
    with at_most(), pytest.raises(SessionError):
        await run_with_cut(lambda ctx: ctx.history.drop(count))


async def test_g08_a_cut_between_calls_and_results_does_not_reach_the_open_exchange() -> None:
    seen: list[int] = []

    async def cutter(ctx: ToolContext, call_next: Any) -> ToolResult:
        seen.append(len(ctx.history.exchanges))
        ctx.history.drop(len(ctx.history.exchanges))
        result: ToolResult = await call_next()
        return result

    f, _ = returning("f")
    model = ScriptedModel(["one", [call("f"), call("f")], "two"])
    with at_most():
        async with agent_with(model, tools=[f]).use(tool=cutter).session() as session:
            await session.run("a")
            await session.run("b")
            history = short(session.history)
            check_history(session.history)

    assert seen == [1, 0]
    assert history == ['U"b"', 'A""[c1:f{}][c2:f{}]', 'R(c1)"result" R(c2)"result"', 'A"two"']


async def test_g08_a_cut_history_survives_a_restart() -> None:
    store = MemoryStore()

    async def cut(ctx: Any, call_next: Any) -> Any:
        ctx.history.replace(len(ctx.history.exchanges), "before")
        return await call_next()

    model = ScriptedModel(["one", "two"])
    with at_most():
        async with agent_with(model, store=store).session(id="s") as session:
            await session.run("a")
        async with agent_with(model, store=store).use(model=cut).session(id="s") as session:
            await session.run("b")
            expected = short(session.history)
        async with agent_with(model, store=store).session(id="s") as session:
            assert short(session.history) == expected
    assert expected == ['U"Summary of the conversation so far:\nbefore"', 'U"b"', 'A"two"']


# G10: output limit reached inside or right after a tool call


def writer() -> tuple[Tool, list[str]]:
    ran: list[str] = []

    @tool
    async def write(path: str, content: str = "") -> str:
        ran.append(path)
        return "written"

    return write, ran


CUT_CALLS: dict[str, list[ToolCall]] = {
    "A: cut inside the arguments": [ToolCall("c1", "write", '{"path":"a.txt","content":"hel')],
    "B: cut where it still parses": [ToolCall("c1", "write", '{"path":"a.txt"}')],
    "C: nothing of the arguments": [ToolCall("c1", "write", "{}")],
    "D: the first is whole": [
        ToolCall("c1", "write", '{"path":"a.txt","content":"hello"}'),
        ToolCall("c2", "write", '{"path":"b.txt","con'),
    ],
}
CUT_REASONS = {
    "max_tokens": "truncated",
    "content_filter": "refused",
    "refusal": "refused",
    "unknown": "truncated",
    "context_window": "truncated",
    "some_new_reason": "truncated",
}


@pytest.mark.parametrize("reason", CUT_REASONS)
@pytest.mark.parametrize("calls", CUT_CALLS.values(), ids=list(CUT_CALLS))
async def test_g10_no_call_of_a_cut_response_runs(calls: list[ToolCall], reason: str) -> None:
    write, ran = writer()
    parts = (TextPart("writing"), *calls)
    cut = ModelResponse(parts, reason, usage=Usage(1, 1), raw_stop_reason=f"raw {reason}")
    model = FunctionModel(lambda request: "ok" if request.messages[-1].text == "again" else cut)
    with at_most():
        async with agent_with(model, tools=[write]).session() as session:
            first = await session.run("go")
            results = results_of(session)
            second = await session.run("again")

    assert ran == []
    assert first.status == CUT_REASONS[reason]
    assert first.reason
    assert [result.is_error for result in results.values()] == [True] * len(calls)
    assert len(model.requests) == 2
    assert second.output == "ok"
    assert all(isinstance(json.loads(c.arguments), dict) for m in model.requests[1].messages for c in m.tool_calls)


async def test_g10_the_outcome_of_an_unknown_stop_reason_names_the_raw_one() -> None:
    odd = ModelResponse((TextPart("hm"),), "unknown", raw_stop_reason="sabbatical", usage=Usage(1, 1))
    with at_most():
        result = await agent_with([odd], tools=[]).run("go")

    assert result.status == "truncated"
    assert "sabbatical" in (result.reason or "")
    assert result.text == "hm"


@pytest.mark.parametrize("reason", ["end_turn", "tool_use", "stop_sequence"])
async def test_g10_calls_of_a_whole_response_run_whatever_its_label(reason: str) -> None:
    write, ran = writer()
    response = ModelResponse((ToolCall("c1", "write", '{"path":"a"}'),), reason, usage=Usage(1, 1))
    with at_most():
        result = await agent_with([response, "done"], tools=[write]).run("go")

    assert ran == ["a"]
    assert result.output == "done"


async def test_g10_a_response_without_calls_that_claims_some_is_an_answer() -> None:
    response = ModelResponse((TextPart("hello"),), "tool_use", usage=Usage(1, 1))
    with at_most():
        result = await agent_with([response], tools=[]).run("go")

    assert result.status == "completed"
    assert result.output == "hello"


async def test_g10_truncated_text_is_there_but_is_no_output() -> None:
    response = ModelResponse((TextPart("The answer is"),), "max_tokens", usage=Usage(1, 1))
    with at_most():
        result = await agent_with([response], tools=[]).run("go")

    assert (result.status, result.text) == ("truncated", "The answer is")
    with pytest.raises(NoOutputError) as caught:
        _ = result.output
    assert caught.value.status == "truncated"


# G11: paused server-side turn


def item(**data: Any) -> OpaquePart:
    return OpaquePart("anthropic", data)


SEARCH = item(type="server_tool_use", id="s1", name="web_search", input={"q": "x"})
FOUND = item(type="web_search_tool_result", tool_use_id="s1")
PAUSED = ModelResponse((TextPart("searching"), SEARCH), "pause_turn", usage=Usage(3, 5))
ANSWER = ModelResponse((FOUND, TextPart("42")), "end_turn", usage=Usage(4, 7))


@pytest.mark.parametrize("streamed", [False, True])
async def test_g11_a_paused_turn_is_sent_back_unchanged_and_goes_on(streamed: bool) -> None:
    model = ScriptedModel([PAUSED, ANSWER, "third"])
    with at_most():
        async with agent_with(model, tools=[]).session() as session:
            if streamed:
                async with session.stream("go") as stream:
                    text = "".join([piece async for piece in stream.text])
                result = stream.result
                assert text == "searching42"
            else:
                result = await session.run("go")
            await session.run("and then?")

    assert (result.status, result.usage.output_tokens) == ("completed", 12)
    assert "42" in result.output
    first, second, third = model.requests
    assert list(second.messages) == [*first.messages, Message("assistant", PAUSED.parts)]
    assert list(third.messages)[:3] == [*second.messages, Message("assistant", ANSWER.parts)]


async def test_g11_endless_pausing_ends_at_the_limit() -> None:
    model = FunctionModel(lambda request: PAUSED)
    with at_most():
        async with agent_with(model, tools=[]).use(LimitsGuard(requests=6)).session() as session:
            result = await session.run("go")
            last_of(session)

    assert result.status == "limit"
    assert result.usage.output_tokens == 30
    assert len(model.requests) == 6


async def test_g11_a_paused_response_with_a_call_of_ours_runs_it_first() -> None:
    f, ran = returning("f")
    paused = ModelResponse((SEARCH, ToolCall("c1", "f")), "pause_turn", usage=Usage(1, 1))
    model = ScriptedModel([paused, ANSWER])
    with at_most():
        result = await agent_with(model, tools=[f]).run("go")

    assert ran == [1]
    assert "42" in result.output
    assert compact(model.requests[1].messages)[-1] == "R(c1)result"


async def test_g11_a_pause_survives_a_restart() -> None:
    store, reached = MemoryStore(), anyio.Event()

    async def hang(request: ModelRequest) -> str:
        reached.set()
        await anyio.sleep_forever()
        return ""

    with at_most():
        async with agent_with([PAUSED, hang], tools=[], store=store).session(id="s") as session:
            async with anyio.create_task_group() as group:
                group.start_soon(session.run, "go")
                await reached.wait()
                group.cancel_scope.cancel()
        model = ScriptedModel(["ok"])
        async with agent_with(model, tools=[], store=store).session(id="s") as session:
            await session.run("and?")

    assert model.requests[0].messages[1] == Message("assistant", PAUSED.parts)


# G14: cumulative usage in streams


class Counting:
    """A model that streams `deltas` pieces and reports its running totals once, as its response's usage."""

    name = "counting"

    def __init__(self, *usages: Usage | None, deltas: int = 3) -> None:
        self.usages = usages
        self.deltas = deltas
        self.calls = 0

    async def respond(self, request: ModelRequest, emit: Any) -> ModelResponse:
        self.calls += 1
        for _ in range(self.deltas):
            await emit(TextDelta("x"))
            await anyio.lowlevel.checkpoint()
        more = (ToolCall(f"c{self.calls}", "f"),) if self.calls < len(self.usages) else ()
        return ModelResponse((TextPart("x" * self.deltas), *more), usage=self.usages[self.calls - 1])


A = Usage(25, 15)
B = Usage(40, 20, cache_read_tokens=100)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("usages", [[A], [B], [A, B], [A] * 5])
async def test_g14_usage_is_added_per_call_and_not_per_event(usages: list[Usage], streamed: bool) -> None:
    f, _ = returning("f")
    with at_most():
        async with agent_with(Counting(*usages), tools=[f]).session() as session:
            if streamed:
                async with session.stream("go") as stream:
                    async for _ in stream:
                        pass
                result = stream.result
            else:
                result = await session.run("go")
            ended = session.events[-1]
            attempts = [event.usage for event in session.events if isinstance(event, ModelAttempt)]
            total = session.usage

    expected = sum(usages[1:], usages[0])
    assert result.usage == expected == total == ended.usage  # type: ignore[attr-defined]  # it is a turn.end
    assert attempts == usages


async def test_g14_usage_of_a_stream_that_was_left_is_marked_as_incomplete() -> None:
    with at_most():
        async with agent_with(Counting(A, deltas=1000), tools=[]).session() as session:
            async with session.stream("go") as stream:
                async for _ in stream.text:
                    break
            result = last_of(session)

    assert result.status == "cancelled"
    assert result.usage.requests == 1
    assert result.usage.estimated


async def test_g14_usage_that_nobody_reported_is_unknown_and_not_nothing() -> None:
    with at_most():
        result = await agent_with(Counting(None), tools=[]).run("go")

    assert result.usage == Usage(requests=1, estimated=True)


async def test_g14_what_a_failed_attempt_used_counts() -> None:
    model = ScriptedModel([OverloadedError("busy", usage=Usage(25, 1)), "Hello"], usage=A)
    with at_most():
        result = await agent_with(model, tools=[]).use(Retry(base_delay=0.0)).run("go")

    assert result.output == "Hello"
    assert result.usage == Usage(50, 16, requests=2)


# G16: sub-agent spend and limits

TEN = Usage(4, 6)


def looping(rounds: int, then: str = "found it") -> FunctionModel:
    """Return a model that asks for a tool in each of `rounds` calls and then answers."""

    def reply(request: ModelRequest) -> Any:
        done = sum([message.role == "tool" for message in request.messages])
        return ModelResponse((ToolCall(f"k{done}", "f"),), "tool_use", usage=TEN) if done < rounds else answered(then)

    return FunctionModel(reply)


def answered(text: str) -> ModelResponse:
    return ModelResponse((TextPart(text),), usage=TEN)


def delegating(child_model: Any, *, requests: int = 5, child: Sequence[Plugin[Any]] = ()) -> tuple[Any, ScriptedModel]:
    f, _ = returning("f")
    helper = agent_with(child_model, tools=[f], name="delegate", plugins=child)
    ask = ModelResponse((ToolCall("c1", "delegate", '{"task":"look"}'),), "tool_use", usage=TEN)
    model = ScriptedModel([ask, *[answered("done") for _ in range(5)]])
    return agent_with(model, tools=[helper.as_tool()], plugins=[LimitsGuard(requests=requests)]), model


async def test_g16_the_calls_of_a_sub_agent_count_for_the_turn_that_asked_it() -> None:
    agent, model = delegating(looping(2))
    with at_most():
        async with agent.session() as session:
            result = await session.run("go")
            total = session.usage

    assert result.output == "done"
    assert (result.usage.requests, result.usage.total_tokens) == (5, 50)
    assert total == result.usage
    assert len(model.requests) == 2


async def test_g16_the_limit_is_reached_at_exactly_the_sixth_call() -> None:
    child = looping(8)
    agent, model = delegating(child)
    with at_most():
        async with agent.session() as session:
            result = await session.run("go")
            results_of(session)
            last_of(session)

    assert result.status == "limit"
    assert len(child.requests) + len(model.requests) == 5
    assert result.usage.requests == 5
    assert result.usage.total_tokens == 50


async def test_g16_the_parents_last_call_may_be_the_one_that_is_refused() -> None:
    child = looping(3)
    agent, model = delegating(child)
    with at_most():
        result = await agent.run("go")

    assert result.status == "limit"
    assert (len(child.requests), len(model.requests)) == (4, 1)


async def test_g16_the_calls_of_a_cancelled_sub_agent_stay_booked() -> None:
    reached = anyio.Event()

    async def third(request: ModelRequest) -> Any:
        if len(request.messages) < 5:
            return ModelResponse((ToolCall(f"k{len(request.messages)}", "f"),), "tool_use", usage=TEN)
        reached.set()
        await anyio.sleep_forever()
        return ""

    agent, _ = delegating(FunctionModel(third))
    with at_most():
        async with agent.session() as session:
            async with anyio.create_task_group() as group:
                group.start_soon(session.run, "go")
                await reached.wait()
                group.cancel_scope.cancel()
            result = last_of(session)

    assert result.usage.requests == 4
    assert result.usage.total_tokens == 30
    assert result.usage.estimated


async def test_g16_a_sub_agent_that_its_own_limit_stops_counts_for_its_parent_and_the_parent_goes_on() -> None:
    child = looping(8)
    agent, _ = delegating(child, requests=20, child=[LimitsGuard(requests=2)])
    with at_most():
        async with agent.session() as session:
            result = await session.run("go")
            results = results_of(session)

    assert results["c1"].is_error
    assert result.output == "done"
    assert len(child.requests) == 2
    assert result.usage.requests == 4


async def test_g16_of_two_sub_agents_at_once_none_passes_the_shared_limit() -> None:
    child = looping(9)
    f, _ = returning("f")
    helper = agent_with(child, tools=[f], name="delegate")
    asked = [call("delegate", task="one"), call("delegate", task="two")]
    model = ScriptedModel([asked, *["done"] * 5])
    agent = agent_with(model, tools=[helper.as_tool()], plugins=[LimitsGuard(requests=5)])
    with at_most():
        async with agent.session() as session:
            result = await session.run("go")
            assert len(results_of(session)) == 2

    assert result.status == "limit"
    assert len(child.requests) == 4


class Money(Plugin):
    """Sixty cents a call, one dollar a session."""

    id: ClassVar = "guard.money"
    phase: ClassVar = "gate"

    async def session(self, ctx: SessionContext, call_next: Any) -> None:
        ctx.ledger.limit(Limit("usd", Decimal("1.00"), scope="session", estimate=Decimal("0.60")))
        await call_next()


async def test_g16_a_limit_of_the_session_in_money_holds_for_its_sub_agents_too() -> None:
    child = looping(3)
    f, _ = returning("f")
    helper = agent_with(child, tools=[f], name="delegate")
    model = ScriptedModel([call("delegate", task="one"), *["done"] * 5])
    with at_most():
        async with agent_with(model, tools=[helper.as_tool()], plugins=[Money()]).session() as session:
            result = await session.run("go")

    assert result.status == "limit"
    assert len(model.requests) + len(child.requests) == 1
