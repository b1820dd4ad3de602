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


LENIENT, STRICT = {}, {"strict": True}


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


@pytest.mark.parametrize("options", [LENIENT, STRICT], ids=str)
def test_R7_R8_two_fields_or_a_comma_and_nothing_are_invalid(options):
    fields = ['"a", "b"', '"a","b"', "a,b", "a, b", '"a", b', "a,", ","]
    blank = ["", " ", "   ", '""', '" "', '"   "', ' "" ']
    assert refused(*fields, *blank, **options) == [*fields, *blank]


@pytest.mark.parametrize("form", ["%s", '"%s"'], ids=["bare", "quoted"])
def test_R9_length_within_bounds(form):
    assert [len(parse(form % ("k" * length))) for length in (1, 2, 254, 255)] == [1, 2, 254, 255]
    policy = {"min_length": 8, "max_length": 16}
    assert [parsed(form % ("k" * n), **policy) is not None for n in (7, 8, 16, 17)] == [
        *(False, True, True, False)
    ]
    assert parsed(form % ("k" * 256)) is None


def test_R9_length_counts_after_unquoting():
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


class TestRecordId:
    def test_stays_what_it_is(self):
        of = [("http", "user:auth.user:1", UUID_KEY), ("call", "billing", "order-1")]
        assert [str(record_id(*parts)) for parts in (*of, ("call", "größe", "k"))] == [
            "13913cf9-1a95-835b-a4c6-c36db476ca3d",
            "61bf80d0-b21d-8805-a303-ecb484ef53f2",
            "086c43f3-ed30-822d-ba64-7d5b2fbfa5d3",
        ]

    @given(texts, texts, texts)
    def test_is_a_UUIDv8_of_RFC_9562(self, kind, scope, key):
        identifier = record_id(kind, scope, key)
        assert identifier.version == 8
        assert identifier.variant == uuid.RFC_4122

    def test_parts_do_not_run_together(self):
        ids = {
            record_id("call", "a", "bc"),
            record_id("call", "ab", "c"),
            record_id("call", "abc", ""),
            record_id("calla", "b", "c"),
            record_id("", "call", "abc"),
        }
        assert len(ids) == 5

    def test_R19_kinds_and_scopes_do_not_meet(self):
        ids = {record_id(kind, scope, "k") for kind in ("http", "call") for scope in ("a", "b")}
        assert len(ids) == 4

    @given(st.tuples(texts, texts, texts), st.tuples(texts, texts, texts))
    def test_is_equal_for_equal_parts_only(self, one, other):
        assert (record_id(*one) == record_id(*other)) == (one == other)

    def test_scope_may_hold_what_a_path_may_hold(self):
        assert record_id("http", "a\udcff", "k") != record_id("http", "a", "k")


class TestDerivedKey:
    def lease(self, key="k", epoch=1):
        identifier = record_id("call", "scope", key)
        request = ClaimRequest(identifier, "scope", key)
        return Lease(Proof(identifier, epoch, request.token), request)

    def test_is_equal_over_retries_and_take_overs(self):
        assert self.lease(epoch=1).derive_key("charge") == self.lease(epoch=2).derive_key("charge")

    def test_differs_by_name_and_by_record(self):
        keys = {
            self.lease(key).derive_key(name) for key in ("k", "l") for name in ("charge", "mail")
        }
        assert len(keys) == 4

    def test_is_neither_the_callers_key_nor_the_record_id(self):
        lease = self.lease()
        derived = lease.derive_key("charge")
        assert "k" not in derived
        assert derived not in (str(lease.record_id), str(lease.token))

    def test_is_a_uuid_and_stays_what_it_is(self):
        assert self.lease().derive_key("charge") == "03800a52-cdc0-8a47-847d-d9bf7f37ac76"
        assert uuid.UUID(self.lease().derive_key("")).version == 8

    def test_never_meets_the_id_of_a_record(self):
        parent = record_id("call", "scope", "k")
        assert derive(parent, "x") != record_id("derived", parent.hex, "x")


def test_R68_tokens_are_122_random_bits():
    tokens = {new_token() for _ in range(1000)}
    assert len(tokens) == 1000
    # Each bit is set in some and not in others, but those that make a UUID of version 4.
    varies = [0 < sum(token.int >> bit & 1 for token in tokens) < 1000 for bit in range(128)]
    assert sum(varies) == 122
    assert {token.version for token in tokens} == {4}


class TestNewKey:
    def test_is_a_UUIDv4_that_nobody_has_had(self):
        made = {new_key() for _ in range(100)}
        assert len(made) == 100
        assert {uuid.UUID(key).version for key in made} == {4}

    def test_time_ordered_is_a_UUIDv7_of_RFC_9562(self):
        before = time.time_ns() // 1_000_000
        key = uuid.UUID(new_key(time_ordered=True))
        after = time.time_ns() // 1_000_000
        assert (key.version, key.variant) == (7, uuid.RFC_4122)
        assert before <= key.int >> 80 <= after

    def test_two_of_one_millisecond_differ(self):
        assert len({new_key(time_ordered=True) for _ in range(1000)}) == 1000

    def test_R9_keeps_to_the_bounds(self):
        bounds = {(1, 255): 36, (36, 36): 36, (40, 255): 40, (200, 255): 200, (1, 20): 20}
        for (least, most), length in bounds.items():
            key = new_key(min_length=least, max_length=most)
            assert len(parse(key, min_length=least, max_length=most)) == length


def test_R79_logs_name_the_first_12_characters():
    assert short(uuid.UUID("01234567-89ab-8cde-8f01-23456789abcd")) == "01234567-89a"


class TestBounded:
    def test_what_fits_stays(self):
        assert bounded("k" * MAX_LENGTH) == "k" * MAX_LENGTH

    def test_longer_text_keeps_its_beginning(self):
        text = bounded("k" * 1000)
        assert len(text) == MAX_LENGTH
        assert text.startswith("k" * (MAX_LENGTH - 17) + "~")

    def test_long_texts_with_one_beginning_differ(self):
        assert bounded("k" * 1000) != bounded("k" * 999 + "l")

    def test_sign_that_a_column_or_terminal_would_not_take(self):
        fitted = {bounded(f"a{sign}b") for sign in "\x00\x1f\x7f\x9f\ud800"}
        assert fitted == {"a\N{REPLACEMENT CHARACTER}b"}

    @given(st.text(st.characters(), max_size=600))
    def test_any_text_fits(self, text):
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
