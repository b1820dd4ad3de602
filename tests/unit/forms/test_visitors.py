"""R89, R97: whose keys a visitor's are, and that a form's key is nothing where nobody owns it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from django.contrib.sessions.models import Session
from django.db import connection
from django.http import HttpResponse
from django.test import RequestFactory
from django.test.utils import CaptureQueriesContext
from django.urls import path
from django.utils.module_loading import import_string
from django.views.decorators.csrf import csrf_exempt

from django_idempotency.exceptions import ScopeMissing
from django_idempotency.http import content, idempotent, scopes
from django_idempotency.models import IdempotencyRecord
from tests.unit.forms.conftest import FORM, multipart, orders
from tests.unit.forms.urls import ANYONE, order
from tests.unit.http.api import problem, replayed
from tests.unit.views.conftest import GUARD, api_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls(__name__)]

FIELDS = {"item": "tea", "idempotency_key": "key-1"}
BODIES = {
    "form": ("&".join(f"{name}={value}" for name, value in FIELDS.items()), FORM),
    "multipart": multipart(*((n, None, None, v.encode()) for n, v in FIELDS.items())),
}


def idle(request):
    """Read the form, and write nothing."""
    assert request.POST["item"]
    return HttpResponse(str(request.idempotency))


async def aidle(request):
    return idle(request)


urlpatterns = [
    path("idle/", idempotent(idle)),
    path("async-free/", aidle),
    path("signed/", csrf_exempt(idempotent(lambda request: HttpResponse(request.read())))),
    path("order/", idempotent(order)),
    path("required/", idempotent(required=True)(order)),
    path("anyone/", idempotent(scope=ANYONE)(order)),
]


def nothing_is_left() -> bool:
    return not IdempotencyRecord.objects.exists() and not Session.objects.exists()


@pytest.mark.parametrize(
    ("view", "stack", "kind"), [("/idle/", "wsgi", "form"), ("/async-free/", "asgi", "multipart")]
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


def test_R97_a_forged_cookie_makes_no_owner(client):
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


def test_R97_where_a_key_is_required_it_is_missing_and_a_scope_opts_in(client, policy):
    assert problem(client.post("/required/", FIELDS)) == (400, "idempotency_key_missing")
    assert orders() == []

    assert [replayed(client.post("/anyone/", FIELDS)) for _ in range(2)] == [False, True]
    assert IdempotencyRecord.objects.get().scope == "anyone"


def test_R97_a_strangers_form_is_not_parsed_for_a_key(client, monkeypatch):
    monkeypatch.setattr(content, "_form", pytest.fail)

    for body, kind in BODIES.values():
        sent = body.encode() if isinstance(body, str) else body
        assert client.post("/signed/", body, kind).content == sent


@pytest.mark.parametrize("key", ["key-1", '"malformed'])
def test_R93_a_body_is_not_read_for_a_key_that_is_nobodys(rf, key):
    """Key and scope are looked at first, and cost nothing."""
    request = rf.post("/", b"{}", content_type="application/json", headers={"Idempotency-Key": key})

    assert idempotent(idle)(request).status_code == 400
    assert not request._read_started


# The session that visitors' keys belong to.

ENGINES = ["db", "cache", "cached_db", "file", "signed_cookies"]


@pytest.fixture
def engine(request, settings, tmp_path):
    """`engine(key)`: a session of the engine."""
    settings.SESSION_ENGINE = f"django.contrib.sessions.backends.{request.param}"
    settings.SESSION_FILE_PATH = str(tmp_path)
    backend = "django.core.cache.backends.locmem.LocMemCache"
    settings.CACHES = {"default": {"BACKEND": backend, "LOCATION": str(tmp_path)}}
    return import_string(f"{settings.SESSION_ENGINE}.SessionStore")


def begun(engine):
    """Return a session that a page has begun."""
    session = engine()
    session["basket"] = []
    session.save()
    return engine(session.session_key)


def scope_of(session):
    request = RequestFactory().post("/")
    request.session = session
    return scopes.session(request)


@pytest.mark.parametrize("engine", ["db", "cache", "signed_cookies"], indirect=True)
def test_R21_R79_R89_the_scope_outlives_writes_and_a_new_key_and_ends_with_the_session(engine):
    """It does not lead into the session."""
    session = begun(engine)
    scope = scope_of(session)
    assert session.session_key not in scope
    assert not any(str(value) in scope for value in session.values())

    session["basket"] = ["tea"]
    session.save()
    later = engine(session.session_key)
    assert scope_of(later) == scope
    later.cycle_key()
    later.save()
    assert later.session_key != session.session_key or "signed" in engine.__module__
    assert scope_of(engine(later.session_key)) == scope

    later.flush()
    with pytest.raises(ScopeMissing):
        scope_of(later)
    later["basket"] = []
    later.save()
    assert scope_of(engine(later.session_key)) != scope


@pytest.mark.parametrize("engine", ENGINES, indirect=True)
def test_R21_R97_a_cookie_alone_and_a_session_that_is_not_saved_yet_are_nobodys(engine):
    """Strangers may send the same cookie."""
    unsaved = engine()
    unsaved["basket"] = ["tea"]
    for session in (unsaved, *map(engine, ("deleted", "x" * 32, "a:b:c"))):
        with pytest.raises(ScopeMissing):
            scope_of(session)

        assert "_idempotency_scope" not in session
        assert session.session_key is None or "signed" in engine.__module__


@pytest.mark.parametrize("engine", ["db"], indirect=True)
def test_R97_who_has_no_session_is_nobody_and_is_not_looked_at(engine):
    """Or the answer would vary with the cookie."""
    session = engine()
    for request in (SimpleNamespace(), SimpleNamespace(session=session)):
        assert not scopes.has_owner(request)
    assert not session.accessed


@pytest.mark.parametrize("engine", ["db", "file"], indirect=True)
def test_R97_token_of_a_session_that_is_not_saved_yet_gives_it_no_key(engine):
    """Which an engine would take for that of a session that it has."""
    session = engine()
    assert scopes.session_token(session)
    assert session.session_key is None
    session.save()


@pytest.mark.parametrize("engine", ["signed_cookies"], indirect=True)
def test_R21_two_signed_cookies_that_are_alike_are_two_visitors(engine):
    """Nothing in them tells whose they are: they were signed in the same second."""
    key = begun(engine).session_key

    assert scope_of(engine(key)) != scope_of(engine(key))


@pytest.mark.parametrize("engine", ["db", "cache"], indirect=True)
def test_R89_R97_two_clicks_at_once_name_a_session_alike_until_it_is_forgotten(engine):
    key = begun(engine).session_key
    one, other = engine(key), engine(key)
    assert scope_of(one) == scope_of(other)

    one.save()
    engine(key).delete()

    with pytest.raises(ScopeMissing):
        scope_of(engine(key))
