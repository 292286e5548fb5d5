"""What a plugin adds at a level, and that it vanishes with it: services, tools, instructions; its own model calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import anyio
import pytest

from agentx import (
    AgentContext,
    AgentxError,
    HookError,
    Key,
    Limit,
    ModelContext,
    ModelEnd,
    ModelRequest,
    ModelResponse,
    Plugin,
    PluginLoadError,
    RunResult,
    ServiceError,
    SessionContext,
    TextPart,
    Tool,
    ToolContext,
    ToolNameError,
    ToolResult,
    ToolsChanged,
    TurnContext,
    Usage,
    tool,
)
from agentx.builtin.limits import LimitsGuard
from agentx.testing import FunctionModel, ScriptedModel, call

from ._rules import agent_with, at_most, echo, kinds_of, results_of
from ._short import sent, short

pytestmark = pytest.mark.anyio

HOOKS = ("init", "session", "turn", "model", "tool")


class At(Plugin):
    """Does something in one hook, before its `call_next`."""

    id: ClassVar = "context.at"
    level: str
    act: Callable[[Any], Any]

    async def _at(self, hook: str, ctx: Any, call_next: Any) -> Any:
        if hook == self.level:
            self.act(ctx)
        return await call_next()

    async def init(self, ctx: AgentContext, call_next: Any) -> None:
        await self._at("init", ctx, call_next)

    async def session(self, ctx: SessionContext, call_next: Any) -> None:
        await self._at("session", ctx, call_next)

    async def turn(self, ctx: TurnContext, call_next: Any) -> RunResult[Any]:
        result: RunResult[Any] = await self._at("turn", ctx, call_next)
        return result

    async def model(self, ctx: ModelContext, call_next: Any) -> ModelResponse:
        response: ModelResponse = await self._at("model", ctx, call_next)
        return response

    async def tool(self, ctx: ToolContext, call_next: Any) -> ToolResult:
        result: ToolResult = await self._at("tool", ctx, call_next)
        return result


def once(act: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return `act` for the first time it is called, and nothing afterwards."""
    left = [act]
    return lambda ctx: left.pop()(ctx) if left else None


def offered(model: ScriptedModel | FunctionModel) -> list[list[str]]:
    return [[spec.name for spec in request.tools] for request in model.requests]


@tool
async def extra() -> str:
    """Do more."""
    return "more"


# Services


class Database:
    pass


DATABASE = Database()


@pytest.mark.parametrize("level", ["init", "session", "turn"])
async def test_what_is_provided_is_found_at_its_level_and_below(level: str) -> None:
    seen: dict[str, Any] = {}

    class Looks(Plugin):
        id: ClassVar = "tools.looks"

        async def session(self, ctx: SessionContext, call_next: Any) -> None:
            seen["session"] = ctx.get(Database, None)
            await call_next()
            seen["session, later"] = ctx.get(Database, None)

        async def turn(self, ctx: TurnContext, call_next: Any) -> RunResult[Any]:
            seen["turn"] = ctx.get(Database, None)
            result: RunResult[Any] = await call_next()
            return result

        async def model(self, ctx: ModelContext, call_next: Any) -> ModelResponse:
            seen["model"] = ctx.get(Database, None)
            response: ModelResponse = await call_next()
            return response

        async def tool(self, ctx: ToolContext, call_next: Any) -> ToolResult:
            seen["tool"] = ctx.get(Database, None)
            result: ToolResult = await call_next()
            return result

    provides = At(level=level, act=lambda ctx: ctx.provide(Database, DATABASE))
    with at_most():
        await agent_with([call("echo", text="x"), "ok"], plugins=[provides, Looks()]).run("go")

    has_it = {"init": HOOKS[1:], "session": HOOKS[1:], "turn": HOOKS[2:]}[level]
    assert {where for where, found in seen.items() if found is DATABASE} - {"session, later"} == set(has_it)
    assert (seen["session, later"] is DATABASE) == (level != "turn")


