"""What a provider costs beside the official SDK of the same vendor, on the same local server: ratios of one run.

    python tests/benchmarks/providers.py [--rounds 5] [--only openai-chat]

The server is a process of its own that answers every request with the same bytes: a plain answer, or 5,000 deltas, each
written by itself as a real server does. Ours and the SDK take turns, each in a process of its own; a ratio is the
median over the rounds, of CPU time of the client alone.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import importlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
DELTAS = 5000
PLAIN = 100
WARM = 3
LIMITS = {"stream": 0.5, "plain": 0.7}
DIALECTS = ("openai-chat", "openai-responses", "anthropic-messages")
"""Modules of `dialects`, with `-` for `_`: each has `PLAIN` and `STREAM`, the bodies, and for ours and the SDK
`async def open(url)`, `stream(client)` and `plain(client)`, which return how many deltas or characters came."""


def dialect(name: str) -> Any:
    sys.path.insert(0, str(HERE))
    return importlib.import_module(f"dialects.{name.replace('-', '_')}")


# The server


async def serve(name: str) -> None:
    module = dialect(name)
    plain: bytes = module.PLAIN
    events: list[bytes] = [b"%x\r\n%b\r\n" % (len(event), event) for event in module.stream_events(DELTAS)]
    head = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\n%b\r\n\r\n"
    plain_head = head % (b"application/json", b"content-length: %d" % len(plain))
    stream_head = head % (b"text/event-stream", b"transfer-encoding: chunked")

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            size = 0
            while (header := await reader.readline()) not in (b"\r\n", b""):
                if header.lower().startswith(b"content-length:"):
                    size = int(header.partition(b":")[2])
            body = await reader.readexactly(size)
            if not module.is_stream(line, body):
                writer.write(plain_head + plain)
                await writer.drain()
                continue
            writer.write(stream_head)
            for event in events:
                writer.write(event)
                await asyncio.sleep(0)
            writer.write(b"0\r\n\r\n")
            await writer.drain()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await server.serve_forever()


@contextmanager
def running(name: str) -> Iterator[str]:
    command = [sys.executable, __file__, "--serve", name]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        finally:
            process.kill()


# The clients


async def measure(name: str, who: str, url: str) -> dict[str, float]:
    """Return the CPU seconds of one stream and of one plain call."""
    peer = getattr(dialect(name), who)
    client = await peer.open(url)
    found = {
        "stream": await fastest(lambda: peer.stream(client), 1, DELTAS),
        "plain": await fastest(lambda: peer.plain(client), PLAIN, 1),
    }
    await peer.close(client)
    return found


async def fastest(work: Callable[[], Awaitable[int]], many: int, least: int) -> float:
    for _ in range(WARM):
        assert await work() >= least
    samples = []
    for _ in range(5):
        gc.collect()
        start = time.process_time()
        for _ in range(many):
            assert await work() >= least
        samples.append((time.process_time() - start) / many)
    return min(samples)


def ask(name: str, who: str, url: str) -> dict[str, float]:
    command = [sys.executable, __file__, "--measure", name, who, url]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def compare(name: str, rounds: int) -> bool:
    found: list[dict[str, dict[str, float]]] = []
    with running(name) as url:
        for _ in range(rounds):
            found.append({who: ask(name, who, url) for who in ("sdk", "ours")})
    good = True
    for work, limit in LIMITS.items():
        ratio = statistics.median(one["ours"][work] / one["sdk"][work] for one in found)
        ours, theirs = (min(one[who][work] for one in found) * 1e3 for who in ("ours", "sdk"))
        verdict = "ok" if ratio <= limit else "TOO MUCH"
        times = f"{ours:8.2f} ms, SDK {theirs:8.2f} ms"
        print(f"{name:18} {work:7} {ratio:5.2f} × the SDK (limit {limit})  {verdict:9} {times}", flush=True)
        good = good and ratio <= limit
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=DIALECTS)
    parser.add_argument("--serve", choices=DIALECTS, help=argparse.SUPPRESS)
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(serve(options.serve))
    elif options.measure:
        print(json.dumps(asyncio.run(measure(*options.measure))))
    else:
        names = [name for name in DIALECTS if options.only in (None, name)]
        return 0 if sum(not compare(name, options.rounds) for name in names) == 0 else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
