"""The transform that a model's deltas go through."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import attrs

from agentx import TextDelta, ThinkingDelta, ToolArgsDelta

from ._json import JsonRedactor
from ._spans import Find
from ._stream import Piece, TextRedactor

Delta: TypeAlias = TextDelta | ThinkingDelta | ToolArgsDelta
Placeholder: TypeAlias = Callable[[str, str], str]
"""Kind and value → placeholder."""


class PlainText:
    """Redacts a text that is no JSON."""

    def __init__(self, find: Find, placeholder: Placeholder) -> None:
        self._redactor = TextRedactor(find)
        self._placeholder = placeholder

    def feed(self, text: str) -> str:
        """Take the next bit of the text and return what is certain by now, redacted."""
        return self._written(self._redactor.feed(text))

    def finish(self) -> str:
        """Return everything held; what is fed next begins a new text."""
        return self._written(self._redactor.finish())

    def _written(self, pieces: Iterable[Piece]) -> str:
        return "".join([text if kind is None else self._placeholder(kind, text) for text, kind in pieces])


@attrs.define
class _Open:
    """A text that is being streamed. `last` is what the rest is given out as."""

    last: Delta
    redactor: PlainText | JsonRedactor


class DeltaRedactor:
    """Redacts the deltas of one attempt: each text part, each thinking and each call's arguments for itself.

    A text part is over when a later one begins, so that they come out in order. After an error or a cancellation
    nobody calls `finish`, and what is held is never seen.
    """

    def __init__(self, find: Find, placeholder: Placeholder) -> None:
        self._find = find
        self._placeholder = placeholder
        self._open: dict[tuple[type, int | str], _Open] = {}

    def feed(self, delta: Delta) -> Sequence[Delta]:
        """Return what may be seen by now."""
        key = (type(delta), delta.call_id if isinstance(delta, ToolArgsDelta) else delta.index)
        out: list[Delta] = []
        text = self._open.get(key)
        if text is None:
            out += self._finish_earlier(delta)
            kind = JsonRedactor if isinstance(delta, ToolArgsDelta) else PlainText
            text = self._open[key] = _Open(delta, kind(self._find, self._placeholder))
        text.last = delta
        ready = text.redactor.feed(delta.text)
        if ready or not delta.text or getattr(delta, "name", ""):
            out.append(delta if ready == delta.text else attrs.evolve(delta, text=ready))
        return out

    def finish(self) -> Sequence[Delta]:
        """Return everything held; each text has ended."""
        return [delta for key in list(self._open) for delta in self._finish(key)]

    def _finish_earlier(self, delta: Delta) -> list[Delta]:
        if isinstance(delta, ToolArgsDelta):
            return []
        last = [(key, text.last) for key, text in self._open.items() if type(text.last) is type(delta)]
        earlier = [key for key, other in last if not isinstance(other, ToolArgsDelta) and other.index < delta.index]
        return [out for key in earlier for out in self._finish(key)]

    def _finish(self, key: tuple[type, int | str]) -> list[Delta]:
        text = self._open.pop(key)
        rest = text.redactor.finish()
        if not rest:
            return []
        last = text.last
        return [ToolArgsDelta(rest, last.call_id) if isinstance(last, ToolArgsDelta) else attrs.evolve(last, text=rest)]
