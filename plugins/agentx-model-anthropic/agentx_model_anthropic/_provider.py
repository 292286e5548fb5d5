"""What `anthropic/…` stands for."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal
from urllib.parse import urlsplit

import attrs

from agentx import Capabilities, Model, ModelInfo
from agentx.providers import Connection, HttpProvider, KeySource, Secret

from ._known import LISTED, Traits, known
from ._request import Options

URL_VARIABLE = "ANTHROPIC_BASE_URL"
TOKEN_VARIABLE = "ANTHROPIC_AUTH_TOKEN"


@attrs.frozen
class Credentials:
    """What is sent with every request."""

    headers: Mapping[str, str] = attrs.field(repr=False)
    secrets: tuple[str, ...] = attrs.field(repr=False)


@attrs.define(eq=False, kw_only=True)
class AnthropicProvider(HttpProvider):
    """Anthropic, or a server that speaks its Messages API at `base_url`."""

    default_url: ClassVar[str] = "https://api.anthropic.com"
    key_variables: ClassVar[tuple[str, ...]] = ("ANTHROPIC_API_KEY", TOKEN_VARIABLE)

    key_header: Literal["x-api-key", "authorization"] = "x-api-key"
    """Where the key stands; a token from `ANTHROPIC_AUTH_TOKEN` always in `authorization`."""
    version: str | None = None
    """Of the API; by default the newest that has what is asked for."""
    betas: tuple[str, ...] = ()
    """Sent with every request as `anthropic-beta`."""
    stream: bool = True
    """A streamed answer shows that the server is alive and that the answer is whole; turn it off where it cannot."""
    max_tokens: int | None = None
    """Of an answer, where the settings of a model call say nothing; by default as many as the model can."""
    cache: Literal["5m", "1h", "off"] = "5m"
    """How long the server keeps what requests begin with; each mark pays for itself when it is read once."""
    citations: bool = False
    """Whether documents that the user sends shall be cited."""
    server_tools: tuple[Mapping[str, Any], ...] = ()
    """Tools that the server runs, in its own form, behind those of the agent."""
    thinking_display: Literal["summarized", "omitted", "updates"] | None = None
    """What is shown of the thinking; by default as the model likes."""
    thinking: Literal["adaptive", "budget"] | None = None
    """How models think whose names say nothing."""
    thinking_mismatch: Literal["drop", "error"] = "drop"
    """Thinking that belongs to a conversation that was changed since: left out and told, or refused."""
    json_schema: bool | None = None
    """Whether the models hold an answer to a JSON Schema, where their names do not say it."""
    tools: bool | None = None
    """Whether the models call tools, where their names do not say it."""
    _credentials: Credentials | None = attrs.field(default=None, init=False, repr=False)

    def model(self, name: str) -> Model:
        from ._model import AnthropicModel  # it makes a provider where none is given

        return AnthropicModel(name, provider=self)

    def models(self) -> Sequence[ModelInfo]:
        """Return Anthropic's usual models, or of another server one row."""
        source = self.key_source
        origin = source.origin()
        ready = bool(origin) or not source.required
        detail = "" if ready else source.missing()
        if self.is_own:
            return [
                ModelInfo(f"{self.prefix}/{name}", text, ready, detail, self.traits(name).capabilities, origin)
                for name, text in LISTED.items()
            ]
        text = f"any model of {urlsplit(self.url).hostname}"
        return [ModelInfo(f"{self.prefix}/…", text, ready, detail, self.traits("").capabilities, origin)]

    @property
    def url(self) -> str:
        return self.base_url or os.environ.get(URL_VARIABLE) or self.default_url

    @property
    def is_own(self) -> bool:
        """Whether the server is Anthropic's."""
        return f".{urlsplit(self.url).hostname or ''}".endswith(".anthropic.com")

    @property
    def key_source(self) -> KeySource:
        variables = (self.api_key_env,) if self.api_key_env else self.key_variables
        given: Secret | None = self.api_key  # type: ignore[assignment]  # the converter makes it one
        return KeySource(self.prefix, variables, given, required=self.is_own)

    @property
    def connection(self) -> Connection:
        """The pool of connections; the address may or may not end with `/v1`."""
        if self._connection is None:
            head, mark, query = self.url.partition("?")
            url = f"{head.rstrip('/').removesuffix('/v1')}{mark}{query}"
            self._connection = Connection(url, timeouts=self.timeouts, client=self.client)
        return self._connection

    def traits(self, model: str) -> Traits:
        """Return what is known of a model, with what is configured for those that are not."""
        found = known(model)
        if found.capabilities != Capabilities():
            return found
        reasoning = True if self.thinking is not None else None
        able = Capabilities(json_schema=self.json_schema, tools=self.tools, reasoning=reasoning)
        return attrs.evolve(
            found, capabilities=able, thinking=self.thinking or found.thinking, effort=self.thinking == "adaptive"
        )

    def options(self) -> Options:
        mark = {"type": "ephemeral", **({"ttl": "1h"} if self.cache == "1h" else {})}
        return Options(
            own=self.is_own,
            stream=self.stream,
            max_tokens=self.max_tokens,
            version=self.version,
            betas=self.betas,
            cache=None if self.cache == "off" else mark,
            display=self.thinking_display,
            drop_thinking=self.thinking_mismatch == "drop",
            server_tools=self.server_tools,
        )

    def credentials(self) -> Credentials:
        """Return the headers of a request.

        Raises:
            AuthenticationError: the key is missing, or no header can carry it.
        """
        if self._credentials is None:
            source = self.key_source
            key = source.key()
            headers = {"content-type": "application/json"}
            if key is not None:
                is_token = source.origin() == f"environment {TOKEN_VARIABLE}"
                if is_token or self.key_header == "authorization":
                    headers["authorization"] = f"Bearer {key.reveal()}"
                else:
                    headers["x-api-key"] = key.reveal()
            headers.update({name.lower(): value for name, value in self.headers.items()})
            self._credentials = Credentials(headers, self.secrets(key))
        return self._credentials
