"""What is known of Anthropic's own models without asking.

Source: https://platform.claude.com/docs/en/about-claude/models/overview and the pages of the models.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

import attrs
from attrs import evolve

from agentx import Capabilities

_NOTHING = Capabilities()
_BASE = Capabilities(
    json_schema=True, tools=True, parallel_tool_calls=True, images=True, audio=False, files=True, reasoning=True
)
_LARGE = evolve(_BASE, max_context=1_000_000, max_output=128_000)
_SMALL = evolve(_BASE, max_context=200_000, max_output=64_000)


@attrs.frozen
class Traits:
    """How a generation of models wants to be asked."""

    capabilities: Capabilities = _NOTHING
    thinking: Literal["adaptive", "budget"] = "budget"
    """How much it shall think is an effort, or a number of tokens."""
    effort: bool = False
    """Takes `output_config.effort`."""
    off: Literal["disabled", "between_tools", ""] = "disabled"
    """What turns thinking off; nothing does where it is empty."""
    sampling: bool = True
    """Takes `temperature` and `top_p`, in the older version of the API."""
    forced_tools: bool = True
    """Can be made to call a tool."""
    bound: bool = False
    """Its thinking belongs to the conversation before it: where that was changed, the thinking is refused."""


_ADAPTIVE = Traits(_LARGE, thinking="adaptive", effort=True, sampling=False)
_BOUND = evolve(_ADAPTIVE, off="", forced_tools=False, bound=True)
_OLD = evolve(_BASE, json_schema=False, max_context=200_000)

_MODELS: tuple[tuple[str, Traits], ...] = (
    (r"claude-(instant|2|3-(5-)?(opus|haiku|sonnet))", Traits(evolve(_OLD, reasoning=False, max_output=4_096))),
    (r"claude-3-7", Traits(evolve(_OLD, max_output=64_000))),
    (r"claude-(opus-4(-[01])?|4-opus)(-\d{8}|@|$)", Traits(evolve(_OLD, max_output=32_000))),
    (r"claude-(sonnet-4(-0)?|4-sonnet)(-\d{8}|@|$)", Traits(evolve(_OLD, max_output=64_000))),
    (r"claude-opus-4-5", Traits(_SMALL, effort=True)),
    (r"claude-(sonnet|haiku)-4-5", Traits(_SMALL)),
    (r"claude-(opus|sonnet)-4-6", evolve(_ADAPTIVE, sampling=True)),
    (r"claude-opus-4-[78]", _ADAPTIVE),
    (r"claude-(opus|sonnet)-5(-\d{8}|@|$)", _ADAPTIVE),
    (r"claude-haiku-5-5", _ADAPTIVE),
    (r"claude-(fable|mythos)-(5(-\d{8}|@|$)|preview)", evolve(_ADAPTIVE, off="")),
    (r"claude-sonnet-5-5", evolve(_BOUND, off="between_tools")),
    (r"claude-(opus-5-5|(fable|mythos)-5-[12])", _BOUND),
)
NEWEST = evolve(_ADAPTIVE, bound=True)
"""What a model of Anthropic's that is not known is taken for; what it cannot do it says itself."""
UNKNOWN = Traits()
LISTED: Mapping[str, str] = {
    "claude-fable-5-2": "demanding reasoning",
    "claude-opus-5-5": "long-running agents",
    "claude-sonnet-5-5": "speed and intelligence",
    "claude-haiku-5-5": "fast, for high volumes",
    "claude-opus-5": "the generation before",
    "claude-sonnet-5": "the generation before",
    "claude-sonnet-4-6": "an older generation, takes a temperature",
    "claude-haiku-4-5": "an older generation, takes a temperature",
}
"""Models that `agentx models` lists; any other id works too."""


def known(model: str) -> Traits:
    """Return what is known of a model by its name, also where a cloud has put something before it or behind."""
    found = next((traits for pattern, traits in _MODELS if re.search(pattern, model)), None)
    if found is not None:
        return found
    return NEWEST if "claude-" in model else UNKNOWN
