"""Everything that becomes JSON and comes back.

One treatment of text (`clean_text`): NUL and lone surrogates, which PostgreSQL or UTF-8 cannot hold, become U+FFFD.
The loop applies it when content enters a history, so that the live history equals the reloaded one on every store;
`encode` applies it again, so that nothing else can reach a store or a provider.

Writing is `to_plain`, our own walk, and msgspec; reading is msgspec, then cattrs for classes with msgspec for their
leaves. msgspec alone was tried: it cannot read a `Part` by its kind, skips converters and `__init__`, and turns
infinity into null.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import functools
import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast, get_args, get_origin
from uuid import UUID

import attrs
import msgspec

from . import _messages
from ._errors import CodecError
from ._events import EVENTS, Event, UnknownEvent
from ._messages import PARTS, OpaquePart, Part

if TYPE_CHECKING:
    from cattrs import Converter

T = TypeVar("T")
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


def from_plain(plain: Any, cls: type[T]) -> T:
    """Return JSON values as an instance of `cls`, the way back from `to_plain`.

    `cls` may be an attrs class or dataclass (keys it does not know are dropped, missing ones have their default), a
    message, `Part` or `Event`, or any annotation of tuples, frozensets, mappings, Decimal, datetime and the like.

    Raises:
        CodecError: the values do not fit.
    """
    try:
        return _converter().structure(plain, cls)
    except CodecError:
        raise
    except Exception as error:  # cattrs raises whatever a constructor, a validator or a converter raises
        problem = f"{error} is missing" if isinstance(error, KeyError) else error
        raise CodecError(f"cannot read {getattr(cls, '__name__', cls)}: {problem}") from error


FORMAT = 1
"""The format of the events that this version writes; a log states its own in `session.start`."""

_UPCASTS: Mapping[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}
"""What turns an event of one format, as JSON values, into one of the next."""


def encode_event(event: Event) -> bytes:
    """Return `event` as one line of JSON, without the line's end.

    Raises:
        CodecError: something in it cannot become JSON.
    """
    return encode(event)


def decode_event(data: bytes | str, *, format: int = FORMAT) -> Event:
    """Return the event of `encode_event`. An unknown kind becomes an `UnknownEvent` that is written as it came.

    Args:
        format: what the log's `session.start` states.

    Raises:
        CodecError: it is no event, or of a format that only a newer agentx reads.
    """
    return read_event(decode(data), format=format)


def read_event(raw: Any, *, format: int = FORMAT) -> Event:
    """Return the event of its JSON values: what `decode_event` does with the text.

    Raises:
        CodecError: they are no event, or of a format that only a newer agentx reads.
    """
    if format > FORMAT:
        raise CodecError(f"the log has format {format}, and this agentx reads up to {FORMAT}: use a newer one")
    if not isinstance(raw, dict):
        raise CodecError(f"an event is an object, not {type(raw).__name__}")
    for step in range(format, FORMAT):
        raw = _UPCASTS[step](raw)
    return from_plain(raw, Event)


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
    return (_PLAIN.get(type(value)) or _writer(type(value)))(value)  # type: ignore[arg-type]  # mypy: not Hashable


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


@functools.lru_cache(maxsize=1024)
def _writer(cls: Any) -> Callable[[Any], JSON]:
    """Return what writes the instances of a class that `_PLAIN` does not list."""
    for bases, write in _BASES:
        if issubclass(cls, bases):
            return write
    if hasattr(cls, "__pydantic_serializer__") and hasattr(cls, "model_dump"):
        return lambda value: _plain(value.model_dump(mode="json"))
    if attrs.has(cls):
        return _fields_writer(_field_names(cls))
    if dataclasses.is_dataclass(cls):
        return _fields_writer([field.name for field in dataclasses.fields(cls)])
    kind = f"{cls.__module__}.{cls.__qualname__}".removeprefix("builtins.")
    return lambda value: _refuse(f"{kind} cannot become JSON; use text, numbers, lists, dicts, dataclasses or attrs")


def _refuse(problem: str) -> JSON:
    raise _NotJSON(problem)


def _fields_writer(names: Sequence[str]) -> Callable[[Any], JSON]:
    return lambda value: _plain_fields(value, names, {})


def _plain_fields(value: Any, names: Iterable[str], plain: dict[str, JSON]) -> dict[str, JSON]:
    name = ""
    try:
        for name in names:
            item = getattr(value, name)
            plain[name] = item if item is None or type(item) in _EXACT else _plain(item)
    except _NotJSON as error:
        error.path.append(f".{name}")
        raise
    return plain


def _plain_struct(value: msgspec.Struct) -> JSON:
    names = zip(value.__struct_fields__, value.__struct_encode_fields__, strict=True)
    fields = {key: item for name, key in names if (item := getattr(value, name)) is not msgspec.UNSET}
    if (config := value.__struct_config__).tag is not None:
        fields = {str(config.tag_field): config.tag, **fields}
    return _plain_dict(fields)


def _plain_kind(value: Part | Event) -> JSON:
    """Parts and events: their fields behind their `kind`."""
    if isinstance(value, OpaquePart) and _is_unknown(value):
        return _plain_dict(value.data)
    if isinstance(value, UnknownEvent):
        head = _plain_fields(value, ("seq", "time", "turn_id"), {"kind": value.raw_kind})
        return {**head, **cast("dict[str, JSON]", _plain_dict(value.data))}
    return _plain_fields(value, _field_names(type(value)), {"kind": value.kind})  # type: ignore[arg-type]


@functools.lru_cache(maxsize=1024)
def _field_names(cls: Any) -> tuple[str, ...]:
    return tuple([field.name for field in attrs.fields(cls)])


def _is_unknown(part: OpaquePart) -> bool:
    """Whether it stands for a part of a kind that this version does not know: nobody's, and written as it came."""
    kind = part.data.get("kind")
    return part.provider == "" and isinstance(kind, str) and kind not in PARTS


