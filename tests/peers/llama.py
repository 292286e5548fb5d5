"""llama.cpp's own server with a small real model: OpenAI chat and Responses, and Anthropic Messages.

It runs in a process of its own, because it is C++ with threads. A model of 135 million parameters says what it likes,
so tests compare shapes and not texts; it calls a tool for sure only with `SURE_CALL` as extra body.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import attrs
import pytest

MODEL = "smollm2"
SURE_CALL: Mapping[str, Any] = {"logit_bias": [[39428, 8]]}
"""With `tool_choice="required"`, `parallel_tool_calls=False` and temperature 0."""
TEMPLATE = (
    "{%- if tools %}<|im_start|>system\nAnswer with a call of one of these tools:\n"
    "{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.content %}{{ message.content }}{% endif %}"
    "{% for call in message.tool_calls or [] %}{{ call | tojson }}{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_SERVE = """
import sys
import xllamacpp
params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.n_ctx = int(sys.argv[2])
params.n_parallel = 1
params.n_threads_http = 2
params.warmup = False
params.cache_ram_mib = 0
params.verbosity = 1
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
params.hostnames = ["127.0.0.1"]
params.port = 0
params.use_jinja = True
params.chat_template = sys.argv[3]
server = xllamacpp.Server(params)
print("ready", server.listening_address, flush=True)
sys.stdin.read()
"""


@attrs.frozen
class Llama:
    url: str
    context: int


@contextmanager
def running_llama(context: int = 4096) -> Iterator[Llama]:
    """Start one on a free port and stop it; without weights or runtime the test is skipped, or fails in CI."""
    command = [sys.executable, "-c", _SERVE, str(_weights()), str(context), TEMPLATE]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            yield Llama(_address(process), context)
        finally:
            process.kill()
            process.wait(10)


def _address(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        words = line.decode().split()
        if words[:1] == ["ready"]:
            return words[1]
    raise RuntimeError(f"llama.cpp's server did not start: exit code {process.wait(10)}")


def _weights() -> str:
    try:
        import xllamacpp  # noqa: F401  # only whether it is there

        from agentx_model_local._weights import SMOLLM2
    except ImportError as error:
        _missing(f"llama.cpp's server cannot run: {error}")
    if not SMOLLM2.is_here:
        _missing("the weights are not there: run `agentx models pull local`")
    return str(SMOLLM2.path)


def _missing(what: str) -> None:
    if os.environ.get("CI"):
        pytest.fail(what)
    pytest.skip(what)
