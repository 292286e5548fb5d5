"""Accounts that several processes share: bookings are written as increments and read again with every commit.

So what all processes may overspend together is what each of them has in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from decimal import Decimal
from functools import partial
from weakref import WeakValueDictionary

import attrs

from agentx._codec import decode, encode
from agentx._ledger import Account, AccountKey, Amount


@attrs.frozen
class Booking:
    """What a store has of an account."""

    key: AccountKey
    used: Amount = 0
    exact: bool = True
    warned: bool = False

    def plus(self, account: Account) -> Booking:
        """Return it with what `account` has booked since it was last kept."""
        used = self.used + (account.used - account.kept)  # type: ignore[operator]  # both of one kind
        return Booking(self.key, used, self.exact and account.exact, self.warned or account.warned)


def amount_text(amount: Amount) -> str:
    """Return an amount as JSON text; a Decimal is a string, and keeps its zeros."""
    return encode(amount).decode()


def amount_of(text: str) -> Amount:
    value = decode(text)
    return Decimal(value) if isinstance(value, str) else value


class Bookings(MutableMapping[AccountKey, Account]):
    """The accounts in use in this process, and which of them have bookings that the store has not.

    Args:
        load: returns what the store has of an account.
    """

    def __init__(self, load: Callable[[AccountKey], Booking | None]) -> None:
        self._load = load
        self._known: WeakValueDictionary[AccountKey, Account] = WeakValueDictionary()
        self.changed: dict[AccountKey, Account] = {}

    @property
    def in_use(self) -> bool:
        return bool(self._known)

    def __getitem__(self, key: AccountKey) -> Account:
        account = self._known.get(key)
        if account is None:
            booking = self._load(key)
            if booking is None:
                raise KeyError(key)
            account = self[key] = Account(booking.used, 0, booking.exact, booking.warned, booking.used)
        return account

    def __setitem__(self, key: AccountKey, account: Account) -> None:
        account.changed = partial(self.changed.__setitem__, key)
        self._known[key] = account
        if account.used != account.kept:
            self.changed[key] = account

    def __delitem__(self, key: AccountKey) -> None:
        self.changed.pop(key, None)
        del self._known[key]

    def __iter__(self) -> Iterator[AccountKey]:
        return iter(list(self._known))

    def __len__(self) -> int:
        return len(self._known)

    def kept(self, bookings: Sequence[Booking]) -> None:
        """Take what is in the store now, the changes of this process included."""
        for booking in bookings:
            self.changed.pop(booking.key, None)
        self.refreshed(bookings)

    def refreshed(self, bookings: Iterable[Booking]) -> None:
        """Take what other processes have booked; what this one has not written yet is added to it."""
        for booking in bookings:
            account = self._known.get(booking.key)
            if account is None:
                continue
            pending = account.used - account.kept if booking.key in self.changed else 0  # type: ignore[operator]
            account.used, account.kept = booking.used + pending, booking.used  # type: ignore[operator]
            account.exact, account.warned = account.exact and booking.exact, account.warned or booking.warned
