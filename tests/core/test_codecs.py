"""Results as bytes: the versioned envelope, and what JSON keeps of a result (R62, R64)."""

from __future__ import annotations

import datetime
import decimal
import json
import math
import uuid
import zlib
from contextlib import suppress

import pytest
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


DAMAGED = {
    "none": None,
    "nothing": b"",
    "version only": b"\x01",
    "no length": b"\x01\x00",
    "no id": b"\x01\x00\x04",
    "id cut short": b"\x01\x00\x04jso",
    "no payload": b"\x01\x00\x04json",
    "payload cut short": b"\x01\x00\x04json{",
    "not UTF-8": b"\x01\x00\x04json\xff",
    "not compressed": b"\x01\x01\x04json{}",
    "compressed and cut short": b"\x01\x01\x04json" + zlib.compress(b"[1,2]")[:-3],
    "no decimal": b'\x01\x00\x04json{"#decimal":"x"}',
    "no uuid": b'\x01\x00\x04json{"#uuid":"x"}',
    "number as uuid": b'\x01\x00\x04json{"#uuid":1}',
    "no base64": b'\x01\x00\x04json{"#bytes":"?"}',
    "list as bytes": b'\x01\x00\x04json{"#bytes":[]}',
    "no datetime": b'\x01\x00\x04json{"#datetime":"x"}',
    "number as datetime": b'\x01\x00\x04json{"#datetime":1}',
    "timedelta of many": b'\x01\x00\x04json{"#timedelta":"1 2 3 4 5 6 7 8 9"}',
    "null as timedelta": b'\x01\x00\x04json{"#timedelta":null}',
    "too deep": b"\x01\x00\x04json" + b"[" * 100_000,
}
DAMAGED_SNAPSHOTS = {
    "nothing": b"",
    "no head": b"\x00",
    "list as head": b"\x00\x00\x00\x02[]body",
    "number as head": b"\x00\x00\x00\x041234body",
    "empty head": b"\x00\x00\x00\x02{}body",
    "number as header field": b'\x00\x00\x00\x1c{"status":200,"headers":[1]}',
    "head longer than all": b"\xff\xff\xff\xff{}",
}


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

    @pytest.mark.parametrize("length", [0, 9, 10])
    def test_max_result_bytes_allows(self, length):
        pack(JSON, "a" * max(length - 2, 0), max_bytes=10)

    def test_R62_max_result_bytes_counts_before_compression(self):
        with pytest.raises(ResultTooLarge, match=r"102 bytes.*100"):
            pack(JSON, "a" * 100, max_bytes=100)

    def test_R62_unavailable(self):
        with pytest.raises(ResultUnavailable):
            unpack(JSON, unavailable(JSON))

    def test_another_codec_is_told_whose_it_is(self):
        with pytest.raises(StoreError, match="'upper', not by 'json'"):
            unpack(JSON, pack(Upper(), "a", max_bytes=LIMIT))

    def test_unavailable_of_another_codec_is_a_StoreError(self):
        with pytest.raises(StoreError):
            unpack(Upper(), unavailable(JSON))

    @pytest.mark.parametrize(
        "envelope",
        [b"\x02\x00\x04json{}", b"\x01\x04\x04json{}", b"\x01\x80\x04json{}", b"\xff\xff\xff"],
        ids=["version", "flag", "highest flag", "all"],
    )
    def test_a_newer_release_is_refused_clearly(self, envelope):
        with pytest.raises(StoreError, match="newer release"):
            unpack(JSON, envelope)

    @pytest.mark.parametrize("envelope", DAMAGED.values(), ids=DAMAGED.keys())
    def test_a_damaged_envelope_is_a_StoreError(self, envelope):
        with pytest.raises(StoreError):
            unpack(JSON, envelope)

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

    @pytest.mark.parametrize("payload", DAMAGED_SNAPSHOTS.values(), ids=DAMAGED_SNAPSHOTS.keys())
    def test_a_damaged_snapshot_is_a_StoreError(self, payload):
        with pytest.raises(StoreError):
            unpack(SnapshotCodec(), b"\x01\x00\x04http" + payload)


UTC = datetime.timezone.utc
KEPT = [
    None,
    True,
    False,
    0,
    1,
    -1,
    2**63,
    10**400,
    0.0,
    1.5,
    -0.0,
    1e300,
    "",
    "a",
    "größe 😀",
    "\x00",
    "\ud800",
    [],
    {},
    [[]],
    [None, 0, "", False],
    {"a": {"b": [1, {"c": None}]}},
    {"": 1},
    decimal.Decimal("1.10"),
    decimal.Decimal("-0"),
    decimal.Decimal("1E+400"),
    datetime.datetime(2026, 1, 2, 3, 4, 5, 678901),
    datetime.datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC),
    datetime.datetime(
        2026, 1, 2, tzinfo=datetime.timezone(datetime.timedelta(hours=5, minutes=30))
    ),
    datetime.date(2026, 1, 2),
    datetime.time(3, 4, 5),
    datetime.time(3, 4, 5, 6, tzinfo=UTC),
    datetime.timedelta(days=-1, seconds=5, microseconds=7),
    datetime.timedelta.max,
    uuid.UUID(int=5),
    b"",
    bytes(range(256)),
    {"#decimal": "1"},
    {"#": 1},
    {"##uuid": "x"},
    {"#a": {"#b": decimal.Decimal(1)}},
    [{"#bytes": b"x"}],
    {"#decimal": decimal.Decimal(1), "b": 1},
]


class TestJSON:
    @pytest.mark.parametrize("result", KEPT, ids=lambda result: repr(result)[:40])
    def test_R64_keeps(self, result):
        back = through(result)
        assert back == result
        assert type(back) is type(result)
        assert repr(back) == repr(result)

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

    def test_is_not_exact(self):
        assert JSON.exact is False

    @pytest.mark.parametrize(
        ("result", "name"),
        [
            (object(), "object"),
            ([{"a": object()}], "object"),
            ({1, 2}, "set"),
            (1j, "complex"),
            ({(1, 2): 3}, "tuple"),
            ({None: 3}, "NoneType"),
            ({1.5: 3}, "float"),
            (bytearray(b"x"), "bytearray"),
        ],
    )
    def test_what_JSON_cannot_say_is_a_TypeError_that_names_it(self, result, name):
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
