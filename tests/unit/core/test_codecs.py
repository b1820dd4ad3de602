"""Results as bytes: the versioned envelope, and what JSON keeps of a result (R62, R64)."""

from __future__ import annotations

import datetime
import decimal
import json
import math
import os
import tracemalloc
import uuid
import zlib
from contextlib import nullcontext, suppress

import pytest
from django.http import HttpResponse
from hypothesis import given
from hypothesis import strategies as st

from django_idempotency import ResultTooLarge, ResultUnavailable, StoreError
from django_idempotency.codecs import JSONCodec, pack, unavailable, unpack
from django_idempotency.http.snapshot import SnapshotCodec

JSON = JSONCodec()
LIMIT = 1024 * 1024


class Upper:
    """A codec of somebody else's."""

    id = "upper"
    exact = False

    def encode(self, result):
        return result.upper().encode()

    def decode(self, payload):
        return payload.decode()


class Raw(Upper):
    def encode(self, result):
        return result


def through(result):
    return unpack(JSON, pack(JSON, result, max_bytes=LIMIT))


J = b"\x01\x00\x04json"
Z = b"\x01\x01\x04json"
DAMAGED = [
    None,
    b"",
    b"\x01",
    b"\x01\x00",
    b"\x01\x00\x04",
    b"\x01\x00\x04jso",
    J,
    Z + b"{}",
    10**12,
]
DAMAGED += [J + rest for rest in (b"{", b"\xff", b"[" * 100_000)]
DAMAGED += [
    J + b'{"#%s":%s}' % it for it in ((b"decimal", b'"x"'), (b"uuid", b'"x"'), (b"uuid", b"1"))
]
DAMAGED += [J + b'{"#%s":%s}' % it for it in ((b"bytes", b'"?"'), (b"bytes", b"[]"))]
DAMAGED += [J + b'{"#%s":%s}' % it for it in ((b"datetime", b'"x"'), (b"datetime", b"1"))]
DAMAGED += [J + b'{"#timedelta":"1 2 3 4 5 6 7 8 9"}', J + b'{"#timedelta":null}', J.decode() + "1"]
DAMAGED += [Z + zlib.compress(b"[1,2]")[:-3], Z + zlib.compress(b"[1,2]") + b"!"]
DAMAGED += [Z + zlib.compress(b" " * (LIMIT + 1))]


def snapshot(status=200, headers=(), body=b"", **more):
    """Return the payload of a response, forged or not."""
    head = json.dumps({"status": status, "headers": headers, **more}).encode()
    return len(head).to_bytes(4, "big") + head + body


#: An interim response (1xx) among them: the client would take its body for the answer.
STATUSES = (0, 99, 100, 199, 600, 1000, "200", True, 200.0, None)
HEADERS = [None, [["Location"]], [["Location", 5]], [[None, "x"]], [["", "a=b"]], [1]]
HEADERS += [[["Location", value]] for value in ("/\nSet-Cookie: a=b", "/\r", "\0", "\u20ac")]
HEADERS += [[[name, "/x"]] for name in ("Location\nSet-Cookie", "Set Cookie", "X-Accel-Redirect")]
DAMAGED_SNAPSHOTS = [
    *(snapshot(status) for status in STATUSES),
    *(snapshot(headers=headers) for headers in HEADERS),
    *(b"", b"\x00", b"\x00\x01\x86\xa0" + b"[" * 100_000, b"\xff\xff\xff\xff{}"),
    *(b"\x00\x00\x00\x02[]body", b"\x00\x00\x00\x041234body", b"\x00\x00\x00\x02{}body"),
    b"\x00\x00\x00\x04" + "{}".encode("utf-16-le"),
]


MARKS = ["#uuid", "#bytes", "#decimal", "#datetime", "#timedelta", "##", "#a"]


def is_refused(codec, envelope):
    try:
        unpack(codec, envelope)
    except StoreError:
        return True
    return False