async def test_a_tool_gets_what_a_plugin_provides() -> None:
    @tool
    async def ask(ctx: ToolContext) -> bool:
        return ctx.get(Database) is DATABASE

    provides = At(level="session", act=lambda ctx: ctx.provide(Database, DATABASE))
    with at_most():
        async with agent_with([call("ask"), "ok"], tools=[ask], plugins=[provides]).session() as session:
            await session.run("go")
            assert results_of(session)["c1"].text == "true"


async def test_what_a_session_provides_is_not_seen_by_another() -> None:
    seen: list[Any] = []

    async def provide(ctx: SessionContext, call_next: Any) -> None:
        if ctx.session_id == "one":
            ctx.provide(Database, DATABASE)
        await call_next()

    async def look(ctx: TurnContext, call_next: Any) -> RunResult[Any]:
        seen.append((ctx.session_id, ctx.get(Database, None)))
        result: RunResult[Any] = await call_next()
        return result

    agent = agent_with(FunctionModel(lambda r: "ok")).use(session=provide).use(look)
    with at_most():
        async with agent, agent.session("one") as one, agent.session("two") as two:
            await one.run("go")
            await two.run("go")
    assert seen == [("one", DATABASE), ("two", None)]


async def test_keys_of_one_name_are_one_key_and_a_missing_one_is_named() -> None:
    seen: list[Any] = []

    async def look(ctx: TurnContext, call_next: Any) -> RunResult[Any]:
        ctx.provide(Key[int]("answer"), 42)
        seen.append(ctx.get(Key[int]("answer")))
        seen.append(ctx.get(Key[str]("other"), "default"))
        with pytest.raises(ServiceError, match="missing"):
            ctx.get(Key[str]("missing"))
        with pytest.raises(ServiceError, match="Database"):
            ctx.get(Database)
        result: RunResult[Any] = await call_next()
        return result

    with at_most():
        await agent_with(["ok"]).use(look).run("go")
    assert seen == [42, "default"]


async def test_something_false_that_was_provided_is_found() -> None:
    seen: list[Any] = []

    async def look(ctx: TurnContext, call_next: Any) -> RunResult[Any]:
        with pytest.raises(ServiceError, match="None"):
            ctx.provide(Key[Any]("nothing"), None)
        for value in (0, ""):
            ctx.provide(Key[Any]("nothing"), value)
            seen.append(ctx.get(Key[Any]("nothing"), "default"))
        result: RunResult[Any] = await call_next()
        return result

    with at_most():
        await agent_with(["ok"]).use(look).run("go")
    assert seen == [0, ""]


class Provider(Plugin):
    id: ClassVar = "tools.z_provider"
    provides: ClassVar = (Database,)

    async def init(self, ctx: AgentContext, call_next: Any) -> None:
        ctx.provide(Database, DATABASE)
        await call_next()


class User(Plugin):
    id: ClassVar = "tools.a_user"
    needs: ClassVar = (Database,)
    found: list[Any]

    async def init(self, ctx: AgentContext, call_next: Any) -> None:
        self.found.append(ctx.get(Database))
        await call_next()


@pytest.mark.parametrize("user_first", [True, False])
async def test_a_provider_goes_outside_of_its_users(user_first: bool) -> None:
    found: list[Any] = []
    plugins = [User(found=found), Provider()] if user_first else [Provider(), User(found=found)]
    with at_most():
        await agent_with(["ok"], plugins=plugins).run("go")
    assert found == [DATABASE]


async def test_a_service_that_nobody_provides_is_an_error_when_loading() -> None:
    with at_most(), pytest.raises(PluginLoadError, match="Database") as caught:
        await agent_with(["ok"], plugins=[User(found=[])]).run("go")
    assert "tools.a_user" in str(caught.value)


# Tools


@pytest.mark.parametrize("level", ["init", "session", "turn", "model", "tool"])
async def test_a_tool_that_a_plugin_registers_is_offered_from_the_next_model_call_on(level: str) -> None:
    model = ScriptedModel([call("echo", text="x"), [call("extra")], "ok"])
    registers = At(level=level, act=once(lambda ctx: ctx.register_tool(extra)))
    with at_most():
        async with agent_with(model, plugins=[registers]).session() as session:
            await session.run("go")
            results = results_of(session)

    first = ["echo", "extra"] if level in ("init", "session", "turn") else ["echo"]
    assert offered(model) == [first, ["echo", "extra"], ["echo", "extra"]]
    assert results["c2"].text == "more"


