"""`model.retry`: CASES G13, and what is tried again, how often, and when the waiting ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio
import pytest

from agentx import (
    Agent,
    AuthenticationError,
    BadResponseError,
    ConfigError,
    ModelConnectionError,
    ModelError,
    ModelRequest,
    ModelRetrying,
    OverloadedError,
    PluginEvent,
    QuotaError,
    RateLimitError,
    ServerError,
    TurnAborted,
    Usage,
    kind_of,
    tool,
)
from agentx.builtin.limits import LimitsGuard
from agentx.builtin.retry import Retry
from agentx.testing import Cut, FakeClock, FaultyModel, FunctionModel, ScriptedModel, call, check_history

SECONDS = 10
"""How long a test may hang before it fails."""


def agent_with(model: Any, clock: FakeClock, retry: Retry | None = None, **options: Any) -> Agent[Any, str]:
    plugins = [clock, Retry() if retry is None else retry, *options.pop("plugins", ())]
    return Agent(model, plugins=plugins, config=False, autoload="none", **options)


async def failure_of(agent: Agent[Any, str], **options: Any) -> ModelError:
    with pytest.raises(ModelError) as caught:
        await agent.run("go", **options)
    return caught.value


def notes_of(error: BaseException) -> str:
    return "\n".join(getattr(error, "__notes__", ()))


# What is tried again


@pytest.mark.parametrize("error", [RateLimitError, OverloadedError, ServerError, ModelConnectionError])
async def test_a_failure_that_may_pass_is_tried_again(error: type[ModelError]) -> None:
    clock, model = FakeClock(), ScriptedModel([error, error, "done"])
    result = await agent_with(model, clock).run("go")
    assert (result.status, result.text) == ("completed", "done")
    assert len(clock.sleeps) == 2
    model.assert_finished()


@pytest.mark.parametrize(
    "error",
    [AuthenticationError("no key"), QuotaError("empty"), BadResponseError("html"), ServerError("bad", retryable=False)],
    ids=lambda error: type(error).__name__,
)
async def test_a_failure_that_will_stay_is_not_tried_again(error: ModelError) -> None:
    clock, model = FakeClock(), ScriptedModel([error, "never"])
    assert await failure_of(agent_with(model, clock)) is error
    assert (len(model.requests), clock.sleeps) == (1, [])


async def test_an_error_that_is_marked_retryable_is_tried_again_whatever_its_kind() -> None:
    clock, model = FakeClock(), ScriptedModel([BadResponseError("cut", retryable=True), "done"])
    assert (await agent_with(model, clock).run("go")).text == "done"


async def test_a_bug_in_a_model_is_not_tried_again() -> None:
    clock, model = FakeClock(), ScriptedModel([KeyError("oops"), "never"])
    with pytest.raises(KeyError):
        await agent_with(model, clock).run("go")
    assert (len(model.requests), clock.sleeps) == (1, [])


async def test_the_last_error_is_raised_when_the_attempts_are_used_up() -> None:
    errors = [ServerError(f"{number}") for number in range(4)]
    clock, model = FakeClock(), ScriptedModel([*errors, "never"])
    assert await failure_of(agent_with(model, clock)) is errors[3]
    assert (len(model.requests), len(clock.sleeps)) == (4, 3)
    assert "model.retry: tried 4 times" in notes_of(errors[3])


async def test_one_attempt_is_no_retry() -> None:
    clock, model = FakeClock(), ScriptedModel([ServerError, "never"])
    await failure_of(agent_with(model, clock, Retry(attempts=1)))
    assert (len(model.requests), clock.sleeps) == (1, [])


async def test_each_model_call_of_a_turn_has_its_own_attempts() -> None:
    @tool
    async def nothing() -> str:
        """Do nothing."""
        return ""

    clock, bad = FakeClock(), ServerError
    model = ScriptedModel([bad, call("nothing"), bad, call("nothing"), bad, "done"])
    async with agent_with(model, clock, Retry(attempts=2), tools=[nothing]).session() as session:
        assert (await session.run("go")).text == "done"
        check_history(session.history)


async def test_without_the_plugin_the_first_failure_is_the_last() -> None:
    clock, model = FakeClock(), ScriptedModel([ServerError, "done"])
    with (agent := agent_with(model, clock)).override(disable=["model.retry"]):
        await failure_of(agent)
    assert len(model.requests) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"attempts": 0},
        {"attempts": "3"},
        {"attempts": 2.5},
        {"base_delay": -1.0},
        {"base_delay": None},
        {"max_delay": float("inf")},
        {"max_retry_after": float("nan")},
    ],
    ids=str,
)
def test_a_setting_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(ConfigError, match=f"model.retry: {name} must be"):
        Retry(**wrong)


# How long it waits: G13


async def test_waits_are_random_up_to_a_bound_that_doubles() -> None:
    retry = Retry(attempts=8, base_delay=1.0, max_delay=10.0)
    bounds = [1, 2, 4, 8, 10, 10, 10]
    waits: list[Sequence[float]] = []
    for _ in range(30):
        clock = FakeClock()
        await failure_of(agent_with(ScriptedModel([ServerError] * 8), clock, retry))
        waits.append(clock.sleeps)
    for number, bound in enumerate(bounds):
        column = [sleeps[number] for sleeps in waits]
        assert all(0 <= wait <= bound for wait in column)
        assert max(column) - min(column) > bound / 4, "full jitter spreads over the whole range"


ASKED = [
    (2.0, 2.0),
    (0.0, 0.0),
    (1.5, 1.5),
    (30.0, 30.0),
    (-1.0, 0.0),
    (float("nan"), 0.0),
    (float("inf"), 0.0),
    (None, 0.0),
]


@pytest.mark.parametrize(("asked", "least"), ASKED, ids=str)
@pytest.mark.parametrize(("error", "status"), [(RateLimitError, 429), (OverloadedError, 503), (OverloadedError, 529)])
async def test_g13_it_never_comes_back_earlier_than_the_provider_asked_and_a_little_later(
    asked: float | None, least: float, error: type[ModelError], status: int
) -> None:
    clock = FakeClock(start=1735689600.0)  # Wed, 01 Jan 2025 00:00:00 GMT
    model = ScriptedModel([error("later", retry_after=asked, status=status), "done"])
    assert (await agent_with(model, clock, Retry(base_delay=0.5)).run("go")).text == "done"
    (wait,) = clock.sleeps
    assert least <= wait <= least + 0.5
    assert len(model.requests) == 2


async def test_g13_what_the_provider_asked_can_be_read_from_the_final_error() -> None:
    clock, model = FakeClock(), ScriptedModel([RateLimitError("later", retry_after=7.0)] * 4)
    assert (await failure_of(agent_with(model, clock))).retry_after == 7.0
    assert all(wait >= 7.0 for wait in clock.sleeps)


async def test_g13_a_wait_of_centuries_fails_at_once() -> None:
    clock, model = FakeClock(), ScriptedModel([RateLimitError("later", retry_after=99999999999.0), "never"])
    error = await failure_of(agent_with(model, clock))
    assert (len(model.requests), clock.sleeps) == (1, [])
    assert "the provider asks to wait 1e+11 s and max_retry_after is 300 s" in notes_of(error)


@pytest.mark.parametrize("asked", [99999999999.0, 60.0, 240.0])
async def test_g13_a_wait_that_does_not_fit_before_the_deadline_of_the_turn_fails_at_once(asked: float) -> None:
    clock, model = FakeClock(), ScriptedModel([RateLimitError("later", retry_after=asked), "never"])
    agent = agent_with(model, clock, plugins=[LimitsGuard(seconds=60)])
    error = await failure_of(agent)
    assert error.retry_after == asked
    assert (len(model.requests), clock.sleeps) == (1, [])
    assert "model.retry: not tried again" in notes_of(error)


async def test_a_deadline_of_the_application_counts_like_that_of_the_turn() -> None:
    clock, model = FakeClock(), ScriptedModel([RateLimitError("later", retry_after=100.0), "never"])
    with anyio.fail_after(60):
        await failure_of(agent_with(model, clock))
    assert clock.sleeps == []


# Waiting


async def test_the_wait_is_announced_while_it_lasts_and_can_be_cancelled() -> None:
    clock, model = FakeClock(auto=False), ScriptedModel([RateLimitError("later", retry_after=2.0), "never"])
    waits: list[Any] = []
    async with agent_with(model, clock).session() as session:
        session.on("plugin.model.retry.*", waits.append)
        with anyio.fail_after(SECONDS):
            async with anyio.create_task_group() as group:

                async def cancel_in_the_wait() -> None:
                    while not (clock.sleeping and waits):
                        await anyio.sleep(0.001)
                    assert clock.sleeping == 1
                    session.cancel()

                group.start_soon(cancel_in_the_wait)
                with pytest.raises(TurnAborted):
                    await session.run("go")
        (event,) = waits
        assert kind_of(event) == "plugin.model.retry.wait"
        assert event.data["attempt"] == 2
        assert event.data["reason"] == "RateLimitError: later"
        assert [event.data["seconds"]] == clock.sleeps
        assert (len(model.requests), clock.sleeping) == (1, 0)
        assert session.last_result is not None and session.last_result.status == "cancelled"
        check_history(session.history)


async def test_it_goes_on_when_the_time_has_come() -> None:
    clock, model = FakeClock(auto=False), ScriptedModel([RateLimitError("later", retry_after=2.0), "done"])
    texts: list[str] = []
    async with agent_with(model, clock, Retry(base_delay=0.0)).session() as session:
        with anyio.fail_after(SECONDS):
            async with anyio.create_task_group() as group:

                async def run() -> None:
                    texts.append((await session.run("go")).text)

                group.start_soon(run)
                while not clock.sleeping:
                    await anyio.sleep(0.001)
                clock.advance(1.9)
                await anyio.sleep(0.01)
                assert (texts, len(model.requests)) == ([], 1)
                clock.advance(0.2)
    assert texts == ["done"]


async def test_a_consumer_is_told_that_what_it_saw_is_void() -> None:
    clock = FakeClock()
    model = FaultyModel(ScriptedModel(["first try", "second try"]), {1: Cut(after=1)})
    async with agent_with(model, clock).session() as session:
        async with session.stream("go") as stream:
            events = [event async for event in stream]
        retrying = next(index for index, event in enumerate(events) if isinstance(event, ModelRetrying))
        before = [event for event in events[:retrying] if event.kind == "text.delta"]
        after = "".join([event.text for event in events[retrying:] if event.kind == "text.delta"])  # type: ignore[attr-defined]
        assert before, "the first attempt was seen"
        assert after == stream.result.text == "second try"
        told = events[retrying]
        assert isinstance(told, ModelRetrying) and (told.attempt, told.by) == (2, "model.retry")


# What it costs


async def test_the_usage_of_failed_attempts_counts() -> None:
    clock = FakeClock()
    failed = ServerError("cut", usage=Usage(25, 1))
    model = ScriptedModel([failed, failed, "done"], usage=Usage(25, 15))
    async with agent_with(model, clock).session() as session:
        result = await session.run("go")
        assert (result.usage.requests, result.usage.input_tokens, result.usage.output_tokens) == (3, 75, 17)
        assert not result.usage.estimated
        assert session.usage == result.usage


async def test_a_failed_attempt_that_reports_no_usage_makes_the_sum_an_estimate() -> None:
    result = await agent_with(ScriptedModel([ServerError, "done"], usage=Usage(1, 1)), FakeClock()).run("go")
    assert (result.usage.requests, result.usage.estimated) == (2, True)


async def test_every_attempt_counts_for_the_limit_on_requests_and_a_refusal_is_not_tried_again() -> None:
    clock, model = FakeClock(), FunctionModel(lambda request: ServerError("always"))
    agent = agent_with(model, clock, Retry(attempts=10), plugins=[LimitsGuard(requests=3)])
    result = await agent.run("go")
    assert (result.status, result.by) == ("limit", "guard.limits")
    assert (len(model.requests), len(clock.sleeps)) == (3, 3)


async def test_the_request_of_every_attempt_is_the_same() -> None:
    seen: list[ModelRequest] = []

    def fails_twice(request: ModelRequest) -> Any:
        seen.append(request)
        return "done" if len(seen) == 3 else ServerError("again")

    await agent_with(FunctionModel(fails_twice), FakeClock()).run("go")
    assert seen[0] == seen[1] == seen[2]


async def test_the_waits_are_in_the_log_of_the_session() -> None:
    clock, model = FakeClock(), ScriptedModel([ServerError, ServerError, "done"])
    async with agent_with(model, clock).session() as session:
        await session.run("go")
        events = [event for event in session.events if isinstance(event, PluginEvent)]
        assert [event.data["seconds"] for event in events] == clock.sleeps
        assert [event.data["attempt"] for event in events] == [2, 3]
