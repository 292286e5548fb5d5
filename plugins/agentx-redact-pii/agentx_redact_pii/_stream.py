"""Redact a text while it arrives.

Nothing of a match is ever given out, and of everything else only the island that is still growing is held back:
a word until its end shows, a number until the character behind its blanks does. An island longer than `LONGEST` is
looked at in windows that overlap by more than any match but a token is long; a token that reaches the end of its
window may go on for ever, so all that follows in one piece with it is masked too, `LONGEST` characters at a time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ._islands import LONGEST, TOO_LONG, UNKNOWN, end_of_gap, end_of_island, end_of_prose
from ._private_key import BEGIN
from ._spans import Find, Span

_OVERLAP = 1024
_REST_OF_TOKEN = re.compile(r"""[^\s",;<>|{}\[\]\\`]*""")
_REST_OF_KEY = re.compile(r"[A-Za-z0-9+/=\s\\-]*")


class Piece(NamedTuple):
    """A stretch of the text as it came; `kind` says what it is if it must be masked."""

    text: str
    kind: str | None = None


class TextRedactor:
    """Cuts one text into pieces. However the text is split over `feed`, what is masked is the same."""

    def __init__(self, find: Find) -> None:
        self._find = find
        self._held = ""
        self._scan = 0
        self._rest: tuple[str, re.Pattern[str]] | None = None
        """Kind of a secret that is too long, and what else belongs to it."""

    @property
    def held(self) -> str:
        """What has come and was not given out."""
        return self._held

    def feed(self, text: str) -> list[Piece]:
        """Take the next bit of the text and return what is certain by now."""
        return self._take(self._held + text, final=False)

    def finish(self) -> list[Piece]:
        """Return everything held, for the text is over. What is fed next begins a new text."""
        pieces = self._take(self._held, final=True)
        self.drop()
        return pieces

    def drop(self) -> None:
        """Forget what is held: any of it may be the beginning of a match."""
        self._held, self._scan, self._rest = "", 0, None

    def _take(self, text: str, *, final: bool) -> list[Piece]:
        pieces: list[Piece] = []
        start = 0
        while start < len(text):
            end = self._step(text, start, pieces, final=final)
            if end == UNKNOWN:
                break
            start = end
        self._held, self._scan = text[start:], max(self._scan - start, 0)
        return pieces

    def _step(self, text: str, start: int, pieces: list[Piece], *, final: bool) -> int:
        """Add what begins at `start` to `pieces` and return its end, or `UNKNOWN`."""
        if self._rest is not None:
            return self._step_rest(text, start, pieces, *self._rest, final=final)
        if self._scan <= start:
            end = end_of_prose(text, start)
            if end == start:
                end = end_of_gap(text, start, final=final)
            if end != start:
                if end > start:
                    pieces.append(Piece(text[start:end]))
                return end
        end, self._scan = end_of_island(text, start, max(self._scan, start), final=final)
        if end == TOO_LONG:
            return start + self._step_window(text[start : start + LONGEST], pieces)
        if end != UNKNOWN:
            island = text[start:end]
            pieces += self._cut(island, self._find(island))
        return end

    def _step_window(self, window: str, pieces: list[Piece]) -> int:
        border = LONGEST - _OVERLAP
        spans = [span for span in self._find(window) if span.start < border]
        end = max(border, spans[-1].end) if spans else border
        if end == LONGEST:
            is_key = BEGIN in window[spans[-1].start :]
            self._rest = spans[-1].kind, _REST_OF_KEY if is_key else _REST_OF_TOKEN
        pieces += self._cut(window[:end], spans)
        return end

    def _step_rest(
        self, text: str, start: int, pieces: list[Piece], kind: str, rest: re.Pattern[str], *, final: bool
    ) -> int:
        match = rest.match(text, max(start, self._scan), start + LONGEST)
        end = self._scan = match.end() if match else start
        if end - start < LONGEST:
            if end == len(text) and not final:
                return UNKNOWN
            self._rest = None
        if end > start:
            pieces.append(Piece(text[start:end], kind))
        return end

    def _cut(self, text: str, spans: Sequence[Span]) -> Iterator[Piece]:
        """Cut `text` at `spans`. What remains beside a match is looked at again, as the text of its own that it is."""
        if not spans:
            yield Piece(text)
            return
        done = 0
        for span in spans:
            yield from self._again(text[done : span.start])
            yield Piece(text[span.start : span.end], span.kind)
            done = span.end
        yield from self._again(text[done:])

    def _again(self, text: str) -> Iterator[Piece]:
        if text:
            redactor = TextRedactor(self._find)
            yield from redactor.feed(text)
            yield from redactor.finish()
