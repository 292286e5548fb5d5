"""`agentx doctor` finds what is wrong, `agentx new` writes what works."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ._cli import Cli, plugin


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path)


def wrong(cli: Cli, *arguments: str) -> list[str]:
    done = cli("doctor", "--json", *arguments)
    findings = [one["text"] for one in done.json["findings"] if one["verdict"] == "wrong"]
    assert done.json["ok"] is (not findings)
    assert done.code == (1 if findings else 0)
    return findings


def test_doctor_shows_every_value_with_its_origin(cli: Cli) -> None:
    cli.install("mine", "context.mine = mine:P", mine=plugin("context.mine"))
    cli.write("agentx.toml", "[plugins]\nautoload = 'listed'\n[plugins.context.mine]\nlimit = 5\n")
    out = cli("doctor", "-s", "context.mine.limit=7", AGENTX_MODEL="x/y").out
    assert "autoload = listed (agentx.toml [plugins])" in out
    assert "context.mine (mine 1.0): limit = 7 (command line)" in out
    assert "the default is x/y (environment AGENTX_MODEL)" in out


def test_doctor_names_broken_plugins_providers_and_configuration(cli: Cli) -> None:
    cli.install("boom", "guard.boom = boom:P", boom="raise RuntimeError('boom')")
    cli.install("model", "[agentx.models]\nbad = bad_model:P", bad_model="raise ValueError('no')")
    cli.write("agentx.toml", "[plugins]\nx = = 1")
    found = wrong(cli)
    assert any(text.startswith("agentx.toml cannot be read: ") for text in found)
    assert "guard.boom (boom 1.0) failed: RuntimeError: boom (boom.py:1)" in found
    assert any(text.startswith("an agent would not start without guard.boom") for text in found)
    assert any(text.startswith("the provider bad cannot be asked: ") for text in found)


def test_doctor_reports_a_foreign_distribution_of_our_name(cli: Cli) -> None:
    cli.install("agentx", "")
    assert any("the distribution 'agentx' 1.0 is somebody else's" in text for text in wrong(cli))


def test_a_new_application_passes_its_test_and_answers(cli: Cli) -> None:
    assert cli("new", "my-app").out.startswith("wrote my-app")
    folder = cli.folder / "my-app"
    tests = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error"],
        cwd=folder,
        env=cli.environment(),
        capture_output=True,
        text=True,
    )
    assert tests.returncode == 0, tests.stdout + tests.stderr
    cli.folder = folder
    assert (
        cli("chat", "-m", "agentx.testing:EchoModel", "-t", "tools.py", "--no-plugins", stdin="hi\n/tools\n").code == 0
    )
    again = cli("new", "my-app", "--folder", ".")
    assert again.code == 2
    assert "agent.py" in again.err and "there already" in again.err


def test_the_version_is_shown(cli: Cli) -> None:
    assert cli("--version").out.startswith("agentx ")
