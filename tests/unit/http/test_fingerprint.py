"""Section D, R37 to R48: what makes two requests ask for the same thing, and what is stored."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.conf import settings as project
from django.test import AsyncRequestFactory, RequestFactory
from django.urls import ResolverMatch

from django_idempotency.fingerprint import Fingerprint
from django_idempotency.http.content import body_of, fingerprint_of, path_of
from django_idempotency.models import IdempotencyRecord
from django_idempotency.options import secrets_in
from django_idempotency.policy import HTTPPolicy, Policy
from tests.unit.http.api import problem
from tests.unit.http.views import MISMATCH, BareView

pytestmark = pytest.mark.django_db

# Each of these pairs is one request, or two, beside those of the contract of HTTP. How JSON is
# compared is in core/test_fingerprint.py.


def sent(
    body: Any = b"", kind: str = "application/json", url: str = "/a/", **policy: Any
) -> Fingerprint:
    """Return the fingerprint of a request that no URLconf has resolved."""
    method, headers = policy.pop("method", "POST"), policy.pop("headers", None)
    secret = Policy(fingerprint_secrets=policy.pop("secrets", ("secret",)))
    http = HTTPPolicy(**policy)
    request = RequestFactory().generic(method, url, body, kind, headers=headers, CONTENT_TYPE=kind)
    return fingerprint_of(request, request, secret, http, lambda: body_of(request, http), "")


def form(body: Any, charset: str = "", **policy: Any) -> Fingerprint:
    return sent(body, f"application/x-www-form-urlencoded{charset}", **policy)


def latin(body: Any, kind: str = "application/json", **policy: Any) -> Fingerprint:
    return sent(body, f"{kind}; charset=ISO-8859-1", **policy)


def with_field(value: str, *counted: str) -> Fingerprint:
    return sent(headers={"X-V": value}, fingerprint_headers=counted)


def same(request: Any) -> bytes:
    return b"same"


def test_R32_R33_R42_R44_R45_one_request():
    pairs = {
        "host": (sent(headers={"Host": "a.example"}), sent(headers={"Host": "b.example"})),
        "+json": (sent('{"a": 1}', "text/x+json"), sent('{"a":1}', "text/x+json")),
        "form escapes": (form("a=1"), form("a=%31")),
        "another Accept": (sent(headers={"Accept": "text/csv"}), sent()),
        "another If-Match": (sent(headers={"If-Match": '"1"'}), sent(headers={"If-Match": '"2"'})),
        "another header": (with_field("1"), with_field("2")),
        "callable": (sent("1", fingerprint=same), sent("2", fingerprint=same)),
        "UTF-8": (sent('"é"'), sent('"é"', "application/json; charset=utf-8")),
        "utf8": (sent('"é"'), sent('"é"', 'application/json; Charset="UTF8"')),
        "no codec": (sent('"é"'), sent('"é"', "application/json; charset=nonesuch")),
        "ASCII": (sent('"e"'), latin('"e"')),
        "ASCII text": (sent("e", "text/plain"), latin("e", "text/plain")),
        "ASCII form": (form("a=%65"), form("a=e", "; charset=latin-1")),
        "latin-1": (form("a=%e9", "; charset=latin-1"), form("a=%E9", "; charset=ISO-8859-1")),
    }
    assert [name for name, (one, other) in pairs.items() if one.forms != other.forms] == []


def test_R40_R42_R44_R45_R46_two_requests():
    pairs = {
        "order of the query": (sent(url="/a/?a=1&b=1"), sent(url="/a/?b=1&a=1")),
        "no JSON": (sent('{"a": '), sent('{"a":  ')),
        "no UTF-8": (sent(b"\xff\xfe"), sent(b"\xff\xfe ")),
        "too deep": (sent(b"[" * 100_000), sent(b"[" * 100_001)),
        "a form's empty name more": (form("a=1"), form("a=1&c=")),
        "type of other bodies": (sent("a", "text/plain"), sent("a", "text/x-other")),
        "empty and {} of a form": (form(""), form("{}")),
        "header that is not there": (with_field("1", "X-V"), sent(fingerprint_headers=["X-V"])),
        "raw form": (form("a=1&b=2", fingerprint="raw"), form("b=2&a=1", fingerprint="raw")),
        "secrets of the policy": (sent(), sent(secrets=("other",))),
        "charset": (sent('"é"'), latin('"é"')),
        "ASCII, read otherwise": (sent("+AOk-", "text/x"), sent("+AOk-", "text/x; charset=utf-7")),
        "charset of text": (sent("é", "text/plain"), latin("é", "text/plain")),
        "charset of raw JSON": (sent('"é"', fingerprint="raw"), latin('"é"', fingerprint="raw")),
        "charset of a form": (form("a=%C3%A9"), form("a=%C3%A9", "; charset=latin-1")),
        "charset of a form's bytes": (form("a=é"), form("a=é", "; charset=latin-1")),
        "two charsets": (latin('"é"'), sent('"é"', "application/json; charset=cp1251")),
        "no charset of text": (sent('"é"'), sent('"é"', "application/json; charset=hex")),
        "query alone": (sent(fingerprint=None), sent(url="/a/?a", fingerprint=None)),
    }

    assert [name for name, (one, other) in pairs.items() if one.forms == other.forms] == []


def test_R40_charset_of_a_project_counts_and_one_that_a_middleware_sets(settings):
    requests: list[Any] = [RequestFactory().post("/", b"\xe9", "text/x") for _ in range(3)]
    requests[1].encoding, requests[2].encoding = "utf8", "nonesuch"
    settings.DEFAULT_CHARSET = "latin-1"
    found = [body_of(request, HTTPPolicy()).rpartition(b":")[0] for request in requests]
    assert found == [b"raw:text/x;iso8859-1", b"raw:text/x", b"raw:text/x;nonesuch"]


def test_R40_R43_charset_of_a_body_that_memory_does_not_hold_counts(settings):
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 2
    usual = sent("text", "text/plain")
    assert sent("text", "text/plain; charset=utf8").forms == usual.forms
    assert latin("text", "text/plain").forms != usual.forms


def test_R93_a_form_beyond_djangos_limit_is_compared_byte_by_byte(settings):
    settings.DATA_UPLOAD_MAX_NUMBER_FIELDS = 2
    assert form("a=1&b=2&c=3").forms != form("b=2&a=1&c=3").forms
    assert form("a=1&b=2").forms == form("b=2&a=1").forms


def test_R40_path_of_a_wsgi_request():
    expected = {
        "/caf%C3%A9/a%20b?q=1": b"/caf%C3%A9/a%20b",
        "/caf%c3%a9/a%20b": b"/caf%c3%a9/a%20b",
        "//double//a": b"//double//a",
        "https://shop.example/a%2Fb?c=/d": b"/a%2Fb",
        "/latin-\xe9": b"/latin-\xc3\xa9",
        "": b"/caf%C3%A9/a%20b",
    }
    post = RequestFactory().post
    assert {raw: path_of(post("/caf%C3%A9/a%20b", RAW_URI=raw)) for raw in expected} == expected
    assert path_of(post("/caf%C3%A9/a%20b?q=1")) == expected[""]
    assert path_of(post("/a/b", REQUEST_URI="/a%2Fb?c")) == b"/a%2Fb"


def test_R40_path_of_an_asgi_request():
    request: Any = AsyncRequestFactory().post("/a/b?c=1")
    for raw, expected in ((None, b"/a/b"), (b"/a%2Fb?c", b"/a%2Fb")):
        request.scope["raw_path"] = raw
        assert path_of(request) == expected


def test_R40_an_argument_of_the_path_may_have_no_text():
    class Textless:
        def __str__(self) -> str:
            raise ValueError

    request = RequestFactory().post("/accounts/7/")
    request.resolver_match = ResolverMatch(BareView, (), {"account": Textless()}, route="a")
    made = fingerprint_of(request, request, Policy(), HTTPPolicy(fingerprint=None), bytes, "")
    assert made.forms


# In the guard.


def test_R37_other_body_is_422_after_a_success_and_after_a_failure(api, mode, runs):
    for status in (200, 500):
        first = api.then("returned", status=status, key=str(status))
        before = IdempotencyRecord.objects.values().get(key=status)
        assert problem(api({"name": "b"}, key=str(status))) == MISMATCH
        assert IdempotencyRecord.objects.values().get(key=status) == before
        assert api.then("returned", status=status, key=str(status)).content == first.content
    assert runs == ["first"] * 3


# R47: what is stored.


def test_R47_only_hashes_are_stored(api):
    body = {"name": "first", "card": "4242424242424242", "then": "empty"}
    api(body, path="/effects/?hint=confidential", headers={"X-Hint": "confidential"})

    record = IdempotencyRecord.objects.values().get()
    text = repr({name: bytes(v) if isinstance(v, memoryview) else v for name, v in record.items()})
    assert record["state"] == "COMPLETED"
    assert "4242424242424242" not in text
    assert "confidential" not in text
    json_of_body = json.dumps(dict(sorted(body.items())), separators=(",", ":"))
    line = [b"POST", record["operation"].encode(), b"/effects/", b"hint=confidential"]
    made = Fingerprint.of([*line, f"json:{json_of_body}".encode()], secrets_in(project.SECRET_KEY))
    assert bytes(record["fingerprint"]) == made.forms[0]
