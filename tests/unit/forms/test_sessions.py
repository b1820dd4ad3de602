"""R89: the session that visitors' keys belong to, with every engine and through every change."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.middleware.csrf import CsrfViewMiddleware
from django.test import RequestFactory
from django.utils.module_loading import import_string

from django_idempotency.exceptions import ScopeMissing
from django_idempotency.http import scopes
from django_idempotency.models import IdempotencyRecord
from tests.unit.forms.conftest import orders, taken
from tests.unit.http.api import replayed

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls("tests.unit.forms.urls")]

ENGINES = ["db", "cache", "cached_db", "file", "signed_cookies"]
every_engine = pytest.mark.parametrize("engine", ENGINES, indirect=True)
#: Those that keep data of their own, so that a cookie may outlive them.
every_keeping_engine = pytest.mark.parametrize("engine", ENGINES[:-1], indirect=True)


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


@every_engine
def test_R89_two_clicks_of_a_visitor(visitor, engine):
    fields = visitor.page()

    assert [replayed(visitor.submit(fields)) for _ in range(2)] == [False, True]
    assert orders() == ["tea"]


@pytest.mark.parametrize("engine", ["db", "cache"], indirect=True)
def test_R89_two_clicks_with_the_cookie_of_a_session_that_is_gone(visitor, engine):
    visitor.page()
    stale = visitor.client.cookies["sessionid"].value
    engine(stale).delete()
    fields = visitor.page()

    assert visitor.client.cookies["sessionid"].value != stale
    assert [replayed(visitor.submit(fields)) for _ in range(2)] == [False, True]
    assert orders() == ["tea"]


@every_engine
def test_R89_R79_the_scope_outlives_writes_and_a_new_key_and_does_not_lead_into_the_session(engine):
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


@every_engine
def test_R21_the_scope_ends_with_the_session(engine):
    session = begun(engine)
    scope = scope_of(session)
    session.save()

    session.flush()
    with pytest.raises(ScopeMissing):
        scope_of(session)
    session["basket"] = []
    session.save()

    assert scope_of(engine(session.session_key)) != scope


@every_engine
def test_R21_R97_a_cookie_alone_and_a_session_that_is_not_saved_yet_are_nobodys(engine):
    """Strangers may send the same cookie."""
    unsaved = engine()
    unsaved["basket"] = ["tea"]
    for session in (unsaved, *map(engine, ("deleted", "x" * 32, "a:b:c"))):
        with pytest.raises(ScopeMissing):
            scope_of(session)

        assert "_idempotency_scope" not in session
    assert unsaved.session_key is None


@pytest.mark.parametrize("engine", ["signed_cookies"], indirect=True)
def test_R21_two_signed_cookies_that_are_alike_are_two_visitors(engine):
    """Nothing in them tells whose they are: they were signed in the same second."""
    key = begun(engine).session_key

    assert scope_of(engine(key)) != scope_of(engine(key))


@every_keeping_engine
def test_R89_R97_two_clicks_at_once_name_a_session_alike_until_it_is_forgotten(engine):
    key = begun(engine).session_key
    one, other = engine(key), engine(key)
    assert scope_of(one) == scope_of(other)

    one.save()
    engine(key).delete()

    with pytest.raises(ScopeMissing):
        scope_of(engine(key))


# A visitor who becomes a user, or another one.


def test_R89_reload_of_a_form_that_has_logged_the_visitor_in_does_nothing(visitor):
    """Logging in gives the browser another CSRF token: the page as it was left is refused."""
    visitor.path = "/join/"
    fields = visitor.page()
    first = visitor.submit(fields)
    visitor.client.cookies.update(first.cookies)

    assert (first.status_code, visitor.submit(fields).status_code) == (200, 403)
    assert (orders(), User.objects.count()) == (["tea"], 1)


def test_R89_the_sessions_own_scope_outlives_the_login(visitor, monkeypatch):
    monkeypatch.setattr(CsrfViewMiddleware, "process_view", lambda *arguments: None)
    visitor.path = "/join/session/"
    fields = visitor.page()
    before = visitor.client.cookies["sessionid"].value
    visitor.client.cookies.update(visitor.submit(fields).cookies)

    assert visitor.client.cookies["sessionid"].value != before
    assert replayed(visitor.submit(fields))
    assert orders() == ["tea"]


@pytest.mark.parametrize(
    ("path", "first", "then"),
    [
        ("/join/session/", None, "other"),
        ("/order/", "alice", None),
        ("/join/session/", "alice", None),
    ],
)
def test_R21_another_user_on_the_same_browser_is_another_scope(visitor, path, first, then):
    """And a visitor, after the logout."""
    visitor.path = path
    if first:
        visitor.log_in(first)
    fields = visitor.page()
    visitor.client.cookies.update(visitor.submit(fields).cookies)
    if then:
        visitor.log_in(then)
    else:
        visitor.client.logout()

    assert not replayed(visitor.submit({**visitor.page(), **taken(fields)}))
    assert IdempotencyRecord.objects.values("scope").distinct().count() == 2
