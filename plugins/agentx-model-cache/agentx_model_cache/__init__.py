"""Answers of models, kept on disk and given again for equal requests."""

from ._plugin import Cache

__all__ = ["Cache"]
