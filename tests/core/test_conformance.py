"""What the checks of conformance find, and what they let pass."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

import attrs
import pytest

from agentx import CallNext, Key, ModelContext, ModelResponse, Plugin, PluginError, TextPart, ToolContext, TurnContext
from agentx.builtin.duration import DurationObserver
from agentx.builtin.limits import LimitsGuard
from agentx.builtin.retry import Retry
from agentx.builtin.tools import ToolsObserver
from agentx.builtin.usage import UsageObserver
from agentx.testing import CHECKS, ConformanceError, FakeClock, NotChecked, Subject, call, check, exercise, problems
from agentx_pytest import PluginConformance

from .bad_plugins import BAD, GOOD, AddsContextAsAnObserver, FailsOnClosing, Good, HidesTheToolsItWraps

Next = CallNext[Any]


def name(item: Any) -> str:
    return item.__name__ if isinstance(item, type) else str(item)


@pytest.mark.parametrize("plugin", GOOD, ids=name)
async def test_a_good_plugin_has_no_problems(plugin: type[Plugin[Any]]) -> None:
    assert await problems(Subject(plugin)) == {}


@pytest.mark.parametrize(("plugin", "broken"), BAD.items(), ids=name)
async def test_a_bad_plugin_is_found_by_the_check_of_the_rule_it_breaks(plugin: type[Plugin[Any]], broken: str) -> None:
    found = await problems(Subject(plugin))
    assert list(found) == [broken]
    assert plugin.id in found[broken]


def test_there_are_more_than_twelve_bad_plugins_and_most_checks_have_one() -> None:
    assert len(BAD) > 12
    assert set(CHECKS) - set(BAD.values()) == {"unknown_settings_are_refused"}


async def test_a_finding_names_the_plugin_the_hook_the_line_and_the_fix() -> None:
    with pytest.raises(ConformanceError) as caught:
        await check("loop_is_not_blocked", Subject(next(cls for cls in BAD if cls.__name__ == "SleepsInTheLoop")))
    message = str(caught.value)
    assert "context.sleeps_in_the_loop: the session hook at " in message
    assert "bad_plugins.py:" in message
    assert "anyio.to_thread.run_sync" in message


class Cache(Plugin):
    """Answers by itself."""

    id: ClassVar = "model.cache"

    async def model(self, ctx: ModelContext, call_next: Next) -> Any:
        return ModelResponse((TextPart("As always."),))


class Fallback(Plugin):
    """Has an answer for every failure."""

    id: ClassVar = "model.fallback"

    async def model(self, ctx: ModelContext, call_next: Next) -> Any:
        try:
            return await call_next()
        except Exception:
            return ModelResponse((TextPart("Sorry."),))


class Prices(Plugin):
    """Says what a response cost."""

    id: ClassVar = "context.prices"

    async def model(self, ctx: ModelContext, call_next: Next) -> Any:
        response = await call_next()
        return attrs.evolve(response, cost=Decimal("0.01"))


@pytest.mark.parametrize(
    ("plugin", "purpose"),
    [
        (Cache, {"short_circuits": ["model"]}),
        (Fallback, {"handles_errors": ["model"]}),
        (Prices, {"changes": ["model"]}),
    ],
    ids=name,
)
async def test_what_a_plugin_does_by_purpose_can_be_said(plugin: type[Plugin[Any]], purpose: dict[str, Any]) -> None:
    assert await problems(Subject(plugin)) != {}
    assert await problems(Subject(plugin, **purpose)) == {}


class NeedsGood(Plugin):
    """Needs what another plugin provides."""

    id: ClassVar = "context.needs_good"
    needs: ClassVar = (Key("good"),)

    async def turn(self, ctx: TurnContext, call_next: Next) -> Any:
        ctx.get(Key("good"))
        return await call_next()


async def test_a_plugin_is_checked_with_the_plugins_it_needs() -> None:
    assert "plain_turn" in await problems(Subject(NeedsGood))
    assert await problems(Subject(NeedsGood, companions=lambda: [Good()])) == {}


async def test_problems_of_a_companion_are_not_the_plugins() -> None:
    assert await problems(Subject(NeedsGood, companions=lambda: [Good(), AddsContextAsAnObserver()])) == {}


class Preset(Plugin):
    """Stands for others."""

    id: ClassVar = "preset.bad"

    def plugins(self) -> Any:
        return [Good(), next(cls for cls in BAD if cls.__name__ == "Wraps")()]


async def test_what_a_preset_brings_is_checked_too() -> None:
    assert list(await problems(Subject(Preset))) == ["exceptions_pass"]


async def test_a_check_that_does_not_apply_says_why() -> None:
    with pytest.raises(NotChecked, match="no layer in phase observe"):
        await check("observers_change_nothing", Subject(Good))
    with pytest.raises(NotChecked, match="a plain turn fails: RuntimeError: the connection is gone already"):
        await check("abort_passes", Subject(FailsOnClosing))


async def test_a_test_may_bring_its_own_answers() -> None:
    class OnlyForWeather(Plugin):
        id: ClassVar = "context.only_for_weather"

        async def tool(self, ctx: ToolContext, call_next: Next) -> Any:
            if ctx.tool.name != "weather":
                raise LookupError("this is not the weather")
            return await call_next()

    async def weather(city: str) -> str:
        """Tell the weather.

        Args:
            city: where.
        """
        return "rain"

    def reply(request: Any) -> Any:
        last = request.messages[-1]
        return call("weather", city=last.text) if last.role == "user" else f"Rain. {request.messages[-3].text}"

    assert await problems(Subject(OnlyForWeather, tools=[weather], reply=reply)) == {}


class TestGood(PluginConformance):
    def plugin(self) -> Plugin[Any]:
        return Good()


class TestUsageObserver(PluginConformance):
    def plugin(self) -> Plugin[Any]:
        return UsageObserver()


class TestToolsObserver(PluginConformance):
    def plugin(self) -> Plugin[Any]:
        return ToolsObserver()


class TestDurationObserver(PluginConformance):
    def plugin(self) -> Plugin[Any]:
        return DurationObserver()


class TestLimitsGuard(PluginConformance):
    def plugin(self) -> Plugin[Any]:
        return LimitsGuard(requests=100, tool_calls=100, seconds=3600)


class TestRetry(PluginConformance):
    def plugin(self) -> Plugin[Any]:
        return Retry()

    def companions(self) -> Sequence[Plugin[Any]]:
        return [FakeClock()]


class Recorded(PluginConformance):
    """Notes which checks the tests run, and runs none."""

    __test__ = False

    def __init__(self) -> None:
        self.names: list[str] = []

    def run_check(self, name: str, backend: str) -> None:
        self.names.append(name)


def test_the_class_has_a_test_for_every_check_and_the_guide_names_each() -> None:
    recorded = Recorded()
    tests = [name for name in dir(PluginConformance) if name.startswith("test_")]
    for name in tests:
        getattr(recorded, name)("asyncio")
    assert sorted(recorded.names) == sorted(CHECKS)
    guide = (Path(__file__).parents[2] / "docs" / "how-to" / "test-a-plugin.md").read_text(encoding="utf-8")
    assert [name for name in tests if f"| `{name}` |" not in guide] == []


# exercise


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_every_hook_of_a_plugin_is_fired(backend: str) -> None:
    report = exercise(Good, backend=backend)
    assert report.is_ok
    assert report.plugin == "context.good"
    assert dict(report.hooks) == {"init": 1, "session": 1, "turn": 1, "model": 2, "tool": 2}
    assert report.status == "completed"


def test_a_hook_that_never_runs_is_told() -> None:
    report = exercise(HidesTheToolsItWraps())
    assert report.silent == ("tool",)
    assert not report.is_ok


def test_an_error_of_a_hook_is_told() -> None:
    report = exercise(FailsOnClosing())
    assert report.error == "RuntimeError: the connection is gone already"
    assert not report.is_ok


def test_a_failure_that_broke_nothing_is_counted() -> None:
    report = exercise(AddsContextAsAnObserver)
    assert (report.error, report.failures, report.is_ok) == (None, 2, False)


def test_only_a_plugin_can_be_exercised() -> None:
    with pytest.raises(PluginError, match="neither a plugin nor a plugin class"):
        exercise(print)  # type: ignore[arg-type]
