"""A model of Anthropic, or of a server that speaks its Messages API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from agentx import AdaptedDelta, Emit, FilePart, ModelError, ModelRequest, ModelResponse, Part, ThinkingPart
from agentx.providers import (
    Assembler,
    Exchange,
    Reading,
    Timeouts,
    Totals,
    adapt,
    can_read,
    check_request,
    error_of,
    to_json,
)

from . import _files
from ._answer import read_body, read_stream
from ._conversation import Conversation
from ._errors import CODES, failure_of, said_in
from ._provider import AnthropicProvider, Credentials
from ._request import Wire, check_model, wire_of

BETA = "anthropic-beta"
VERSION = "anthropic-version"


class AnthropicModel:
    """A model behind the Messages API.

    Args:
        id: what the server calls it, such as `claude-sonnet-5-5`.
        api_key: by default from the environment or the keyring.
        base_url: what stands before `/v1/messages`.
        client: an `httpx.AsyncClient` of your own, which stays open.
        provider: has all of that already.
        settings: more fields of `AnthropicProvider`.
    """

    def __init__(
        self,
        id: str,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeouts: Timeouts | None = None,
        client: Any = None,
        provider: AnthropicProvider | None = None,
        **settings: Any,
    ) -> None:
        self.id = id
        self._is_own = provider is None
        self._provider = provider or AnthropicProvider(
            prefix="anthropic",
            api_key=api_key,
            base_url=base_url,
            headers=headers or {},
            timeouts=timeouts or Timeouts(),
            client=client,
            **settings,
        )
        self.name = f"{self._provider.prefix}/{id}"
        self._traits = self._provider.traits(id)
        self.capabilities = self._traits.capabilities

    def __repr__(self) -> str:
        return f"AnthropicModel({self.id!r}, provider={self._provider!r})"

    @property
    def endpoint(self) -> str:
        """Where it is served."""
        return self._provider.url

    def fresh(self) -> AnthropicModel:
        """Return the same model with connections of its own."""
        made = AnthropicModel(self.id, provider=self._provider.fresh())
        made._is_own = True
        return made

    async def aclose(self) -> None:
        if self._is_own:
            await self._provider.aclose()

    async def respond(self, request: ModelRequest, emit: Emit) -> ModelResponse:
        provider, options = self._provider, self._provider.options()
        able = check_model(request, self._traits, options, model=self.name)
        check_request(request, model=self.name, settings=able, capabilities=self.capabilities)
        conversation, dropped = self._conversation(request)
        wire = wire_of(request, conversation, options, self._traits, id=self.id, model=self.name)
        credentials = provider.credentials()
        if dropped:
            await emit(AdaptedDelta(dropped))
        exchange = provider.connection.post(
            "/v1/messages",
            to_json(wire.body),
            _headers(credentials, wire),
            timeout=request.settings.timeout,
            model=self.name,
        )
        out = Assembler(emit, provider=provider.prefix, totals=Totals(input_has_cache=False))
        async with exchange:
            if exchange.status != 200:
                raise await self._error(exchange, credentials)
            reading = Reading(self.name, out, exchange.headers, credentials.secrets, CODES)
            kind = exchange.headers.get("content-type", "")
            if "event-stream" in kind or (wire.body.get("stream") and "json" not in kind):
                return await read_stream(exchange, reading, emit)
            return await read_body(await exchange.read(), reading, emit)

    def _conversation(self, request: ModelRequest) -> tuple[Conversation, tuple[str, ...]]:
        """Return the history as it is sent, and what stays behind. What is said for this call only comes later."""
        adapted = adapt(attrs.evolve(request, context=()), provider=self._provider.prefix, reads=self._reads)
        conversation = Conversation(citations=self._provider.citations)
        conversation.take(adapted.messages)
        more = [f"{count} × {what}" if count > 1 else what for what, count in conversation.dropped.items()]
        return conversation, (*adapted.dropped, *more)

    def _reads(self, part: Part) -> bool:
        if isinstance(part, FilePart):
            return _files.can_send(part) and can_read(part, self.capabilities) is not False
        if isinstance(part, ThinkingPart):  # without a signature only a server that makes none takes it back
            return bool(part.signature or part.data) or not self._provider.is_own
        return True

    async def _error(self, exchange: Exchange, credentials: Credentials) -> ModelError:
        failure = failure_of(said_in(await exchange.read_error()), exchange.status)
        return error_of(failure, model=self.name, table=CODES, headers=exchange.headers, secrets=credentials.secrets)


def _headers(credentials: Credentials, wire: Wire) -> dict[str, str]:
    headers = {VERSION: wire.version, **credentials.headers}
    betas = [*filter(None, [credentials.headers.get(BETA)]), *wire.betas]
    if betas:
        headers[BETA] = ",".join(betas)
    return headers
