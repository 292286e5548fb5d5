"""Where the key of a provider comes from. A key lives in a `Secret`, which shows itself to nobody."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import quote

import attrs

from agentx._errors import AuthenticationError

KEYRING_SERVICE = "agentx"
_UNPRINTABLE = re.compile(r"[^\x21-\x7e]")
MASK = "***"
SHORTEST = 4
"""Characters; anything shorter is in every text by chance."""


class Secret:
    """A text that no repr, log or traceback shows; `reveal` gives it."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return MASK

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._value == other._value

    def __hash__(self) -> int:
        return hash(self._value)

    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError("a secret is not pickled")


@attrs.frozen
class KeySource:
    """How the key of a provider is looked for.

    Args:
        provider: its prefix, for errors, and the user name under which the `keyring` package keeps the key
            (`keyring set agentx openai`).
        variables: environment variables, the first that is set counts.
        given: a key given in code or in the configuration, which counts before them.
        required: a server on this machine may need none.
    """

    provider: str
    variables: Sequence[str] = ()
    given: Secret | None = None
    required: bool = True

    def find(self, environ: Mapping[str, str] | None = None) -> tuple[Secret, str] | None:
        """Return the key and where it comes from, or nothing."""
        environ = os.environ if environ is None else environ
        if self.given is not None:
            return self.given, "given"
        for name in self.variables:
            if environ.get(name):
                return Secret(environ[name]), f"environment {name}"
        found = _from_keyring(self.provider)
        return (found, f"keyring {KEYRING_SERVICE} {self.provider}") if found is not None else None

    def origin(self) -> str:
        """Return where the key comes from, without showing it; empty if there is none."""
        found = self.find()
        return found[1] if found is not None else ""

    def key(self) -> Secret | None:
        """Return the key; `None` where none is needed and none is there.

        Raises:
            AuthenticationError: it is missing, or no header can carry it; the message names where it belongs.
        """
        found = self.find()
        if found is None:
            if self.required:
                raise AuthenticationError(self.missing())
            return None
        secret, origin = found
        bad = _UNPRINTABLE.search(secret.reveal())
        if bad is not None:
            what = (
                "a control character" if ord(bad[0]) < 32 or ord(bad[0]) == 127 else "a space or a non-ASCII character"
            )
            raise AuthenticationError(
                f"the key for {self.provider} ({origin}) contains {what} at position {bad.start() + 1}: set it anew"
            )
        return secret

    def missing(self) -> str:
        """Return what to do where there is no key."""
        if not self.variables:
            return f"there is no key for {self.provider}: give one as api_key, or `keyring set agentx {self.provider}`"
        names = " or ".join(self.variables)
        return (
            f"there is no key for {self.provider}: set the environment variable {names}, "
            f"run `keyring set {KEYRING_SERVICE} {self.provider}` (package keyring), or give api_key"
        )


def _from_keyring(provider: str) -> Secret | None:
    """Ask the system's key store, where the package `keyring` is installed and has one."""
    try:
        import keyring  # type: ignore[import-not-found,unused-ignore]  # optional, and not installed for the checks
        from keyring.errors import KeyringError  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        return None
    try:
        value = keyring.get_password(KEYRING_SERVICE, provider)
    except KeyringError:  # no store on this machine, or it is locked: the same as no key
        return None
    return Secret(value) if value else None


def masked(text: str, secrets: Iterable[str]) -> str:
    """Return `text` without the secrets, also as they look in a URL."""
    forms = {form for secret in secrets for form in _forms(secret)}
    for form in sorted(forms, key=len, reverse=True):
        text = text.replace(form, MASK)
    return text


def _forms(secret: str) -> tuple[str, ...]:
    if len(secret) < SHORTEST:
        return ()
    stripped = secret.strip()
    return tuple({secret, stripped, quote(secret, safe=""), repr(secret)[1:-1]} - {""})
