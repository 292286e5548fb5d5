"""What agentx-redact-pii recognises in a whole text."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentx_redact_pii import KINDS, UnknownPlaceholderError, Vault
from agentx_redact_pii._masker import Masker
from agentx_redact_pii._spans import Span, merge
from plugins.test_redact_pii_common import (
    EMAIL,
    FIND,
    FRAGMENTS,
    PRIVATE_KEY,
    TOKEN,
    masked,
    new_vault,
    recognisers,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("bob@acme.example", "[EMAIL_1]"),
        ("<bob.o'brien+x@mail.acme.example>, next", "<[EMAIL_1]>, next"),
        ("_bob@acme.example_ and **bob@acme.example**", "_[EMAIL_1]_ and **[EMAIL_1]**"),
        ("mailto:bob@acme.example?subject=x", "mailto:[EMAIL_1]?subject=x"),
        ("?email=bob%40acme.example&x=1", "?email=[EMAIL_1]&x=1"),
        ("联系bob@acme.example谢谢", "联系[EMAIL_1]谢谢"),
        ("jörg@müller.example", "[EMAIL_1]"),
        ("иван@почта.рф", "[EMAIL_1]"),
        ("x@xn--mller-kva.xn--p1ai", "[EMAIL_1]"),
        (r'{"to":"x\nbob@acme.example"}', r'{"to":"x\n[EMAIL_1]"}'),
        ("a" * 80 + "@acme.example", "[EMAIL_1]"),
    ],
)
def test_an_address_is_found_in_what_surrounds_it(text: str, expected: str) -> None:
    assert masked(text) == expected


@pytest.mark.parametrize(
    "text", ["lodash@4.17.21", "root@host", "@handle", "a @ b.example", "user@", "@app.route", "price@5.00"]
)
def test_what_has_no_domain_is_no_address(text: str) -> None:
    assert masked(text) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4111 1111 1111 1111", "[CARD_1]"),
        ("4111-1111-1111-1111.", "[CARD_1]."),
        ("4111111111111111", "[CARD_1]"),
        ("4111 1111 1111 1111 12/27 123", "[CARD_1] 12/27 123"),
        ("3782 822463 10005", "[CARD_1]"),
        ("４１１１ １１１１ １１１１ １１１１", "[CARD_1]"),
        ("no 12 4111 1111 1111 1111", "no 12 [CARD_1]"),
    ],
)
def test_a_card_is_found_with_or_without_groups(text: str, expected: str) -> None:
    assert masked(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "4111 1111 1111 1112",  # the check digit is wrong
        "0.4111111111111111",
        "1764547200000",  # a time in milliseconds
        "41 11 11 11 11 11 11 11",
        "12345678901234567890123",
    ],
)
def test_other_numbers_are_no_cards(text: str) -> None:
    assert masked(text) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("GB29 NWBK 6016 1331 9268 19", "[IBAN_1]"),
        ("GB29NWBK60161331926819", "[IBAN_1]"),
        ("de89370400440532013000", "[IBAN_1]"),
        ("IBAN:DE89-3704-0044-0532-0130-00;", "IBAN:[IBAN_1];"),
        ("DE89 3704 0044 0532 0130 00 12 EUR", "[IBAN_1] 12 EUR"),
        ("MT84 MALT 0110 0001 2345 MTLC AST0 01S", "[IBAN_1]"),
    ],
)
def test_an_iban_is_found_with_or_without_groups(text: str, expected: str) -> None:
    assert masked(text) == expected


@pytest.mark.parametrize("text", ["GB28 NWBK 6016 1331 9268 19", "XX89 3704 0044 0532 0130 00", "AT10 what they want"])
def test_a_wrong_check_or_country_is_no_iban(text: str) -> None:
    assert masked(text) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("+49 30 1234567", "[PHONE_1]"),
        ("call +1 (415) 555-2671.", "call [PHONE_1]."),
        ("tel:+442079460958", "tel:[PHONE_1]"),
        ("0049 30 1234567", "[PHONE_1]"),
        ("+33 1 23 45 67 89 4111 1111 1111 1111", "[PHONE_1] [CARD_1]"),
        ("+1 415 555 2671 / +49 30 1234567", "[PHONE_1] / [PHONE_2]"),
        ("+1 555 0100", "[PHONE_1]"),
    ],
)
def test_an_international_phone_number_is_found(text: str, expected: str) -> None:
    assert masked(text) == expected


def test_a_national_phone_number_is_found_where_its_region_is_said() -> None:
    assert masked("call (415) 555-2671 now") == "call (415) 555-2671 now"
    assert masked("call (415) 555-2671 now", recognisers("US")) == "call [PHONE_1] now"
    assert masked("on 12/31/2024 at 10:30", recognisers("US")) == "on 12/31/2024 at 10:30"


@pytest.mark.parametrize(
    "token",
    [
        "ghp_" + "a1B2" * 9,
        "github_pat_" + "a1B2_" * 16,
        "sk-proj-" + "a1B2-_" * 10,
        "sk-ant-api03-" + "a1B2-_" * 15 + "AA",
        "AKIAQYLPMN5HHHFPZAM2",
        "AIzaSyD-9tSrke72PouQMnMX-a7eZSW0jkFMBWY",
        "hf_" + "aBcD" * 9,
        "xoxb-123456789012-1234567890123-AbCdEfGh",
        "sk_live_" + "a1B2" * 6,
        "glpat-" + "a1B2_" * 4,
        "SG." + "a1B2_x" * 4 + "." + "a1B2-x" * 7,
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abc-def_x",
        "pypi-" + "AgEI" * 20,
        PRIVATE_KEY,
        PRIVATE_KEY.replace("\n", "\\n"),
    ],
)
def test_a_token_shows_what_it_is(token: str) -> None:
    assert masked(f"key={token} and") == "key=[TOKEN_1] and"


def test_a_key_that_was_cut_off_is_one_too() -> None:
    assert masked(PRIVATE_KEY[:300]) == "[TOKEN_1]"


def test_a_bearer_token_and_a_login_in_a_url_are_secrets() -> None:
    assert masked("Authorization: Bearer abcdefghij0123456789") == "Authorization: Bearer [TOKEN_1]"
    assert masked("postgres://app:hunter2@db/app") == "postgres://[TOKEN_1]@db/app"


@pytest.mark.parametrize(
    "text", ["task-force-alpha-bravo-charlie-delta", "sk-learn-and-many-other-words", "the bearer of"]
)
def test_words_that_look_like_tokens_stay(text: str) -> None:
    assert masked(text) == text


def test_overlapping_matches_become_one_that_covers_them_all_and_is_named_after_the_longest() -> None:
    spans = [Span(0, 4, "a"), Span(3, 9, "b"), Span(8, 10, "c"), Span(10, 12, "d")]
    assert merge(spans) == [Span(0, 10, "b"), Span(10, 12, "d")]
    assert merge([Span(0, 4, "a"), Span(2, 6, "b")]) == [Span(0, 6, "a")]


def test_no_text_is_lost_where_an_address_holds_a_token_or_a_domain_matches_too() -> None:
    assert masked(f"x {TOKEN}@acme.example y") == "x [EMAIL_1] y"

    def domains(text: str) -> list[Span]:
        at = text.find("acme.example")
        return [] if at < 0 else [Span(at, at + 12, "domain")]

    find = recognisers()
    find._finders = (*find._finders, domains)
    assert masked("Mail bob@acme.example now", find) == "Mail [EMAIL_1] now"


def test_allowed_values_pass_in_any_case() -> None:
    find = recognisers(allow=["*@acme.example", "+49 30 *"])
    assert masked("Bob@ACME.example, eve@else.example, +49 30 1234567", find) == (
        "Bob@ACME.example, [EMAIL_1], +49 30 1234567"
    )


def test_the_same_value_has_the_same_placeholder_and_numbers_follow_appearance() -> None:
    assert masked("b@x.example a@x.example b@x.example") == "[EMAIL_1] [EMAIL_2] [EMAIL_1]"


def test_a_text_that_looks_like_a_placeholder_comes_back_as_that_text() -> None:
    masker = Masker(FIND, new_vault())
    text = masker.foreign("bob@acme.example says [EMAIL_1] and [LITERAL_1]")
    assert text == "[EMAIL_1] says [LITERAL_1] and [LITERAL_2]"
    assert masker.vault.restore(text) == "bob@acme.example says [EMAIL_1] and [LITERAL_1]"


def test_a_number_that_somebody_else_gave_out_is_not_given_out_again() -> None:
    vault = new_vault()
    vault.reserve("old [EMAIL_7] and [PHONE_2]")
    assert vault.placeholder("email", EMAIL) == "[EMAIL_8]"
    with pytest.raises(UnknownPlaceholderError, match=r"\[EMAIL_7\]"):
        vault.restore("[EMAIL_8] [EMAIL_7]")


def test_a_vault_shows_and_stores_nothing() -> None:
    vault = new_vault()
    vault.placeholder("email", EMAIL)
    assert EMAIL not in repr(vault)
    with pytest.raises(TypeError, match="never stored"):
        pickle.dumps(vault)


@pytest.mark.parametrize("style", ["<{kind}:{number}>", "{{kind}_{number}}", "⟦{kind}#{number}⟧"])
def test_any_style_is_found_again(style: str) -> None:
    masker = Masker(FIND, Vault("s", style, KINDS))
    text = masker.foreign(f"{EMAIL} {style.replace('{kind}', 'EMAIL').replace('{number}', '1')}")
    assert EMAIL not in text
    assert masker.text(text) == text
    assert masker.vault.restore(text).startswith(EMAIL)


@given(st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=3), max_size=12).map("".join))
def test_masking_twice_is_masking_once_and_restoring_gives_the_text_back(text: str) -> None:
    masker = Masker(FIND, new_vault())
    once = masker.foreign(text)
    fresh = Masker(FIND, masker.vault)
    assert fresh.text(once) == once
    assert masker.vault.restore(once) == text
