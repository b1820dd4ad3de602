"""Results as bytes: the versioned envelope, and what JSON keeps of a result (R62, R64)."""

from __future__ import annotations

import datetime
import decimal
import json
import math
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


def through(result):
    return unpack(JSON, pack(JSON, result, max_bytes=LIMIT))


DAMAGED = [
    None,
    b"",
    b"\x01",
    b"\x01\x00",
    b"\x01\x00\x04",
    b"\x01\x00\x04jso",
    b"\x01\x00\x04json",
    b"\x01\x00\x04json{",
    b"\x01\x00\x04json\xff",
    b"\x01\x01\x04json{}",
    b"\x01\x01\x04json" + zlib.compress(b"[1,2]")[:-3],
    b'\x01\x00\x04json{"#decimal":"x"}',
    b'\x01\x00\x04json{"#uuid":"x"}',
    b'\x01\x00\x04json{"#uuid":1}',
    b'\x01\x00\x04json{"#bytes":"?"}',
    b'\x01\x00\x04json{"#bytes":[]}',
    b'\x01\x00\x04json{"#datetime":"x"}',
    b'\x01\x00\x04json{"#datetime":1}',
    b'\x01\x00\x04json{"#timedelta":"1 2 3 4 5 6 7 8 9"}',
    b'\x01\x00\x04json{"#timedelta":null}',
    b"\x01\x00\x04json" + b"[" * 100_000,
    '\x01\x00\x04json{"a":1}',
    10**12,
    b"\x01\x01\x04json" + zlib.compress(b"[1,2]") + b"!",
    b"\x01\x01\x04json" + zlib.compress(b" " * (LIMIT + 1)),
]


def snapshot(status=200, headers=(), body=b"", **more):
    """Return the payload of a response, forged or not."""
    head = json.dumps({"status": status, "headers": headers, **more}).encode()
    return len(head).to_bytes(4, "big") + head + body


#: An interim response (1xx) among them: the client would take its body for the answer.
BAD = (0, 99, 100, 199, 600, 1000, "200", True, 200.0)
DAMAGED_SNAPSHOTS = [
    b"",
    *(snapshot(status) for status in BAD),
    snapshot(None),
    snapshot(headers=None),
    snapshot(headers=[["Location"]]),
    snapshot(headers=[["Location", 5]]),
    snapshot(headers=[[None, "x"]]),
    snapshot(headers=[["Location", "/\nSet-Cookie: a=b"]]),
    snapshot(headers=[["Location", "/\r"]]),
    snapshot(headers=[["Location", "\0"]]),
    snapshot(headers=[["Location", "\u20ac"]]),
    snapshot(headers=[["Location\nSet-Cookie", "a=b"]]),
    snapshot(headers=[["Set Cookie", "a=b"]]),
    snapshot(headers=[["", "a=b"]]),
    snapshot(headers=[["X-Accel-Redirect", "/private/key"]]),
    b"\x00\x01\x86\xa0" + b"[" * 100_000,
    b"\x00\x00\x00\x04" + "{}".encode("utf-16-le"),
    b"\x00",
    b"\x00\x00\x00\x02[]body",
    b"\x00\x00\x00\x041234body",
    b"\x00\x00\x00\x02{}body",
    b'\x00\x00\x00\x1c{"status":200,"headers":[1]}',
    b"\xff\xff\xff\xff{}",
]


def is_refused(codec, envelope):
    try:
        unpack(codec, envelope)
    except StoreError:
        return True
    return False


