"""What Anthropic, and servers that speak its dialect, say when something is wrong.

Sources: https://platform.claude.com/docs/en/api/errors, and the codes in `error.details.error_code`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from agentx import (
    AuthenticationError,
    ContextWindowError,
    ModelNotFoundError,
    ModelTimeoutError,
    OverloadedError,
    PermissionDeniedError,
    QuotaError,
    RateLimitError,
    RequestRejectedError,
    ServerError,
)
from agentx.providers import ErrorTable, Failure

CODES: ErrorTable = {
    "contract_spend_limit_reached": QuotaError,
    "enforced_spend_limit_reached": QuotaError,
    "linked_organization_spend_limit_reached": QuotaError,
    "linked_organization_billing_unavailable": QuotaError,
    "ramp_limit_exceeded": RateLimitError,
    "organization_on_hold": PermissionDeniedError,
    "billing_error": QuotaError,
    "authentication_error": AuthenticationError,
    "permission_error": PermissionDeniedError,
    "not_found_error": ModelNotFoundError,
    "rate_limit_error": RateLimitError,
    "request_too_large": RequestRejectedError,
    "timeout_error": ModelTimeoutError,
    "overloaded_error": OverloadedError,
    "api_error": ServerError,
    "exceed_context_size_error": ContextWindowError,
    "context_length_exceeded": ContextWindowError,
}
"""By `error_code`, and by those values of `type` that say more than the status."""
STATUS_OF_TYPE: Mapping[str, int] = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "server_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}
"""What a `type` means where there is no status of its own: in a stream that began with 200."""


def said_in(body: bytes) -> Any:
    """Return what the body of an error says, or its text if it is no JSON."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return body.decode("utf-8", "replace")


def failure_of(value: Any, status: int | None = None) -> Failure:
    """Return what an error says: `{"type": "error", "error": {…}}`, the inside of it, or OpenAI's form of it.

    Args:
        status: of the answer. In a stream it is 200 and says nothing; there the type, or a number as code, stands for
            it.
    """
    said = value.get("error", value) if isinstance(value, dict) else value
    if not isinstance(said, dict):
        return Failure(said if isinstance(said, str) else "", status=status)
    details = said.get("details")
    raw = [details.get("error_code") if isinstance(details, dict) else None, said.get("type"), said.get("code")]
    codes = tuple([code for code in raw if isinstance(code, str) and code])
    if status is None:
        number = said.get("code")
        is_status = isinstance(number, int) and 400 <= number < 600
        status = number if is_status else next((STATUS_OF_TYPE[code] for code in codes if code in STATUS_OF_TYPE), None)
    message = said.get("message")
    return Failure(message if isinstance(message, str) else "", codes, status)
