"""R43 to R48, R80, R93: which bodies of plain views ask for the same thing."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, HttpResponse
from django.test import Client, RequestFactory
from django.urls import path

from django_idempotency.fingerprint import canonical_json
from django_idempotency.http import idempotent
from django_idempotency.http.content import body_of
from django_idempotency.policy import HTTPPolicy
from tests.app.models import Effect
from tests.unit.forms.conftest import Send, multipart
from tests.unit.forms.urls import ANYONE
from tests.unit.http.api import replayed
from tests.unit.http.conftest import SetPolicy

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.unit.forms.urls")]

FORM = "application/x-www-form-urlencoded"


@pytest.mark.parametrize(
    ("other", "status"),
    [
        pytest.param("b=3&a=%31&a=2", 201, id="order of names, and escapes"),
        pytest.param("a=1&a=2&b=3&csrfmiddlewaretoken=x", 201, id="csrf token"),
        pytest.param("a=2&a=1&b=3", 422, id="order within a name"),
        pytest.param("a=1&a=2&b=3&c=", 422, id="an empty name more"),
        pytest.param("", 422, id="nothing"),
    ],
)
def test_R44_R46_form_fields(send: Send, other: str, status: int) -> None:
    first, second = (send(body, content_type=FORM) for body in ("a=1&a=2&b=3", other))

    assert (first.status_code, second.status_code) == (201, status)
    assert replayed(second) == (status == 201)
    assert Effect.objects.count() == 1


def test_R44_bytes_that_are_no_utf8_are_told_apart(send: Send) -> None:
    send("a=%ff", content_type=FORM)

    assert send("a=%fe", content_type=FORM).status_code == 422
    assert replayed(send("a=%FF", content_type=FORM))


# fingerprint_exclude, fingerprint_headers.

SENT = {
    "amount": 10,
    "trace": {"id": 1},
    "client": {"name": "app", "sent_at": "10:00"},
    "items": [{"id": 1, "note": "a"}, {"id": 2, "note": "b"}, 3],
    "#seen": 1,
    "meta": {"#": 1, "kept": 1},
}
EXCLUDED = ["client.sent_at", "items.note", "#seen", "meta.#", "trace"]


def changed(*route: Any, to: Any) -> dict[str, Any]:
    """Return what was sent, with another value at the end of this route."""
    body: Any = json.loads(json.dumps(SENT))
    *way, last = route
    member = body
    for step in way:
        member = member[step]
    member[last] = to
    return dict(body)


SAME = {
    "path": changed("client", "sent_at", to="11:00"),
    "whole member": changed("trace", to=None),
    "in an array": changed("items", 1, "note", to="c"),
    "name that starts with #": changed("#seen", to=2),
    "name that is #": changed("meta", "#", to=[]),
    "left out": changed("client", to={"name": "app"}),
}
OTHER = {
    "another member": changed("amount", to=11),
    "beside the path": changed("client", "name", to="web"),
    "beside it in an array": changed("items", 1, "id", to=5),
    "the array": changed("items", to=[3]),
    "a number in the array": changed("items", 2, to=4),
    "beside #": changed("meta", "kept", to=2),
    "same name elsewhere": {**SENT, "sent_at": "11:00"},
    "same name above": {**SENT, "note": "c"},
}


def test_R45_fingerprint_exclude() -> None:
    """Of an array of messages, in each of them."""

    def counted(sent: Any) -> bytes | None:
        return canonical_json(json.dumps(sent).encode(), EXCLUDED)

    assert [name for name, body in SAME.items() if counted(body) != counted(SENT)] == []
    assert [name for name, body in OTHER.items() if counted(body) == counted(SENT)] == []
    assert counted([SAME["path"], SENT]) == counted([SENT, SENT])
    assert counted([OTHER["beside the path"], SENT]) != counted([SENT, SENT])


def excluding(request: HttpRequest) -> HttpResponse:
    return HttpResponse(request.body, status=201)


def consume(request: HttpRequest, pk: int) -> HttpResponse:
    """Change all that it is given."""
    changing: Any = request
    changing.POST = request.POST.copy()
    changing.POST["a"] = "changed"
    changing._body = b"changed"
    request.META["QUERY_STRING"] = "changed"
    request.META["CONTENT_TYPE"] = "text/plain"
    if request.resolver_match:
        request.resolver_match.kwargs["pk"] = 2
    return HttpResponse(status=201)


urlpatterns = [
    path("consume/<int:pk>/", idempotent(scope=ANYONE)(consume)),
    path(
        "exclude/",
        idempotent(
            scope=ANYONE, fingerprint_exclude=EXCLUDED, fingerprint_headers=["X-Version", "Accept"]
        )(excluding),
    ),
]
own_urls = pytest.mark.urls(__name__)


@own_urls
def test_R45_the_view_still_gets_what_is_excluded_and_header_fields_count(send: Send) -> None:
    arguments: dict[str, Any] = {"path": "/exclude/", "Accept": "2"}

    assert json.loads(send(SENT, **arguments, X_Version="1").content) == SENT
    other = changed("trace", to=None)
    assert replayed(send(other, **arguments, X_Version="1", X_Other="1"))
    assert send(SENT, **arguments, X_Version="2").status_code == 422
    assert send(SENT, path="/exclude/", Accept="1", X_Version="2").status_code == 422


@own_urls
@pytest.mark.parametrize(
    ("body", "content_type"), [("a=1", FORM), ('{"a": 1}', "application/json")]
)
def test_R48_a_view_that_changes_the_request(send: Send, body: str, content_type: str) -> None:
    arguments = {"path": "/consume/1/?q=1", "content_type": content_type}

    first, again = send(body, **arguments), send(body, **arguments)
    other = send(body.replace("1", "2"), **arguments)

    assert first.status_code == 201
    assert replayed(again)
    assert other.status_code == 422


# Bodies that Django itself would refuse: the view decides, for it need not parse them.


@idempotent(scope=ANYONE)
def ignores_its_body(request: HttpRequest) -> HttpResponse:
    return HttpResponse(status=202)


@pytest.mark.parametrize(
    "content_type",
    [
        "application/x-www-form-urlencoded; charset=latin-1",
        "multipart/form-data; boundary=b; charset=base64",
        "multipart/form-data; boundary=b; charset=idna",
    ],
)
def test_R90_form_in_a_charset_that_django_refuses(rf: RequestFactory, content_type: str) -> None:
    body = b'--b\r\nContent-Disposition: form-data; name="a"\r\n\r\nx\r\n--b--\r\n'
    for headers in ({}, {"Idempotency-Key": "k"}):
        request = rf.generic("POST", "/", body, content_type, headers=headers)

        assert ignores_its_body(request).status_code == 202


@pytest.mark.parametrize(
    ("limit", "third"), [(1, "third.txt"), (100, "x" * 2000)], ids=["too many", "long header"]
)
def test_R80_form_that_django_refuses_after_its_first_upload(
    rf: RequestFactory, settings: Any, limit: int, third: str
) -> None:
    settings.DATA_UPLOAD_MAX_NUMBER_FILES = limit
    names = ["first.txt", "second.txt", third]
    body, content_type = multipart(*(("file", name, "text/plain", b"a") for name in names))

    def send(content: bytes) -> Any:
        headers = {"Idempotency-Key": "k"}
        return ignores_its_body(rf.post("/", content, content_type=content_type, headers=headers))

    first, again, other = send(body), send(body), send(body.replace(b"\r\na\r\n", b"\r\nb\r\n"))

    assert (first.status_code, replayed(first)) == (202, False)
    assert (again.status_code, replayed(again)) == (202, True)
    assert other.status_code == 422


PARTS: Any = [(name, None, None, b"12") for name in "abc"]


@pytest.mark.parametrize("limit", ["DATA_UPLOAD_MAX_NUMBER_FIELDS", "DATA_UPLOAD_MAX_MEMORY_SIZE"])
@pytest.mark.parametrize("sent", [(b"a=12&b=12&c=12", FORM), multipart(*PARTS)])
@pytest.mark.urls("tests.unit.forms.test_visitors")
def test_R93_a_form_beyond_djangos_limits_reaches_a_view_that_does_not_parse_it(
    settings: Any, policy: SetPolicy, limit: str, sent: Any
) -> None:
    policy(HTTP={"SCOPE": ANYONE})
    setattr(settings, limit, 2)
    for headers in ({}, {"Idempotency-Key": "key-1"}):
        first, again = (Client().post("/signed/", *sent, headers=headers) for _ in range(2))

        assert (first.status_code, first.content) == (200, str(len(sent[0])).encode())
        assert replayed(again) == bool(headers)


@pytest.mark.parametrize("content_type", ["application/json", "multipart/form-data; boundary=b"])
def test_R43_large_body_of_a_length_that_nobody_has_said(settings: Any, content_type: str) -> None:
    """HTTP/2 has neither Content-Length, if the client leaves it out, nor Transfer-Encoding."""
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 100

    def compared(body: bytes) -> bytes:
        headers = [(b"content-type", content_type.encode())]
        scope = {"type": "http", "method": "POST", "path": "/", "headers": headers}
        request = ASGIRequest({**scope, "query_string": b""}, io.BytesIO(body))
        found = body_of(request, HTTPPolicy())
        assert request.read() == body
        return found

    one, other = b"1" * 1000, b"2" * 1000
    assert compared(one) == compared(one) != compared(other)
