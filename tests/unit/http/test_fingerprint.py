"""Section D, R37 to R48: what makes two requests ask for the same thing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.core.handlers.asgi import ASGIRequest
from django.test import AsyncRequestFactory, RequestFactory
from django.urls import get_resolver, path, register_converter, resolve
from django.urls.converters import REGISTERED_CONVERTERS, get_converters
from rest_framework.parsers import JSONParser
from rest_framework.request import Request
from rest_framework.response import Response

from django_idempotency.fingerprint import Fingerprint
from django_idempotency.http.content import body_of, fingerprint_of, path_of
from django_idempotency.models import IdempotencyRecord
from django_idempotency.policy import HTTPPolicy, Policy
from tests.app.models import Effect
from tests.unit.http.api import problem, replayed
from tests.unit.http.conftest import Mount
from tests.unit.http.views import BareView, GuardedView

JSON = "application/json"
FORM = "application/x-www-form-urlencoded"
MISMATCH = (422, "idempotency_key_reused")


def printed(
    body: Any = b"",
    kind: str = JSON,
    url: str = "/a/",
    method: str = "POST",
    headers: dict[str, str] | None = None,
    **policy: Any,
) -> Fingerprint:
    """Return the fingerprint of a request that no URLconf has resolved."""
    http = HTTPPolicy(**policy)
    request = RequestFactory().generic(method, url, body, kind, headers=headers, CONTENT_TYPE=kind)
    secret = Policy(fingerprint_secrets=("secret",))
    return fingerprint_of(request, request, secret, http, lambda: body_of(request, http))


# Each of these pairs is one request, or two. How JSON is compared is in core/test_fingerprint.py.


def sent(*arguments: Any, **policy: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return arguments, policy


HOSTS = ({"Host": "a.example"}, {"Host": "b.example"})
X_V1, X_V2 = {"X-V": "1"}, {"X-V": "2"}
RAW = {"fingerprint": "raw"}
EQUAL: dict[str, tuple[Any, Any]] = {
    "host": (sent("", JSON, "/a/", "POST", HOSTS[0]), sent("", JSON, "/a/", "POST", HOSTS[1])),
    "JSON member order": (sent('{"a": 1, "b": 2}'), sent(' {"b":2,"a":1}')),
    "+json": (sent('{"a": 1}', "text/x+json"), sent('{"a":1}', "text/x+json")),
    "JSON with parameters": (sent("[1]", JSON), sent(" [1]", f"{JSON}; charset=utf-8")),
    "form names": (sent("a=1&a=2&b=3", FORM), sent("b=3&a=1&a=2", FORM)),
    "form names interleaved": (sent("a=1&a=2&b=3", FORM), sent("a=1&b=3&a=2", FORM)),
    "form escapes": (sent("a=1", FORM), sent("a=%31", FORM)),
    "another Accept": (
        sent("", JSON, "/a/", "POST", {"Accept": "text/html"}),
        sent("", JSON, "/a/", "POST", {"Accept": "text/csv"}),
    ),
    "another If-Match": (
        sent("", JSON, "/a/", "POST", {"If-Match": '"1"'}),
        sent("", JSON, "/a/", "POST", {"If-Match": '"2"'}),
    ),
    "another header": (sent("", JSON, "/a/", "POST", X_V1), sent("", JSON, "/a/", "POST", X_V2)),
    "member that is excluded": (
        sent('{"a": 1, "b": {"c": 1}}', fingerprint_exclude=["b.c"]),
        sent('{"a": 1, "b": {"c": 2}}', fingerprint_exclude=["b.c"]),
    ),
    "None": (sent('{"a": 1}', fingerprint=None), sent('{"a": 2}', fingerprint=None)),
    "callable": (
        sent("1", fingerprint=lambda request: b"same"),
        sent("2", fingerprint=lambda request: b"same"),
    ),
}
DIFFERENT: dict[str, tuple[Any, Any]] = {
    "method": (sent(""), sent("", JSON, "/a/", "PUT")),
    "path": (sent(""), sent("", JSON, "/b/")),
    "query": (sent("", JSON, "/a/?a=1"), sent("", JSON, "/a/?a=2")),
    "no query": (sent("", JSON, "/a/?a=1"), sent("", JSON, "/a/")),
    "order of the query": (sent("", JSON, "/a/?a=1&b=1"), sent("", JSON, "/a/?b=1&a=1")),
    "JSON value": (sent('{"a": 1}'), sent('{"a": 1.0}')),
    "JSON member that stands twice": (sent('{"a": 1, "a": 2}'), sent('{"a": 1,  "a": 2}')),
    "no JSON": (sent('{"a": '), sent('{"a":  ')),
    "no UTF-8": (sent(b"\xff\xfe"), sent(b"\xff\xfe ")),
    "too deep": (sent(b"[" * 100_000), sent(b"[" * 100_001)),
    "order within a form's name": (sent("a=1&a=2", FORM), sent("a=2&a=1", FORM)),
    "a form's name less": (sent("a=1&a=2&b=3", FORM), sent("a=1&a=2", FORM)),
    "a form's empty name more": (sent("a=1", FORM), sent("a=1&c=", FORM)),
    "a form's value": (sent("a=1", FORM), sent("a=2", FORM)),
    "type of other bodies": (sent("a", "text/plain"), sent("a", "text/x-other")),
    "empty and {}": (sent("", JSON), sent("{}", JSON)),
    "empty and {} of a form": (sent("", FORM), sent("{}", FORM)),
    "header that counts": (
        sent("", JSON, "/a/", "POST", X_V1, fingerprint_headers=["X-V"]),
        sent("", JSON, "/a/", "POST", X_V2, fingerprint_headers=["X-V"]),
    ),
    "header that counts and is not there": (
        sent("", JSON, "/a/", "POST", X_V1, fingerprint_headers=["X-V"]),
        sent("", fingerprint_headers=["X-V"]),
    ),
    "raw": (sent('{"a": 1}', **RAW), sent('{"a":1}', **RAW)),
    "raw form": (sent("a=1&b=2", FORM, **RAW), sent("b=2&a=1", FORM, **RAW)),
    "query without a body's comparison": (
        sent("", JSON, "/a/", fingerprint=None),
        sent("", JSON, "/a/?a", fingerprint=None),
    ),
}


@pytest.mark.parametrize("pair", EQUAL)
def test_R32_R33_R40_R42_R44_R45_one_request(pair):
    (one, policy), (other, same_policy) = EQUAL[pair]

    assert printed(*one, **policy) == printed(*other, **same_policy)


@pytest.mark.parametrize("pair", DIFFERENT)
def test_R40_R42_R44_R45_R46_two_requests(pair):
    (one, policy), (other, same_policy) = DIFFERENT[pair]

    assert printed(*one, **policy) == printed(*one, **policy)
    assert printed(*one, **policy).forms != printed(*other, **same_policy).forms


def test_R93_a_form_beyond_djangos_limit_is_compared_byte_by_byte(settings):
    settings.DATA_UPLOAD_MAX_NUMBER_FIELDS = 2

    assert printed("a=1&b=2&c=3", FORM).forms != printed("b=2&a=1&c=3", FORM).forms
    assert printed("a=1&b=2", FORM).forms == printed("b=2&a=1", FORM).forms


# The path as it was sent.


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, b"/caf%C3%A9/a%20b"),
        ({"RAW_URI": "/caf%C3%A9/a%20b?q=1"}, b"/caf%C3%A9/a%20b"),
        ({"RAW_URI": "/caf%c3%a9/a%20b"}, b"/caf%c3%a9/a%20b"),
        ({"REQUEST_URI": "/a%2Fb?c"}, b"/a%2Fb"),
        ({"RAW_URI": "//double//a"}, b"//double//a"),
        ({"RAW_URI": "https://shop.example/a%2Fb?c=/d"}, b"/a%2Fb"),
        ({"RAW_URI": "/latin-\xe9"}, b"/latin-\xc3\xa9"),
        ({"RAW_URI": ""}, b"/caf%C3%A9/a%20b"),
    ],
)
def test_R40_path_of_a_wsgi_request(variables, expected):
    request = RequestFactory().post("/caf%C3%A9/a%20b?q=1", **variables)

    assert path_of(request) == expected


@pytest.mark.parametrize(
    ("raw", "expected"), [(None, b"/a/b"), (b"/a%2Fb", b"/a%2Fb"), (b"/a%2Fb?c", b"/a%2Fb")]
)
def test_R40_path_of_an_asgi_request(raw, expected):
    request = AsyncRequestFactory().post("/a/b?c=1")
    assert isinstance(request, ASGIRequest)
    request.scope["raw_path"] = raw

    assert path_of(request) == expected


def _view(request: Any, **kwargs: Any) -> None:
    """Only resolved."""


class Routes:
    urlpatterns = [
        path("accounts/<int:pk>/<slug:name>/charge/", _view, {"kind": "a"}, name="charge")
    ]


def test_R40_R47_version_1_is_made_of_what_it_was_made_of(settings):
    """The hexadecimal values come from the last release that stored version 1."""
    settings.ROOT_URLCONF = Routes
    request = RequestFactory().post(
        "/accounts/7/anna/charge/?dry=1",
        data='{"pin": "1234"}',
        content_type=JSON,
        headers={"X-Tenant": "acme"},
    )
    request.resolver_match = resolve(request.path)
    policy = Policy(fingerprint_secrets=("one",))
    http = HTTPPolicy(fingerprint_headers=("X-Tenant",))

    made = fingerprint_of(request, request, policy, http, lambda: body_of(request, http))

    assert [form.hex() for form in made.version_1] == [
        "01d329f79f225de0051ece04339c7157cc2fa1070166a27a5d92604257d11690",
        "0177d8aa5b488ecf984aae8db088a008d1b7cd8bad4b723122c8af4a643cdeb2",
    ]


# In the guard.


@pytest.mark.django_db
def test_R37_other_body_is_422(api, mode, atomic_requests, runs):
    first = api({"name": "a"})
    before = IdempotencyRecord.objects.values().get()

    other = api({"name": "b"})

    assert problem(other) == MISMATCH
    assert not replayed(other)
    assert runs == ["a"]
    assert IdempotencyRecord.objects.values().get() == before
    assert api({"name": "a"}).content == first.content


@pytest.mark.django_db
def test_R37_mismatch_status_is_a_choice(api, policy):
    policy(HTTP={"MISMATCH_STATUS": 409})
    api({"name": "a"})

    assert problem(api({"name": "b"})) == (409, "idempotency_key_reused")


@pytest.mark.django_db
def test_R37_a_failed_attempt_keeps_its_fingerprint(api, mode, runs):
    api.then("returned", status=500)

    assert problem(api({"name": "b"})) == MISMATCH
    assert runs == ["first"]


class Account:
    """What a converter of the project's makes of a path: its text is for people."""

    name: Any = "Anna"

    def __init__(self, number: str) -> None:
        self.number = number

    def __str__(self) -> str:
        return str(self.name)


