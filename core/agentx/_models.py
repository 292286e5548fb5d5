"""The model protocol, and how `provider/name` becomes a model."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import attrs

from ._errors import AgentxError
from ._messages import Delta, ModelRequest, ModelResponse, Report

Emit = Callable[[Delta | Report], Awaitable[None]]
"""Gives one delta to whoever listens; waits while the listener is behind."""


@attrs.frozen
class Capabilities:
    """What a model can do; `None` is not known."""

    json_schema: bool | None = None
    """Holds its answer to a JSON Schema (`ModelRequest.output`)."""
    tools: bool | None = None
    parallel_tool_calls: bool | None = None
    images: bool | None = None
    """Reads images; so for the next two."""
    audio: bool | None = None
    files: bool | None = None
    reasoning: bool | None = None
    max_context: int | None = None
    """Tokens of input and output together."""
    max_output: int | None = None


UNKNOWN = Capabilities()


@runtime_checkable
class Model(Protocol):
    """Anything that answers a request.

    `respond` gives deltas to `emit` as they come and returns the whole response; the deltas of a text part, joined,
    are that part. It may be called from several sessions at once. Errors are `ModelError` of the right kind; a stream
    that ends without its end marker is an error.

    A model may also have `capabilities`; `endpoint`, a text that tells models of one name apart by where they are
    served, for caches; `async def aclose()`, called when the agent that made it closes; and `def fresh()`, which
    returns the same model with connections of its own: an agent that is given a `Model` object uses and closes such a
    copy each time it opens.
    """

    name: str

    async def respond(self, request: ModelRequest, emit: Emit) -> ModelResponse: ...


@attrs.frozen
class ModelInfo:
    """A model that a provider can serve, as `agentx models` lists it."""

    id: str
    description: str = ""
    ready: bool = True
    """Whether it can answer now: weights are there, a key is set."""
    detail: str = ""
    """What is missing, or where it comes from; never a secret."""
    capabilities: Capabilities = UNKNOWN
    key: str = ""
    """Where the key comes from, such as `environment OPENAI_API_KEY`; never the key."""
    prices: Mapping[str, Decimal] = attrs.field(factory=dict)
    """US dollars for a million tokens, by bucket of `Usage` (`input_tokens` …)."""


class ModelProvider(Protocol):
    """What an entry point of the group `agentx.models` names; the entry point's name is the `provider/` prefix.

    It names an instance, or an attrs class. A class is made anew each time an agent opens, with `prefix=` (where it has
    such a field) and the settings of `[models.<prefix>]` as its fields, and `async def aclose()`, if it has one, is
    called when the agent closes.
    """

    def model(self, name: str) -> Model:
        """Return the model `name`, what follows the prefix. Does no I/O."""

    def models(self) -> Sequence[ModelInfo]:
        """Return what can be listed without asking a server."""


Progress = Callable[[str, int, int], None]
"""`(what, done, total)` in bytes; a total of 0 is unknown."""


@runtime_checkable
class PullsWeights(Protocol):
    """A provider whose weights `agentx models pull PREFIX` fetches."""

    def pull(self, *, source: Path | None, progress: Progress) -> Sequence[Path]:
        """Fetch the weights, from `source` if given, and return where they are. Already there: returns at once."""


def split_model_id(model_id: str) -> tuple[str, str]:
    """Return provider and name of `provider/name` or `provider:name`.

    Raises:
        AgentxError: it is neither.
    """
    for index, char in enumerate(model_id):
        if char in "/:":
            provider, name = model_id[:index], model_id[index + 1 :]
            if provider and name:
                return provider, name
            break
    raise AgentxError(f"model id {model_id!r} is not 'provider/model', such as 'local/auto'")


def capabilities_of(model: Model | Any) -> Capabilities:
    """Return what a model says that it can do."""
    found = getattr(model, "capabilities", None)
    return found if isinstance(found, Capabilities) else UNKNOWN


def model_name(model: Model | Any) -> str:
    return getattr(model, "name", None) or type(model).__name__
