"""R97: what a form's key does where nobody owns it: nothing."""

from __future__ import annotations

import pytest
from django.contrib.sessions.models import Session
from django.db import connection
from django.http import HttpResponse
from django.test.utils import CaptureQueriesContext
from django.urls import path
from django.views.decorators.csrf import csrf_exempt

from django_idempotency.http import content, idempotent
from django_idempotency.models import IdempotencyRecord
from tests.unit.forms.conftest import multipart, orders
from tests.unit.forms.urls import ANYONE, order
from tests.unit.http.api import problem, replayed
from tests.unit.views.conftest import GUARD, api_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls(__name__)]

FORM = "application/x-www-form-urlencoded"
FIELDS = {"item": "tea", "idempotency_key": "key-1"}
BODIES = {
    "form": ("&".join(f"{name}={value}" for name, value in FIELDS.items()), FORM),
    "multipart": multipart(*((n, None, None, v.encode()) for n, v in FIELDS.items())),
}


def idle(request):
    """Read the form, and write nothing."""
    assert request.POST["item"]
    return HttpResponse(str(request.idempotency))


@csrf_exempt
@idempotent
def signed(request):
    """Read the body as it came, as who verifies a signature does."""
    return HttpResponse(str(len(request.read())))


async def aidle(request):
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


def nothing_is_left() -> bool:
    return not IdempotencyRecord.objects.exists() and not Session.objects.exists()


@pytest.mark.parametrize(
    ("view", "stack", "kind"),
    [
        ("/idle/", "wsgi", "form"),
        ("/async/", "asgi", "multipart"),
        ("/free/", "wsgi", "multipart"),
        ("/async-free/", "asgi", "form"),
    ],
)
def test_R97_a_form_of_a_stranger_leaves_nothing_behind(settings, view, kind, stack):
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, GUARD]
    (body, content_type), api = BODIES[kind], api_for(stack, view)

    with CaptureQueriesContext(connection) as queries:
        answers = [api(body, key=None, user=None, content_type=content_type) for _ in range(2)]

    assert [answer.content for answer in answers] == [b"None", b"None"]
    assert {query["sql"] for query in queries} <= {"BEGIN", "COMMIT"}
    assert not any(answer.cookies for answer in answers)
    assert nothing_is_left()


@pytest.mark.parametrize("engine", ["db", "cache", "cached_db", "file", "signed_cookies"])
def test_R97_a_forged_cookie_makes_no_owner(client, engine, settings, tmp_path):
    settings.SESSION_ENGINE = f"django.contrib.sessions.backends.{engine}"
    settings.SESSION_FILE_PATH = str(tmp_path)
    client.cookies["sessionid"] = "x" * 32

    assert [replayed(client.post("/order/", FIELDS)) for _ in range(2)] == [False, False]
    assert orders() == ["tea", "tea"]
    assert nothing_is_left()


def test_R97_a_form_whose_session_is_gone_runs_as_one_without_a_key(visitor):
    fields = visitor.page()
    Session.objects.all().delete()

    assert [visitor.submit(fields).status_code for _ in range(2)] == [200, 200]
    assert orders() == ["tea", "tea"]
    assert nothing_is_left()


def test_R97_where_a_key_is_required_it_is_missing(client):
    assert problem(client.post("/required/", FIELDS)) == (400, "idempotency_key_missing")
    assert orders() == []


def test_R97_scope_of_the_view_or_of_the_policy_opts_in(client, policy):
    assert [replayed(client.post("/anyone/", FIELDS)) for _ in range(2)] == [False, True]
    assert IdempotencyRecord.objects.get().scope == "anyone"

    policy(HTTP={"SCOPE": ANYONE})
    IdempotencyRecord.objects.all().delete()
    assert [replayed(client.post("/order/", FIELDS)) for _ in range(2)] == [False, True]


def test_R97_a_strangers_form_is_not_parsed_for_a_key(client, monkeypatch):
    monkeypatch.setattr(content, "_form", pytest.fail)

    for body, kind in BODIES.values():
        answer = client.post("/signed/", body, kind)
        assert answer.text == str(len(body))


@pytest.mark.parametrize("key", ["key-1", '"malformed'])
def test_R93_a_body_is_not_read_for_a_key_that_is_nobodys(rf, key):
    """Key and scope are looked at first, and cost nothing."""
    request = rf.post("/", b"{}", content_type="application/json", headers={"Idempotency-Key": key})

    assert idempotent(idle)(request).status_code == 400
    assert not request._read_started
