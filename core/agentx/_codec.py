"""Everything that becomes JSON and comes back.

One treatment of text (`clean_text`): NUL and lone surrogates, which PostgreSQL or UTF-8 cannot hold, become U+FFFD.
The loop applies it when content enters a history, so that the live history equals the reloaded one on every store;
`encode` applies it again, so that nothing else can reach a store or a provider.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Any, TypeAlias
from uuid import UUID

import attrs
import msgspec

from ._errors import CodecError

JSON: TypeAlias = bool | int | float | str | list["JSON"] | dict[str, "JSON"] | None


def clean_text(text: str) -> str:
    """Return `text` as what every store and provider can hold: NUL and lone surrogates become U+FFFD.

    The two halves of a surrogate pair that were decoded apart become the character they mean.
    """
    if "\0" in text:
        text = text.replace("\0", "\ufffd")
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def encode(value: Any) -> bytes:
    """Return `value` as compact JSON in UTF-8, with keys in their own order.

    Takes what `to_plain` takes.

    Raises:
        CodecError: it cannot become JSON; the message has the path and what to do.
    """
    return _write(to_plain(value))


def canonical(value: Any) -> bytes:
    """Return `value` as JSON with sorted keys: equal values give equal bytes."""
    return _write(to_plain(value), order="sorted")


def digest(value: Any) -> str:
    """Return the SHA-256 of `canonical(value)` in hexadecimal."""
    import hashlib  # loads OpenSSL

    return hashlib.sha256(canonical(value)).hexdigest()


def decode(data: bytes | str) -> Any:
    """Return the value of a JSON text.

    Of keys that are there twice the last wins; NaN and Infinity are no JSON.

    Raises:
        CodecError: it is no JSON.
    """
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise CodecError(f"not JSON: {error}") from error


def to_plain(value: Any) -> JSON:
    """Return `value` as new dicts, lists and scalars that are JSON.

    attrs and dataclass instances, msgspec structs, pydantic models and mappings become objects; sets become sorted
    lists; Decimal, datetime, UUID and paths strings; bytes base64; an Enum its value. Text is cleaned.

    Raises:
        CodecError: for anything else, for NaN and Infinity, and for a value that contains itself.
    """
    try:
        return _plain(value)
    except _NotJSON as error:
        path = "".join(reversed(error.path))
        raise CodecError(f"{error.problem}{f' at {path}' if path else ''}") from None
    except RecursionError as error:
        raise CodecError("the value is nested too deeply, or contains itself") from error


class _NotJSON(Exception):
    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.path: list[str] = []


def _write(plain: JSON, order: Any = None) -> bytes:
    try:
        return msgspec.json.encode(plain, order=order)
    except (ValueError, RecursionError) as error:  # an integer of more than 4,300 digits, or too deep
        raise CodecError(f"cannot become JSON: {error}") from error


def _plain(value: Any) -> JSON:
    write = _PLAIN.get(type(value))
    return write(value) if write is not None else _plain_subclass(value)


def _same(value: Any) -> JSON:
    return value  # type: ignore[no-any-return]


def _plain_float(value: float) -> JSON:
    if not math.isfinite(value):
        raise _NotJSON(f"{value} is no JSON number; use None or a string")
    return value


def _plain_decimal(value: Decimal) -> JSON:
    if not value.is_finite():
        raise _NotJSON(f"Decimal {value} is no number; use None or a string")
    return str(value)


def _plain_dict(value: Mapping[Any, Any]) -> JSON:
    plain: dict[str, JSON] = {}
    for key, item in value.items():
        name = clean_text(key) if type(key) is str else _key(key)
        if name in plain:
            raise _NotJSON(f"two keys become {name!r} in JSON")
        try:
            plain[name] = _plain(item)
        except _NotJSON as error:
            error.path.append(f".{name[:80]}")
            raise
    return plain


def _key(key: Any) -> str:
    plain = _plain(key)
    if isinstance(plain, str):
        return plain
    if plain is None or isinstance(plain, int | float):
        return _write(plain).decode()  # as Python's json module: true, null, 1
    raise _NotJSON(f"a key of type {type(key).__name__} cannot become a JSON key; use str keys")


def _plain_list(value: Iterable[Any]) -> JSON:
    plain: list[JSON] = []
    for item in value:
        try:
            plain.append(_plain(item))
        except _NotJSON as error:
            error.path.append(f"[{len(plain)}]")
            raise
    return plain


def _plain_set(value: Iterable[Any]) -> JSON:
    return sorted([_plain(item) for item in value], key=_sortable)


def _sortable(plain: JSON) -> tuple[bool, Any]:
    """Numbers in their order, then everything else by its text."""
    is_number = isinstance(plain, int | float)
    return (not is_number, plain if is_number else _write(plain, order="sorted"))


def _plain_subclass(value: Any) -> JSON:
    """What the exact type did not tell: subclasses, and classes that describe themselves."""
    if isinstance(value, enum.Enum):
        return _plain(value.value)
    if dump := getattr(type(value), "model_dump", None):
        return _plain(dump(value, mode="json"))
    if attrs.has(type(value)):
        return _plain_dict({field.name: getattr(value, field.name) for field in attrs.fields(type(value))})
    if isinstance(value, msgspec.Struct):
        names = zip(value.__struct_fields__, value.__struct_encode_fields__, strict=True)
        return _plain_dict({key: item for name, key in names if (item := getattr(value, name)) is not msgspec.UNSET})
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _plain_dict({field.name: getattr(value, field.name) for field in dataclasses.fields(value)})
    for base, write in _BASES:
        if isinstance(value, base):
            return write(value)
    kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    raise _NotJSON(f"{kind} cannot become JSON; return text, numbers, lists, dicts, dataclasses or attrs classes")


def _builtin(value: Any) -> JSON:
    return msgspec.to_builtins(value)  # type: ignore[no-any-return]


_PLAIN: dict[type, Callable[[Any], JSON]] = {
    str: clean_text,
    int: _same,
    bool: _same,
    type(None): _same,
    float: _plain_float,
    Decimal: _plain_decimal,
    dict: _plain_dict,
    list: _plain_list,
    tuple: _plain_list,
    set: _plain_set,
    frozenset: _plain_set,
}
_BASES: tuple[tuple[type | tuple[type, ...], Callable[[Any], JSON]], ...] = (
    (str, lambda value: clean_text(str.__str__(value))),
    (int, lambda value: int(value)),
    (float, lambda value: _plain_float(float(value))),
    (Mapping, _plain_dict),
    ((list, tuple, deque, range), _plain_list),
    ((set, frozenset), _plain_set),
    (Decimal, _plain_decimal),
    (os.PathLike, lambda value: clean_text(os.fsdecode(value))),
    ((datetime.datetime, datetime.date, datetime.time, datetime.timedelta, UUID), _builtin),
    ((bytes, bytearray, memoryview), _builtin),
)
