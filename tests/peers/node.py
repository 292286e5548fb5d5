"""Packages of npm that tests run; `npm ci` in tests/peers/node installs what its lock file pins."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "node"


def node() -> str:
    """Return the program `node`; without it the test is skipped, or fails where everything has to be there (CI)."""
    found = shutil.which("node")
    if found is None:
        _missing("node is not installed")
    return found or ""


def package(name: str) -> Path:
    """Return the folder of an installed package."""
    folder = FOLDER / "node_modules" / name
    if not folder.exists():
        _missing(f"{name} is not installed: run `npm ci` in tests/peers/node")
    return folder


def _missing(what: str) -> None:
    if os.environ.get("CI"):
        pytest.fail(what)
    pytest.skip(what)
