"""A server on a raw socket: it answers what it is told, cut, stalled or split anywhere, and keeps what it was sent.

with WireServer([sse(b'data: {"x":1}\\n\\n', b"data: [DONE]\\n\\n"), reply(429, {"retry-after": "2"})]) as server:
    ...                       # server.url; afterwards server.requests[0].json, .headers, .path
"""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Literal

import attrs

Step = bytes | float | Literal["cut", "reset", "hang"]
"""Bytes to send, seconds to wait, or how it ends: closed, reset, or open without another word."""


@attrs.frozen
class Request:
    method: str
    path: str
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@attrs.frozen
class Answer:
    status: int
    headers: dict[str, str]
    steps: tuple[Step, ...]
    chunked: bool = True


def reply(status: int, headers: dict[str, str] | None = None, body: Any = b"") -> Answer:
    """An answer in one piece; a body that is no bytes is sent as JSON."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    kind = {} if isinstance(body, bytes) else {"content-type": "application/json"}
    return Answer(status, {**kind, **(headers or {}), "content-length": str(len(content))}, (content,), chunked=False)


def sse(*steps: Step, headers: dict[str, str] | None = None) -> Answer:
    """A stream of events; every `bytes` is one chunk on the wire."""
    return Answer(200, {"content-type": "text/event-stream", **(headers or {})}, steps)


def data(*values: Any) -> list[bytes]:
    """Events of JSON values without a name, for `sse(*data(…))`; a text is sent as it is, such as `[DONE]`."""
    return [f"data: {v if isinstance(v, str) else json.dumps(v)}\n\n".encode() for v in values]


def named(*values: dict[str, Any]) -> list[bytes]:
    """Events whose name is the `type` in their JSON."""
    return [f"event: {value['type']}\ndata: {json.dumps(value)}\n\n".encode() for value in values]


def split(content: bytes, *places: int) -> list[bytes]:
    """Cut bytes at places."""
    edges = [0, *sorted(set(places)), len(content)]
    return [content[a:b] for a, b in itertools.pairwise(edges) if b > a]


Script = Sequence[Answer] | Callable[[Request], Answer]


class WireServer:
    """Answers the n-th request with the n-th answer (the last one again and again), or with what a function returns."""

    def __init__(self, script: Script, *, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self.requests: list[Request] = []
        self.connections = 0
        self._script = script
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []
        self._sockets: list[socket.socket] = []
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))

    @property
    def url(self) -> str:
        scheme = "https" if self._tls else "http"
        return f"{scheme}://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> WireServer:
        self._start(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._over.set()
        with self._lock:
            for one in (self._listener, *self._sockets):
                _close(one)
        for thread in self._threads:
            thread.join(5)

    def _start(self, target: Callable[..., None], *args: Any) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._over.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self.connections += 1
                self._sockets.append(connection)
            self._start(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        try:
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_side=True)
            with connection, connection.makefile("rb") as reader:
                while (request := _read_request(reader)) is not None:
                    with self._lock:
                        self.requests.append(request)
                        number = len(self.requests) - 1
                    script = self._script
                    answer = script(request) if callable(script) else script[min(number, len(script) - 1)]
                    if not self._send(connection, answer):
                        return
        except OSError:
            return

    def _send(self, connection: socket.socket, answer: Answer) -> bool:
        """Send an answer; `False` if the connection is over."""
        headers = {**answer.headers, **({"transfer-encoding": "chunked"} if answer.chunked else {})}
        lines = [f"HTTP/1.1 {answer.status} Scripted", *(f"{name}: {value}" for name, value in headers.items())]
        connection.sendall("\r\n".join([*lines, "", ""]).encode("latin-1"))
        for step in answer.steps:
            if isinstance(step, bytes):
                connection.sendall(b"%x\r\n%b\r\n" % (len(step), step) if answer.chunked and step else step)
            elif isinstance(step, int | float):
                self._over.wait(step)
            else:
                return self._end(connection, step)
        if answer.chunked:
            connection.sendall(b"0\r\n\r\n")
        return True

    def _end(self, connection: socket.socket, how: str) -> bool:
        if how == "hang":
            self._over.wait()
        elif how == "reset":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()
        else:
            _close(connection)
        return False


def _close(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()


def _read_request(reader: Any) -> Request | None:
    line = reader.readline().decode("latin-1").split()
    if len(line) < 2:
        return None
    headers: dict[str, str] = {}
    while (header := reader.readline().decode("latin-1").strip()) != "":
        name, _, value = header.partition(":")
        headers[name.lower()] = value.strip()
    body = reader.read(int(headers.get("content-length", 0)))
    return Request(line[0], line[1], headers, body)


def flat(pieces: Iterable[bytes]) -> bytes:
    return b"".join(pieces)
