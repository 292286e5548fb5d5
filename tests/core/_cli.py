"""The real command in a process of its own, in a folder of its own; with pipes, or at a terminal."""

from __future__ import annotations

import json
import os
import re
import select
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import attrs

import agentx

from ._installed import install

CORE = str(Path(agentx.__file__).parents[1])
COMMAND = (sys.executable, "-m", "agentx.cli")
ECHO = ("-m", "agentx.testing:EchoModel", "--no-plugins")
"""A model that answers with what it is asked."""

MODELS = """
    from agentx import ModelResponse, Plugin, RateLimitError, TextDelta, TextPart
    from agentx.testing import EchoModel, FunctionModel, ScriptedModel, call

    adds = ScriptedModel([["Let me see. ", call("add", a=1, b=2)], "The sum is 3."])
    cut = ScriptedModel([ModelResponse((TextPart("half"),), "max_tokens")])
    refuses = ScriptedModel([ModelResponse((TextPart("no"),), "refusal")])
    silent = ScriptedModel([""])
    fails = ScriptedModel([RateLimitError("too many requests")])
    steers = ScriptedModel(["\\x1b]0;owned\\x07red \\x1b[31mtext"])
    slow = EchoModel(delay=60)
    number = 3

    def answer(request):
        text = request.messages[-1].text
        return "# Title\\n\\nSome **bold** text.\\n\\n- one\\n- two" if "md" in text else f"You said {text}."

    chatty = FunctionModel(answer)

    def wait(request):
        return answer(request) if "wait" not in request.messages[-1].text else call("sleeps", seconds=60)

    waits = FunctionModel(wait)
"""
TOOLS = '''
    import anyio

    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    async def sleeps(seconds: float) -> str:
        """Wait."""
        await anyio.sleep(seconds)
        return "done"

    def _hidden() -> None: ...
'''
PLUGIN = """
    from typing import ClassVar
    from agentx import Plugin, tool

    class P(Plugin):
        id: ClassVar = "{id}"
        phase: ClassVar = "{phase}"
        limit: int = 3

        async def {hook}(self, ctx, call_next):
            {body}
"""


def plugin(
    plugin_id: str, *, hook: str = "model", phase: str = "prepare", body: str = "return await call_next()"
) -> str:
    """Return the source of a plugin with one hook."""
    return textwrap.dedent(PLUGIN.format(id=plugin_id, hook=hook, phase=phase, body=body))


@attrs.frozen
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


class Cli:
    """Runs `agentx` in a folder, beside distributions that are written as pip would."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "work"
        self.site = folder / "site"
        self._home = folder / "home"
        for path in (self.folder, self.site, self._home):
            path.mkdir()

    def write(self, name: str, text: str) -> Path:
        file = self.folder / name
        file.write_text(textwrap.dedent(text), encoding="utf-8")
        return file

    def models_and_tools(self) -> None:
        self.write("models.py", MODELS)
        self.write("tools.py", TOOLS)

    def install(self, distribution: str, entry_points: str, **modules: str) -> None:
        install(
            self.site, distribution, entry_points, **{name: textwrap.dedent(text) for name, text in modules.items()}
        )

    def environment(self, **changes: str) -> dict[str, str]:
        ours = ("AGENTX", "PYTEST", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "XDG", "TTY_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        return {
            **kept,
            "HOME": str(self._home),
            "PYTHONPATH": os.pathsep.join([str(self.site), CORE]),
            "AGENTX_MODELS_DIR": str(self._home / "models"),
            "TERM": "xterm-256color",
            **changes,
        }

    def __call__(self, *arguments: str, stdin: str = "", **environment: str) -> Done:
        done = subprocess.run(
            [*COMMAND, *arguments],
            input=stdin.encode(),
            capture_output=True,
            cwd=self.folder,
            env=self.environment(**environment),
            timeout=60,
        )
        return Done(done.returncode, done.stdout.decode(), done.stderr.decode())

    def terminal(self, *arguments: str, columns: int = 80, **environment: str) -> Terminal:
        return Terminal([*COMMAND, *arguments], self.folder, self.environment(**environment), columns)


class Terminal:
    """A command at a terminal of its own (not on Windows)."""

    def __init__(self, command: list[str], folder: Path, environment: dict[str, str], columns: int) -> None:
        import fcntl
        import pty
        import struct
        import termios

        self.seen = ""
        self._read = 0
        self._keys, other = pty.openpty()
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self._process = subprocess.Popen(
            command, stdin=other, stdout=other, stderr=other, cwd=folder, env=environment, preexec_fn=_own_terminal
        )
        os.close(other)

    def type(self, text: str) -> None:
        """Press keys, as slowly as a person: readline loses a Ctrl-C that comes while it handles another key."""
        time.sleep(0.15)
        os.write(self._keys, text.encode())

    def wait_for(self, text: str, seconds: float = 30) -> str:
        """Wait until something appears that was not there before; return what came up to it."""
        end = time.monotonic() + seconds
        while text not in self.seen[self._read :]:
            if time.monotonic() > end or not self._more():
                self._process.kill()
                raise AssertionError(f"{text!r} did not appear in {self.seen[self._read :]!r}")
        before, self._read = self._read, self.seen.index(text, self._read) + len(text)
        return self.seen[before : self._read]

    def leave(self, seconds: float = 30) -> int:
        """Read to the end and return the exit code."""
        end = time.monotonic() + seconds
        while self._more() and time.monotonic() < end:
            continue
        try:
            return self._process.wait(max(end - time.monotonic(), 1))
        finally:
            self._process.kill()
            os.close(self._keys)

    @property
    def plain(self) -> str:
        """What was seen, without what steers the terminal."""
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", self.seen).replace("\r", "")

    def _more(self) -> bool:
        if not select.select([self._keys], [], [], 0.1)[0]:
            return self._process.poll() is None
        try:
            found = os.read(self._keys, 65536)
        except OSError:  # the other end is closed
            return False
        self.seen += found.decode(errors="replace")
        return bool(found)


def _own_terminal() -> None:
    """Make the terminal the child's, so that Ctrl-C is a signal."""
    import fcntl
    import termios

    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
