"""What a recogniser finds, and how overlapping finds become one."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple


class Span(NamedTuple):
    """`text[start:end]` is something of `kind`."""

    start: int
    end: int
    kind: str


Finder = Callable[[str], Iterable[Span]]
"""Finds spans in one island (see `_islands`). It sees full-width digits and signs as their ASCII forms."""

Find = Callable[[str], list[Span]]
"""Finds everything in one island: in order, without overlaps."""

_NARROW = str.maketrans("０１２３４５６７８９＋－（）＠．／", "0123456789+-()@./")  # one character each


def merge(spans: Iterable[Span]) -> list[Span]:
    """Join overlapping spans into one that covers them all and is named after the longest, the leftmost of equals."""
    merged: list[Span] = []
    longest = 0
    for span in sorted(spans, key=lambda span: (span.start, span.start - span.end)):
        length = span.end - span.start
        if merged and span.start < merged[-1].end:
            last = merged[-1]
            kind = span.kind if length > longest else last.kind
            merged[-1] = Span(last.start, max(last.end, span.end), kind)
            longest = max(longest, length)
        else:
            merged.append(span)
            longest = length
    return merged


class Recognisers:
    """All finders that are switched on, and the values that are allowed to pass."""

    def __init__(self, finders: Mapping[str, Finder], allow: Sequence[str] = ()) -> None:
        self._finders = tuple(finders.values())
        patterns = [fnmatch.translate(pattern.casefold()) for pattern in allow]
        self._allowed = re.compile("|".join(patterns)).match if patterns else None

    def __call__(self, text: str) -> list[Span]:
        """Return what is to be masked in `text`: in order, without overlaps, never empty spans."""
        narrow = text if text.isascii() else text.translate(_NARROW)
        found = [span for finder in self._finders for span in finder(narrow)]
        if not found:
            return found
        if (allowed := self._allowed) is not None:
            found = [span for span in found if not allowed(text[span.start : span.end].casefold())]
        return merge(found)
