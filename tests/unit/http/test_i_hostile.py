"""Section I, R80 and R81: hostile input."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from rest_framework.request import Request

from django_idempotency.models import IdempotencyRecord
from tests.unit.http.api import Api, problem, replayed
from tests.unit.http.conftest import Mount
from tests.unit.http.views import BareView

pytestmark = pytest.mark.django_db

# Hostile keys.

HOSTILE = {
    "SQL": "';--",
    "more SQL": "'; DROP TABLE idempotency_record; --",
    "template": "{{7*7}}",
    "another template": "{% debug %}",
    "format": "%s%n{0.__class__}",
    "path": "../../../etc/passwd",
    "backslashes": "\\" * 255,
    "percent": "%00%0d%0a",
    "HTML": "<script>alert(1)</script>",
    "JNDI": "${jndi:ldap://x.example/a}",
    "LIKE": "%_%",
    "a lone apostrophe": "'",
    "NULL": "NULL",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_R80_hostile_keys_are_inert(api: Api, mode: str, runs: list[str], name: str) -> None:
    key = HOSTILE[name]

    first, again = api(key=key), api(key=key)

    assert first.status_code == 201
    assert replayed(again)
    assert IdempotencyRecord.objects.get().key == key
    assert len(runs) == 1


def test_R80_hostile_keys_do_not_match_others(api: Api, runs: list[str]) -> None:
    for key in ("%", "_", "key-1", "KEY-1", "*", "?", ".*"):
        assert not replayed(api(key=key))

    assert len(runs) == 7


def test_R80_hostile_scopes_are_inert(api: Api, mount: Mount, runs: list[str]) -> None:
    class Scoped(BareView):
        def idempotency_scope(self, request: Request) -> str:
            return bytes.fromhex(request.headers["X-Scope"]).decode()

    url = mount(Scoped)
    for scope in ("a\0b", "';--", "x" * 10_000, "é\u2028😀", "a"):
        arguments: dict[str, Any] = {"path": url, "headers": {"X-Scope": scope.encode().hex()}}
        assert api(**arguments).status_code == 201
        assert replayed(api(**arguments))

    assert len(runs) == 5


@pytest.fixture
def admin() -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    return client


@pytest.mark.parametrize("name", HOSTILE)
def test_R80_hostile_keys_in_the_admin(api: Api, admin: Client, name: str) -> None:
    key = HOSTILE[name]
    api(key=key)
    pk = IdempotencyRecord.objects.get().pk

    pages = [
        admin.get("/admin/django_idempotency/idempotencyrecord/"),
        admin.get(f"/admin/django_idempotency/idempotencyrecord/{pk}/change/"),
        admin.get("/admin/django_idempotency/idempotencyrecord/", {"q": key}),
    ]

    for page in pages:
        assert page.status_code == 200
        assert "<script>alert(1)" not in page.content.decode()
        assert ">49<" not in page.content.decode()


@pytest.mark.parametrize("field", ["\0", "a\0b", '"a\0b"', "\0\0"])
def test_R80_NUL_in_the_key_is_400(api: Api, field: str) -> None:
    assert problem(api(key=field)) == (400, "idempotency_key_invalid")


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        pytest.param(b"\0", "application/json", id="no JSON"),
        pytest.param(b'{"a": "\\u0000"}', "application/json", id="JSON"),
        pytest.param(b'{"\\u0000": 1}', "application/json", id="member name"),
        pytest.param(b"a=%00&b=\0", "application/x-www-form-urlencoded", id="form"),
        pytest.param(b"\0" * 100, "application/octet-stream", id="bytes"),
        pytest.param(
            b'--b\r\nContent-Disposition: form-data; name="a"\r\n\r\n\0\r\n--b--\r\n',
            "multipart/form-data; boundary=b",
            id="multipart",
        ),
        pytest.param(b"a", "multipart/form-data", id="no boundary"),
        pytest.param(b"a", "application/json; charset=nonsense", id="charset"),
        pytest.param(b"a", "\xff/\xfe", id="content type"),
        pytest.param(b'{"a": 1e999999}', "application/json", id="exponent"),
        pytest.param(b'{"a": ' + b"9" * 5000 + b"}", "application/json", id="digits"),
        pytest.param(b'"\\ud800"', "application/json", id="half of a pair"),
    ],
)
def test_R80_hostile_bodies_are_no_500(
    api: Api, mount: Mount, mode: str, body: bytes, content_type: str
) -> None:
    url = mount(BareView)

    first = api(body, content_type=content_type, path=url)
    again = api(body, content_type=content_type, path=url)

    assert first.status_code in (201, 400)
    assert again.status_code == first.status_code
    assert replayed(again) == (first.status_code == 201)


@pytest.mark.parametrize(
    "url",
    ["a%00b", "%ff%fe", "%ed%a0%80", "é", "a?b=%00", "a?%ff=%fe", "a?&&&==;", "..%2f..%2f"],
)
def test_R80_hostile_addresses_are_no_500(api: Api, mount: Mount, mode: str, url: str) -> None:
    address = mount(BareView, "<path:rest>") + url

    first, again = api(path=address), api(path=address)

    assert first.status_code == 201
    assert replayed(again)


@pytest.mark.parametrize("named", [True, False], ids=["named", "unnamed"])
@pytest.mark.parametrize(
    "tail",
    ["a" * 8192, "a/" * 4096, "a?b=" + "c" * 8192, "a?" + "&".join(["b=12345"] * 999)],
    ids=["path", "segments", "query", "parameters"],
)
def test_R81_8_KB_are_no_500(
    api: Api, mount: Mount, mode: str, runs: list[str], tail: str, named: bool
) -> None:
    url = mount(BareView, "<path:rest>", name="long" if named else None) + tail

    first, again, other = api(path=url), api(path=url), api(path=url + "d")

    assert first.status_code == 201
    assert replayed(again)
    assert problem(other) == (422, "idempotency_key_reused")
    assert len(runs) == 1


def test_R81_long_routes_and_names(api: Api, mount: Mount) -> None:
    long = "x" * 5000

    url = mount(BareView, f"{long}/", name=long) + f"{long}/"

    assert api(path=url).status_code == 201
    assert replayed(api(path=url))
