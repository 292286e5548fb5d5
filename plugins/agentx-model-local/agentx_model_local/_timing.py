"""The request's own time limit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import anyio

from agentx import ModelTimeoutError


@contextmanager
def within(seconds: float | None, model: str) -> Iterator[None]:
    """Cancel the body after `seconds` and raise `ModelTimeoutError`."""
    with anyio.move_on_after(seconds if seconds is not None else float("inf")) as scope:
        yield
    if scope.cancelled_caught:
        raise ModelTimeoutError(f"{model} took longer than the {seconds} seconds the settings give it")
