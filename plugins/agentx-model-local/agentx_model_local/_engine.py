"""One model in a child process: asked one request at a time, stopped when the asker is cancelled."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import IO, Any

import anyio
import anyio.abc
import anyio.lowlevel
import attrs
from anyio.streams.buffered import BufferedByteReceiveStream

from agentx import ContextWindowError, RequestRejectedError

from ._errors import EngineError, RuntimeMissingError, WeightsCorruptError

WORKER = Path(__file__).with_name("_worker.py")
MAX_LINE = 1 << 26
GRACE = 1.0
"""Seconds a cancelled request may take to reach its next token before its process is ended."""

Listener = Callable[[str, str], Awaitable[None]]
"""Takes the kind (`text` or `thinking`) and the piece."""


async def no_listener(kind: str, piece: str) -> None:
    return None


@attrs.define(eq=False)
class Engine:
    """A model that is loaded at the first request and stays loaded until `aclose`.

    Args:
        kind: `needle` or `llama`, what `_worker` calls its engines.
        package: what that engine imports.
        options: what that engine is built from; known only when the weights are looked up, so a function.
        interruptible: whether a running request listens to a cancel message; else the process is ended.
    """

    kind: str
    package: str
    options: Callable[[], Mapping[str, Any]]
    interruptible: bool = True
    _lock: anyio.Lock | None = None
    _loop: object = None
    _process: _Process | None = None

    async def ask(self, request: Mapping[str, Any], listener: Listener = no_listener) -> dict[str, Any]:
        """Send `request`, give the pieces of its answer to `listener` and return the whole of it."""
        async with self._turn():
            if self._process is None:
                self._process = await _Process.start(self.kind, require(self.package, self.options))
            try:
                return await self._process.ask(request, listener)
            finally:
                await self._settle(self._process)

    async def aclose(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            await process.close()

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        loop = anyio.lowlevel.current_token()
        if self._lock is None or self._loop != loop:
            self._forget()
            self._lock, self._loop = anyio.Lock(), loop
        async with self._lock:
            yield

    def _forget(self) -> None:
        """Drop a process that belongs to another event loop, which is over: its streams cannot be used in this one."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()

    async def _settle(self, process: _Process) -> None:
        """Bring the process back to rest after a request that was cancelled or failed, or end it."""
        if not process.is_busy:
            return
        with anyio.CancelScope(shield=True):
            if not (self.interruptible and await process.interrupt()):
                self._process = None
                await process.close()


def require(package: str, options: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the options, or raise the error that says what is missing."""
    if not is_installed(package):
        where = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
        name = package.replace("_", "-")
        raise RuntimeMissingError(
            f"the runtime {name} is not installed: run `pip install {name}`; it has prebuilt wheels for common "
            f"platforms only, and this one is {where}"
        )
    return options()


def is_installed(package: str) -> bool:
    """Whether `package` can be imported, found out without importing it."""
    return importlib.util.find_spec(package) is not None


@attrs.define(eq=False)
class _Process:
    _process: anyio.abc.Process
    _lines: BufferedByteReceiveStream
    _log: IO[bytes]
    is_busy: bool = True
    _is_sent: bool = False

    @classmethod
    async def start(cls, kind: str, options: Mapping[str, Any]) -> _Process:
        threads = str(options.get("threads", 1))
        log = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the process; closed in `close`
        try:
            process = await anyio.open_process(
                [sys.executable, "-P", str(WORKER), kind, json.dumps(dict(options))],
                stderr=log,
                env={**os.environ, "RAYON_NUM_THREADS": threads, "OMP_NUM_THREADS": threads},
                start_new_session=True,  # a Ctrl-C ends the turn, not the loaded model
            )
        except OSError as error:
            log.close()
            raise EngineError(f"{sys.executable!r} cannot be started to run the model: {error}") from error
        assert process.stdout is not None
        started = cls(process, BufferedByteReceiveStream(process.stdout), log)
        try:
            await started._receive()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await started.close()
            raise
        started.is_busy = False
        return started

    async def ask(self, request: Mapping[str, Any], listener: Listener) -> dict[str, Any]:
        self.is_busy, self._is_sent = True, False
        await self._send(request)
        self._is_sent = True
        while True:
            message = await self._receive()
            if "done" in message:
                self.is_busy = False
                return dict(message["done"])
            for kind, piece in message.items():
                await listener(kind, piece)

    async def interrupt(self) -> bool:
        """Ask the running request to end; return whether it did within the grace."""
        if not self._is_sent:
            return False
        with anyio.move_on_after(GRACE), suppress(Exception):  # whatever fails, the process is ended instead
            await self._send({"op": "cancel"})
            while "done" not in await self._receive():
                pass
            self.is_busy = False
        return not self.is_busy

    async def close(self) -> None:
        """End the process and release its pipes."""
        with anyio.CancelScope(shield=True):
            self.kill()
            await self._process.aclose()
        self._log.close()

    def kill(self) -> None:
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGTERM if os.name == "nt" else signal.SIGKILL)

    async def _send(self, request: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            await self._process.stdin.send(json.dumps(dict(request)).encode() + b"\n")
        except (anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            raise await self._died() from error

    async def _receive(self) -> dict[str, Any]:
        try:
            line = await self._lines.receive_until(b"\n", MAX_LINE)
        except (anyio.IncompleteRead, anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError) as error:
            raise await self._died() from error
        message: dict[str, Any] = json.loads(line)
        if "error" in message:
            self.is_busy = False
            raise self._error(message)
        return message

    def _error(self, message: Mapping[str, Any]) -> Exception:
        text, kind = message["error"], message["type"]
        if kind == "corrupt":
            return WeightsCorruptError(
                f"the weights are damaged ({text}): delete the file and run `agentx models pull local`"
            )
        if kind == "import":
            return RuntimeMissingError(f"the runtime of this model cannot be loaded on this machine: {text}")
        if kind == "exceed_context_size_error":
            return ContextWindowError(f"the conversation does not fit the model: {text}")
        if kind == "invalid_request_error":
            return RequestRejectedError(f"the model's runtime refused the request: {text}")
        return EngineError(f"the model's process failed: {text}{self._logged()}")

    async def _died(self) -> EngineError:
        with anyio.move_on_after(GRACE):
            await self._process.wait()
        code = self._process.returncode
        return EngineError(
            f"the model's process ended (exit code {code}); the next call starts it again{self._logged()}"
        )

    def _logged(self) -> str:
        """Return the last lines the runtime wrote to its standard error, where the reason often stands."""
        if self._log.closed:
            return ""
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - 500))
        lines = [line for line in self._log.read().decode("utf-8", "replace").splitlines() if line.strip()]
        return "".join([f"\n  {line}" for line in lines[-3:]])
