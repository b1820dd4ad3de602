"""R51: a replay writes no session data, and sets and deletes no session cookie."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib import messages
from django.contrib.auth import login
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory

from django_idempotency.conf import store_for
from django_idempotency.exceptions import LeaseLost
from django_idempotency.http import idempotent, scopes
from django_idempotency.models import IdempotencyRecord
from django_idempotency.stores.database import DatabaseStore
from tests.unit.http.api import problem, replayed
from tests.unit.http.conftest import Mount, SetPolicy
from tests.unit.http.shoppers import Overtaken, Shopper
from tests.unit.http.views import ANYONE

pytestmark = pytest.mark.django_db(transaction=True)


def looks_afterwards(get_response: Any) -> Any:
    def middleware(request: HttpRequest) -> HttpResponse:
        response: HttpResponse = get_response(request)
        response["X-Cart"] = str(request.session.get("cart"))
        return response

    return middleware


def fill(request: HttpRequest) -> None:
    request.session["cart"] = ["tea", "coffee"]


def cycle(request: HttpRequest) -> None:
    fill(request)
    request.session.cycle_key()


def enter(request: HttpRequest) -> None:
    fill(request)
    login(request, User.objects.create(username="alice"))


def leave(request: HttpRequest) -> None:
    request.session.flush()


WORK = {"fill": fill, "cycle": cycle, "enter": enter, "leave": leave}


def buy(request: Any) -> HttpResponse:
    request = getattr(request, "_request", request)
    WORK[request.GET["work"]](request)
    messages.success(request, "Thank you")
    return HttpResponse(status=201)


checkout = idempotent(buy)


@pytest.fixture
def project(policy: SetPolicy, settings: Any, tmp_path: Any) -> Any:
    policy(HTTP={"SCOPE": ANYONE})
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, f"{Overtaken.__module__}.Overtaken"]
    settings.SESSION_FILE_PATH = str(tmp_path)
    yield settings
    Overtaken.meanwhile = None


@pytest.fixture
def to(project: Any, mount: Mount) -> Any:
    """``to("fill")`` is the URL of a view that does this work."""
    return lambda work, view=checkout: f"{mount(view)}?work={work}"


@pytest.mark.parametrize(
    ("engine", "work", "every"),
    [
        ("db", "fill", False),
        ("db", "cycle", True),
        ("db", "enter", False),
        ("db", "leave", True),
        ("cache", "fill", True),
        ("cache", "cycle", False),
        ("cached_db", "leave", False),
        ("cached_db", "enter", True),
        ("file", "fill", True),
        ("file", "cycle", False),
        ("signed_cookies", "fill", False),
        ("signed_cookies", "leave", True),
    ],
)
def test_R51_a_replay_leaves_the_session_to_the_work(project, to, engine, work, every):
    """It has loaded the session before the work changed it, and has not seen that."""
    project.SESSION_ENGINE = f"django.contrib.sessions.backends.{engine}"
    project.SESSION_SAVE_EVERY_REQUEST = every
    shopper = Shopper()

    first, second = shopper.click_twice(to(work))
    shopper.take(first)
    kept = shopper.kept
    shopper.take(second)

    assert (first.status_code, second.status_code, replayed(second)) == (201, 201, True)
    assert "sessionid" not in second.cookies
    assert shopper.kept == kept
    assert kept.get("cart") == (None if work == "leave" else ["tea", "coffee"])
    assert ("_auth_user_id" in kept) is (work == "enter")


def test_R51_middleware_outside_reads_the_session_as_it_came(to):
    """What it writes there goes with the replay."""
    first, second = Shopper().click_twice(to("enter"))

    assert (first["X-Cart"], first["X-User"]) == ("['tea', 'coffee']", "alice")
    assert (second["X-Cart"], second["X-User"]) == ("['tea']", "AnonymousUser")
    assert second["Vary"] == first["Vary"] == "Cookie"


def test_R51_middleware_that_is_the_first_to_look_reads_what_the_work_has_left(project, to):
    project.MIDDLEWARE = [*project.MIDDLEWARE[:-1], f"{__name__}.looks_afterwards"]
    url, shopper = to("fill"), Shopper()

    answers = [shopper.click(url) for _ in range(2)]

    assert [answer["X-Cart"] for answer in answers] == ["['tea', 'coffee']"] * 2


@pytest.mark.parametrize("every", [False, True], ids=["modified", "every"])
def test_R51_a_duplicate_in_progress_leaves_the_session_to_the_work(
    project, to, in_progress, every
):
    """The work has logged the visitor in, under another key of the session."""
    project.SESSION_SAVE_EVERY_REQUEST = every
    url, shopper = to("fill"), Shopper()
    shopper.click(url)
    in_progress()
    Overtaken.meanwhile = Session.objects.all().delete

    busy = shopper.click(url)

    assert problem(busy) == (409, "in_progress")
    assert not busy.cookies
    assert not Session.objects.exists()


def test_R51_a_request_that_was_refused_before_its_claim_keeps_its_session(to):
    """No other attempt is known, so the middleware's own is saved, as without the guard."""
    shopper = Shopper()

    assert shopper.post(to("fill"), key='""').status_code == 400

    assert shopper.kept["seen"] == 1


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
@pytest.mark.usefixtures("store_is_down")
def test_R51_R61_session_of_a_request_without_a_key_is_the_middlewares_where_the_store_is_down(
    policy, mount, settings
):
    """No other attempt is known, so the cookie of a session that is gone is deleted."""
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, f"{__name__}.looks_afterwards"]
    policy(TRANSACTION="joined")
    url, shopper = f"{mount(checkout)}?work=fill", Shopper()
    Session.objects.all().delete()

    answer = shopper.post(url, key=None)

    assert (answer.status_code, answer.cookies["sessionid"].value) == (503, "")


