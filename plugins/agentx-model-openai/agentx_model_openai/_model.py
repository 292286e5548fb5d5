"""A model of OpenAI, or of a server that speaks its dialect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from agentx import (
    Emit,
    FilePart,
    Message,
    ModelError,
    ModelRequest,
    ModelResponse,
    Part,
    ThinkingPart,
)
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
    shown_url,
    to_json,
)

from . import _chat_answer, _chat_request, _responses_answer, _responses_request
from ._errors import CODES, failure_in
from ._files import chat_can_read, is_text, responses_can_read
from ._probe import check_tools
from ._provider import Credentials, OpenAIProvider


class OpenAIModel:
    """A model behind OpenAI's interface, or one like it.

    Args:
        id: what the server calls it, such as `gpt-5`.
        api_key: by default from the environment or the keyring.
        base_url: up to and without `/chat/completions` or `/responses`; `{model}` in it is the model's id.
        api: `responses`, `chat`, or what suits model and server.
        server: whose dialect it is, such as `openai`, `openai-compatible` or `vllm`.
        client: an `httpx.AsyncClient` of your own, which stays open.
        provider: has all of that already.
        settings: more fields of `OpenAIProvider`.
    """

    def __init__(
        self,
        id: str,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        api: Literal["auto", "responses", "chat"] = "auto",
        server: str = "openai",
        headers: Mapping[str, str] | None = None,
        timeouts: Timeouts | None = None,
        client: Any = None,
        provider: OpenAIProvider | None = None,
        **settings: Any,
    ) -> None:
        self.id = id
        self._is_own = provider is None
        self._provider = provider or OpenAIProvider(
            prefix=server,
            provider=server,
            api_key=api_key,
            base_url=base_url,
            api=api,
            headers=headers or {},
            timeouts=timeouts or Timeouts(),
            client=client,
            **settings,
        )
        self.name = f"{self._provider.prefix}/{id}"
        self.api = self._provider.api_of(id)
        self.capabilities = self._provider.capabilities(id)
        self._quirks = self._provider.behaviour

    def __repr__(self) -> str:
        provider = self._provider
        return f"OpenAIModel({self.id!r}, server={provider.provider!r}, api={self.api!r}, base_url={self._shown_url!r})"

    @property
    def _shown_url(self) -> str:
        return shown_url(self._provider.url)

    @property
    def endpoint(self) -> str:
        """Where it is served."""
        return self._provider.url

    def fresh(self) -> OpenAIModel:
        """Return the same model with connections of its own."""
        made = OpenAIModel(self.id, provider=self._provider.fresh())
        made._is_own = True
        return made

    async def aclose(self) -> None:
        if self._is_own:
            await self._provider.aclose()

    async def respond(self, request: ModelRequest, emit: Emit) -> ModelResponse:
        provider, quirks = self._provider, self._quirks
        can = _chat_request.CAN if self.api == "chat" else _responses_request.CAN
        able = can.difference(quirks.unsupported)
        check_request(request, model=self._described(can), settings=able, capabilities=self.capabilities)
        credentials = provider.credentials()
        history = adapt(request, provider=provider.prefix, reads=self._reads)
        if history.report is not None:
            await emit(history.report)
        if request.tools and quirks.tool_probe:
            await check_tools(provider, self.id, self.name, credentials)
        streams = provider.stream and (quirks.stream_with_tools or not request.tools)
        exchange = provider.connection.post(
            provider.path(self.id, "/chat/completions" if self.api == "chat" else "/responses"),
            to_json(self._body(request, history.messages, stream=streams)),
            credentials.headers,
            query=provider.query,
            timeout=request.settings.timeout,
            model=self.name,
        )
        totals = Totals(output_has_reasoning=quirks.output_has_reasoning)
        out = Assembler(emit, provider=provider.prefix, totals=totals)
        async with exchange:
            if exchange.status != 200:
                raise await self._error(exchange, credentials)
            reading = Reading(self.name, out, exchange.headers, credentials.secrets, CODES)
            return await self._read(exchange, reading, streams=streams)

    def _described(self, can: Any) -> str:
        """Return the name as errors of a check show it: what Responses cannot do, Chat often can."""
        return self.name if can is _chat_request.CAN else f"{self.name} (api 'responses'; 'chat' takes more settings)"

    def _reads(self, part: Part) -> bool:
        is_chat = self.api == "chat"
        if isinstance(part, FilePart):
            if is_text(part):
                return True
            takes = chat_can_read(part) if is_chat else responses_can_read(part)
            return takes and can_read(part, self.capabilities) is not False
        if isinstance(part, ThinkingPart):
            return bool(self._quirks.reasoning_back) if is_chat else bool(part.data and part.data.get("type"))
        return not is_chat

    def _body(self, request: ModelRequest, messages: Sequence[Message], *, stream: bool) -> dict[str, Any]:
        if self.api == "chat":
            return _chat_request.body_of(request, messages, self.id, self._quirks, stream=stream)
        return _responses_request.body_of(
            request,
            messages,
            self.id,
            stream=stream,
            store=self._provider.store,
            encrypted=bool(self.capabilities.reasoning),
            summary=self._provider.reasoning_summary,
        )

    async def _read(self, exchange: Exchange, reading: Reading, *, streams: bool) -> ModelResponse:
        """Read what came: a stream if one was asked for, unless the server says that it is one JSON text."""
        is_stream = streams and "json" not in exchange.headers.get("content-type", "")
        if self.api == "chat":
            if is_stream:
                return await _chat_answer.read_stream(exchange, reading)
            return await _chat_answer.read_body(await exchange.read(), reading)
        if is_stream:
            return await _responses_answer.read_stream(exchange, reading)
        return await _responses_answer.read_body(await exchange.read(), reading)

    async def _error(self, exchange: Exchange, credentials: Credentials) -> ModelError:
        failure = failure_in(await exchange.read_error(), exchange.status)
        return error_of(failure, model=self.name, table=CODES, headers=exchange.headers, secrets=credentials.secrets)
