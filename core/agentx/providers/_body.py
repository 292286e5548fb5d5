"""The JSON of a request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from agentx._codec import encode


def to_json(value: Any) -> bytes:
    """Return a body as JSON: fast where msgspec takes it as it is, else through agentx's own codec, which mends text.

    Raises:
        CodecError: something in it cannot become JSON.
    """
    try:
        return msgspec.json.encode(value, enc_hook=_plain)
    except (TypeError, ValueError, RecursionError):
        return encode(value)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is no JSON")
