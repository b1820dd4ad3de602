"""R43 to R48, R80, R93: which bodies of plain views ask for the same thing."""

from __future__ import annotations

import io

import pytest
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpResponse
from django.test import Client
from django.urls import path

from django_idempotency.fingerprint import canonical_json
from django_idempotency.http import idempotent
from django_idempotency.http.content import body_of
from django_idempotency.policy import HTTPPolicy
from tests.unit.forms.conftest import multipart
from tests.unit.forms.urls import ANYONE
from tests.unit.http.api import replayed

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.unit.forms.urls")]

FORM = "application/x-www-form-urlencoded"


def test_R44_R46_form_fields_and_bytes_that_are_no_utf8(send):
    """Which fields make another request: tests/unit/http/test_fingerprint.py."""
    for first, other, status in [
        ("a=1&b=3", "b=3&a=%31&csrfmiddlewaretoken=x", 201),
        ("a=1", "", 422),
        ("a=%ff", "a=%FF", 201),
        ("a=%ff", "a=%fe", 422),
    ]:
        send(first, content_type=FORM, key=f"{first} {other}")
        second = send(other, content_type=FORM, key=f"{first} {other}")

        assert (second.status_code, replayed(second)) == (status, status == 201), (first, other)


# fingerprint_exclude, fingerprint_headers.

SENT = (
    '{"amount": 10, "trace": {"id": 1}, "client": {"name": "app", "sent_at": "10:00"}, '
    '"items": [{"id": 1, "note": "a"}, {"id": 2, "note": "b"}, 3], '
    '"#seen": 1, "meta": {"#": 1, "kept": 1}}'
)
EXCLUDED = ["client.sent_at", "items.note", "#seen", "meta.#", "trace"]
SAME = {
    "path": ('"10:00"', '"11:00"'),
    "left out": (', "sent_at": "10:00"', ""),
    "whole member": ('{"id": 1}', "null"),
    "in an array": ('"b"', '"c"'),
    "name that starts with #": ('"#seen": 1', '"#seen": 2'),
    "name that is #": ('"#": 1', '"#": []'),
}
OTHER = {
    "another member": ("10,", "11,"),
    "beside the path": ('"app"', '"web"'),
    "beside it in an array": ('"id": 2', '"id": 5'),
    "a number in the array": ("3]", "4]"),
    "beside #": ('"kept": 1', '"kept": 2'),
    "same name elsewhere": ('{"amount"', '{"sent_at": "11:00", "amount"'),
    "same name above": ('{"amount"', '{"note": "c", "amount"'),
}


@pytest.mark.parametrize("form", ["%s", "[%s, {}]"], ids=["message", "array of messages"])
def test_R45_fingerprint_exclude(form):
    def counted(old="", new=""):
        return canonical_json((form % SENT.replace(old, new)).encode(), EXCLUDED)

    assert [name for name, change in SAME.items() if counted(*change) != counted()] == []
    assert [name for name, change in OTHER.items() if counted(*change) == counted()] == []


@idempotent(scope=ANYONE, fingerprint_exclude=EXCLUDED, fingerprint_headers=["X-Version", "Accept"])
def excluding(request):
    return HttpResponse(request.body, status=201)


@idempotent(scope=ANYONE)
def consume(request, pk):
    """Change all that it is given."""
    request.POST = request.POST.copy()
    request.POST["a"] = "changed"
    request._body = b"changed"
    request.META["QUERY_STRING"] = "changed"
    request.META["CONTENT_TYPE"] = "text/plain"
    request.resolver_match.kwargs["pk"] = 2
    return HttpResponse(status=201)


urlpatterns = [path("consume/<int:pk>/", consume), path("exclude/", excluding)]


@pytest.mark.urls(__name__)
def test_R45_the_view_still_gets_what_is_excluded_and_header_fields_count(send):
    given = {"path": "/exclude/", "Accept": "2"}

    assert send(SENT, **given, X_Version="1").text == SENT
    assert replayed(send(SENT.replace("10:00", ""), **given, X_Version="1", X_Other="1"))
    assert send(SENT, **given, X_Version="2").status_code == 422
    assert send(SENT, **{**given, "Accept": "1"}, X_Version="1").status_code == 422


