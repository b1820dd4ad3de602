"""The same work behind every kind of view, each with a URL of its own."""
# mypy: ignore-errors

from __future__ import annotations

import json
from typing import Any

from django.http import HttpResponse
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View
from rest_framework.decorators import api_view
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

from django_idempotency.contrib.rest_framework import IdempotencyMixin
from django_idempotency.http import idempotent
from tests.unit.views.work import aact, act

SAFE = ["GET", "HEAD"]
METHODS = [*SAFE, "POST", "PUT", "PATCH", "DELETE"]


def data_of(request):
    return json.loads(request.body or b"{}")


def read(request):
    """Return an answer if nothing is to be done."""
    if request.method not in METHODS:
        return HttpResponse()
    return HttpResponse("read") if request.method in SAFE else None


def free_function(request, **kwargs):
    return read(request) or act(data_of(request))


async def free_async_function(request, **kwargs):
    return read(request) or await aact(data_of(request))


class FreeClass(View):
    def get(self, request, **kwargs):
        return HttpResponse("read")

    def post(self, request, **kwargs):
        return act(data_of(request))

    put = patch = delete = post


class FreeAsyncClass(View):
    async def get(self, request, **kwargs):
        return HttpResponse("read")

    async def post(self, request, **kwargs):
        return await aact(data_of(request))

    options = get
    put = patch = delete = post


@idempotent
def function(request, **kwargs):
    return free_function(request)


@idempotent
async def async_function(request, **kwargs):
    return await free_async_function(request)


def decorated(name, view):
    return method_decorator(idempotent, name=name)(type("Decorated", (view,), {})).as_view()


def of_api_view(request):
    return read(request) or act(request.data)


@idempotent
@api_view(METHODS)
def above_api_view(request, /, **kwargs):
    return of_api_view(request)


@api_view(METHODS)
@idempotent
def below_api_view(request, /, **kwargs):
    return of_api_view(request)


class FreeDRF(APIView):
    def get(self, request, **kwargs):
        return HttpResponse("read")

    def post(self, request, **kwargs):
        return act(request.data)

    put = patch = delete = post


class DRF(IdempotencyMixin, FreeDRF):
    pass


class Set(IdempotencyMixin, ViewSet):
    list = FreeDRF.get
    create = update = partial_update = destroy = FreeDRF.post


actions = {"get": "list", "post": "create", "put": "update", "patch": "partial_update"}

#: Views that guard themselves.
GUARDED: dict[str, Any] = {
    "function": function,
    "async-function": async_function,
    "class": decorated("dispatch", FreeClass),
    "async-class": decorated("dispatch", FreeAsyncClass),
    "above-api-view": above_api_view,
    "below-api-view": below_api_view,
    "drf": DRF.as_view(),
    "viewset": Set.as_view({**actions, "delete": "destroy"}),
}
#: Plain views that the middleware guards.
FREE: dict[str, Any] = {
    "free-function": free_function,
    "free-async-function": free_async_function,
    "free-class": FreeClass.as_view(),
    "free-async-class": FreeAsyncClass.as_view(),
}
ASYNC = frozenset(name for name in (*GUARDED, *FREE) if "async" in name)
urlpatterns = [path(f"{name}/", view, name=name) for name, view in (GUARDED | FREE).items()]
