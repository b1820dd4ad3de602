"""The same work behind every kind of view, each with a URL of its own."""

from __future__ import annotations

import json
from typing import Any, cast

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.urls import URLPattern, path
from django.utils.decorators import method_decorator
from django.views import View
from rest_framework.decorators import api_view
from rest_framework.request import Request
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

from django_idempotency.contrib.rest_framework import IdempotencyMixin
from django_idempotency.http import idempotent
from tests.unit.views.work import aact, act

METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]


def data_of(request: HttpRequest) -> Any:
    return json.loads(request.body or b"{}")


def free_function(request: HttpRequest, **kwargs: Any) -> HttpResponseBase:
    if request.method not in METHODS:
        return HttpResponse()
    return HttpResponse("read") if request.method in ("GET", "HEAD") else act(data_of(request))


async def free_async_function(request: HttpRequest, **kwargs: Any) -> HttpResponseBase:
    if request.method not in METHODS:
        return HttpResponse()
    return (
        HttpResponse("read") if request.method in ("GET", "HEAD") else await aact(data_of(request))
    )


class FreeClass(View):
    def get(self, request: HttpRequest, **kwargs: Any) -> HttpResponseBase:
        return HttpResponse("read")

    def post(self, request: HttpRequest, **kwargs: Any) -> HttpResponseBase:
        return act(data_of(request))

    put = patch = delete = post


class FreeAsyncClass(View):
    async def get(self, request: HttpRequest, **kwargs: Any) -> HttpResponseBase:
        return HttpResponse("read")

    async def post(self, request: HttpRequest, **kwargs: Any) -> HttpResponseBase:
        return await aact(data_of(request))

    async def options(  # type: ignore[override]
        self, request: HttpRequest, *args: Any, **kwargs: Any
    ) -> HttpResponseBase:
        return HttpResponse()

    put = patch = delete = post


@idempotent
def function(request: HttpRequest, **kwargs: Any) -> HttpResponseBase:
    return free_function(request)


@idempotent
async def async_function(request: HttpRequest, **kwargs: Any) -> HttpResponseBase:
    return await free_async_function(request)


@method_decorator(idempotent, name="dispatch")
class Class(FreeClass):
    pass


@method_decorator(idempotent, name="dispatch")
class AsyncClass(FreeAsyncClass):
    pass


@method_decorator(idempotent, name="post")
class ClassPost(FreeClass):
    pass


@method_decorator(idempotent, name="post")
class AsyncClassPost(FreeAsyncClass):
    pass


def _of_api_view(request: Any) -> Any:
    return HttpResponse("read") if request.method in ("GET", "HEAD") else act(request.data)


@idempotent
@api_view(METHODS)
def above_api_view(request: Request, /, **kwargs: Any) -> Any:
    return _of_api_view(request)


@api_view(METHODS)
@idempotent
def below_api_view(request: Request, /, **kwargs: Any) -> Any:
    return _of_api_view(request)


@api_view(METHODS)
def free_api_view(request: Request, /, **kwargs: Any) -> Any:
    return _of_api_view(request)


class FreeDRF(APIView):
    def get(self, request: Request, **kwargs: Any) -> Any:
        return HttpResponse("read")

    def post(self, request: Request, **kwargs: Any) -> Any:
        return act(cast("dict[str, Any]", request.data))

    put = patch = delete = post


class DRF(IdempotencyMixin, FreeDRF):
    pass


class Set(IdempotencyMixin, ViewSet):
    def list(self, request: Request, **kwargs: Any) -> Any:
        return HttpResponse("read")

    def create(self, request: Request, **kwargs: Any) -> Any:
        return act(cast("dict[str, Any]", request.data))

    update = partial_update = destroy = create


actions = {
    "get": "list",
    "post": "create",
    "put": "update",
    "patch": "partial_update",
    "delete": "destroy",
}

#: Views that guard themselves.
GUARDED: dict[str, Any] = {
    "function": function,
    "async-function": async_function,
    "class": Class.as_view(),
    "async-class": AsyncClass.as_view(),
    "above-api-view": above_api_view,
    "below-api-view": below_api_view,
    "drf": DRF.as_view(),
    "viewset": Set.as_view(actions),
}
#: Plain views that the middleware guards.
FREE: dict[str, Any] = {
    "free-function": free_function,
    "free-async-function": free_async_function,
    "free-class": FreeClass.as_view(),
    "free-async-class": FreeAsyncClass.as_view(),
}
#: Views that only some of the tests are about.
SPECIAL: dict[str, Any] = {
    "class-post": ClassPost.as_view(),
    "async-class-post": AsyncClassPost.as_view(),
    "free-drf": FreeDRF.as_view(),
    "free-api-view": free_api_view,
}
ASYNC = frozenset(name for name in (*GUARDED, *FREE) if "async" in name)
DRF_KINDS = frozenset({"above-api-view", "below-api-view", "drf", "viewset"})

urlpatterns: list[URLPattern] = [
    path(f"{name}/{pattern}", view, name=f"{name}{number}")
    for name, view in {**GUARDED, **FREE, **SPECIAL}.items()
    for number, pattern in enumerate(("", "<int:pk>/", "other/"))
]
