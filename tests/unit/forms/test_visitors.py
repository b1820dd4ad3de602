"""R97: what a form's key does where nobody owns it: nothing."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.sessions.models import Session
from django.db import connection
from django.http import HttpRequest, HttpResponse
from django.test import Client, RequestFactory
from django.test.utils import CaptureQueriesContext
from django.urls import path
from django.views.decorators.csrf import csrf_exempt

from django_idempotency.http import content, idempotent
from django_idempotency.models import IdempotencyRecord
from tests.unit.forms.conftest import Visitor, multipart, orders
from tests.unit.forms.urls import order
from tests.unit.http.api import problem, replayed
from tests.unit.http.conftest import SetPolicy
from tests.unit.views.conftest import GUARD, api_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls(__name__)]

ANYONE = "django_idempotency.http.scopes.anyone"
FORM = "application/x-www-form-urlencoded"
FIELDS = {"item": "tea", "idempotency_key": "key-1"}


def idle(request: HttpRequest) -> HttpResponse:
    """Read the form, and write nothing."""
    assert request.POST["item"]
    return HttpResponse(str(request.idempotency))  # type: ignore[attr-defined]


@csrf_exempt
@idempotent
def signed(request: HttpRequest) -> HttpResponse:
    """Read the body as it came, as who verifies a signature does."""
    return HttpResponse(str(len(request.read())))


async def aidle(request: HttpRequest) -> HttpResponse:
    return idle(request)


urlpatterns = [
    path("idle/", idempotent(idle)),
    path("async/", idempotent(aidle)),
    path("free/", idle),
    path("async-free/", aidle),
    path("signed/", signed),
    path("order/", idempotent(order)),
    path("required/", idempotent(required=True)(order)),
    path("anyone/", idempotent(scope=ANYONE)(order)),
]


@pytest.fixture
def with_middleware(settings: Any) -> None:
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, GUARD]


@pytest.mark.parametrize(
    ("view", "stack", "kind"),
    [
        ("/idle/", "wsgi", "form"),
        ("/idle/", "asgi", "multipart"),
        ("/async/", "asgi", "form"),
        ("/async/", "wsgi", "multipart"),
        ("/free/", "wsgi", "multipart"),
        ("/free/", "asgi", "form"),
        ("/async-free/", "asgi", "multipart"),
        ("/async-free/", "wsgi", "form"),
    ],
)
def test_R97_a_form_of_a_stranger_leaves_nothing_behind(
    with_middleware: None, view: str, kind: str, stack: str
) -> None:
    body, content_type = "&".join(f"{name}={value}" for name, value in FIELDS.items()), FORM
    if kind == "multipart":
        parts = [(name, None, None, value.encode()) for name, value in FIELDS.items()]
        body, content_type = multipart(*parts)  # type: ignore[assignment]

    with CaptureQueriesContext(connection) as queries:
        answers = [
            api_for(stack)(body, path=view, key=None, user=None, content_type=content_type)
            for _ in range(2)
        ]

    assert [answer.content for answer in answers] == [b"None", b"None"]
    assert {query["sql"] for query in queries} <= {"BEGIN", "COMMIT"}
    assert not any(answer.cookies for answer in answers)
    assert not IdempotencyRecord.objects.exists()
    assert not Session.objects.exists()


@pytest.mark.parametrize("engine", ["db", "cache", "cached_db", "file", "signed_cookies"])
def test_R97_a_forged_cookie_makes_no_owner(engine: str, settings: Any, tmp_path: Any) -> None:
    settings.SESSION_ENGINE = f"django.contrib.sessions.backends.{engine}"
    settings.SESSION_FILE_PATH = str(tmp_path)
    client = Client()
    client.cookies["sessionid"] = "x" * 32

    for _ in range(2):
        assert not replayed(client.post("/order/", FIELDS))

    assert orders() == ["tea", "tea"]
    assert not IdempotencyRecord.objects.exists()
    assert not Session.objects.exists()


def test_R97_a_form_whose_session_is_gone_runs_as_one_without_a_key(visitor: Visitor) -> None:
    fields = {**visitor.page(), "item": "tea"}
    Session.objects.all().delete()

    for _ in range(2):
        assert visitor.submit(fields).status_code == 200

    assert orders() == ["tea", "tea"]
    assert not IdempotencyRecord.objects.exists()
    assert not Session.objects.exists()


def test_R97_where_a_key_is_required_it_is_missing() -> None:
    response = Client().post("/required/", FIELDS)

    assert problem(response) == (400, "idempotency_key_missing")
    assert orders() == []


def test_R97_scope_of_the_view_or_of_the_policy_opts_in(policy: SetPolicy) -> None:
    def twice(path: str) -> list[bool]:
        return [replayed(Client().post(path, FIELDS)) for _ in range(2)]

    assert twice("/anyone/") == [False, True]
    assert IdempotencyRecord.objects.get().scope == "anyone"
    IdempotencyRecord.objects.all().delete()
    policy(HTTP={"SCOPE": ANYONE})
    assert twice("/order/") == [False, True]


def test_R97_a_strangers_form_is_not_parsed_for_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[HttpRequest] = []
    monkeypatch.setattr(content, "_form", parsed.append)
    body, content_type = multipart(("idempotency_key", None, None, b"key-1"))

    for sent, kind in ((body, content_type), (b"idempotency_key=key-1", FORM)):
        answer = Client().post("/signed/", sent, kind)
        assert answer.content == str(len(sent)).encode()

    assert parsed == []


@pytest.mark.parametrize("key", ["key-1", '"malformed'])
def test_R93_a_body_is_not_read_for_a_key_that_is_nobodys(rf: RequestFactory, key: str) -> None:
    """Key and scope are looked at first, and cost nothing."""
    request = rf.post("/", b"{}", content_type="application/json", headers={"Idempotency-Key": key})

    assert idempotent(idle)(request).status_code == 400

    assert not request._read_started  # type: ignore[attr-defined]
