"""Section D, R37 to R48: what makes two requests ask for the same thing, and what is stored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.conf import settings as project
from django.core.handlers.asgi import ASGIRequest
from django.test import AsyncRequestFactory, RequestFactory
from django.urls import get_resolver, path, register_converter, resolve
from django.urls.converters import REGISTERED_CONVERTERS, IntConverter, get_converters
from rest_framework.parsers import JSONParser
from rest_framework.request import Request
from rest_framework.response import Response

from django_idempotency.fingerprint import VERSION, Fingerprint, canonical_payload
from django_idempotency.http.content import body_of, fingerprint_of, path_of
from django_idempotency.models import IdempotencyRecord
from django_idempotency.policy import HTTPPolicy, Policy
from tests import version_1
from tests.app.models import Effect
from tests.unit.http.api import problem, replayed
from tests.unit.http.conftest import Mount
from tests.unit.http.views import MISMATCH, BareView, GuardedView

pytestmark = pytest.mark.django_db

# Each of these pairs is one request, or two. How JSON is compared is in core/test_fingerprint.py.


def sent(
    body: Any = b"", kind: str = "application/json", url: str = "/a/", **policy: Any
) -> Fingerprint:
    """Return the fingerprint of a request that no URLconf has resolved."""
    method, headers = policy.pop("method", "POST"), policy.pop("headers", None)
    http = HTTPPolicy(**policy)
    request = RequestFactory().generic(method, url, body, kind, headers=headers, CONTENT_TYPE=kind)
    secret = Policy(fingerprint_secrets=("secret",))
    return fingerprint_of(request, request, secret, http, lambda: body_of(request, http))


def form(body: str, **policy: Any) -> Fingerprint:
    return sent(body, "application/x-www-form-urlencoded", **policy)


def with_field(value: str, *counted: str) -> Fingerprint:
    return sent(headers={"X-V": value}, fingerprint_headers=counted)


def same(request: Any) -> bytes:
    return b"same"


def test_R32_R33_R40_R42_R44_R45_one_request():
    pairs = {
        "host": (sent(headers={"Host": "a.example"}), sent(headers={"Host": "b.example"})),
        "JSON member order": (sent('{"a": 1, "b": 2}'), sent(' {"b":2,"a":1}')),
        "+json": (sent('{"a": 1}', "text/x+json"), sent('{"a":1}', "text/x+json")),
        "parameters": (sent("[1]"), sent(" [1]", "application/json; charset=utf-8")),
        "form names": (form("a=1&a=2&b=3"), form("b=3&a=1&a=2")),
        "form names interleaved": (form("a=1&a=2&b=3"), form("a=1&b=3&a=2")),
        "form escapes": (form("a=1"), form("a=%31")),
        "another Accept": (sent(headers={"Accept": "text/csv"}), sent()),
        "another If-Match": (sent(headers={"If-Match": '"1"'}), sent(headers={"If-Match": '"2"'})),
        "another header": (with_field("1"), with_field("2")),
        "member that is excluded": (
            sent('{"a": 1, "b": {"c": 1}}', fingerprint_exclude=["b.c"]),
            sent('{"a": 1, "b": {"c": 2}}', fingerprint_exclude=["b.c"]),
        ),
        "None": (sent('{"a": 1}', fingerprint=None), sent('{"a": 2}', fingerprint=None)),
        "callable": (sent("1", fingerprint=same), sent("2", fingerprint=same)),
    }

    assert [name for name, (one, other) in pairs.items() if one.forms != other.forms] == []


def test_R40_R42_R44_R45_R46_two_requests():
    pairs = {
        "method": (sent(), sent(method="PUT")),
        "path": (sent(), sent(url="/b/")),
        "query": (sent(url="/a/?a=1"), sent(url="/a/?a=2")),
        "order of the query": (sent(url="/a/?a=1&b=1"), sent(url="/a/?b=1&a=1")),
        "JSON member that stands twice": (sent('{"a": 1, "a": 2}'), sent('{"a": 1,  "a": 2}')),
        "no JSON": (sent('{"a": '), sent('{"a":  ')),
        "no UTF-8": (sent(b"\xff\xfe"), sent(b"\xff\xfe ")),
        "too deep": (sent(b"[" * 100_000), sent(b"[" * 100_001)),
        "order within a form's name": (form("a=1&a=2"), form("a=2&a=1")),
        "a form's name less": (form("a=1&a=2&b=3"), form("a=1&a=2")),
        "a form's empty name more": (form("a=1"), form("a=1&c=")),
        "type of other bodies": (sent("a", "text/plain"), sent("a", "text/x-other")),
        "empty and {}": (sent(), sent("{}")),
        "empty and {} of a form": (form(""), form("{}")),
        "header that counts": (with_field("1", "X-V"), with_field("2", "X-V")),
        "header that is not there": (with_field("1", "X-V"), sent(fingerprint_headers=["X-V"])),
        "raw": (sent('{"a": 1}', fingerprint="raw"), sent('{"a":1}', fingerprint="raw")),
        "raw form": (form("a=1&b=2", fingerprint="raw"), form("b=2&a=1", fingerprint="raw")),
        "query alone": (sent(fingerprint=None), sent(url="/a/?a", fingerprint=None)),
    }

    assert [name for name, (one, other) in pairs.items() if one.forms == other.forms] == []


def test_R93_a_form_beyond_djangos_limit_is_compared_byte_by_byte(settings):
    settings.DATA_UPLOAD_MAX_NUMBER_FIELDS = 2

    assert form("a=1&b=2&c=3").forms != form("b=2&a=1&c=3").forms
    assert form("a=1&b=2").forms == form("b=2&a=1").forms


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
    assert path_of(RequestFactory().post("/caf%C3%A9/a%20b?q=1", **variables)) == expected


@pytest.mark.parametrize(
    ("raw", "expected"), [(None, b"/a/b"), (b"/a%2Fb", b"/a%2Fb"), (b"/a%2Fb?c", b"/a%2Fb")]
)
def test_R40_path_of_an_asgi_request(raw, expected):
    request = AsyncRequestFactory().post("/a/b?c=1")
    assert isinstance(request, ASGIRequest)
    request.scope["raw_path"] = raw

    assert path_of(request) == expected


def test_R40_R47_version_1_is_made_of_what_it_was_made_of(settings):
    """The hexadecimal values come from the last release that stored version 1."""
    route = path("accounts/<int:pk>/<slug:name>/charge/", BareView, {"kind": "a"}, name="charge")
    settings.ROOT_URLCONF = type("Routes", (), {"urlpatterns": [route]})
    url, headers = "/accounts/7/anna/charge/?dry=1", {"X-Tenant": "acme"}
    request = RequestFactory().generic(
        "POST", url, '{"pin": "1234"}', "application/json", headers=headers
    )
    request.resolver_match = resolve(request.path)
    http = HTTPPolicy(fingerprint_headers=("X-Tenant",))
    secret = Policy(fingerprint_secrets=("one",))

    made = fingerprint_of(request, request, secret, http, lambda: body_of(request, http))

    assert [form.hex() for form in made.version_1] == [
        "01d329f79f225de0051ece04339c7157cc2fa1070166a27a5d92604257d11690",
        "0177d8aa5b488ecf984aae8db088a008d1b7cd8bad4b723122c8af4a643cdeb2",
    ]


# In the guard.


def test_R37_other_body_is_422(api, mode, runs):
    first = api({"name": "a"})
    before = IdempotencyRecord.objects.values().get()

    other = api({"name": "b"})

    assert problem(other) == MISMATCH
    assert not replayed(other)
    assert runs == ["a"]
    assert IdempotencyRecord.objects.values().get() == before
    assert api({"name": "a"}).content == first.content


def test_R37_a_failed_attempt_keeps_its_fingerprint(api, mode, runs):
    api.then("returned", status=500)

    assert problem(api({"name": "b"})) == MISMATCH
    assert runs == ["first"]


class Account:
    """What a converter of the project's makes of a path: it has no text."""

    def __init__(self, number: str) -> None:
        pass

    def __str__(self) -> str:
        raise ValueError("no text")


