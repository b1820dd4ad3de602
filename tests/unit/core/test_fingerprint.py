"""Fingerprints: which spellings are one request and which are two (R40 to R48)."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import hashlib
import hmac
import json
import tracemalloc
import uuid

import pytest
from django.utils.crypto import salted_hmac
from hypothesis import given
from hypothesis import strategies as st

from django_idempotency.conf import fingerprint_secrets
from django_idempotency.fingerprint import (
    VERSION,
    Fingerprint,
    canonical_json,
    canonical_payload,
    version_1,
)
from django_idempotency.policy import Policy

EQUAL = [
    (b'{"a": 1, "b": 2}', b'{"b": 2, "a": 1}'),
    (b'[{"x": {"a": {"b": 1, "c": 2}}}]', b'[{"x": {"a": {"c": 2, "b": 1}}}]'),
    (b'{"a":[1,2]}', b' {\r\n\t"a" : [ 1 , 2 ]\n} '),
    (b'{"a": "A"}', b'{"\\u0061": "\\u0041"}'),
    (b'"a/b"', b'"a\\/b"'),
    (b'"\\u00fc"', b'"\\u00FC"'),
    ('"ü😀"'.encode(), b'"\\u00fc\\ud83d\\ude00"'),
    (b'"\\n"', b'"\\u000a"'),
    (b'{"a": [{"b": 1.0}]}', b'{ "a":[{"b":1.0}]}'),
]
DIFFERENT = [
    *((b"[1, 2]", b"[2, 1]"), (b"[]", b"{}"), (b"[1]", b"1"), (b'"a"', b'"A"')),
    *(
        (b'{"a": null}', other)
        for other in (b"{}", b'{"a": false}', b'{"a": "null"}', b'{"a": ""}')
    ),
    *((b'{"a": false}', b'{"a": 0}'), (b'{"a": true}', b'{"a": 1}'), (b'{"a": "1"}', b'{"a": 1}')),
    *((b'{"a": 1}', b'{"A": 1}'), ('"é"'.encode(), '"e\u0301"'.encode()), (b'"a b"', b'"a  b"')),
    (b'{"a": {"b": 1}}', b'{"a": {}, "b": 1}'),
    *((b'{"#": "1"}', b"1"), (b'{"#": "1"}', b'{"##": "1"}'), (b'{"a": {"#": "1"}}', b'{"a": 1}')),
    *((b'{"#": 1}', b"1"), (b'"\\ud800"', b'"\\ud801"')),
    (b'{"a": [{"b": 1.0}]}', b'{"a": [{"b": 1.00}]}'),
]
NUMBERS = [b"1", b"1.0", b"1.00", b"1e2", b"1E2", b"100", b"1e+2", b"0", b"-0", b"0.0", b"10"]
NUMBERS += [b"9007199254740992", b"9007199254740993", b"1e400", b"1e401", b"0.1"]
NUMBERS += [b"0.1000000000000000055511151231257827", b"9" * 5000, b"8" + b"9" * 4999]
NOT_JSON = [b"", b" ", b"hello", b"{'a': 1}", b"NaN", b'{"a": Infinity}', b"[-Infinity]", b"[1,]"]
NOT_JSON += [b"{} // x", b"{} {}", b'{"a": 1', b"01", b"1.", b"+1", b'"a\nb"', b'"\\x"', b"1\x00"]
NOT_JSON += [b'{"a": 1, "a": 1}', b'{"a": 1, "\\u0061": 1}', b'[{"x": {"a": 1, "a": 2}}]']
NOT_JSON += [b'{"#a": 1, "#a": 2}', b"[" * 100_000 + b"]" * 100_000, b"[" * 100_000]
NOT_JSON += [b'{"a":' * 100_000 + b"1" + b"}" * 100_000, b'"\xff"', b'"\xed\xa0\x80"', b'"\xc3"']
NOT_JSON += [b'"\xc0\xaf"', b"\xef\xbb\xbf{}", b"\xc2\xa0{}"]
NOT_JSON += ['{"a": 1}'.encode(encoding) for encoding in ("utf-16", "utf-16-le", "utf-32")]


def test_R42_spelling_does_not_matter():
    found = [(canonical_json(one), canonical_json(other)) for one, other in EQUAL]
    assert [one for one, other in found if one is None or one != other] == []


def test_R42_other_values_differ():
    found = [(canonical_json(one), canonical_json(other)) for one, other in DIFFERENT]
    assert [pair for pair in found if None in pair or pair[0] == pair[1]] == []


def test_R42_numbers_are_compared_as_written():
    canonical = [canonical_json(number) for number in NUMBERS]
    assert None not in canonical
    assert len(set(canonical)) == len(NUMBERS)


def test_R42_R46_text_that_is_not_JSON_has_no_canonical_form():
    assert [text[:40] for text in NOT_JSON if canonical_json(text) is not None] == []
    assert canonical_json(b"{}") == b"{}"


names = st.text(st.characters(codec="utf-8"), max_size=5) | st.sampled_from(["#", "##", "#a"])
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | names,
    lambda children: st.lists(children, max_size=4) | st.dictionaries(names, children, max_size=4),
    max_leaves=12,
)


def _written(value):
    """The value with numbers as JSON writes them, and types that Python would call equal apart."""
    if isinstance(value, dict):
        return {"object": {name: _written(item) for name, item in value.items()}}
    if isinstance(value, list):
        return [_written(item) for item in value]
    return (type(value).__name__, repr(value))


def _reversed(value):
    if isinstance(value, dict):
        return {name: _reversed(item) for name, item in reversed(value.items())}
    if isinstance(value, list):
        return [_reversed(item) for item in value]
    return value


@given(values, st.booleans(), st.sampled_from([None, 0, 1, "\t"]), st.booleans())
def test_R42_any_value_in_any_spelling(value, ascii_only, indent, compact):
    separators = (",", ":") if compact else (" , ", " : ")
    other = json.dumps(
        _reversed(value), ensure_ascii=ascii_only, indent=indent, separators=separators
    )
    assert canonical_json(json.dumps(value).encode()) == canonical_json(other.encode())


@given(values, values)
def test_R42_any_two_values(one, other):
    same = _written(one) == _written(other)
    assert same == (
        canonical_json(json.dumps(one).encode()) == canonical_json(json.dumps(other).encode())
    )
    assert same == (canonical_payload(one) == canonical_payload(other))


def test_R47_a_form_has_version_key_id_and_28_bytes():
    digest = hashlib.sha256(b"\0" * 7 + b"\4POST" + b"\0" * 7 + b"\2{}").digest()
    key = salted_hmac("django_idempotency.fingerprint", "key", "one", algorithm="sha256")
    key_id = hmac.digest(key.digest(), b"id", "sha256")[:3]
    keyed = hmac.digest(key.digest(), digest, "sha256")[:28]

    fingerprint = Fingerprint.of([b"POST", b"{}"], ["one"])

    assert VERSION == 2
    assert fingerprint.digest == digest
    assert fingerprint.forms == (b"\2" + key_id + keyed,)
    assert len(fingerprint.forms[0]) == 32


def test_parts_do_not_run_together():
    parts = [[b"a", b"bc"], [b"ab", b"c"], [b"abc"], [b""], [], [b"a", b""], [b"", b"a"], [b"a"]]
    assert len({Fingerprint.of(it, ["s"]).forms for it in parts}) == len(parts)


def test_R47_the_secret_key_and_its_fallbacks_are_the_default(settings):
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "new", ["old", "older"]

    assert fingerprint_secrets(Policy()) == ("new", "old", "older")
    assert fingerprint_secrets(Policy(fingerprint_secrets=["own"])) == ("own",)


def test_R47_a_form_per_secret_newest_first_and_a_key_that_is_gone_is_known_by_its_id():
    [old] = Fingerprint.of([b"x"], [b"old"]).forms
    [new] = Fingerprint.of([b"x"], ["new"]).forms
    assert Fingerprint.of([b"x"], ["new", "old"]).forms == (new, old)
    asked = Fingerprint.of([b"x"], ["new"], version_1=lambda: version_1([b"x"]))

    assert asked.lacks_key_of(old)
    assert not asked.lacks_key_of(asked.forms[0])
    assert not Fingerprint.of([b"y"], ["old", "new"]).lacks_key_of(old)
    for other_version in (b"\1", b"\3"):
        assert not asked.lacks_key_of(other_version + old[1:])


class Currency(enum.Enum):
    EUR = "EUR"


class Priority(enum.IntEnum):
    HIGH = 1


@dataclasses.dataclass
class Order:
    amount: decimal.Decimal
    currency: Currency


PAYLOADS = [
    *(None, True, False, 0, 1, 1.0, 1.5, 2**53, 2**53 + 1),
    *map(decimal.Decimal, ("1.00", "1.000")),
    *("", "1", "None", "2026-01-01", b"", b"1", [], [1, 2], [2, 1], set(), {1, 2}),
    *({}, {"a": None}, {"#": "1"}, {"#bytes": "31"}, {"#time": "2026-01-01"}, {"#set": []}),
    *({"a": 1}, {"a": {"b": 1}}, {1: "a"}, {"1": "a"}, uuid.UUID(int=1)),
    datetime.date(2026, 1, 1),
    datetime.datetime(2026, 1, 1),
    datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc),
    datetime.time(0, 0),
    datetime.timedelta(days=1),
    datetime.timedelta(seconds=1),
]


def test_other_payloads_differ():
    canonical = [canonical_payload(payload) for payload in PAYLOADS]
    assert len(set(canonical)) == len(PAYLOADS)


def test_payloads_that_say_the_same():
    amount = decimal.Decimal("1.50")
    for one, other in [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ((1, 2), [1, 2]),
        ({1, 2, 3}, {3, 2, 1}),
        ({"x", "y", "z"}, frozenset({"z", "y", "x"})),
        (b"ab", bytearray(b"ab")),
        (b"ab", memoryview(b"ab")),
        (Currency.EUR, "EUR"),
        (Priority.HIGH, 1),
        (Order(amount, Currency.EUR), {"currency": "EUR", "amount": amount}),
    ]:
        assert canonical_payload(one) == canonical_payload(other)


def test_what_has_no_canonical_form_is_a_TypeError_that_names_it():
    odd = {"object": object(), "type": Order, "list_iterator": iter([]), "complex": 1j}
    for name, payload in (*odd.items(), ("builtin_function_or_method", len)):
        for holder in (payload, {"a": [payload]}):
            with pytest.raises(TypeError, match=name):
                canonical_payload(holder)


def test_payload_that_contains_itself_is_refused():
    payload = []
    payload.append(payload)
    with pytest.raises(TypeError, match="contains itself"):
        canonical_payload(payload)


def test_names_that_look_alike_are_refused():
    with pytest.raises(TypeError, match="look alike"):
        canonical_payload({1: "a", "{'#': '1'}": "b"})


def test_R79_the_TypeError_does_not_repeat_the_payload():
    class Secret:
        def __repr__():
            return "4111 1111 1111 1111"

    with pytest.raises(TypeError) as caught:
        canonical_payload([Secret()])
    assert "4111" not in str(caught.value)


def test_R93_a_body_full_of_numbers_is_no_bomb() -> None:
    """They are the shortest values that a body can repeat."""
    text = b"[" + b"0," * 30_000 + b"0]"
    canonical_json(text)
    tracemalloc.start()
    try:
        canonical_json(text)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 50 * len(text)
