"""The model of each call, chosen by rules of the configuration or by a function."""

from ._call import Call
from ._plugin import Router
from ._rules import Rule

__all__ = ["Call", "Router", "Rule"]
