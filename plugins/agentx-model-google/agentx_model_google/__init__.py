"""Gemini models of Google for agentx."""

from ._model import GoogleModel
from ._provider import GoogleProvider

__all__ = ["GoogleModel", "GoogleProvider"]
