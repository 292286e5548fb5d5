"""What the loop costs beside one written by hand: ratios of CPU time from one run, and exact counts of calls.

    python tests/benchmarks/run.py [--rounds 3] [--works w1,w2]

Each work of each peer runs in a process of its own, the two in turns, several times; a ratio is the median over the
rounds. CPU time is compared, since other work on the machine takes wall time only.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import gc
import importlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from common import ASK, FINAL, Count, Script  # noqa: E402  # the folder is on the path only now

PEERS = ("bare", "agentx")
ENV = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
Numbers = dict[str, float]


async def turns(peer: Any, agent: Any, many: int, script: Script) -> float:
    """Return the CPU seconds of a turn, each in a fresh session."""
    sessions = [await peer.session(agent, f"s{time.monotonic_ns()}") for _ in range(many)]
    gc.collect()
    before, start = Count.tools, time.process_time()
    for session in sessions:
        assert await peer.turn(agent, session, ASK) == FINAL
    took = time.process_time() - start
    assert Count.tools - before == many * script.steps * script.width
    return took / many


async def fastest(peer: Any, script: Script, *, many: int, middleware: int = 0, rounds: int = 9) -> float:
    """Return the lower quartile of some samples, in µs for a turn."""
    agent = await peer.build(script, middleware=middleware)
    await turns(peer, agent, 2, script)
    samples = [await turns(peer, agent, many, script) for _ in range(rounds)]
    await peer.close(agent)
    return statistics.quantiles(samples, n=4)[0] * 1e6


async def w1(peer: Any) -> Numbers:
    return {"W1 turn, µs": await fastest(peer, Script(), many=50)}


async def w2(peer: Any) -> Numbers:
    fifty = await fastest(peer, Script(steps=50), many=4) / 50
    many = await fastest(peer, Script(steps=800), many=1, rounds=4) / 800
    return {"W2 step at 50, µs": fifty, "W2 growth 800/50": many / fifty}


async def w3(peer: Any) -> Numbers:
    return {"W3 parallel call of 32, µs": await fastest(peer, Script(steps=1, width=32), many=5) / 32}


async def w4(peer: Any) -> Numbers:
    without = await fastest(peer, Script(steps=10), many=10, rounds=15)
    wrapped = await fastest(peer, Script(steps=10), many=10, middleware=10, rounds=15)
    return {"W4 layer around model and tool, µs": (wrapped - without) / 100}


def resident(field: str) -> float:
    """Return a field of this process's memory in KB; 0 where there is no /proc."""
    status = Path("/proc/self/status")
    if not status.exists():
        return 0.0
    return float(next(line.split()[1] for line in status.read_text().splitlines() if line.startswith(field)))


async def w5(peer: Any) -> Numbers:
    count, script = 1000, Script(steps=3, delay=0.05)
    agent = await peer.build(script)
    await turns(peer, agent, 1, script)
    gc.collect()
    before, start = resident("VmRSS"), time.process_time()
    sessions = [await peer.session(agent, f"s{number}") for number in range(count)]
    answers = await asyncio.gather(*[peer.turn(agent, session, ASK) for session in sessions])
    took = time.process_time() - start
    assert answers == [FINAL] * count
    return {"W5 session, CPU µs": took / count * 1e6, "W5 session, peak KB": (resident("VmHWM") - before) / count}


async def w7(peer: Any) -> Numbers:
    code = f"import time\nstart = time.process_time()\n{peer.IMPORTS}\nprint((time.process_time() - start) * 1000)"
    found = [float(subprocess.check_output([sys.executable, "-c", code], env=ENV)) for _ in range(7)]
    return {"W7 import, ms": statistics.median(found)}


async def w8(peer: Any) -> Numbers:
    agent = await peer.build(Script(deltas=5000))
    samples = []
    for number in range(6):
        session = await peer.session(agent, f"s{number}")
        got, start = 0, time.process_time()
        async for _ in peer.stream(agent, session, ASK):
            got += 1
        samples.append((time.process_time() - start) / got)
        assert got == 5000
    await peer.close(agent)
    return {"W8 delta, µs": min(samples[1:]) * 1e6}


async def calls(peer: Any) -> Numbers:
    async def counted(script: Script, middleware: int = 0) -> int:
        agent = await peer.build(script, middleware=middleware)
        await turns(peer, agent, 2, script)
        session = await peer.session(agent, "counted")
        profile = cProfile.Profile()
        profile.enable()
        await peer.turn(agent, session, ASK)
        profile.disable()
        await peer.close(agent)
        return sum([entry.callcount for entry in profile.getstats()])

    fifty, more = await counted(Script(steps=50)), await counted(Script(steps=200))
    layers = await counted(Script(steps=10), 10) - await counted(Script(steps=10))
    return {
        "calls, turn": await counted(Script()),
        "calls, step at 50": fifty / 50,
        "calls, growth 200/50": more / 200 / (fifty / 50),
        "calls, layer": layers / 100,
    }


WORKS: dict[str, Callable[[Any], Awaitable[Numbers]]] = {
    "calls": calls,
    "w1": w1,
    "w2": w2,
    "w3": w3,
    "w4": w4,
    "w5": w5,
    "w7": w7,
    "w8": w8,
}
LIMITS = {
    "W1 turn, µs": "× 25",
    "W2 step at 50, µs": "× 8",
    "W2 growth 800/50": "1.2",
    "W3 parallel call of 32, µs": "× 4",
    "W4 layer around model and tool, µs": "× 2",
    "W5 session, CPU µs": "× 5",
    "W5 session, peak KB": "15",
    "W7 import, ms": "100",
    "W8 delta, µs": "1 µs where the bare turn takes 1.1",
    "calls, turn": "300",
    "calls, step at 50": "300",
    "calls, growth 200/50": "1.01",
}


def measured(peer: str, work: str) -> Numbers:
    command = [sys.executable, str(HERE / "run.py"), "--peer", peer, "--work", work]
    numbers: Numbers = json.loads(subprocess.check_output(command, env=ENV, text=True))
    return numbers


def table(works: list[str], rounds: int) -> None:
    print(f"| {'work':38} | {'bare':>9} | {'agentx':>9} | {'ratio':>7} | limit |\n|---|---|---|---|---|")
    for work in works:
        found = [[measured(peer, work) for peer in PEERS] for _ in range(rounds)]
        for name in found[0][0]:
            bare, ours = (statistics.median([one[index][name] for one in found]) for index in (0, 1))
            ratio = statistics.median([pair[1][name] / pair[0][name] if pair[0][name] else 0.0 for pair in found])
            print(f"| {name:38} | {bare:9.2f} | {ours:9.2f} | × {ratio:5.1f} | {LIMITS.get(name, '')} |", flush=True)


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__)
    ask.add_argument("--rounds", type=int, default=3)
    ask.add_argument("--works", default=",".join(WORKS))
    ask.add_argument("--peer", choices=PEERS)
    ask.add_argument("--work", choices=WORKS)
    args = ask.parse_args()
    if args.peer and args.work:
        peer = importlib.import_module(f"peers.{args.peer}")
        print(json.dumps(asyncio.run(WORKS[args.work](peer))))  # type: ignore[arg-type]  # every work is a coroutine
        return
    table(args.works.split(","), args.rounds)


if __name__ == "__main__":
    main()
