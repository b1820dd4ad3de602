"""R44 to R48 at plain views: forms, what is left out, empty bodies, secrets."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.urls import path

from django_idempotency.fingerprint import VERSION
from django_idempotency.http import idempotent
from django_idempotency.models import IdempotencyRecord
from tests.app.models import Effect
from tests.unit.forms import urls
from tests.unit.forms.conftest import Send
from tests.unit.http.api import problem, replayed
from tests.unit.http.conftest import SetPolicy

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.unit.forms.urls")]

FORM = "application/x-www-form-urlencoded"


@pytest.mark.parametrize("method", ["POST", "PUT"])
@pytest.mark.parametrize(
    ("other", "status"),
    [
        pytest.param("b=3&a=1&a=2", 201, id="order of names"),
        pytest.param("a=1&b=3&a=2", 201, id="names interleaved"),
        pytest.param("a=%31&a=2&b=3", 201, id="escapes"),
        pytest.param("a=1&a=2&b=3&csrfmiddlewaretoken=x", 201, id="csrf token"),
        pytest.param("a=2&a=1&b=3", 422, id="order within a name"),
        pytest.param("a=1&a=2", 422, id="a name less"),
        pytest.param("a=1&a=2&b=3&c=", 422, id="an empty name more"),
        pytest.param("a=1&a=2&b=4", 422, id="value"),
    ],
)
def test_R44_form_fields(send: Send, other: str, status: int, method: str) -> None:
    first = send("a=1&a=2&b=3", content_type=FORM, method=method)
    second = send(other, content_type=FORM, method=method)

    assert first.status_code == 201
    assert second.status_code == status
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


def changed(*route: Any, to: Any) -> dict[str, Any]:
    """Return what was sent, with another value at the end of this route."""
    body: Any = json.loads(json.dumps(SENT))
    *way, last = route
    member = body
    for step in way:
        member = member[step]
    member[last] = to
    return dict(body)


@pytest.mark.parametrize(
    ("body", "same"),
    [
        pytest.param(changed("client", "sent_at", to="11:00"), True, id="path"),
        pytest.param(changed("trace", to=None), True, id="whole member"),
        pytest.param(changed("items", 1, "note", to="c"), True, id="in an array"),
        pytest.param(changed("#seen", to=2), True, id="name that starts with #"),
        pytest.param(changed("meta", "#", to=[]), True, id="name that is #"),
        pytest.param(changed("client", to={"name": "app"}), True, id="left out"),
        pytest.param(changed("amount", to=11), False, id="another member"),
        pytest.param(changed("client", "name", to="web"), False, id="beside the path"),
        pytest.param(changed("items", 1, "id", to=5), False, id="beside it in an array"),
        pytest.param(changed("items", to=[3]), False, id="the array"),
        pytest.param(changed("items", 2, to=4), False, id="a number in the array"),
        pytest.param(changed("meta", "kept", to=2), False, id="beside #"),
        pytest.param({**SENT, "sent_at": "11:00"}, False, id="same name elsewhere"),
        pytest.param({**SENT, "note": "c"}, False, id="same name above"),
    ],
)
def test_R45_fingerprint_exclude(send: Send, body: dict[str, Any], same: bool) -> None:
    send(SENT, path="/exclude/")

    second = send(body, path="/exclude/")

    assert replayed(second) == same
    assert second.status_code == (201 if same else 422)


def test_R45_the_view_still_gets_what_is_excluded(send: Send) -> None:
    assert send(SENT, path="/exclude/").json() == {"json": SENT}


def test_R45_an_array_of_messages(send: Send) -> None:
    send([{"trace": 1, "id": 1}, {"trace": 2, "id": 2}], path="/exclude/")

    assert replayed(send([{"trace": 3, "id": 1}, {"id": 2}], path="/exclude/"))
    assert send([{"trace": 1, "id": 2}, {"id": 1}], path="/exclude/").status_code == 422


def test_R45_fingerprint_headers(send: Send) -> None:
    send(SENT, path="/headers/", X_Version="1", Accept="a/b")

    assert replayed(send(SENT, path="/headers/", x_version="1", accept="a/b", X_Other="1"))
    assert send(SENT, path="/headers/", X_Version="2", Accept="a/b").status_code == 422
    assert send(SENT, path="/headers/", X_Version="1", Accept="a/c").status_code == 422
    assert send(SENT, path="/headers/").status_code == 422
    assert Effect.objects.count() == 1


def test_R45_the_value_of_one_header_is_not_that_of_the_next(send: Send) -> None:
    send(SENT, path="/headers/", X_Version="1", Accept="2")

    assert send(SENT, path="/headers/", X_Version="2", Accept="1").status_code == 422


# Empty bodies.


@pytest.mark.parametrize("content_type", ["application/json", "text/plain", FORM])
@pytest.mark.parametrize("method", ["POST", "DELETE"])
def test_R46_empty_differs_from_an_empty_object(send: Send, method: str, content_type: str) -> None:
    first = send("", method=method, content_type=content_type)
    again = send("", method=method, content_type=content_type)
    other = send("{}", method=method, content_type=content_type)

    assert first.status_code == 201
    assert replayed(again)
    assert problem(other) == (422, "idempotency_key_reused")


# What is stored.


def stored() -> bytes:
    return bytes(IdempotencyRecord.objects.get().fingerprint)


def test_R47_only_a_hash_and_its_version_are_stored(send: Send) -> None:
    send({"card": "4242424242424242"}, X_Hint="confidential")

    assert len(stored()) == 32
    assert stored()[0] == VERSION
    columns = IdempotencyRecord.objects.defer("result").values(
        "key", "scope", "operation", "fingerprint"
    )
    assert "4242" not in repr(columns.get())


def test_R47_secrets_make_the_hash_an_hmac(send: Send, policy: SetPolicy) -> None:
    found = set()
    for secrets in ((), ("one",), ("two",)):
        policy(FINGERPRINT_SECRETS=secrets)
        IdempotencyRecord.objects.all().delete()
        send(SENT)
        found.add(stored())

    assert len(found) == 3


def test_R47_rotation_of_secrets_makes_no_mismatch(send: Send, policy: SetPolicy) -> None:
    policy(FINGERPRINT_SECRETS=["old"])
    send(SENT, key="before")
    policy(FINGERPRINT_SECRETS=["new", "old"])
    send(SENT, key="between")

    assert replayed(send(SENT, key="before"))
    assert send({}, key="before").status_code == 422
    policy(FINGERPRINT_SECRETS=["new"])
    assert replayed(send(SENT, key="between"))
    assert replayed(send(SENT, key="before"))  # its secret is gone: it cannot be compared
    assert Effect.objects.count() == 2


# What the view does to the request.


def consume(request: HttpRequest) -> HttpResponse:
    """Change all that it is given."""
    changing: Any = request
    changing.POST = request.POST.copy()
    changing.POST["a"] = "changed"
    changing._body = b"changed"
    request.META["QUERY_STRING"] = "changed"
    request.META["CONTENT_TYPE"] = "text/plain"
    if request.resolver_match:
        request.resolver_match.kwargs["pk"] = 2
    Effect.objects.create(name="consumed")
    return HttpResponse(status=201)


urlpatterns = [
    path(
        "consume/<int:pk>/",
        idempotent(required=True, scope=urls.ANYONE)(lambda request, pk: consume(request)),
    )
]


@pytest.mark.urls("tests.unit.forms.test_bodies")
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
