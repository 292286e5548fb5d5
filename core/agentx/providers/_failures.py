"""From what a provider says went wrong to the tree of `agentx` errors: by status and code, never by words.

status of the answer            class, by STATUSES
code or type in its body        class, by the provider's own table, which counts more
`x-should-retry`                overrides whether the same call may succeed later
`retry-after-ms`, `retry-after` how long to wait
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Mapping
from email.utils import parsedate_to_datetime
from typing import Any

import attrs

from agentx._errors import (
    AuthenticationError,
    BadResponseError,
    ModelError,
    ModelNotFoundError,
    ModelTimeoutError,
    OverloadedError,
    PermissionDeniedError,
    QuotaError,
    RateLimitError,
    RequestRejectedError,
    ServerError,
)
from agentx._messages import Usage

from ._keys import masked

ErrorTable = Mapping[str, type[ModelError]]
"""A provider's own codes and types of errors; of the codes of a `Failure` the first that is here counts."""
STATUSES: Mapping[int, type[ModelError]] = {
    400: RequestRejectedError,
    401: AuthenticationError,
    402: QuotaError,
    403: PermissionDeniedError,
    404: ModelNotFoundError,
    408: ModelTimeoutError,
    409: ServerError,
    413: RequestRejectedError,
    422: RequestRejectedError,
    425: ServerError,
    429: RateLimitError,
    501: RequestRejectedError,
    503: OverloadedError,
    504: ModelTimeoutError,
    524: ModelTimeoutError,
    529: OverloadedError,
}
LONGEST = 500
"""Characters of a provider's own words in a message."""
REQUEST_IDS = ("x-request-id", "request-id", "x-amzn-requestid", "apim-request-id", "x-goog-request-id", "cf-ray")
_NUMBER = re.compile(r"[0-9]{1,15}(\.[0-9]{1,9})?")


@attrs.frozen
class Failure:
    """What a provider said. `codes` are its codes and types, the most telling first."""

    message: str = ""
    codes: tuple[str, ...] = ()
    status: int | None = None
    retry_after: float | None = None


def class_of(status: int | None, codes: Iterable[str] = (), table: ErrorTable | None = None) -> type[ModelError]:
    """Return the class of an error; without status or known code it is a server's."""
    for code in codes:
        if table and code in table:
            return table[code]
    if status is None:
        return ServerError
    if status in STATUSES:
        return STATUSES[status]
    if status >= 500:
        return ServerError
    return RequestRejectedError if status >= 400 else BadResponseError


def error_of(
    failure: Failure,
    *,
    model: str,
    table: ErrorTable | None = None,
    headers: Mapping[str, str] | None = None,
    secrets: Iterable[str] = (),
    usage: Usage | None = None,
) -> ModelError:
    """Return the error that a provider's words stand for.

    Args:
        model: begins the message, such as `openai/gpt-5`.
        headers: of the answer, with names in lower case.
        secrets: are not in the message, whoever said them.
    """
    headers = headers or {}
    cls = class_of(failure.status, failure.codes, table)
    code = next(iter(failure.codes), None)
    shown = [f"HTTP {failure.status}"] if failure.status is not None else []
    shown += [code] if code else []
    said = bounded(failure.message) or "the provider does not say why"
    text = f"{model} answered {' '.join(shown) or 'with an error'}: {said}"
    waited = failure.retry_after if failure.retry_after is not None else retry_after(headers)
    return cls(
        masked(text, secrets),
        retryable=_should_retry(headers),
        retry_after=waited,
        status=failure.status,
        provider_code=masked(code, secrets) if code else None,
        request_id=request_id(headers),
        usage=usage,
    )


def bounded(text: Any, longest: int = LONGEST) -> str:
    """Return a provider's words on one line and not longer than `longest`."""
    words = " ".join(str(text or "")[: longest * 8].split())
    return words if len(words) <= longest else f"{words[:longest]}…"


def request_id(headers: Mapping[str, str]) -> str | None:
    return next((headers[name] for name in REQUEST_IDS if headers.get(name)), None)


def retry_after(headers: Mapping[str, str], now: float | None = None) -> float | None:
    """Return how many seconds the provider asks to wait; `None` where it says nothing that can be read.

    Source: RFC 9110, 10.2.3 (seconds or a date); fractions and `retry-after-ms` are outside of it and common. A date is
    measured against the server's own `date`, so that it does not matter how our clock goes.
    """
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    text = headers.get("retry-after")
    seconds = _number(text)
    if seconds is not None or not text:
        return seconds
    then = _date(text)
    if then is None:
        return None
    since = _date(headers.get("date", ""))
    if since is None:
        since = time.time() if now is None else now
    return max(0.0, then - since)


def _number(text: str | None) -> float | None:
    if text is None or not _NUMBER.fullmatch(text.strip()):
        return None
    value = float(text)
    return value if math.isfinite(value) else None


def _date(text: str) -> float | None:
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def _should_retry(headers: Mapping[str, str]) -> bool | None:
    return {"true": True, "false": False}.get(headers.get("x-should-retry", "").lower())
