"""R17: a handler that hands its request over to another one of its view is guarded once."""

from __future__ import annotations

from typing import Any

import pytest
from adrf.views import APIView as AsyncAPIView
from django.http import HttpResponse
from django.test import Client
from django.views import View
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

from django_idempotency.contrib.rest_framework import IdempotencyMixin
from django_idempotency.http import IdempotencyViewMixin
from django_idempotency.models import IdempotencyRecord
from tests.app.models import Effect
from tests.unit.http.api import replayed
from tests.unit.http.views import KEYED
from tests.unit.views.conftest import AsgiClient

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("anyone")]


def work(view: Any, request: Any) -> HttpResponse:
    return HttpResponse(str(Effect.objects.create().pk), status=201)


def hand_over(view: Any, request: Any) -> Any:
    return view.put(request)


def hand_over_djangos(view: Any, request: Any) -> Any:
    return view.put(request._request)


async def coroutine(view: Any, request: Any) -> HttpResponse:
    return HttpResponse(str((await Effect.objects.acreate()).pk), status=201)


async def hand_over_coroutine(view: Any, request: Any) -> Any:
    return await view.put(request)


def of(*bases: type, put: Any = work, post: Any = hand_over) -> Any:
    return type("Over", bases, {"authentication_classes": [], "put": put, "post": post}).as_view()


def of_actions() -> Any:
    actions = {"authentication_classes": [], "update": work, "create": hand_over}
    view: Any = type("Over", (IdempotencyMixin, ViewSet), actions)
    return view.as_view({"put": "update", "post": "create"})


KINDS = {
    "class": lambda: of(IdempotencyViewMixin, View),
    "drf": lambda: of(IdempotencyMixin, APIView),
    "drf, Django's request": lambda: of(IdempotencyMixin, APIView, post=hand_over_djangos),
    "actions": of_actions,
    "adrf": lambda: of(IdempotencyMixin, AsyncAPIView, put=coroutine, post=hand_over_coroutine),
}


@KEYED
@pytest.mark.parametrize("mode", ["joined", "single", "separate"], indirect=True)
@pytest.mark.parametrize("kind", KINDS)
def test_R17_handler_that_calls_another_one_of_its_view_runs_once(mount, mode, kind, key):
    url = mount(KINDS[kind]())
    client: Any = AsgiClient() if kind == "adrf" else Client()
    headers = {"Idempotency-Key": key} if key else {}

    first, again = (client.generic("POST", url, headers=headers) for _ in range(2))

    assert [first.status_code, again.status_code] == [201, 201]
    assert replayed(again) is (key is not None)
    assert (again.content == first.content) is (key is not None)
    assert Effect.objects.count() == (1 if key else 2)
    assert IdempotencyRecord.objects.count() == (1 if key else 0)
