"""E-mail addresses, payment cards and phone numbers.

Number plans come from `phonenumbers` (Google's libphonenumber), the checksum from `python-stdnum`. What is written
here only says where in a text a candidate may begin and end.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import accumulate

import phonenumbers
from phonenumbers import Leniency, NumberParseException, PhoneNumberMatcher
from stdnum import luhn

from ._islands import LETTERS
from ._spans import Finder, Span

_AT = re.compile(r"@|%40")
_ALPHA = "A-Za-z\u00c0-\u0dff\u1e00-\u1fff"
_LOCAL = re.compile(rf"[{LETTERS}.+%'~-]")
_LABEL = rf"[{LETTERS}](?:[{LETTERS}-]*[{LETTERS}])?"
_DOMAIN = re.compile(rf"(?:{_LABEL}\.)+(?:xn--[A-Za-z0-9-]*[A-Za-z0-9]|[{_ALPHA}]{{2,63}})")


def find_emails(text: str) -> Iterator[Span]:
    """Find addresses at a domain of two labels or more; their length is not limited, to be on the safe side."""
    done = 0
    for at in _AT.finditer(text):
        start = at.start()
        while start > done and _LOCAL.match(text, start - 1):
            start -= 1
        while start < at.start() and not text[start].isalnum():
            start += 1
        domain = _DOMAIN.match(text, at.end())
        if domain and start < at.start():
            done = domain.end()
            yield Span(start, done, "email")


_BLANK = " \u00a0\u2007\u2009\u202f"
_DASH = "\u2010-\u2013-"
_GROUPS = re.compile(rf"\d+(?:[{_BLANK}./{_DASH}]{{1,3}}\d+)*")
_DIGITS = re.compile(r"\d+")
_ISSUER = re.compile(r"[2-6]|8[12]|9792")  # ISO/IEC 7812: other industries do not issue payment cards
_MOST_GROUPS = 6


def find_cards(text: str) -> Iterator[Span]:
    """Find 13 to 19 digits, in groups of three or more, that begin like a card and pass the Luhn check."""
    for run in _GROUPS.finditer(text):
        if run.end() - run.start() < 13:
            continue
        groups = list(_DIGITS.finditer(text, run.start(), run.end()))
        first = 0
        while first < len(groups):
            count = _card_at(text, groups[first : first + _MOST_GROUPS])
            if count:
                yield Span(groups[first].start(), groups[first + count - 1].end(), "card")
            first += count or 1


def _card_at(text: str, groups: list[re.Match[str]]) -> int:
    """Return how many of `groups`, from the first on, are a card: the most that are, 0 if none."""
    best, digits = 0, ""
    for count, group in enumerate(groups, 1):
        digits += group[0]
        if len(group[0]) < 3 or len(digits) > 19:
            break
        if len(digits) >= 13 and _ISSUER.match(digits) and luhn.is_valid(digits):
            best = count
    start = groups[0].start()
    is_fraction = best == 1 and start > 1 and text[start - 1] == "." and text[start - 2].isdigit()
    return 0 if is_fraction else best


_INTERNATIONAL = re.compile(
    rf"(?<![A-Za-z0-9])\+(?=[{_BLANK}(]{{0,2}}\d)|(?<![A-Za-z0-9.,:/-])00(?=[{_BLANK}(-]{{0,2}}[1-9])"
)
_PHONE_GROUP = re.compile(rf"[{_BLANK}()./{_DASH}]{{0,4}}(\d+)")
_MOST_DIGITS = 15 + 2  # ITU-T E.164, and what some write behind the country's code: +44 (0)20


def has_phones(region: str) -> bool:
    """Say whether there is a number plan for a region of ISO 3166, such as `DE`."""
    return phonenumbers.country_code_for_region(region) != 0


def phone_finder(region: str | None) -> Finder:
    """Return a finder of international numbers, and of the national ones of `region` (such as `"DE"`) if given."""

    def find_phones(text: str) -> Iterator[Span]:
        yield from _find_international(text)
        if region is not None and sum(map(str.isdigit, text)) > 4:
            for match in PhoneNumberMatcher(text, region, Leniency.VALID):
                yield Span(match.start, match.end, "phone")

    return find_phones


def _find_international(text: str) -> Iterator[Span]:
    done = 0
    for sign in _INTERNATIONAL.finditer(text):
        if sign.start() < done:
            continue
        end = _end_of_phone(text, sign.end(), must_be_valid=sign[0] == "00")
        if end:
            done = end
            yield Span(sign.start(), end, "phone")


def _end_of_phone(text: str, start: int, *, must_be_valid: bool) -> int:
    """Return the end of the longest valid number at `start`, else of the longest possible one, 0 if there is none."""
    groups: list[re.Match[str]] = []
    while len(groups) < _MOST_DIGITS:
        group = _PHONE_GROUP.match(text, groups[-1].end() if groups else start)
        if group is None:
            break
        groups.append(group)
    totals = accumulate(len(group[1]) for group in groups)
    ends = [group.end() for group, total in zip(groups, totals, strict=True) if 6 < total <= _MOST_DIGITS]
    possible = 0
    for end in reversed(ends):
        try:
            number = phonenumbers.parse("+" + text[start:end])
        except NumberParseException:
            continue
        if phonenumbers.is_valid_number(number):
            return end
        if not possible and phonenumbers.is_possible_number(number):
            possible = end
    return 0 if must_be_valid else possible
