"""Section K, R90: a key changes nothing about what a request leaves behind."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.core.exceptions import PermissionDenied
from django.db import connection, connections
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.test import AsyncClient, Client
from rest_framework import exceptions
from rest_framework.decorators import api_view
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from django_idempotency.contrib.rest_framework import IdempotencyMixin
from django_idempotency.http import idempotent
from tests.app.models import Effect
from tests.unit.http.conftest import Mount, SetPolicy

pytestmark = pytest.mark.django_db(transaction=True)

GUARD = "django_idempotency.http.middleware.IdempotencyMiddleware"
RAISES = {"plain": PermissionDenied, "drf": exceptions.PermissionDenied}


def guess(pin: str, *, raises: type[Exception] | None) -> int:
    """A PIN that locks after four wrong guesses; the status of the answer."""
    if Effect.objects.filter(name="wrong guess").count() >= 4:
        return 423
    if pin == "1234":
        return 200
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
    """Send five wrong guesses, and return the statuses of the answers."""

    def send(view: Any, key: str, *, kind: str = "") -> list[int]:
        settings.MIDDLEWARE = [GUARD] if kind == "middleware" else []
        url, client, statuses = mount(view), Client(), []
        for pin in range(5):
            fields, headers = {"pin": str(pin)}, {}
            if key == "header":
                headers = {"Idempotency-Key": "a-key"}
            if key == "form field":
                fields["idempotency_key"] = "a-key"
            statuses.append(client.post(url, fields, headers=headers).status_code)
        return statuses

    return send


@pytest.fixture
def anyone(policy: SetPolicy) -> SetPolicy:
    policy(HTTP={"SCOPE": "django_idempotency.http.scopes.anyone"})
    return policy


@pytest.mark.parametrize("kind", views(raises=False))
@pytest.mark.parametrize("key", ["header", "form field", "none"])
def test_R57_R90_returned_refusal_counts_whether_there_is_a_key_or_not(
    guesses: Any, anyone: SetPolicy, atomic_requests: bool, kind: str, key: str
) -> None:
    """Who sends a key must not guess for ever."""
    view = views(raises=False)[kind]

    assert guesses(view, key, kind=kind) == [403, 403, 403, 403, 423]


@pytest.mark.parametrize(
    ("kind", "fields", "counts"),
    [
        ("mixin", {}, False),
        ("mixin", {"TRANSACTION": "separate"}, True),
        ("decorator", {}, False),
        ("below @api_view", {}, False),
        ("middleware", {}, True),
        ("middleware", {"TRANSACTION": "joined"}, False),
    ],
)
@pytest.mark.parametrize("key", ["header", "none"])
def test_R90_raised_refusal_counts_or_not_whether_there_is_a_key_or_not(
    guesses: Any, anyone: SetPolicy, kind: str, fields: Any, counts: bool, key: str
) -> None:
    anyone(**fields)
    view = views(raises=True)[kind]

    statuses = guesses(view, key, kind=kind)

    assert statuses == ([403, 403, 403, 403, 423] if counts else [403] * 5)


@pytest.mark.parametrize("kind", ["mixin", "decorator", "middleware"])
@pytest.mark.parametrize("key", ["header", "none"])
def test_R90_atomic_requests_takes_a_raised_refusal_back_in_any_case(
    guesses: Any, anyone: SetPolicy, monkeypatch: pytest.MonkeyPatch, kind: str, key: str
) -> None:
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)

    assert guesses(views(raises=True)[kind], key, kind=kind) == [403] * 5


# What the middleware opens.


@pytest.mark.parametrize(
    ("atomic_requests", "chosen", "opened"),
    [(False, None, False), (False, "joined", True), (False, "single", True), (True, None, True)],
    indirect=["atomic_requests"],
)
@pytest.mark.parametrize("key", ["a-key", None])
def test_R90_middleware_opens_no_transaction_of_its_own(
    mount: Mount,
    anyone: SetPolicy,
    settings: Any,
    atomic_requests: bool,
    chosen: str | None,
    opened: bool,
    key: str | None,
) -> None:
    settings.MIDDLEWARE = [GUARD]
    anyone(TRANSACTION=chosen)
    seen: list[bool] = []

    def view(request: HttpRequest) -> HttpResponse:
        seen.append(connection.in_atomic_block)
        return HttpResponse()

    Client().post(mount(view), headers={"Idempotency-Key": key} if key else {})

    assert seen == [opened]


# Verdicts without a key.


def fail_teapots(response: HttpResponseBase, exception: BaseException | None) -> str:
    return "fail" if response.status_code == 418 else "keep"


@pytest.mark.parametrize(("status", "commits"), [(200, True), (400, True), (503, False)])
@pytest.mark.parametrize("key", ["a-key", None])
def test_R90_returned_5xx_rolls_back(
    mount: Mount, anyone: SetPolicy, status: int, commits: bool, key: str | None
) -> None:
    @idempotent
    def view(request: HttpRequest) -> HttpResponse:
        Effect.objects.create()
        return HttpResponse(status=status)

    response = Client().post(mount(view), headers={"Idempotency-Key": key} if key else {})

    assert response.status_code == status
    assert Effect.objects.exists() == commits


@pytest.mark.parametrize("key", ["a-key", None])
def test_R90_callable_that_says_fail_rolls_back(
    mount: Mount, anyone: SetPolicy, key: str | None
) -> None:
    @idempotent(keep=fail_teapots)
    def view(request: HttpRequest) -> HttpResponse:
        Effect.objects.create()
        return HttpResponse(status=418)

    response = Client().post(mount(view), headers={"Idempotency-Key": key} if key else {})

    assert response.status_code == 418
    assert not Effect.objects.exists()


@pytest.mark.parametrize("transaction", ["joined", "single", "separate"])
@pytest.mark.parametrize("then", ["returned 403", "returned 503", "raised"])
@pytest.mark.parametrize("key", ["a-key", None])
def test_R90_coroutine(
    mount: Mount, anyone: SetPolicy, transaction: str, then: str, key: str | None
) -> None:
    @idempotent(transaction=transaction)
    async def view(request: HttpRequest) -> HttpResponse:
        await Effect.objects.acreate()
        if then == "raised":
            raise PermissionDenied
        return HttpResponse(status=int(then.removeprefix("returned ")))

    url = mount(view)

    async def main() -> None:
        headers = {"Idempotency-Key": key} if key else {}
        await AsyncClient().post(url, headers=headers)
        await sync_to_async(connections.close_all)()

    asyncio.run(main())
    assert Effect.objects.exists() == (transaction == "separate" or then == "returned 403")


def test_R90_guard_within_leaves_a_request_without_a_key_to_the_one_around(
    mount: Mount, anyone: SetPolicy
) -> None:
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
