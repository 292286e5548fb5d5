"""HTTP for providers: what is sent, what ends a call, and what an error says."""

from __future__ import annotations

import logging
import shutil
import ssl
import subprocess
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from agentx import (
    BadResponseError,
    ConfigError,
    ModelConnectionError,
    ModelTimeoutError,
    PermissionDeniedError,
    RequestRejectedError,
    StreamCutError,
)
from agentx.providers import Connection, Timeouts
from peers.wire import Answer, Request, WireServer, data, flat, reply, split, sse

QUICK = Timeouts(connect=2, first_byte=0.3, idle=0.3)


async def ask(connection: Connection, path: str = "/chat", **options: Any) -> tuple[int, bytes]:
    async with connection.post(path, b"{}", {"content-type": "application/json"}, **options) as exchange:
        return exchange.status, await exchange.read()


async def events(connection: Connection) -> list[bytes]:
    found: list[bytes] = []
    async with connection.post("/chat", b"{}", {}) as exchange:
        while (some := await exchange.events()) is not None:
            found += [content for _, content in some]
    return found


async def test_a_request_goes_behind_the_base_url_and_keeps_its_query() -> None:
    with WireServer([reply(200, body={"ok": True})]) as server:
        connection = Connection(f"{server.url}/openai/v1/?api-version=7")
        status, body = await ask(connection, query={"more": "a b"})
        await connection.aclose()
    assert (status, body) == (200, b'{"ok": true}')
    (request,) = server.requests
    assert (request.method, request.path) == ("POST", "/openai/v1/chat?api-version=7&more=a+b")
    assert request.headers["content-type"] == "application/json"


async def test_connections_are_pooled_until_the_client_closes() -> None:
    with WireServer([sse(*data({"n": 1}, "[DONE]"))]) as server:
        connection = Connection(server.url)
        for _ in range(3):
            await events(connection)
        assert server.connections == 1
        await connection.aclose()
        await events(connection)
        await connection.aclose()
        assert server.connections == 2


async def test_a_stream_that_is_left_at_its_end_marker_gives_its_connection_back() -> None:
    with WireServer([sse(*data({"n": 1}, "[DONE]"))]) as server:
        connection = Connection(server.url)
        for _ in range(3):
            async with connection.post("/chat", b"{}", {}) as exchange:
                await exchange.events()
        await connection.aclose()
    assert server.connections == 1


async def test_events_come_whatever_the_chunks_are() -> None:
    stream = flat(data({"n": 1}, {"n": 2}, "[DONE]"))
    with WireServer([sse(*split(stream, *range(len(stream))))]) as server:
        connection = Connection(server.url)
        assert await events(connection) == [b'{"n": 1}', b'{"n": 2}', b"[DONE]"]
        await connection.aclose()


async def test_a_users_own_client_is_used_and_stays_open() -> None:
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json={"ok": True})

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer), headers={"x-mine": "1"}) as client:
        connection = Connection("http://localhost/v1", client=client)
        assert (await ask(connection))[0] == 200
        await connection.aclose()
        assert not client.is_closed
    assert seen[0].headers["x-mine"] == "1"


async def test_a_refused_connection_is_named_by_its_phase() -> None:
    connection = Connection("http://127.0.0.1:1/v1", model="acme/big")
    with pytest.raises(ModelConnectionError, match=r"acme/big: cannot connect to 127\.0\.0\.1:1") as caught:
        await ask(connection)
    assert caught.value.retryable
    await connection.aclose()


async def test_silence_before_the_headers_is_a_timeout_of_the_first_byte() -> None:
    with WireServer(lambda request: sse("hang")) as server:
        connection = Connection(server.url, model="acme/big", timeouts=QUICK)
        with pytest.raises(ModelTimeoutError, match=r"acme/big.* nothing for 0\.3 s \(timeouts\.first_byte\)"):
            await ask(connection)
        await connection.aclose()


