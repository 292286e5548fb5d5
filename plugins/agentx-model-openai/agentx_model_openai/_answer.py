"""What reading an answer needs, whichever interface it comes from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import attrs
import msgspec

from agentx import BadResponseError, ModelError
from agentx.providers import Assembler, Failure, error_of, masked

from ._errors import CODES

T = TypeVar("T")


@attrs.frozen
class Reading:
    """One answer that is being read."""

    model: str
    """As it stands in errors."""
    out: Assembler
    headers: Mapping[str, str]
    secrets: tuple[str, ...] = attrs.field(default=(), repr=False)

    def error(self, failure: Failure) -> ModelError:
        """Return the error that a server reports, with what the call has used by then."""
        return error_of(
            failure,
            model=self.model,
            table=CODES,
            headers=self.headers,
            secrets=self.secrets,
            usage=self.out.totals.usage(estimated=True),
        )

    def decode(self, data: bytes, decoder: msgspec.json.Decoder[T]) -> T:
        """Return what JSON says; invalid UTF-8 in it is replaced.

        Raises:
            BadResponseError: it is no JSON, or of another form.
        """
        try:
            return decoder.decode(data)
        except msgspec.ValidationError as error:
            raise self._bad(data, error) from error
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            try:
                return decoder.decode(data.decode("utf-8", "replace"))
            except (msgspec.DecodeError, RecursionError) as error:
                raise self._bad(data, error) from error

    def convert(self, value: Any, kind: type[T]) -> T:
        """Return a part of an answer as what it should be.

        Raises:
            BadResponseError: it is of another form.
        """
        try:
            return msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            raise self._bad(b"", error) from error

    def _bad(self, data: bytes, error: Exception) -> BadResponseError:
        shown = masked(data.decode("utf-8", "replace"), self.secrets)[:80]
        said = f": {shown!r}" if shown else ""
        return BadResponseError(f"{self.model} sent what cannot be read ({masked(str(error), self.secrets)}){said}")
