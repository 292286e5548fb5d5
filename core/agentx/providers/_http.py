"""HTTP for providers, and the only module of the project that imports httpx.

A `Connection` is made without I/O; its pooled client comes with the first request, in the event loop of that request.
There is no limit for a whole call unless `ModelSettings.timeout` sets one: an answer may take an hour as long as
something comes. What is limited is silence, in three phases (`Timeouts`).
"""

from __future__ import annotations

import functools
import ipaddress
import math
import os
import re
import ssl
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

import anyio
import attrs
import httpx

from agentx._errors import (
    BadResponseError,
    ConfigError,
    ModelConnectionError,
    ModelError,
    ModelTimeoutError,
    PermissionDeniedError,
    RequestRejectedError,
    StreamCutError,
)
from agentx._host import loop_clock, loop_token

from ._sse import Event, SSEDecoder

ALLOW = "AGENTX_ALLOW_MODEL_REQUESTS"
MAX_BODY = 256 * 1024 * 1024
MAX_ERROR_BODY = 64 * 1024
_LINE_END = re.compile(r"[\r\n\0]")
_GRACE = 1.0
_DRAIN = 0.1
_HEADERS = {"user-agent": "agentx"}
_LIMITS = httpx.Limits(max_connections=1000, max_keepalive_connections=100, keepalive_expiry=30)


def _positive(_: Any, attribute: attrs.Attribute[Any], value: float) -> None:
    if not value > 0:
        raise ValueError(f"{attribute.name} must be more than 0 seconds, not {value}")


@attrs.frozen
class Timeouts:
    """Seconds of silence that are too many."""

    connect: float = attrs.field(default=10.0, validator=_positive)
    first_byte: float = attrs.field(default=600.0, validator=_positive)
    """From the request to the first byte of the answer's body; a plain answer comes only when it is whole."""
    idle: float = attrs.field(default=120.0, validator=_positive)
    """Between two pieces of the answer; a keep-alive is one."""


class Connection:
    """The way to one provider's server.

    Args:
        base_url: a path given to `post` is put behind it; its query stays.
        model: begins the messages of errors.
        client: the user's own, which stays open.
    """

    def __init__(
        self,
        base_url: str,
        *,
        model: str = "",
        timeouts: Timeouts | None = None,
        client: httpx.AsyncClient | None = None,
    ) -> None:
        self.base_url = _checked_url(base_url)
        self.model = model
        self.timeouts = timeouts or Timeouts()
        self._given = client
        self._client: httpx.AsyncClient | None = None
        self._loop: Any = None

    def fresh(self) -> Connection:
        """Return another way to the same server, with a client of its own unless the user gave one."""
        return Connection(self.base_url_text, model=self.model, timeouts=self.timeouts, client=self._given)

    @property
    def base_url_text(self) -> str:
        return str(self.base_url)

    def url(self, path: str, query: Mapping[str, str] | None = None) -> httpx.URL:
        """Return the URL of an endpoint: `path` behind the base URL's own, or from the root if it begins with `//`."""
        base = self.base_url
        root = base.raw_path.partition(b"?")[0].rstrip(b"/")
        raw_path = path[1:].encode() if path.startswith("//") else root + path.encode()
        url = base.copy_with(raw_path=raw_path)
        params = {**dict(base.params), **(query or {})}
        return url.copy_merge_params(params) if params else url

    def post(
        self,
        path: str,
        body: bytes,
        headers: Mapping[str, str],
        *,
        query: Mapping[str, str] | None = None,
        timeout: float | None = None,
        model: str = "",
    ) -> Exchange:
        """Return the exchange of one request, to be entered with `async with`.

        Args:
            timeout: seconds for the whole of it.
            model: in place of the connection's own in errors.
        """
        return self._exchange("POST", path, body, headers, query, timeout, model)

    def get(
        self, path: str, headers: Mapping[str, str], *, query: Mapping[str, str] | None = None, model: str = ""
    ) -> Exchange:
        return self._exchange("GET", path, None, headers, query, None, model)

    def _exchange(
        self,
        method: str,
        path: str,
        body: bytes | None,
        headers: Mapping[str, str],
        query: Mapping[str, str] | None,
        timeout: float | None,
        model: str,
    ) -> Exchange:
        url = self.url(path, query)
        name = model or self.model or url.host
        _check_allowed(url, name)
        limits = self.timeouts
        waits = {"connect": limits.connect, "read": limits.first_byte, "write": limits.idle, "pool": None}
        client = self._pool()
        bad = next((header for header, value in headers.items() if not value.isascii() or _LINE_END.search(value)), "")
        if bad:  # httpx would show it
            raise RequestRejectedError(f"{name}: the header {bad!r} has a line end or a character beyond ASCII")
        request = client.build_request(method, url, content=body, headers=headers, extensions={"timeout": waits})
        if url.query or url.userinfo:
            request.url = _QuietURL(url)
        return Exchange(client, request, limits, timeout, name)

    def _pool(self) -> httpx.AsyncClient:
        if self._given is not None:
            return self._given
        loop = loop_token()
        if self._client is None or self._loop != loop:  # one of a loop that is gone cannot be closed any more
            certificates = _certificates(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))
            client = httpx.AsyncClient(verify=certificates, headers=_HEADERS, limits=_LIMITS, timeout=None)
            self._client, self._loop = client, loop
        return self._client

    async def aclose(self) -> None:
        """Close the client if it is ours; the next request makes another."""
        client, self._client = self._client, None
        if client is not None and self._loop == loop_token():
            await client.aclose()


