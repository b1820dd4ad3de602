"""Section D, R40: the path as it was sent counts, and nothing that Django makes of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.core.handlers.asgi import ASGIRequest
from django.test import AsyncRequestFactory, RequestFactory
from django.urls import get_resolver, path, register_converter, resolve
from django.urls.converters import REGISTERED_CONVERTERS, get_converters

from django_idempotency.http.content import body_of, fingerprint_of, path_of
from django_idempotency.policy import HTTPPolicy, Policy
from tests.unit.http.api import Api, problem, replayed
from tests.unit.http.conftest import Mount
from tests.unit.http.views import BareView

pytestmark = pytest.mark.django_db


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
    yield mount(BareView, "<account:account>/")
    del REGISTERED_CONVERTERS["account"]
    get_converters.cache_clear()


def test_R40_two_accounts_of_one_name_are_two_requests(
    api: Api, accounts: str, runs: list[str]
) -> None:
    api(path=f"{accounts}1/")

    assert problem(api(path=f"{accounts}2/")) == (422, "idempotency_key_reused")
    assert replayed(api(path=f"{accounts}1/"))
    assert len(runs) == 1


def test_R40_another_text_of_an_argument_is_no_mismatch(
    api: Api, accounts: str, runs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    api(path=f"{accounts}1/")
    monkeypatch.setattr(Account, "name", "Anna Miller")

    assert replayed(api(path=f"{accounts}1/"))
    assert len(runs) == 1


def test_R40_an_argument_without_a_text_is_no_error(
    api: Api, accounts: str, runs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class NoText:
        def __str__(self) -> str:
            raise ValueError("no text")

    monkeypatch.setattr(Account, "name", NoText())
    api(path=f"{accounts}1/")

    assert replayed(api(path=f"{accounts}1/"))
    assert len(runs) == 1


def test_R40_extra_arguments_of_the_urlconf_do_not_count(
    api: Api, mount: Mount, runs: list[str]
) -> None:
    """An object's `repr` has its address: another one in each process."""
    url = mount(BareView, serializer=object())
    api(path=url)
    get_resolver().url_patterns[-1].default_args["serializer"] = object()

    assert replayed(api(path=url))
    assert len(runs) == 1


def test_R40_a_path_is_what_was_sent(api: Api, mount: Mount, runs: list[str]) -> None:
    """WSGI decodes the path: only the request line tells one from the other."""
    url = mount(BareView, "<path:rest>")

    def post(raw: str) -> Any:
        return api.client.post(
            f"{url}a/b",
            {},
            content_type="application/json",
            headers={"Idempotency-Key": "k", "X-User": "alice"},
            RAW_URI=raw,
        )

    assert post(f"{url}a%2Fb").status_code == 201
    assert replayed(post(f"{url}a%2Fb"))
    assert problem(post(f"{url}a/b")) == (422, "idempotency_key_reused")
    assert len(runs) == 1


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
def test_R40_path_of_a_wsgi_request(variables: dict[str, str], expected: bytes) -> None:
    request = RequestFactory().post("/caf%C3%A9/a%20b?q=1", **variables)  # type: ignore[arg-type]

    assert path_of(request) == expected


@pytest.mark.parametrize(
    ("raw", "expected"), [(None, b"/a/b"), (b"/a%2Fb", b"/a%2Fb"), (b"/a%2Fb?c", b"/a%2Fb")]
)
def test_R40_path_of_an_asgi_request(raw: bytes | None, expected: bytes) -> None:
    request = AsyncRequestFactory().post("/a/b?c=1")
    assert isinstance(request, ASGIRequest)
    request.scope["raw_path"] = raw

    assert path_of(request) == expected


# What version 1 compared.


def _view(request: Any, **kwargs: Any) -> None:
    """Only resolved."""


urlpatterns = [
    path("accounts/<int:pk>/<slug:name>/charge/", _view, {"kind": "a"}, name="charge"),
]


def test_R40_R47_version_1_is_made_of_what_it_was_made_of(settings: Any) -> None:
    """The hexadecimal values come from the last release that stored version 1."""
    settings.ROOT_URLCONF = __name__
    request = RequestFactory().post(
        "/accounts/7/anna/charge/?dry=1",
        data='{"pin": "1234"}',
        content_type="application/json",
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
