"""Keys: bare ones, their bounds, and the ids and derived keys that are made of them."""

from __future__ import annotations

import time
import uuid
from types import SimpleNamespace

import pytest
from django.contrib.sessions.backends.cache import SessionStore
from hypothesis import given
from hypothesis import strategies as st

from django_idempotency import InvalidKey
from django_idempotency.claims import ClaimRequest
from django_idempotency.http import scopes
from django_idempotency.keys import (
    MAX_LENGTH,
    bounded,
    check,
    derive,
    is_scope,
    new_key,
    new_token,
    parse,
    record_id,
    short,
)
from django_idempotency.leases import Lease, Proof

UUID_KEY = "8e03978e-40d5-43e8-bc93-6894a57f9324"

texts = st.text(st.characters(codec="utf-8"), max_size=30)


def test_R3_string_and_R4_bare_are_the_same_key():
    assert parse(f'"{UUID_KEY}"') == parse(UUID_KEY) == UUID_KEY


def refused(*fields, **options):
    """Return those fields that are refused."""
    return [field for field in fields if parsed(field, **options) is None]


def parsed(field, **options):
    try:
        return parse(field, **options)
    except InvalidKey:
        return None


def test_R4_bare_key_is_taken_as_it_stands():
    signs = ["a", "1", "?1", "a=b", "a;v=1", ":Zm9v:", "(x)", "a b", "'foo'", "foo\\bar", "*", "%"]
    assert [parse(key) for key in (*signs, "<b>")] == [*signs, "<b>"]
    assert parse(f"  {UUID_KEY} ") == UUID_KEY
    assert refused(*signs, UUID_KEY, strict=True) == [*signs, UUID_KEY]


def test_R5_sign_that_no_bare_key_may_have():
    fields = ['a"', '"a', 'a"b', "a\tb", "a\x00", "a\x1f", "a\x7f", "a\x80", "é", "\u20ac", "a\n"]
    assert refused(*fields, "\udcff") == [*fields, "\udcff"]


@pytest.mark.parametrize("strict", [False, True])
def test_R7_R8_two_fields_or_a_comma_and_nothing_are_invalid(strict):
    fields = ['"a", "b"', '"a","b"', "a,b", "a, b", '"a", b', "a,", ","]
    blank = ["", " ", "   ", '""', '" "', '"   "', ' "" ']
    assert refused(*fields, *blank, strict=strict) == [*fields, *blank]


@pytest.mark.parametrize("form", ["%s", '"%s"'], ids=["bare", "quoted"])
def test_R9_length_within_bounds(form):
    assert [len(parse(form % ("k" * length))) for length in (1, 2, 254, 255)] == [1, 2, 254, 255]
    policy = {"min_length": 8, "max_length": 16}
    assert [parsed(form % ("k" * n), **policy) is not None for n in (7, 8, 16, 17)] == [
        *(False, True, True, False)
    ]
    assert parsed(form % ("k" * 256)) is None
    # It counts after unquoting.
    assert parse('"' + r"\\" * 255 + '"') == "\\" * 255
    assert parsed('"' + r"\\" * 256 + '"') is None


def test_R11_keys_keep_their_case_and_their_bytes():
    assert parse('"aBc"') == "aBc"
    assert parse('" a "') == " a "
    assert record_id("http", "s", "abc") != record_id("http", "s", "ABC")
    assert record_id("http", "s", "a") != record_id("http", "s", "a ")


def test_key_of_a_call_is_printable_text_that_a_column_can_hold():
    odd = [None, 5, b"abc", 1.5, ["a"], uuid.uuid4()]
    unprintable = ["", " ", "\u2003", "a\x00b", "a\x1b", "a\x85", "\ud800", "k" * 256]
    for key in (*odd, *unprintable):
        with pytest.raises(InvalidKey):
            check(key)
    for key in ("a", "k" * 255, "größe", "注文-1", "';--", "{{7*7}}", "../"):
        assert check(key) == key


def test_R79_the_message_does_not_repeat_the_key():
    for field in ("x" * 300, 'secret"', "secret\x00", "secret,secret"):
        with pytest.raises(InvalidKey) as caught:
            parse(field)
        assert not any(part in str(caught.value) for part in ("secret", "xxx"))


def test_record_id_stays_what_it_is():
    of = [("http", "user:auth.user:1", UUID_KEY), ("call", "billing", "order-1")]
    assert [str(record_id(*parts)) for parts in (*of, ("call", "größe", "k"))] == [
        "13913cf9-1a95-835b-a4c6-c36db476ca3d",
        "61bf80d0-b21d-8805-a303-ecb484ef53f2",
        "086c43f3-ed30-822d-ba64-7d5b2fbfa5d3",
    ]


