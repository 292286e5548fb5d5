"""What models cost, where the package genai-prices is installed; it comes with agentx-guard-budget."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from importlib import import_module
from importlib.util import find_spec
from typing import Any

BUCKETS = {
    "input_tokens": "input_mtok",
    "output_tokens": "output_mtok",
    "cache_read_tokens": "cache_read_mtok",
    "cache_write_tokens": "cache_write_mtok",
}
"""Buckets of `Usage`, and what genai-prices calls their prices."""


def prices_of(model_id: str) -> Mapping[str, Decimal]:
    """Return US dollars for a million tokens by bucket, for small requests; empty if they are not known."""
    if find_spec("genai_prices") is None:
        return {}
    library: Any = import_module("genai_prices")
    provider, _, name = model_id.partition("/")
    try:
        found = library.calc_price(library.Usage(), name, provider_id=provider).model_price
    except LookupError:
        return {}
    values = {bucket: getattr(found, field, None) for bucket, field in BUCKETS.items()}
    return {bucket: Decimal(getattr(value, "base", value)) for bucket, value in values.items() if value is not None}
