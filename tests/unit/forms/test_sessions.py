"""R89: the session that visitors' keys belong to, with every engine and through every change."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.middleware.csrf import CsrfViewMiddleware
from django.test import RequestFactory
from django.utils.module_loading import import_string

from django_idempotency.exceptions import ScopeMissing
from django_idempotency.http import scopes
from django_idempotency.models import IdempotencyRecord
from tests.unit.forms.conftest import Visitor, orders, taken
from tests.unit.http.api import replayed

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls("tests.unit.forms.urls")]

ENGINES = ["db", "cache", "cached_db", "file", "signed_cookies"]
#: Those that keep data of their own, so that a cookie may outlive them.
KEPT = [engine for engine in ENGINES if engine != "signed_cookies"]


@pytest.fixture
def engine(request: pytest.FixtureRequest, settings: Any, tmp_path: Any) -> str:
    settings.SESSION_ENGINE = f"django.contrib.sessions.backends.{request.param}"
    settings.SESSION_FILE_PATH = str(tmp_path)
    settings.CACHES = {
        "default": {
            "BACKEND": "django.core.cache.backends.locmem.LocMemCache",
            "LOCATION": str(tmp_path),
        }
    }
    return str(request.param)


every_engine = pytest.mark.parametrize("engine", ENGINES, indirect=True)


def store_of(engine: str, key: str | None = None) -> Any:
    return import_string(f"django.contrib.sessions.backends.{engine}.SessionStore")(key)


def begun(engine: str) -> Any:
    """Return a session that a page has begun."""
    session = store_of(engine)
    session["basket"] = []
    session.save()
    return store_of(engine, session.session_key)


def scope_of(session: Any) -> str:
    request: Any = RequestFactory().post("/")
    request.session = session
    return scopes.session(request)


@every_engine
def test_R89_two_clicks_of_a_visitor(visitor: Visitor, engine: str) -> None:
    fields = {**visitor.page(), "item": "tea"}

    first, again = visitor.submit(fields), visitor.submit(fields)

    assert (first.status_code, again.status_code) == (200, 200)
    assert (replayed(first), replayed(again)) == (False, True)
    assert orders() == ["tea"]


@pytest.mark.parametrize("engine", KEPT, indirect=True)
def test_R89_two_clicks_with_the_cookie_of_a_session_that_is_gone(
    visitor: Visitor, engine: str
) -> None:
    visitor.page()
    stale = visitor.client.cookies["sessionid"].value
    store_of(engine, stale).delete()

    fields = {**visitor.page(), "item": "tea"}
    first, again = visitor.submit(fields), visitor.submit(fields)

    assert visitor.client.cookies["sessionid"].value != stale
    assert (replayed(first), replayed(again)) == (False, True)
    assert orders() == ["tea"]


@every_engine
def test_R89_the_scope_outlives_writes_and_a_new_key(engine: str) -> None:
    session = begun(engine)
    scope = scope_of(session)

    session["basket"] = ["tea"]
    session.save()
    later = store_of(engine, session.session_key)
    assert scope_of(later) == scope
    later.cycle_key()
    later.save()

    assert later.session_key != session.session_key or engine == "signed_cookies"
    assert scope_of(store_of(engine, later.session_key)) == scope


@every_engine
def test_R21_the_scope_ends_with_the_session(engine: str) -> None:
    session = begun(engine)
    scope = scope_of(session)
    session.save()

    session.flush()
    with pytest.raises(ScopeMissing):
        scope_of(session)
    session["basket"] = []
    session.save()

    assert scope_of(store_of(engine, session.session_key)) != scope


@every_engine
def test_R21_R97_a_cookie_alone_is_no_session(engine: str) -> None:
    """Strangers may send the same one."""
    for cookie in ("deleted", "x" * 32, "a:b:c"):
        session = store_of(engine, cookie)

        with pytest.raises(ScopeMissing):
            scope_of(session)

        assert "_idempotency_scope" not in session


@every_engine
def test_R97_a_session_that_is_not_saved_yet_is_nobodys(engine: str) -> None:
    session = store_of(engine)
    session["basket"] = ["tea"]

    with pytest.raises(ScopeMissing):
        scope_of(session)

    assert session.session_key is None


@pytest.mark.parametrize("engine", ["signed_cookies"], indirect=True)
def test_R21_two_signed_cookies_that_are_alike_are_two_visitors(engine: str) -> None:
    """Nothing in them tells whose they are: they were signed in the same second."""
    key = begun(engine).session_key

    assert len({scope_of(store_of(engine, key)) for _ in range(2)}) == 2


@pytest.mark.parametrize("engine", KEPT, indirect=True)
def test_R89_R97_two_clicks_at_once_name_a_session_alike_until_it_is_forgotten(engine: str) -> None:
    session = begun(engine)
    both = [store_of(engine, session.session_key) for _ in range(2)]
    assert len({scope_of(one) for one in both}) == 1

    both[0].save()
    store_of(engine, session.session_key).delete()

    with pytest.raises(ScopeMissing):
        scope_of(store_of(engine, session.session_key))


def test_R79_the_scope_does_not_lead_into_the_session() -> None:
    """And it is that of the session once it is saved."""
    session = begun("db")

    scope = scope_of(session)

    assert session.session_key not in scope
    assert not any(str(value) in scope for value in session.values())
    session.save()
    assert scope_of(store_of("db", session.session_key)) == scope


# A visitor who becomes a user.


def test_R89_reload_of_a_form_that_has_logged_the_visitor_in_does_nothing(
    visitor: Visitor,
) -> None:
    """Logging in gives the browser another CSRF token: the page as it was left is refused."""
    visitor.path = "/join/"
    fields = {**visitor.page(), "item": "tea"}
    first = visitor.submit(fields)
    visitor.client.cookies.update(first.cookies)

    again = visitor.submit(fields)

    assert (first.status_code, again.status_code) == (200, 403)
    assert orders() == ["tea"]
    assert User.objects.count() == 1


def test_R89_the_sessions_own_scope_outlives_the_login(
    visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CsrfViewMiddleware, "process_view", lambda *arguments: None)
    visitor.path = "/join/session/"
    fields = {**visitor.page(), "item": "tea"}
    first = visitor.submit(fields)
    before = visitor.client.cookies["sessionid"].value
    visitor.client.cookies.update(first.cookies)

    again = visitor.submit(fields)

    assert visitor.client.cookies["sessionid"].value != before
    assert replayed(again)
    assert orders() == ["tea"]


def test_R21_another_user_on_the_same_browser_is_another_scope(visitor: Visitor) -> None:
    visitor.path = "/join/session/"
    fields = {**visitor.page(), "item": "tea"}
    visitor.client.cookies.update(visitor.submit(fields).cookies)
    visitor.client.force_login(User.objects.create(username="other"))

    answer = visitor.submit({**visitor.page(), **taken(fields)})

    assert not replayed(answer)
    assert IdempotencyRecord.objects.values("scope").distinct().count() == 2


@pytest.mark.parametrize("path", ["/order/", "/join/session/"])
def test_R21_after_logout_it_is_another_scope(visitor: Visitor, path: str) -> None:
    visitor.path = path
    visitor.client.force_login(User.objects.create(username="alice"))
    fields = {**visitor.page(), "item": "tea"}
    visitor.client.cookies.update(visitor.submit(fields).cookies)
    visitor.client.logout()

    answer = visitor.submit({**visitor.page(), **taken(fields)})

    assert not replayed(answer)
    assert IdempotencyRecord.objects.values("scope").distinct().count() == 2
