"""The URL of a SQLite file, and the options in it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from agentx._errors import StoreError
from agentx._settings import suggestion

_CHOICES = {"durability": ("step", "turn"), "synchronous": ("normal", "full")}


def path_and_options(given: str, options: Mapping[str, Any]) -> tuple[Path, dict[str, Any]]:
    """Return the path that a path or URL means, and the options with those of the URL laid over.

    `sqlite:///x.db` is relative, `sqlite:////x.db` absolute.

    Raises:
        StoreError: it is no such URL, or an option is unknown or has a value it does not take.
    """
    chosen = dict(options)
    if given.partition(":")[0] == "sqlite":
        url = urlsplit(given)
        if url.netloc or not url.path.startswith("/") or url.path == "/":
            raise StoreError(f"{given!r} names no file: write sqlite:///relative.db or sqlite:////absolute.db")
        for name, text in parse_qsl(url.query, keep_blank_values=True):
            if name not in options:
                raise StoreError(f"{given!r}: there is no option {name!r}{suggestion(name, options)}")
            chosen[name] = text
        given = unquote(url.path[1:])
    if given in ("", ":memory:"):
        raise StoreError("a SQLite store needs a file: a store in memory is MemoryStore(), or the URL memory:")
    return Path(given), {name: _checked(name, value) for name, value in chosen.items()}


def _checked(name: str, value: Any) -> Any:
    choices = _CHOICES.get(name)
    if choices is not None:
        if value not in choices:
            raise StoreError(f"{name} is one of {', '.join(choices)}, not {value!r}")
        return value
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = -1.0
    if not 0 <= number < float("inf"):
        raise StoreError(f"{name} is a number of seconds, not {value!r}")
    return number