class TestEnvelope:
    def test_version_1_stays_readable(self):
        assert unpack(JSON, b'\x01\x00\x04json{"a":1}') == {"a": 1}
        assert unpack(JSON, Z + zlib.compress(b"[1,2]")) == [1, 2]

    def test_large_results_are_compressed_where_they_shrink(self):
        assert pack(JSON, {"a": 1}, max_bytes=LIMIT) == J + b'{"a":1}'
        packed = pack(JSON, "a" * 10_000, max_bytes=LIMIT)
        assert len(packed) < 200
        assert unpack(JSON, packed) == "a" * 10_000
        noise = os.urandom(1000)
        assert pack(Raw(), noise, max_bytes=LIMIT) == b"\x01\x00\x05upper" + noise

    def test_R62_max_result_bytes_counts_before_compression(self):
        for length in (0, 9, 10):
            pack(JSON, "a" * max(length - 2, 0), max_bytes=10)
        with pytest.raises(ResultTooLarge, match=r"102 bytes.*100"):
            pack(JSON, "a" * 100, max_bytes=100)

    def test_R62_unavailable_or_of_another_codec_is_told(self):
        with pytest.raises(ResultUnavailable):
            unpack(JSON, unavailable(JSON))
        with pytest.raises(StoreError, match="'upper', not by 'json'"):
            unpack(JSON, pack(Upper(), "a", max_bytes=LIMIT))
        with pytest.raises(StoreError):
            unpack(Upper(), unavailable(JSON))

    def test_a_newer_release_is_refused_clearly(self):
        for start in (b"\x02\x00", b"\x01\x04", b"\x01\x80", b"\xff\xff"):
            with pytest.raises(StoreError, match="newer release"):
                unpack(JSON, start + b"\x04json{}")

    def test_R95_a_damaged_envelope_or_snapshot_is_a_StoreError(self):
        snapshots = [b"\x01\x00\x04http" + payload for payload in DAMAGED_SNAPSHOTS]
        for codec, found in ((JSON, DAMAGED), (SnapshotCodec(), snapshots)):
            assert [it for it in found if not is_refused(codec, it)] == []

    @given(st.binary(max_size=80))
    def test_any_bytes_are_a_result_or_an_error_of_ours(self, envelope):
        for codec in (JSON, SnapshotCodec()):
            with suppress(StoreError, ResultUnavailable):
                unpack(codec, envelope)

    @given(st.sampled_from(MARKS), st.none() | st.integers() | st.text(max_size=5))
    def test_any_JSON_is_a_result_or_an_error_of_ours(self, mark, value):
        with suppress(StoreError):
            unpack(JSON, J + json.dumps([{mark: value}, {mark: value, "a": [value]}]).encode())

    @pytest.mark.parametrize("status", [204, 304])
    def test_R95_no_body_after_a_response_that_has_none(self, status):
        smuggled = snapshot(status, body=b"HTTP/1.1 200 OK\r\nSet-Cookie: a=b\r\n\r\n")
        assert unpack(SnapshotCodec(), b"\x01\x00\x04http" + smuggled).body == b""

    def test_an_interim_response_cannot_be_kept(self):
        with pytest.raises(TypeError, match="interim"):
            SnapshotCodec().encode(HttpResponse(status=103))

    def test_R95_header_fields_that_are_never_kept_are_not_replayed(self):
        forged = [["Set-Cookie", "session=x"], ["Content-Length", "5"], ["ETag", '"1"']]
        envelope = b"\x01\x00\x04http" + snapshot(201, forged, b"body")
        response = unpack(SnapshotCodec(), envelope).response()
        assert (response.status_code, response.content) == (201, b"body")
        assert dict(response.items()) == {"ETag": '"1"'}

    def test_R95_nothing_inflates_beyond_max_result_bytes(self):
        """Nor beyond the default, so that records outlive a limit that was lowered."""
        for beyond in (0, 1):
            text = b"0" + b" " * (LIMIT + beyond - 1)
            for envelope in (J + text, Z + zlib.compress(text)):
                assert unpack(JSON, envelope, max_bytes=LIMIT + beyond) == 0
                with pytest.raises(StoreError, match="more than") if beyond else nullcontext():
                    assert unpack(JSON, envelope, max_bytes=10) == 0

    def test_R95_a_bomb_is_not_inflated(self):
        bomb = zlib.compress(b" " * (20 * LIMIT))
        tracemalloc.start()
        with pytest.raises(StoreError, match="more than 1048576 bytes"):
            unpack(JSON, Z + bomb)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 4 * LIMIT

    def test_R95_whatever_a_codec_raises_is_a_StoreError(self):
        class Odd(Upper):
            def decode(self, payload):
                raise EOFError(payload)

        with pytest.raises(StoreError) as raised:
            unpack(Odd(), pack(Upper(), "a", max_bytes=LIMIT))
        assert isinstance(raised.value.__cause__.__cause__, EOFError)

    def test_R95_size_of_an_answer_is_known_before_it_is_copied(self):
        response = HttpResponse(b"x" * LIMIT)
        response.write(b"x" * LIMIT)
        tracemalloc.start()
        with pytest.raises(ResultTooLarge, match="max_result_bytes allows 1048576"):
            pack(SnapshotCodec(max_bytes=LIMIT), response, max_bytes=LIMIT)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < LIMIT

    def test_R95_header_field_that_could_not_be_sent_is_not_stored(self):
        response = HttpResponse(headers={"X-Odd": "a\0b", "ETag": '"1"'})
        envelope = pack(SnapshotCodec(), response, max_bytes=LIMIT)
        headers = unpack(SnapshotCodec(), envelope).headers
        assert dict(headers) == {"Content-Type": "text/html; charset=utf-8", "ETag": '"1"'}


