"""What Google says when something is wrong: a `google.rpc.Status`.

Source: https://ai.google.dev/gemini-api/docs/troubleshooting and https://cloud.google.com/apis/design/errors.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from agentx import (
    AuthenticationError,
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
    "PerDay": QuotaError,
    "API_KEY_INVALID": AuthenticationError,
    "API_KEY_SERVICE_BLOCKED": PermissionDeniedError,
    "SERVICE_DISABLED": PermissionDeniedError,
    "BILLING_DISABLED": QuotaError,
    "UNAUTHENTICATED": AuthenticationError,
    "PERMISSION_DENIED": PermissionDeniedError,
    "FAILED_PRECONDITION": PermissionDeniedError,
    "NOT_FOUND": ModelNotFoundError,
    "RESOURCE_EXHAUSTED": RateLimitError,
    "UNAVAILABLE": OverloadedError,
    "DEADLINE_EXCEEDED": ModelTimeoutError,
    "INTERNAL": ServerError,
    "INVALID_ARGUMENT": RequestRejectedError,
}
"""By the reason of an `ErrorInfo`, by what kind of quota is used up, and by the status."""
_SECONDS = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)s")


def said_in(body: bytes) -> Any:
    """Return what the body of an error says, or its text if it is no JSON."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return body.decode("utf-8", "replace")


def failure_of(value: Any, status: int | None = None) -> Failure:
    """Return what an error says.

    Args:
        status: of the answer; in a stream the code in the error stands for it.
    """
    if isinstance(value, list) and value:  # an answer that is streamed as a list
        value = value[0]
    said = value.get("error", value) if isinstance(value, dict) else value
    if not isinstance(said, dict):
        return Failure(said if isinstance(said, str) else "", status=status)
    details = _objects(said.get("details"))
    code, message = said.get("code"), said.get("message")
    if status is None and isinstance(code, int) and 400 <= code < 600:
        status = code
    codes = tuple([found for found in [*_reasons(details), said.get("status")] if isinstance(found, str)])
    return Failure(message if isinstance(message, str) else "", codes, status, _wait(details))


def _objects(value: Any) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _reasons(details: Sequence[Mapping[str, Any]]) -> list[Any]:
    violations = [item for detail in details for item in _objects(detail.get("violations"))]
    is_daily = any("PerDay" in str(item.get("quotaId", "")) for item in violations)
    return [*(["PerDay"] if is_daily else []), *[detail.get("reason") for detail in details]]


def _wait(details: Sequence[Mapping[str, Any]]) -> float | None:
    for detail in details:
        found = _SECONDS.fullmatch(str(detail.get("retryDelay", "")))
        if found:
            return float(found.group(1))
    return None