class AccountConverter:
    regex = "[0-9]+"

    def to_python(self, value: str) -> Account:
        return Account(value)

    def to_url(self, value: Account) -> str:
        return value.number


@pytest.fixture
def accounts(mount: Mount) -> Iterator[str]:
    register_converter(AccountConverter, "account")
    yield mount(BareView, "<account:account>/", serializer=object())
    del REGISTERED_CONVERTERS["account"]
    get_converters.cache_clear()


class NoText:
    def __str__(self) -> str:
        raise ValueError("no text")


@pytest.mark.django_db
@pytest.mark.parametrize("name", ["Anna Miller", NoText()], ids=["renamed", "without a text"])
def test_R40_path_counts_and_not_what_django_makes_of_it(api, accounts, monkeypatch, name):
    """Neither the text of an argument nor what the URLconf adds, whose `repr` is an address."""
    api(path=f"{accounts}1/")
    get_resolver().url_patterns[-1].default_args["serializer"] = object()

    assert problem(api(path=f"{accounts}2/")) == MISMATCH
    monkeypatch.setattr(Account, "name", name)
    assert replayed(api(path=f"{accounts}1/"))


@pytest.mark.django_db
def test_R40_view_that_two_routes_share_is_two_operations(api, mount):
    one, other = mount(BareView, name="same"), mount(BareView, name="same")

    api(path=one)

    assert problem(api(path=other)) == MISMATCH


