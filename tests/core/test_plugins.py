"""The registry: from installed distributions, configuration and code to layers, and what becomes of the broken."""

from __future__ import annotations

import json
import logging
import os
import random
import sys
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentx import Agent, Key, Plugin, hookimpl, tool
from agentx._errors import ConfigError, OrderError, PluginError, PluginLoadError, UnknownProviderError
from agentx._lookup import look_up
from agentx._members import Used
from agentx._plugins import Overrides, Registry, Stack
from agentx._scan import COMMANDS, scan

from ._installed import install

HEAD = "from typing import ClassVar\nfrom agentx import Plugin, hookimpl, tool\n"


@pytest.fixture(autouse=True)
def _clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    for name in os.environ:
        if name.startswith("AGENTX"):
            monkeypatch.delenv(name)
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "site"
    path.mkdir()
    monkeypatch.syspath_prepend(str(path))
    return path


def plugin_source(plugin_id: str, *lines: str, hook: str = "turn", phase: str = "") -> str:
    """Return a module with a class `P`."""
    body = [f'    id: ClassVar = "{plugin_id}"', *([f'    phase: ClassVar = "{phase}"'] if phase else [])]
    body += [f"    {line}" for line in lines]
    body += [f"    async def {hook}(self, ctx, call_next):", "        return await call_next()"] if hook else []
    return HEAD + "\n".join(["class P(Plugin):", *body]) + "\n"


def put(site: Path, plugin_id: str, *lines: str, hook: str = "turn", phase: str = "", version: str = "1.0") -> None:
    """Install a distribution with one plugin."""
    module = "m_" + plugin_id.replace(".", "_")
    sources: dict[str, Any] = {module: plugin_source(plugin_id, *lines, hook=hook, phase=phase)}
    distribution = "dist-" + plugin_id.replace(".", "-")
    install(site, distribution, f"{plugin_id} = {module}:P", version=version, **sources)


def registry(site: Path | None = None, *used: Any, autoload: str | None = "all", **options: Any) -> Registry:
    given = [item if isinstance(item, Used) else Used(item) for item in used]
    installed = scan([str(site)] if site else [])
    return Registry("agent", given, autoload=autoload, installed=installed, **options)


def load(site: Path | None = None, *used: Any, **options: Any) -> Stack:
    return registry(site, *used, **options).load()


def rows(stack: Stack) -> dict[str, tuple[str, str]]:
    return {row.id: (row.status, row.reason) for row in stack.rows}


def order(stack: Stack, hook: str = "turn") -> list[str]:
    return [layer.plugin for layer in stack.layers[hook]]


class Memory(Plugin):
    id: ClassVar = "memory.box"
    size: int = 3
    label: str = ""

    async def turn(self, ctx: Any, call_next: Any) -> Any:
        return await call_next()


class Budget(Plugin):
    id: ClassVar = "guard.budget"
    phase: ClassVar = "gate"
    limit_usd: Decimal = Decimal("1.00")

    async def session(self, ctx: Any, call_next: Any) -> None:
        await call_next()

    async def model(self, ctx: Any, call_next: Any) -> Any:
        return await call_next()


async def log_turns(ctx: Any, call_next: Any) -> Any:
    return await call_next()


# What is loaded


def test_installed_plugins_are_loaded_configured_ordered_and_listed(site: Path) -> None:
    put(site, "memory.box", "size: int = 3", "@tool\n    async def recall(self) -> str:\n        return ''")
    put(site, "guard.x", "limit: int = 1", hook="model", phase="gate", version="0.2")
    stack = load(site, config={"guard.x": {"limit": 7}})
    assert list(stack.instances) == ["guard.x", "memory.box"]
    assert order(stack) == ["memory.box"]
    assert order(stack, "model") == ["guard.x"]
    assert [(item.name, owner) for item, owner in stack.tools] == [("recall", "memory.box")]
    assert stack.settings == {"guard.x": {"limit": 7}, "memory.box": {"size": 3}}
    assert stack.header == ("guard.x dist-guard-x 0.2", "memory.box dist-memory-box 1.0")
    first, second = stack.rows
    assert json.loads(json.dumps(first.to_json())) == {
        "id": "guard.x",
        "status": "enabled",
        "reason": "",
        "position": 1,
        "phase": "gate",
        "distribution": "dist-guard-x",
        "version": "0.2",
        "hooks": ["model"],
        "source": "entry",
        "config": {"limit": {"value": 7, "origin": "Agent(config=…) [plugins.guard.x]"}},
        "tools": [],
    }
    assert (second.position, second.phase, second.tools) == (2, "prepare", ("recall",))


def test_an_agent_without_any_plugin_has_an_empty_stack() -> None:
    stack = load()
    assert not stack.rows
    assert not any(stack.layers.values())
    assert stack.explain("turn") == "turn: no layers"


