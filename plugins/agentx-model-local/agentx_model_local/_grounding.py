"""Are a call's arguments in the prompt? A small model invents some; what it invented it must not act on."""

from __future__ import annotations

import re
from typing import Any

_NUMBER = re.compile(r"(?<![\w./])-?\d+(?:,\d{3})*(?:\.\d+)?(?![\w/]|\.\w)")
"""Not a part of a name, a path or a date."""
_UNITS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_TEENS = ("ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen")
_TENS = {"twenty": 20, "thirty": 30, "forty": 40, "fifty": 50, "sixty": 60, "seventy": 70, "eighty": 80, "ninety": 90}
_WORDS = {word: value for value, word in enumerate(("zero", *_UNITS, *_TEENS))} | _TENS
_WORD = re.compile(rf"\b(?:({'|'.join(_TENS)})[- ]({'|'.join(_UNITS)})|({'|'.join(_WORDS)}))\b", re.IGNORECASE)


def numbers_in(text: str) -> list[float]:
    """Return the numbers of `text`, in digits and in English words up to ninety-nine."""
    found = [float(digits.replace(",", "")) for digits in _NUMBER.findall(text)]
    for tens, unit, single in _WORD.findall(text):
        found.append(float(_WORDS[single.lower()] if single else _TENS[tens.lower()] + _WORDS[unit.lower()]))
    return found


def grounded(value: Any, text: str) -> Any:
    """Return `value` in the spelling of `text`.

    Raises:
        LookupError: the value is a text or number that does not occur in `text`.
    """
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int | float):
        if float(value) not in numbers_in(text):
            raise LookupError(f"the number {value} is not in the prompt")
        return value
    if isinstance(value, str):
        return _spelled(value, text)
    if isinstance(value, list):
        return [grounded(item, text) for item in value]
    if isinstance(value, dict):
        return {key: grounded(item, text) for key, item in value.items()}
    raise LookupError(f"a {type(value).__name__} cannot be in a prompt")


def _spelled(value: str, text: str) -> str:
    wanted = value.strip()
    at = text.lower().find(wanted.lower())
    if not wanted or at < 0 or len(text.lower()) != len(text):
        if wanted and wanted in text:
            return wanted
        raise LookupError(f"the text {value!r} is not in the prompt")
    return text[at : at + len(wanted)]
