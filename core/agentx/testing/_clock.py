"""A clock that a test moves."""

from __future__ import annotations

from typing import ClassVar

import anyio
import anyio.lowlevel

from agentx._clock import Clock
from agentx._context import AgentContext
from agentx._hookspecs import CallNext
from agentx._plugin import Plugin


class FakeTime(Clock):
    """The `Clock` that plugins get from a `FakeClock`."""

    def __init__(self, now: float, auto: bool) -> None:
        self.now = now
        self.auto = auto
        self.sleeps: list[float] = []
        self._waiting: list[tuple[float, anyio.Event]] = []

    def time(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        if self.auto or seconds <= 0:
            self.advance(max(seconds, 0))
            await anyio.lowlevel.checkpoint()
            return
        sleeper = (self.now + seconds, anyio.Event())
        self._waiting.append(sleeper)
        try:
            await sleeper[1].wait()
        finally:
            self._waiting = [item for item in self._waiting if item is not sleeper]

    def advance(self, seconds: float) -> None:
        """Move time on and wake whoever has slept long enough."""
        self.now += seconds
        for until, woken in self._waiting:
            if until <= self.now:
                woken.set()

    @property
    def sleeping(self) -> int:
        return len(self._waiting)


class FakeClock(Plugin):
    """Let plugins sleep without waiting: `agent.use(clock := FakeClock())`, then look at `clock.sleeps`.

    Whoever asks for `agentx.Clock` gets its time. A sleep moves it at once, after one turn of the event loop; with
    `auto=False` a sleeper waits until the test calls `advance`.
    """

    id: ClassVar[str] = "test.clock"
    provides: ClassVar = (Clock,)
    start: float = 1_700_000_000.0
    """Seconds since the epoch at the beginning."""
    auto: bool = True

    def __attrs_post_init__(self) -> None:
        self._time = FakeTime(self.start, self.auto)

    async def init(self, ctx: AgentContext, call_next: CallNext[None]) -> None:
        ctx.provide(Clock, self._time)
        await call_next()

    @property
    def sleeps(self) -> list[float]:
        """The seconds of every sleep so far."""
        return self._time.sleeps

    @property
    def sleeping(self) -> int:
        """How many sleepers wait for `advance`."""
        return self._time.sleeping

    def time(self) -> float:
        """Return the time as plugins see it."""
        return self._time.time()

    async def sleep(self, seconds: float) -> None:
        """Sleep as a plugin does."""
        await self._time.sleep(seconds)

    def advance(self, seconds: float) -> None:
        """Move time on and wake whoever has slept long enough."""
        self._time.advance(seconds)
