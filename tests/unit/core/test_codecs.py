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
from contextlib import contextmanager, nullcontext, suppress

import pytest
from django.http import HttpResponse
from hypothesis import given
from hypothesis import strategies as st

from django_idempotency import ResultTooLarge, ResultUnavailable, StoreError
from django_idempotency.codecs import JSONCodec, pack, unavailable, unpack
from django_idempotency.http.snapshot import SnapshotCodec

JSON = JSONCodec()
LIMIT = 1024 * 1024
J, Z, HTTP = b"\x01\x00\x04json", b"\x01\x01\x04json", b"\x01\x00\x04http"


class Upper:
    """A codec of somebody else's, which takes bytes as they are."""

    id = "upper"
    exact = False

    def encode(self, result):
        return result if isinstance(result, bytes) else result.upper().encode()

    def decode(self, payload):
        return payload.decode()


def through(result):
    return unpack(JSON, pack(JSON, result, max_bytes=LIMIT))


@contextmanager
def peak_below(size):
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < size
    finally:
        tracemalloc.stop()


# The envelope.


def test_version_1_stays_readable_and_a_newer_release_is_refused_clearly():
    assert unpack(JSON, J + b'{"a":1}') == {"a": 1}
    assert unpack(JSON, Z + zlib.compress(b"[1,2]")) == [1, 2]
    for start in (b"\x02\x00", b"\x01\x08", b"\x01\x80", b"\xff\xff"):
        with pytest.raises(StoreError, match="newer release"):
            unpack(JSON, start + b"\x04json{}")


def test_large_results_are_compressed_where_they_shrink():
    assert pack(JSON, {"a": 1}, max_bytes=LIMIT) == J + b'{"a":1}'
    packed = pack(JSON, "a" * 10_000, max_bytes=LIMIT)
    assert len(packed) < 200
    assert unpack(JSON, packed) == "a" * 10_000
    noise = os.urandom(1000)
    assert pack(Upper(), noise, max_bytes=LIMIT) == b"\x01\x00\x05upper" + noise


def test_R62_max_result_bytes_counts_before_compression():
    for length in (0, 10):
        pack(JSON, "a" * max(length - 2, 0), max_bytes=10)
    with pytest.raises(ResultTooLarge, match=r"102 bytes.*100"):
        pack(JSON, "a" * 100, max_bytes=100)


def test_R62_unavailable_or_of_another_codec_is_told():
    with pytest.raises(ResultUnavailable):
        unpack(JSON, unavailable(JSON))
    with pytest.raises(StoreError, match="'upper', not by 'json'"):
        unpack(JSON, pack(Upper(), "a", max_bytes=LIMIT))
    with pytest.raises(StoreError):
        unpack(Upper(), unavailable(JSON))


def test_R95_nothing_inflates_beyond_max_result_bytes():
    """Nor beyond the default, so that records outlive a limit that was lowered."""
    for beyond in (0, 1):
        text = b"0" + b" " * (LIMIT + beyond - 1)
        for envelope in (J + text, Z + zlib.compress(text)):
            assert unpack(JSON, envelope, max_bytes=LIMIT + beyond) == 0
            with pytest.raises(StoreError, match="more than") if beyond else nullcontext():
                assert unpack(JSON, envelope, max_bytes=10) == 0


def test_R95_a_bomb_is_not_inflated():
    bomb = zlib.compress(b" " * (8 * LIMIT))
    with peak_below(4 * LIMIT), pytest.raises(StoreError, match="more than 1048576 bytes"):
        unpack(JSON, Z + bomb)


def test_R95_whatever_a_codec_raises_is_a_StoreError():
    with pytest.raises(StoreError) as raised:
        unpack(Upper(), pack(Upper(), b"\xff", max_bytes=LIMIT))
    assert isinstance(raised.value.__cause__.__cause__, UnicodeDecodeError)


# What is damaged, or forged.

