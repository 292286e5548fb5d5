"""What CI runs is what the README tells a reader to run."""

from __future__ import annotations

from pathlib import Path

REPO = Path(__file__).resolve().parents[2]


def test_ci_runs_the_readmes_command_for_the_tests() -> None:
    readme = (REPO / "README.md").read_text(encoding="utf-8")
    (command,) = [line[2:] for line in readme.splitlines() if line.startswith("$ ") and line.endswith("nox -s tests")]
    assert command in (REPO / ".ci" / "run").read_text(encoding="utf-8")
