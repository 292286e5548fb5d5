"""`agentx chat`: turn after turn, from a pipe and at a terminal."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from ._cli import ECHO, Cli, plugin

needs_terminal = pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals")


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    cli = Cli(tmp_path)
    cli.models_and_tools()
    return cli


def test_lines_of_a_pipe_are_turns_of_one_session(cli: Cli) -> None:
    lines = ["one", "two", "/usage", "/exit", "never"]
    done = cli("chat", *ECHO, stdin="\n".join(lines))
    assert done.code == 0
    assert done.out.splitlines()[:2] == ["one", "two"]
    assert "model calls  2" in done.out
    assert "never" not in done.out


def test_a_message_may_have_several_lines(cli: Cli) -> None:
    done = cli("chat", *ECHO, stdin='"""a\nb\n"""\nc\\\nd\n//slash\n')
    assert done.out == "a\nb\nc\nd\n/slash\n"


def test_commands_show_plugins_tools_and_model(cli: Cli) -> None:
    cli.install("mine", "context.mine = mine:P", mine=plugin("context.mine"))
    lines = ["/tools", "/plugins", "/model", "/model models:chatty", "hi", "/new", "/help", "/mdel", "/model nowhere/x"]
    done = cli("chat", *ECHO, "--plugin", "context.mine", "-t", "tools.py", stdin="\n".join(lines))
    assert "add" in done.out and "Add two numbers." in done.out
    assert "context.mine" in done.out
    assert "echo\nfunction\nYou said hi.\n" in done.out
    assert "/usage" in done.out
    assert "there is no command /mdel: did you mean /model?" in done.err
    assert "no installed plugin serves the models of 'nowhere'" in done.err
    assert done.code == 0


def test_a_turn_that_fails_does_not_end_the_chat_and_the_last_one_is_the_exit_code(cli: Cli) -> None:
    done = cli(
        "chat", "-m", "models:fails", "--no-plugins", stdin="one\n/model models:chatty\ntwo\n/model models:cut\nx\n"
    )
    assert "error[model-rate-limit]: too many requests" in done.err
    assert "You said two." in done.out
    assert done.code == 12


@needs_terminal
def test_ctrl_c_ends_the_turn_and_not_the_chat_and_a_second_one_at_the_prompt_leaves(cli: Cli) -> None:
    chat = cli.terminal("chat", "-m", "models:waits", "-t", "tools:sleeps", "--no-plugins")
    chat.wait_for("> ")
    chat.type("wait\r")
    chat.wait_for("sleeps(seconds=60")
    chat.type("\x03")
    chat.wait_for("cancelled")
    chat.wait_for("> ")
    chat.type("hello\r")
    chat.wait_for("You said hello.")
    chat.wait_for("> ")
    chat.type("half a line")
    chat.wait_for("half a line")
    chat.type("\x03")
    chat.wait_for("> ")
    chat.type("\x03")
    chat.wait_for("Ctrl-C again")
    chat.wait_for("> ")
    chat.type("\x03")
    assert chat.leave() == 0
    assert "Traceback" not in chat.seen
    assert chat.seen.rindex("\x1b[?25h") > chat.seen.rindex("\x1b[?25l")  # the cursor is back


@needs_terminal
def test_markdown_is_rendered_and_what_was_typed_is_remembered(cli: Cli, tmp_path: Path) -> None:
    history = tmp_path / "history"
    chat = cli.terminal("chat", "-m", "models:chatty", "--no-plugins", AGENTX_CHAT_HISTORY=str(history))
    chat.wait_for("> ")
    chat.type("md please\r")
    chat.wait_for("two")
    chat.wait_for("> ")
    chat.type("\x1b[A")  # the line before
    chat.wait_for("md please")
    chat.type("\r")
    chat.wait_for("two")
    chat.wait_for("> ")
    chat.type("\x04")
    assert chat.leave() == 0
    assert "**" not in chat.plain and "Some bold text." in chat.plain and " • two" in chat.plain
    assert [json.loads(line) for line in history.read_text().splitlines()] == ["md please"]
    assert history.stat().st_mode & 0o077 == 0


@needs_terminal
def test_pasted_lines_are_one_message(cli: Cli) -> None:
    chat = cli.terminal("chat", *ECHO, "--no-markdown", "--no-history")
    chat.wait_for("> ")
    chat.type("\x1b[200~first line\rsecond line\x1b[201~")
    chat.wait_for("second line")
    chat.type("\r")
    chat.wait_for("first line\r\nsecond line")
    chat.wait_for("> ")
    chat.type("\x04")
    assert chat.leave() == 0


@needs_terminal
def test_a_turn_that_does_not_end_can_be_left(cli: Cli) -> None:
    cli.write(
        "block.py", "import time\nclass Model:\n    name = 'block'\n    async def respond(self, r, e): time.sleep(60)\n"
    )
    chat = cli.terminal("chat", "-m", "block:Model", "--no-plugins", "--no-history")
    chat.wait_for("> ")
    chat.type("hi\r")
    chat.wait_for("waiting for the model")
    chat.type("\x03")
    chat.wait_for("Ctrl-C again leaves at once")
    chat.type("\x03")
    assert chat.leave() == 130
    assert "left a turn that did not end" in chat.seen