@pytest.mark.urls(__name__)
@pytest.mark.parametrize(("body", "kind"), [("a=1", FORM), ('{"a": 1}', "application/json")])
def test_R48_a_view_that_changes_the_request(send, body, kind):
    given = {"path": "/consume/1/?q=1", "content_type": kind}

    assert [replayed(send(body, **given)) for _ in range(2)] == [False, True]
    assert send(body.replace("1", "2"), **given).status_code == 422


# Bodies that Django itself would refuse: the view decides, for it need not parse them.


@idempotent(scope=ANYONE)
def ignores_its_body(request):
    return HttpResponse(status=202)


@pytest.mark.parametrize(
    "kind",
    [
        f"{FORM}; charset=latin-1",
        "multipart/form-data; boundary=b; charset=base64",
        "multipart/form-data; boundary=b; charset=idna",
    ],
)
def test_R90_form_in_a_charset_that_django_refuses(rf, kind):
    body = b'--b\r\nContent-Disposition: form-data; name="a"\r\n\r\nx\r\n--b--\r\n'
    for headers in ({}, {"Idempotency-Key": "k"}):
        request = rf.generic("POST", "/", body, kind, headers=headers)

        assert ignores_its_body(request).status_code == 202


@pytest.mark.parametrize(
    ("limit", "third"), [(1, "third.txt"), (100, "x" * 2000)], ids=["too many", "long header"]
)
def test_R80_form_that_django_refuses_after_its_first_upload(rf, settings, limit, third):
    settings.DATA_UPLOAD_MAX_NUMBER_FILES = limit
    names = ["first.txt", "second.txt", third]
    body, kind = multipart(*(("file", name, "text/plain", b"a") for name in names))

    def send(content):
        headers = {"Idempotency-Key": "k"}
        return ignores_its_body(rf.post("/", content, content_type=kind, headers=headers))

    assert [replayed(send(body)) for _ in range(2)] == [False, True]
    assert send(body.replace(b"\r\na\r\n", b"\r\nb\r\n")).status_code == 422


PARTS = [(name, None, None, b"12") for name in "abc"]


@pytest.mark.parametrize("limit", ["DATA_UPLOAD_MAX_NUMBER_FIELDS", "DATA_UPLOAD_MAX_MEMORY_SIZE"])
@pytest.mark.parametrize("sent", [(b"a=12&b=12&c=12", FORM), multipart(*PARTS)])
@pytest.mark.urls("tests.unit.forms.test_visitors")
def test_R93_a_form_beyond_djangos_limits_reaches_a_view_that_does_not_parse_it(
    settings, policy, limit, sent
):
    policy(HTTP={"SCOPE": ANYONE})
    setattr(settings, limit, 2)
    for headers in ({}, {"Idempotency-Key": "key-1"}):
        first, again = (Client().post("/signed/", *sent, headers=headers) for _ in range(2))

        assert (first.status_code, first.content) == (200, str(len(sent[0])).encode())
        assert replayed(again) == bool(headers)


@pytest.mark.parametrize("kind", ["application/json", "multipart/form-data; boundary=b"])
def test_R43_large_body_of_a_length_that_nobody_has_said(settings, kind):
    """HTTP/2 has neither Content-Length, if the client leaves it out, nor Transfer-Encoding."""
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 100
    scope = {"type": "http", "method": "POST", "path": "/", "query_string": b""}
    scope["headers"] = [(b"content-type", kind.encode())]

    def compared(body):
        request = ASGIRequest(scope, io.BytesIO(body))
        found = body_of(request, HTTPPolicy())
        assert request.read() == body
        return found

    one, other = b"1" * 1000, b"2" * 1000
    assert compared(one) == compared(one) != compared(other)
