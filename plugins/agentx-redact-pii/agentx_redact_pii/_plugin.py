"""The plugin: who is masked where, and which call gets the real values back."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, ClassVar

import attrs

from agentx import (
    CallNext,
    Key,
    ModelContext,
    ModelResponse,
    Plugin,
    PluginError,
    RunResult,
    SessionContext,
    ToolContext,
    ToolFailed,
    ToolResult,
    TurnContext,
)

from ._iban import find_ibans
from ._masker import Mask, Masker
from ._personal import find_cards, find_emails, has_phones, phone_finder
from ._secrets import find_tokens
from ._spans import Finder, Recognisers
from ._vault import UnknownPlaceholderError, Vault

KINDS = ("email", "phone", "card", "iban", "token")
VAULT: Key[Vault] = Key("redact.pii")
"""The vault of the session, for tools and plugins that must see a real value: `ctx.get(VAULT).restore(text)`."""

_NUMBERS = {"integer": int, "number": float}
_BORDER = r"[\[\]<>{}|«»⟦⟧]+"
_STYLE = re.compile(rf"{_BORDER}\{{kind\}}[_:#-]\{{number\}}{_BORDER}")


def _known(instance: Any, field: Any, names: tuple[str, ...]) -> None:
    for name in names:
        if name not in KINDS:
            raise ValueError(f"redact.pii knows no kind {name!r}: the kinds are {', '.join(KINDS)}")


def _style(instance: Any, field: Any, value: str) -> None:
    if not _STYLE.fullmatch(value):
        fix = "write {kind}, one of _ : # -, {number}, and brackets around them, such as [{kind}_{number}]"
        raise ValueError(f"redact.pii cannot find placeholders like {value!r} again: {fix}")


def _region(instance: Any, field: Any, value: str | None) -> None:
    if value is not None and not has_phones(value):
        raise ValueError(f"redact.pii: there is no region {value!r} with phone numbers; write ISO letters such as DE")


def with_numbers(real: dict[str, Any], asked: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments in which what the schema wants as a number is one, for a placeholder cannot be."""
    for name, value in real.items():
        number = _NUMBERS.get(schema.get("properties", {}).get(name, {}).get("type"))
        if number is not None and isinstance(value, str) and value != asked.get(name):
            with suppress(ValueError):  # the tool's own validation says what is wrong with it
                real[name] = number(value)
    return real


class RedactPii(Plugin[None]):
    """Keep personal data and secrets from the model, the log and the store; give tools the real values."""

    id: ClassVar = "redact.pii"
    phase: ClassVar = "redact"
    provides: ClassVar = (VAULT,)

    kinds: tuple[str, ...] = attrs.field(default=KINDS, converter=tuple, validator=_known)
    """What is masked."""
    allow: tuple[str, ...] = attrs.field(default=(), converter=tuple)
    """Values that may pass, with `*` and `?` as in file names, in any case: `*@acme.example`."""
    phone_region: str | None = attrs.field(default=None, validator=_region)
    """Whose national numbers are found too, such as `DE`; international ones always are."""
    placeholder: str = attrs.field(default="[{kind}_{number}]", validator=_style)

    @property
    def _key(self) -> Key[Masker]:
        """The masker of this very instance: a sub-agent may have one of its own beside its parent's."""
        return Key(f"redact.pii masker {id(self)}")

    def _recognisers(self) -> Recognisers:
        finders: Mapping[str, Finder] = {
            "email": find_emails,
            "phone": phone_finder(self.phone_region),
            "card": find_cards,
            "iban": find_ibans,
            "token": find_tokens,
        }
        return Recognisers({kind: finders[kind] for kind in self.kinds}, self.allow)

    async def session(self, ctx: SessionContext, call_next: CallNext[None]) -> None:
        vault = ctx.get(VAULT, None)
        if vault is not None and vault.session_id == ctx.session_id:
            raise PluginError("redact.pii is there twice in one agent: one instance masks for all", plugin=self.id)
        if vault is None:
            vault = Vault(ctx.session_id, self.placeholder, KINDS, is_resumed=ctx.is_resumed)
            ctx.provide(VAULT, vault)
        masker = Masker(self._recognisers(), vault)
        ctx.provide(self._key, masker)
        ctx.filter_events(masker.event)
        await call_next()

    async def turn(self, ctx: TurnContext, call_next: CallNext[RunResult[Any]]) -> RunResult[Any]:
        masker = ctx.get(self._key)
        masker.look_back(ctx.history)
        masked = masker.message(ctx.input, masker.foreign)
        if masked is not ctx.input:
            ctx.input = masked
        result = await call_next()
        return masker.turn_result(result)

    async def model(self, ctx: ModelContext, call_next: CallNext[ModelResponse]) -> ModelResponse:
        masker = ctx.get(self._key)
        if ctx.session_id != masker.vault.session_id:
            masker.vault.sub_sessions.add(ctx.session_id)
        ctx.request = masker.request(ctx.request)
        ctx.transform_deltas(masker.transform)
        response = masker.response(await call_next())
        masker.reserve(response)
        return response

    async def tool(self, ctx: ToolContext, call_next: CallNext[ToolResult]) -> ToolResult:
        masker = ctx.get(self._key)
        asked = dict(ctx.args)
        try:
            real = masker.restore(asked)
        except UnknownPlaceholderError as error:
            return ctx.deny(f"{error}; it may come from an earlier process. Ask the user for the value itself")
        if real != asked:
            ctx.args = with_numbers(real, asked, ctx.tool.schema)
        try:
            result = await call_next()
        except ToolFailed as failure:
            safe = masker.failure(failure, _mask_of(masker, ctx))
            if safe is failure:
                raise
            raise safe from None  # the cause says the value too
        finally:
            if real != asked:
                ctx.args = asked  # for the layers outside: logs and spans
        return masker.result(result, _mask_of(masker, ctx))


def _mask_of(masker: Masker, ctx: ToolContext) -> Mask:
    """Return how to mask what a tool said: a sub-agent that uses the same vault has masked it already."""
    is_sub_agent = f"{ctx.session_id}/{ctx.call_id}" in masker.vault.sub_sessions
    return masker.text if is_sub_agent else masker.foreign
