"""Private keys in PEM, the one kind of secret that has line ends in it (RFC 7468, RFC 1421)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ._spans import Span

BEGIN = "-----BEGIN"
_NAME = r"(?:[A-Z0-9]+ ){0,3}PRIVATE KEY-----"
_LINE_END = r"(?:\s|\\[nrt])+"  # also as it is escaped in JSON text
_LINE = r"(?:Proc-Type: ?4,ENCRYPTED|DEK-Info: ?[A-Z0-9-]+,[0-9A-Fa-f]+|[A-Za-z0-9+/=]{16,})"
_LAST = r"[A-Za-z0-9+/=]{1,15}"
_BLOCK = re.compile(
    rf"{BEGIN} {_NAME}(?:{_LINE_END}{_LINE})+(?:{_LINE_END}{_LAST}(?=\s|\\|-|$))?"
    rf"(?:(?:{_LINE_END})?-----END(?: {_NAME})?)?"
)
_BEGINNING = re.compile(
    rf"{BEGIN}(?: [A-Z0-9]+){{0,5}} ?-{{0,5}}"
    rf"|{BEGIN} {_NAME}(?:{_LINE_END}{_LINE})*"
    rf"(?:{_LINE_END}(?:Proc-Type:?(?: ?4?,?[A-Z]*)|DEK-Info:?(?: ?[A-Z0-9-]*,?[0-9A-Fa-f]*)|{_LAST}))?"
    rf"(?:(?:{_LINE_END})?-[A-Z -]*)?"
)
_NEXT = "A-4"
"""A character for each way in which a key may go on behind a gap."""
_GAP = re.compile(r"(?:\s|\\[nrt]|\\\Z|,)+")


def find_private_keys(text: str) -> Iterator[Span]:
    """Find keys from their first line on; a key that was cut off before its last line is one too."""
    if BEGIN in text:
        for block in _BLOCK.finditer(text):
            yield Span(block.start(), block.end(), "token")


def key_joint(text: str, start: int, gap: int, *, final: bool) -> int:
    """Return where a key in `text[start:gap]` goes on behind the gap: `gap` if it does not, -1 if more is needed."""
    begin = text.rfind(BEGIN, start, gap)
    if begin < 0 or not _BEGINNING.fullmatch(text, begin, gap):
        return gap
    blank = _GAP.match(text, gap)
    if blank is None:
        return gap
    if blank.end() == len(text):
        may_go_on = not final and any(_BEGINNING.fullmatch(text[begin:] + char) for char in _NEXT)
        return -1 if may_go_on or (text[-1] == "\\" and not final) else gap
    return blank.end() if _BEGINNING.fullmatch(text, begin, blank.end() + 1) else gap
