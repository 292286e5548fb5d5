"""The official SDKs' types as an oracle: what is sent has only keys they know, and what our fakes answer is theirs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from pydantic import BaseModel, TypeAdapter


@lru_cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def check_sent(body: Any, kind: Any) -> None:
    """Check a request's body against a type of an SDK; a key that it does not know is dropped on the way through.

    Raises:
        ValueError: naming what does not fit.
    """
    through = _plain(_adapter(kind).validate_python(body))
    unknown = list(_differences(body, through, ""))
    if unknown:
        raise ValueError(f"unknown to {kind.__name__ if hasattr(kind, '__name__') else kind}: {', '.join(unknown)}")


def check_answered(body: Any, kind: type[BaseModel]) -> None:
    """Check an answer of a fake against a model of an SDK.

    Raises:
        ValueError: naming what does not fit.
    """
    made = kind.model_validate(body, strict=False)
    extra = list(_extras(made, kind.__name__))
    if extra:
        raise ValueError(f"{kind.__name__} does not know {', '.join(extra)}")


def _extras(value: Any, path: str) -> Iterator[str]:
    """Yield what a model of an SDK, which takes any key, has beyond its fields."""
    if isinstance(value, BaseModel):
        for key in value.model_extra or {}:
            yield f"{path}.{key}"
        for name in type(value).model_fields:
            yield from _extras(getattr(value, name), f"{path}.{name}")
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _extras(item, path)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, str | bytes | int | float | bool) or value is None:
        return value
    return [_plain(item) for item in value]  # what may be any iterable is checked while it is read


def _differences(sent: Any, through: Any, path: str) -> Iterator[str]:
    if isinstance(sent, dict) and isinstance(through, dict):
        for key, item in sent.items():
            if key not in through:
                yield f"{path}.{key}"
            else:
                yield from _differences(item, through[key], f"{path}.{key}")
    elif isinstance(sent, list | tuple) and isinstance(through, list):
        for index, (one, other) in enumerate(zip(sent, through, strict=True)):
            yield from _differences(one, other, f"{path}[{index}]")
