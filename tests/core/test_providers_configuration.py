"""Settings of providers: where they come from, what is wrong with them, and how long a provider lives."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from agentx import Agent, ConfigError, UnknownProviderError
from agentx._config import load_config
from agentx._plugins import Registry
from agentx._scan import scan

from ._cli import Cli
from ._installed import install

ACME = """
from typing import ClassVar
import attrs
from agentx import Capabilities, ModelInfo, ModelResponse, TextPart
from agentx.providers import HttpProvider

LOG = []

@attrs.define(eq=False)
class AcmeModel:
    name: str
    said: str

    async def respond(self, request, emit):
        return ModelResponse((TextPart(self.said),))

@attrs.define(eq=False, kw_only=True)
class AcmeProvider(HttpProvider):
    default_url: ClassVar[str] = "https://acme.example/v1"
    key_variables: ClassVar[tuple[str, ...]] = ("ACME_KEY",)
    provider: str = ""
    region: str = "here"

    def __attrs_post_init__(self):
        LOG.append(f"made {self.prefix}")

    def model(self, name):
        shown = (self.prefix, self.provider, name, self.region, self.url, self.timeouts.idle)
        return AcmeModel(f"{self.prefix}/{name}", " ".join(map(str, shown)))

    def models(self):
        origin = self.key_source.origin()
        return [ModelInfo(f"{self.prefix}/big", self.region, bool(origin), key=origin,
                          capabilities=Capabilities(tools=True, max_context=1000))]

    async def aclose(self):
        LOG.append(f"closed {self.prefix}")
