"""A Gemini model of Google, or of a server that speaks its dialect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from agentx import Emit, FilePart, ModelError, ModelRequest, ModelResponse, Part, ThinkingPart
from agentx.providers import (
    Assembler,
    Exchange,
    Reading,
    Secret,
    Timeouts,
    Totals,
    adapt,
    can_read,
    check_request,
    error_of,
    to_json,
)

from ._answer import read_body, read_stream
from ._errors import CODES, failure_of, said_in
from ._provider import GoogleProvider, capabilities_of
from ._request import CAN, body_of


class GoogleModel:
    """A model behind generateContent.

    Args:
        id: what Google calls it, such as `gemini-3-pro-preview`.
        api_key: by default from the environment or the keyring.
        base_url: what stands before `/v1beta`.
        client: an `httpx.AsyncClient` of your own, which stays open.
        provider: has all of that already.
        settings: more fields of `GoogleProvider`.
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
        provider: GoogleProvider | None = None,
        **settings: Any,
    ) -> None:
        self.id = id.removeprefix("models/")
        self._is_own = provider is None
        self._provider = provider or GoogleProvider(
            prefix="google",
            api_key=api_key,
            base_url=base_url,
            headers=headers or {},
            timeouts=timeouts or Timeouts(),
            client=client,
            **settings,
        )
        self.name = f"{self._provider.prefix}/{self.id}"
        self.capabilities = capabilities_of(self.id)

    def __repr__(self) -> str:
        return f"GoogleModel({self.id!r}, provider={self._provider!r})"

    @property
    def endpoint(self) -> str:
        """Where it is served."""
        return self._provider.url

    def fresh(self) -> GoogleModel:
        """Return the same model with connections of its own."""
        made = GoogleModel(self.id, provider=self._provider.fresh())
        made._is_own = True
        return made

    async def aclose(self) -> None:
        if self._is_own:
            await self._provider.aclose()

    async def respond(self, request: ModelRequest, emit: Emit) -> ModelResponse:
        provider = self._provider
        check_request(request, model=self.name, settings=CAN, capabilities=self.capabilities)
        history = adapt(request, provider=provider.prefix, reads=self._reads, alternate=True)
        if history.report is not None:
            await emit(history.report)
        body = body_of(request, history.messages, self.id, model=self.name, show_thinking=provider.show_thinking)
        key = provider.key_source.key()
        verb = "streamGenerateContent" if provider.stream else "generateContent"
        exchange = provider.connection.post(
            f"{provider.models_path}/{quote(self.id, safe='')}:{verb}",
            to_json(body),
            provider.headers_with(key),
            query={"alt": "sse"} if provider.stream else None,
            timeout=request.settings.timeout,
            model=self.name,
        )
        totals = Totals(input_has_cache=True, output_has_reasoning=False)
        out = Assembler(emit, provider=provider.prefix, totals=totals)
        secrets = provider.secrets(key)
        async with exchange:
            if exchange.status != 200:
                raise await self._error(exchange, key)
            reading = Reading(self.name, out, exchange.headers, secrets, CODES)
            if "event-stream" in exchange.headers.get("content-type", ""):
                return await read_stream(exchange, reading)
            return await read_body(await exchange.read(), reading)

    def _reads(self, part: Part) -> bool:
        if isinstance(part, FilePart):
            return can_read(part, self.capabilities) is not False
        return not isinstance(part, ThinkingPart) or bool(part.text or part.signature)

    async def _error(self, exchange: Exchange, key: Secret | None) -> ModelError:
        failure = failure_of(said_in(await exchange.read_error()), exchange.status)
        secrets = self._provider.secrets(key)
        return error_of(failure, model=self.name, table=CODES, headers=exchange.headers, secrets=secrets)
