"""From status and code to an error, and keys that nobody sees."""

from __future__ import annotations

import copy
import pickle
import sys
import types
from collections.abc import Mapping

import pytest

from agentx import (
    AuthenticationError,
    BadResponseError,
    ContextWindowError,
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
from agentx.providers import Failure, KeySource, Secret, error_of, masked, retry_after

TABLE = {"context_length_exceeded": ContextWindowError, "insufficient_quota": QuotaError}


@pytest.mark.parametrize(
    ("status", "cls", "retryable"),
    [
        (400, RequestRejectedError, False),
        (401, AuthenticationError, False),
        (402, QuotaError, False),
        (403, PermissionDeniedError, False),
        (404, ModelNotFoundError, False),
        (408, ModelTimeoutError, True),
        (413, RequestRejectedError, False),
        (418, RequestRejectedError, False),
        (422, RequestRejectedError, False),
        (429, RateLimitError, True),
        (500, ServerError, True),
        (501, RequestRejectedError, False),
        (502, ServerError, True),
        (503, OverloadedError, True),
        (504, ModelTimeoutError, True),
        (520, ServerError, True),
        (529, OverloadedError, True),
        (302, BadResponseError, False),
        (None, ServerError, True),
    ],
)
def test_a_status_says_the_class(status: int | None, cls: type[ModelError], retryable: bool) -> None:
    error = error_of(Failure("no", status=status), model="acme/big")
    assert type(error) is cls
    assert (error.status, error.retryable) == (status, retryable)


def test_a_code_counts_more_than_the_status_and_words_count_for_nothing() -> None:
    said = Failure("rate limit! overloaded! invalid api key!", ("context_length_exceeded", "other"), 400)
    error = error_of(said, model="acme/big", table=TABLE)
    assert type(error) is ContextWindowError
    assert error.provider_code == "context_length_exceeded"
    assert str(error).startswith("acme/big answered HTTP 400 context_length_exceeded: rate limit!")


def test_the_first_code_that_is_known_counts() -> None:
    error = error_of(Failure("", ("new_code", "insufficient_quota"), 429), model="acme/big", table=TABLE)
    assert type(error) is QuotaError
    assert error.provider_code == "new_code"


def test_headers_say_how_to_go_on() -> None:
    headers = {"x-request-id": "req_1", "retry-after-ms": "1500", "retry-after": "9", "x-should-retry": "false"}
    error = error_of(Failure("", status=429), model="acme/big", headers=headers)
    assert (error.request_id, error.retry_after, error.retryable) == ("req_1", 1.5, False)


NOW = 1735689600.0  # Wed, 01 Jan 2025 00:00:00 GMT


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2", 2),
        ("0", 0),
        ("1.5", 1.5),
        (" 3 ", 3),
        ("Wed, 01 Jan 2025 00:00:30 GMT", 30),
        ("Tue, 31 Dec 2024 23:59:59 GMT", 0),
        ("99999999999", 99999999999),
        ("-1", None),
        ("²", None),
        ("nan", None),
        ("inf", None),
        ("1e400", None),
        ("soon", None),
        ("", None),
        (None, None),
        ("Wed, 99 Jan 2025 00:00:30 GMT", None),
        ("9" * 400, None),
    ],
)
def test_retry_after_is_read_in_every_form_it_has(text: str | None, seconds: float | None) -> None:
    assert retry_after({} if text is None else {"retry-after": text}, NOW) == seconds


def test_a_date_counts_from_the_servers_own_clock() -> None:
    headers = {"retry-after": "Wed, 01 Jan 2020 00:00:30 GMT", "date": "Wed, 01 Jan 2020 00:00:10 GMT"}
    assert retry_after(headers) == 20


def test_a_long_message_is_cut_and_on_one_line() -> None:
    error = error_of(Failure("a\n b" * 9000, status=500), model="acme/big")
    assert len(str(error)) < 600
    assert "\n" not in str(error)


