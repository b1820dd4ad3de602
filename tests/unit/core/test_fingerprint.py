"""Fingerprints: which spellings are one request, and records of another version or secret."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import hashlib
import hmac
import json
import logging
import tracemalloc
import uuid
from datetime import timedelta
from functools import partial

import pytest
from django.utils.crypto import salted_hmac
from hypothesis import given
from hypothesis import strategies as st

from django_idempotency import FingerprintMismatch, InProgress, codecs
from django_idempotency.claims import ClaimRequest, Resolution
from django_idempotency.conf import fingerprint_secrets, store_for
from django_idempotency.fingerprint import VERSION, Fingerprint, canonical_json, canonical_payload
from django_idempotency.keys import record_id
from django_idempotency.options import secrets_in
from django_idempotency.policy import Policy
from tests.unit.core.conftest import callers, fail, kept, never
from tests.unit.core.conftest import run as run_work

EQUAL = [
    (b'{"a": 1, "b": 2}', b'{"b": 2, "a": 1}'),
    (b'[{"x": {"a": {"b": 1, "c": 2}}}]', b'[{"x": {"a": {"c": 2, "b": 1}}}]'),
    (b'{"a":[1,2]}', b' {\r\n\t"a" : [ 1 , 2 ]\n} '),
    *((b'{"a": "A"}', b'{"\\u0061": "\\u0041"}'), (b'"a/b"', b'"a\\/b"')),
    *((b'"\\u00fc"', b'"\\u00FC"'), ('"ü😀"'.encode(), b'"\\u00fc\\ud83d\\ude00"')),
]
DIFFERENT = [
    *((b"[1, 2]", b"[2, 1]"), (b"[]", b"{}"), (b"[1]", b"1"), (b'"a"', b'"A"')),
    *((b'{"a": null}', it) for it in (b"{}", b'{"a": false}', b'{"a": "null"}', b'{"a": ""}')),
    *((b'{"a": false}', b'{"a": 0}'), (b'{"a": true}', b'{"a": 1}'), (b'{"a": "1"}', b'{"a": 1}')),
    *((b'{"a": 1}', b'{"A": 1}'), ('"é"'.encode(), '"e\u0301"'.encode()), (b'"a b"', b'"a  b"')),
    *((b'{"a": {"b": 1}}', b'{"a": {}, "b": 1}'), (b'"\\ud800"', b'"\\ud801"')),
    *((b'{"#": "1"}', b"1"), (b'{"#": "1"}', b'{"##": "1"}'), (b'{"a": {"#": "1"}}', b'{"a": 1}')),
    *((b'{"#": 1}', b"1"), (b'{"a": [{"b": 1.0}]}', b'{"a": [{"b": 1.00}]}')),
]
NUMBERS = [b"1", b"1.0", b"1.00", b"1e2", b"1E2", b"100", b"1e+2", b"0", b"-0", b"0.0", b"10"]
NUMBERS += [b"9007199254740992", b"9007199254740993", b"1e400", b"1e401", b"0.1"]
NUMBERS += [b"0.1000000000000000055511151231257827", b"9" * 5000, b"8" + b"9" * 4999]
NOT_JSON = [b"", b" ", b"hello", b"{'a': 1}", b"NaN", b'{"a": Infinity}', b"[-Infinity]", b"[1,]"]
NOT_JSON += [b"{} // x", b"{} {}", b'{"a": 1', b"01", b"1.", b"+1", b'"a\nb"', b'"\\x"', b"1\x00"]
NOT_JSON += [b'{"a": 1, "a": 1}', b'{"a": 1, "\\u0061": 1}', b'[{"x": {"a": 1, "a": 2}}]']
NOT_JSON += [b'{"#a": 1, "#a": 2}', b"[" * 100_000, b'{"a":' * 100_000 + b"1" + b"}" * 100_000]
NOT_JSON += [b'"\xff"', b'"\xed\xa0\x80"', b'"\xc0\xaf"', b"\xef\xbb\xbf{}", b"\xc2\xa0{}"]
NOT_JSON += ['{"a": 1}'.encode(encoding) for encoding in ("utf-16", "utf-16-le", "utf-32")]


def test_R42_R46_spelling_does_not_matter_and_numbers_are_compared_as_written():
    """Text that is not JSON has no canonical form."""
    equal = [(canonical_json(one), canonical_json(other)) for one, other in EQUAL]
    assert [one for one, other in equal if one is None or one != other] == []
    different = [(canonical_json(one), canonical_json(other)) for one, other in DIFFERENT]
    assert [pair for pair in different if None in pair or pair[0] == pair[1]] == []
    numbers = {canonical_json(number) for number in NUMBERS} - {None}
    assert len(numbers) == len(NUMBERS)
    assert [text[:40] for text in NOT_JSON if canonical_json(text) is not None] == []


names = st.text(st.characters(codec="utf-8"), max_size=5) | st.sampled_from(["#", "##", "#a"])
numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | names,
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


@given(values, values, st.booleans(), st.sampled_from([None, 1, "\t"]))
def test_R42_any_value_in_any_spelling_and_any_two_values(value, other, ascii_only, indent):
    text, style = json.dumps(value).encode(), {"separators": (" , ", " : "), "sort_keys": True}
    respelled = json.dumps(value, ensure_ascii=ascii_only, indent=indent, **style)
    assert canonical_json(text) == canonical_json(respelled.encode())
    same = _written(value) == _written(other)
    assert same == (canonical_json(text) == canonical_json(json.dumps(other).encode()))
    assert same == (canonical_payload(value) == canonical_payload(other))


def test_R47_a_form_has_version_key_id_and_28_bytes():
    digest = hashlib.sha256(b"\0" * 7 + b"\4POST" + b"\0" * 7 + b"\2{}").digest()
    key = salted_hmac("django_idempotency.fingerprint", "key", "one", algorithm="sha256").digest()
    key_id, keyed = hmac.digest(key, b"id", "sha256")[:3], hmac.digest(key, digest, "sha256")[:28]

    fingerprint = Fingerprint.of([b"POST", b"{}"], secrets_in(["one"]))

    assert (VERSION, fingerprint.digest) == (2, digest)
    assert fingerprint.forms == (b"\2" + key_id + keyed,)
    parts = [[b"a", b"bc"], [b"ab", b"c"], [b"abc"], [b""], [], [b"a", b""], [b"", b"a"], [b"a"]]
    assert len({Fingerprint.of(it, secrets_in(["s"])).forms for it in parts}) == len(parts)


def test_R47_a_form_per_secret_newest_first_and_a_key_that_is_gone_is_known_by_its_id(settings):
    [old] = Fingerprint.of([b"x"], secrets_in([b"old"])).forms
    asked = Fingerprint.of([b"x"], secrets_in(["new"]))
    assert Fingerprint.of([b"x"], secrets_in(["new", "old"])).forms == (*asked.forms, old)
    assert asked.lacks_key_of(old)
    assert not asked.lacks_key_of(asked.forms[0])
    assert not Fingerprint.of([b"y"], secrets_in(["old", "new"])).lacks_key_of(old)
    assert not any(asked.lacks_key_of(version + old[1:]) for version in (b"\1", b"\3"))
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "new", ["old", "older"]
    assert fingerprint_secrets(Policy()) == secrets_in(["new", "old", "older"])
    assert fingerprint_secrets(Policy(fingerprint_secrets=["own"])) == secrets_in("own")


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
    *(datetime.date(2026, 1, 1), datetime.datetime(2026, 1, 1), datetime.time(0, 0)),
    datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc),
    *(timedelta(days=1), timedelta(seconds=1)),
]


def test_payloads_that_differ_and_those_that_say_the_same():
    assert len({canonical_payload(payload) for payload in PAYLOADS}) == len(PAYLOADS)
    amount = decimal.Decimal("1.50")
    for one, other in [
        *(({"a": 1, "b": 2}, {"b": 2, "a": 1}), ((1, 2), [1, 2]), ({1, 2, 3}, {3, 2, 1})),
        ({"x", "y", "z"}, frozenset({"z", "y", "x"})),
        *((b"ab", bytearray(b"ab")), (b"ab", memoryview(b"ab"))),
        *((Currency.EUR, "EUR"), (Priority.HIGH, 1)),
        (Order(amount, Currency.EUR), {"currency": "EUR", "amount": amount}),
    ]:
        assert canonical_payload(one) == canonical_payload(other)


def test_R79_what_has_no_canonical_form_is_a_TypeError_that_names_its_type_alone():
    class Secret:
        def __repr__():
            return "4111 1111 1111 1111"

    odd = {"Secret": Secret(), "type": Order, "list_iterator": iter([]), "complex": 1j}
    for name, payload in odd.items():
        for holder in (payload, {"a": [payload]}):
            with pytest.raises(TypeError, match=name) as caught:
                canonical_payload(holder)
            assert "4111" not in str(caught.value)
    with pytest.raises(TypeError, match="look alike"):
        canonical_payload({1: "a", "{'#': '1'}": "b"})
    itself = []
    itself.append(itself)
    with pytest.raises(TypeError, match="contains itself"):
        canonical_payload(itself)


def test_R93_a_body_full_of_numbers_is_no_bomb():
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


# Records that another secret wrote, or a later version (R47, I6).

PAYLOAD = {"amount": 5}
STORED = codecs.pack(codecs.JSONCodec(), "stored", max_bytes=1000)
run = partial(run_work, payload=PAYLOAD, renew=False)


def claimed(fingerprint, **fields):
    """Claim the record with another fingerprint, as a process with another secret does."""
    request = ClaimRequest(
        record_id("call", "s", "k"), "s", "k", fingerprints=(fingerprint,), **fields
    )
    return store_for().claim(request)


def bring_to(state, fingerprint):
    """Leave a record in `state`, as a worker whose fingerprint is another leaves it."""
    lease = timedelta(seconds=-1) if state == "lapsed" else timedelta(minutes=1)
    held = claimed(fingerprint, lease=lease)
    if state == "completed":
        store_for().complete(held, STORED, retention=timedelta(days=1))
    elif state == "failed":
        store_for().fail(held, "boom")


#: The database claims late in the one, and the store of the other first.
LATE_AND_FIRST = callers([("run", "single"), ("arun", "memory")])


def test_R47_I11_a_record_of_a_later_version_is_a_mismatch(memory):
    bring_to("failed", b"\3" + b"x" * 31)
    with pytest.raises(FingerprintMismatch):
        run(never)


@LATE_AND_FIRST
@pytest.mark.parametrize("state", ["completed", "failed", "lapsed", "in progress"])
def test_R47_I6_under_a_secret_that_is_gone_it_counts_as_equal(work, call, state, caplog):
    requests, job = [], work("new")
    run(lambda lease: requests.append(lease.request), "another", fingerprint_secrets=["gone"])
    old = requests[0].fingerprints[0]
    bring_to(state, old)
    caplog.set_level(logging.WARNING, "django_idempotency")
    if state == "in progress":  # one that waits warns once
        with pytest.raises(InProgress):
            call(job, payload=PAYLOAD, renew=False, wait=0.06)
    else:
        assert call(job, payload=PAYLOAD).result == ("stored" if state == "completed" else "new")
    assert job.runs == (state in ("failed", "lapsed"))
    assert kept().fingerprint == old
    [warning] = [record for record in caplog.records if "secret that is gone" in record.msg]
    assert str(record_id("call", "s", "k"))[:12] in warning.getMessage()


def test_R47_I11_another_operation_is_a_mismatch_although_its_secret_is_gone(memory):
    run(lambda lease: 1, operation="charge", fingerprint_secrets=["gone"])
    with pytest.raises(FingerprintMismatch):
        run(never, operation="refund")


def rotate(settings, *fallbacks):
    settings.SECRET_KEY_FALLBACKS = [settings.SECRET_KEY] if fallbacks else []
    settings.SECRET_KEY += " rotated"


def test_R47_with_its_secret_among_the_fallbacks_it_is_compared(memory, settings, caplog):
    run(lambda lease: "first")
    rotate(settings, "the old one")
    assert run(never).replayed
    with pytest.raises(FingerprintMismatch):
        run(never, payload={"amount": 6})
    assert "secret that is gone" not in caplog.text


def test_C15_derived_key_is_equal_over_failures_rotations_and_take_overs(memory, settings):
    """Another for each operation and key, and after an operator's release under the same key."""

    def derived(key="k", **changes):
        keys = []
        with pytest.raises(ValueError, match="boom"):
            run(lambda lease: keys.append(lease.derive_key("charge")) or fail(), key, **changes)
        return keys[0]

    first = derived()
    rotate(settings, "the old one")
    assert derived() == first
    rotate(settings)
    assert first == derived() == derived(fingerprint_secrets=["own"])
    claimed(kept().fingerprint, lease=timedelta(seconds=-1))
    assert derived() == first
    record = kept()
    assert memory.resolve(record.record_id, Resolution("release", record.epoch, record.state))
    corrected = derived(payload={"amount": 6})
    assert len({first, corrected, derived("other"), derived("k2", operation="o")}) == 4
