"""The pytest plugin in test sessions of its own, as authors of plugins see it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ._installed import install

pytest_plugins = ["pytester"]

HELLO = """
from typing import ClassVar
from agentx import Plugin

class Hello(Plugin):
    id: ClassVar = "context.hello"

    async def turn(self, ctx, call_next):
        return await call_next()

class World(Hello):
    id: ClassVar = "context.world"
"""

LISTS = """
def active(agent):
    return [row.id for row in agent.plugins if row.status == "enabled"]
"""


@pytest.fixture
def session(
    pytester: pytest.Pytester, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> pytest.Pytester:
    """A folder with two installed plugins, and pytest in a process of its own."""
    site = pytester.mkdir("site")
    install(site, "hello", "context.hello = hello:Hello\ncontext.world = hello:World", hello=HELLO)
    core = Path(__file__).parents[2] / "core"
    monkeypatch.setenv("PYTHONPATH", f"{site}:{core}")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(pytester.path / "home"))
    monkeypatch.delenv("AGENTX_ALLOW_MODEL_REQUESTS", raising=False)
    if not request.config.pluginmanager.has_plugin("agentx"):
        monkeypatch.setenv("PYTEST_PLUGINS", "agentx_pytest")
    return pytester


def run(session: pytest.Pytester, code: str, **outcomes: int) -> pytest.RunResult:
    """Run tests, and check how many passed, failed and so on."""
    session.makepyfile(code)
    result = session.runpytest_subprocess("-p", "no:cacheprovider", "-p", "no:hypothesispytest")
    result.assert_outcomes(**outcomes)
    return result


def test_agents_under_test_load_no_installed_plugin_by_themselves(session: pytest.Pytester) -> None:
    run(
        session,
        LISTS
        + """
def test_it(agentx_agent):
    assert active(agentx_agent([])) == []
""",
        passed=1,
    )


def test_the_mark_names_the_plugins_that_agents_load_and_no_others(session: pytest.Pytester) -> None:
    run(
        session,
        LISTS
        + """
import pytest

@pytest.mark.agentx_plugins("context.hello")
def test_one(agentx_agent):
    assert active(agentx_agent([])) == ["context.hello"]

@pytest.mark.agentx_plugins("context.hello", "context.world")
class TestBoth:
    def test_both(self, agentx_agent):
        assert active(agentx_agent([])) == ["context.hello", "context.world"]

    @pytest.mark.agentx_plugins()
    def test_none(self, agentx_agent):
        assert active(agentx_agent([])) == []

def test_nothing_is_left_of_the_mark(agentx_agent):
    import os
    assert active(agentx_agent([])) == []
    assert not [name for name in os.environ if name.startswith("AGENTX") and "ALLOW" not in name]
""",
        passed=4,
    )


def test_the_mark_counts_more_than_the_environment_and_less_than_the_code(session: pytest.Pytester) -> None:
    run(
        session,
        LISTS
        + """
import os, pytest
os.environ["AGENTX_AUTOLOAD"] = "all"

@pytest.mark.agentx_plugins("context.hello")
def test_environment(agentx_agent):
    assert active(agentx_agent([])) == ["context.hello"]

@pytest.mark.agentx_plugins("context.hello")
def test_code(agentx_agent):
    assert active(agentx_agent([], autoload="none")) == []

def test_the_environment_is_back():
    assert os.environ["AGENTX_AUTOLOAD"] == "all"
""",
        passed=3,
    )


def test_a_misspelt_id_in_the_mark_is_an_error_that_suggests_one(session: pytest.Pytester) -> None:
    result = run(
        session,
        LISTS
        + """
import pytest

@pytest.mark.agentx_plugins("context.helo")
def test_it(agentx_agent):
    active(agentx_agent([]))
""",
        failed=1,
    )
    result.stdout.fnmatch_lines(["*CONTEXT_HELO*did you mean 'CONTEXT_HELLO'*"])


def test_models_on_the_network_are_blocked_unless_a_test_is_marked(session: pytest.Pytester) -> None:
    run(
        session,
        """
import os, pytest

def test_blocked():
    assert os.environ["AGENTX_ALLOW_MODEL_REQUESTS"] == "0"

