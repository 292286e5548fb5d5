"""The work of every peer: what its fake model answers and the tool it calls.

The fake reads the last message only: after a user's message it is at step 0, after a tool's result at the step which
that result names.
"""

from __future__ import annotations

import asyncio
from typing import ClassVar

import attrs

FINAL = "done"
DELTA = "tok "
ASK = "go"


@attrs.define
class Script:
    """What the fake answers in one turn: `steps` rounds of `width` calls, then text, or `deltas` pieces of text."""

    steps: int = 0
    width: int = 1
    delay: float = 0.0
    deltas: int = 0


class Count:
    """What really happened, so that no peer skips work."""

    tools: ClassVar[int] = 0
    model_wraps: ClassVar[int] = 0
    tool_wraps: ClassVar[int] = 0
    tool_delay: ClassVar[float] = 0.0
    seen: ClassVar[int] = 0


async def step(n: int) -> str:
    """Do one step."""
    Count.tools += 1
    if Count.tool_delay:
        await asyncio.sleep(Count.tool_delay)
    return str(n + 1)