UTC = datetime.timezone.utc
KEPT = [
    *(None, True, False, 0, 1, -1, 2**63, 10**400, 0.0, 1.5, -0.0, 1e300),
    *("", "a", "größe 😀", "\x00", "\ud800", b"", bytes(range(256))),
    *([], {}, [[]], [None, 0, "", False], {"a": {"b": [1, {"c": None}]}}, {"": 1}),
    *map(decimal.Decimal, ("1.10", "-0", "1E+400")),
    datetime.datetime(2026, 1, 2, 3, 4, 5, 678901),
    datetime.datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC),
    datetime.datetime(2026, 1, 2, tzinfo=datetime.timezone(datetime.timedelta(minutes=330))),
    datetime.date(2026, 1, 2),
    datetime.time(3, 4, 5),
    datetime.time(3, 4, 5, 6, tzinfo=UTC),
    datetime.timedelta(days=-1, seconds=5, microseconds=7),
    datetime.timedelta.max,
    uuid.UUID(int=5),
    *({"#decimal": "1"}, {"#": 1}, {"##uuid": "x"}, {"#a": {"#b": decimal.Decimal(1)}}),
    *([{"#bytes": b"x"}], {"#decimal": decimal.Decimal(1), "b": 1}),
]


LEAVES = st.one_of(
    *(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(), st.binary()),
    *(st.decimals(allow_nan=False), st.datetimes(), st.dates(), st.times(), st.timedeltas()),
    st.uuids(),
)


def nested(inner):
    names = st.text(max_size=4) | st.sampled_from(["#uuid", "##", "#decimal"])
    return st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4)


class TestJSON:
    def test_R64_keeps(self):
        for result in KEPT:
            back = through(result)
            assert (type(back), back, repr(back)) == (type(result), result, repr(result))

    def test_what_JSON_keeps_otherwise(self):
        assert math.isnan(through(float("nan")))
        assert through(decimal.Decimal("NaN")).is_nan()
        assert through((1, (2, 3))) == [1, [2, 3]]
        assert through({1: "a", -2: "b", False: "c"}) == {"1": "a", "-2": "b", "false": "c"}

    def test_what_JSON_cannot_say_is_a_TypeError_that_names_it(self):
        assert JSON.exact is False
        for result, name in [
            (object(), "object"),
            ([{"a": object()}], "object"),
            ({1, 2}, "set"),
            (1j, "complex"),
            ({(1, 2): 3}, "tuple"),
            ({None: 3}, "NoneType"),
            ({1.5: 3}, "float"),
            (bytearray(b"x"), "bytearray"),
            ({1: "a", "1": "b"}, "two members of one name"),
        ]:
            with pytest.raises(TypeError, match=name):
                pack(JSON, result, max_bytes=LIMIT)

    @given(st.recursive(LEAVES, nested, max_leaves=8))
    def test_R64_any_result_comes_back(self, result):
        assert through(result) == result