async def offered_by_level(level: str) -> list[list[str]]:
    """Return what is offered: in two turns of a session, and in another session; a plugin registers a tool at once."""
    model = FunctionModel(lambda request: "ok" if request.messages[-1].role == "tool" else call("echo", text="x"))
    agent = agent_with(model, plugins=[At(level=level, act=once(lambda ctx: ctx.register_tool(extra)))])
    async with agent:
        async with agent.session() as session:
            await session.run("one")
            await session.run("two")
        async with agent.session() as session:
            await session.run("three")
    return offered(model)[1::2]


@pytest.mark.parametrize(
    ("level", "where"),
    [
        ("init", [True, True, True]),
        ("session", [True, True, False]),
        ("turn", [True, False, False]),
        ("model", [True, True, False]),
        ("tool", [True, True, False]),
    ],
)
async def test_a_tool_vanishes_with_the_level_it_was_registered_on(level: str, where: Sequence[bool]) -> None:
    with at_most():
        found = await offered_by_level(level)
    assert ["extra" in names for names in found] == where


async def test_a_tool_of_a_turn_vanishes_also_if_the_turn_fails() -> None:
    model = ScriptedModel([ValueError("bug"), "ok"])
    registers = At(level="turn", act=once(lambda ctx: ctx.register_tool(extra)))
    with at_most():
        async with agent_with(model, plugins=[registers]).session() as session:
            with pytest.raises(ValueError):
                await session.run("one")
            await session.run("two")
    assert offered(model) == [["echo", "extra"], ["echo"]]


async def test_changes_of_tools_are_told() -> None:
    registers = At(level="turn", act=lambda ctx: (ctx.register_tool(extra), ctx.unregister_tool("extra")))
    with at_most():
        async with agent_with(["ok"], plugins=[registers]).session() as session:
            await session.run("go")
            changes = [e for e in session.events if isinstance(e, ToolsChanged)]
    assert [(e.by, e.added, e.removed) for e in changes] == [
        ("context.at", ("extra",), ()),
        ("context.at", (), ("extra",)),
    ]


def named(*names: str) -> list[Tool]:
    async def nothing() -> str:
        return ""

    return [tool(name=name)(nothing) for name in names]


async def test_set_tools_replaces_all_of_an_owner_and_no_others() -> None:
    model = ScriptedModel(["one", "two", "three"])
    sets = iter([named("a", "b"), named("b", "c"), named()])

    def act(ctx: Any) -> None:
        ctx.set_tools("a server", next(sets))

    with at_most():
        async with agent_with(model, plugins=[At(level="model", act=act)]).session() as session:
            for text in "123":
                await session.run(text)
            assert [spec.name for spec in model.requests[2].tools] == ["b", "c", "echo"]
            changes = [(e.by, e.added, e.removed) for e in session.events if isinstance(e, ToolsChanged)]
    assert offered(model)[:2] == [["echo"], ["a", "b", "echo"]]
    assert [added for _, added, _ in changes] == [("a", "b"), ("b", "c"), ()]


@pytest.mark.parametrize("level", ["init", "session", "turn", "model"])
async def test_a_name_that_is_taken_is_refused_and_names_both_owners(level: str) -> None:
    registers = At(level=level, act=lambda ctx: ctx.register_tool(echo))
    with at_most(), pytest.raises(ToolNameError, match=r"context\.at") as caught:
        await agent_with(["ok"], plugins=[registers]).run("go")
    assert "the application" in str(caught.value)


async def test_a_refused_set_of_tools_changes_nothing() -> None:
    model = ScriptedModel(["one", "two"])

    def act(ctx: Any) -> None:
        ctx.set_tools("server", named("a"))
        with pytest.raises(ToolNameError):
            ctx.set_tools("server", named("b", "echo"))

    with at_most():
        async with agent_with(model, plugins=[At(level="model", act=once(act))]).session() as session:
            await session.run("1")
            await session.run("2")
    assert offered(model)[1] == ["a", "echo"]


