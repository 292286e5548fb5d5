"""agentx-model-fallback in an agent: who is asked after whom, what is said of it, and what is booked."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

import anyio
import pytest

from agentx import (
    Agent,
    AuthenticationError,
    BadResponseError,
    CallNext,
    ConfigError,
    ContentPolicyError,
    ContextWindowError,
    ModelConnectionError,
    ModelContext,
    ModelError,
    ModelNotFoundError,
    ModelResponse,
    ModelRetrying,
    ModelSettings,
    ModelTimeoutError,
    OverloadedError,
    Plugin,
    QuotaError,
    RateLimitError,
    RequestRejectedError,
    ServerError,
    StreamCutError,
    TextDeltaEvent,
    TextPart,
    TurnAborted,
    Usage,
    tool,
)
from agentx.builtin.limits import LimitsGuard
from agentx.builtin.retry import Retry
from agentx.testing import Cut, FakeClock, FaultyModel, FunctionModel, Hang, ScriptedModel, call
from agentx_guard_budget import Budget, Price
from agentx_model_fallback import Fallback
from agentx_pytest import PluginConformance

PASSING = [RateLimitError, OverloadedError, ServerError, ModelConnectionError, ModelTimeoutError, StreamCutError]
FINAL = [
    AuthenticationError,
    BadResponseError,
    ContentPolicyError,
    ContextWindowError,
    ModelNotFoundError,
    QuotaError,
    RequestRejectedError,
]


def model(name: str, *script: Any, **options: Any) -> ScriptedModel:
    return ScriptedModel(list(script), name=name, **options)


def new_agent(first: Any, *plugins: Any, tools: Sequence[Any] = (), **options: Any) -> Agent[Any, Any]:
    return Agent(first, tools=tools, plugins=plugins, **{"config": False, "autoload": "none", **options})


async def run_and_watch(agent: Agent[Any, Any], *inputs: str, **options: Any) -> tuple[list[str], list[dict[str, Any]]]:
    """Return the texts of some turns and the data of the switches in them."""
    switches: list[dict[str, Any]] = []
    async with agent, agent.session() as session:
        session.on("plugin.model.fallback.switched", lambda event: switches.append(dict(event.data)))
        texts = [(await session.run(text, **options)).text for text in inputs]
    return texts, switches


def notes_of(error: BaseException) -> str:
    return "\n".join(getattr(error, "__notes__", ()))


# Which errors lead on


@pytest.mark.parametrize("error", PASSING)
async def test_trouble_of_the_provider_leads_to_the_next_model(error: type[ModelError]) -> None:
    first, second = model("acme/first", error("trouble")), model("other/second", "hello")
    texts, switches = await run_and_watch(new_agent(first, Fallback(models=[second])), "hi")
    assert texts == ["hello"]
    (switch,) = switches
    assert (switch["from"], switch["to"], switch["error"]) == ("acme/first", "other/second", error.code[6:])
    assert switch["reason"] == f"{error.__name__}: trouble"


@pytest.mark.parametrize("error", FINAL)
async def test_what_is_wrong_with_the_request_or_the_account_does_not(error: type[ModelError]) -> None:
    first, second = model("acme/first", error("no")), model("other/second", "never")
    with pytest.raises(error, match="no"):
        await new_agent(first, Fallback(models=[second])).run("hi")
    assert second.requests == []


@pytest.mark.parametrize("error", FINAL)
async def test_unless_it_is_named(error: type[ModelError]) -> None:
    first, second = model("acme/first", error("no")), model("other/second", "hello")
    agent = new_agent(first, Fallback(models=[second], on=[error.code]))
    assert (await agent.run("hi")).text == "hello"


async def test_what_is_not_named_does_not_lead_on() -> None:
    first, second = model("acme/first", OverloadedError("busy")), model("other/second", "never")
    with pytest.raises(OverloadedError):
        await new_agent(first, Fallback(models=[second], on=["rate-limit"])).run("hi")
    assert second.requests == []


async def test_a_bug_in_a_model_is_no_reason_to_ask_another() -> None:
    first, second = model("acme/first", KeyError("bug")), model("other/second", "never")
    with pytest.raises(KeyError):
        await new_agent(first, Fallback(models=[second], on=["server", "bad-response"])).run("hi")
    assert second.requests == []


class Abort(Plugin):
    """Abort when the first model has failed."""

    id: ClassVar[str] = "test.abort"
    phase: ClassVar[str | None] = "attempt"

    async def model(self, ctx: ModelContext, call_next: CallNext[ModelResponse]) -> ModelResponse:
        try:
            return await call_next()
        except ModelError:
            ctx.abort("enough")


async def test_an_abort_is_final() -> None:
    first, second = model("acme/first", OverloadedError("busy")), model("other/second", "never")
    with pytest.raises(TurnAborted, match="enough"):
        await new_agent(first, Fallback(models=[second]), Abort()).run("hi")
    assert second.requests == []


async def test_a_limit_holds_for_the_next_model_too() -> None:
    first, second = model("acme/first", OverloadedError("busy")), model("other/second", "never")
    result = await new_agent(first, Fallback(models=[second]), LimitsGuard(requests=1)).run("hi")
    assert (result.status, result.by, second.requests) == ("limit", "guard.limits", [])


async def test_without_models_it_does_nothing() -> None:
    with pytest.raises(OverloadedError) as caught:
        await new_agent(model("acme/first", OverloadedError("busy")), Fallback()).run("hi")
    assert "model.fallback:" not in notes_of(caught.value)


# The way from model to model


async def test_each_model_is_asked_once_in_the_order_of_the_list() -> None:
    first, second = model("a/1", RateLimitError("full")), model("b/2", ServerError("down"))
    third = model("c/3", "hello")
    texts, switches = await run_and_watch(new_agent(first, Fallback(models=[second, first, third])), "hi")
    assert texts == ["hello"]
    assert [(one["from"], one["to"]) for one in switches] == [("a/1", "b/2"), ("b/2", "c/3")]


async def test_when_all_fail_the_first_failure_is_raised_and_its_notes_name_the_others() -> None:
    models = [model("b/2", ServerError("down")), model("c/3", AuthenticationError("no key"))]
    agent = new_agent(model("a/1", RateLimitError("full", retry_after=7)), Fallback(models=models))
    with pytest.raises(RateLimitError, match="full") as caught:
        await agent.run("hi")
    assert caught.value.retry_after == 7
    assert "model.fallback: then b/2 failed with ServerError: down" in notes_of(caught.value)
    assert "model.fallback: then c/3 failed with AuthenticationError: no key" in notes_of(caught.value)


@pytest.mark.parametrize("error", [AuthenticationError, ModelNotFoundError, RequestRejectedError, ContextWindowError])
async def test_a_stand_in_that_cannot_answer_does_not_hide_the_next(error: type[ModelError]) -> None:
    models = [model("b/2", error("cannot")), model("c/3", "hello")]
    agent = new_agent(model("a/1", OverloadedError("busy")), Fallback(models=models))
    assert (await agent.run("hi")).text == "hello"


async def test_content_that_a_stand_in_refuses_is_not_taken_to_the_next() -> None:
    third = model("c/3", "never")
    models = [model("b/2", ContentPolicyError("not this")), third]
    with pytest.raises(ContentPolicyError, match="not this") as caught:
        await new_agent(model("a/1", OverloadedError("busy")), Fallback(models=models)).run("hi")
    assert "asked b/2 since a/1 failed with OverloadedError: busy" in notes_of(caught.value)
    assert third.requests == []


async def test_the_next_step_begins_with_the_first_model_again() -> None:
    @tool
    async def now() -> str:
        """Say the time."""
        return "noon"

    first = model("a/1", OverloadedError("busy"), "It is noon.")
    second = model("b/2", call("now"))
    result = await new_agent(first, Fallback(models=[second]), tools=[now]).run("time?")
    assert result.text == "It is noon."
    assert (len(first.requests), len(second.requests)) == (2, 1)


async def test_a_model_is_tried_again_before_the_next_is_asked() -> None:
    clock = FakeClock()
    first = model("a/1", *[OverloadedError("busy")] * 3)
    second = model("b/2", OverloadedError("busy"), "hello")
    agent = new_agent(first, clock, Retry(attempts=3), Fallback(models=[second]))
    assert (await agent.run("hi")).text == "hello"
    assert (len(first.requests), len(second.requests), len(clock.sleeps)) == (3, 2, 3)


# What is seen of it


@pytest.mark.parametrize("fault", [Cut(2, OverloadedError), Cut(2, StreamCutError)], ids=["error", "cut"])
async def test_g12_what_a_failed_model_has_shown_is_announced_void(fault: Cut) -> None:
    first = FaultyModel(model("a/1", "Hello from the first"), {1: fault})
    agent = new_agent(first, Fallback(models=[model("b/2", "Hello from the second")]))
    shown: list[str] = []
    async with agent, agent.session() as session:
        async with session.stream("hi") as stream:
            async for event in stream:
                if isinstance(event, TextDeltaEvent):
                    shown.append(event.text)
                elif isinstance(event, ModelRetrying):
                    assert (event.by, "".join(shown)) == ("model.fallback", "Hello fr")
                    shown.clear()
        assert "".join(shown) == stream.result.text == "Hello from the second"
        assert [message.text for message in session.history] == ["hi", "Hello from the second"]


async def test_arguments_of_a_call_that_was_cut_are_not_joined_with_the_next() -> None:
    given: list[int] = []

    @tool
    async def note(x: int) -> str:
        """Note."""
        given.append(x)
        return "noted"

    first = FaultyModel(model("a/1", call("note", x=100), "done"), {1: Cut(1)})
    agent = new_agent(first, Fallback(models=[model("b/2", call("note", x=1))]), tools=[note])
    assert (await agent.run("hi")).text == "done"
    assert given == [1]


async def test_every_attempt_says_its_own_model_and_usage() -> None:
    first = FaultyModel(model("a/1", "x"), {1: OverloadedError("busy", usage=Usage(25, 1))})
    agent = new_agent(first, Fallback(models=[model("b/2", "hello", usage=Usage(10, 5))]))
    async with agent, agent.session() as session:
        result = await session.run("hi")
        attempts = [event for event in session.events if event.kind == "model.attempt"]
    assert [(event.model, event.usage) for event in attempts] == [("a/1", Usage(25, 1)), ("b/2", Usage(10, 5))]
    assert result.usage == Usage(35, 6, requests=2)


async def test_cancelling_while_the_next_model_hangs_ends_the_turn() -> None:
    second = FaultyModel(model("b/2"), {1: Hang()})
    agent = new_agent(model("a/1", OverloadedError("busy")), Fallback(models=[second, model("c/3", "never")]))
    async with agent, agent.session() as session:
        with anyio.move_on_after(5) as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(session.run, "hi")
                await second.reached.wait()
                group.cancel_scope.cancel()
        assert not scope.cancelled_caught
        assert session.last_result is not None
        assert session.last_result.status == "cancelled"


# A context window that is too small


async def test_a_request_that_does_not_fit_goes_to_a_larger_model() -> None:
    first, other = model("a/1", ContextWindowError("too long")), model("b/2", "never")
    larger = model("c/3", "hello")
    texts, switches = await run_and_watch(new_agent(first, Fallback(models=[other], larger=[larger])), "hi")
    assert (texts, other.requests) == (["hello"], [])
    assert (switches[0]["to"], switches[0]["error"]) == ("c/3", "context-window")


async def test_a_full_context_window_that_is_reported_as_a_response_counts_too() -> None:
    first = model("a/1", ModelResponse((), "context_window", Usage(9, 0)))
    agent = new_agent(first, Fallback(larger=[model("c/3", "hello")]))
    assert (await agent.run("hi")).text == "hello"


async def test_without_a_larger_model_it_ends_as_it_would() -> None:
    first, other = model("a/1", ModelResponse((), "context_window", Usage(9, 0))), model("b/2", "never")
    with pytest.raises(ContextWindowError):
        await new_agent(first, Fallback(models=[other])).run("hi")
    assert other.requests == []


async def test_an_answer_that_fills_the_window_is_an_answer() -> None:
    first = model("a/1", ModelResponse((TextPart("long"),), "context_window", Usage(9, 9)))
    result = await new_agent(first, Fallback(larger=[model("c/3", "never")])).run("hi")
    assert (result.status, result.text) == ("truncated", "long")


async def test_a_stand_in_that_is_too_small_leads_to_a_larger_model_and_then_to_the_rest() -> None:
    small, larger = model("b/2", ContextWindowError("long")), model("c/3", OverloadedError("busy"))
    agent = new_agent(
        model("a/1", OverloadedError("busy")), Fallback(models=[small, model("d/4", "hello")], larger=[larger])
    )
    assert (await agent.run("hi")).text == "hello"
    assert len(larger.requests) == 1


# Settings


async def test_settings_that_a_model_cannot_do_are_left_out_and_named() -> None:
    second, third = model("b/2", ServerError("down")), model("c/3", "hello")
    settings = ModelSettings(temperature=0.0, seed=7, stop=("x",), max_tokens=9, extra={"store": True})
    leave_out = {"b/": ["seed", "stop", "top_p"], "c/3": ["temperature"]}
    agent = new_agent(
        model("a/1", OverloadedError("busy")), Fallback(models=[second, third], leave_out=leave_out), settings=settings
    )
    _, switches = await run_and_watch(agent, "hi")
    assert second.requests[0].settings == ModelSettings(temperature=0.0, max_tokens=9)
    assert third.requests[0].settings == ModelSettings(seed=7, stop=("x",), max_tokens=9)
    assert [one["left_out"] for one in switches] == [["extra", "seed", "stop"], ["extra", "temperature"]]


async def test_raw_keys_go_to_another_model_of_the_same_provider() -> None:
    second = model("a/2", "hello")
    settings = ModelSettings(extra={"store": True})
    agent = new_agent(model("a/1", OverloadedError("busy")), Fallback(models=[second]), settings=settings)
    await agent.run("hi")
    assert second.requests[0].settings == settings


# A model that is down


async def test_a_model_that_failed_is_left_alone_for_a_while() -> None:
    clock = FakeClock()
    first = model("a/1", OverloadedError("busy"), "back again")
    second = model("b/2", "one", "two")
    agent = new_agent(first, clock, Fallback(models=[second], cooldown=60))
    reasons: list[str] = []
    async with agent, agent.session() as session:
        session.on("plugin.model.fallback.switched", lambda event: reasons.append(event.data["reason"]))
        assert (await session.run("hi")).text == "one"
        clock.advance(20)
        assert (await session.run("hi")).text == "two"
        clock.advance(41)
        assert (await session.run("hi")).text == "back again"
    assert reasons == ["OverloadedError: busy", "a/1 rests for 40 s more"]
    assert len(first.requests) == 2


async def test_all_sessions_of_an_agent_know_that_a_model_rests_but_no_other_agent() -> None:
    first, second = model("a/1", OverloadedError("busy"), "hello"), model("b/2", "one", "two")
    fallback = Fallback(models=[second], cooldown=60)
    agent = new_agent(first, FakeClock(), fallback)
    async with agent:
        assert [(await agent.run("hi")).text for _ in range(2)] == ["one", "two"]
    assert (await new_agent(first, FakeClock(), fallback).run("hi")).text == "hello"


async def test_a_resting_model_is_asked_when_all_others_fail() -> None:
    first, second = model("a/1", OverloadedError("busy"), "hello"), model("b/2", "one", ServerError("down"))
    agent = new_agent(first, FakeClock(), Fallback(models=[second], cooldown=60))
    texts, _ = await run_and_watch(agent, "hi", "hi")
    assert texts == ["one", "hello"]


async def test_a_model_rests_for_as_long_as_its_provider_asked() -> None:
    clock = FakeClock()
    first = model("a/1", RateLimitError("full", retry_after=90), "never")
    agent = new_agent(first, clock, Fallback(models=[model("b/2", "one", "two")], cooldown=60))
    async with agent:
        await agent.run("hi")
        clock.advance(80)
        assert (await agent.run("hi")).text == "two"


async def test_a_request_that_was_at_fault_puts_no_model_to_rest() -> None:
    first = model("a/1", RequestRejectedError("no"), "hello")
    agent = new_agent(first, FakeClock(), Fallback(models=[model("b/2", "one")], on=["rejected"], cooldown=60))
    texts, _ = await run_and_watch(agent, "hi", "hi")
    assert texts == ["one", "hello"]


# Money


def price(dollars: str) -> Price:
    """Return a price by which a thousand tokens of output cost so many dollars."""
    return Price(Decimal(0), Decimal(dollars) * 1000)


async def test_each_model_is_booked_at_its_own_price() -> None:
    failed = OverloadedError("busy", usage=Usage(0, 100))
    prices = {"a/1": price("1"), "b/2": price("2")}
    agent = new_agent(
        FaultyModel(model("a/1", "x"), {1: failed}),
        Fallback(models=[model("b/2", "hello", usage=Usage(0, 100))]),
        Budget(prices=prices, max_output_tokens=100),
    )
    assert (await agent.run("hi")).cost == Decimal("0.3")


async def test_a_model_that_the_budget_cannot_pay_is_not_asked() -> None:
    second = model("b/2", "never")
    prices = {"a/1": price("1"), "b/2": price("20")}
    agent = new_agent(
        model("a/1", OverloadedError("busy")),
        Fallback(models=[second]),
        Budget(prices=prices, max_output_tokens=100),
    )
    result = await agent.run("hi")
    assert (result.status, result.by, second.requests) == ("limit", "guard.budget", [])


# Configuration


async def test_models_of_a_file_are_looked_for_when_the_agent_opens(tmp_path: Path) -> None:
    file = tmp_path / "agentx.toml"
    file.write_text('[plugins.model.fallback]\nmodels = ["nobody/knows"]\n')
    agent = Agent(model("a/1", "never"), plugins=[Fallback()], config=file, autoload="none")
    with pytest.raises(ConfigError, match=r"model\.fallback: models has 'nobody/knows': no installed plugin serves"):
        await agent.run("hi")


async def test_everything_can_be_set_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "agentx.toml"
    file.write_text(
        '[plugins.model.fallback]\nmodels = ["local/auto"]\nlarger = ["local/auto"]\non = ["quota", "model-server"]\n'
        'cooldown = 5\n[plugins.model.fallback.leave_out]\n"local/" = ["seed"]\n'
    )
    agent = Agent(model("a/1", "hello"), plugins=[Fallback()], config=file, autoload="none")
    assert (await agent.run("hi")).text == "hello"
    (row,) = [row for row in agent.plugins if row.id == "model.fallback"]
    assert row.config["on"].value == ("quota", "server")
    assert row.config["leave_out"].value == {"local/": ("seed",)}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"on": ["overload"]}, "on has 'overload', which is no error of a model: did you mean 'overloaded'"),
        ({"models": [7]}, "models has 7, which is no model"),
        ({"larger": [""]}, "larger has '', which is no model"),
        ({"cooldown": -1}, "cooldown is a number of seconds, 0 or more, not -1"),
        ({"leave_out": {"a/": ["sed"]}}, r"leave_out\['a/'\] has 'sed'; the settings of a call are max_tokens"),
    ],
)
def test_a_wrong_field_is_an_error_that_names_it(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Fallback(**fields)


class TestFallback(PluginConformance):
    handles_errors = ("model",)

    def plugin(self) -> Fallback:
        return Fallback(models=[FunctionModel(lambda request: "from the other", name="other/model")], cooldown=1.0)


class TestFallbackWithoutModels(PluginConformance):
    def plugin(self) -> Fallback:
        return Fallback()
