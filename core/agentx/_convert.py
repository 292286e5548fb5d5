"""Turn a value of a configuration file, or a text of the environment, into the type of a field.

Values of a file are checked and not bent: `"5"` is no int, and `true` is none either. Texts are parsed. cattrs does
attrs classes and dispatches on types; it is imported when there is something to convert.
"""

from __future__ import annotations

import collections.abc
import functools
import json
import math
import types
import typing
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, get_args, get_origin

import attrs

if TYPE_CHECKING:
    from cattrs import Converter

T = TypeVar("T")

_SEQUENCES = (tuple, list, frozenset, set, collections.abc.Sequence, collections.abc.Set, collections.abc.Collection)
_MAPPINGS = (dict, collections.abc.Mapping)
_WORDS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


class Text(str):
    """A text that stands for a value of another type."""

    __slots__ = ()


class Unfit(ValueError):
    """A value that a type does not take. `expected` says what it takes, `path` where in the value."""

    def __init__(self, expected: str, value: Any, path: str = "") -> None:
        super().__init__(f"must be {expected}, not {value!r}")
        self.expected = expected
        self.value = value
        self.path = path


def convert(value: Any, kind: Any) -> Any:
    """Return `value` as a `kind`.

    Raises:
        Unfit: it does not fit.
        TypeError: configuration cannot express such a type.
    """
    from cattrs.errors import StructureHandlerNotFoundError

    try:
        return _converter().structure(value, kind)
    except StructureHandlerNotFoundError as error:
        raise TypeError(f"configuration cannot express the type {error.type_!r}") from error
    except Exception as error:
        raise _innermost(error, value, "") from error


def _innermost(error: BaseException, value: Any, path: str) -> Unfit:
    """Return the first fault inside a nested value, with the way to it."""
    from cattrs.errors import ForbiddenExtraKeysError

    if isinstance(error, ExceptionGroup):
        inner = error.exceptions[0]
        names = [note.name for note in getattr(inner, "__notes__", ()) if hasattr(note, "name")]
        return _innermost(inner, value, ".".join([path, *names]))
    if isinstance(error, Unfit):
        return Unfit(error.expected, error.value, path)
    if isinstance(error, ForbiddenExtraKeysError):
        from ._settings import suggestion

        extra = min(error.extra_fields)
        names = [field.alias or field.name for field in attrs.fields(error.cl)]
        return Unfit(f"a table without the unknown key {extra!r}{suggestion(extra, names)}", value, path)
    if isinstance(error, KeyError):
        return Unfit(f"a table with the key {error.args[0]!r}", value, path)
    return Unfit(f"something else ({type(error).__name__}: {error})", value, path)


@functools.cache
def _converter() -> Converter:
    from cattrs import Converter

    converter = Converter(forbid_extra_keys=True)
    for kind, hook in _SIMPLE.items():
        converter.register_structure_hook(kind, hook)
    structure = converter.structure
    converter.register_structure_hook_func(lambda kind: _class_of(kind) is Literal, _literal)
    converter.register_structure_hook_func(_is_enum, _enum)
    converter.register_structure_hook_func(_is_union, lambda value, kind: _union(value, kind, structure))
    converter.register_structure_hook_func(
        lambda kind: _class_of(kind) in _SEQUENCES, lambda value, kind: _sequence(value, kind, structure)
    )
    converter.register_structure_hook_func(
        lambda kind: _class_of(kind) in _MAPPINGS, lambda value, kind: _mapping(value, kind, structure)
    )
    converter.register_structure_hook_factory(attrs.has, lambda cls: _attrs_class(cls, converter))
    return converter


def _class_of(kind: Any) -> Any:
    """Return `tuple` for `tuple[int, ...]`, and a plain class as it is."""
    return get_origin(kind) or kind


def _bool(value: Any, _: Any) -> bool:
    if isinstance(value, Text) and value.strip().lower() in _WORDS:
        return _WORDS[value.strip().lower()]
    if isinstance(value, bool):
        return value
    raise Unfit("true or false", value)


def _int(value: Any, _: Any) -> int:
    if isinstance(value, Text):
        return _parsed(int, value, "a whole number")
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise Unfit("a whole number", value)


def _float(value: Any, _: Any) -> float:
    number = _parsed(float, value, "a number") if isinstance(value, Text) else value
    if isinstance(number, int | float) and not isinstance(number, bool) and math.isfinite(number):
        return float(number)
    raise Unfit("a finite number", value)


def _decimal(value: Any, _: Any) -> Decimal:
    if isinstance(value, str | int | float) and not isinstance(value, bool):  # a file says "0.10" or 0.10
        number = _parsed(Decimal, str(value), "a decimal number")
        if number.is_finite():
            return number
    raise Unfit('a decimal number such as "0.10"', value)


