"""Fake distributions: real metadata folders and modules on a real `sys.path`."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any


def install(
    site: Path,
    distribution: str,
    entry_points: str = "",
    *,
    version: str = "1.0",
    kind: str = "dist-info",
    metadata: bool = True,
    **modules: Any,
) -> Path:
    """Write a distribution into the folder `site`, as pip would, and return its metadata folder.

    `entry_points` is the text of entry_points.txt, or `id = value` lines of the group agentx.plugins; `modules` are
    sources by name.
    """
    stem = distribution.replace("-", "_")
    folder = site / (f"{stem}.egg-info" if kind == "develop" else f"{stem}-{version}.{kind}")
    folder.mkdir(parents=True)
    if metadata:
        name = "METADATA" if kind == "dist-info" else "PKG-INFO"
        (folder / name).write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n\nText: no header\n"
        )
    if entry_points:
        text = textwrap.dedent(entry_points).strip()
        header = "" if text.startswith("[") else "[agentx.plugins]\n"
        (folder / "entry_points.txt").write_text(header + text + "\n")
    for module, source in modules.items():
        (site / f"{module}.py").write_text(textwrap.dedent(source))
    return folder
