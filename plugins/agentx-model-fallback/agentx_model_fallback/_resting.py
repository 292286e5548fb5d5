"""Which models are left alone for a while because they failed."""

from __future__ import annotations

import math

from agentx import ModelError


class Resting:
    """The models that rest, for one opening of an agent. A model that failed rests for `cooldown` seconds.

    It rests longer where its provider asked for more, but not for ever: at most ten times `cooldown`.
    """

    def __init__(self, cooldown: float) -> None:
        self._cooldown = cooldown
        self._until: dict[str, float] = {}

    def begin(self, model: str, error: ModelError, now: float) -> None:
        """Note that a model failed."""
        if self._cooldown:
            asked = error.retry_after or 0.0
            asked = asked if 0 < asked < math.inf else 0.0
            self._until[model] = now + max(self._cooldown, min(asked, 10 * self._cooldown))

    def end(self, model: str) -> None:
        """Note that a model answered."""
        self._until.pop(model, None)

    def left(self, model: str, now: float) -> float:
        """Return for how many seconds a model rests; 0 if it does not."""
        return max(0.0, self._until.get(model, now) - now)