def _str(value: Any, _: Any) -> str:
    if isinstance(value, str):
        return str(value)
    raise Unfit("a text", value)


def _path(value: Any, _: Any) -> Path:
    if isinstance(value, str | Path):
        return Path(value)
    raise Unfit("a path", value)


def _timedelta(value: Any, _: Any) -> timedelta:
    if isinstance(value, timedelta):
        return value
    try:
        return timedelta(seconds=_float(value, float))
    except (Unfit, OverflowError):
        raise Unfit("a number of seconds", value) from None


def _time(value: Any, kind: Any) -> Any:
    if isinstance(value, Text):
        return _parsed(kind.fromisoformat, value, f"an ISO {kind.__name__}")
    if type(value) is kind:  # TOML has these types; a datetime is a date too, but not one that was meant
        return value
    raise Unfit(f"a {kind.__name__}", value)


def _parsed(parse: Callable[[str], T], text: str, expected: str) -> T:
    try:
        return parse(text)
    except (ValueError, InvalidOperation):
        raise Unfit(expected, str(text)) from None


_SIMPLE: Mapping[Any, Callable[[Any, Any], Any]] = {
    bool: _bool,
    int: _int,
    float: _float,
    Decimal: _decimal,
    str: _str,
    Path: _path,
    timedelta: _timedelta,
    datetime: _time,
    date: _time,
    time: _time,
}


def _literal(value: Any, kind: Any) -> Any:
    for choice in get_args(kind):
        if str(choice) == value if isinstance(value, Text) else choice == value and type(choice) is type(value):
            return choice
    raise Unfit(f"one of {', '.join(repr(choice) for choice in get_args(kind))}", value)


def _is_enum(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Enum)


def _enum(value: Any, kind: type[Enum]) -> Enum:
    for member in kind:
        written = str(member.value) == value if isinstance(value, Text) else member.value == value
        if member is value or (written and not isinstance(value, bool)):
            return member
    raise Unfit(f"one of {', '.join(repr(member.value) for member in kind)}", value)


def _is_union(kind: Any) -> bool:
    return _class_of(kind) in (Union, types.UnionType)


def _union(value: Any, kind: Any, structure: Callable[[Any, Any], Any]) -> Any:
    options = [option for option in get_args(kind) if option is not type(None)]
    if len(options) < len(get_args(kind)) and (value is None or (isinstance(value, Text) and not value.strip())):
        return None
    faults = []
    for choice in sorted(options, key=lambda option: option is str):  # str last: every text of the environment is one
        try:
            return structure(value, choice)
        except Exception as error:
            faults.append(_innermost(error, value, ""))
    if len(faults) == 1:
        raise faults[0]
    raise Unfit(" or ".join(dict.fromkeys(fault.expected for fault in faults)), value)


def _sequence(value: Any, kind: Any, structure: Callable[[Any, Any], Any]) -> Any:
    items = _items(value) if isinstance(value, Text) else value
    if not isinstance(items, list | tuple | set | frozenset):
        raise Unfit("a list", value)
    made, kinds = _class_of(kind), get_args(kind)
    if made is tuple and kinds and kinds[-1] is not Ellipsis:
        if len(items) != len(kinds):
            raise Unfit(f"a list of {len(kinds)}", value)
        return tuple(structure(item, part) for item, part in zip(items, kinds, strict=True))
    part = kinds[0] if kinds else Any
    build = made if made in (tuple, list, frozenset, set) else tuple
    return build(structure(item, part) for item in items)


def _items(text: Text) -> list[Any]:
    """Read a text as a list: JSON if it looks like it, else divided by commas."""
    if text.lstrip().startswith("["):
        return _parsed(json.loads, text, "a JSON list or texts divided by commas")
    return [Text(item.strip()) for item in text.split(",") if item.strip()]


def _mapping(value: Any, kind: Any, structure: Callable[[Any, Any], Any]) -> Any:
    table = _parsed(json.loads, value, "a JSON object") if isinstance(value, Text) else value
    if not isinstance(table, Mapping):
        raise Unfit("a table", value)
    of_key, of_value = get_args(kind) or (Any, Any)
    return {structure(Text(key), of_key): structure(item, of_value) for key, item in table.items()}


def _attrs_class(cls: Any, converter: Converter) -> Callable[[Any, Any], Any]:
    from cattrs.gen import make_dict_structure_fn

    typing.get_type_hints(cls)  # a name that is not there at run time is an error here and not a field without a check
    build = make_dict_structure_fn(cls, converter, _cattrs_forbid_extra_keys=True)

    def structure(value: Any, kind: Any) -> Any:
        if isinstance(value, cls):
            return value
        table = _parsed(json.loads, value, "a JSON object") if isinstance(value, Text) else value
        if not isinstance(table, Mapping):
            raise Unfit("a table", value)
        return build(dict(table), kind)

    return structure