class _QuietURL(httpx.URL):
    """Shows no query: a key may stand in it, and httpx logs the URL of every request."""

    def __str__(self) -> str:
        return shown_url(super().__str__())


def shown_url(url: str) -> str:
    """Return a URL without what may be secret in it: user, password and query."""
    head, slashes, rest = url.partition("?")[0].partition("://")
    host, slash, path = rest.partition("/")
    return f"{head}{slashes}{host.rpartition('@')[2]}{slash}{path}"


class Exchange:
    """One request and its answer; `async with` sends the one and gives back the connection of the other.

    Within, `status` and `headers` (names in lower case) are there, and the body is read by `events`, `chunk` or `read`.
    """

    def __init__(
        self,
        client: httpx.AsyncClient,
        request: httpx.Request,
        timeouts: Timeouts,
        timeout: float | None,
        model: str,
    ) -> None:
        self._client = client
        self._request = request
        self._timeouts = timeouts
        self._total = timeout
        self._model = model
        self._silence = anyio.CancelScope()
        self._whole = anyio.CancelScope()
        self._now: Callable[[], float] = anyio.current_time
        self._response: httpx.Response | None = None
        self._body: Any = None
        self._ended = False
        self._phase = "first byte"
        self._decoder = SSEDecoder()
        self.status = 0
        self.headers: Mapping[str, str] = {}

    async def __aenter__(self) -> Exchange:
        self._now = loop_clock()
        if self._total is not None:
            self._whole.deadline = self._now() + self._total
        self._whole.__enter__()
        self._silence.__enter__()
        try:
            await self._send()
        except BaseException as error:
            failure = self._leave(type(error), error, error.__traceback__)
            if failure is not None:
                raise failure from None
            raise
        return self

    async def _send(self) -> None:
        waits = self._timeouts
        self._silence.deadline = self._now() + waits.connect + waits.first_byte + _GRACE
        try:
            response = await self._client.send(self._request, stream=True, follow_redirects=False)
        except httpx.HTTPError as error:
            raise self._failure(error) from error
        except (httpx.InvalidURL, httpx.CookieConflict, ValueError, TypeError) as error:
            raise ModelConnectionError(f"{self._model}: the request cannot be sent: {type(error).__name__}") from None
        self._response = response
        self._request.extensions["timeout"]["read"] = None  # from here on `chunk` limits, by the phase it is in
        self.status = response.status_code
        self.headers = {name.lower(): value for name, value in response.headers.items()}
        encoded = response.headers.get("content-encoding")
        stream: Any = response.aiter_bytes() if encoded else response.stream
        self._body = stream.__aiter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._silence.deadline = math.inf
        if error is None and not self._ended:
            await self._drain()
        if self._response is not None:
            with anyio.CancelScope(shield=True):
                await self._response.aclose()
                if not self._ended:
                    await self._exhaust()
        failure = self._leave(kind, error, traceback)
        if failure is not None:
            raise failure from None

    def _leave(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> ModelError | None:
        """Leave both scopes; return what it means if one of them was what ended the body."""
        self._silence.__exit__(kind, error, traceback)
        silent = self._silence.cancelled_caught
        if silent:
            kind = error = traceback = None
        self._whole.__exit__(kind, error, traceback)
        if self._whole.cancelled_caught:
            return ModelTimeoutError(f"{self._model} took longer than {self._total:g} s (ModelSettings.timeout)")
        if silent:
            if self._phase == "idle":
                return ModelTimeoutError(f"{self._model} sent no more for {self._timeouts.idle:g} s (timeouts.idle)")
            waited = self._timeouts.first_byte
            return ModelTimeoutError(f"{self._model} sent nothing for {waited:g} s (timeouts.first_byte)")
        return None

    async def chunk(self) -> bytes | None:
        """Return the next piece of the body; `None` at its end.

        Raises:
            StreamCutError: the connection broke in the middle of it.
            ModelTimeoutError: nothing came for too long.
        """
        waits = self._timeouts
        wait = waits.idle if self._phase == "idle" else waits.first_byte
        self._silence.deadline = self._now() + wait
        try:
            piece: bytes = await self._body.__anext__()
        except StopAsyncIteration:
            self._ended = True
            return None
        except httpx.HTTPError as error:
            raise self._failure(error) from error
        finally:
            self._silence.deadline = math.inf
        self._phase = "idle"
        return piece

    async def events(self) -> list[Event] | None:
        """Return the server-sent events that have come, at least one; `None` at the end of the body."""
        while (piece := await self.chunk()) is not None:
            found = self._decoder.feed(piece)
            if found:
                return found
        return None

    async def read(self, limit: int = MAX_BODY) -> bytes:
        """Return the whole body.

        Raises:
            BadResponseError: it is larger than `limit`.
        """
        pieces: list[bytes] = []
        size = 0
        while (piece := await self.chunk()) is not None:
            pieces.append(piece)
            size += len(piece)
            if size > limit:
                raise BadResponseError(f"{self._model} answered with more than {limit} bytes", status=self.status)
        return b"".join(pieces)

    async def read_error(self) -> bytes:
        """Return the beginning of the body of an answer that is an error, as far as it comes."""
        pieces: list[bytes] = []
        size = 0
        try:
            while size < MAX_ERROR_BODY and (piece := await self.chunk()) is not None:
                pieces.append(piece)
                size += len(piece)
        except (ModelError, OSError):  # the status says enough
            pass
        return b"".join(pieces)[:MAX_ERROR_BODY]

    async def _drain(self) -> None:
        """Read what follows the end marker of a stream, which is hardly ever anything: then the connection stays."""
        with anyio.move_on_after(_DRAIN):
            try:
                while await self.chunk() is not None:
                    pass
            except ModelError:  # the answer is there
                self._ended = True

    async def _exhaust(self) -> None:
        """Bring the generators inside the body to their end, which a closed connection does at once.

        Closing the outer one would leave those within to the garbage collector, and trio complains about that.
        """
        with anyio.move_on_after(_DRAIN):
            try:
                while True:
                    await self._body.__anext__()
            except Exception:
                self._ended = True

    def _failure(self, error: httpx.HTTPError) -> ModelError:
        """Return a transport's error by the phase it happened in; its own words hold at most an address."""
        host = self._request.url.host
        port = self._request.url.port
        where = f"{host}:{port}" if port else host
        words = _words(error)
        said = f": {words}" if words else ""
        if isinstance(error, httpx.ConnectTimeout):
            return ModelTimeoutError(f"{self._model}: no connection to {where} within {self._timeouts.connect:g} s")
        if isinstance(error, httpx.ReadTimeout):
            return ModelTimeoutError(
                f"{self._model}: {where} sent nothing for {self._timeouts.first_byte:g} s (timeouts.first_byte)"
            )
        if isinstance(error, httpx.TimeoutException):
            return ModelTimeoutError(f"{self._model}: {where} takes no more of the request")
        if isinstance(error, httpx.ConnectError | httpx.ProxyError | httpx.UnsupportedProtocol):
            return ModelConnectionError(f"{self._model}: cannot connect to {where}{said}")
        if self._phase == "idle" or self._response is not None:
            return StreamCutError(f"{self._model}: the connection to {where} broke in the middle of the answer{said}")
        if isinstance(error, httpx.DecodingError):
            return BadResponseError(f"{self._model}: the answer of {where} cannot be decompressed")
        return ModelConnectionError(f"{self._model}: the connection to {where} broke before the answer{said}")


def _words(error: BaseException | None) -> str:
    """Return what an error says, or what is behind it; trio's own say nothing."""
    while error is not None:
        words = " ".join(str(error).split())[:200]
        if words:
            return words
        error = error.__cause__ or error.__context__
    return ""


@functools.lru_cache(maxsize=4)
def _certificates(file: str | None, folder: str | None) -> ssl.SSLContext:
    """Return what httpx trusts under these variables; reading it takes 30 ms, too long for each opening of an agent."""
    return httpx.create_ssl_context()


def _checked_url(text: str) -> httpx.URL:
    """Return a base URL.

    Raises:
        ConfigError: it is none; it is not shown whole, it may hold a password.
    """
    try:
        url = httpx.URL(text)
    except (httpx.InvalidURL, TypeError):
        raise ConfigError("base_url is no URL such as https://api.example.com/v1") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise ConfigError(f"base_url is not http:// or https:// and a host: it has the scheme {url.scheme!r}")
    return url


def _check_allowed(url: httpx.URL, model: str) -> None:
    """Refuse what leaves this machine where `AGENTX_ALLOW_MODEL_REQUESTS=0` says so.

    Raises:
        PermissionDeniedError: naming the variable.
    """
    if os.environ.get(ALLOW, "").strip().lower() not in ("0", "false", "no", "off") or _is_loopback(url.host):
        return
    raise PermissionDeniedError(
        f"{model}: a request to {url.host} is not allowed, {ALLOW} is {os.environ[ALLOW]}: use a ScriptedModel, a "
        f"server on this machine, or set {ALLOW}=1"
    )


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