DAMAGED = [None, 10**12, J, Z + b"{}", J.decode() + "1", *(J[:n] for n in (0, 1, 2, 3, 6))]
DAMAGED += [J + rest for rest in (b"{", b"\xff", b"[" * 100_000)]
DAMAGED += [
    J + b'{"#%s":%s}' % it
    for it in (
        *((b"decimal", b'"x"'), (b"uuid", b'"x"'), (b"uuid", b"1"), (b"bytes", b'"?"')),
        *((b"bytes", b"[]"), (b"datetime", b'"x"'), (b"datetime", b"1")),
        *((b"timedelta", b'"1 2 3 4 5 6 7 8 9"'), (b"timedelta", b"null")),
    )
]
DAMAGED += [Z + zlib.compress(b"[1,2]")[:-3], Z + zlib.compress(b"[1,2]") + b"!"]


def snapshot(status=200, headers=(), body=b""):
    """Return the envelope of a response, forged or not."""
    head = json.dumps({"status": status, "headers": headers}).encode()
    return HTTP + len(head).to_bytes(4, "big") + head + body


#: An interim response (1xx) among them: the client would take its body for the answer.
STATUSES = (0, 100, 199, 600, 1000, "200", True, 200.0, None)
HEADERS = [None, [["Location"]], [["Location", 5]], [[None, "x"]], [["", "a=b"]], [1]]
HEADERS += [[["Location", value]] for value in ("/\nSet-Cookie: a=b", "/\r", "\0", "\u20ac")]
HEADERS += [[[name, "/x"]] for name in ("Location\nSet-Cookie", "Set Cookie", "X-Accel-Redirect")]
DAMAGED_SNAPSHOTS = [
    *(snapshot(status) for status in STATUSES),
    *(snapshot(headers=headers) for headers in HEADERS),
    *(
        HTTP + it
        for it in (b"", b"\x00", b"\x00\x01\x86\xa0" + b"[" * 100_000, b"\xff" * 4 + b"{}")
    ),
    *(HTTP + len(it).to_bytes(4, "big") + it + b"body" for it in (b"[]", b"1234", b"{}")),
    HTTP + b"\x00\x00\x00\x04" + "{}".encode("utf-16-le"),
]


def is_refused(codec, envelope):
    try:
        unpack(codec, envelope)
    except StoreError:
        return True
    return False


def test_R95_a_damaged_envelope_or_snapshot_is_a_StoreError():
    for codec, found in ((JSON, DAMAGED), (SnapshotCodec(), DAMAGED_SNAPSHOTS)):
        assert [it for it in found if not is_refused(codec, it)] == []


MARKS = ["#uuid", "#bytes", "#decimal", "#datetime", "#timedelta", "##", "#a"]


@given(st.sampled_from(MARKS), st.none() | st.integers() | st.text(max_size=5), st.binary())
def test_R95_any_bytes_and_any_JSON_are_a_result_or_an_error_of_ours(mark, value, rest):
    with suppress(StoreError):
        unpack(JSON, J + json.dumps([{mark: value}, {mark: value, "a": [value]}]).encode())
    for codec, start in ((JSON, b""), (JSON, J), (SnapshotCodec(), HTTP)):
        with suppress(StoreError, ResultUnavailable):
            unpack(codec, start + rest)


def test_R95_what_is_never_sent_is_neither_replayed_nor_stored():
    """A body after a response that has none, and header fields that are never kept, among it."""
    for status in (204, 304):
        smuggled = snapshot(status, body=b"HTTP/1.1 200 OK\r\nSet-Cookie: a=b\r\n\r\n")
        assert unpack(SnapshotCodec(), smuggled).body == b""
    forged = [["Set-Cookie", "session=x"], ["Content-Length", "5"], ["ETag", '"1"']]
    response = unpack(SnapshotCodec(), snapshot(201, forged, b"body")).response()
    assert (response.status_code, response.content) == (201, b"body")
    assert dict(response.items()) == {"ETag": '"1"'}
    with pytest.raises(TypeError, match="interim"):
        SnapshotCodec().encode(HttpResponse(status=103))
    response = HttpResponse(headers={"X-Odd": "a\0b", "ETag": '"1"'})
    headers = unpack(SnapshotCodec(), pack(SnapshotCodec(), response, max_bytes=LIMIT)).headers
    assert dict(headers) == {"Content-Type": "text/html; charset=utf-8", "ETag": '"1"'}
    response.headers = {"ETag": '"2"', "Date": "today"}  # as a project's own code may set them
    assert SnapshotCodec().decode(SnapshotCodec().encode(response)).headers == (("ETag", '"2"'),)


