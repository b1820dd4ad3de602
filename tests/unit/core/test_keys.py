"""Keys: the field that carries one, bounds, and the ids and derived keys that are made of them."""

from __future__ import annotations

import time
import uuid
from types import SimpleNamespace

import pytest
from django.contrib.sessions.backends.cache import SessionStore
from django.utils.functional import SimpleLazyObject
from django.utils.safestring import mark_safe
from hypothesis import given
from hypothesis import strategies as st

from django_idempotency import InvalidKey, keys
from django_idempotency.claims import ClaimRequest
from django_idempotency.http import scopes
from django_idempotency.keys import MAX_LENGTH, bounded, check, new_key, parse, record_id
from django_idempotency.leases import Lease

UUID_KEY = "8e03978e-40d5-43e8-bc93-6894a57f9324"


def parsed(field, **options):
    try:
        return parse(field, **options)
    except InvalidKey:
        return None


def refused(*fields, **options):
    """Return those fields that are refused."""
    return [field for field in fields if parsed(field, **options) is None]


# RFC 9651 Strings: the facts of HTTPWG's vectors, and the parameters.

#: A field value and the String that it carries, or None where parsing must fail.
CASES = {
    # Each byte between two spaces: VCHAR and SP stand, but the quote and the backslash.
    **{f'" {chr(byte)} "': f" {chr(byte)} " for byte in range(0x20, 0x7F) if byte not in b'"\\'},
    **{f'" {chr(byte)} "': None for byte in (*range(0x20), *b'"\\', *range(0x7F, 0x100))},
    # Each byte after a backslash: only the quote and the backslash may be escaped.
    **{f'"\\{chr(byte)}"': chr(byte) if byte in b'"\\' else None for byte in range(0x100)},
    **{'"foo bar"': "foo bar", '""': "", f'"{"foo " * 62}"': "foo " * 62, '"   "': "   "},
    **{r'"foo \"bar\" \\ baz"': r'foo "bar" \ baz', '"foo, bar"': "foo, bar"},
    **dict.fromkeys(('  "foo"', '"foo"  ', '  "foo"  '), "foo"),
    **dict.fromkeys(('"füü"', '"fÃ¼Ã¼"', '"\u20ac"', '"\udcff"', '\ufeff"foo"', '"foo"\n')),
    **dict.fromkeys(("'foo'", '"foo', '"', r'"foo \,"', r'"a\b"', r'"foo \"', '"foo \\')),
    **dict.fromkeys(('"foo", "bar"', '"foo"bar', '"foo""bar"', ' \t "foo"', '"foo" \t ')),
    **dict.fromkeys(("", "1", "foo", ":Zm9v:", "?1", '%"foo"', '("foo")')),
}
#: Integers, decimals, strings, tokens, bytes, booleans, dates, display strings, flags and names.
PARAMETERS = [";v=1", ";v=-15", ";v=999999999999999", ";v=1.5", ";v=-123456789012.125", ';v="x y"']
PARAMETERS += [r';v="\"\\"', ';v="a;b"', ";v=text/html", ";v=*a:b", ";v=a!#$%&'*+-.^_`|~", ";v=::"]
PARAMETERS += [";v=:cHJldGVuZA==:", ";v=:cHJldGVuZA:", ";v=?1", ";v=?0", ";v=@1659578233"]
PARAMETERS += [";v=@-62135596800", ';v=%"This is intended for display to %c3%bcsers."', ";v"]
PARAMETERS += [";a=1;b=2", ";a=1;a=2", "; v=1", ";a;b=?0;c=tok", ";*a_b-c.d*0=1"]
NO_PARAMETERS = [";", "; ", ";v=", " ;v=1", ";\tv=1", ";v= 1", ";v =1", ";V=1", ";1=1", ";v=1."]
NO_PARAMETERS += [";v=1234567890123456", ";v=.5", ";v=1.2345", ";v=1234567890123.1", ";v=-"]
NO_PARAMETERS += [';v="x', r';v="\x"', ";v=:cHJl", ";v=:!!:", ";v=?2", ";v=?", ";v=@1.5", ";v=@"]
NO_PARAMETERS += [';v=%"%C3%BC"', ';v=%"%c"', ';v=%"%ff"', ';v=%"x', ";v=(1)", ";a=1b=2", ";v=+1"]
NO_PARAMETERS += [';v=1, "b"']


def is_key(string):
    """A String that is blank or too long is no key (R8, R9)."""
    return string is not None and bool(string.strip()) and len(string) <= MAX_LENGTH


