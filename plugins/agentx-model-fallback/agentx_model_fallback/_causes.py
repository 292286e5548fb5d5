"""The names by which a configuration calls the errors of a model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches

from agentx import (
    AuthenticationError,
    BadResponseError,
    ConfigError,
    ContentPolicyError,
    ContextWindowError,
    ModelConnectionError,
    ModelError,
    ModelNotFoundError,
    ModelTimeoutError,
    OverloadedError,
    PermissionDeniedError,
    QuotaError,
    RateLimitError,
    RequestRejectedError,
    ServerError,
    StreamCutError,
    UnknownProviderError,
)


def name_of(kind: type[ModelError]) -> str:
    """Return the name of a class of errors: its code without the beginning that all have."""
    return kind.code.removeprefix("model-")


PASSING: tuple[type[ModelError], ...] = (
    RateLimitError,
    OverloadedError,
    ServerError,
    ModelConnectionError,
    ModelTimeoutError,
    StreamCutError,
)
"""Trouble of the provider that says nothing about the request: another model may well answer it."""
_OTHERS: tuple[type[ModelError], ...] = (
    AuthenticationError,
    BadResponseError,
    ContentPolicyError,
    ContextWindowError,
    ModelNotFoundError,
    PermissionDeniedError,
    QuotaError,
    RequestRejectedError,
    UnknownProviderError,
)
ABOUT_THE_REQUEST: tuple[type[ModelError], ...] = (ContentPolicyError, ContextWindowError, RequestRejectedError)
"""They say nothing about how the model does, so it does not rest after them."""
CAUSES: Mapping[str, type[ModelError]] = {name_of(kind): kind for kind in (*PASSING, *_OTHERS)}
DEFAULT = tuple([name_of(kind) for kind in PASSING])


def named(names: Iterable[str]) -> tuple[str, ...]:
    """Return names of errors as the table has them; `model-` before a name may stand or not.

    Raises:
        ConfigError: there is no such error.
    """
    found = tuple([name.removeprefix("model-") for name in names])
    for name in found:
        if name not in CAUSES:
            near = get_close_matches(name, CAUSES, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"the errors are {', '.join(sorted(CAUSES))}"
            raise ConfigError(f"model.fallback: on has {name!r}, which is no error of a model: {hint}")
    return found