async def test_only_what_is_there_can_be_unregistered() -> None:
    with at_most(), pytest.raises(AgentxError, match="nothing"):
        await agent_with(["ok"], plugins=[At(level="turn", act=lambda ctx: ctx.unregister_tool("nothing"))]).run("go")


@tool(deferred=True)
async def rare() -> str:
    """Something rarely needed, described at length."""
    return "rare"


async def test_a_deferred_tool_is_announced_by_its_name_only_and_cannot_be_called() -> None:
    model = ScriptedModel([call("rare"), "ok"])
    with at_most():
        async with agent_with(model, tools=[echo, rare], instructions="Be brief.").session() as session:
            await session.run("go")
            assert results_of(session)["c1"].is_error
    assert offered(model) == [["echo"], ["echo"]]
    assert "rare" in model.requests[0].instructions
    assert "described at length" not in repr(model.requests[0])


async def test_load_tools_offers_a_deferred_tool_from_this_call_on() -> None:
    model = ScriptedModel([call("rare"), "ok", "next"])
    loads = At(level="model", act=once(lambda ctx: ctx.load_tools("rare")))
    with at_most():
        async with agent_with(model, tools=[echo, rare], plugins=[loads]).session() as session:
            await session.run("go")
            assert results_of(session)["c1"].text == "rare"
            await session.run("again")
    assert offered(model) == [["echo", "rare"]] * 3
    assert "can be loaded" not in model.requests[2].instructions


async def test_what_is_loaded_is_loaded_for_its_session_only() -> None:
    model = FunctionModel(lambda request: "ok")
    loads = At(level="model", act=once(lambda ctx: ctx.load_tools("rare")))
    agent = agent_with(model, tools=[echo, rare], plugins=[loads])
    with at_most():
        async with agent, agent.session() as one, agent.session() as two:
            await one.run("go")
            await two.run("go")
    assert offered(model) == [["echo", "rare"], ["echo"]]


async def test_an_unknown_tool_cannot_be_loaded() -> None:
    with at_most(), pytest.raises(HookError, match="nothing"):
        await agent_with(["ok"], plugins=[At(level="model", act=lambda ctx: ctx.load_tools("nothing"))]).run("go")


async def test_a_hidden_tool_is_not_offered_and_cannot_be_called_in_that_call() -> None:
    ran: list[str] = []

    @tool
    async def danger() -> str:
        ran.append("danger")
        return ""

    model = ScriptedModel([[call("danger"), call("echo", text="x")], call("danger"), "ok"])
    hides = At(level="model", act=once(lambda ctx: ctx.hide_tools("danger", "nothing")))
    with at_most():
        async with agent_with(model, tools=[echo, danger], plugins=[hides]).session() as session:
            await session.run("go")
            results = results_of(session)

    assert offered(model) == [["echo"], ["danger", "echo"], ["danger", "echo"]]
    assert results["c1"].is_error
    assert results["c2"].text == "x"
    assert results["c3"].status == "ok"
    assert ran == ["danger"]


async def test_a_layer_that_short_circuits_cannot_call_what_it_was_not_offered() -> None:
    ran: list[str] = []

    @tool
    async def danger() -> str:
        ran.append("danger")
        return ""

    async def hide(ctx: ModelContext, call_next: Any) -> ModelResponse:
        ctx.hide_tools("danger")
        response: ModelResponse = await call_next()
        return response

    async def cached(ctx: ModelContext, call_next: Any) -> ModelResponse:
        if ctx.call_index == 0:
            return ModelResponse((call("danger"),), "tool_use")
        response: ModelResponse = await call_next()
        return response

    agent = agent_with(["ok"], tools=[danger]).use(model=hide).use(model=cached, phase="cache")
    with at_most():
        result = await agent.run("go")
    assert ran == []
    assert result.output == "ok"


# Instructions


