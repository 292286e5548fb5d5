"""What a session's placeholders stand for."""

from __future__ import annotations

import re
from collections.abc import Iterable

LITERAL = "literal"
"""Kind of a text that only looks like a placeholder."""


_EARLY = 10_000


class UnknownPlaceholderError(LookupError):
    """`placeholders` are of this session's form but stand for nothing that is known."""

    def __init__(self, placeholders: Iterable[str]) -> None:
        self.placeholders = tuple(dict.fromkeys(placeholders))
        super().__init__(f"{', '.join(self.placeholders)}: no value is known for it")


class Vault:
    """Values and their placeholders, for one session and in memory only.

    The same value always has the same placeholder, spelling included, and numbers are given in the order of
    appearance. Nothing of a value is in its `repr`, and it cannot be pickled.

    Args:
        session_id: whose it is; its sub-agents use it too.
        style: how a placeholder looks; `{kind}` and `{number}` stand for themselves.
        kinds: every kind there can be, also those that are switched off.
        is_resumed: the session has a history of an earlier process.
    """

    def __init__(self, session_id: str, style: str, kinds: Iterable[str], *, is_resumed: bool = False) -> None:
        self.session_id = session_id
        self.sub_sessions: set[str] = set()
        """Ids of the sub-agents' sessions that use this vault."""
        self.floor = _EARLY if is_resumed else 0
        """Numbers given out are above it. It is high until the numbers of a resumed session's history are reserved."""
        self._style = style
        self._placeholders: dict[tuple[str, str], str] = {}
        self._values: dict[str, str] = {}
        self._last: dict[str, int] = {}
        names = "|".join(kind.upper() for kind in (*kinds, LITERAL))
        form = re.escape(style).replace(r"\{kind\}", f"(?P<kind>{names})")
        self.form = re.compile(form.replace(r"\{number\}", "(?P<number>[1-9][0-9]{0,8})"))
        """What every placeholder looks like."""

    def placeholder(self, kind: str, value: str) -> str:
        """Return the placeholder of `value`, a new one if it has none."""
        known = self._placeholders.get((kind, value))
        if known is not None:
            return known
        number = self._last[kind] = max(self._last.get(kind, 0), self.floor) + 1
        placeholder = self._style.replace("{kind}", kind.upper()).replace("{number}", str(number))
        self._placeholders[kind, value] = placeholder
        self._values[placeholder] = value
        return placeholder

    def reserve(self, text: str) -> None:
        """Never give out the numbers of the placeholders in `text`, which somebody else gave out."""
        for match in self.form.finditer(text):
            kind, number = match["kind"].lower(), int(match["number"])
            if match[0] not in self._values:
                self._last[kind] = max(self._last.get(kind, 0), number)

    def restore(self, text: str) -> str:
        """Return `text` with every placeholder replaced by its value, once.

        Raises:
            UnknownPlaceholderError: some have none, for example since they are of an earlier process.
        """
        unknown = [match[0] for match in self.form.finditer(text) if match[0] not in self._values]
        if unknown:
            raise UnknownPlaceholderError(unknown)
        return self.form.sub(lambda match: self._values[match[0]], text)

    def __repr__(self) -> str:
        return f"<Vault of {len(self._values)} values>"

    def __reduce__(self) -> str:
        raise TypeError("a vault is never stored")
