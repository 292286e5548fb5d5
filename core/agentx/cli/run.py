"""`agentx run`: one turn, from a prompt to an answer and an exit code."""

from __future__ import annotations

import os
import select
import stat
import sys
from typing import TYPE_CHECKING, Any

import click

from ._agents import agent_options, plugin_options, read_stdin
from ._command import command as make_command
from ._command import json_option
from ._exits import Exit

if TYPE_CHECKING:
    from agentx._result import RunResult

    from ._agents import Choice

PATIENCE = 1.0
"""Seconds to wait for a pipe that nobody asked for with `-`, and that may never say anything."""


@make_command("run")
@click.argument("prompt", nargs=-1)
@agent_options
@click.option("--stream/--no-stream", default=None, help="Print text as it comes; by default on a terminal only.")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but the answer.")
@click.option("-v", "--verbose", is_flag=True, help="Print tool calls to standard error, also in a pipe.")
@plugin_options
@json_option
def command(
    prompt: tuple[str, ...],
    model: str | None,
    tools: tuple[str, ...],
    instructions: str,
    stream: bool | None,
    quiet: bool,
    verbose: bool,
    choice: Choice,
    as_json: bool,
) -> int:
    """Run one turn with PROMPT and print the answer.

    Words of PROMPT are joined. `-` stands for standard input, which is also read when something is piped in.
    """
    text = read_prompt(prompt)
    from ._agents import choose_model, make_agent
    from ._log import show_log

    show_log(quiet=quiet)
    agent = make_agent(choice, choose_model(model), tools, instructions)
    if as_json:
        from ._json_view import run_as_json

        return run_as_json(agent, text)
    from ._plain_view import run_plainly

    streams = sys.stdout.isatty() if stream is None else stream
    tells = not quiet and (verbose or sys.stderr.isatty())
    return run_plainly(agent, text, streams=streams, tells=tells, quiet=quiet)


def read_prompt(words: tuple[str, ...]) -> str:
    """Return the prompt of the arguments and of standard input.

    Raises:
        click.UsageError: there is none.
    """
    pieces: list[str] = []
    if "-" in words:
        at = words.index("-")
        pieces = [" ".join(words[:at]), read_stdin(), " ".join(words[at + 1 :])]
    elif words:
        pieces = [" ".join(words), read_stdin() if _is_piped_in() else ""]
    elif not sys.stdin.isatty():
        pieces = [read_stdin()]
    text = "\n\n".join([piece.strip() for piece in pieces if piece.strip()])
    if not text:
        raise click.UsageError('there is no prompt: agentx run "What is …?", or pipe one in')
    return text


def _is_piped_in() -> bool:
    """Tell whether standard input has something to say beside the prompt.

    A program that starts agentx may leave a pipe open that it never writes to: that must not hang for ever.
    """
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError):  # closed, or none at all
        return False
    if stat.S_ISREG(mode):
        return True
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        return False
    if sys.platform == "win32":
        return True
    if select.select([sys.stdin], [], [], PATIENCE)[0]:
        return True
    click.echo(f"nothing on standard input after {PATIENCE:g} s, going on without it (`-` waits for it)", err=True)
    return False


def exit_code(result: RunResult[Any]) -> Exit:
    from ._exits import exit_of_status

    return exit_of_status(result.status)
