"""`agentx models` and `agentx tools`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ._cli import Cli, plugin

PROVIDER = """
    from pathlib import Path
    from agentx import ModelInfo
    from agentx.testing import EchoModel

    class Provider:
        def model(self, name):
            return EchoModel(name=f"mine/{name}")

        def models(self):
            return [ModelInfo("mine/echo", "says it again"), ModelInfo("mine/big", "", False, "no weights")]

        def pull(self, *, source, progress):
            target = Path("weights.bin")
            for done in (0, 50, 100):
                progress("fetching weights.bin", done, 100)
            target.write_bytes(source.read_bytes() if source else b"from the index")
            return [target]
"""


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    cli = Cli(tmp_path)
    cli.install("mine", "[agentx.models]\nmine = mine:Provider", mine=PROVIDER)
    return cli


def test_models_lists_what_providers_have_and_which_cannot_be_asked(cli: Cli) -> None:
    cli.install("dies", "[agentx.models]\ndies = dies:Provider", dies="import os; os._exit(1)")
    cli.install("raises", "[agentx.models]\nraises = raises:Provider", raises="raise ValueError('no')")
    done = cli("models", "--json")
    found = {one["id"]: one for one in done.json}
    assert found["mine/echo"]["ready"] is True
    assert (found["mine/big"]["ready"], found["mine/big"]["detail"]) == (False, "no weights")
    assert "the provider dies of dies 1.0 cannot be asked: ended its process with exit code 1" in done.err
    assert "the provider raises of raises 1.0 cannot be asked: " in done.err
    assert "mine/echo yes mine 1.0" in " ".join(cli("models").out.split())


def test_a_listed_model_can_be_run(cli: Cli) -> None:
    assert cli("run", "hello", "-m", "mine/echo", "--no-plugins").out == "hello\n"
    assert cli("run", "hello", "-m", "mine:echo", "--no-plugins").out == "hello\n"


def test_pull_fetches_weights_from_the_index_or_from_a_file(cli: Cli) -> None:
    done = cli("models", "pull", "mine")
    assert (done.code, done.out) == (0, "weights.bin\n")
    assert done.err == ""  # no bar where nobody looks
    file = cli.write("carried", "from a file")
    assert cli("models", "pull", "mine", "--from", str(file), "--json").json == [{"path": "weights.bin", "bytes": 11}]
    assert (cli.folder / "weights.bin").read_bytes() == b"from a file"
    assert cli("models", "pull", "mine", "--from", "missing").code == 2


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals")
def test_pull_shows_a_bar_at_a_terminal(cli: Cli) -> None:
    terminal = cli.terminal("models", "pull", "mine")
    assert terminal.leave() == 0
    assert "fetching weights.bin" in terminal.plain
    assert "100/100 bytes" in terminal.plain


def test_pull_of_an_unknown_provider_says_what_to_install(cli: Cli) -> None:
    done = cli("models", "pull", "nobody")
    assert done.code == 5
    assert "no installed plugin serves the models of 'nobody': install the plugin that serves it" in done.err


def test_tools_are_listed_with_their_owners_and_schemas(cli: Cli) -> None:
    source = (
        plugin("tools.mine")
        + "    @tool\n    async def look(self, what: str, deep: bool = False) -> str:\n        'Look.'\n"
    )
    cli.install("tooled", "tools.mine = tooled:P", tooled=source)
    cli.models_and_tools()
    arguments = ("tools", "-t", "tools.py", "--no-plugins", "--plugin", "tools.mine")
    found = {one["name"]: one for one in cli(*arguments, "--json").json}
    assert list(found) == ["add", "sleeps", "look"]
    assert found["look"]["owner"] == "tools.mine"
    assert found["look"]["schema"]["required"] == ["what"]
    assert "what: string, deep?: boolean" in cli(*arguments).out


def test_tools_of_one_name_are_a_clash(cli: Cli) -> None:
    cli.models_and_tools()
    done = cli("tools", "-t", "tools:add", "-t", "tools:add", "--no-plugins")
    assert done.code == 6
    assert "two tools are called 'add'" in done.err