def _builtin(value: Any) -> JSON:
    return msgspec.to_builtins(value)  # type: ignore[no-any-return]


_EXACT = frozenset({int, bool})
"""What is its own JSON value."""

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
    ((Part, Event), _plain_kind),
    (enum.Enum, lambda value: _plain(value.value)),
    (str, lambda value: clean_text(str.__str__(value))),
    (int, int.__int__),
    (float, lambda value: _plain_float(float.__float__(value))),
    (msgspec.Struct, _plain_struct),
    (Mapping, _plain_dict),
    ((list, tuple, deque, range), _plain_list),
    ((set, frozenset), _plain_set),
    (Decimal, _plain_decimal),
    ((datetime.datetime, datetime.date, datetime.time, datetime.timedelta, UUID), _builtin),
    ((bytes, bytearray, memoryview), _builtin),
    (os.PathLike, lambda value: clean_text(os.fsdecode(value))),
)


_LEAVES = (
    str,
    int,
    float,
    bool,
    bytes,
    Decimal,
    UUID,
    datetime.datetime,
    datetime.date,
    datetime.time,
    datetime.timedelta,
)


@functools.cache
def _converter() -> Converter:
    """Return what makes classes of JSON values, built and cattrs imported when it is first needed."""
    from cattrs import Converter
    from cattrs.strategies import configure_union_passthrough

    for cls in vars(_messages).values():
        if isinstance(cls, type) and attrs.has(cls):
            attrs.resolve_types(cls, vars(_messages), {"Decimal": Decimal})  # imported for type checkers only
    converter = Converter(detailed_validation=False)
    for leaf in _LEAVES:
        converter.register_structure_hook(leaf, _read_leaf)
    configure_union_passthrough(str | int | float | bool | None, converter, accept_ints_as_floats=False)
    converter.register_structure_hook_func(lambda cls: cls is Part, _read_part)
    converter.register_structure_hook_func(lambda cls: cls is Event, _read_event)
    converter.register_structure_hook_func(_is_frozen_mapping, _read_frozen_mapping)
    return converter


def _is_frozen_mapping(cls: Any) -> bool:
    return MappingProxyType in (cls, get_origin(cls))


def _read_frozen_mapping(value: Any, cls: Any) -> Mapping[Any, Any]:
    key, item = get_args(cls) or (str, Any)
    plain: dict[Any, Any] = _converter().structure(value, dict[key, item])  # type: ignore[valid-type]
    return MappingProxyType(plain)


def _read_leaf(value: Any, cls: type[T]) -> T:
    return msgspec.convert(value, cls, strict=False)  # keys of objects are strings, whatever they were


def _read_part(value: Any, _: Any) -> Part:
    cls = PARTS.get(value["kind"])
    return OpaquePart("", value) if cls is None else _converter().structure(value, cls)


def _read_event(value: Any, _: Any) -> Event:
    cls = EVENTS.get(value["kind"])
    if cls is not None:
        return _converter().structure(value, cls)
    rest = {key: item for key, item in value.items() if key not in ("kind", "seq", "time", "turn_id")}
    event: UnknownEvent = _converter().structure({**value, "raw_kind": value["kind"], "data": rest}, UnknownEvent)
    return event