@given(st.tuples(texts, texts, texts), st.tuples(texts, texts, texts))
def test_R19_record_id_is_a_UUIDv8_and_equal_for_equal_parts_only(one, other):
    identifier = record_id(*one)
    assert (identifier.version, identifier.variant) == (8, uuid.RFC_4122)
    assert (identifier == record_id(*other)) == (one == other)


def test_R19_parts_of_a_record_id_do_not_run_together():
    parts = [("call", "a", "bc"), ("call", "ab", "c"), ("call", "abc", ""), ("calla", "b", "c")]
    parts += [("", "call", "abc"), ("http", "a", "bc"), ("http", "a\udcff", "k")]
    assert len({record_id(*it) for it in parts}) == len(parts)


def derived(name="charge", key="k", epoch=1):
    request = ClaimRequest(record_id("call", "scope", key), "scope", key)
    return Lease(Proof(request.record_id, epoch, request.token), request).derive_key(name)


def test_C15_derived_key_stays_what_it_is_over_take_overs_and_differs_by_name_and_record():
    assert derived() == derived(epoch=2) == "03800a52-cdc0-8a47-847d-d9bf7f37ac76"
    assert len({derived(name, key) for key in ("k", "l") for name in ("charge", "mail")}) == 4
    assert uuid.UUID(derived("")).version == 8
    parent = record_id("call", "scope", "k")
    assert derive(parent, "x") != record_id("derived", parent.hex, "x")


def test_R68_tokens_are_122_random_bits():
    tokens = {new_token() for _ in range(1000)}
    assert len(tokens) == 1000
    # Each bit is set in some and not in others, but those that make a UUID of version 4.
    varies = [0 < sum(token.int >> bit & 1 for token in tokens) < 1000 for bit in range(128)]
    assert sum(varies) == 122
    assert {token.version for token in tokens} == {4}


def test_new_key_is_a_UUIDv4_or_if_time_ordered_a_UUIDv7_that_nobody_has_had():
    assert {uuid.UUID(new_key()).version for _ in range(10)} == {4}
    before = time.time_ns() // 1_000_000
    keys = {uuid.UUID(new_key(time_ordered=True)) for _ in range(1000)}
    after = time.time_ns() // 1_000_000
    assert (len(keys), {(key.version, key.variant) for key in keys}) == (1000, {(7, uuid.RFC_4122)})
    assert all(before <= key.int >> 80 <= after for key in keys)


def test_R9_new_key_keeps_to_the_bounds():
    bounds = {(1, 255): 36, (36, 36): 36, (40, 255): 40, (200, 255): 200, (1, 20): 20}
    for (least, most), length in bounds.items():
        key = new_key(min_length=least, max_length=most)
        assert len(parse(key, min_length=least, max_length=most)) == length


def test_R79_logs_name_the_first_12_characters():
    assert short(uuid.UUID("01234567-89ab-8cde-8f01-23456789abcd")) == "01234567-89a"


def test_bounded_text_keeps_its_beginning_and_no_sign_that_a_column_would_not_take():
    assert bounded("k" * MAX_LENGTH) == "k" * MAX_LENGTH
    text = bounded("k" * 1000)
    assert (len(text), text[: MAX_LENGTH - 16]) == (MAX_LENGTH, "k" * (MAX_LENGTH - 17) + "~")
    assert text != bounded("k" * 999 + "l")
    fitted = {bounded(f"a{sign}b") for sign in "\x00\x1f\x7f\x9f\ud800"}
    assert fitted == {"a\N{REPLACEMENT CHARACTER}b"}


@given(st.text(st.characters(), max_size=600))
def test_any_text_fits_once_bounded(text):
    fitted = bounded(text)
    assert len(fitted) <= MAX_LENGTH
    assert "\x00" not in fitted
    fitted.encode()


def test_scope_is_a_string_that_is_not_empty():
    assert [is_scope(it) for it in ("a", " ", "", None, 1)] == [True, True, False, False, False]


def test_R20_session_scope_does_not_show_the_sessions_key():
    visitor = SessionStore()
    visitor.create()
    scope = scopes.session(SimpleNamespace(session=visitor))
    assert scope.startswith("session:")
    assert visitor.session_key not in scope
    assert scope == scopes.session(SimpleNamespace(session=visitor))