def test_an_entry_point_may_name_a_class_an_instance_or_a_module(site: Path) -> None:
    module = """
        from agentx import tool
        id = "memory.mod"
        phase = "verify"
        async def turn(ctx, call_next):
            return await call_next()
        async def not_a_hook(ctx):
            pass
    """
    source = plugin_source("memory.one", "size: int = 1") + "one = P(size=5)\n"
    install(site, "a", "memory.mod = mod_plugin\nmemory.one = one_plugin:one", mod_plugin=module, one_plugin=source)
    stack = load(site)
    assert [(layer.plugin, layer.phase) for layer in stack.layers["turn"]] == [
        ("memory.one", "prepare"),
        ("memory.mod", "verify"),
    ]
    assert stack.instances["memory.one"].size == 5
    configured = load(site, config={"memory.one": {"size": 6}})
    assert configured.instances["memory.one"].size == 6


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("P = 5\n", "memory.bad: 5 of type int is no Plugin class, no instance and no module"),
        ("class P:\n    pass\n", "is no Plugin class"),
        (plugin_source("memory.other"), "installed as memory.bad says its id is 'memory.other'"),
        (HEAD + "class P(Plugin):\n    pass\n", "installed as memory.bad says no id"),
        (plugin_source("memory.bad", "api: ClassVar = 'x'"), "api must be a whole number"),
        (plugin_source("memory.bad", "phase: ClassVar = 'gates'"), "unknown phase 'gates'"),
        (plugin_source("memory.bad", hook="session", phase="retry"), "exist only in the hooks model and tool"),
        (plugin_source("memory.bad", "async def model(self, ctx):\n        pass"), "the model hook takes (ctx)"),
        (plugin_source("memory.bad", "def plugins(self):\n        return [5]"), "returned 5, which is no plugin"),
        (plugin_source("memory.bad", "def plugins(self):\n        raise OSError('no')"), "OSError: no (m_bad.py"),
        (plugin_source("memory.bad", "must: int"), "must must be set in [plugins.memory.bad], it has no default"),
    ],
)
def test_what_is_no_proper_plugin_is_left_out_with_the_reason(site: Path, source: str, reason: str) -> None:
    install(site, "bad", "memory.bad = m_bad:P", m_bad=source)
    put(site, "memory.good")
    stack = load(site)
    assert order(stack) == ["memory.good"]
    status, found = rows(stack)["memory.bad"]
    assert status == "failed"
    assert reason in found


def test_a_plugin_for_another_contract_is_incompatible(site: Path) -> None:
    put(site, "memory.new", "api: ClassVar = 99")
    assert rows(load(site))["memory.new"] == (
        "incompatible",
        "written for api 99 of the hook contract, this agentx-core serves 1",
    )


# G24, G25: broken and doubled distributions


SIX = {
    "good1": ("memory.good1", plugin_source("memory.good1")),
    "imp": ("memory.imp", "import not_there_at_all\n"),
    "boom": ("memory.boom", "raise RuntimeError('boom')\n"),
    "exitp": ("memory.exitp", "import sys\nsys.exit(2)\n"),
    "half": ("memory.half", plugin_source("memory.half", "async def model(self, ctx):\n        pass")),
    "good2": ("memory.good2", plugin_source("memory.good2")),
}


@pytest.mark.parametrize("seed", range(4))
def test_broken_plugins_are_rows_and_the_others_work(site: Path, seed: int, caplog: pytest.LogCaptureFixture) -> None:
    names = list(SIX)
    random.Random(seed).shuffle(names)
    for name in names:
        plugin_id, source = SIX[name]
        sources: dict[str, Any] = {f"mod_{name}": source}
        install(site, name, f"{plugin_id} = mod_{name}:P", version="0.1", **sources)
    agent = registry(site)
    with caplog.at_level(logging.WARNING, "agentx"):
        stack = agent.load()
        agent.load(Overrides(disable=("memory.good1",)))
    assert order(stack) == ["memory.good1", "memory.good2"]
    assert order(stack, "model") == []
    assert [name for name, _ in stack.manager.list_name_plugin()] == ["memory.good1", "memory.good2"]
    found = rows(stack)
    assert found["memory.imp"] == ("failed", "no module named 'not_there_at_all' (mod_imp.py:1)")
    assert found["memory.boom"] == ("failed", "RuntimeError: boom (mod_boom.py:1)")
    assert found["memory.exitp"] == ("failed", "SystemExit: 2 (mod_exitp.py:2)")
    assert found["memory.half"][0] == "failed"
    assert {row.distribution for row in stack.rows} == set(SIX)
    assert len(caplog.records) == 4  # one warning each, however often it is loaded


