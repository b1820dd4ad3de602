"""Section K, R92: work that is rolled back leaves no session and no messages behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from asgiref.sync import sync_to_async
from django.contrib import messages
from django.contrib.messages import get_messages
from django.contrib.sessions.models import Session
from django.db import connections, transaction
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client
from rest_framework.exceptions import APIException
from rest_framework.request import Request
from rest_framework.views import APIView

from django_idempotency.contrib.rest_framework import IdempotencyMixin
from django_idempotency.http import idempotent
from tests.app.models import Child, Effect
from tests.unit.http.api import problem
from tests.unit.http.conftest import Mount, SetPolicy
from tests.unit.http.test_k_rolled_back import swallow

pytestmark = pytest.mark.django_db(transaction=True)

TOKEN = UUID("8e03978e-40d5-43e8-bc93-6894a57f9324")


class Declined(APIException):
    status_code = 409


def pop(request: HttpRequest) -> None:
    request.session.pop("cart")


def flush(request: HttpRequest) -> None:
    request.session.flush()


def cycle_key(request: HttpRequest) -> None:
    pop(request)
    request.session["order"] = 1
    request.session.cycle_key()


def take_over() -> None:
    """Another attempt takes over, so that the work answers 409 `lease_lost`."""
    other = connections["default"].copy()
    try:
        with other.cursor() as cursor:
            cursor.execute("UPDATE idempotency_record SET epoch = epoch + 1, token = %s", [TOKEN])
    finally:
        other.close()


def end(then: str) -> HttpResponse:
    """End the work: by a raised error, or by the status of an answer."""
    if then == "boom":
        raise RuntimeError(then)
    if then == "deferred":
        Child.objects.create(parent_id=10**9)
    if then == "declined":
        raise Declined
    if then == "lease lost":
        take_over()
    if then == "wish":
        transaction.set_rollback(True)
    if then == "doomed":
        swallow("default")
        then = "409"
    return HttpResponse(status=int(then) if then.isdigit() else 201)


ENDINGS = {"boom": 500, "deferred": 500, "503": 503, "doomed": 409}


@pytest.fixture(autouse=True)
def project(policy: SetPolicy) -> None:
    policy(HTTP={"SCOPE": "django_idempotency.http.scopes.anyone"})


class Shopper:
    """A browser with something in its cart, and a message from before."""

    def __init__(self) -> None:
        self.client = Client(raise_request_exception=False)
        session = self.client.session
        session["cart"] = ["tea"]
        session.save()
        self.client.cookies["sessionid"] = session.session_key

    def post(self, url: str, key: str | None = "key-1") -> Any:
        return self.client.post(url, headers={"Idempotency-Key": key} if key else {})

    @property
    def cart(self) -> Any:
        return self.client.session.get("cart")


def checkout(empty: Callable[[HttpRequest], None], then: str) -> Any:
    @idempotent
    def view(request: HttpRequest) -> HttpResponse:
        Effect.objects.create()
        messages.success(request, "Thank you")
        empty(request)
        return end(then)

    return view


def told(request: HttpRequest) -> HttpResponse:
    return HttpResponse(" ".join(message.message for message in get_messages(request)))


@pytest.mark.parametrize("empty", [pop, flush, cycle_key])
@pytest.mark.parametrize("then", ENDINGS)
@pytest.mark.parametrize("key", ["key-1", None], ids=["key", "no key"])
def test_R92_rolled_back_work_leaves_session_and_messages(
    mount: Mount, empty: Any, then: str, key: str | None
) -> None:
    url, page, shopper = mount(checkout(empty, then)), mount(told), Shopper()
    cookie = shopper.client.cookies["sessionid"].value

    response = shopper.post(url, key)

    assert response.status_code == ENDINGS[then]
    assert shopper.cart == ["tea"]
    assert shopper.client.cookies["sessionid"].value == cookie
    assert [session.session_key for session in Session.objects.all()] == [cookie]
    assert shopper.client.get(page).content == b""
    assert not Effect.objects.exists()


@pytest.mark.leg("postgres18", "postgres16")  # on SQLite nobody takes over beside joined work
@pytest.mark.parametrize("empty", [pop, flush])
@pytest.mark.parametrize("every_request", [False, True])
def test_R92_problem_in_the_place_of_the_work(
    mount: Mount, settings: Any, empty: Any, every_request: bool
) -> None:
    settings.SESSION_SAVE_EVERY_REQUEST = every_request
    url, page, shopper = mount(checkout(empty, "lease lost")), mount(told), Shopper()

    assert problem(shopper.post(url)) == (409, "lease_lost")
    assert shopper.cart == ["tea"]
    assert shopper.client.get(page).content == b""


@pytest.mark.parametrize("engine", ["signed_cookies", "cached_db"])
def test_R92_other_session_engines(mount: Mount, settings: Any, engine: str) -> None:
    settings.SESSION_ENGINE = f"django.contrib.sessions.backends.{engine}"
    url, shopper = mount(checkout(pop, "boom")), Shopper()

    assert shopper.post(url).status_code == 500
    assert shopper.cart == ["tea"]


@pytest.mark.parametrize("key", ["key-1", None], ids=["key", "no key"])
def test_R92_error_that_drf_answers(mount: Mount, key: str | None) -> None:
    class Checkout(IdempotencyMixin, APIView):
        authentication_classes: list[Any] = []

        def post(self, request: Request) -> HttpResponse:
            pop(request._request)
            return end("declined")

    shopper = Shopper()

    assert shopper.post(mount(Checkout), key).status_code == 409
    assert shopper.cart == ["tea"]


@pytest.mark.parametrize("then", ["201", "403", "wish"])
@pytest.mark.parametrize("key", ["key-1", None], ids=["key", "no key"])
def test_R92_work_that_is_answered_with_its_own_response_keeps_its_session(
    mount: Mount, then: str, key: str | None
) -> None:
    url, page, shopper = mount(checkout(pop, then)), mount(told), Shopper()

    shopper.post(url, key)

    assert shopper.cart is None
    assert shopper.client.get(page).content == b"Thank you"


@pytest.mark.parametrize("key", ["key-1", None], ids=["key", "no key"])
def test_R92_hook_that_raises_takes_nothing_back(mount: Mount, key: str | None) -> None:
    """The work of a coroutine has committed before its hook ran."""

    def hook() -> None:
        raise RuntimeError("hook")

    def work(request: HttpRequest) -> HttpResponse:
        messages.success(request, "Thank you")
        transaction.on_commit(hook)
        return HttpResponse(status=201)

    @idempotent(transaction="joined")
    async def view(request: HttpRequest) -> HttpResponse:
        return await sync_to_async(work)(request)

    url, page = mount(view), mount(told)

    async def main() -> Any:
        client = AsyncClient(raise_request_exception=False)
        headers = {"Idempotency-Key": key} if key else {}
        responses = await client.post(url, headers=headers), await client.get(page)
        await sync_to_async(connections.close_all)()
        return responses

    response, later = asyncio.run(main())
    assert response.status_code == 500
    assert later.content == b"Thank you"


def test_R92_without_a_transaction_nothing_is_taken_back(mount: Mount, policy: SetPolicy) -> None:
    policy(TRANSACTION="separate")
    url, shopper = mount(checkout(flush, "boom")), Shopper()

    assert shopper.post(url).status_code == 500
    assert shopper.cart is None


def unsaved(get_response: Any) -> Any:
    """A middleware that leaves something in the session, and a message, before the work."""

    def middleware(request: HttpRequest) -> Any:
        request.session["seen"] = "before"
        messages.info(request, "Welcome")
        return get_response(request)

    return middleware


@pytest.mark.leg("postgres18", "postgres16")
def test_R92_what_a_middleware_has_left_before_the_work_stays(mount: Mount, settings: Any) -> None:
    url, page, shopper = mount(checkout(pop, "lease lost")), mount(told), Shopper()
    before = settings.MIDDLEWARE
    settings.MIDDLEWARE = [*before, f"{__name__}.unsaved"]

    assert problem(shopper.post(url)) == (409, "lease_lost")

    settings.MIDDLEWARE = before
    later = Client()
    later.cookies = shopper.client.cookies
    assert (later.session["cart"], later.session["seen"]) == (["tea"], "before")
    assert later.get(page).content == b"Welcome"