class AccountConverter(IntConverter):
    to_python = Account  # type: ignore[assignment]


@pytest.fixture
def accounts(mount: Mount) -> Iterator[str]:
    register_converter(AccountConverter, "account")
    yield mount(BareView, "<account:account>/", serializer=object())
    del REGISTERED_CONVERTERS["account"]
    get_converters.cache_clear()


def test_R40_path_counts_and_not_what_django_makes_of_it(api, accounts):
    """Neither the text of an argument nor what the URLconf adds, whose `repr` is an address."""
    api(path=f"{accounts}1/")
    get_resolver().url_patterns[-1].default_args["serializer"] = object()

    assert problem(api(path=f"{accounts}2/")) == MISMATCH
    assert replayed(api(path=f"{accounts}1/"))


def test_R40_view_that_two_routes_share_is_two_operations(api, mount):
    one, other = mount(BareView, name="same"), mount(BareView, name="same")

    api(path=one)

    assert problem(api(path=other)) == MISMATCH


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


@pytest.mark.parametrize("parser", [JSONParser, Lossy])
def test_R48_a_view_or_a_parser_that_changes_the_data(api, mount, parser, runs):
    url = mount(type("Parsed", (Consuming,), {"parser_classes": [parser]}))

    api({"name": "a"}, path=url)

    assert replayed(api({"name": "a"}, path=url))
    assert problem(api({"name": "b"}, path=url)) == MISMATCH
    assert len(runs) == 1