def test_R3_R5_strings():
    for field, string in CASES.items():
        assert parsed(field, strict=True) == (string if is_key(string) else None), field


def test_R6_parameters_are_read_and_dropped_and_nothing_else():
    fields = [form % rest for rest in PARAMETERS for form in ('"abc"%s', ' "abc"%s ')]
    assert [field for field in fields if parsed(field) != "abc"] == []
    fields = [f'"abc"{rest}' for rest in NO_PARAMETERS]
    for strict in (True, False):
        assert refused(*fields, strict=strict) == fields


def test_R5_a_long_hostile_field_is_refused_in_no_time():
    fields = ['"' + "\\" * 200_001, '"a"' + ";a=1" * 50_000 + ";", '"a"' + " " * 200_000 + "b"]
    assert refused(*fields) == fields


@given(st.text() | st.lists(st.sampled_from(list('"\\;=,: @?%()*aA1.-\t\x00é'))).map("".join))
def test_R3_R5_any_text_is_a_key_or_invalid_and_what_is_quoted_comes_back(text):
    for strict in (True, False):
        key = parsed(text, strict=strict)
        assert key is None or (is_key(key) and key.isascii() and key.isprintable())
    string = "".join(sign for sign in text if sign.isascii() and sign.isprintable())
    quoted = string.replace("\\", "\\\\").replace('"', '\\"')
    assert parsed(f'"{quoted}"') == (string if is_key(string) else None)


# Bare keys, and what goes for both.


def test_R3_R4_R11_bare_key_is_taken_as_it_stands_and_is_that_of_the_string():
    signs = ["a", "1", "?1", "a=b", "a;v=1", ":Zm9v:", "(x)", "a b", "'foo'", "foo\\bar", "*", "%"]
    assert [parse(key) for key in (*signs, "<b>")] == [*signs, "<b>"]
    assert parse(f"  {UUID_KEY} ") == parse(f'"{UUID_KEY}"') == UUID_KEY
    assert refused(*signs, UUID_KEY, strict=True) == [*signs, UUID_KEY]
    assert [parse('"aBc"'), parse('" a "')] == ["aBc", " a "]


def test_R5_R7_R8_R79_what_no_bare_key_may_have_is_refused_and_not_repeated():
    """Nor two fields, a comma, or nothing."""
    fields = ['a"', '"a', 'a"b', "a\tb", "a\x00", "a\x1f", "a\x7f", "a\x80", "é", "\u20ac", "a\n"]
    fields += ["\udcff", '"a", "b"', '"a","b"', "a,b", "a, b", '"a", b', "a,", ","]
    fields += ["", " ", "   ", '""', '" "', '"   "', ' "" ']
    for strict in (True, False):
        assert refused(*fields, strict=strict) == fields
    for field in ("x" * 300, 'secret"', "secret\x00", "secret,secret"):
        with pytest.raises(InvalidKey) as caught:
            parse(field)
        assert not any(part in str(caught.value) for part in ("secret", "xxx"))


@pytest.mark.parametrize("form", ["%s", '"%s"'], ids=["bare", "quoted"])
def test_R9_length_within_bounds_after_unquoting(form):
    kept = [n for n in (1, 255, 256) if parsed(form % ("k" * n))]
    policy = {"min_length": 8, "max_length": 16}
    bounds = [n for n in (7, 8, 16, 17) if parsed(form % ("k" * n), **policy)]
    assert (kept, bounds) == ([1, 255], [8, 16])
    assert parse('"' + r"\\" * 255 + '"') == "\\" * 255
    assert parsed('"' + r"\\" * 256 + '"') is None


def test_key_of_a_call_is_printable_text_that_a_column_can_hold_and_a_scope_is_not_empty():
    lazy = SimpleLazyObject(lambda: "abc")  # no store can write it
    odd = [None, 5, b"abc", uuid.uuid4(), lazy]
    unprintable = ["", " ", "\u2003", "a\x00b", "a\x1b", "a\x85", "\ud800", "k" * 256]
    for key in (*odd, *unprintable):
        with pytest.raises(InvalidKey):
            check(key)
    for key in ("a", "k" * 255, "größe", "注文-1", "';--", "../"):
        assert check(key) == key
    assert all(map(keys.is_scope, ("a", " ", mark_safe("a"))))
    assert not any(map(keys.is_scope, ("", None, 1, lazy)))


# What is made of them.