class Section(Plugin):
    id: ClassVar = "context.section"
    level: str = "session"
    text: str

    async def init(self, ctx: AgentContext, call_next: Any) -> None:
        if self.level == "init":
            ctx.add_instructions(self.text)
        await call_next()

    async def session(self, ctx: SessionContext, call_next: Any) -> None:
        if self.level == "session":
            ctx.add_instructions(self.text)
        await call_next()

    async def turn(self, ctx: TurnContext, call_next: Any) -> RunResult[Any]:
        if self.level == "turn":
            ctx.add_instructions(self.text)
        result: RunResult[Any] = await call_next()
        return result


@pytest.mark.parametrize("order", [("z", "a", "m"), ("a", "m", "z"), ("m", "z", "a")])
async def test_sections_stand_behind_the_agents_own_in_the_order_of_their_plugins_ids(order: Sequence[str]) -> None:
    model = ScriptedModel(["ok"])
    agent = agent_with(model, instructions="First.")
    for name in order:
        agent.use(Section(text=f"section {name}", level={"z": "init", "m": "turn"}.get(name, "session")), name=name)
    with at_most():
        await agent.run("go")
    assert model.requests[0].instructions == "First.\n\nsection a\n\nsection m\n\nsection z"


@pytest.mark.parametrize(
    ("level", "where"),
    [("init", [True, True, True]), ("session", [True, True, True]), ("turn", [True, True, True])],
)
async def test_a_section_is_in_every_request_of_its_level_once(level: str, where: Sequence[bool]) -> None:
    model = FunctionModel(lambda request: "ok")
    agent = agent_with(model, plugins=[Section(text="section", level=level)])
    with at_most():
        async with agent, agent.session() as session:
            for _ in where:
                await session.run("go")
    assert [request.instructions.count("section") for request in model.requests] == [1, 1, 1]


async def test_a_section_of_a_turn_vanishes_with_it() -> None:
    model = ScriptedModel(["one", "two"])
    adds = At(level="turn", act=once(lambda ctx: ctx.add_instructions("only now")))
    with at_most():
        async with agent_with(model, instructions="Be.", plugins=[adds]).session() as session:
            await session.run("1")
            await session.run("2")
    assert [request.instructions for request in model.requests] == ["Be.\n\nonly now", "Be."]


async def test_context_for_one_call_goes_to_the_tail_and_is_not_remembered() -> None:
    model = ScriptedModel([call("echo", text="x"), "ok"])
    adds = At(level="model", act=once(lambda ctx: ctx.add_context("it is noon")))
    with at_most():
        async with agent_with(model, instructions="Be.", plugins=[adds]).session() as session:
            await session.run("go")
            assert "noon" not in repr(session.history)
    assert sent(model.requests[0]) == ['U"go"', 'U"it is noon"']
    assert sent(model.requests[1])[-1] == 'R(c1)"x"'
    assert [request.instructions for request in model.requests] == ["Be.", "Be."]


# A plugin's own model calls


class Asks(Plugin):
    """Asks the model something of its own in its turn hook, and notes whose layers that call passes."""

    id: ClassVar = "context.asks"
    prompt: str = "is this fine?"
    answers: list[str]
    model_name: Any = None

    async def turn(self, ctx: TurnContext, call_next: Any) -> RunResult[Any]:
        response = await ctx.call_model(self.prompt, instructions="judge", model=self.model_name)
        self.answers.append(response.text)
        result: RunResult[Any] = await call_next()
        return result

    async def model(self, ctx: ModelContext, call_next: Any) -> ModelResponse:
        ctx.add_context("from the asking plugin")
        response: ModelResponse = await call_next()
        return response


async def test_a_plugins_own_call_is_counted_and_not_remembered() -> None:
    model = ScriptedModel(["yes", "hello"])
    answers: list[str] = []
    with at_most():
        async with agent_with(model, plugins=[Asks(answers=answers)]).session() as session:
            result = await session.run("go")
            history, kinds = short(session.history), kinds_of(session)
            asked = [e.asked_by for e in session.events if isinstance(e, ModelEnd)]

    assert answers == ["yes"]
    assert sent(model.requests[0]) == ['U"is this fine?"']
    assert (model.requests[0].instructions, model.requests[0].tools) == ("judge", ())
    assert history == ['U"go"', 'A"hello"']
    assert result.usage.requests == 2
    assert kinds.count("model.attempt") == 2
    assert asked == ["context.asks", None]


