"""What `openai/…`, `openai-compatible/…` and the names of known servers stand for."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Literal
from urllib.parse import quote, urlsplit

import attrs

from agentx import Capabilities, ConfigError, Model, ModelInfo
from agentx.providers import Connection, HttpProvider, KeySource, Secret

from ._known import LISTED, known
from ._servers import SERVERS, Api, Quirks, Server

PLACE = "{model}"
OWN = ("openai", "azure")
"""Who serves OpenAI's own models, so that their names say what they can do."""


@attrs.frozen
class Credentials:
    """What is sent with every request to a server."""

    headers: Mapping[str, str] = attrs.field(repr=False)
    secrets: tuple[str, ...] = attrs.field(repr=False)


@attrs.define(eq=False, kw_only=True)
class OpenAIProvider(HttpProvider):
    """A server that speaks OpenAI's dialect; which one, `provider` says."""

    provider: str = "openai"
    """A key of `SERVERS`."""
    api: Literal["auto", "responses", "chat"] = "auto"
    """`auto` is Responses at OpenAI and Azure (Chat for the few models that have only that), Chat everywhere else."""
    stream: bool = True
    """A streamed answer shows that the server is alive and that the answer is whole; turn it off where it cannot."""
    store: bool = False
    """Whether OpenAI keeps responses; if not, reasoning travels with the history, encrypted."""
    reasoning: bool | None = None
    """Whether the models reason, where their names do not say it."""
    reasoning_summary: Literal["auto", "concise", "detailed"] | None = None
    organization: str | None = None
    project: str | None = None
    query: Mapping[str, str] = attrs.field(factory=dict)
    """Sent behind every URL, such as `api-version`."""
    quirks: Quirks = attrs.field(factory=Quirks)
    """Laid over what is known of the server, where it differs from the default."""
    _credentials: Credentials | None = attrs.field(default=None, init=False, repr=False)
    tools_known: dict[str, bool] = attrs.field(factory=dict, init=False, repr=False)
    """By model: whether the server's chat template knows tools, once that was asked."""

    def model(self, name: str) -> Model:
        from ._model import OpenAIModel  # it makes a provider where none is given

        return OpenAIModel(name, provider=self)

    def models(self) -> Sequence[ModelInfo]:
        """Return OpenAI's usual models, or of another server one row, once it is set up."""
        origin = self.key_source.origin()
        ready = bool(origin) or not self.key_source.required
        detail = "" if ready else self.key_source.missing()
        if self.provider == "openai":
            return [
                ModelInfo(f"{self.prefix}/{name}", "", ready, detail, self.capabilities(name), origin)
                for name in LISTED
            ]
        if not (origin or self._given_url()):
            return []
        text = f"any model of {urlsplit(self.url).hostname}"
        return [ModelInfo(f"{self.prefix}/…", text, ready, detail, self.capabilities(""), origin)]

    @property
    def server(self) -> Server:
        """What is known of the server.

        Raises:
            ConfigError: nothing, by this name.
        """
        found = SERVERS.get(self.provider)
        if found is None:
            near = get_close_matches(self.provider, SERVERS, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"there is {', '.join(sorted(SERVERS))}"
            raise ConfigError(f"no server is called {self.provider!r}; {hint}")
        return found

    @property
    def behaviour(self) -> Quirks:
        """What is known of the server, with what is configured laid over it."""
        default = Quirks()
        names = [field.name for field in attrs.fields(Quirks)]
        set_ones = {name: getattr(self.quirks, name) for name in names}
        return attrs.evolve(
            self.server.quirks, **{name: value for name, value in set_ones.items() if value != getattr(default, name)}
        )

    def api_of(self, model: str) -> Api:
        """Return which interface a model is asked through."""
        if self.api != "auto":
            return self.api
        found = known(model) if self.provider in OWN else None
        if found is not None:
            return found.api
        return "chat" if PLACE in self.url else self.server.api

    def capabilities(self, model: str) -> Capabilities:
        found = known(model) if self.provider in OWN else None
        able = found.capabilities if found is not None else Capabilities(json_schema=self.behaviour.json_schema)
        return able if self.reasoning is None else attrs.evolve(able, reasoning=self.reasoning)

    def _given_url(self) -> str:
        variable = self.server.url_variable
        return self.base_url or (os.environ.get(variable, "") if variable else "")

    @property
    def url(self) -> str:
        """The base URL.

        Raises:
            ConfigError: this server has none of its own, and none is set.
        """
        found = self._given_url() or self.server.url
        if not found:
            hint = f", or the environment variable {self.server.url_variable}" if self.server.url_variable else ""
            raise ConfigError(f"{self.prefix}: there is no address; set models.{self.prefix}.base_url{hint}")
        has_path = urlsplit(found).path.strip("/")
        return found if has_path else f"{found.rstrip('/')}{self.server.url_path}"

    @property
    def key_source(self) -> KeySource:
        variables = (self.api_key_env,) if self.api_key_env else self.server.key_variables
        given: Secret | None = self.api_key  # type: ignore[assignment]  # the converter makes it one
        return KeySource(self.prefix, variables, given, required=self.server.needs_key)

    @property
    def connection(self) -> Connection:
        if self._connection is None:
            root, place, rest = self.url.partition(PLACE)
            query = rest.partition("?")[2]
            url = f"{root.rstrip('/')}{f'?{query}' if query else ''}" if place else self.url
            self._connection = Connection(url, timeouts=self.timeouts, client=self.client)
        return self._connection

    def path(self, model: str, endpoint: str) -> str:
        """Return the path of an endpoint behind the base URL, which may have a place for the model's name."""
        _, place, rest = self.url.partition(PLACE)
        return f"/{quote(model, safe='')}{rest.partition('?')[0].rstrip('/')}{endpoint}" if place else endpoint

    def credentials(self) -> Credentials:
        """Return the headers of a request.

        Raises:
            AuthenticationError: the key is missing, or no header can carry it.
        """
        if self._credentials is None:
            key = self.key_source.key()
            headers = {"content-type": "application/json"}
            if key is not None:
                header = self.behaviour.key_header
                headers[header] = f"Bearer {key.reveal()}" if header == "authorization" else key.reveal()
            if self.organization:
                headers["openai-organization"] = self.organization
            if self.project:
                headers["openai-project"] = self.project
            headers.update({name.lower(): value for name, value in self.headers.items()})
            self._credentials = Credentials(headers, self.secrets(key))
        return self._credentials
