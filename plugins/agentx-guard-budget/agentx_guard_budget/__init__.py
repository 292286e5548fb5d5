"""A budget for agents: money and tokens per turn, session, user or any word, as limits of the core's ledger."""

from ._budget import Budget
from ._prices import Price

__all__ = ["Budget", "Price"]