"""


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "site"
    install(folder, "acme", "[agentx.models]\nacme = acme_models:AcmeProvider\n", acme_models=ACME)
    install(folder, "plain", "[agentx.models]\nplain = plain_models:PROVIDER\n", plain_models="PROVIDER = object()\n")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "acme_models", raising=False)
    return folder


def said(site: Path, config: Any = False, model: str = "acme/big", **options: Any) -> str:
    registry = Registry(options.pop("name", "agent"), config=config, autoload="none", **options)
    registry._installed = scan([str(site)])
    prefix, _, name = model.partition("/")
    text: str = registry.load().provider(prefix).model(name).said
    return text


def test_a_provider_has_its_defaults(site: Path) -> None:
    assert said(site) == "acme acme big here https://acme.example/v1 120.0"


def test_a_table_of_the_file_sets_fields(site: Path, tmp_path: Path) -> None:
    file = tmp_path / "agentx.toml"
    file.write_text('[models.acme]\nregion = "there"\ntimeouts.idle = 5\n[agents.mine.models.acme]\nregion = "mine"\n')
    assert said(site, file) == "acme acme big there https://acme.example/v1 5.0"
    assert "mine" in said(site, file, name="mine")


def test_later_sources_win_for_each_key(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"models": {"acme": {"region": "file", "base_url": "http://file", "timeouts": {"idle": 1}}}}
    monkeypatch.setenv("AGENTX__MODELS__ACME__REGION", "environment")
    monkeypatch.setenv("AGENTX__MODELS__ACME__TIMEOUTS__IDLE", "2.5")
    assert said(site, config) == "acme acme big environment http://file 2.5"
    assert "line http://file" in said(site, config, command_line=["models.acme.region=line"])


def test_another_name_has_settings_of_its_own(site: Path) -> None:
    config = {"models": {"acme": {"region": "one"}, "our-acme": {"provider": "acme", "base_url": "http://ours"}}}
    assert said(site, config, "our-acme/big") == "our-acme acme big here http://ours 120.0"


@pytest.mark.parametrize(
    ("table", "complaint"),
    [
        (
            {"regoin": "x"},
            r"models\.acme has no setting 'regoin' \(Agent\(config=…\) \[models\.acme\]\).*mean 'region'",
        ),
        ({"timeouts": {"idel": 1}}, r"models\.acme: timeouts must be a table without the unknown key 'idel'.*'idle'"),
        ({"timeouts": {"idle": "x"}}, r"models\.acme: timeouts\.idle must be a finite number"),
        ({"timeouts": {"idle": -1}}, r"models\.acme: .*idle must be more than 0 seconds"),
        ({"client": "x"}, r"models\.acme has no setting 'client'"),
        ({"prefix": "x"}, r"models\.acme has no setting 'prefix'"),
    ],
)
def test_a_wrong_setting_names_itself_and_its_origin(site: Path, table: Mapping[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        said(site, {"models": {"acme": table}})


def test_a_wrong_key_is_never_shown(site: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        said(site, {"models": {"acme": {"api_key": ["sk-SECRET"]}}})
    assert "SECRET" not in str(caught.value)


def test_a_provider_without_settings_takes_none(site: Path) -> None:
    with pytest.raises(ConfigError, match=r"models\.plain takes no settings \(Agent\(config=…\) \[models\.plain\]\)"):
        said(site, {"models": {"plain": {"x": 1}}}, "plain/x")


def test_another_name_of_nobody_names_what_is_installed(site: Path) -> None:
    with pytest.raises(UnknownProviderError, match=r"'acne'.*installed: acme, plain"):
        said(site, {"models": {"mine": {"provider": "acne"}}}, "mine/x")


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ({"model": {}}, r"unknown key 'model'; did you mean 'models'"),
        ({"models": 3}, r"\[models\] must be a table"),
        ({"models": {"acme": 3}}, r"\[models\.acme\] must be a table"),
        ({"models": {"Acme!": {}}}, r"no prefix of models"),
        ({"agents": {"x": {"model": {}}}}, r"unknown key 'model'; did you mean 'models'"),
    ],
)
def test_a_wrong_table_is_refused(config: Mapping[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        load_config(config, environ={}, user_file=Path("/nowhere"))


def test_a_variable_that_names_no_provider_is_refused(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTX__MODELS__ACNE__REGION", "x")
    with pytest.raises(ConfigError, match=r"AGENTX__MODELS__ACNE__REGION names no provider.*mean 'ACME'"):
        said(site)


async def test_a_provider_lives_as_long_as_the_agent_is_open(site: Path) -> None:
    agent = Agent("acme/big", config=False, autoload="none")
    async with agent:
        await agent.run("a")
        await agent.run("b", model="acme/small")
        import acme_models  # type: ignore[import-not-found]  # written by the fixture

        assert acme_models.LOG == ["made acme"]
    assert acme_models.LOG == ["made acme", "closed acme"]
    await agent.run("c")
    assert acme_models.LOG == ["made acme", "closed acme"] * 2


async def test_a_model_given_as_an_object_is_copied_for_each_opening(site: Path) -> None:
    log: list[str] = []

    class Mine:
        name = "mine"

        def __init__(self, number: int = 0) -> None:
            self.number = number

        def fresh(self) -> Mine:
            return Mine(len(log) + 1)

        async def respond(self, request: Any, emit: Any) -> Any:
            from agentx import ModelResponse, TextPart

            return ModelResponse((TextPart(f"copy {self.number}"),))

        async def aclose(self) -> None:
            log.append(f"closed {self.number}")

    agent = Agent(Mine(), config=False, autoload="none")
    async with agent:
        assert [(await agent.run("a")).text, (await agent.run("b")).text] == ["copy 1", "copy 1"]
    assert (await agent.run("c")).text == "copy 2"
    assert log == ["closed 1", "closed 2"]


# The command line


def test_models_are_listed_with_key_and_settings(cli: Cli) -> None:
    cli.install("acme", "[agentx.models]\nacme = acme_models:AcmeProvider\n", acme_models=ACME)
    cli.write("agentx.toml", '[models.acme]\nregion = "there"\n[models.other]\nprovider = "acme"\n')
    done = cli("models", "--json", ACME_KEY="sk-SECRET")
    rows = {row["id"]: row for row in done.json if row["distribution"] == "acme"}
    assert set(rows) == {"acme/big", "other/big"}
    assert rows["acme/big"]["description"] == "there"
    assert rows["acme/big"]["key"] == "environment ACME_KEY"
    assert rows["acme/big"]["capabilities"]["max_context"] == 1000
    assert "SECRET" not in done.out


def test_doctor_shows_where_settings_of_models_come_from(cli: Cli) -> None:
    cli.install("acme", "[agentx.models]\nacme = acme_models:AcmeProvider\n", acme_models=ACME)
    cli.write("agentx.toml", '[models.acme]\napi_key = "sk-SECRET"\n[models.acne]\nregion = "x"\n')
    done = cli("doctor", "--json")
    texts = [one["text"] for one in done.json["findings"]]
    assert "models.acme.api_key is set (agentx.toml [models.acme])" in texts
    assert "no installed provider is called 'acne' (agentx.toml [models.acne]); did you mean 'acme'?" in texts
    assert "SECRET" not in done.out + cli("doctor").out