async def test_silence_behind_the_headers_is_a_timeout_of_the_first_byte_too() -> None:
    with WireServer([Answer(200, {"content-length": "5"}, ("hang",), chunked=False)]) as server:
        connection = Connection(server.url, timeouts=QUICK)
        with pytest.raises(ModelTimeoutError, match=r"timeouts\.first_byte"):
            await ask(connection)
        await connection.aclose()


async def test_silence_in_the_middle_is_a_timeout_of_its_own() -> None:
    with WireServer([sse(*data({"n": 1}), "hang")]) as server:
        connection = Connection(server.url, timeouts=QUICK)
        with pytest.raises(ModelTimeoutError, match=r"no more for 0\.3 s \(timeouts\.idle\)"):
            await events(connection)
        await connection.aclose()


async def test_a_long_answer_that_keeps_coming_has_no_limit() -> None:
    steps = [step for _ in range(8) for step in (b": alive\n\n", 0.1)]
    with WireServer([sse(*steps, *data({"n": 1}))]) as server:
        connection = Connection(server.url, timeouts=QUICK)
        assert await events(connection) == [b'{"n": 1}']
        await connection.aclose()


async def test_a_listener_that_is_behind_is_not_the_servers_silence() -> None:
    with WireServer([sse(*data({"n": 1}), 0.01, *data({"n": 2}))]) as server:
        connection = Connection(server.url, timeouts=QUICK)
        async with connection.post("/chat", b"{}", {}) as exchange:
            first = await exchange.events()
            await anyio.sleep(0.6)
            second = await exchange.events()
        await connection.aclose()
    assert (first, second) == ([("", b'{"n": 1}')], [("", b'{"n": 2}')])


async def test_a_limit_for_the_whole_call_counts_although_something_comes() -> None:
    steps = [step for _ in range(40) for step in (b": alive\n\n", 0.05)]
    with WireServer([sse(*steps)]) as server:
        connection = Connection(server.url, model="acme/big")
        with pytest.raises(ModelTimeoutError, match=r"acme/big took longer than 0\.4 s \(ModelSettings\.timeout\)"):
            await ask(connection, timeout=0.4)
        await connection.aclose()


@pytest.mark.parametrize("end", ["cut", "reset"])
async def test_a_connection_that_breaks_in_the_answer_is_a_cut_stream(end: Any) -> None:
    with WireServer([sse(*data({"n": 1}), 0.05, end)]) as server:
        connection = Connection(server.url, model="acme/big")
        with pytest.raises(StreamCutError, match=r"acme/big: the connection .* broke in the middle"):
            await events(connection)
        await connection.aclose()


async def test_a_connection_that_breaks_before_the_answer_is_a_connection_error() -> None:
    def gone(request: Request) -> Any:
        raise ConnectionResetError

    with WireServer(gone) as server:
        connection = Connection(server.url)
        with pytest.raises(ModelConnectionError, match="broke before the answer"):
            await ask(connection)
        await connection.aclose()


async def test_cancelling_closes_the_connection_and_stays_a_cancellation() -> None:
    with WireServer([sse(*data({"n": 1}), "hang")]) as server:
        connection = Connection(server.url)
        with anyio.move_on_after(0.3) as scope:
            await events(connection)
        assert scope.cancelled_caught
        await events_of_another(connection, server)
        await connection.aclose()


async def events_of_another(connection: Connection, server: WireServer) -> None:
    server.requests.clear()
    with pytest.raises(TimeoutError), anyio.fail_after(0.2):
        await events(connection)
    assert len(server.requests) == 1


async def test_the_bodys_own_error_passes() -> None:
    with WireServer([sse(*data({"n": 1}), "hang")]) as server:
        connection = Connection(server.url, timeouts=QUICK)
        with pytest.raises(KeyError):
            async with connection.post("/chat", b"{}", {}):
                raise KeyError("mine")
        await connection.aclose()


async def test_a_body_that_is_too_large_is_refused() -> None:
    with WireServer([reply(200, body=b"x" * 5000)]) as server:
        connection = Connection(server.url)
        with pytest.raises(BadResponseError, match="more than 1000 bytes"):
            async with connection.post("/chat", b"{}", {}) as exchange:
                await exchange.read(1000)
        await connection.aclose()


