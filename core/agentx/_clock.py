"""Time as a service, so that waiting can be tested without waiting."""

from __future__ import annotations

import time

import anyio


class Clock:
    """What plugins ask for the time and sleep by: `ctx.get(Clock, SYSTEM_CLOCK)`. Tests provide another."""

    def time(self) -> float:
        """Return seconds since the epoch."""
        return time.time()

    async def sleep(self, seconds: float) -> None:
        """Wait; cancellable."""
        await anyio.sleep(seconds)


SYSTEM_CLOCK = Clock()