def test_secrets_are_in_no_message() -> None:
    said = Failure("key sk-SECRET/1 as sk-SECRET%2F1 refused", ("sk-SECRET/1",), 401)
    error = error_of(said, model="acme/big", secrets=["sk-SECRET/1", "", "a"])
    assert "SECRET" not in f"{error!r} {error} {error.provider_code}"
    assert "key *** as *** refused" in str(error)


def test_the_longer_of_two_secrets_is_masked_whole() -> None:
    assert masked("abcd abcdefgh", ["abcd", "abcdefgh"]) == "*** ***"


# Keys


def test_a_key_comes_from_the_first_variable_that_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECOND_KEY", "sk-two")
    source = KeySource("acme", ("FIRST_KEY", "SECOND_KEY"))
    key = source.key()
    assert key is not None
    assert key.reveal() == "sk-two"
    assert source.origin() == "environment SECOND_KEY"


def test_a_missing_key_names_what_to_set() -> None:
    with pytest.raises(AuthenticationError, match=r"no key for acme: set .* variable ACME_KEY.*keyring set"):
        KeySource("acme", ("ACME_KEY",)).key()
    assert KeySource("acme", ("ACME_KEY",)).origin() == ""


def test_a_server_that_needs_no_key_gets_none() -> None:
    assert KeySource("acme", ("ACME_KEY",), required=False).key() is None


@pytest.mark.parametrize("value", ["sk-SECRET\r", "sk-SECRET\n", "sk-\0SECRET", "sk SECRET", "sk-SECRET€"])
def test_a_key_that_no_header_can_carry_is_refused_without_showing_it(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    if "\0" in value:
        source = KeySource("acme", ("ACME_KEY",), Secret(value))
    else:
        monkeypatch.setenv("ACME_KEY", value)
        source = KeySource("acme", ("ACME_KEY",))
    with pytest.raises(AuthenticationError, match=r"the key for acme \(.*\) contains a (control|space)") as caught:
        source.key()
    assert "SECRET" not in str(caught.value)


def test_a_secret_shows_itself_to_nobody() -> None:
    secret = Secret("sk-SECRET")
    assert "SECRET" not in f"{secret} {secret!r} {[secret]} {KeySource('acme', (), secret)!r}"
    assert copy.copy([secret])[0].reveal() == "sk-SECRET"
    with pytest.raises(TypeError):
        pickle.dumps(secret)


@pytest.fixture
def keyring(monkeypatch: pytest.MonkeyPatch) -> Mapping[tuple[str, str], str]:
    """A package `keyring` like the real one, which tests must not touch: it would open the system's own store."""
    stored: dict[tuple[str, str], str] = {}
    package, errors = types.ModuleType("keyring"), types.ModuleType("keyring.errors")

    class KeyringError(Exception):
        pass

    def get_password(service: str, user: str) -> str | None:
        if user == "locked":
            raise KeyringError("locked")
        return stored.get((service, user))

    package.get_password = get_password  # type: ignore[attr-defined]
    package.errors = errors  # type: ignore[attr-defined]
    errors.KeyringError = KeyringError  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "keyring", package)
    monkeypatch.setitem(sys.modules, "keyring.errors", errors)
    return stored


def test_a_key_of_the_systems_store_counts_after_the_environment(
    monkeypatch: pytest.MonkeyPatch, keyring: dict[tuple[str, str], str]
) -> None:
    keyring["agentx", "acme"] = "sk-ring"
    source = KeySource("acme", ("ACME_KEY",))
    assert source.origin() == "keyring agentx acme"
    assert (source.key() or Secret("")).reveal() == "sk-ring"
    monkeypatch.setenv("ACME_KEY", "sk-env")
    assert source.origin() == "environment ACME_KEY"


def test_a_store_that_cannot_be_opened_is_one_without_the_key(keyring: Mapping[tuple[str, str], str]) -> None:
    with pytest.raises(AuthenticationError):
        KeySource("locked", ("ACME_KEY",)).key()
