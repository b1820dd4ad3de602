"""Section K, R90, R96: a key changes nothing about what a request leaves behind."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.core.exceptions import PermissionDenied
from django.db import connection, connections
from django.db.transaction import non_atomic_requests
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.test import AsyncClient, Client
from django.utils.decorators import method_decorator
from django.views import View
from rest_framework import exceptions
from rest_framework.decorators import api_view
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from django_idempotency.contrib.rest_framework import IdempotencyMixin
from django_idempotency.http import idempotent
from django_idempotency.http.checks import check_views
from tests.app.models import Effect
from tests.unit.http.conftest import Mount, SetPolicy

pytestmark = pytest.mark.django_db(transaction=True)

GUARD = "django_idempotency.http.middleware.IdempotencyMiddleware"
RAISES = {"plain": PermissionDenied, "drf": exceptions.PermissionDenied}
KEYED = pytest.mark.parametrize("key", ["a-key", None], ids=["key", "no key"])


@pytest.fixture(autouse=True)
def anyone(policy: SetPolicy) -> SetPolicy:
    policy(HTTP={"SCOPE": "django_idempotency.http.scopes.anyone"})
    return policy


@pytest.fixture
def everywhere_atomic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)


def given(key: str | None) -> dict[str, str]:
    return {"Idempotency-Key": key} if key else {}


def send(url: str, method: str, headers: dict[str, str]) -> Any:
    async def main() -> Any:
        try:
            return await AsyncClient().generic(method, url, headers=headers)
        finally:
            await sync_to_async(connections.close_all)()

    return asyncio.run(main())


# Who sends a key must not guess for ever.


def guess(pin: str, *, raises: type[Exception] | None) -> int:
    """A PIN that locks after two wrong guesses; the status of the answer."""
    if Effect.objects.filter(name="wrong guess").count() >= 2:
        return 423
    Effect.objects.create(name="wrong guess")
    if raises is not None:
        raise raises
    return 403


def views(raises: bool) -> dict[str, Any]:
    """The same view behind each adapter."""
    plain, drf = (RAISES["plain"], RAISES["drf"]) if raises else (None, None)

    def free(request: HttpRequest) -> HttpResponse:
        return HttpResponse(status=guess(request.POST["pin"], raises=plain))

    class Mixed(IdempotencyMixin, APIView):
        authentication_classes: list[Any] = []

        def post(self, request: Request) -> Response:
            return Response(status=guess(request.data["pin"], raises=drf))

    @api_view(["POST"])
    @idempotent
    def below(request: Request) -> Response:
        return Response(status=guess(request.data["pin"], raises=drf))

    return {
        "mixin": Mixed,
        "decorator": idempotent(free),
        "below @api_view": below,
        "middleware": free,
    }


@pytest.fixture
def guesses(mount: Mount, settings: Any) -> Callable[..., list[int]]:
    """Send three wrong guesses, and return the statuses of the answers."""

    def send(kind: str, key: str, *, raises: bool) -> list[int]:
        settings.MIDDLEWARE = [GUARD] if kind == "middleware" else []
        url, client, statuses = mount(views(raises)[kind]), Client(), []
        for pin in range(3):
            fields = {"pin": str(pin)} | ({"idempotency_key": "a-key"} if key == "field" else {})
            headers = given("a-key" if key == "header" else None)
            statuses.append(client.post(url, fields, headers=headers).status_code)
        return statuses

    return send


@pytest.mark.parametrize("kind", views(raises=False))
@pytest.mark.parametrize("key", ["header", "field", "none"])
def test_R57_R90_returned_refusal_counts_whether_there_is_a_key_or_not(guesses, kind, key):
    assert guesses(kind, key, raises=False) == [403, 403, 423]


@pytest.mark.parametrize(
    ("kind", "transaction", "atomic", "counts"),
    [
        ("mixin", None, False, False),
        ("mixin", "separate", False, True),
        ("mixin", "separate", True, False),
        ("decorator", None, False, False),
        ("decorator", None, True, False),
        ("below @api_view", None, False, False),
        ("middleware", None, False, True),
        ("middleware", "joined", False, False),
        ("middleware", None, True, False),
    ],
)
@pytest.mark.parametrize("key", ["header", "none"])
def test_R90_raised_refusal_counts_or_not_whether_there_is_a_key_or_not(
    guesses, anyone, monkeypatch, kind, transaction, atomic, counts, key
):
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", atomic)
    anyone(TRANSACTION=transaction)

    assert guesses(kind, key, raises=True) == [403, 403, 423 if counts else 403]


@pytest.mark.parametrize(
    ("atomic_requests", "chosen", "opened"),
    [(False, None, False), (False, "joined", True), (False, "single", True), (True, None, True)],
    indirect=["atomic_requests"],
)
@KEYED
def test_R90_middleware_opens_no_transaction_of_its_own(
    mount, anyone, settings, atomic_requests, chosen, opened, key
):
    settings.MIDDLEWARE = [GUARD]
    anyone(TRANSACTION=chosen)
    seen: list[bool] = []

    def view(request: HttpRequest) -> HttpResponse:
        seen.append(connection.in_atomic_block)
        return HttpResponse()

    Client().post(mount(view), headers=given(key))

    assert seen == [opened]


# Verdicts without a key.


def fail_teapots(response: HttpResponseBase, exception: BaseException | None) -> str:
    return "fail" if response.status_code == 418 else "keep"


@pytest.mark.parametrize(
    ("keep", "status", "commits"),
    [
        ("default", 200, True),
        ("default", 400, True),
        ("default", 503, False),
        (fail_teapots, 418, False),
        (fail_teapots, 400, True),
    ],
)
@KEYED
def test_R90_status_and_callable_decide_about_the_work(mount, keep, status, commits, key):
    @idempotent(keep=keep)
    def view(request: HttpRequest) -> HttpResponse:
        Effect.objects.create()
        return HttpResponse(status=status)

    response = Client().post(mount(view), headers=given(key))

    assert response.status_code == status
    assert Effect.objects.exists() == commits


@pytest.mark.parametrize("transaction", ["joined", "separate"])
@pytest.mark.parametrize("then", ["403", "503", "raised"])
@KEYED
def test_R90_coroutine(mount, transaction, then, key):
    @idempotent(transaction=transaction)
    async def view(request: HttpRequest) -> HttpResponse:
        await Effect.objects.acreate()
        if then == "raised":
            raise PermissionDenied
        return HttpResponse(status=int(then))

    send(mount(view), "POST", given(key))

    assert Effect.objects.exists() == (transaction == "separate" or then == "403")


def test_R90_guard_within_leaves_a_request_without_a_key_to_the_one_around(mount, anyone):
    """An explicit "joined" cannot be opened within the one that is open."""
    anyone(TRANSACTION="joined")

    @idempotent
    def within(request: Request) -> Response:
        return Response({"atomic": connection.in_atomic_block})

    class Nested(IdempotencyMixin, APIView):
        authentication_classes: list[Any] = []

        def post(self, request: Request) -> HttpResponseBase:
            return within(request)

    response = Client().post(mount(Nested), json.dumps({}), content_type="application/json")

    assert response.json() == {"atomic": True}


# R96: a guarded coroutine view does not lose its ATOMIC_REQUESTS without a word.

DJANGO_SAYS = "You cannot use ATOMIC_REQUESTS with async views"


async def tells(request: HttpRequest) -> HttpResponse:
    return HttpResponse(str(await sync_to_async(lambda: connection.in_atomic_block)()))


@non_atomic_requests
async def exempt(request: HttpRequest) -> HttpResponse:
    return await tells(request)


class AsyncClass(View):
    async def get(self, request: HttpRequest) -> HttpResponse:
        return await tells(request)

    post = get


def coroutines(**policy: Any) -> dict[str, Any]:
    decorated = method_decorator(idempotent(**policy), name="dispatch")
    return {
        "function": idempotent(**policy)(tells),
        "class": decorated(type("Decorated", (AsyncClass,), {})),
        "as_view()": idempotent(**policy)(AsyncClass.as_view()),
    }


SENT = pytest.mark.parametrize(
    ("method", "key"), [("POST", "a-key"), ("POST", None), ("GET", None)]
)
ATOMIC = pytest.mark.usefixtures("everywhere_atomic")


@ATOMIC
@SENT
@pytest.mark.parametrize("kind", coroutines())
def test_R96_guarded_coroutine_is_refused_as_django_refuses_it(mount, kind, method, key):
    with pytest.raises(RuntimeError, match=DJANGO_SAYS):
        send(mount(coroutines()[kind]), method, given(key))

    answer = send(mount(coroutines(transaction="joined")[kind]), method, given(key))
    assert answer.content == b"True"


@ATOMIC
@KEYED
@pytest.mark.parametrize("client", ["asgi", "wsgi"])
def test_R96_middleware(mount, settings, client, key):
    settings.MIDDLEWARE = [GUARD]
    url = mount(tells)
    post = partial(send, url, "POST") if client == "asgi" else partial(Client().post, url)

    with pytest.raises(RuntimeError, match=DJANGO_SAYS):
        post(headers=given(key))


@ATOMIC
@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_R96_joined_gives_none_on_another_alias(mount, monkeypatch):
    monkeypatch.setitem(connections.settings["other"], "ATOMIC_REQUESTS", True)

    with pytest.raises(RuntimeError, match=DJANGO_SAYS):
        send(mount(idempotent(transaction="joined")(tells)), "POST", given("a-key"))


@ATOMIC
@SENT
def test_R96_view_that_the_project_exempts_is_exempt(mount, method, key):
    assert send(mount(idempotent(exempt)), method, given(key)).content == b"False"


@ATOMIC
@pytest.mark.parametrize("kind", coroutines())
def test_R96_check_names_joined_where_something_is_lost(mount, kind):
    mount(coroutines(transaction="joined")[kind])
    mount(idempotent(exempt))
    quiet = [found for found in check_views() if found.id == "django_idempotency.E015"]
    mount(coroutines()[kind])

    [error] = [found for found in check_views() if found.id == "django_idempotency.E015"]

    assert quiet == []
    assert "ATOMIC_REQUESTS" in error.msg
    assert 'transaction="joined"' in str(error.hint)