async def test_an_error_body_that_breaks_is_read_as_far_as_it_comes() -> None:
    with WireServer([sse(b"half of", 0.02, "cut")]) as server:
        connection = Connection(server.url)
        async with connection.post("/chat", b"{}", {}) as exchange:
            assert await exchange.read_error() == b"half of"
        await connection.aclose()


async def test_a_compressed_answer_is_unpacked() -> None:
    import gzip

    packed = gzip.compress(flat(data({"n": 1})))
    with WireServer([reply(200, {"content-encoding": "gzip", "content-type": "text/event-stream"}, packed)]) as server:
        connection = Connection(server.url)
        assert await events(connection) == [b'{"n": 1}']
        await connection.aclose()


async def test_a_header_that_is_no_text_is_refused_without_showing_it() -> None:
    connection = Connection("http://127.0.0.1:1", model="acme/big")
    with pytest.raises((RequestRejectedError, ModelConnectionError)) as caught:
        async with connection.post("/chat", b"{}", {"authorization": "Bearer SECRET\r\nx: y\u20ac"}):
            pass
    assert "SECRET" not in f"{caught.value!r} {caught.value.__cause__!r} {caught.value.__context__!r}"
    await connection.aclose()


@pytest.mark.parametrize("url", ["", "api.example.com", "ftp://example.com", "http://", "http://user:SECRET@"])
def test_what_is_no_address_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(ConfigError, match="base_url") as caught:
        Connection(url)
    assert "SECRET" not in str(caught.value)


async def test_no_request_leaves_the_machine_where_that_is_not_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTX_ALLOW_MODEL_REQUESTS", "0")
    connection = Connection("https://api.example.com/v1?key=SECRET", model="acme/big")
    with pytest.raises(PermissionDeniedError, match=r"acme/big: .*api\.example\.com.* AGENTX_ALLOW.* is 0"):
        await ask(connection)
    with WireServer([reply(200, body={})]) as server:
        mine = Connection(server.url)
        assert (await ask(mine))[0] == 200
        await mine.aclose()


async def test_a_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTX_ALLOW_MODEL_REQUESTS", "1")
    for name in ("no_proxy", "NO_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with WireServer([reply(200, body={})]) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        connection = Connection("http://api.example.test/v1")
        assert (await ask(connection))[0] == 200
        await connection.aclose()
    assert proxy.requests[0].path == "http://api.example.test/v1/chat"


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate of this machine that nobody trusts, and its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")
    made, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(made)]
    subprocess.run(command, check=True, capture_output=True)
    return made, key


async def test_certificates_of_the_environment_are_trusted_and_others_not(
    certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    with WireServer([reply(200, body={})], tls=context) as server:
        connection = Connection(server.url)
        with pytest.raises(ModelConnectionError, match="certificate verify failed"):
            await ask(connection)
        await connection.aclose()
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
        assert (await ask(connection))[0] == 200
        await connection.aclose()


async def test_what_an_address_holds_is_in_no_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with WireServer([reply(200, body={})]) as server:
        connection = Connection(f"{server.url.replace('://', '://me:SECRET2@')}/v1?key=SECRET3")
        await ask(connection)
        await connection.aclose()
    assert server.requests[0].path == "/v1/chat?key=SECRET3"
    assert "HTTP Request: POST" in caplog.text
    assert "SECRET" not in caplog.text


def test_a_connection_serves_one_event_loop_after_the_other() -> None:
    with WireServer([reply(200, body={})]) as server:
        connection = Connection(server.url)

        async def once() -> None:
            await ask(connection)
            await connection.aclose()

        anyio.run(once)
        anyio.run(once, backend="trio")
        assert len(server.requests) == 2


@pytest.mark.parametrize("field", ["connect", "first_byte", "idle"])
def test_a_timeout_is_more_than_nothing(field: str) -> None:
    with pytest.raises(ValueError, match=f"{field} must be more than 0 seconds"):
        Timeouts(**{field: 0})
