"""What a stranger gets: wheels in a new environment, and the README's first command in a new clone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("AGENTX_TEST_PACKAGES" not in os.environ, reason="run by `nox -s packages`"),
]
CLEAN = {
    name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "AGENTX_", "VIRTUAL_ENV"))
}
ASK = """
from agentx import Agent
from agentx.testing import ScriptedModel
print(Agent(ScriptedModel(["hello"], name="acme/unheard-of")).run_sync("hi").status)
"""


def run(*command: object, cwd: Path) -> str:
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=CLEAN, text=True, capture_output=True, timeout=900
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheels")
    sources = [REPO, *sorted(file.parent for file in REPO.glob("plugins/*/pyproject.toml"))]
    for source in sources:
        run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=source)
    assert len(list(folder.glob("*.whl"))) == len(sources)
    return folder


def environment(folder: Path, *requirements: object) -> Path:
    """Return the folder of the programs of a new environment."""
    run(sys.executable, "-m", "venv", folder, cwd=folder.parent)
    bin_folder = folder / "bin"
    run(bin_folder / "python", "-m", "pip", "install", "-q", *requirements, cwd=folder)
    return bin_folder


def ids(bin_folder: Path) -> set[str]:
    rows = json.loads(run(bin_folder / "agentx", "plugins", "--json", cwd=bin_folder.parent))
    return {row["id"] for row in rows if row["status"] == "enabled"}


def test_installing_guard_budget_changes_every_agent_and_uninstalling_changes_it_back(
    wheels: Path, tmp_path: Path
) -> None:
    programs = environment(tmp_path / "venv", *wheels.glob("agentx_core*.whl"))
    before = ids(programs)
    assert "guard.budget" not in before
    assert run(programs / "python", "-W", "error", "-c", ASK, cwd=tmp_path) == "completed\n"

    run(programs / "pip", "install", "-q", "--find-links", wheels, REPO / "plugins/agentx-guard-budget", cwd=tmp_path)
    assert ids(programs) == before | {"guard.budget"}
    assert run(programs / "python", "-W", "error", "-c", ASK, cwd=tmp_path) == "limit\n"

    run(programs / "pip", "uninstall", "-q", "-y", "agentx-guard-budget", cwd=tmp_path)
    assert ids(programs) == before
    assert run(programs / "python", "-W", "error", "-c", ASK, cwd=tmp_path) == "completed\n"


def test_the_wheels_of_all_distributions_work_together(wheels: Path, tmp_path: Path) -> None:
    programs = environment(tmp_path / "venv", *wheels.glob("*.whl"))
    assert ids(programs) >= {"guard.budget", "guard.limits", "model.retry", "redact.pii", "observe.usage"}
    checked = json.loads(run(programs / "agentx", "plugins", "check", "--json", cwd=tmp_path))
    assert checked
    run(programs / "agentx", "models", "pull", "local", cwd=tmp_path)
    question = "What is the weather in Oslo?"
    tools = REPO / "examples/tools.py"
    answer = run(programs / "agentx", "run", "-m", "local/auto", "-t", tools, question, cwd=tmp_path)
    assert "Oslo: 4 °C, rain" in answer


def test_the_readmes_first_command_works_in_a_new_clone(tmp_path: Path) -> None:
    readme = (REPO / "README.md").read_text(encoding="utf-8")
    (command,) = [
        line[2:] for line in readme.splitlines() if line.startswith("$ python3 -m venv") and "models pull" in line
    ]
    clone = tmp_path / "agentx"
    run("git", "clone", "-q", REPO, clone, cwd=tmp_path)
    assert "Oslo: 4 °C, rain" in run("bash", "-c", command, cwd=clone)
