"""`agentx new`: the files of a small application."""

from __future__ import annotations

from pathlib import Path

import click

from ._command import command as make_command
from ._command import json_option


@make_command("new")
@click.argument("name")
@click.option("--folder", type=click.Path(path_type=Path), help="Where to write it; by default a folder named NAME.")
@json_option
def command(name: str, folder: Path | None, as_json: bool) -> None:
    """Write the files of a new application: an agent, a tool, a configuration, a test that passes."""
    from ._scaffold import application, show_written

    show_written(*application(name, folder), as_json=as_json)