async def test_a_plugins_own_call_passes_the_layers_of_others_but_not_its_own_and_none_that_prepare() -> None:
    passed: list[tuple[str, str | None]] = []

    def noting(name: str) -> Any:
        async def layer(ctx: ModelContext, call_next: Any) -> ModelResponse:
            passed.append((name, ctx.asked_by))
            response: ModelResponse = await call_next()
            return response

        return layer

    model = ScriptedModel(["yes", "hello"])
    agent = agent_with(model, plugins=[Asks(answers=[])])
    for phase in ("observe", "gate", "prepare", "redact", "verify", "route", "cache", "retry", "attempt"):
        agent.use(model=noting(phase), phase=phase, name=phase)
    with at_most():
        await agent.run("go")

    own = [name for name, by in passed if by == "context.asks"]
    assert own == ["observe", "gate", "redact", "verify", "route", "cache", "retry", "attempt"]
    assert model.requests[0].context == ()
    assert model.requests[1].context == ("from the asking plugin",)


async def test_a_plugins_own_call_is_limited() -> None:
    model = ScriptedModel(["never"] * 3)
    with at_most():
        result = await agent_with(model, plugins=[LimitsGuard(requests=0), Asks(answers=[])]).run("go")
    assert result.status == "limit"
    assert model.requests == []


async def test_a_plugins_own_call_may_take_another_model() -> None:
    judge, answers = ScriptedModel(["yes"], name="judge"), list[str]()
    with at_most():
        result = await agent_with(["hello"], plugins=[Asks(answers=answers, model_name=judge)]).run("go")
    assert (answers, result.output) == (["yes"], "hello")


async def test_own_calls_within_own_calls_are_at_most_two_deep() -> None:
    depth: list[int] = []

    def asking(name: str) -> Plugin[None]:
        class Asking(Plugin):
            id: ClassVar = f"guard.{name}"
            phase: ClassVar = "observe"

            async def model(self, ctx: ModelContext, call_next: Any) -> ModelResponse:
                depth.append(1)
                await ctx.call_model(f"asked by {name}")
                response: ModelResponse = await call_next()
                return response

        Asking.phase = "verify"
        return Asking()

    model = FunctionModel(lambda request: "ok")
    with at_most(), pytest.raises(AgentxError, match="call_model"):
        await agent_with(model, plugins=[asking("one"), asking("two"), asking("three")]).run("go")
    assert len(model.requests) == 0


async def test_an_error_of_a_plugins_own_call_reaches_the_plugin() -> None:
    caught: list[str] = []

    async def careful(ctx: TurnContext, call_next: Any) -> RunResult[Any]:
        try:
            await ctx.call_model("hello?")
        except ConnectionError as error:
            caught.append(str(error))
        result: RunResult[Any] = await call_next()
        return result

    with at_most():
        result = await agent_with([ConnectionError("down"), "ok"]).use(careful).run("go")
    assert (caught, result.output, result.usage.requests) == (["down"], "ok", 2)


# Sending back, and stopping with an answer


@pytest.mark.parametrize("rejected", [1, 4, 5])
async def test_an_answer_may_be_sent_back_up_to_five_times(rejected: int) -> None:
    left = [rejected]

    async def critic(ctx: ModelContext, call_next: Any) -> ModelResponse:
        response: ModelResponse = await call_next()
        if left[0] and not response.tool_calls:
            left[0] -= 1
            ctx.send_back("shorter")
        return response

    model = FunctionModel(lambda request: f"answer {len(request.messages)}")
    with at_most():
        async with agent_with(model).use(model=critic).session() as session:
            result = await session.run("go")
            users = [m.text for m in session.history if m.role == "user"]
    assert result.status == "completed"
    assert users == ["go"] + ["shorter"] * rejected
    assert result.usage.requests == rejected + 1


