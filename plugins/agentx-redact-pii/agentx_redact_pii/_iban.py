"""International bank account numbers, by the registry and the check digits of `python-stdnum`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from stdnum import iban, numdb

from ._spans import Span

_START = re.compile(r"[A-Za-z]{2}[0-9]{2}(?=[ \u00a0\u2009\u202f.-]?[A-Za-z0-9])")
_NEXT = re.compile(r"[ \u00a0\u2009\u202f.-]?([A-Za-z0-9])")
_TAIL = re.compile(r"(?=([A-Za-z]{2})[0-9]{2}((?:[ \u00a0\u2009\u202f.-]?[A-Za-z0-9])*)\Z)")
_LONGEST = 34 + 12  # characters and the separators between them
_NO_ACCOUNT_CHAR = re.compile(r"[^A-Za-z0-9]")
_FIELD = re.compile(r"([0-9]+)!([nac])")
_CLASSES = {"n": str.isdigit, "a": str.isalpha, "c": str.isalnum}


@cache
def _layout(country: str) -> str:
    """Return a country's account part: `n` digit, `a` letter, `c` either for each character."""
    fields = numdb.get("iban").info(country.upper())[0][1].get("bban", "")
    return "".join([kind * int(count) for count, kind in _FIELD.findall(fields)])


def find_ibans(text: str) -> Iterator[Span]:
    """Find IBANs of a registered country with the right length and check digits, in groups or not."""
    for start in _START.finditer(text):
        end, number = start.end(), start[0]
        for _ in _layout(number[:2]):
            char = _NEXT.match(text, end)
            if char is None:
                break
            end, number = char.end(), number + char[1]
        if not text[end : end + 1].isalnum() and iban.is_valid(number):
            yield Span(start.start(), end, "iban")


def open_ibans(text: str, start: int, end: int) -> list[tuple[str, str]]:
    """Return country and account part so far of all that may be an IBAN at the end of `text[start:end]`."""
    tails = _TAIL.finditer(text[max(start, end - _LONGEST) : end])
    found = [(tail[1], _NO_ACCOUNT_CHAR.sub("", tail[2])) for tail in tails]
    return [(country, account) for country, account in found if len(account) < len(_layout(country))]


def goes_on(country: str, account: str, char: str) -> bool:
    """Say whether that country has an IBAN whose account part begins with `account` and `char`."""
    layout, account = _layout(country), account + char
    if len(account) > len(layout):
        return False
    return all(_CLASSES[kind](each) for kind, each in zip(layout, account, strict=False))
