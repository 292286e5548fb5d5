"""Events as lines for people: one line for a call of a tool, a limit that is near, a retry, an end that is none."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from agentx._events import (
    ErrorEvent,
    Event,
    LimitWarning,
    ModelRetrying,
    SubAgentEvent,
    ToolCallEvent,
    ToolResultEvent,
    ToolStart,
)
from agentx._result import RunResult

Line = tuple[str, str]
"""A text and its style."""
_SIGNS = {"ok": "→", "denied": "✗ denied", "skipped": "– skipped", "cancelled": "– cancelled"}
_STYLES = {"ok": "cyan", "denied": "yellow", "skipped": "dim", "cancelled": "dim"}


class Lines:
    """Remembers the calls under way, to show each with its result in one line."""

    def __init__(self) -> None:
        self._calls: dict[tuple[tuple[str, ...], str], tuple[str, float]] = {}
        """By path and call id: what is called, and since when."""

    @property
    def running(self) -> list[str]:
        """What is being called now."""
        return [what for what, _ in self._calls.values()]

    def line(self, event: Event, path: tuple[str, ...] = ()) -> Line | None:
        """Return the line that an event is worth, if any."""
        if isinstance(event, SubAgentEvent):
            return self.line(event.event, event.path)
        if isinstance(event, ToolCallEvent):
            self._calls[path, event.call_id] = f"{event.tool}({event.arguments})", time.monotonic()
        elif isinstance(event, ToolStart):
            self._calls[path, event.call_id] = f"{event.tool}({shown_args(event.args)})", time.monotonic()
        elif isinstance(event, ToolResultEvent):
            return self._result(event, path)
        elif isinstance(event, LimitWarning):
            used = f"{event.used} of {event.maximum} {event.key} are used in this {event.scope}"
            return f"! {event.by}: {used}", "yellow"
        elif isinstance(event, ModelRetrying):
            wait = f" in {event.delay:.1f} s" if event.delay >= 0.1 else ""
            return f"↻ {event.by} tries again{wait}: {event.reason}", "yellow"
        elif isinstance(event, ErrorEvent) and event.where != "turn":
            return f"! {event.by or 'agentx'} failed in {event.where}: {event.error}: {event.message}", "red"
        return None

    def _result(self, event: ToolResultEvent, path: tuple[str, ...]) -> Line:
        result = event.result
        what, since = self._calls.pop((path, result.call_id), (f"{result.name}()", time.monotonic()))
        sign = _SIGNS.get(result.status, f"✗ {result.status}")
        by = f" by {event.by}" if event.by else ""
        took = time.monotonic() - since
        seconds = f" ({took:.1f} s)" if took >= 0.5 else ""
        text = result.text or ("…" if result.content else "")
        between = ":" if sign != "→" and text else ""
        line = f"{'  ' * len(path)}⚙ {what}{seconds} {sign}{by}{between} {text}".rstrip()
        return line, _STYLES.get(result.status, "red")


def shown_args(args: Mapping[str, Any]) -> str:
    """Return the arguments of a call as a person writes them."""
    return ", ".join(f"{name}={json.dumps(value, ensure_ascii=False, default=str)}" for name, value in args.items())


def ending(result: RunResult[Any]) -> Line | None:
    """Return what to say of a turn that is not `completed`."""
    if result.status == "completed":
        return None
    by = f" by {result.by}" if result.by else ""
    reason = f": {result.reason}" if result.reason else ""
    return f"{result.status}{by}{reason}", "yellow"
