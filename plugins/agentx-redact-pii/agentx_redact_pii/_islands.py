"""Where a text may be cut without cutting through a match.

A text is a sequence of *islands*, runs of characters that a match may consist of, and of what lies between them.
Blanks end an island, except between the groups of a number, inside what may be an IBAN or a private key, and after
`Bearer`. Whether an island is over shows in the one character behind the gap, so the islands of a text do not depend
on how it was split while it arrived.
"""

from __future__ import annotations

import re
from typing import Final

from ._iban import goes_on, open_ibans
from ._private_key import key_joint

LETTERS = "0-9A-Za-z_\u00c0-\u0dff\u1e00-\u1fff"
"""Of scripts that put blanks between words; in the others an address would run into the words around it."""

LONGEST = 8192
"""Characters of an island that are looked at together, and so the most that is ever held back."""

UNKNOWN: Final = -1
TOO_LONG: Final = -2

_CHARS = LETTERS + "０-９＋－（）＠．／.%+'~@=/:()!$&*?#^\u2010-\u2013-"
_BREAK = re.compile(f"[^{_CHARS}]")
_BETWEEN = re.compile(rf"(?:\\[nrt]|[^{_CHARS}])+")  # a line end as JSON text escapes it does not begin a word
_BLANK = " \u00a0\u2007\u2009\u202f"
_BLANKS = re.compile(f"[{_BLANK}]{{1,3}}")
_BEFORE_GAP = frozenset("0123456789０１２３４５６７８９)）./－-+\u2010\u2011\u2012\u2013")
_AFTER_GAP = frozenset("0123456789０１２３４５６７８９(（+＋/－-\u2010\u2011\u2012\u2013")
_WORD = "(?![Bb][Ee][Aa][Rr][Ee][Rr])[A-Za-z\u00c0-\u024f]{1,15}+"
_PROSE = re.compile(rf"(?:{_WORD}(?:(?=[^{_CHARS}])|[.:!?](?=[^{_CHARS}{_BLANK}]|[{_BLANK}][A-Za-z]))|[^{_CHARS}\\])*+")
_BEARER = re.compile(r"(?i)(?<![a-z])bearer\Z")


def end_of_gap(text: str, start: int, *, final: bool) -> int:
    """Return where the next island begins: `start` if one begins there, `UNKNOWN` if that takes more text."""
    gap = _BETWEEN.match(text, start)
    if gap is None:
        return start
    end = gap.end()
    if end == len(text) and text[-1] == "\\" and not final:  # `\n` may become of it
        return end - 1 if end - 1 > start else UNKNOWN
    return end


def end_of_prose(text: str, start: int) -> int:
    """Return up to where, from the beginning of an island or gap, there are only short words of letters and gaps.

    It says nothing that the other functions would not, only faster.
    """
    prose = _PROSE.match(text, start)
    return prose.end() if prose else start


def end_of_island(text: str, start: int, scan: int, *, final: bool) -> tuple[int, int]:
    """Return the end of the island at `start`, `UNKNOWN` or `TOO_LONG`, and from where to go on looking for it."""
    limit = start + LONGEST
    while gap := _BREAK.search(text, scan):
        if gap.start() >= limit:
            return TOO_LONG, limit
        joint = _joint(text, start, gap.start(), final=final)
        if joint == gap.start():
            return joint, joint
        if joint < 0:
            return UNKNOWN, gap.start()
        scan = joint
    if len(text) >= limit:
        return TOO_LONG, limit
    return (len(text) if final else UNKNOWN), len(text)


def _joint(text: str, start: int, gap: int, *, final: bool) -> int:
    """Return where the island goes on behind the gap: `gap` if it does not, `UNKNOWN` if that takes more text."""
    joint = key_joint(text, start, gap, final=final)
    blanks = _BLANKS.match(text, gap)
    if joint != gap or blanks is None:
        return joint
    is_number = text[gap - 1] in _BEFORE_GAP
    is_bearer = _BEARER.search(text, max(start, gap - 7), gap) is not None
    ibans = open_ibans(text, start, gap)
    if not (is_number or is_bearer or ibans):
        return gap
    end = blanks.end()
    if end == len(text):
        return gap if final else UNKNOWN
    char = text[end]
    if (is_number and char in _AFTER_GAP) or any(goes_on(*iban, char) for iban in ibans):
        return end
    return end if is_bearer and not _BREAK.match(char) else gap
