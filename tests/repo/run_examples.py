"""Run the examples of one page as its reader would: one after the other, in one folder and one namespace.

    python run_examples.py PAGE.json

The file holds a list of `{"kind", "where", "line", "page", "title", "text"}`. A block with a title is written to that
file; Python without a title is executed, and what it prints must be what its `#>` comments say; the `$` lines of a
console block are run, and their output must be what stands below them. `...` in an expectation stands for anything.
"""

from __future__ import annotations

import contextlib
import io
import json
import linecache
import re
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

RUNS = ("agentx", "python", "pytest", "cat", "echo")
"""Commands that are run; others, such as `pip install`, are shown only."""


class Wrong(Exception):
    """An example does not do what the page says."""


def main(file: str) -> int:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for example in json.loads(Path(file).read_text(encoding="utf-8")):
        try:
            run(example, namespace)
        except Wrong as error:
            print(f"{example['where']}: {error}")
            return 1
    return 0


def run(example: dict[str, Any], namespace: dict[str, Any]) -> None:
    if example["title"]:
        target = Path(example["title"])
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(example["text"], encoding="utf-8")
    elif example["kind"] == "python":
        run_python(example, namespace)
    elif example["kind"] == "console":
        run_console(example["text"])


def run_python(example: dict[str, Any], namespace: dict[str, Any]) -> None:
    """Execute a block at its place in the page, so that a traceback points there."""
    text, page = "\n" * example["line"] + example["text"], example["page"]
    linecache.cache[page] = (len(text), None, text.splitlines(keepends=True), page)
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(text, page, "exec", dont_inherit=True), namespace)
    except BaseException:
        raise Wrong(f"the example raised\n{traceback.format_exc()}") from None
    compare("\n".join(re.findall(r"^\s*#> ?(.*)$", example["text"], re.MULTILINE)), printed.getvalue())


def run_console(text: str) -> None:
    for command, expected in commands(text):
        if command.split()[0] not in RUNS:
            continue
        done = subprocess.run(
            command, shell=True, text=True, capture_output=True, timeout=300, stdin=subprocess.DEVNULL
        )
        if expected and not expected.startswith("error") and done.returncode not in (0, 1, 11):
            raise Wrong(f"`{command}` left with {done.returncode}\n{done.stdout}{done.stderr}")
        if not expected and done.returncode:
            raise Wrong(f"`{command}` left with {done.returncode}\n{done.stdout}{done.stderr}")
        if expected:
            compare(expected, done.stdout + done.stderr)


def commands(text: str) -> list[tuple[str, str]]:
    """Return each `$` command with the output that is shown below it."""
    found: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif found:
            found[-1][1].append(line)
    return [(command, "\n".join(lines).strip("\n")) for command, lines in found]


def compare(expected: str, printed: str) -> None:
    """Compare what the page says with what was printed, but for white space at the ends of lines."""
    if not expected and not printed:
        return
    wanted = [line.rstrip() for line in expected.strip().splitlines()]
    got = [line.rstrip() for line in printed.strip().splitlines()]
    pattern = r"\n".join(
        ".*" if line == "..." else ".*".join(re.escape(p) for p in line.split("...")) for line in wanted
    )
    if re.fullmatch(pattern, "\n".join(got), re.DOTALL) is None:
        raise Wrong("the page says\n\n{}\n\nand this was printed\n\n{}".format("\n".join(wanted), "\n".join(got)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
