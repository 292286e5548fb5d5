"""The program of the child process that holds one model.

Requests come in and answers go out as lines of JSON. It runs as a script of its own and imports nothing of agentx, so
that it starts fast. needle-rs keeps Python's global lock while it works and llama.cpp aborts the process on some broken
files: here neither can stop the agent.

    → {"op": "chat", "body": {…}}        ← {"text": "…"} …   ← {"done": {…}}   or   {"error": "…", "type": "…"}
    → {"op": "cancel"}                     a chat ends at its next token
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import queue
import secrets
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

Say = Callable[[dict[str, Any]], None]


class StopText:
    """Passes text on up to the first stop sequence, holding back what could still become one."""

    def __init__(self, stops: list[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._held = ""
        self.hit = False

    def feed(self, text: str) -> str:
        self._held += text
        found = [at for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if found:
            self.hit = True
            ready, self._held = self._held[: min(found)], ""
            return ready
        keep = max([self._overlap(stop) for stop in self._stops], default=0)
        cut = len(self._held) - keep
        ready, self._held = self._held[:cut], self._held[cut:]
        return ready

    def finish(self) -> str:
        ready, self._held = self._held, ""
        return ready

    def _overlap(self, stop: str) -> int:
        longest = min(len(stop) - 1, len(self._held))
        return next((size for size in range(longest, 0, -1) if self._held.endswith(stop[:size])), 0)


class NeedleEngine:
    """Needle 3 through needle-rs. It cannot be interrupted: the parent ends the process instead."""

    def __init__(self, options: dict[str, Any]) -> None:
        needle_rs = importlib.import_module("needle_rs")
        self._engine = needle_rs.V3Engine.load(options["path"])

    def answer(self, request: dict[str, Any], say: Say, cancelled: threading.Event) -> dict[str, Any]:
        query, tools = request["query"], request["tools"]
        if request["op"] == "confidence":
            return {"confidence": self._engine.confidence_for(query, tools, request["text"])}
        found = self._engine.generate(query, tools, constrain=True, **request["sampling"])
        output = len(found["token_ids"])
        return {
            "text": found["text"],
            "calls": found["tool_call"],
            "cut": found["stop_reason"].startswith("Max"),
            "input_tokens": found["positions"] - output,
            "output_tokens": output,
        }


class LlamaEngine:
    """Any GGUF file through llama.cpp's own server code, called in process."""

    def __init__(self, options: dict[str, Any]) -> None:
        xllamacpp = importlib.import_module("xllamacpp")
        params = xllamacpp.CommonParams()
        params.model.path = options["path"]
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = options["threads"]
        params.n_ctx = options["context"]
        params.n_parallel = 1
        params.n_threads_http = 1
        params.warmup = False
        params.cache_ram_mib = 0  # one conversation at a time: the slot's own cache is enough
        params.verbosity = 1  # errors only
        self._server = _private_server(xllamacpp, params)

    def answer(self, request: dict[str, Any], say: Say, cancelled: threading.Event) -> dict[str, Any]:
        chat = Chat(say, cancelled, request.get("stop", []))
        body = {**request["body"], "stream": True, "stream_options": {"include_usage": True}}
        self._server.handle_chat_completions(body, chat.take)
        return chat.done()


def _private_server(xllamacpp: Any, params: Any) -> Any:
    """Start the server code so that nobody else can talk to it.

    It always listens, and its endpoints show prompts: so a key nobody knows, no pages, and where the system has Unix
    sockets one whose only name is gone before this returns.
    """
    params.api_keys = [secrets.token_hex(32)]
    for name in ("ui", "webui", "endpoint_slots"):
        if hasattr(params, name):
            setattr(params, name, False)
    if os.name != "posix":
        return xllamacpp.Server(params)
    with tempfile.TemporaryDirectory(prefix="agentx-") as folder:
        socket = str(Path(folder, "s.sock"))
        if hasattr(params, "hostnames"):
            params.hostnames = [socket]
        else:
            params.hostname = socket
        return xllamacpp.Server(params)