# R47: what is stored, and under which secret.


def test_R47_only_hashes_are_stored(api):
    body = {"name": "first", "card": "4242424242424242", "then": "empty"}
    api(body, path="/effects/?hint=confidential", headers={"X-Hint": "confidential"})

    record = IdempotencyRecord.objects.values().get()
    text = repr({name: bytes(v) if isinstance(v, memoryview) else v for name, v in record.items()})
    assert record["state"] == "COMPLETED"
    assert len(bytes(record["fingerprint"])) == 32
    assert bytes(record["fingerprint"])[0] == VERSION
    assert "4242" not in text
    assert "confidential" not in text


def test_R47_no_pin_comes_out_of_the_table(api):
    """All 100 bodies are tried, with all that the table and the code tell."""
    api({"name": "23"})
    record = IdempotencyRecord.objects.get()
    stored = bytes(record.fingerprint or b"")
    before = [record.operation.encode(), b"effects/", canonical_payload({"args": [], "kwargs": {}})]
    line = [b"POST", record.operation.encode(), b"/effects/"]

    tails: set[bytes] = set()
    for pin in range(100):
        asked = [b"", b'json:{"name":"%02d"}' % pin]
        guessed = Fingerprint.of([*line, *asked], ["", "a guess"])
        guesses = [*guessed.forms, guessed.digest, *version_1.forms([*before, *asked])]
        tails.update(guess[-28:] for guess in guesses)

    assert len(tails) == 400
    assert stored[-28:] not in tails
    known = Fingerprint.of([*line, b"", b'json:{"name":"23"}'], [project.SECRET_KEY])
    assert stored == known.forms[0]  # with the secret, these parts are the ones


@pytest.mark.parametrize("fallbacks", [True, False])
def test_R47_rotation_of_the_secret_key(api, runs, settings, fallbacks, caplog):
    first = api()
    failed = {"name": "boom", "then": "returned", "status": 500}
    api(failed, key="failed")
    settings.SECRET_KEY_FALLBACKS = [settings.SECRET_KEY] if fallbacks else []
    settings.SECRET_KEY = f"after {settings.SECRET_KEY}"

    again, retried = api(), api(failed, key="failed")

    assert (replayed(again), again.content) == (True, first.content)
    assert (retried.status_code, replayed(retried)) == (500, False)
    assert ("secret that is gone" in caplog.text) is not fallbacks
    assert api({"name": "other"}).status_code == (422 if fallbacks else 201)
    assert api({"name": "other"}, path="/effects/?a=1").status_code == (422 if fallbacks else 201)
    assert runs == ["first", "boom", "boom"]


def test_R47_secrets_of_the_policy_take_the_place_of_the_key(api, policy, runs):
    policy(FINGERPRINT_SECRETS=["old"])
    api(key="before")
    policy(FINGERPRINT_SECRETS=["new", "old"])
    api(key="between")

    assert replayed(api(key="before"))
    assert api({"name": "other"}, key="before").status_code == 422
    policy(FINGERPRINT_SECRETS=["new"])
    assert replayed(api(key="between"))
    assert replayed(api(key="before"))  # its secret is gone: it cannot be compared
    policy(FINGERPRINT_SECRETS=[])
    assert api({"name": "other"}, key="between").status_code == 201
    assert len(runs) == 2
