"""Usage and limits: every dispatch asks every limit in one step, without an await, and is settled afterwards.

A plugin that limits something registers a `Limit`; it never reserves in a layer of its own. So parallel calls, retries
and sub-agents cannot pass a check together, and what is reserved is the final request with the final model.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, MutableMapping
from decimal import Decimal
from typing import Any, Literal

import attrs

from ._errors import LimitError
from ._messages import ModelRequest, Usage

logger = logging.getLogger("agentx")

Amount = Decimal | int | float
Estimate = Callable[[ModelRequest], Amount | None]
"""The most that a request may use; `None` when that is unknown."""
Measure = Callable[[ModelRequest, Usage], Amount | None]
"""What a request did use; `None` when that is unknown."""


@attrs.frozen
class Limit:
    """A limit on what model calls or tool calls may use.

    Args:
        key: what is counted: `usd`, `tokens`, `requests`, `tool_calls`, or a word of the plugin's own.
        maximum: never exceeded; `None` only counts.
        scope: `turn`, `session`, `user`, or any other word: everything under that word shares the account.
        on: which dispatches count.
        estimate: reserved at dispatch; a number, or a function of the request.
        measure: settled afterwards; without it the reserved amount stands.
        unknown: what to do when `estimate` or `measure` returns `None`: `refuse` the dispatch, or `allow` it uncounted.
        warn_at: the part of the maximum at which a `limit.warning` is emitted, once for each account.
        on_limit: `stop` ends the turn with the status `limit`; `answer` allows one last call without tools.
        advice: what to change when the maximum is reached; it ends the reason that the user reads.
        unknown_advice: what to change when an amount is unknown.
    """

    key: str
    maximum: Amount | None = None
    scope: str = "turn"
    on: Literal["model", "tool"] = "model"
    estimate: Amount | Estimate = 1
    measure: Measure | None = None
    unknown: Literal["refuse", "allow"] = "refuse"
    warn_at: float | None = None
    on_limit: Literal["stop", "answer"] = "stop"
    advice: str | None = None
    unknown_advice: str | None = None

    def __attrs_post_init__(self) -> None:
        _check_limit(self)


def _check_limit(limit: Limit) -> None:
    """Refuse a limit that would never hold.

    Raises:
        LimitError: naming the argument.
    """
    choices = {"on": ("model", "tool"), "unknown": ("refuse", "allow"), "on_limit": ("stop", "answer")}
    for name, allowed in choices.items():
        if getattr(limit, name) not in allowed:
            raise LimitError(f"Limit({name}=…) is one of {', '.join(allowed)}, not {getattr(limit, name)!r}")
    if not limit.key or not limit.scope:
        raise LimitError("Limit(key, scope=…) takes words, not nothing")
    if limit.maximum is not None and not is_amount(limit.maximum):
        raise LimitError(f"Limit(maximum=…) is a number, 0 or more, or None, not {limit.maximum!r}")
    if not callable(limit.estimate) and not is_amount(limit.estimate):
        raise LimitError(f"Limit(estimate=…) is a number, 0 or more, or a function, not {limit.estimate!r}")
    if limit.warn_at is not None and not 0 < limit.warn_at <= 1:
        raise LimitError(f"Limit(warn_at=…) is a part between 0 and 1, not {limit.warn_at!r}")


def is_amount(value: Any) -> bool:
    """Return whether something can be counted: a finite number that is not below 0."""
    return isinstance(value, int | float | Decimal) and math.isfinite(value) and value >= 0


@attrs.define(eq=False, repr=False)
class Account:
    """What is used and reserved under one limit. An account whose amounts were partly unknown is not `exact`."""

    used: Amount = 0
    reserved: Amount = 0
    exact: bool = True
    warned: bool = False
    kept: Amount = 0
    """How much of `used` a store knows of."""
    changed: Callable[[Account], object] | None = None
    """What a store wants to be told after a booking."""


AccountKey = tuple[str, str, str, str]
"""`(owner, key, scope, what the scope is here)`."""
Accounts = MutableMapping[AccountKey, Account]


@attrs.define(eq=False, repr=False)
class Line:
    """A limit in force, who registered it, and its account."""

    limit: Limit
    owner: str
    account: Account
    own: bool = True
    """`False`: it belongs to the turn that called this sub-agent."""


@attrs.frozen(eq=False, repr=False)
class Refusal:
    line: Line
    reason: str


Holds = list[tuple[Line, Amount]]
"""The amounts reserved for one dispatch."""
Warned = Callable[[Line], None]


def reserve(lines: tuple[Line, ...], request: ModelRequest | None, *, is_last_answer: bool = False) -> Holds | Refusal:
    """Reserve under all lines or under none; the last answer that a limit allows is counted but not refused by it."""
    holds: Holds = []
    for line in lines:
        limit = line.limit
        estimate = limit.estimate
        amount = _estimated(line, request) if callable(estimate) else estimate
        if amount is None:
            if limit.unknown == "refuse" and limit.maximum is not None:
                model = request.model if request else "?"
                advice = f": {limit.unknown_advice}" if limit.unknown_advice else ""
                return Refusal(line, f"what a call of {model} may use in {limit.key} is unknown{advice}")
            if limit.measure is None:
                line.account.exact = False
            amount = 0
        account = line.account
        over = limit.maximum is not None and account.used + account.reserved + amount > limit.maximum  # type: ignore[operator]
        if over and not (is_last_answer and limit.on_limit == "answer"):
            return Refusal(line, _reason(line, amount))
        holds.append((line, amount))
    for line, amount in holds:
        line.account.reserved += amount  # type: ignore[operator]
    return holds


def _estimated(line: Line, request: ModelRequest | None) -> Amount | None:
    """Return what a limit's own function estimates.

    Raises:
        LimitError: it failed, or returned no amount: the guard is broken, and nothing runs unguarded.
    """
    what = f"{line.owner}: the estimate of its limit on {line.limit.key}"
    try:
        amount: Amount | None = line.limit.estimate(request)  # type: ignore[operator,arg-type]  # a function here
    except Exception as error:
        raise LimitError(f"{what} failed: {type(error).__name__}: {error}") from error
    if amount is not None and not is_amount(amount):
        raise LimitError(f"{what} is {amount!r}, and not a number of 0 or more, or None where it is unknown")
    return amount


def _measured(line: Line, request: ModelRequest, usage: Usage | None) -> Amount | None:
    """Return what a call used under a limit; a function that fails leaves it unknown, as the call is over."""
    if usage is None:
        return None
    try:
        amount = line.limit.measure(request, usage)  # type: ignore[misc]  # asked before
    except Exception as error:
        amount, problem = None, f"failed: {type(error).__name__}: {error}"
    else:
        problem = "" if amount is None or is_amount(amount) else f"is {amount!r}"
    if problem:
        logger.error("%s: the measure of its limit on %s %s", line.owner, line.limit.key, problem)
        return None
    return amount


def _reason(line: Line, amount: Amount) -> str:
    limit, account = line.limit, line.account
    spent = account.used + account.reserved  # type: ignore[operator]
    left = f"{_shown(spent)} of {_shown(limit.maximum)} {limit.key} used in this {limit.scope}"
    needed = "" if spent and amount == 1 else f", the next call may need {_shown(amount)}"
    return f"{left}{needed}: {limit.advice}" if limit.advice else f"{left}{needed}"


def _shown(amount: Amount | None) -> str:
    """Return an amount without the zeros behind it that say nothing."""
    return f"{amount.normalize():f}" if isinstance(amount, Decimal) else f"{amount}"


def settle(
    holds: Holds,
    request: ModelRequest | None,
    usage: Usage | None,
    warn: Warned,
    cost: Decimal | None = None,
) -> None:
    """Book what was used in place of what was reserved; unknown usage is booked at the reserved amount.

    A price that the provider states counts more than any table's.
    """
    for line, amount in holds:
        limit, account = line.limit, line.account
        account.reserved -= amount  # type: ignore[operator]
        if cost is not None and limit.key == "usd":
            amount = cost
        elif limit.measure is not None and request is not None:
            measured = _measured(line, request, usage)
            if measured is None:
                account.exact = False
            else:
                amount = measured
        account.used += amount  # type: ignore[operator]
        if account.changed is not None:
            account.changed(account)
        if limit.warn_at is not None and not account.warned:
            _warn(line, warn)


def _warn(line: Line, warn: Warned) -> None:
    limit, account = line.limit, line.account
    if limit.maximum is None or float(account.used) < float(limit.maximum) * (limit.warn_at or 1.0):
        return
    account.warned = True
    warn(line)


class Ledger:
    """What a context shows as `ctx.ledger`: usage, and the limits in force at its level and above."""

    __slots__ = ("_check", "_frame", "_owner")

    def __init__(self, frame: Any, owner: str, check: Callable[[str], None]) -> None:
        self._frame = frame
        self._owner = owner
        self._check = check

    def limit(self, limit: Limit) -> None:
        """Register a limit; it holds for the level of this context and everything below it.

        Raises:
            HookError: an observer registers one that is more than a count.
        """
        if limit.maximum is not None:
            self._check("ledger.limit")
        (getattr(self._frame, "turn", None) or self._frame).add_limit(limit, self._owner)

    @property
    def usage(self) -> Usage:
        """Tokens and requests of this turn, or of the session where there is no turn."""
        level = getattr(self._frame, "turn", None) or self._frame
        usage: Usage = level.usage
        return usage

    def _lines(self) -> tuple[Line, ...]:
        lines: tuple[Line, ...] = (getattr(self._frame, "turn", None) or self._frame).lines()
        return lines

    def used(self, key: str) -> Amount | None:
        """Return what is used of `key` under the innermost limit with that key; `None` when part of it is unknown."""
        for line in self._lines():
            if line.limit.key == key:
                return line.account.used if line.account.exact else None
        return None

    def remaining(self, key: str) -> Amount | None:
        """Return the least that any limit on `key` has left; `None` without such a limit."""
        left = [
            line.limit.maximum - line.account.used - line.account.reserved  # type: ignore[operator]  # of one kind
            for line in self._lines()
            if line.limit.key == key and line.limit.maximum is not None
        ]
        return min(left) if left else None
