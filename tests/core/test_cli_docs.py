"""The reference of the command line is complete: commands, options, exit codes, keys, commands of the chat."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import click
import pytest

from agentx.cli import _app
from agentx.cli._exits import Exit
from agentx.cli._slash import COMMANDS
from agentx.cli.plugins import KEYS

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "command-line.md"
TEXT = PAGE.read_text(encoding="utf-8")
EVERYWHERE = {"--help", "--debug", "--json", "--config", "--no-config", "--agent", "--set", "--no-plugins", "--plugin"}


def commands() -> Iterator[tuple[str, click.Command]]:
    for name in _app.BUILT_IN:
        found: click.Command = import_module(f"agentx.cli.{name}").command
        yield name, found
        for below in getattr(found, "commands", {}).values():
            yield f"{name} {below.name}", below


ALL = dict(commands())


def section(name: str) -> str:
    wanted = "plugins enable and disable" if name in ("plugins enable", "plugins disable") else name
    match = re.search(rf"^## agentx {wanted}\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL)
    assert match, f"docs/reference/command-line.md has no section for agentx {name}"
    return match[1]


@pytest.mark.parametrize("name", ALL)
def test_every_command_has_a_section_with_its_options(name: str) -> None:
    text = section(name)
    if name == "chat":
        text += section("run")
    if name.startswith("plugins "):
        text += section("plugins")
    options = {opt for param in ALL[name].params if isinstance(param, click.Option) for opt in param.opts}
    options = {opt for opt in options - EVERYWHERE if opt.startswith("--")}
    assert [opt for opt in sorted(options) if f"`{opt}" not in text] == []


def test_the_options_for_all_are_documented() -> None:
    assert [opt for opt in sorted(EVERYWHERE) if f"`{opt}" not in TEXT] == []


def test_every_exit_code_is_documented() -> None:
    table = TEXT[TEXT.index("### Exit codes") : TEXT.index("### Errors")]
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)} == {int(code) for code in Exit}


def test_every_key_of_the_listing_is_documented() -> None:
    assert [key for key in KEYS if f"`{key}`" not in section("plugins")] == []


def test_every_command_of_the_chat_is_documented() -> None:
    assert [name for name in COMMANDS if f"`/{name}`" not in section("chat")] == []
