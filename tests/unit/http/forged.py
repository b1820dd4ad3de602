"""Results that no guard has written, and what each of them must come to (R95)."""

from __future__ import annotations

import json
import logging
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from tests.app.models import Effect
from tests.unit.http.api import Api, problem, replayed


def forged(payload: bytes, *, codec: bytes = b"http", flags: int = 0) -> bytes:
    """Return an envelope, in the form that guards write."""
    return bytes((1, flags, len(codec))) + codec + payload


def response(status: Any = 200, *headers: Any) -> bytes:
    """Return the payload of a response."""
    head = json.dumps({"status": status, "headers": headers}).encode()
    return len(head).to_bytes(4, "big") + head + b"forged"


FORGED = {
    "cut short": b"\x01",
    "newer": b"\x09\x00\x04http",
    "no JSON": forged(b"\x00\x00\x00\x02{]"),
    "deep": forged(b"\x00\x01\x86\xa0" + b"[" * 100_000),
    "huge, it says": forged(b"\xff\xff\xff\xff{}"),
    "huge, inflated": forged(zlib.compress(b" " * 2**24), flags=1),
    "status": forged(response(1000)),
    "interim response": forged(response(103)),
    "header injection": forged(response(200, ["Location", "/\r\nSet-Cookie: a=b"])),
    "file of the server": forged(response(200, ["X-Accel-Redirect", "/private/"])),
    "foreign codec": forged(b"\x80\x04N.", codec=b"pickle"),
    "NUL": b"\0" * 64,
}


def each_is_a_503(
    api: Api, write: Callable[[bytes], None], caplog: pytest.LogCaptureFixture
) -> None:
    """Let `write` put each forged result into the one record; then one that is only too much."""
    first = api()
    for name, envelope in FORGED.items():
        write(envelope)
        caplog.clear()
        with caplog.at_level(logging.ERROR, "django_idempotency"):
            refused = api()
        assert problem(refused) == (503, "store_unavailable"), name
        [line] = [x for x in caplog.records if x.name == "django_idempotency"]
        assert "The stored result was written by" in line.getMessage() or (
            "The stored result is damaged" in line.getMessage()
        ), name
        assert "forged" not in caplog.text
    write(forged(response(202, ["Set-Cookie", "session=x"], ["ETag", '"1"'])))
    again = api()
    assert first.status_code == 201
    assert (again.status_code, again.content, replayed(again)) == (202, b"forged", True)
    assert again["ETag"] == '"1"'
    assert not again.cookies
    assert Effect.objects.count() == 1
