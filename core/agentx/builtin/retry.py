"""model.retry: call a model again after an error that may pass."""

from __future__ import annotations

import math
import random
from typing import ClassVar

import anyio

from agentx import SYSTEM_CLOCK, CallNext, Clock, ModelContext, ModelError, ModelResponse, Plugin, hookimpl


class Retry(Plugin):
    """Repeat model calls that failed with an error marked `retryable`, waiting longer each time.

    The wait is drawn evenly between 0 and the backoff of the attempt ("full jitter"), so that clients that failed
    together do not come back together. What the provider asked for in Retry-After is the least wait, and jitter is
    added to it. A wait that the turn's deadline does not allow is not begun: the error goes on at once.
    """

    id: ClassVar = "model.retry"

    attempts: int = 4
    """Calls in all."""
    base_seconds: float = 0.5
    """The backoff of the first repetition; it doubles each time."""
    max_seconds: float = 30.0
    """The longest backoff, and the longest Retry-After that is waited for."""

    @hookimpl(repeats=True)
    async def model(self, ctx: ModelContext, call_next: CallNext[ModelResponse]) -> ModelResponse:
        attempt = 1
        while True:
            try:
                return await call_next()
            except ModelError as error:
                wait = self._wait(error, attempt)
                if wait is None:
                    raise
                ctx.emit("waiting", attempt=attempt, seconds=round(wait, 3), error=type(error).__name__)
            await ctx.get(Clock, SYSTEM_CLOCK).sleep(wait)
            attempt += 1

    def _wait(self, error: ModelError, attempt: int) -> float | None:
        """Return the seconds to wait before the next attempt, or `None` if there is none."""
        if not error.retryable or attempt >= self.attempts:
            return None
        asked = error.retry_after
        if asked is None or not math.isfinite(asked) or asked < 0:
            asked = 0.0
        backoff = min(self.max_seconds, self.base_seconds * 2 ** (attempt - 1))
        wait = asked + random.uniform(0, backoff if not asked else min(backoff, asked))
        if asked > self.max_seconds or anyio.current_time() + wait > anyio.current_effective_deadline():
            return None
        return wait
