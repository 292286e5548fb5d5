"""Ask a child process about plugins, so that one that raises, exits, prints or hangs is a row and not a crash.

The child writes each plugin it starts with, and the answer, as lines of a file; its own output goes nowhere. If it dies
or stands still, the plugin it was at is the culprit: it has failed, and a new child goes on with the others.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import attrs

from agentx._errors import AgentxError

from ._agents import Choice
from ._exits import Exit

LIMIT = 20.0
"""Seconds one plugin may take."""
_CODE = (
    "import sys, json; q = json.load(open(sys.argv[1])); sys.path[:] = q['path']; "
    "from agentx.cli import _inside; _inside.answer(q)"
)


class ChildError(AgentxError):
    """What went wrong inside, with its own code and exit code."""

    def __init__(self, message: str, code: str, exit_code: int, notes: list[str]) -> None:
        super().__init__(message)
        self.code = code  # type: ignore[misc]  # that of the error it stands for
        self.exit_code = exit_code
        for note in notes:
            self.add_note(note)


class ChildDied(AgentxError):
    """The child ended without an answer, and it was at no plugin."""

    code = "child"
    exit_code = Exit.FAILED


def ask(task: str, choice: Choice, *, limit: float = LIMIT, **options: Any) -> Any:
    """Have a child load the plugins, and return its answer to `task`.

    Args:
        task: a function of `_inside.TASKS`.
        limit: seconds one plugin may take.
        options: what the task wants to know, as JSON values.

    Raises:
        ChildError: the configuration, the order or something else that is no single plugin's.
    """
    failed: dict[str, str] = {}
    while True:
        question = {
            "path": sys.path,
            "task": task,
            "choice": attrs.asdict(choice),
            "options": options,
            "failed": failed,
        }
        with tempfile.TemporaryDirectory(prefix="agentx-") as folder:
            ending = _run(question, Path(folder), limit)
            said = list(_lines(Path(folder, "said")))
            complaint = _last_line(Path(folder, "stderr"), said[-1].get("complaints", 0) if said else 0)
        if said and "answer" in said[-1]:
            return said[-1]["answer"]
        if said and "error" in said[-1]:
            raise ChildError(**said[-1]["error"])
        culprit = said[-1].get("at", "") if said else ""
        reason = f"{ending}{f': {complaint}' if complaint else ''}"
        if not culprit or culprit in failed:
            raise ChildDied(f"the process that loads plugins {reason}")
        failed[culprit] = reason


def _run(question: Mapping[str, Any], folder: Path, limit: float) -> str:
    """Run a child until it ends or has said nothing for `limit` seconds; return how it ended."""
    asked, said, stderr = folder / "asked", folder / "said", folder / "stderr"
    asked.write_text(json.dumps({**question, "said": str(said), "complaints": str(stderr)}))
    with stderr.open("wb") as complaints, _child(asked, complaints) as process:
        size, deadline = -1, time.monotonic() + limit
        while process.poll() is None:
            grown = said.stat().st_size if said.exists() else 0
            if grown != size:
                size, deadline = grown, time.monotonic() + limit
            elif time.monotonic() > deadline:
                return f"took longer than {limit:g} s"
            _wait(process, 0.05)
        return _ending(process.returncode)


def _wait(process: subprocess.Popen[bytes], seconds: float) -> None:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return


@contextmanager
def _child(asked: Path, complaints: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-c", _CODE, str(asked)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=complaints,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            _kill(process)
        process.wait()


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the child and, where the system has process groups, what it started."""
    if hasattr(os, "killpg"):
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()


def _ending(code: int) -> str:
    if code < 0:
        names = {int(one): one.name for one in signal.Signals}
        return f"ended its process by {names.get(-code, f'signal {-code}')}"
    return f"ended its process with exit code {code}"


def _lines(file: Path) -> Iterator[dict[str, Any]]:
    if file.exists():
        for line in file.read_text(encoding="utf-8").splitlines():
            yield json.loads(line)


def _last_line(file: Path, start: int) -> str:
    """Return the last line of what the child complained since `start`, which is often the reason of its end."""
    text = file.read_bytes()[start:].decode("utf-8", "replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""
