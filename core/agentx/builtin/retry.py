"""`model.retry`: try a model call again when its failure says that this may help."""

from __future__ import annotations

import math
import random
from typing import ClassVar

import anyio
import attrs

from agentx import SYSTEM_CLOCK, CallNext, Clock, ConfigError, ModelContext, ModelError, ModelResponse, Plugin, hookimpl


def _positive(_: Retry, field: attrs.Attribute[float], value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ConfigError(f"model.retry: {field.name} must be a number of at least 0, not {value!r}")


def _at_least_one(_: Retry, field: attrs.Attribute[int], value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"model.retry: {field.name} must be a whole number of at least 1, not {value!r}")


class Retry(Plugin):
    """Try a model call again, with growing random waits, when its error is marked retryable.

    A wait that the provider asked for is kept: never shorter, and a little longer so that clients do not come back
    all at once. Without one the wait is random between 0 and `base_delay * 2 ** n`, at most `max_delay` ("full
    jitter", https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/). A wait that does not fit
    before the turn's deadline, or a longer one than `max_retry_after`, is not begun: the call fails at once.
    """

    id: ClassVar[str] = "model.retry"

    attempts: int = attrs.field(default=4, validator=_at_least_one)
    """Of each model call, the first one included."""
    base_delay: float = attrs.field(default=0.5, validator=_positive)
    """Seconds; the first wait is at most this long."""
    max_delay: float = attrs.field(default=30.0, validator=_positive)
    """Seconds; no wait of our own is longer."""
    max_retry_after: float = attrs.field(default=300.0, validator=_positive)
    """Seconds; a provider that asks for more is not waited for."""

    @hookimpl(repeats=True)
    async def model(self, ctx: ModelContext, call_next: CallNext[ModelResponse]) -> ModelResponse:
        failures = 0
        while True:
            try:
                return await call_next()
            except ModelError as error:
                failures += 1
                delay = self._delay(error, failures)
                if delay is None:
                    raise
                reason = f"{type(error).__name__}: {error}"
            ctx.emit("wait", attempt=failures + 1, seconds=delay, reason=reason)
            await ctx.get(Clock, SYSTEM_CLOCK).sleep(delay)

    def _delay(self, error: ModelError, failures: int) -> float | None:
        """Return the seconds to wait after so many failures; `None` gives up, and a note on the error says why."""
        if not error.retryable:
            return None
        if failures >= self.attempts:
            if failures > 1:
                error.add_note(f"model.retry: tried {failures} times")
            return None
        asked = _asked(error)
        if asked > self.max_retry_after:
            limit = f"max_retry_after is {self.max_retry_after:g} s"
            error.add_note(f"model.retry: not tried again, the provider asks to wait {asked:g} s and {limit}")
            return None
        delay = asked + random.uniform(0, min(self.max_delay, self.base_delay * 2.0 ** min(failures - 1, 60)))
        left = anyio.current_effective_deadline() - anyio.current_time()
        if delay >= left:
            error.add_note(f"model.retry: not tried again, a wait of {delay:.1f} s does not fit before the deadline")
            return None
        return delay


def _asked(error: ModelError) -> float:
    """Return the seconds that the provider asked to wait; what is no number of seconds asks for nothing."""
    asked = error.retry_after
    return asked if asked is not None and 0 < asked < math.inf else 0.0
