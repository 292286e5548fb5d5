"""What every provider over HTTP has: its settings, its key, its connection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self
from urllib.parse import parse_qsl, urlsplit

import attrs

from ._http import Connection, Timeouts, shown_url
from ._keys import KeySource, Secret

_HARMLESS = frozenset({"accept", "content-type", "user-agent", "api-version"})
"""Headers and query parameters that are no secrets."""


def _secret(value: Secret | str | None) -> Secret | None:
    return Secret(value) if isinstance(value, str) else value


def _shown(url: str | None) -> str:
    return repr(shown_url(url) if url else url)


@attrs.define(eq=False, kw_only=True)
class HttpProvider:
    """Base of a provider of models behind an HTTP interface; its fields are the settings of `[models.<prefix>]`.

    A subclass is an attrs class (`@attrs.define(eq=False, kw_only=True)`) with more fields, the class variables below,
    `model(name)` and `models()`. An agent makes one each time it opens, and closes it.
    """

    default_url: ClassVar[str] = ""
    key_variables: ClassVar[tuple[str, ...]] = ()
    needs_key: ClassVar[bool] = True

    prefix: str = ""
    base_url: str | None = attrs.field(default=None, repr=_shown)
    api_key: str | None = attrs.field(default=None, converter=_secret, repr=False, metadata={"secret": True})
    """Better kept out of files: `api_key_env` or the keyring."""
    api_key_env: str | None = None
    """The environment variable that has the key, in place of the provider's usual ones."""
    headers: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    """Sent with every request, over the provider's own."""
    timeouts: Timeouts = attrs.field(factory=Timeouts)
    client: Any = attrs.field(default=None, repr=False)
    """An `httpx.AsyncClient` of the user's, in code only; it is not closed."""
    _connection: Connection | None = attrs.field(default=None, init=False, repr=False)

    @property
    def url(self) -> str:
        return self.base_url or self.default_url

    @property
    def key_source(self) -> KeySource:
        variables = (self.api_key_env,) if self.api_key_env else self.key_variables
        given: Secret | None = self.api_key  # type: ignore[assignment]  # the converter makes it one
        return KeySource(self.prefix, variables, given, required=self.needs_key)

    @property
    def connection(self) -> Connection:
        """The one pool of connections that the models of this provider share."""
        if self._connection is None:
            self._connection = Connection(self.url, timeouts=self.timeouts, client=self.client)
        return self._connection

    def secrets(self, key: Secret | None) -> tuple[str, ...]:
        """Return what no message may have in it: the key, and what the user's headers and URL hold."""
        parts = urlsplit(self.url)
        found = [value for name, value in parse_qsl(parts.query) if name not in _HARMLESS]
        found += [value for name, value in self.headers.items() if name.lower() not in _HARMLESS]
        found += [key.reveal()] if key is not None else []
        return tuple([value for value in (*found, parts.password) if value])

    def fresh(self) -> Self:
        """Return the same provider with a connection of its own."""
        return attrs.evolve(self)

    async def aclose(self) -> None:
        if self._connection is not None:
            await self._connection.aclose()