def test_R51_work_that_stands_has_its_session_whatever_the_answer(to, monkeypatch):
    """As where its completion was part of a transaction of its own, with another result."""
    complete = DatabaseStore.complete

    def completed_before(store: Any, lease: Any, result: bytes, **given: Any) -> Any:
        expires_at = complete(store, lease, result, **given)
        lease.completed_before = store.get(lease.record_id)
        return expires_at

    monkeypatch.setattr(DatabaseStore, "complete", completed_before)
    shopper = Shopper()

    assert replayed(shopper.post(to("fill")))

    assert shopper.cart == ["tea", "coffee"]


def test_R51_work_that_is_rolled_back_for_another_answer_leaves_the_session(
    to, policy, monkeypatch
):
    """To the attempt whose answer that is; what middleware has written goes with the request."""
    url = to("fill")
    Shopper().post(url)
    record = store_for().get(IdempotencyRecord.objects.get().pk)
    IdempotencyRecord.objects.all().delete()

    def lost(store: Any, *args: Any, **given: Any) -> Any:
        monkeypatch.setattr(DatabaseStore, "get", lambda store, record_id: record)
        raise LeaseLost

    monkeypatch.setattr(DatabaseStore, "complete", lost)
    policy(TRANSACTION="single")
    shopper = Shopper()

    assert replayed(shopper.post(url))

    assert shopper.kept == {"cart": ["tea"]}


def test_R51_work_that_comes_after_all_has_its_session(to, in_progress):
    """A decorator of the project that tries again, in the same request, after a 409."""

    def tries_again(request: HttpRequest) -> HttpResponse:
        for _ in range(2):
            assert checkout(request).status_code == 409
        IdempotencyRecord.objects.all().delete()
        return checkout(request)

    url, shopper = to("leave", tries_again), Shopper()
    Shopper().click(url)
    in_progress()

    answer = shopper.post(url)

    assert (answer.status_code, replayed(answer), shopper.cart) == (201, False, None)


def test_R51_the_session_of_a_request_around_is_its_own(project, mount):
    """A view may ask another one, with a request of its own and the same session."""
    inner = idempotent(lambda request: HttpResponse(status=201))

    def outer(request: HttpRequest) -> HttpResponse:
        for _ in range(2):
            asked: Any = RequestFactory().post("/", headers={"Idempotency-Key": "key-2"})
            asked.session, asked.resolver_match = request.session, request.resolver_match
            answer = inner(asked)
        asked.session["cart"].append("of the replay")
        request.session["asked"] = True
        return answer

    shopper = Shopper()
    again = shopper.post(mount(outer))

    assert (replayed(again), shopper.kept["asked"], shopper.cart) == (True, True, ["tea"])


def test_R51_R97_keys_of_a_session_replay_after_its_key_has_changed(policy, to):
    url, shopper = to("cycle"), Shopper()
    policy(HTTP={"SCOPE": scopes.session})
    session = shopper.client.session
    scopes.session_token(session)  # as the tag on the page of a form
    session.save()

    first, second = shopper.click_twice(url)
    shopper.take(first)
    third = shopper.click(url)

    assert [replayed(answer) for answer in (first, second, third)] == [False, True, True]


@pytest.mark.parametrize("engine", ["db", "cache", "cached_db", "file"])
@pytest.mark.parametrize(("body", "status"), [("1", 201), ("2", 422)], ids=["replay", "mismatch"])
def test_R47_R51_a_replay_after_a_rotation_of_SECRET_KEY_logs_nobody_out(
    policy, mount, settings, tmp_path, engine, body, status
):
    """Django gives the session a new key where the old secret has signed it, before the claim."""
    settings.SESSION_ENGINE = f"django.contrib.sessions.backends.{engine}"
    settings.SESSION_FILE_PATH = str(tmp_path)
    policy()
    url = mount(idempotent(lambda request: HttpResponse(request.body, status=201)))
    shopper = Shopper()
    shopper.client.force_login(User.objects.create(username="alice"))
    headers = {"Idempotency-Key": "key-1"}
    assert shopper.client.generic("POST", url, "1", headers=headers).status_code == 201

    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "new", [settings.SECRET_KEY]
    answers = [shopper.client.generic("POST", url, body, headers=headers) for _ in range(2)]

    assert [answer.status_code for answer in answers] == [status, status]
    assert [replayed(answer) for answer in answers] == [status == 201] * 2
    assert ["sessionid" in answer.cookies for answer in answers] == [True, False]
    assert shopper.kept["cart"] == ["tea"]


def test_R51_a_replay_to_a_session_that_is_gone_touches_no_cookie(to):
    """The work has logged the visitor in, and its answer did not arrive."""
    url, shopper = to("enter"), Shopper()

    first, second = shopper.click(url), shopper.click(url)

    assert (replayed(first), replayed(second)) == (False, True)
    assert "sessionid" in first.cookies
    assert not second.cookies
