"""How much a model shall think, in the form that its generation takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentx import ModelRequest, RequestRejectedError

from ._known import Traits

EFFORTS = ("low", "medium", "high", "xhigh", "max")
BUDGETS: Mapping[str, int] = {"low": 2_048, "medium": 8_192, "high": 24_576, "xhigh": 32_768, "max": 63_000}
"""Tokens of thinking, for models that take a number."""
SMALLEST = 1_024
LARGEST_EFFORT = "high"
"""Of models that take both a number and an effort."""


def thinking_of(
    request: ModelRequest,
    traits: Traits,
    *,
    model: str,
    max_tokens: int,
    display: str | None = None,
    binding: bool = False,
) -> dict[str, Any]:
    """Return the fields `thinking` and `output_config` of a request, as far as something was asked for.

    Args:
        model: as it stands in errors.
        display: what is shown of the thinking.
        binding: thinking that no longer fits the conversation shall be left out, rather than refused.

    Raises:
        RequestRejectedError: the model cannot do it.
    """
    asked = request.settings.reasoning_effort
    if asked == "none":
        return {"thinking": {"type": _off(traits, model)}}
    if asked is not None and asked not in EFFORTS:
        raise RequestRejectedError(f"{model} knows the efforts none, {', '.join(EFFORTS)}; not {asked!r}")
    if traits.thinking == "budget":
        return {} if asked is None else _budget(request, traits, asked, model, max_tokens, display)
    found: dict[str, Any] = {}
    if asked is not None or display is not None or binding:
        found["thinking"] = {"type": "adaptive", **({"display": display} if display else {})}
        if binding:
            found["thinking"]["block_binding"] = {"prefix_mismatch_behavior": "drop_block"}
    if asked is not None:
        found["output_config"] = {"effort": asked}
    return found


def _off(traits: Traits, model: str) -> str:
    if not traits.off:
        raise RequestRejectedError(f"{model} always thinks: set reasoning_effort to 'low' instead of 'none'")
    return traits.off


def _budget(
    request: ModelRequest, traits: Traits, asked: str, model: str, max_tokens: int, display: str | None
) -> dict[str, Any]:
    settings = request.settings
    tokens = min(BUDGETS[asked], max_tokens - SMALLEST)
    if tokens < SMALLEST:
        raise RequestRejectedError(
            f"{model} needs a max_tokens of at least {2 * SMALLEST} to think, not {max_tokens}: its thinking counts"
        )
    if settings.tool_choice not in (None, "auto", "none"):
        raise RequestRejectedError(
            f"{model} cannot be made to call a tool while it thinks: leave out tool_choice or reasoning_effort"
        )
    found: dict[str, Any] = {"thinking": {"type": "enabled", "budget_tokens": tokens}}
    if display:
        found["thinking"]["display"] = display
    if traits.effort:
        found["output_config"] = {"effort": asked if asked in EFFORTS[:3] else LARGEST_EFFORT}
    return found
