"""Texts and shorthands for the tests of agentx-redact-pii."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from agentx_redact_pii import KINDS, Vault
from agentx_redact_pii._iban import find_ibans
from agentx_redact_pii._masker import Masker
from agentx_redact_pii._personal import find_cards, find_emails, phone_finder
from agentx_redact_pii._secrets import find_tokens
from agentx_redact_pii._spans import Recognisers
from agentx_redact_pii._stream import Piece, TextRedactor

EMAIL = "bob@acme.example"
CARD = "4111 1111 1111 1111"
IBAN = "GB29 NWBK 6016 1331 9268 19"
GERMAN_IBAN = "DE89 3704 0044 0532 0130 00"
PHONE = "+49 30 1234567"
US_PHONE = "+1 (415) 555-2671"
TOKEN = "ghp_" + "a1B2" * 9
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abc-def_x"
_LINES = "\n".join([("Ab3" * 22)[:64]] * 12)
PRIVATE_KEY = f"-----BEGIN RSA PRIVATE KEY-----\n{_LINES}\nabc=\n-----END RSA PRIVATE KEY-----"

VALUES = (EMAIL, CARD, IBAN, GERMAN_IBAN, PHONE, US_PHONE, TOKEN, JWT)

# fmt: off
FRAGMENTS = (
    *VALUES, PRIVATE_KEY, "bob@", "bob@acme.", "4111 11", "DE89", "GB29 NWBK", "+49", "+1 (", "sk-", "0049", "%40",
    "-----BEGIN", "-----BEGIN RSA PRIVATE KEY-----", "Bearer ", "word", "The end. ", "[EMAIL_1]", "[CARD_2]",
    "1/2", "\\", "\\n", " ", "  ", "\n", ",", ". ", "-", "n", "a", "7", "@", "://", "(", "é", "联", "１", "「",
)
"""Values, beginnings of values and what may stand between them."""
# fmt: on


def recognisers(region: str | None = None, allow: Sequence[str] = ()) -> Recognisers:
    finders = {
        "email": find_emails,
        "phone": phone_finder(region),
        "card": find_cards,
        "iban": find_ibans,
        "token": find_tokens,
    }
    return Recognisers(finders, allow)


FIND = recognisers()


def new_vault() -> Vault:
    return Vault("s", "[{kind}_{number}]", KINDS)


def masked(text: str, find: Recognisers = FIND) -> str:
    return Masker(find, new_vault()).text(text)


def pieces_of(deltas: Iterable[str], find: Recognisers = FIND) -> list[list[Piece]]:
    """Return what each delta let out, and at last what the end did."""
    redactor = TextRedactor(find)
    return [*[redactor.feed(delta) for delta in deltas], redactor.finish()]


def streamed(deltas: Iterable[str], find: Recognisers = FIND) -> list[str]:
    """Return what a reader of the stream has seen, delta by delta."""
    vault = new_vault()
    return [
        "".join([text if kind is None else vault.placeholder(kind, text) for text, kind in out])
        for out in pieces_of(deltas, find)
    ]
