"""Models of Anthropic, and of every server that speaks its Messages API, for agentx."""

from ._model import AnthropicModel
from ._provider import AnthropicProvider

__all__ = ["AnthropicModel", "AnthropicProvider"]