def test_a_broken_guard_or_required_plugin_or_anything_if_strict_stops_the_agent_with_all_failures(site: Path) -> None:
    for plugin_id in ("guard.a", "guard.b", "memory.c", "memory.d"):
        install(site, plugin_id, f"{plugin_id} = mod_boom:P")
    (site / "mod_boom.py").write_text("raise RuntimeError('boom')\n")

    def failing(**options: Any) -> list[str]:
        with pytest.raises(PluginLoadError) as caught:
            load(site, **options)
        assert isinstance(caught.value.__cause__, RuntimeError)
        return [plugin_id for plugin_id, _ in caught.value.failures]

    assert failing() == ["guard.a", "guard.b"]
    assert failing(config={"plugins": {"require": ["memory.d"]}}) == ["guard.a", "guard.b", "memory.d"]
    assert failing(config={"plugins": {"strict": True}}) == ["guard.a", "guard.b", "memory.c", "memory.d"]
    listed = registry(site).rows()
    assert {row.status for row in listed} == {"failed"}
    assert len(listed) == 4


def test_ctrl_c_while_loading_is_not_eaten(site: Path) -> None:
    install(site, "c", "memory.c = mod_c:P", mod_c="raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        load(site)


def test_a_disabled_plugin_is_not_imported(site: Path) -> None:
    install(site, "c", "guard.c = mod_c:P", mod_c="raise RuntimeError\n")
    stack = load(site, config={"plugins": {"disable": ["guard.c"]}})
    assert rows(stack)["guard.c"] == ("disabled", "disabled by Agent(config=…) [plugins] disable")
    assert stack.manager.is_blocked("guard.c")
    assert "mod_c" not in sys.modules


def test_two_distributions_with_one_id_are_a_conflict_and_neither_loads(site: Path) -> None:
    install(site, "dist-a", "memory.x = mod_a:P", mod_a=plugin_source("memory.x"))
    install(site, "dist-b", "memory.x = mod_b:P", mod_b=plugin_source("memory.x"))
    stack = load(site)
    status, reason = rows(stack)["memory.x"]
    assert status == "conflict"
    assert "dist-a 1.0" in reason
    assert "dist-b 1.0" in reason
    assert order(stack) == []
    assert {"mod_a", "mod_b"}.isdisjoint(sys.modules)


def test_two_distributions_with_one_guard_stop_the_agent_unless_code_gives_the_guard(site: Path) -> None:
    install(site, "dist-a", "guard.budget = mod_a:P")
    install(site, "dist-b", "guard.budget = mod_b:P")
    with pytest.raises(PluginLoadError, match=r"dist-a 1\.0.*dist-b 1\.0"):
        load(site)
    assert order(load(site, Budget()), "model") == ["guard.budget"]


def test_a_module_that_was_deleted_is_listed_as_broken(site: Path) -> None:
    install(site, "gone", "memory.gone = mod_gone:P")
    assert rows(load(site))["memory.gone"] == ("failed", "no module named 'mod_gone'")


def test_broken_metadata_is_a_row_of_the_distribution(site: Path) -> None:
    (install(site, "acme") / "entry_points.txt").write_text("[agentx.plugins]\nnonsense\n")
    status, reason = rows(load(site))["acme"]
    assert status == "failed"
    assert "broken metadata" in reason


# Code


def test_an_instance_given_in_code_replaces_the_installed_one(site: Path) -> None:
    put(site, "memory.box")
    mine = Memory(size=9)
    stack = load(site, mine)
    assert stack.instances["memory.box"] is mine
    assert [(row.id, row.source) for row in stack.rows] == [("memory.box", "code")]


def test_several_instances_of_a_class_have_names_settings_and_layers_of_their_own() -> None:
    config = {"memory.box": {"size": 4}, "memory.box#b": {"size": 5}}
    stack = load(None, Memory, Used(Memory, "b"), Used(Memory(label="c"), "c"), config=config)
    sizes = {plugin_id: instance.size for plugin_id, instance in stack.instances.items()}
    assert sizes == {"memory.box": 4, "memory.box#b": 5, "memory.box#c": 3}
    assert order(stack) == ["memory.box", "memory.box#b", "memory.box#c"]


def test_a_table_of_the_configuration_makes_a_further_instance(site: Path) -> None:
    put(site, "memory.box", "size: int = 3")
    stack = load(site, config={"memory.box#second": {"size": 8}})
    assert stack.instances["memory.box#second"].size == 8
    assert [(row.id, row.source) for row in stack.rows] == [("memory.box", "entry"), ("memory.box#second", "config")]


def test_the_same_id_twice_without_a_name_is_refused_with_the_fix() -> None:
    with pytest.raises(PluginError, match=r"memory\.box is used twice: give the second one a name"):
        load(None, Memory(), Memory())


def test_fields_given_in_code_count_above_files_and_below_overrides() -> None:
    config = {"memory.box": {"size": 5, "label": "file"}}
    agent = registry(None, Memory(size=9), config=config)
    instance = agent.load().instances["memory.box"]
    assert (instance.size, instance.label) == (9, "file")
    values = agent.load().members["memory.box"].values
    assert (values["size"].origin, values["label"].origin) == ("code", "Agent(config=…) [plugins.memory.box]")
    overridden = agent.load(Overrides(config={"memory.box": {"size": 11}}))
    assert overridden.instances["memory.box"].size == 11


def test_functions_are_layers_of_a_hook_and_named_after_themselves() -> None:
    stack = load(None, log_turns, Used(log_turns, hook="model"), Used(log_turns, "audit", "gate", "tool"))
    assert order(stack) == ["function.log_turns"]
    assert order(stack, "model") == ["function.log_turns#2"]
    assert [(layer.plugin, layer.phase) for layer in stack.layers["tool"]] == [("function.audit", "gate")]


def test_an_id_given_in_code_loads_the_installed_plugin_whatever_autoload_says(site: Path) -> None:
    put(site, "memory.box")
    put(site, "memory.other")
    stack = load(site, "memory.box", autoload="none")
    assert order(stack) == ["memory.box"]
    assert rows(stack)["memory.other"] == ("disabled", "not loaded: autoload is 'none' (code)")
    with pytest.raises(PluginLoadError, match=r"memory\.bux: not installed, named in code; did you mean 'memory\.box'"):
        load(site, "memory.bux", autoload="none")


@pytest.mark.parametrize("value", [5, object(), dict, "nonsense"])
def test_what_is_no_plugin_is_refused_at_once(value: Any) -> None:
    with pytest.raises(PluginError, match=r"is neither a plugin|is no plugin id"):
        load(None, value)


def test_a_plugin_in_code_that_cannot_be_made_stops_the_agent() -> None:
    with pytest.raises(PluginLoadError, match=r"memory\.box has no setting 'sice' .*did you mean 'size'"):
        load(None, Memory, config={"memory.box": {"sice": 5}})


def test_an_instance_is_immutable_once_it_is_registered() -> None:
    mine = Memory()
    load(None, mine)
    with pytest.raises(PluginError, match=r"immutable"):
        mine.size = 5


# Configuration


def test_autoload_says_which_installed_plugins_load(site: Path) -> None:
    for plugin_id in ("memory.a", "memory.b", "memory.c", "memory.d"):
        put(site, plugin_id)
    config = {"plugins": {"require": ["memory.a"], "presets": ["memory.b"]}, "memory.c": {"enabled": True}}

    def active(autoload: str | None) -> list[str]:
        return list(load(site, autoload=autoload, config=config).instances)

    assert active("all") == ["memory.a", "memory.b", "memory.c", "memory.d"]
    assert active("listed") == ["memory.a", "memory.b", "memory.c"]
    assert active("none") == ["memory.a"]
    assert active(None) == ["memory.a"]  # under pytest


def test_a_required_plugin_cannot_be_disabled_by_a_table_or_an_override(site: Path) -> None:
    put(site, "memory.a")
    config = {"plugins": {"require": ["memory.a"]}}
    with pytest.raises(ConfigError, match=r"memory\.a is required by .* and disabled by"):
        load(site, config={**config, "memory.a": {"enabled": False}})
    with pytest.raises(ConfigError, match=r"memory\.a is required by .* and disabled by override\(disable=…\)"):
        registry(site, config=config).load(Overrides(disable=("memory.*",)))


def test_a_required_version_must_be_installed(site: Path) -> None:
    put(site, "memory.a", version="0.9")
    load(site, config={"plugins": {"require": ["memory.a>=0.1,<1"]}})
    with pytest.raises(PluginLoadError, match=r"memory\.a: version 0\.9 is installed, >=1 is required by"):
        load(site, config={"plugins": {"require": ["memory.a>=1"]}})


def test_a_plugin_that_is_configured_and_not_installed_is_missing(site: Path, caplog: pytest.LogCaptureFixture) -> None:
    put(site, "memory.box")
    config: dict[str, Any] = {"memory.bix": {"size": 5}}
    stack = load(site, config=config)
    status, reason = rows(stack)["memory.bix"]
    assert (status, "did you mean 'memory.box'" in reason) == ("missing", True)
    assert "memory.bix is left out (missing)" in caplog.text
    with pytest.raises(PluginLoadError, match=r"guard\.x: not installed, named in"):
        load(site, config={"guard.x": {"limit": 5}})
    with pytest.raises(PluginLoadError, match=r"memory\.y: not installed, required by"):
        load(site, config={"plugins": {"require": ["memory.y"]}})


def test_a_wrong_setting_is_the_plugins_failure_and_not_everybodys(site: Path) -> None:
    put(site, "memory.a", "size: int = 1")
    put(site, "memory.b")
    stack = load(site, config={"memory.a": {"size": "big"}, "memory.b": {"on_error": "ignore"}})
    assert rows(stack)["memory.a"][0] == rows(stack)["memory.b"][0] == "failed"
    assert "memory.a: size must be a whole number, not 'big' (Agent(config=…) [plugins.memory.a])" in str(rows(stack))


def test_a_variable_of_the_environment_that_names_no_plugin_is_refused(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(site, "memory.box", "size: int = 1")
    monkeypatch.setenv("AGENTX__MEMORY_BOX__SIZE", "6")
    assert load(site).instances["memory.box"].size == 6
    monkeypatch.setenv("AGENTX__MEMORY_BIX__SIZE", "6")
    with pytest.raises(ConfigError, match=r"AGENTX__MEMORY_BIX__SIZE names no plugin.*MEMORY_BOX"):
        load(site)


def test_the_user_crosses_phases_and_the_layer_keeps_its_own_where_the_phase_does_not_exist() -> None:
    stack = load(None, Budget, config={"guard.budget": {"phase": "attempt", "on_error": "open"}})
    (layer,) = stack.layers["model"]
    assert (layer.phase, layer.on_error) == ("attempt", "open")
    assert [layer.phase for layer in stack.layers["session"]] == ["gate"]
    stack = load(None, Budget, config={"guard.budget": {"phase": {"model": "verify"}}})
    assert [layer.phase for hook in ("session", "model") for layer in stack.layers[hook]] == ["gate", "verify"]


def test_limits_of_the_agent_configure_guard_limits_which_must_be_there_then(site: Path) -> None:
    with pytest.raises(PluginLoadError, match=r"guard\.limits: not installed, required by Agent\(limits=…\)"):
        load(site, limits={"requests": 3})
    put(site, "guard.limits", "requests: int = 50", phase="gate")
    stack = load(site, limits={"requests": 3}, autoload="none")
    assert stack.instances["guard.limits"].requests == 3
    assert stack.members["guard.limits"].values["requests"].origin == "Agent(limits=…) [plugins.guard.limits]"


def test_settings_of_the_command_line_count_most() -> None:
    stack = load(None, Memory(size=9), config={"memory.box": {"size": 5}}, command_line=["memory.box.size=12"])
    assert stack.instances["memory.box"].size == 12


def test_secret_fields_are_masked_in_the_listing_and_left_out_of_the_agents_configuration() -> None:
    class Sealed(Plugin):
        id: ClassVar = "tools.sealed"
        key: str = attrs.field(default="", metadata={"secret": True})

    stack = load(None, Sealed(key="hush"))
    assert "hush" not in json.dumps([row.to_json() for row in stack.rows])
    assert stack.settings == {"tools.sealed": {}}


# Overrides


def test_an_override_adds_and_removes_plugins_and_keeps_the_instances_of_the_others() -> None:
    class Notes(Plugin):
        id: ClassVar = "memory.notes"

        async def turn(self, ctx: Any, call_next: Any) -> Any:
            return await call_next()

    agent = registry(None, Memory, Notes)
    base = agent.load()
    less = agent.load(Overrides(disable=("memory.box",)))
    more = agent.load(Overrides(use=(Used(log_turns),)))
    other = agent.load(Overrides(config={"memory.box": {"size": 8}}))
    assert order(less) == ["memory.notes"]
    assert less.instances["memory.notes"] is base.instances["memory.notes"]
    assert more.instances["memory.box"] is base.instances["memory.box"]
    assert order(more) == ["memory.box", "memory.notes", "function.log_turns"]
    assert other.instances["memory.box"].size == 8
    assert other.instances["memory.notes"] is base.instances["memory.notes"]


def test_an_override_may_replace_what_was_used() -> None:
    mine = Memory(size=1)
    agent = registry(None, Memory(size=7))
    assert agent.load(Overrides(use=(Used(mine),))).instances["memory.box"] is mine


def test_overrides_merge_from_outer_to_inner() -> None:
    outer = Overrides(disable=("memory.a",), config={"memory.box": {"size": 5, "label": "outer"}})
    inner = Overrides(config={"memory.box": {"size": 6}})
    stack = registry(None, Memory).load(outer.merge(inner))
    assert (stack.instances["memory.box"].size, stack.instances["memory.box"].label) == (6, "outer")
    assert outer.merge(inner).key != inner.merge(outer).key
    assert Overrides().key == Overrides(config={}).key
    assert Overrides().merge(Overrides()).key == Overrides().key


# Presence


def test_what_a_plugin_requires_must_be_active(site: Path) -> None:
    put(site, "memory.a", "requires: ClassVar = ('memory.b',)")
    put(site, "memory.b", "requires: ClassVar = ('memory.c>=2',)")
    put(site, "memory.c", version="1.0")
    found = rows(load(site))
    assert found["memory.b"] == ("failed", "requires memory.c>=2, and version 1.0 is active")
    assert found["memory.a"] == (
        "failed",
        "requires memory.b, which is failed: requires memory.c>=2, and version 1.0 is active",
    )
    assert found["memory.c"][0] == "enabled"


def test_a_plugin_that_conflicts_with_an_active_one_is_left_out(site: Path) -> None:
    put(site, "memory.a", "conflicts: ClassVar = ('memory.b',)")
    put(site, "memory.b")
    found = rows(load(site))
    assert found["memory.a"] == ("conflict", "conflicts with memory.b: disable one of them")
    assert found["memory.b"][0] == "enabled"
    assert rows(load(site, config={"plugins": {"disable": ["memory.b"]}}))["memory.a"][0] == "enabled"


CLOCK = Key[float]("clock")


class Clock(Plugin):
    id: ClassVar = "tools.zclock"
    provides: ClassVar = (CLOCK,)

    async def init(self, ctx: Any, call_next: Any) -> None:
        await call_next()

    async def session(self, ctx: Any, call_next: Any) -> None:
        await call_next()

    async def turn(self, ctx: Any, call_next: Any) -> Any:
        return await call_next()


class Diary(Plugin):
    id: ClassVar = "memory.diary"
    needs: ClassVar = (CLOCK,)

    async def init(self, ctx: Any, call_next: Any) -> None:
        await call_next()

    async def session(self, ctx: Any, call_next: Any) -> None:
        await call_next()

    async def turn(self, ctx: Any, call_next: Any) -> Any:
        return await call_next()


def test_who_provides_a_service_goes_outside_of_who_needs_it_in_init_and_session_only() -> None:
    stack = load(None, Diary, Clock)
    assert order(stack, "init") == order(stack, "session") == ["tools.zclock", "memory.diary"]
    assert order(stack, "turn") == ["memory.diary", "tools.zclock"]
    reasons = [str(reason) for hook, reason in stack.why("tools.zclock", "memory.diary") if hook == "init"]
    assert reasons == [
        "memory.diary after tools.zclock, declared by memory.diary (needs Key('clock'))",
    ]


def test_a_missing_service_names_the_disabled_plugin_that_could_provide_it(site: Path) -> None:
    provides = "provides: ClassVar = (__import__('agentx').Key('clock'),)"
    put(site, "tools.clock", provides, hook="")
    with pytest.raises(PluginLoadError, match=r"needs Key\('clock'\), which no active plugin provides: install"):
        load(None, Diary)
    with pytest.raises(PluginLoadError, match=r"memory\.diary: needs .*: enable tools\.clock, which provides it"):
        load(site, Diary, autoload="none")
    assert load(site, Diary).instances.keys() == {"memory.diary", "tools.clock"}


# Presets


class Coding(Plugin):
    id: ClassVar = "preset.coding"

    def plugins(self) -> tuple[Plugin, ...]:
        return (Memory(size=20), Budget(limit_usd=Decimal(5)))


def test_plugins_of_a_preset_are_listed_one_by_one_and_each_can_be_configured_and_disabled(site: Path) -> None:
    put(site, "memory.box", "size: int = 1")
    stack = load(site, Coding, config={"guard.budget": {"limit_usd": "7"}})
    assert [(row.id, row.source) for row in stack.rows] == [
        ("guard.budget", "preset"),
        ("preset.coding", "code"),
        ("memory.box", "preset"),
    ]
    assert stack.instances["memory.box"].size == 20
    assert stack.instances["guard.budget"].limit_usd == 7
    assert stack.members["memory.box"].values["size"].origin == "preset preset.coding"
    assert rows(load(site, Coding, config={"plugins": {"disable": ["memory.*"]}}))["memory.box"][0] == "disabled"
    assert rows(load(None, Coding, config={"guard.budget": {"enabled": False}}))["guard.budget"][0] == "disabled"
    assert load(None, Coding, Memory(size=1)).instances["memory.box"].size == 1


def test_a_preset_brings_plugins_whatever_autoload_says_and_the_environment_may_set_them(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(site, "memory.box")
    monkeypatch.setenv("AGENTX__MEMORY_BOX__SIZE", "33")
    monkeypatch.setenv("AGENTX__GUARD_BUDGET__LIMIT_USD", "44")
    stack = load(site, Coding, autoload="none")
    assert stack.instances["memory.box"].size == 33
    assert stack.instances["guard.budget"].limit_usd == 44


def test_presets_may_bring_presets_and_agree_but_not_contradict_each_other() -> None:
    class Outer(Plugin):
        id: ClassVar = "preset.outer"

        def plugins(self) -> tuple[Plugin, ...]:
            return (Coding(), Memory(size=20))

    assert load(None, Outer).instances.keys() == {"preset.outer", "preset.coding", "memory.box", "guard.budget"}

    class Other(Plugin):
        id: ClassVar = "preset.other"

        def plugins(self) -> tuple[Plugin, ...]:
            return (Memory(size=21),)

    found = rows(load(None, Coding, Other))
    assert found["memory.box"][0] == "conflict"
    assert "preset.coding and preset.other" in found["memory.box"][1]


def test_an_override_keeps_the_plugins_of_a_preset() -> None:
    agent = registry(None, Coding, Used(log_turns))
    base, less = agent.load(), agent.load(Overrides(disable=("function.log_turns",)))
    assert less.instances["memory.box"] is base.instances["memory.box"]


# Order and explanation


class Twice(Plugin):
    id: ClassVar = "tools.twice"

    async def model(self, ctx: Any, call_next: Any) -> Any:
        return await call_next()

    @hookimpl(hook="model", phase="attempt", before="model.*", repeats=True)
    async def attempts(self, ctx: Any, call_next: Any) -> Any:
        return await call_next()


def test_a_plugin_may_have_two_layers_in_one_hook() -> None:
    stack = load(None, Twice, Budget)
    assert [(layer.plugin, layer.phase, layer.repeats) for layer in stack.layers["model"]] == [
        ("guard.budget", "gate", False),
        ("tools.twice", "prepare", False),
        ("tools.twice", "attempt", True),
    ]
    assert all(layer.instance is stack.instances[layer.plugin] for layer in stack.layers["model"])


def test_explain_shows_the_onion_and_the_reasons() -> None:
    text = load(None, Memory, Budget, Used(log_turns, "audit", "gate", "model"), Twice).explain("model")
    assert text.startswith("model: guard.budget > function.audit > tools.twice > tools.twice:attempts > core\n")
    assert "guard.budget is in phase gate (declared by guard.budget)" in text
    assert "function.audit is in phase gate (set by use(phase=…))" in text
    assert "guard.budget is used before function.audit" in text


def test_why_says_by_hook_why_a_plugin_is_where_it_is() -> None:
    stack = load(None, Memory, Used(Memory, "b"), Budget, config={"plugins": {"order": {"turn": ["memory.box#b"]}}})
    (found,) = stack.why("memory.box", "memory.box#b")
    assert (found[0], str(found[1])) == (
        "turn",
        "order.turn lists 'memory.box#b', and memory.box is not in it",
    )
    assert {hook for hook, _ in stack.why("guard.budget")} == {"session", "model"}
    with pytest.raises(PluginError, match=r"guard\.gone has no place, it is neither installed nor used"):
        stack.why("guard.gone")


def test_constraints_of_the_user_replace_those_of_the_plugin() -> None:
    class Last(Plugin):
        id: ClassVar = "memory.a"
        after: ClassVar = "memory.box"

        async def turn(self, ctx: Any, call_next: Any) -> Any:
            return await call_next()

    assert order(load(None, Last, Memory)) == ["memory.box", "memory.a"]
    assert order(load(None, Last, Memory, config={"memory.a": {"after": []}})) == ["memory.a", "memory.box"]
    with pytest.raises(OrderError, match=r"memory\.box after memory\.a, declared by Agent\(config=…\)"):
        load(None, Last, Memory, config={"memory.box": {"after": ["memory.a"]}})


def test_a_guard_without_a_phase_stops_the_agent_and_says_what_to_write(site: Path) -> None:
    put(site, "guard.x", hook="model")
    with pytest.raises(PluginLoadError, match=r"guard\.x states no phase.*'gate'.*'verify'"):
        load(site)


# Without importing anything


def test_the_static_listing_imports_no_plugin(site: Path) -> None:
    for plugin_id in ("guard.a", "memory.b", "memory.c"):
        install(site, plugin_id, f"{plugin_id} = mod_static:P", mod_static="raise RuntimeError\n")
    config = {"plugins": {"disable": ["memory.c"], "require": ["memory.gone"]}}
    listed = registry(site, config=config).static_rows()
    assert [(row.id, row.status) for row in listed] == [
        ("guard.a", "enabled"),
        ("memory.b", "enabled"),
        ("memory.c", "disabled"),
        ("memory.gone", "missing"),
    ]
    assert listed[0].distribution == "guard-a"
    assert "mod_static" not in sys.modules


def test_making_an_agent_imports_no_plugin_and_reads_no_file(site: Path) -> None:
    put(site, "memory.box")
    Path("agentx.toml").write_text("broken [")
    agent = Agent("local/auto", autoload="all")
    agent.use(Memory)
    assert "m_memory_box" not in sys.modules
    with pytest.raises(ConfigError, match=r"agentx\.toml cannot be read"):
        agent.stack()


# Providers


def provider_source(answer: str) -> str:
    return f"class Provider:\n    def model(self, name):\n        return {answer!r} + name\nprovider = Provider()\n"


def test_a_model_provider_is_imported_on_use(site: Path) -> None:
    install(site, "m", "[agentx.models]\nacme = mod_m:Provider\n", mod_m=provider_source("acme "))
    stack = load(site)
    assert "mod_m" not in sys.modules
    assert stack.provider("acme").model("x") == "acme x"


@pytest.mark.parametrize("prefix", ["openai", "anthropic", "google", "local"])
def test_an_unknown_provider_names_the_extra_and_what_is_installed(site: Path, prefix: str) -> None:
    install(site, "m", "[agentx.models]\nacme = mod_m:provider\n")
    with pytest.raises(UnknownProviderError, match=rf"{prefix}.*agentx-core\[{prefix}\].*installed: acme"):
        load(site).provider(prefix)
    with pytest.raises(UnknownProviderError, match=r"install the plugin that serves it"):
        load(site).provider("nobody")


def test_two_claimants_of_a_prefix_and_a_broken_provider_are_named(site: Path) -> None:
    install(site, "one", "[agentx.models]\nacme = mod_m:provider\nbad = mod_bad:provider\n", mod_bad="1 / 0\n")
    install(site, "two", "[agentx.models]\nacme = mod_m:provider\n")
    stack = load(site)
    with pytest.raises(PluginLoadError, match=r"one 1\.0.*two 1\.0.*'acme'"):
        stack.provider("acme")
    with pytest.raises(PluginLoadError, match=r"ZeroDivisionError.*mod_bad\.py:1"):
        stack.provider("bad")


def test_a_command_is_looked_up_by_name(site: Path) -> None:
    install(site, "c", "[agentx.commands]\nhello = mod_c:run\n", mod_c="run = 42\n")
    installed = scan([str(site)])
    assert look_up(COMMANDS, "hello", installed) == 42
    with pytest.raises(LookupError, match=r"'helo'; did you mean 'hello'"):
        look_up(COMMANDS, "helo", installed)


# Never depends on any order


def signature(stack: Stack) -> Mapping[str, Any]:
    return {
        "layers": {hook: [(layer.plugin, layer.phase) for layer in found] for hook, found in stack.layers.items()},
        "rows": [(row.id, row.status, row.position, row.phase, row.distribution) for row in stack.rows],
        "tools": [(item.name, owner) for item, owner in stack.tools],
        "explained": [stack.explain(hook) for hook in stack.layers],
    }


@given(install_order=st.permutations(range(6)), path_order=st.permutations(range(3)), chance=st.randoms())
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_stack_is_the_same_whatever_the_install_directory_or_path_order(
    tmp_path_factory: pytest.TempPathFactory, install_order: list[int], path_order: list[int], chance: random.Random
) -> None:
    made = [
        ("observe.usage", ("after: ClassVar = 'observe.*'",), "model", ""),
        ("guard.budget", ("before: ClassVar = 'guard.a'",), "model", "gate"),
        ("guard.a", (), "model", "gate"),
        ("memory.vector", ("@tool\n    async def recall(self) -> str:\n        return ''",), "turn", ""),
        ("memory.z", ("before: ClassVar = 'memory.vector'",), "turn", ""),
        ("observe.b", (), "model", ""),
    ]
    root = tmp_path_factory.mktemp("site")
    for index in install_order:
        plugin_id, lines, hook, phase = made[index]
        put(root / str(chance.randrange(3)), plugin_id, *lines, hook=hook, phase=phase)
    paths = [str(root / str(index)) for index in path_order]
    installed = scan(paths)
    old = list(sys.path)
    sys.path[:0] = paths
    try:
        stack = Registry("agent", autoload="all", installed=installed, config=False).load()
    finally:
        sys.path[:] = old
        for name in [name for name in sys.modules if name.startswith("m_")]:
            del sys.modules[name]
    assert order(stack, "model") == ["observe.b", "observe.usage", "guard.budget", "guard.a"]
    assert order(stack) == ["memory.z", "memory.vector"]
    expected = STACKS.setdefault("first", signature(stack))
    assert signature(stack) == expected


STACKS: dict[str, Mapping[str, Any]] = {}


def test_a_tool_of_a_plugin_belongs_to_its_instance() -> None:
    class Shelf(Plugin):
        id: ClassVar = "tools.shelf"
        book: str = "none"

        @tool
        async def read(self) -> str:
            """Read."""
            return self.book

    shelf = Used(Shelf(book="Emma"), "en")
    ((item, owner),) = load(None, shelf).tools
    assert (item.name, owner) == ("read", "tools.shelf#en")
    assert getattr(item.function, "__self__", None) is load(None, shelf).instances["tools.shelf#en"]
