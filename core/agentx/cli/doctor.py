"""`agentx doctor`: everything about an installation that could be wrong, each with what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ._agents import plugin_options
from ._command import command as make_command
from ._command import json_option
from ._exits import Exit

if TYPE_CHECKING:
    from ._agents import Choice


@make_command("doctor")
@plugin_options
@click.option(
    "--check-keys",
    "keys",
    metavar="[PREFIX|MODEL]",
    is_flag=False,
    flag_value="",
    default=None,
    help="Make one small request to each provider with a key, or to this one.",
)
@json_option
def command(choice: Choice, keys: str | None, as_json: bool) -> int:
    """Look at Python, versions, configuration, plugins, models and folders.

    Leaves with 1 if something is wrong; what is only worth knowing does not count.
    """
    from ._health import examine
    from ._screen import count, err, out, print_json, styled

    if err().is_terminal:
        with err().status("looking"):
            findings = examine(choice, keys)
    else:
        findings = examine(choice, keys)
    wrong = [one for one in findings if one.verdict == "wrong"]
    if as_json:
        print_json({"ok": not wrong, "findings": [one.to_json() for one in findings]})
        return Exit.FAILED if wrong else Exit.OK
    topic = ""
    for one in findings:
        if one.topic != topic:
            topic = one.topic
            out().print(styled(topic, "bold"))
        sign, style = {"fine": ("  ✓ ", "green"), "note": ("  · ", "yellow"), "wrong": ("  ✗ ", "bold red")}[
            one.verdict
        ]
        out().print(styled(sign, style).append(one.text, style="not bold default"), soft_wrap=True)
        if one.fix:
            out().print(styled(f"      {one.fix}", "dim"), soft_wrap=True)
    summary = (
        f"\n{count(len(wrong), 'thing')} {'is' if len(wrong) == 1 else 'are'} wrong" if wrong else "\nnothing is wrong"
    )
    out().print(styled(summary, "bold red" if wrong else "green"))
    return Exit.FAILED if wrong else Exit.OK
