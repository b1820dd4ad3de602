"""Section K, R92: work that is rolled back leaves no session and no messages behind."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib import messages
from django.contrib.auth import login
from django.contrib.messages.storage.session import SessionStorage
from django.contrib.sessions.backends.db import SessionStore
from django.contrib.sessions.models import Session
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import HttpRequest, HttpResponse

from django_idempotency.http import idempotent, scopes
from django_idempotency.http.sessions import RequestState
from tests.app.models import Child, Effect
from tests.unit.http.api import replayed
from tests.unit.http.shoppers import Shopper
from tests.unit.http.test_work import swallow
from tests.unit.http.views import ANYONE, KEYED
from tests.unit.views.conftest import AsgiClient

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("anyone")]


def cycle_key(request: HttpRequest) -> None:
    request.session.pop("cart")
    request.session.cycle_key()


EMPTY: dict[str, Any] = {
    "pop": lambda request: request.session.pop("cart"),
    "flush": lambda request: request.session.flush(),
    "cycle_key": cycle_key,
}


MEMORY = "django_idempotency.stores.memory.MemoryStore"


def boom() -> None:
    raise RuntimeError("boom")


def deferred() -> None:
    Child.objects.create(parent_id=10**9)


def doomed() -> int:
    swallow("default")
    return 409


def wish() -> None:
    transaction.set_rollback(True)


def checkout(empty: str, last: Any) -> Any:
    """Return a view that thanks, empties the cart, and ends as `last` does."""

    @idempotent
    def view(request: HttpRequest) -> HttpResponse:
        Effect.objects.create()
        messages.success(request, "Thank you")
        EMPTY[empty](request)
        return HttpResponse(status=last() or 201)

    return view


def told(request: HttpRequest) -> HttpResponse:
    return HttpResponse(" ".join(message.message for message in messages.get_messages(request)))


@pytest.mark.parametrize(
    ("empty", "last", "status", "key"),
    [
        ("flush", boom, 500, "key-1"),
        ("pop", boom, 500, None),
        ("cycle_key", deferred, 500, "key-1"),
        ("pop", lambda: 503, 503, "key-1"),
        ("pop", doomed, 409, "key-1"),
        ("pop", doomed, 409, None),
    ],
)
def test_R92_rolled_back_work_leaves_session_and_messages(mount, empty, last, status, key):
    url, page, shopper = mount(checkout(empty, last)), mount(told), Shopper()
    cookie = shopper.client.cookies["sessionid"].value
    response = shopper.post(url, key)
    assert response.status_code == status
    assert shopper.cart == ["tea"]
    assert shopper.client.cookies["sessionid"].value == cookie
    assert [session.session_key for session in Session.objects.all()] == [cookie]
    assert shopper.client.get(page).content == b""
    assert not Effect.objects.exists()


@pytest.mark.parametrize("last", [doomed, lambda: 503], ids=["a problem", "503"])
@pytest.mark.parametrize("key", ["key-1", None])
def test_R92_rolled_back_login_leaves_the_user_and_the_token_of_the_page(
    mount, settings, monkeypatch, django_user_model, last, key
):
    """Or the same page, sent again as it is told to be, is refused."""
    user = django_user_model.objects.create_user("jane")
    settings.MIDDLEWARE = [
        f"{__name__}.noting_the_user",
        *settings.MIDDLEWARE,
        "django.middleware.csrf.CsrfViewMiddleware",
    ]
    shopper = Shopper()
    shopper.client.handler.enforce_csrf_checks = True
    shopper.client.cookies["csrftoken"] = token = "t" * 32
    url = mount(checkout("login", last))

    def send() -> Any:
        headers = {"X-CSRFToken": token, **({"Idempotency-Key": key} if key else {})}
        return shopper.client.post(url, headers=headers)

    backend = "django.contrib.auth.backends.ModelBackend"
    monkeypatch.setitem(EMPTY, "login", lambda request: login(request, user, backend))
    answers = [send(), send()]

    assert [answer.status_code for answer in answers] == [answers[0].status_code] * 2
    assert answers[0].status_code in (409, 503)
    assert [answer["X-User-Outside"] for answer in answers] == ["anonymous"] * 2
    assert shopper.client.cookies["csrftoken"].value == token


def noting_the_user(get_response: Any) -> Any:
    """Tell what middleware outside of the guard sees."""

    def middleware(request: HttpRequest) -> HttpResponse:
        response = get_response(request)
        response["X-User-Outside"] = request.user.get_username() or "anonymous"
        return response

    return middleware


@pytest.mark.parametrize("engine", ["signed_cookies", "cached_db"])
def test_R92_other_session_engines(mount, settings, engine):
    settings.SESSION_ENGINE = f"django.contrib.sessions.backends.{engine}"
    url, shopper = mount(checkout("pop", boom)), Shopper()
    assert shopper.post(url).status_code == 500
    assert shopper.cart == ["tea"]


@pytest.mark.parametrize("last", [boom, doomed], ids=["boom", "409"])
def test_R92_work_of_atomic_requests_beside_a_store_that_cannot_join(mount, settings, atomic, last):
    """Its lease ends by itself, and the work is rolled back all the same."""
    settings.IDEMPOTENCY = {"default": {"BACKEND": MEMORY, "HTTP": {"SCOPE": ANYONE}}}
    url, page, shopper = mount(checkout("pop", last)), mount(told), Shopper()
    assert shopper.post(url).status_code in (500, 409)
    assert not Effect.objects.exists()
    assert shopper.cart == ["tea"]
    assert shopper.client.get(page).content == b""


@pytest.mark.parametrize("last", [lambda: 403, wish], ids=["403", "wish"])
def test_R92_work_that_is_answered_with_its_own_response_keeps_its_session(mount, last):
    url, page = mount(checkout("pop", last)), mount(told)
    for shopper, key in ((Shopper(), "key-1"), (Shopper(), None)):
        shopper.post(url, key)
        assert shopper.cart is None
        assert shopper.client.get(page).content == b"Thank you"


@KEYED
@pytest.mark.parametrize("made", [sync_to_async, partial], ids=["coroutine", "function"])
def test_R92_hook_that_raises_takes_nothing_back(mount, made, key):
    """The work has committed before its hook ran."""

    def work(request: HttpRequest) -> HttpResponse:
        messages.success(request, "Thank you")
        transaction.on_commit(boom)
        return HttpResponse(status=201)

    url, page = mount(idempotent(transaction="joined")(made(work))), mount(told)
    shopper = Shopper()
    assert shopper.post(url, key).status_code == 500
    assert shopper.client.get(page).content == b"Thank you"


def test_R92_without_a_transaction_nothing_is_taken_back(mount, policy):
    policy(TRANSACTION="separate")
    url, shopper = mount(checkout("flush", boom)), Shopper()
    assert shopper.post(url).status_code == 500
    assert shopper.cart is None


class Modifies:
    """A middleware that has each session saved, and reads none of it."""

    def __init__(self, get_response: Any) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        request.session.modified = True
        response: HttpResponse = self.get_response(request)
        return response


@KEYED
def test_R92_what_rolled_back_work_has_put_into_a_list_is_gone(mount, settings, monkeypatch, key):
    """Where a middleware has it saved all the same."""
    monkeypatch.setitem(EMPTY, "add", lambda request: request.session["cart"].append("milk"))
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, f"{__name__}.Modifies"]
    url, shopper = mount(checkout("add", doomed)), Shopper()
    assert shopper.post(url, key).status_code == 409
    assert shopper.cart == ["tea"]


@KEYED
@pytest.mark.parametrize("transaction", ["joined", "separate"])
def test_R92_coroutine_whose_session_a_middleware_has_marked(mount, settings, transaction, key):
    """Its data are read on the thread of the connections, never on the event loop."""

    async def work(request: HttpRequest) -> HttpResponse:
        return HttpResponse((await request.session.aget("cart"))[0], status=201)

    settings.MIDDLEWARE = [*settings.MIDDLEWARE, f"{__name__}.Modifies"]
    shopper = Shopper(AsgiClient())

    answer = shopper.post(mount(idempotent(transaction=transaction)(work)), key)

    assert (answer.status_code, answer.content) == (201, b"tea")
    assert shopper.cart == ["tea"]


@pytest.mark.parametrize("made", [sync_to_async, partial], ids=["coroutine", "function"])
def test_R92_R97_name_of_the_session_outlives_work_that_is_rolled_back(mount, settings, made):
    """Its kept answer is found by the name alone, where nothing else in a cookie names it."""
    settings.SESSION_ENGINE = "django.contrib.sessions.backends.signed_cookies"

    def work(request: HttpRequest) -> HttpResponse:
        raise PermissionDenied

    guarded = idempotent(transaction="joined", scope=scopes.session, keep="stripe")
    shopper = Shopper(AsgiClient() if made is sync_to_async else None)
    url = mount(guarded(made(work)))

    assert [replayed(shopper.post(url)) for _ in range(2)] == [False, True]


def test_R92_session_that_is_none_of_djangos_is_left_as_it_is(rf):
    """As that of a test, or of a middleware of the project's own; so are its messages."""
    request = rf.post("/")
    request.session = session = {"cart": ["tea"]}
    request._messages = told = ["Thank you"]

    RequestState(request).restore()

    assert request.session is session
    assert request._messages is told


def test_R92_restored_messages_are_those_of_the_same_request(rf):
    """One that keeps them in the session finds there the session of the request."""
    request = rf.post("/")
    request.session = SessionStore()
    request._messages = SessionStorage(request)

    RequestState(request).restore()

    assert request._messages.request is request
