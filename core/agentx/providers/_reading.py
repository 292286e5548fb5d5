"""What reading an answer needs, whichever dialect it comes in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import attrs
import msgspec

from agentx._errors import BadResponseError, ModelError

from ._assembler import Assembler
from ._failures import ErrorTable, Failure, error_of
from ._keys import masked

T = TypeVar("T")


@attrs.frozen
class Reading:
    """One answer that is being read.

    Args:
        model: as it stands in errors.
        out: takes the pieces.
        headers: of the answer, with names in lower case.
        secrets: are in no message.
        table: the provider's own codes of errors.
    """

    model: str
    out: Assembler
    headers: Mapping[str, str]
    secrets: tuple[str, ...] = attrs.field(default=(), repr=False)
    table: ErrorTable | None = None

    def error(self, failure: Failure) -> ModelError:
        """Return the error that a server reports, with what the call has used by then."""
        return error_of(
            failure,
            model=self.model,
            table=self.table,
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
            raise self.bad(data, error) from error
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            try:
                return decoder.decode(data.decode("utf-8", "replace"))
            except (msgspec.DecodeError, RecursionError) as error:
                raise self.bad(data, error) from error

    def convert(self, value: Any, kind: type[T]) -> T:
        """Return a part of an answer as what it should be.

        Raises:
            BadResponseError: it is of another form.
        """
        try:
            return msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            raise self.bad(b"", error) from error

    def bad(self, data: bytes, error: Exception) -> BadResponseError:
        """Return the error of an answer that cannot be read."""
        shown = masked(data.decode("utf-8", "replace"), self.secrets)[:80]
        said = f": {shown!r}" if shown else ""
        return BadResponseError(
            f"{self.model} sent what cannot be read ({masked(str(error), self.secrets)}){said}",
            usage=self.out.totals.usage(estimated=True),
        )
