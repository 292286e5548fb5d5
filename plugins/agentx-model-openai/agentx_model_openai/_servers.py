"""Servers that speak OpenAI's dialect, and how each differs from it. What differs is declared here and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import attrs

Api = Literal["responses", "chat"]


@attrs.frozen
class Quirks:
    """Where a server differs from OpenAI's own; each may be set in `[models.<prefix>.quirks]`."""

    max_tokens: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """The chat field that limits the answer."""
    stream_usage: bool = True
    """Takes `stream_options.include_usage`."""
    null_content: bool = True
    """Takes `content: null` beside tool calls; else it is `""`."""
    unsupported: tuple[str, ...] = ()
    """Fields of `ModelSettings` that it refuses or drops silently."""
    json_schema: bool | None = None
    """Holds an answer to a JSON Schema; `None` is not known, and then it is asked to."""
    reasoning_back: Literal["", "reasoning_content", "reasoning_details"] = ""
    """The field in which it wants its reasoning back, with the calls that followed from it."""
    output_has_reasoning: bool = True
    """Counts reasoning among the tokens of the output."""
    key_header: Literal["authorization", "api-key"] = "authorization"
    stream_with_tools: bool = True
    """Streams an answer that may call tools."""
    tool_probe: str = ""
    """Path, from the server's root, of a page that says whether the model's chat template knows tools; a server that
    drops them without a word is asked before the first request that has any."""
    image_results: bool = False
    """Takes images in tool results; else they follow in a message of the user."""


@attrs.frozen
class Server:
    url: str
    """Empty: the user has to give it."""
    key_variables: tuple[str, ...] = ()
    needs_key: bool = True
    url_variable: str = ""
    url_path: str = ""
    """Put behind an address that has no path."""
    api: Api = "chat"
    quirks: Quirks = Quirks()


OPENAI = Quirks(max_tokens="max_completion_tokens", json_schema=True)
LOCAL = Quirks(unsupported=("service_tier",))

SERVERS: Mapping[str, Server] = {
    "openai": Server(
        "https://api.openai.com/v1", ("OPENAI_API_KEY",), url_variable="OPENAI_BASE_URL", api="responses", quirks=OPENAI
    ),
    "azure": Server(
        "",
        ("AZURE_OPENAI_API_KEY",),
        url_variable="AZURE_OPENAI_ENDPOINT",
        url_path="/openai/v1",
        api="responses",
        quirks=attrs.evolve(OPENAI, key_header="api-key"),
    ),
    "openai-compatible": Server("", ("OPENAI_COMPATIBLE_API_KEY",), needs_key=False),
    "deepseek": Server(
        "https://api.deepseek.com/v1",
        ("DEEPSEEK_API_KEY",),
        quirks=Quirks(
            unsupported=("seed", "service_tier", "parallel_tool_calls"),
            json_schema=False,
            reasoning_back="reasoning_content",
        ),
    ),
    "groq": Server(
        "https://api.groq.com/openai/v1", ("GROQ_API_KEY",), quirks=Quirks(max_tokens="max_completion_tokens")
    ),
    "litellm": Server("http://localhost:4000/v1", ("LITELLM_API_KEY",), needs_key=False, url_variable="LITELLM_URL"),
    "llamacpp": Server(
        "http://localhost:8080/v1",
        ("LLAMACPP_API_KEY",),
        needs_key=False,
        quirks=attrs.evolve(LOCAL, tool_probe="/props", json_schema=True),
    ),
    "llama-cpp-python": Server(
        "http://localhost:8000/v1",
        needs_key=False,
        quirks=attrs.evolve(
            LOCAL,
            null_content=False,
            stream_usage=False,
            stream_with_tools=False,
            unsupported=("service_tier", "reasoning_effort", "parallel_tool_calls"),
        ),
    ),
    "lmstudio": Server("http://localhost:1234/v1", needs_key=False, quirks=LOCAL),
    "mistral": Server(
        "https://api.mistral.ai/v1",
        ("MISTRAL_API_KEY",),
        quirks=Quirks(unsupported=("seed", "service_tier"), json_schema=True),
    ),
    "ollama": Server("http://localhost:11434/v1", needs_key=False, quirks=LOCAL),
    "openrouter": Server(
        "https://openrouter.ai/api/v1",
        ("OPENROUTER_API_KEY",),
        quirks=Quirks(reasoning_back="reasoning_details"),
    ),
    "together": Server(
        "https://api.together.xyz/v1", ("TOGETHER_API_KEY",), quirks=Quirks(unsupported=("service_tier",))
    ),
    "vllm": Server("http://localhost:8000/v1", ("VLLM_API_KEY",), needs_key=False, quirks=LOCAL),
    "xai": Server(
        "https://api.x.ai/v1",
        ("XAI_API_KEY",),
        quirks=Quirks(
            max_tokens="max_completion_tokens",
            json_schema=True,
            output_has_reasoning=False,
            unsupported=("service_tier",),
        ),
    ),
}
"""By prefix. Sources: each provider's page on its OpenAI-compatible interface."""
