"""Every fenced example of the documentation runs, and prints what the page says it prints."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ._pages import REPO, Fence, fences_of, name_of, pages

RUNNER = Path(__file__).with_name("run_examples.py")
PAGES = [page for page in pages() if any(fence.language in ("python", "console") for fence in fences_of(page))]
WITH_FILES = ("toml", "ini", "yaml", "json", "text")


def run(page: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the examples of a page in a process and a folder of their own."""
    examples = [example(fence) for fence in fences_of(page) if is_run(fence)]
    (folder / "examples.json").write_text(json.dumps(examples), encoding="utf-8")
    work = folder / "work"
    work.mkdir()
    (work / "examples").symlink_to(REPO / "examples")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "AGENTX_"))}
    environment |= {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "120"}
    environment |= {"XDG_CONFIG_HOME": str(folder / "config"), "PYTHONPATH": str(work), "NO_COLOR": "1"}
    environment |= {name: os.environ[name] for name in ("AGENTX_MODELS_DIR",) if name in os.environ}
    if "budget" not in str(page) and "limit-spending" not in str(page):
        environment["AGENTX__GUARD_BUDGET__UNKNOWN_PRICE"] = "allow"  # models of agentx.testing have no price
    command = [sys.executable, str(RUNNER), str(folder / "examples.json")]
    return subprocess.run(command, cwd=work, env=environment, text=True, capture_output=True, timeout=600)


def is_run(fence: Fence) -> bool:
    if "norun" in fence.flags:
        return False
    return fence.language in ("python", "console") or bool(fence.title)


def example(fence: Fence) -> dict[str, object]:
    return {
        "kind": fence.language,
        "where": fence.where,
        "line": fence.line,
        "page": str(fence.page),
        "title": fence.title,
        "text": fence.text,
    }


def needs_weights(page: Path) -> bool:
    return any(is_run(fence) and "local/" in fence.text for fence in fences_of(page))


def weights_are_there() -> bool:
    try:
        from agentx_model_local import PROVIDER
    except ImportError:
        return False
    return all(model.ready for model in PROVIDER.models())


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_examples_of_a_page_do_what_it_says(page: Path, tmp_path: Path) -> None:
    """A reader who follows a page from top to bottom sees what it shows."""
    if needs_weights(page) and not weights_are_there():
        pytest.skip("the weights of the local model are not there: agentx models pull local")
    done = run(page, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_python_that_is_only_shown_is_python(page: Path) -> None:
    """Also an example that needs something from outside has no mistake in its syntax."""
    for fence in fences_of(page):
        if fence.language == "python":
            ast.parse(fence.text, filename=fence.where)


def test_a_page_shows_no_python_without_running_it_for_nothing() -> None:
    """`norun` is for what needs a key or a service; whoever marks an example says here why."""
    allowed = {"README.md", "docs/explanation/why-plugins.md"}
    for page in pages():
        for fence in fences_of(page):
            if fence.language == "python" and "norun" in fence.flags:
                assert name_of(page) in allowed, f"{fence.where} is not run"
