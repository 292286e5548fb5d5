"""Models of OpenAI, and of every server that speaks its dialect, for agentx."""

from ._model import OpenAIModel
from ._provider import OpenAIProvider
from ._servers import SERVERS, Quirks, Server

__all__ = ["SERVERS", "OpenAIModel", "OpenAIProvider", "Quirks", "Server"]
