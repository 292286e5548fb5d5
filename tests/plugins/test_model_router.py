"""agentx-model-router in an agent: which model a call goes to, what is said of it, and what is booked."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import attrs
import pytest

from agentx import (
    Agent,
    CallNext,
    ConfigError,
    MemoryStore,
    Message,
    ModelResponse,
    OverloadedError,
    Plugin,
    PluginError,
    PluginLoadError,
    RunResult,
    TextPart,
    ToolCall,
    TurnContext,
    Usage,
    tool,
)
from agentx.builtin.retry import Retry
from agentx.testing import FakeClock, FunctionModel, ScriptedModel, call
from agentx_guard_budget import Budget, Price
from agentx_model_fallback import Fallback
from agentx_model_router import Call, Router, Rule
from agentx_pytest import PluginConformance


def says(name: str) -> FunctionModel:
    """Return a model that answers with its own name."""
    return FunctionModel(lambda request: name, name=name)


def new_agent(model: Any, *plugins: Any, tools: Sequence[Any] = (), **options: Any) -> Agent[Any, Any]:
    return Agent(model, tools=tools, plugins=plugins, **{"config": False, "autoload": "none", **options})


async def answer(*rules: Rule, prompt: str = "hi", user: str | None = None, metadata: Any = None) -> str:
    agent = new_agent(says("a/own"), Router(rules=rules))
    async with agent, agent.session(user=user) as session:
        return str((await session.run(prompt, metadata=metadata)).text)


@tool
async def search(words: str) -> str:
    """Search."""
    return "found"


@tool
async def write(text: str) -> str:
    """Write."""
    return "written"


# Rules


async def test_without_rules_the_agents_model_answers() -> None:
    assert await answer() == "a/own"


async def test_a_rule_without_conditions_is_always_met() -> None:
    assert await answer(Rule(use=says("b/always"))) == "b/always"


async def test_the_first_rule_that_is_met_decides() -> None:
    rules = [Rule(use=says("b/no"), users=["bob"]), Rule(use=says("c/yes"), max_step=1), Rule(use=says("d/late"))]
    assert await answer(*rules) == "c/yes"


@pytest.mark.parametrize(("words", "expected"), [(10, "a/own"), (2000, "b/large")])
async def test_by_the_size_of_the_request(words: int, expected: str) -> None:
    assert await answer(Rule(use=says("b/large"), min_tokens=1000), prompt="word " * words) == expected


async def test_the_size_counts_instructions_tools_and_history() -> None:
    sizes: list[int] = []

    def note(call: Call) -> None:
        sizes.append(call.tokens)

    history = [Message("user", (TextPart("x" * 4000),)), Message("assistant", (TextPart("y" * 4000),))]
    for agent in (
        new_agent(says("a/own"), Router(choose=note)),
        new_agent(says("a/own"), Router(choose=note), instructions="z" * 4000),
        new_agent(says("a/own"), Router(choose=note), tools=[search]),
    ):
        await agent.run("hi")
    async with agent, agent.session(history=history) as session:
        await session.run("hi")
    bare, with_instructions, with_tool, with_history = sizes
    assert bare == 1
    assert with_instructions == bare + 1000
    assert 10 < with_tool < 100
    assert with_history == with_tool + 2000


async def test_by_the_user() -> None:
    rule = Rule(use=says("b/acme"), users=["*@acme.example"])
    assert await answer(rule, user="ann@acme.example") == "b/acme"
    assert await answer(rule, user="ann@other.example") == "a/own"
    assert await answer(rule) == "a/own"


async def test_by_what_the_application_says_of_the_turn() -> None:
    rule = Rule(use=says("b/gold"), metadata={"tier": ["gold", "silver"], "beta": True})
    assert await answer(rule, metadata={"tier": "gold", "beta": True}) == "b/gold"
    assert await answer(rule, metadata={"tier": "gold"}) == "a/own"
    assert await answer(rule, metadata={"tier": "tin", "beta": True}) == "a/own"


async def test_by_the_tool_that_was_just_called_for_the_next_call_alone() -> None:
    own = ScriptedModel([call("search", words="x"), "own end"], name="a/own")
    other = ScriptedModel([call("write", text="x")], name="b/after-search")
    router = Router(rules=[Rule(use=other, after_tool=["sea*"])])
    agent = new_agent(own, router, tools=[search, write])
    assert (await agent.run("go")).text == "own end"
    assert (len(own.requests), len(other.requests)) == (2, 1)


async def test_a_tool_of_an_earlier_turn_was_not_just_called() -> None:
    own = ScriptedModel([call("search", words="x"), "second turn"], name="a/own")
    other = ScriptedModel(["first turn"], name="b/after-search")
    agent = new_agent(own, Router(rules=[Rule(use=other, after_tool=["search"])]), tools=[search])
    async with agent, agent.session() as session:
        assert [(await session.run("go")).text for _ in range(2)] == ["first turn", "second turn"]


async def test_words_of_the_user_in_between_do_not_hide_the_tool() -> None:
    own = ScriptedModel([call("search", words="x")], name="a/own")
    other = ScriptedModel(["steered"], name="b/after-search")
    agent = new_agent(own, Router(rules=[Rule(use=other, after_tool=["search"])]), tools=[search])
    async with agent, agent.session() as session:
        session.on("tool.start", lambda event: session.steer("and hurry"))
        assert (await session.run("go")).text == "steered"


async def test_by_the_number_of_the_step() -> None:
    own = ScriptedModel([call("search", words="x"), call("search", words="y")], name="a/own")
    other = ScriptedModel(["enough"], name="b/late")
    agent = new_agent(own, Router(rules=[Rule(use=other, min_step=3)]), tools=[search])
    async with agent, agent.session() as session:
        assert (await session.run("go")).text == "enough"


async def test_a_model_may_be_given_as_an_object_or_as_an_id(tmp_path: Path) -> None:
    file = tmp_path / "agentx.toml"
    file.write_text('[[plugins.model.router.rules]]\nuse = "a/own"\nmin_step = 9\n[[plugins.model.router.rules]]\n')
    agent = Agent(says("a/own"), plugins=[Router()], config=file, autoload="none")
    with pytest.raises(PluginLoadError, match=r"model\.router.*rules.*use"):
        await agent.run("hi")


async def test_rules_of_a_file_are_read(tmp_path: Path) -> None:
    file = tmp_path / "agentx.toml"
    file.write_text(
        '[[plugins.model.router.rules]]\nuse = "local/auto"\nafter_tool = ["x"]\nmin_tokens = 1\nmax_tokens = 2\n'
        'min_step = 1\nmax_step = 2\nusers = ["ann"]\nmetadata = {tier = ["gold"], beta = true}\n'
    )
    agent = Agent(says("a/own"), plugins=[Router()], config=file, autoload="none")
    assert (await agent.run("hi")).text == "a/own"
    (row,) = [row for row in agent.plugins if row.id == "model.router"]
    (rule,) = row.config["rules"].value
    assert rule.reason == "after tool x, tokens 1..2, step 1..2, user ann, metadata tier=['gold'], metadata beta=True"


async def test_a_model_of_a_rule_is_looked_for_when_the_agent_opens() -> None:
    agent = new_agent(says("a/own"), Router(rules=[Rule(use="nobody/knows", users=["ann"])]))
    with pytest.raises(ConfigError, match=r"model\.router: rules\[0\] uses 'nobody/knows': no installed plugin serves"):
        await agent.run("hi")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Rule(use=""), "a rule has use='', which is no model"),
        (lambda: Rule(use=7), "a rule has use=7, which is no model"),  # type: ignore[arg-type]
        (lambda: Rule(use="a/b", min_step=-1), "min_step=-1, which is no whole number"),
        (lambda: Rule(use="a/b", min_tokens=2, max_tokens=1), "min_tokens=2 and max_tokens=1; nothing is both"),
        (lambda: Router(rules=[Rule(use="a/b"), Rule(use="c/d")]), r"rules\[0\] has no condition, so no rule behind"),
        (lambda: Router(rules=["a/b"]), r"rules\[0\] is 'a/b', which is no Rule"),  # type: ignore[list-item]
        (lambda: Router(choose="a/b"), "choose is 'a/b'; give it a function"),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_rule_is_an_error_that_says_what_is_wrong(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


async def test_a_function_cannot_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "agentx.toml"
    file.write_text('[plugins.model.router]\nchoose = "os.system"\n')
    agent = Agent(says("a/own"), plugins=[Router()], config=file, autoload="none")
    with pytest.raises(PluginLoadError, match=r"model\.router.*choose"):
        await agent.run("hi")


# Functions


async def test_a_function_is_asked_before_the_rules() -> None:
    other, rules = says("b/chosen"), [Rule(use=says("c/rule"))]

    def choose(call: Call) -> Any:
        return other if "poem" in call.request.messages[-1].text else None

    agent = new_agent(says("a/own"), Router(rules=rules, choose=choose))
    assert (await agent.run("a poem")).text == "b/chosen"
    assert (await agent.run("a sum")).text == "c/rule"


async def test_a_function_may_wait() -> None:
    other = says("b/chosen")

    async def choose(call: Call) -> Any:
        await anyio.lowlevel.checkpoint()
        return other

    assert (await new_agent(says("a/own"), Router(choose=choose)).run("hi")).text == "b/chosen"


async def test_a_function_sees_the_call_and_can_change_nothing() -> None:
    seen: list[Call] = []
    agent = new_agent(says("a/own"), Router(choose=seen.append), tools=[search])
    async with agent, agent.session(id="s", user="ann", deps={"tier": 1}) as session:
        await session.run("hi", metadata={"tier": "gold"})
    (call,) = seen
    assert (call.request.model, call.step, call.tools, call.turn_index) == ("a/own", 1, (), 0)
    assert (call.user, call.session_id, call.deps, call.metadata) == ("ann", "s", {"tier": 1}, {"tier": "gold"})
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        call.step = 2  # type: ignore[misc]
    with pytest.raises(TypeError):
        call.metadata["tier"] = "tin"  # type: ignore[index]


def wrong(call: Call) -> Any:
    return 7


async def test_a_function_that_returns_no_model_is_an_error_that_names_it() -> None:
    with pytest.raises(
        PluginError, match=r"model\.router: wrong at .*test_model_router\.py:\d+ returned int 7: return"
    ):
        await new_agent(says("a/own"), Router(choose=wrong)).run("hi")


@pytest.mark.parametrize(("model", "why"), [("nobody/knows", "no installed plugin serves"), ("", "is not 'provider")])
async def test_a_function_that_returns_an_unknown_model_is_an_error_that_names_it(model: str, why: str) -> None:
    def choose(call: Call) -> str:
        return model

    agent = new_agent(says("a/own"), Fallback(models=[says("b/other")], on=["provider"]), Router(choose=choose))
    with pytest.raises(PluginError, match=f"choose chose '{model}': .*{why}"):
        await agent.run("hi")


async def test_an_error_of_a_function_comes_out_as_it_is() -> None:
    def choose(call: Call) -> str:
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        await new_agent(says("a/own"), Router(choose=choose)).run("hi")


# What is seen of it


async def test_an_event_says_that_the_model_changed_and_why() -> None:
    events: list[dict[str, Any]] = []
    rules = [Rule(use=says("b/gold"), metadata={"tier": "gold"}), Rule(use=says("c/rest"))]
    agent = new_agent(says("a/own"), Router(rules=rules))
    async with agent, agent.session() as session:
        session.on("plugin.model.router.routed", lambda event: events.append(dict(event.data)))
        await session.run("hi", metadata={"tier": "gold"})
        await session.run("hi")
    assert events == [
        {"from": "a/own", "to": "b/gold", "reason": "rules[0]: metadata tier='gold'"},
        {"from": "a/own", "to": "c/rest", "reason": "rules[1]: always"},
    ]


async def test_no_event_where_the_model_stays() -> None:
    own = says("a/own")
    agent = new_agent(own, Router(rules=[Rule(use=own)]))
    async with agent, agent.session() as session:
        await session.run("hi")
        assert [event for event in session.events if event.kind == "plugin"] == []


class Summary(Plugin):
    """Ask a model of its own."""

    id = "memory.summary"
    model_id: str = "a/own"

    async def turn(self, ctx: TurnContext, call_next: CallNext[RunResult]) -> RunResult:
        summary = await ctx.call_model("sum up", model=self.model_id)
        ctx.input = f"{ctx.input.text} after {summary.text}"
        return await call_next()


async def test_a_plugins_own_call_goes_where_the_plugin_sends_it() -> None:
    other = FunctionModel(lambda request: request.messages[-1].text, name="b/routed")
    agent = new_agent(says("a/own"), Router(rules=[Rule(use=other)]), Summary())
    assert (await agent.run("hi")).text == "hi after a/own"


# Together with fallback, retries and a budget


async def test_others_stand_in_for_the_model_that_was_chosen() -> None:
    chosen = ScriptedModel([OverloadedError("busy")], name="b/chosen")
    fallback = Fallback(models=[says("c/stand-in")])
    for plugins in ([Router(rules=[Rule(use=chosen)]), fallback], [fallback, Router(rules=[Rule(use=says("b/2"))])]):
        agent = new_agent(says("a/own"), *plugins)
        text = (await agent.run("hi")).text
        assert text == ("c/stand-in" if plugins[1] is fallback else "b/2")


def price(dollars: str) -> Price:
    """Return a price by which a thousand tokens of output cost so many dollars."""
    return Price(Decimal(0), Decimal(dollars) * 1000)


PRICES = {"a/cheap": price("1"), "b/dear": price("3"), "c/stand-in": price("2")}


def failing(name: str, failures: int) -> FunctionModel:
    """Return a model that fails so often, using 50 tokens, before each answer of 100 tokens."""
    left = [failures]

    def reply(request: Any) -> Any:
        if left[0]:
            left[0] -= 1
            return OverloadedError("busy", usage=Usage(0, 50))
        left[0] = failures
        asks = request.messages[-1].role == "user"
        parts = (ToolCall("", "search", '{"words": "x"}'),) if asks else (TextPart("done"),)
        return ModelResponse(parts, "tool_use" if asks else "end_turn", usage=Usage(0, 100))

    return FunctionModel(reply, name=name)


@pytest.mark.parametrize(
    ("failures", "asked"),
    [
        (0, {"a/cheap", "b/dear"}),
        (1, {"a/cheap", "b/dear"}),
        (2, {"a/cheap", "b/dear", "c/stand-in"}),
        (5, {"a/cheap", "c/stand-in"}),
    ],
)
async def test_a_budget_of_one_dollar_is_never_passed_by_routes_stand_ins_and_retries(
    failures: int, asked: set[str]
) -> None:
    store = MemoryStore()
    models = {name: failing(name, failures) for name in PRICES}
    plugins = [
        Router(rules=[Rule(use=models["b/dear"], after_tool=["search"])]),
        Fallback(models=[models["c/stand-in"]]),
        Retry(attempts=2),
        FakeClock(),
        Budget(limit_usd=Decimal("1.00"), prices=PRICES, max_output_tokens=100),
    ]
    agent = new_agent(models["a/cheap"], *plugins, tools=[search], store=store)
    booked: dict[str, Decimal] = {}
    async with agent, agent.session() as session:
        status = "completed"
        for _ in range(20):
            if status != "completed":
                break
            try:
                status = (await session.run("go")).status
            except OverloadedError:
                continue
        for event in session.events:
            if event.kind == "model.attempt":
                cost = event.usage.output_tokens * PRICES[event.model].output / 1_000_000
                booked[event.model] = booked.get(event.model, Decimal(0)) + cost
    (account,) = [one for (_, key, scope, _), one in store.accounts.items() if (key, scope) == ("usd", "session")]
    assert status == "limit"
    assert account.used == sum(booked.values()) <= Decimal("1.00")
    assert account.used > Decimal("0.60"), "the limit was reached by spending"
    assert set(booked) == asked


class TestRouter(PluginConformance):
    def plugin(self) -> Router:
        return Router(rules=[Rule(use=says("b/large"), min_tokens=100_000)], choose=lambda call: None)