class Chat:
    """Collects the chunks of one chat completion."""

    def __init__(self, say: Say, cancelled: threading.Event, stops: list[str]) -> None:
        self._say = say
        self._cancelled = cancelled
        self._stop = StopText(stops)
        self._calls: dict[int, dict[str, str]] = {}
        self._usage: dict[str, Any] | None = None
        self._finish: str | None = None
        self._error: dict[str, Any] | None = None
        self._pieces = 0

    def take(self, chunk: Any) -> bool:
        """Take one chunk (or a list of them) and say whether to stop."""
        for item in chunk if isinstance(chunk, list) else [chunk]:
            self._take(item)
        return self._cancelled.is_set() or self._stop.hit

    def _take(self, chunk: dict[str, Any]) -> None:
        if self._stop.hit:
            return
        self._error = chunk.get("error") or self._error
        self._usage = chunk.get("usage") or self._usage
        for choice in chunk.get("choices") or []:
            self._finish = choice.get("finish_reason") or self._finish
            delta = choice.get("delta") or {}
            if delta.get("content"):
                self._pieces += 1
                self._emit("text", self._stop.feed(delta["content"]))
            if delta.get("reasoning_content"):
                self._pieces += 1
                self._emit("thinking", delta["reasoning_content"])
            for call in delta.get("tool_calls") or []:
                self._take_call(call)

    def _take_call(self, piece: dict[str, Any]) -> None:
        call = self._calls.setdefault(piece.get("index", 0), {"name": "", "arguments": ""})
        function = piece.get("function") or {}
        call["name"] += function.get("name") or ""
        call["arguments"] += function.get("arguments") or ""

    def _emit(self, kind: str, text: str) -> None:
        if text:
            self._say({kind: text})

    def done(self) -> dict[str, Any]:
        if self._error is not None:
            raise RequestError(self._error)
        if not self._cancelled.is_set():
            self._emit("text", self._stop.finish())
        finish = "stop_sequence" if self._stop.hit else self._finish
        usage = self._usage or {"completion_tokens": self._pieces}
        return {"finish": finish, "calls": [*self._calls.values()], "usage": usage, "counted": self._usage is not None}


class RequestError(Exception):
    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(str(error.get("message") or error))
        self.kind = str(error.get("type") or "")
        self.facts = error


ENGINES: dict[str, Callable[[dict[str, Any]], Any]] = {"needle": NeedleEngine, "llama": LlamaEngine}


def checked(options: dict[str, Any]) -> dict[str, Any]:
    """Refuse a file whose hash is not the published one."""
    if expected := options.get("sha256"):
        with Path(options["path"]).open("rb") as file:
            actual = hashlib.file_digest(file, "sha256").hexdigest()
        if actual != expected:
            raise RequestError({"type": "corrupt", "message": f"sha256 is {actual}, not {expected}"})
    return options


def read_requests(inbox: queue.SimpleQueue[dict[str, Any]], cancelled: threading.Event) -> None:
    for line in sys.stdin:
        request = json.loads(line)
        if request["op"] == "cancel":
            cancelled.set()
        else:
            cancelled.clear()
            inbox.put(request)
    os._exit(0)  # the parent is gone or wants no more; a generation may be running


def serve(engine: Any, say: Say) -> None:
    inbox: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    cancelled = threading.Event()
    threading.Thread(target=read_requests, args=(inbox, cancelled), daemon=True).start()
    while True:
        request = inbox.get()
        try:
            say({"done": engine.answer(request, say, cancelled)})
        except Exception as error:  # reported to the parent, which raises it
            say(failure(error))


def failure(error: Exception) -> dict[str, Any]:
    if isinstance(error, RequestError):
        return {"error": str(error), "type": error.kind, "facts": error.facts}
    kind = "import" if isinstance(error, ImportError) else "failed"
    return {"error": f"{type(error).__name__}: {error}", "type": kind, "facts": {}}


def main() -> None:
    out = take_stdout()

    def say(message: dict[str, Any]) -> None:
        out.write(json.dumps(message) + "\n")
        out.flush()

    try:
        engine = ENGINES[sys.argv[1]](checked(json.loads(sys.argv[2])))
    except Exception as error:  # reported to the parent, which raises it
        say(failure(error))
        return
    say({"ready": True})
    serve(engine, say)


def take_stdout() -> TextIO:
    """Return the real standard output and send what a library prints there to standard error."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return out


if __name__ == "__main__":
    main()
