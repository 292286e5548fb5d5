"""aimock (npm `@copilotkit/aimock`): scripts every dialect of a model provider, and shows what it was sent.

def test_x(aimock):
    aimock.script({"content": "Hi"}, {"toolCalls": [{"name": "add", "arguments": {"a": 1}}]})
    ...                                  # base URLs: f"{aimock.url}/v1", f"{aimock.url}/v1beta", …
    aimock.requests[0]["body"]           # as we sent it; aimock.journal() has headers and more
"""

from __future__ import annotations

import json
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import attrs

from .node import node, package

START_LIMIT = 20.0
NOTHING: Mapping[str, Any] = {"match": {"userMessage": "nobody asks this"}, "response": {"content": "nothing"}}


@attrs.frozen
class Aimock:
    url: str

    def script(self, *responses: Mapping[str, Any], **options: Any) -> None:
        """Answer the n-th request with the n-th response; any further one is refused.

        Args:
            responses: aimock's own form: `content`, `toolCalls`, `reasoning`, `error`, `finishReason`, `usage` …; the
                keys `latency`, `chunkSize`, `truncateAfterChunks`, `disconnectAfterMs`, `chaos` belong to the fixture.
            options: of every fixture, such as `chunkSize=3`.
        """
        self.reset()
        fixtures = []
        for number, response in enumerate(responses):
            own = {key: response[key] for key in FIXTURE_KEYS if key in response}
            rest = {key: value for key, value in response.items() if key not in FIXTURE_KEYS}
            fixtures.append({"match": {"sequenceIndex": number}, "response": rest, **options, **own})
        self._call("POST", "/fixtures", {"fixtures": fixtures})

    def reset(self) -> None:
        self._call("POST", "/reset")

    def journal(self) -> list[dict[str, Any]]:
        """Return every request since the last reset, with `path`, `headers`, `body` and `response`."""
        found: list[dict[str, Any]] = self._call("GET", "/journal")
        return found

    @property
    def requests(self) -> list[dict[str, Any]]:
        return [entry for entry in self.journal() if entry["method"] == "POST"]

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(f"{self.url}/__aimock{path}", data, headers, method=method)
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.loads(answer.read() or b"null")


FIXTURE_KEYS = ("latency", "chunkSize", "truncateAfterChunks", "disconnectAfterMs", "streamingProfile", "chaos")


@contextmanager
def running_aimock() -> Iterator[Aimock]:
    """Start one on a free port and stop it."""
    script = package("@copilotkit/aimock") / "dist" / "cli.js"
    with TemporaryDirectory(prefix="agentx-aimock-") as folder:
        fixtures = Path(folder, "fixtures.json")
        fixtures.write_text(json.dumps({"fixtures": [NOTHING]}), encoding="utf-8")
        command = [node(), str(script), "--port", "0", "--strict", "--log-level", "info", "--fixtures", str(fixtures)]
        log = Path(folder, "log")
        with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
            try:
                yield Aimock(_address(process, log))
            finally:
                process.terminate()
                process.wait(10)


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + START_LIMIT
    while time.monotonic() < deadline and process.poll() is None:
        for word in log.read_text(encoding="utf-8", errors="replace").split():
            if word.startswith("http://127.0.0.1:"):
                return word.rstrip("/.,")
        time.sleep(0.02)
    raise RuntimeError(f"aimock did not start: {log.read_text(encoding='utf-8', errors='replace')[-500:]}")