class TestEnvelope:
    def test_version_1_stays_readable(self):
        assert unpack(JSON, b'\x01\x00\x04json{"a":1}') == {"a": 1}
        assert unpack(JSON, b"\x01\x01\x04json" + zlib.compress(b"[1,2]")) == [1, 2]

    def test_starts_with_version_flags_and_the_codecs_id(self):
        assert pack(JSON, {"a": 1}, max_bytes=LIMIT) == b'\x01\x00\x04json{"a":1}'

    def test_a_large_result_is_compressed(self):
        packed = pack(JSON, "a" * 10_000, max_bytes=LIMIT)
        assert len(packed) < 200
        assert unpack(JSON, packed) == "a" * 10_000

    def test_a_result_that_does_not_shrink_is_not_compressed(self):
        class Raw(Upper):
            id = "raw"

            def encode(self, result):
                return result

            def decode(self, payload):
                return payload

        noise = b"".join(uuid.uuid4().bytes for _ in range(100))
        packed = pack(Raw(), noise, max_bytes=LIMIT)
        assert packed == b"\x01\x00\x03raw" + noise

    def test_R62_max_result_bytes_counts_before_compression(self):
        for length in (0, 9, 10):
            pack(JSON, "a" * max(length - 2, 0), max_bytes=10)
        with pytest.raises(ResultTooLarge, match=r"102 bytes.*100"):
            pack(JSON, "a" * 100, max_bytes=100)

    def test_R62_unavailable(self):
        with pytest.raises(ResultUnavailable):
            unpack(JSON, unavailable(JSON))

    def test_another_codec_is_told_whose_it_is(self):
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

    @given(
        st.recursive(
            st.none() | st.integers() | st.text(max_size=5),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(
                    st.sampled_from(
                        ["a", "#uuid", "#bytes", "#decimal", "#datetime", "#timedelta", "##"]
                    ),
                    inner,
                    max_size=2,
                )
            ),
            max_leaves=6,
        )
    )
    def test_any_JSON_is_a_result_or_an_error_of_ours(self, value):
        with suppress(StoreError):
            unpack(JSON, b"\x01\x00\x04json" + json.dumps(value).encode())

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

    @pytest.mark.parametrize(("limit", "passes"), [(LIMIT, True), (LIMIT + 1, False)])
    def test_R95_nothing_inflates_beyond_max_result_bytes(self, limit, passes):
        """Nor beyond the default, so that records outlive a limit that was lowered."""
        envelope = b"\x01\x01\x04json" + zlib.compress(b"0" + b" " * (limit - 1))
        with nullcontext() if passes else pytest.raises(StoreError, match="more than"):
            assert unpack(JSON, envelope, max_bytes=10) == 0
        assert unpack(JSON, envelope, max_bytes=limit) == 0

    def test_R95_what_is_not_compressed_has_the_same_limit(self):
        with pytest.raises(StoreError, match="more than 1048576 bytes"):
            unpack(JSON, b"\x01\x00\x04json0" + b" " * LIMIT)

    def test_R95_a_bomb_is_not_inflated(self):
        bomb = zlib.compress(b" " * (20 * LIMIT))
        tracemalloc.start()
        with pytest.raises(StoreError, match="more than 1048576 bytes"):
            unpack(JSON, b"\x01\x01\x04json" + bomb)
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

    @pytest.mark.parametrize("many", [True, False])
    def test_R95_size_of_an_answer_is_known_before_it_is_copied(self, many):
        response = HttpResponse()
        for _ in range(8 if many else 1):
            response.write(b"x" * LIMIT if many else b"x" * 8 * LIMIT)
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


class TestJSON:
    def test_R64_keeps(self):
        for result in KEPT:
            back = through(result)
            assert (type(back), back, repr(back)) == (type(result), result, repr(result))

    def test_nan_stays_nan(self):
        assert math.isnan(through(float("nan")))
        assert through(decimal.Decimal("NaN")).is_nan()

    def test_a_tuple_comes_back_as_a_list(self):
        assert through((1, (2, 3))) == [1, [2, 3]]

    def test_a_number_as_a_name_comes_back_as_text(self):
        assert through({1: "a", -2: "b", False: "c"}) == {"1": "a", "-2": "b", "false": "c"}

    def test_names_that_would_become_one_are_refused(self):
        with pytest.raises(TypeError):
            through({1: "a", "1": "b"})

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
        ]:
            with pytest.raises(TypeError, match=name):
                pack(JSON, result, max_bytes=LIMIT)

    def test_R62_a_result_that_holds_itself_cannot_be_kept(self):
        result: list[object] = []
        result.append(result)
        with pytest.raises((TypeError, ValueError)):
            pack(JSON, result, max_bytes=LIMIT)

    @given(
        st.recursive(
            st.none()
            | st.booleans()
            | st.integers()
            | st.floats(allow_nan=False)
            | st.text()
            | st.binary()
            | st.decimals(allow_nan=False)
            | st.datetimes()
            | st.dates()
            | st.times()
            | st.timedeltas()
            | st.uuids(),
            lambda inner: (
                st.lists(inner, max_size=4)
                | st.dictionaries(
                    st.text(max_size=4) | st.sampled_from(["#uuid", "##", "#decimal"]),
                    inner,
                    max_size=4,
                )
            ),
            max_leaves=10,
        )
    )
    def test_R64_any_result_comes_back(self, result):
        assert through(result) == result
