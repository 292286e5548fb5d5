"""What `google/…` stands for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar
from urllib.parse import urlsplit

import attrs

from agentx import Capabilities, Model, ModelInfo
from agentx.providers import Connection, HttpProvider, Secret

LISTED: Mapping[str, str] = {
    "gemini-3-pro-preview": "the largest",
    "gemini-3-flash-preview": "fast",
    "gemini-2.5-pro": "the generation before",
    "gemini-2.5-flash": "the generation before, fast",
    "gemini-2.5-flash-lite": "the generation before, the cheapest",
}
"""Models that `agentx models` lists; any other id works too. Source: https://ai.google.dev/gemini-api/docs/models."""
_BASE = Capabilities(
    json_schema=True,
    tools=True,
    parallel_tool_calls=True,
    images=True,
    audio=True,
    files=True,
    reasoning=True,
    max_context=1_048_576,
    max_output=65_536,
)


def is_third(model: str) -> bool:
    """Whether a model is of the third generation or newer: it thinks in levels, and holds to a schema beside tools."""
    name = model.rpartition("/")[2]
    generation = name.removeprefix("gemini-").partition("-")[0].partition(".")[0]
    return name.endswith("-latest") or (generation.isdecimal() and int(generation) >= 3)


def capabilities_of(model: str) -> Capabilities:
    """Return what is known of a model; one before the third generation holds to a schema only where it has no tools."""
    name = model.rpartition("/")[2]
    if not name.startswith("gemini-"):
        return Capabilities()
    if is_third(model):
        return _BASE
    if name.startswith(("gemini-1.", "gemini-2.0")):
        return attrs.evolve(_BASE, json_schema=None, reasoning=False, max_output=8_192)
    return attrs.evolve(_BASE, json_schema=None)


@attrs.define(eq=False, kw_only=True)
class GoogleProvider(HttpProvider):
    """Google's Gemini API, or a server that speaks it at `base_url`."""

    default_url: ClassVar[str] = "https://generativelanguage.googleapis.com"
    key_variables: ClassVar[tuple[str, ...]] = ("GEMINI_API_KEY", "GOOGLE_API_KEY")

    models_path: str = "/v1beta/models"
    """What stands between the address and the model; Vertex has its projects there."""
    bearer: bool = False
    """Whether the key is an access token, for `authorization`; otherwise it stands in `x-goog-api-key`."""
    stream: bool = True
    """A streamed answer shows that the server is alive and that the answer is whole."""
    show_thinking: bool = True
    """Whether summaries of the thinking are asked for where a model thinks."""

    def model(self, name: str) -> Model:
        from ._model import GoogleModel  # it makes a provider where none is given

        return GoogleModel(name, provider=self)

    def models(self) -> Sequence[ModelInfo]:
        """Return Google's usual models, or of another server one row."""
        source = self.key_source
        origin = source.origin()
        ready = bool(origin) or not source.required
        detail = "" if ready else source.missing()
        host = urlsplit(self.url).hostname or ""
        if host.endswith(".googleapis.com"):
            return [
                ModelInfo(f"{self.prefix}/{name}", text, ready, detail, capabilities_of(name), origin)
                for name, text in LISTED.items()
            ]
        return [ModelInfo(f"{self.prefix}/…", f"any model of {host}", ready, detail, Capabilities(), origin)]

    @property
    def connection(self) -> Connection:
        """The pool of connections; the address may or may not end with the version of the API."""
        if self._connection is None:
            url = self.url.rstrip("/").removesuffix("/v1beta")
            self._connection = Connection(url, timeouts=self.timeouts, client=self.client)
        return self._connection

    def headers_with(self, key: Secret | None) -> dict[str, str]:
        """Return the headers of a request; the key is never in its address."""
        headers = {"content-type": "application/json"}
        if key is not None:
            headers["authorization" if self.bearer else "x-goog-api-key"] = (
                f"Bearer {key.reveal()}" if self.bearer else key.reveal()
            )
        return headers | {name.lower(): value for name, value in self.headers.items()}
