"""What OpenAI and the servers that speak its dialect say when something is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from agentx import (
    AuthenticationError,
    ContentPolicyError,
    ContextWindowError,
    ModelNotFoundError,
    OverloadedError,
    PermissionDeniedError,
    QuotaError,
    RateLimitError,
    RequestRejectedError,
    ServerError,
)
from agentx.providers import ErrorTable, Failure

CODES: ErrorTable = {
    "invalid_api_key": AuthenticationError,
    "invalid_organization": AuthenticationError,
    "insufficient_permissions": PermissionDeniedError,
    "unsupported_country_region_territory": PermissionDeniedError,
    "data_residency_mismatch": PermissionDeniedError,
    "model_not_found": ModelNotFoundError,
    "DeploymentNotFound": ModelNotFoundError,
    "context_length_exceeded": ContextWindowError,
    "exceed_context_size_error": ContextWindowError,
    "content_policy_violation": ContentPolicyError,
    "image_content_policy_violation": ContentPolicyError,
    "content_filter": ContentPolicyError,
    "ResponsibleAIPolicyViolation": ContentPolicyError,
    "invalid_prompt": ContentPolicyError,
    "bio_policy": ContentPolicyError,
    "misalignment_policy_violation": ContentPolicyError,
    "insufficient_quota": QuotaError,
    "billing_hard_limit_reached": QuotaError,
    "billing_not_active": QuotaError,
    "rate_limit_exceeded": RateLimitError,
    "slow_down": OverloadedError,
    "engine_overloaded": OverloadedError,
    "overloaded_error": OverloadedError,
    "unavailable_error": OverloadedError,
    "vector_store_timeout": ServerError,
    **dict.fromkeys(
        (
            "invalid_image",
            "invalid_image_format",
            "invalid_base64_image",
            "invalid_image_url",
            "image_too_large",
            "image_too_small",
            "image_parse_error",
            "invalid_image_mode",
            "image_file_too_large",
            "unsupported_image_media_type",
            "empty_image_file",
            "failed_to_download_image",
            "image_file_not_found",
        ),
        RequestRejectedError,
    ),
}
"""By `code`, and by those values of `type` that say more than the status."""
STATUS_OF_TYPE: Mapping[str, int] = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "rate_limit_error": 429,
    "tokens": 429,
    "requests": 429,
    "api_error": 500,
    "server_error": 500,
    "overloaded_error": 529,
}
"""What a `type` means where there is no status of its own: in a stream that began with 200."""


def failure_in(body: bytes, status: int) -> Failure:
    """Return what the body of an error says."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeError):
        return Failure(body.decode("utf-8", "replace"), status=status)
    return failure_of(value, status)


def failure_of(value: Any, status: int | None = None) -> Failure:
    """Return what an error says: `{"error": {…}}`, the inside of it, `{"error": "…"}` or `{"detail": …}`.

    Args:
        status: of the answer. In a stream it is 200 and says nothing; some servers then put one into `code`.
    """
    said = value.get("error", value) if isinstance(value, dict) else value
    if not isinstance(said, dict):
        return Failure(_words(said), status=status)
    raw = [said.get("code"), said.get("type")]
    codes = tuple([code for code in raw if isinstance(code, str) and code and not code.isdecimal()])
    if status is None:
        numbers = [int(code) for code in map(str, raw) if code.isdecimal() and 400 <= int(code) < 600]
        status = next(iter([*numbers, *[STATUS_OF_TYPE[code] for code in codes if code in STATUS_OF_TYPE]]), None)
    return Failure(_words(said.get("message") or said.get("detail") or said.get("msg")), codes, status)


def _words(said: Any) -> str:
    if said is None or isinstance(said, str):
        return said or ""
    return msgspec.json.encode(said).decode()