def derived(name="charge", key="k", epoch=1):
    request = ClaimRequest(record_id("call", "scope", key), "scope", key)
    return Lease(request, epoch).derive_key(name)


def test_C15_record_ids_and_derived_keys_stay_what_they_are():
    """Derived keys over take-overs, too, and they differ by name and record."""
    of = [("http", "user:auth.user:1", UUID_KEY), ("call", "billing", "order-1")]
    assert [str(record_id(*parts)) for parts in (*of, ("call", "größe", "k"))] == [
        "13913cf9-1a95-835b-a4c6-c36db476ca3d",
        "61bf80d0-b21d-8805-a303-ecb484ef53f2",
        "086c43f3-ed30-822d-ba64-7d5b2fbfa5d3",
    ]
    assert derived() == derived(epoch=2) == "03800a52-cdc0-8a47-847d-d9bf7f37ac76"
    assert len({derived(name, key) for key in ("k", "l") for name in ("charge", "mail")}) == 4
    assert uuid.UUID(derived("")).version == 8
    parent = record_id("call", "scope", "k")
    assert keys.derive(parent, "x") != record_id("derived", parent.hex, "x")
    assert keys.short(uuid.UUID(of_log := "01234567-89ab-8cde-8f01-23456789abcd")) == of_log[:12]


texts = st.text(st.characters(codec="utf-8"), max_size=30)


@given(st.tuples(texts, texts, texts), st.tuples(texts, texts, texts))
def test_R11_R19_record_id_is_a_UUIDv8_and_equal_for_equal_parts_only(one, other):
    identifier = record_id(*one)
    assert (identifier.version, identifier.variant) == (8, uuid.RFC_4122)
    assert (identifier == record_id(*other)) == (one == other)
    parts = [("call", "a", "bc"), ("call", "ab", "c"), ("call", "abc", ""), ("calla", "b", "c")]
    parts += [
        ("", "call", "abc"),
        ("http", "a", "bc"),
        ("http", "A", "bc"),
        ("http", "\udcff", "k"),
    ]
    assert len({record_id(*it) for it in parts}) == len(parts)


def test_R68_tokens_are_122_random_bits():
    tokens = {keys.new_token() for _ in range(1000)}
    assert len(tokens) == 1000
    # Each bit is set in some and not in others, but those that make a UUID of version 4.
    varies = [0 < sum(token.int >> bit & 1 for token in tokens) < 1000 for bit in range(128)]
    assert sum(varies) == 122
    assert {token.version for token in tokens} == {4}


def test_R9_new_key_is_a_UUIDv4_or_if_time_ordered_a_UUIDv7_and_keeps_to_the_bounds():
    assert {uuid.UUID(new_key()).version for _ in range(10)} == {4}
    before = time.time_ns() // 1_000_000
    found = {uuid.UUID(new_key(time_ordered=True)) for _ in range(1000)}
    after = time.time_ns() // 1_000_000
    assert len(found) == 1000
    assert {(key.version, key.variant) for key in found} == {(7, uuid.RFC_4122)}
    assert all(before <= key.int >> 80 <= after for key in found)
    bounds = {(1, 255): 36, (36, 36): 36, (40, 255): 40, (200, 255): 200, (1, 20): 20}
    for (least, most), length in bounds.items():
        key = new_key(min_length=least, max_length=most)
        assert len(parse(key, min_length=least, max_length=most)) == length


@given(st.text(st.characters(), max_size=600))
def test_bounded_text_fits_keeps_its_beginning_and_no_sign_that_a_column_would_not_take(text):
    assert len(bounded(text)) <= MAX_LENGTH
    assert "\x00" not in bounded(text)
    bounded(text).encode()
    assert bounded("k" * MAX_LENGTH) == "k" * MAX_LENGTH
    long = bounded("k" * 1000)
    assert (len(long), long[: MAX_LENGTH - 16]) == (MAX_LENGTH, "k" * (MAX_LENGTH - 17) + "~")
    assert long != bounded("k" * 999 + "l")
    fitted = {bounded(f"a{sign}b") for sign in "\x00\x1f\x7f\x9f\ud800"}
    assert fitted == {"a\N{REPLACEMENT CHARACTER}b"}


def test_R20_session_scope_does_not_show_the_sessions_key():
    visitor = SessionStore()
    visitor.create()
    scope = scopes.session(SimpleNamespace(session=visitor))
    assert scope.startswith("session:")
    assert visitor.session_key not in scope
    assert scope == scopes.session(SimpleNamespace(session=visitor))