@pytest.mark.agentx_network
def test_allowed():
    assert os.environ["AGENTX_ALLOW_MODEL_REQUESTS"] == "1"

def test_blocked_again():
    assert os.environ["AGENTX_ALLOW_MODEL_REQUESTS"] == "0"
""",
        passed=3,
    )


def test_who_allows_the_network_for_the_whole_session_is_heard(
    session: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTX_ALLOW_MODEL_REQUESTS", "1")
    run(
        session,
        """
import os

def test_it():
    assert os.environ["AGENTX_ALLOW_MODEL_REQUESTS"] == "1"
""",
        passed=1,
    )


def test_the_fixtures_make_agents_scripts_and_a_clock(session: pytest.Pytester) -> None:
    run(
        session,
        """
from agentx import Clock

def test_agent(agentx_agent):
    assert agentx_agent(["Hello."]).run_sync("Hi").text == "Hello."

def test_model(agentx_agent, scripted):
    model = scripted(["Hello."], name="greeter")
    agentx_agent(model, instructions="Greet.").run_sync("Hi")
    assert model.requests[0].instructions == "Greet."

def test_clock(agentx_agent, agentx_clock):
    async def sleep(ctx, call_next):
        await ctx.get(Clock).sleep(3600)
        return await call_next()

    agentx_agent(["Hello."], plugins=[agentx_clock]).use(sleep).run_sync("Hi")
    assert agentx_clock.sleeps == [3600]
""",
        passed=3,
    )


def test_a_script_that_is_not_used_up_fails_the_test_at_its_end(session: pytest.Pytester) -> None:
    result = run(
        session,
        """
def test_it(agentx_agent):
    agentx_agent(["Hello.", "Never said."]).run_sync("Hi")
""",
        passed=1,
        errors=1,
    )
    result.stdout.fnmatch_lines(["*ScriptError: the script of 'scripted' has 2 entries, of which 1 were used*"])


CONFORMANCE = """
from agentx_pytest import PluginConformance
from hello import Hello

class TestHello(PluginConformance):
    def plugin(self):
        return Hello()
"""


def test_a_good_plugin_passes_the_conformance_tests_on_both_backends(session: pytest.Pytester) -> None:
    run(session, CONFORMANCE, passed=30, skipped=4)


def test_the_conformance_tests_of_a_bad_plugin_say_what_is_wrong(session: pytest.Pytester) -> None:
    result = run(
        session,
        CONFORMANCE
        + """class Loud(Hello):
    async def turn(self, ctx, call_next):
        try:
            return await call_next()
        except Exception as error:
            raise SystemError("oh no") from error

class TestHello(PluginConformance):
    def plugin(self):
        return Loud()
""",
        passed=28,
        failed=2,
        skipped=4,
    )
    result.stdout.fnmatch_lines(
        [
            "context.hello: the turn hook at *:8 got ProbeError from call_next and raised SystemError: oh no*",
            "FAILED *::TestHello::test_exceptions_pass_unchanged[[]asyncio[]]*",
            "FAILED *::TestHello::test_exceptions_pass_unchanged[[]trio[]]*",
        ]
    )


def test_without_trio_the_conformance_tests_run_on_asyncio_only(session: pytest.Pytester) -> None:
    session.makeconftest(
        """
import sys

class NoTrio:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "trio":
            raise ModuleNotFoundError("No module named 'trio'", name="trio")

for name in [name for name in sys.modules if name.partition(".")[0] == "trio"]:
    del sys.modules[name]
sys.meta_path.insert(0, NoTrio())
"""
    )
    run(session, CONFORMANCE, passed=15, skipped=19)


def test_a_conformance_class_without_a_plugin_says_what_it_needs(session: pytest.Pytester) -> None:
    result = run(
        session,
        """
from agentx_pytest import PluginConformance

class TestNothing(PluginConformance):
    pass
""",
        failed=34,
    )
    result.stdout.fnmatch_lines(["*NotImplementedError: TestNothing needs `def plugin(self)`*"])


def test_the_plugin_imports_only_pytest() -> None:
    code = """
import sys, pytest
before = set(sys.modules)
import agentx_pytest
new = {name.partition(".")[0] for name in set(sys.modules) - before} - sys.stdlib_module_names
sys.exit(", ".join(sorted(new - {"agentx_pytest"})) or 0)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
