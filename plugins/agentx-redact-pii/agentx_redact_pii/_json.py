"""Redact the JSON text of a call's arguments while it arrives.

Strings are looked at as they are meant and not as they are escaped, so `bob\\u0040acme.example` is found; what is not
masked keeps its spelling. A number that must be masked becomes a string. Text that is no JSON is redacted all the same.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from ._spans import Find, Span, merge
from ._stream import Piece, TextRedactor

_INSIDE = re.compile(r'[^"\\]+|"|\\u[0-9A-Fa-f]{4}|\\[^u]|\\u(?![0-9A-Fa-f]{0,3}\Z)|(\\(?:u[0-9A-Fa-f]{0,3})?)\Z')
_OUTSIDE = re.compile(r'[^"]+|"')
_NUMBER = frozenset("0123456789+-.eE")
_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


class _Numbers:
    """Finds what stands outside of strings: a number is masked with its sign, fraction and exponent or not at all."""

    def __init__(self, find: Find) -> None:
        self._find = find

    def __call__(self, text: str) -> list[Span]:
        return merge([self._whole(text, span) for span in self._find(text)])

    def _whole(self, text: str, span: Span) -> Span:
        start, end = span.start, span.end
        while start and text[start - 1] in _NUMBER:
            start -= 1
        while end < len(text) and text[end] in _NUMBER:
            end += 1
        return Span(start, end, span.kind)


class JsonRedactor:
    """Redacts one JSON text. However it is split over `feed`, the joined output is the same."""

    def __init__(self, find: Find, placeholder: Callable[[str, str], str]) -> None:
        self._redactors = {True: TextRedactor(find), False: TextRedactor(_Numbers(find))}
        self._placeholder = placeholder
        self._spelling: list[str] = []
        """How each character that the redactor holds is written."""
        self._held = ""
        self._in_string = False

    def feed(self, text: str) -> str:
        """Take the next bit of the text and return what is certain by now, redacted."""
        return self._take(self._held + text)

    def finish(self) -> str:
        """Return everything held; what is fed next begins a new text."""
        rest, self._held = self._held, ""
        out = self._add(rest, list(rest)) + self._flush()
        self._in_string = False
        return out

    def _take(self, text: str) -> str:
        out: list[str] = []
        start = 0
        while start < len(text):
            token = (_INSIDE if self._in_string else _OUTSIDE).match(text, start)
            if token is None or (self._in_string and token[1] is not None):
                break
            start = token.end()
            out.append(self._token(token[0]))
        self._held = text[start:]
        return "".join(out)

    def _token(self, token: str) -> str:
        if token == '"':
            out = self._flush() + token
            self._in_string = not self._in_string
            return out
        if self._in_string and token[0] == "\\":
            return self._add(_meaning(token), [token])
        return self._add(token, list(token))

    def _add(self, text: str, spelling: list[str]) -> str:
        self._spelling += spelling
        return self._written(self._redactors[self._in_string].feed(text))

    def _flush(self) -> str:
        return self._written(self._redactors[self._in_string].finish())

    def _written(self, pieces: list[Piece]) -> str:
        out: list[str] = []
        done = 0
        for text, kind in pieces:
            if kind is None:
                out += self._spelling[done : done + len(text)]
            else:
                quoted = json.dumps(self._placeholder(kind, text))
                out.append(quoted[1:-1] if self._in_string else quoted)
            done += len(text)
        del self._spelling[:done]
        return "".join(out)


def _meaning(escape: str) -> str:
    """Return the one character that an escape stands for; half of a surrogate pair is no character of any match."""
    if len(escape) == 6:
        char = chr(int(escape[2:], 16))
        return "\ufffd" if "\ud800" <= char <= "\udfff" else char
    return _ESCAPES.get(escape[1:], escape[1:] or "\ufffd")
