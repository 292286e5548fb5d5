"""Every provider of the repository can be installed by an extra, and the error for its prefix names it."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from agentx._lookup import _EXTRAS

REPO = Path(__file__).parents[2]
ROOT = tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))
PROJECTS = [
    tomllib.loads(file.read_text(encoding="utf-8"))["project"] for file in REPO.glob("plugins/*/pyproject.toml")
]
PREFIXES = [
    (prefix, project["name"])
    for project in PROJECTS
    for prefix in project.get("entry-points", {}).get("agentx.models", {})
]


@pytest.mark.parametrize(("prefix", "distribution"), PREFIXES)
def test_an_unknown_prefix_names_the_extra_that_installs_its_provider(prefix: str, distribution: str) -> None:
    extra = ROOT["project"]["optional-dependencies"][_EXTRAS[prefix]]
    assert any(requirement.startswith(f"{distribution}>=") for requirement in extra)


@pytest.mark.parametrize("distribution", [project["name"] for project in PROJECTS])
def test_all_installs_every_distribution(distribution: str) -> None:
    extra = ROOT["project"]["optional-dependencies"]["all"]
    assert any(requirement.startswith(f"{distribution}>=") for requirement in extra)
