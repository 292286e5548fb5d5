"""Another model for calls that fail: by kind of error, with a rest for models that are down."""

from ._plugin import Fallback

__all__ = ["Fallback"]
