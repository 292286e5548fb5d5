"""What is known of OpenAI's own models without asking."""

from __future__ import annotations

import re

import attrs

from agentx import Capabilities

from ._servers import Api

_BASE = Capabilities(
    json_schema=True, tools=True, parallel_tool_calls=True, images=True, audio=False, files=True, reasoning=False
)
_REASONING = attrs.evolve(_BASE, reasoning=True)


@attrs.frozen
class Known:
    pattern: re.Pattern[str]
    capabilities: Capabilities
    api: Api = "responses"


def _known(pattern: str, capabilities: Capabilities, api: Api = "responses", **changes: object) -> Known:
    return Known(re.compile(pattern), attrs.evolve(capabilities, **changes), api)  # type: ignore[arg-type]


_MODELS = (
    _known(r"gpt-4o(-mini)?-audio|gpt-audio", _BASE, "chat", images=False, files=False, audio=True, json_schema=None),
    _known(r"gpt-(4o|5)(-mini)?-search", _BASE, "chat", tools=False, images=None, files=None),
    _known(r"gpt-3\.5", _BASE, "chat", json_schema=False, images=False, files=False, max_context=16_385),
    _known(r"gpt-4-turbo", _BASE, "chat", json_schema=False, files=False, max_context=128_000),
    _known(r"gpt-4(-\d|$)", _BASE, "chat", json_schema=False, images=False, files=False, max_context=8_192),
    _known(r"(ft:)?gpt-4\.1", _BASE, max_context=1_047_576, max_output=32_768),
    _known(r"(ft:)?gpt-4o", _BASE, max_context=128_000, max_output=16_384),
    _known(r"chatgpt-4o", _BASE, tools=False, max_context=128_000),
    _known(r"gpt-5[\w.]*-chat|gpt-5-chat", _BASE, max_context=128_000, max_output=16_384),
    _known(r"(ft:)?gpt-5", _REASONING, max_context=400_000, max_output=128_000),
    _known(r"o3-mini", _REASONING, images=False, files=False, max_context=200_000, max_output=100_000),
    _known(r"(ft:)?o[134]\b", _REASONING, max_context=200_000, max_output=100_000),
    _known(r"codex-|computer-use", _REASONING),
)
LISTED = (
    "gpt-5",
    "gpt-5-mini",
    "gpt-5-nano",
    "gpt-4.1",
    "gpt-4.1-mini",
    "gpt-4o",
    "gpt-4o-mini",
    "o3",
    "o4-mini",
)
"""Models that `agentx models` lists; any other id works too."""


def known(model: str) -> Known | None:
    """Return what is known of one of OpenAI's models; nothing of a name that somebody else chose."""
    return next((one for one in _MODELS if one.pattern.match(model)), None)