def test_R31_replays_of_one_answer_do_not_share_their_header_fields():
    snapshot = SnapshotCodec().decode(SnapshotCodec().encode(HttpResponse(headers={"ETag": "1"})))
    first = snapshot.response(("Cache-Control", "no-store"))
    first["X-Middleware"] = "of the first"
    del first["ETag"]
    again = snapshot.response(("Cache-Control", "no-store"))
    assert (again["ETag"], again["Cache-Control"], "X-Middleware" in again) == (
        "1",
        "no-store",
        False,
    )


def test_R95_size_of_an_answer_is_known_before_it_is_copied():
    response = HttpResponse(b"x" * LIMIT)
    response.write(b"x" * LIMIT)
    said = "max_result_bytes allows 1048576"
    with peak_below(LIMIT), pytest.raises(ResultTooLarge, match=said):
        pack(SnapshotCodec(max_bytes=LIMIT), response, max_bytes=LIMIT)


# What JSON keeps.

UTC = datetime.timezone.utc
KEPT = [
    *(None, True, False, 0, -1, 2**63, 10**400, 0.0, 1.5, -0.0, 1e300),
    *("", "größe 😀", "\x00", "\ud800", b"", bytes(range(256))),
    *([], {}, [[]], [None, 0, "", False], {"a": {"b": [1, {"c": None}]}}, {"": 1}),
    *map(decimal.Decimal, ("1.10", "-0", "1E+400")),
    datetime.datetime(2026, 1, 2, 3, 4, 5, 678901),
    datetime.datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC),
    datetime.datetime(2026, 1, 2, tzinfo=datetime.timezone(datetime.timedelta(minutes=330))),
    *(datetime.date(2026, 1, 2), datetime.time(3, 4, 5), datetime.time(3, 4, 5, 6, tzinfo=UTC)),
    *(datetime.timedelta(days=-1, seconds=5, microseconds=7), datetime.timedelta.max),
    uuid.UUID(int=5),
    *({"#decimal": "1"}, {"#": 1}, {"##uuid": "x"}, {"#a": {"#b": decimal.Decimal(1)}}),
    *([{"#bytes": b"x"}], {"#decimal": decimal.Decimal(1), "b": 1}),
]


def test_R64_keeps():
    for result in KEPT:
        back = through(result)
        assert (type(back), back, repr(back)) == (type(result), result, repr(result))


def test_what_JSON_keeps_otherwise_and_what_it_cannot_say():
    assert math.isnan(through(float("nan")))
    assert through(decimal.Decimal("NaN")).is_nan()
    assert through((1, (2, 3))) == [1, [2, 3]]
    assert through({1: "a", -2: "b", False: "c"}) == {"1": "a", "-2": "b", "false": "c"}
    assert JSON.exact is False
    for result, name in [
        *(([{"a": object()}], "object"), ({1, 2}, "set"), (1j, "complex")),
        *(({(1, 2): 3}, "tuple"), ({None: 3}, "NoneType"), ({1.5: 3}, "float")),
        *((bytearray(b"x"), "bytearray"), ({1: "a", "1": "b"}, "two members of one name")),
        (10**5000, "digits"),
    ]:
        with pytest.raises(TypeError, match=name):
            pack(JSON, result, max_bytes=LIMIT)