class ByName(GuardedView):
    """Only the name counts."""

    def idempotency_fingerprint(self, request: Request) -> bytes:
        return str(request.data["name"]).encode()

    def post(self, request: Request) -> Response:
        Effect.objects.create(name=request.data["name"])
        return Response(request.data, status=201)


@pytest.mark.django_db
def test_R42_fingerprint_as_a_method(api, mount, runs):
    url = mount(ByName)
    first = api({"name": "a", "sent": 1}, path=url)

    assert first.json() == {"name": "a", "sent": 1}
    assert replayed(api({"name": "a", "sent": 2}, path=url))
    assert problem(api({"name": "b", "sent": 1}, path=url)) == MISMATCH
    assert runs == ["a"]


class Lossy(JSONParser):
    """Changes what it has parsed."""

    def parse(self, *args: Any, **kwargs: Any) -> Any:
        super().parse(*args, **kwargs)
        return {"name": "always"}


class Consuming(GuardedView):
    """Changes all that it is given."""

    def post(self, request: Request) -> Response:
        name = request.data.pop("name")
        request.data["added"] = True
        Effect.objects.create(name=name)
        return Response({"name": name}, status=201)


@pytest.mark.django_db
@pytest.mark.parametrize("parser", [JSONParser, Lossy])
def test_R48_a_view_or_a_parser_that_changes_the_data(api, mount, parser, runs):
    url = mount(type("Parsed", (Consuming,), {"parser_classes": [parser]}))

    api({"name": "a"}, path=url)

    assert replayed(api({"name": "a"}, path=url))
    assert problem(api({"name": "b"}, path=url)) == MISMATCH
    assert len(runs) == 1