async def test_sending_back_for_ever_ends_the_turn_as_stopped_with_the_last_text() -> None:
    async def critic(ctx: ModelContext, call_next: Any) -> ModelResponse:
        response: ModelResponse = await call_next()
        ctx.send_back("no")
        return response

    model = FunctionModel(lambda request: "never good enough")
    with at_most():
        result = await agent_with(model).use(model=critic).run("go")
    assert result.status == "stopped"
    assert result.by == "function.critic"
    assert result.text == "never good enough"
    assert len(model.requests) == 6


async def test_a_limit_of_another_plugin_counts_in_the_turn_it_was_registered_for() -> None:
    limits = At(level="turn", act=lambda ctx: ctx.ledger.limit(Limit("requests", 1)))
    model = FunctionModel(lambda request: call("echo", text="x"))
    with at_most():
        async with agent_with(model, plugins=[limits]).session() as session:
            statuses = [(await session.run("go")).status for _ in range(3)]
    assert statuses == ["limit"] * 3
    assert len(model.requests) == 3


async def test_parts_of_a_model_request_are_values_that_cannot_be_changed_in_place() -> None:
    problems: list[type[BaseException]] = []

    async def careless(ctx: ModelContext, call_next: Any) -> ModelResponse:
        for act in (
            lambda: setattr(ctx.request, "messages", []),
            lambda: ctx.request.messages.append(None),  # type: ignore[attr-defined]
            lambda: ctx.request.tools.clear(),  # type: ignore[attr-defined]
        ):
            try:
                act()
            except Exception as error:
                problems.append(type(error))
        response: ModelResponse = await call_next()
        return response

    with at_most():
        await agent_with(["ok"]).use(model=careless).run("go")
    assert len(problems) == 3


async def test_a_router_may_choose_another_model_for_one_call() -> None:
    cheap = ScriptedModel([ModelResponse((TextPart("cheap"),), usage=Usage(1, 1))], name="cheap")

    async def route(ctx: ModelContext, call_next: Any) -> ModelResponse:
        if ctx.call_index == 1:
            ctx.set_model(cheap)
            ctx.set_settings(max_tokens=9)
        response: ModelResponse = await call_next()
        return response

    dear = ScriptedModel([call("echo", text="x")], name="dear")
    with at_most():
        async with agent_with(dear).use(model=route, phase="route").session() as session:
            result = await session.run("go")
            models = [e.model for e in session.events if e.kind == "model.attempt"]  # type: ignore[attr-defined]
    assert result.output == "cheap"
    assert models == ["dear", "cheap"]
    assert cheap.requests[0].settings.max_tokens == 9


async def test_messages_and_tools_are_read_only_from_verify_on() -> None:
    for phase in ("verify", "route", "retry", "attempt"):
        for act in (
            lambda ctx: ctx.add_context("x"),
            lambda ctx: ctx.hide_tools("echo"),
            lambda ctx: setattr(ctx, "request", ModelRequest("m", ())),
        ):

            async def late(ctx: ModelContext, call_next: Any, act: Any = act) -> ModelResponse:
                with pytest.raises(HookError, match="verified"):
                    act(ctx)
                response: ModelResponse = await call_next()
                return response

            with at_most():
                assert (await agent_with(["ok"]).use(model=with_two(late), phase=phase).run("go")).output == "ok"


def with_two(layer: Any) -> Any:
    """Return a layer with exactly the two arguments of a hook."""

    async def late(ctx: ModelContext, call_next: Any) -> ModelResponse:
        response: ModelResponse = await layer(ctx, call_next)
        return response

    return late


async def test_work_in_the_background_of_a_session_ends_with_it() -> None:
    ended: list[str] = []

    async def work() -> None:
        await anyio.sleep(0.01)
        ended.append("work")

    starts = At(level="turn", act=lambda ctx: ctx.start_soon(work))
    with at_most():
        async with agent_with(["ok"], plugins=[starts]).session() as session:
            await session.run("go")
            assert ended == []
        assert ended == ["work"]
