"""What can be run on this repository: `nox` runs what a change must pass, `nox -l` lists everything.

`tests`, `core`, `packages`, `docs` and `bench` use the Python that runs nox; `pythons` runs the tests on every other
one there is. With uv installed environments are made by it, without it by virtualenv and pip.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import nox

HERE = Path(__file__).parent
PYPROJECT = nox.project.load_toml(HERE / "pyproject.toml")
PLUGINS = sorted(file.parent for file in HERE.glob("plugins/*/pyproject.toml"))
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
OWN = f"{sys.version_info.major}.{sys.version_info.minor}"
WORKERS = ("-n", os.environ.get("AGENTX_TEST_WORKERS", "2"))
"""Processes of pytest; some tests start models of their own, so more of them do not make it faster."""

nox.needs_version = ">=2024.10"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.error_on_missing_interpreters = False
nox.options.sessions = ["lint", "tests", "core", "packages"]


def group(name: str) -> tuple[str, ...]:
    """Return the requirements of a dependency group; pip before 25.1 cannot read one."""
    return tuple(nox.project.dependency_groups(PYPROJECT, name))


def peers(session: nox.Session) -> None:
    """Install the servers of npm that tests talk to; without npm those tests are skipped, or fail in CI."""
    if shutil.which("npm") is None:
        session.warn("npm is not there: the tests that need a server of npm are not run")
        return
    with session.chdir(HERE / "tests" / "peers" / "node"):
        session.run("npm", "ci", "--no-audit", "--no-fund", external=True)


def install(session: nox.Session, *folders: Path) -> None:
    """Install the core and some plugins as editable, and what the tests need.

    Build isolation would make an environment for each distribution: a minute instead of seconds.
    """
    session.install("hatchling", "editables")
    editable = [item for folder in (HERE, *folders) for item in ("-e", str(folder))]
    session.install("--no-build-isolation", *editable, *group("test"))


@nox.session
def tests(session: nox.Session) -> None:
    """Run all tests, with every plugin of the repository installed and the weights of the local model there."""
    install(session, *PLUGINS)
    peers(session)
    session.run("agentx", "models", "pull", "local")
    session.run("pytest", *WORKERS, *session.posargs)


@nox.session(python=[version for version in PYTHONS if version != OWN])
def pythons(session: nox.Session) -> None:
    """Run the tests on each other Python; one that is not there is skipped."""
    install(session, *PLUGINS)
    peers(session)
    session.run("agentx", "models", "pull", "local")
    session.run("pytest", *WORKERS, *(session.posargs or ("tests/core", "tests/plugins")))


@nox.session
def core(session: nox.Session) -> None:
    """Run the tests of the core where no plugin is installed."""
    install(session)
    session.run("pytest", *WORKERS, *(session.posargs or ("tests/core",)))


@nox.session
def packages(session: nox.Session) -> None:
    """Build every distribution, install the wheels into new environments and use them as a stranger would."""
    session.install("hatchling", *group("test"))
    session.env["AGENTX_TEST_PACKAGES"] = "1"
    session.run("pytest", "tests/packages", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Check format, style and types."""
    install(session, *PLUGINS)
    session.install(*group("lint"))
    session.run("ruff", "format", "--check", ".")
    session.run("ruff", "check", ".")
    session.run("mypy")


@nox.session
def docs(session: nox.Session) -> None:
    """Run the examples of the documentation, follow its links, and compare its references with the code."""
    install(session, *PLUGINS)
    session.run("agentx", "models", "pull", "local")
    session.run("pytest", *WORKERS, "tests/repo", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """Measure the loop against a bare one, and providers against their vendors' SDKs; prints ratios."""
    install(session, *PLUGINS)
    session.run("python", "tests/benchmarks/run.py", *session.posargs)
    session.run("python", "tests/benchmarks/providers.py")
