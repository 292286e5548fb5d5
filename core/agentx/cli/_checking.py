"""`agentx plugins check`: what the child found, and how it looks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ._agents import Choice
from ._screen import count, out, styled
from ._waiting import ask_waiting


def check_plugins(plugins: Sequence[str], choice: Choice, limit: float) -> Sequence[Mapping[str, Any]]:
    """Load plugins and fire their hooks in a child; return one finding for each of them."""
    return ask_waiting("check", "checking plugins", choice, limit, plugins=list(plugins))  # type: ignore[no-any-return]


def show_check(found: Sequence[Mapping[str, Any]]) -> None:
    for one in found:
        whose = " ".join(filter(None, (one["distribution"], one["version"])))
        head = styled("ok      ", "green") if one["ok"] else styled("FAILED  ", "bold red")
        out().print(head.append(one["id"], style="bold").append(f"  {whose}", style="not bold dim"), soft_wrap=True)
        if one["hooks"]:
            ran = ", ".join([f"{hook} ran {count(times, 'time')}" for hook, times in one["hooks"].items()])
            out().print(styled(f"        {ran}", "dim"), soft_wrap=True)
        for problem in one["problems"]:
            out().print(styled(f"        {problem}"), soft_wrap=True)
    if not found:
        out().print(styled("there is no plugin to check"))
