"""Read what the header of a GGUF file says about the model: its context length and its chat template.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO

import attrs

from ._errors import WeightsCorruptError

_STRING, _ARRAY = 8, 9
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_INTEGERS = {4: "<I", 5: "<i", 10: "<Q", 11: "<q"}
_TEMPLATE = "tokenizer.chat_template"
MAX_TEXT = 1 << 24


@attrs.frozen
class Header:
    context_length: int = 0
    chat_template: str = ""

    @property
    def takes_tools(self) -> bool:
        """Whether the model's own template knows how to show it tools."""
        return "tools" in self.chat_template


def read_header(path: Path) -> Header:
    """Return the header of the GGUF file at `path`.

    Raises:
        WeightsCorruptError: it is not a GGUF file, or it ends too early.
    """
    try:
        with path.open("rb") as file:
            return _read(file)
    except (struct.error, KeyError, ValueError, OverflowError) as error:
        raise WeightsCorruptError(f"{path} is not a whole GGUF file: {error or type(error).__name__}") from error


def _read(file: BinaryIO) -> Header:
    if file.read(4) != b"GGUF":
        raise ValueError("it does not start with GGUF")
    version, _tensors, entries = _unpack(file, "<IQQ")
    if version not in (2, 3):
        raise ValueError(f"version {version} is not supported")
    context, template = 0, ""
    for _ in range(entries):
        key = _text(file)
        (kind,) = _unpack(file, "<I")
        if key.endswith(".context_length") and kind in _INTEGERS:
            (context,) = _unpack(file, _INTEGERS[kind])
        elif key == _TEMPLATE and kind == _STRING:
            template = _text(file)
        else:
            _skip(file, kind)
    return Header(context, template)


def _unpack(file: BinaryIO, layout: str) -> tuple[int, ...]:
    return struct.unpack(layout, file.read(struct.calcsize(layout)))


def _text(file: BinaryIO) -> str:
    (size,) = _unpack(file, "<Q")
    if size > MAX_TEXT:
        raise ValueError(f"a text of {size} bytes")
    data = file.read(size)
    if len(data) < size:
        raise ValueError("it ends inside its header")
    return data.decode("utf-8", "replace")


def _skip(file: BinaryIO, kind: int) -> None:
    if kind == _STRING:
        (size,) = _unpack(file, "<Q")
        file.seek(size, 1)
    elif kind == _ARRAY:
        inner, count = _unpack(file, "<IQ")
        if inner in _SIZES:
            file.seek(_SIZES[inner] * count, 1)
            return
        for _ in range(count):
            _skip(file, inner)
    else:
        file.seek(_SIZES[kind], 1)
