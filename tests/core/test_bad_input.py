"""What is plainly wrong in plugins, metadata and configuration is refused, naming culprit and fix."""

from __future__ import annotations

import logging
from typing import Any, ClassVar

import pytest

from agentx import (
    Agent,
    HookError,
    PluginLoadError,
    hookimpl,
)
from agentx import Plugin as AgentxPlugin
from agentx._config_edit import disable_plugin, enable_plugin
from agentx._errors import ConfigError
from agentx._plugins import Registry
from agentx.testing import EchoModel

from ._installed import install

ALONE: dict[str, Any] = {"config": False, "autoload": "none"}


# Plugins


class Collector(AgentxPlugin):
    id: ClassVar = "context.collector"
    seen: list[str] = []  # noqa: RUF012  # a default that is the same object for everybody
    by_name: dict[str, list[int]] = {"a": [1]}  # noqa: RUF012


def test_a_mutable_default_is_not_shared_between_instances() -> None:
    first, second = Collector(), Collector()
    first.seen.append("x")
    first.by_name["a"].append(2)
    assert (second.seen, second.by_name) == ([], {"a": [1]})
    assert (Collector().seen, Collector().by_name) == ([], {"a": [1]})


@pytest.mark.parametrize("mark", ["repeats", "concurrent"])
@pytest.mark.parametrize("hook", ["init", "session"])
def test_a_lifetime_cannot_be_repeated(hook: str, mark: str) -> None:
    with pytest.raises(HookError, match=f"the {hook} hook is marked {mark}=True .*only turn, model and tool layers"):

        class Again(AgentxPlugin):
            id: ClassVar = "context.again"

            @hookimpl(hook=hook, **{mark: True})
            async def again(self, ctx: Any, call_next: Any) -> None:
                await call_next()


class Misspelt(AgentxPlugin):
    id: ClassVar = "context.misspelt"
    before: ClassVar = ("context:words",)


class MisspeltLayer(AgentxPlugin):
    id: ClassVar = "context.misspelt"

    @hookimpl(after="words")
    async def turn(self, ctx: Any, call_next: Any) -> Any:
        return await call_next()


class MisspeltConflict(AgentxPlugin):
    id: ClassVar = "context.misspelt"
    conflicts: ClassVar = ("words",)


@pytest.mark.parametrize(
    ("plugin", "words"),
    [
        (Misspelt, "before has 'context:words'"),
        (MisspeltLayer, "after has 'words'"),
        (MisspeltConflict, "conflicts has 'words'"),
    ],
)
def test_a_wish_for_what_is_no_id_is_refused(plugin: Any, words: str) -> None:
    with pytest.raises(PluginLoadError, match=rf"context\.misspelt: {words}, which is no plugin id"):
        _ = Agent(EchoModel(), plugins=[plugin()], **ALONE).plugins


class ForgetsReturn(AgentxPlugin):
    id: ClassVar = "preset.forgets"

    def plugins(self) -> Any:
        [Collector()]  # the mistake


def test_a_preset_that_forgets_to_return_is_told_so() -> None:
    with pytest.raises(PluginLoadError, match=r"preset\.forgets: plugins\(\) returned None: return a list of plugins"):
        _ = Agent(EchoModel(), plugins=[ForgetsReturn()], **ALONE).plugins


def test_a_failure_names_its_plugin_once() -> None:
    with pytest.raises(PluginLoadError) as caught:
        _ = Agent(EchoModel(), plugins=[ForgetsReturn()], **ALONE).plugins
    assert str(caught.value).count("preset.forgets") == 1


# Metadata and configuration


def test_two_providers_of_one_prefix_are_no_plugin(tmp_path: Any, monkeypatch: Any, caplog: Any) -> None:
    for name in ("first", "second"):
        install(tmp_path, name, "[agentx.models]\nacme = acme:Provider")
    monkeypatch.syspath_prepend(str(tmp_path))
    with caplog.at_level(logging.WARNING):
        stack = Registry("agent", config=False, autoload="all").load()
    assert "acme" not in [row.id for row in stack.rows]
    assert "acme" not in caplog.text


def test_disabling_takes_a_kind_as_the_configuration_does(tmp_path: Any) -> None:
    file = tmp_path / "agentx.toml"
    disable_plugin("observe.*", file)
    assert file.read_text() == '[plugins]\ndisable = ["observe.*"]\n'
    enable_plugin("observe.*", file)
    assert file.read_text() == "[plugins]\ndisable = []\n"


def test_disabling_a_kind_is_refused_while_one_of_it_is_required(tmp_path: Any) -> None:
    file = tmp_path / "agentx.toml"
    file.write_text('[plugins]\nrequire = ["guard.limits"]\n')
    with pytest.raises(ConfigError, match=r"guard\.limits is required by .*agentx\.toml"):
        disable_plugin("guard.*", file)


def test_a_folder_in_the_place_of_the_configuration_is_named(tmp_path: Any) -> None:
    folder = tmp_path / "agentx.toml"
    folder.mkdir()
    with pytest.raises(ConfigError, match=r"agentx\.toml cannot be read"):
        disable_plugin("guard.limits", folder)
    assert [path.name for path in tmp_path.iterdir()] == ["agentx.toml"]
