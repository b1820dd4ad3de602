"""Guarded views that do as they are told: each writes an Effect with the name that it is given."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from django.http import FileResponse, HttpRequest, HttpResponse, JsonResponse
from rest_framework import permissions, serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.throttling import BaseThrottle
from rest_framework.views import APIView

from django_idempotency.records import Record
from tests.app import views as app
from tests.app.contract import DIRECTORY_VARIABLE
from tests.app.models import Effect
from tests.unit.views.users import HeaderUsers

PATIENCE = 120.0


class Programs(HeaderUsers):
    """``X-User: alice`` is alice, and has no need of a CSRF token, which nobody can forge."""

    def __call__(self, request: HttpRequest) -> Any:
        request._dont_enforce_csrf_checks = True  # type: ignore[attr-defined]
        return super().__call__(request)


def count(request: HttpRequest) -> HttpResponse:
    return JsonResponse({"count": Effect.objects.filter(name=request.GET["name"]).count()})


class Permitted(permissions.IsAuthenticated):
    def has_permission(self, request: Request, view: APIView) -> bool:
        return super().has_permission(request, view) and "X-Forbidden" not in request.headers


class OnDemand(BaseThrottle):
    def allow_request(self, request: Request, view: APIView) -> bool:
        return "X-Throttled" not in request.headers


class Told(serializers.Serializer[Any]):
    """What a view is told: a name, and what to do then; some of that wants to know more."""

    name = serializers.CharField(max_length=100)
    then = serializers.CharField(default="created")


class Work(app.EffectView):
    """``{"name": …, "then": …}``: write the row, then answer as told."""

    permission_classes = [Permitted]
    throttle_classes = [OnDemand]

    def post(self, request: Request, **kwargs: Any) -> Any:
        told = Told(data=request.data)
        told.is_valid(raise_exception=True)
        effect = Effect.objects.create(name=told.validated_data["name"])
        return THEN[told.validated_data["then"]](request, effect)

    put = patch = delete = post


class Optional(Work):
    """A key is welcome and not required; anybody may come."""

    permission_classes = [permissions.AllowAny]
    idempotency_required = False


class Versioned(Work):
    """A PUT fits the version that its sender has seen, which is how many effects there are."""

    def put(self, request: Request, **kwargs: Any) -> Any:
        data: Any = request.data
        name = data["name"]
        version = Effect.objects.filter(name=name).count()
        if request.headers["If-Match"] != f'"{version}"':
            return Response(status=412)
        Effect.objects.create(name=name)
        return Response({"version": version + 1}, headers={"ETag": f'"{version + 1}"'})


class Named(Work):
    """Its effect has the name in the path; the body may be anything."""

    def post(self, request: Request, **kwargs: Any) -> Any:
        effect = Effect.objects.create(name=kwargs["name"])
        return Response({"id": effect.pk}, status=201)


def form(request: HttpRequest) -> HttpResponse:
    effect = Effect.objects.create(name=request.POST["name"])
    uploads: list[Any] = list(request.FILES.values())
    size = sum(upload.size for upload in uploads)
    return JsonResponse({"id": effect.pk, "size": size}, status=201)


def raw(request: HttpRequest) -> HttpResponse:
    size = 0
    while chunk := request.read(64 * 1024):
        size += len(chunk)
    effect = Effect.objects.create(name=request.GET["name"])
    return JsonResponse({"id": effect.pk, "size": size}, status=201)


def plain(request: HttpRequest) -> HttpResponse:
    effect = Effect.objects.create(name=request.GET["name"])
    return JsonResponse({"id": effect.pk}, status=201)


async def coroutine(request: HttpRequest) -> HttpResponse:
    """See `Work`, of what a coroutine is good for: it may be held."""
    try:
        told = Told(data=json.loads(request.body))
    except ValueError:
        return HttpResponse(status=400)
    if not told.is_valid():
        return JsonResponse(told.errors, status=400)
    effect = await Effect.objects.acreate(name=told.validated_data["name"])
    while told.validated_data["then"] == "held" and not _may_go_on(effect.name):
        await asyncio.sleep(0.005)
    return JsonResponse({"id": effect.pk, "name": effect.name}, status=201)


def is_allowed(request: Request, record: Record) -> bool:
    return "X-Allowed" in request.headers


def as_text(request: Request, problem: dict[str, Any]) -> HttpResponse:
    return HttpResponse(problem["code"], status=problem["status"], content_type="text/plain")


# What the work does behind its effect.


def _may_go_on(name: str) -> bool:
    return (Path(os.environ[DIRECTORY_VARIABLE]) / f"{name}.go").exists()


def _wait(name: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not _may_go_on(name):
        if time.monotonic() > deadline:
            raise TimeoutError("nobody lets it go on")
        time.sleep(0.005)


def _is_first_run(name: str) -> bool:
    try:
        (Path(os.environ[DIRECTORY_VARIABLE]) / f"{name}.run").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def held(request: Request, effect: Effect) -> HttpResponse:
    _wait(effect.name)
    return app.created(request, effect)


def first_held(request: Request, effect: Effect) -> HttpResponse:
    if _is_first_run(effect.name):
        _wait(effect.name)
    return app.created(request, effect)


def first_failing(request: Request, effect: Effect) -> HttpResponse:
    if _is_first_run(effect.name):
        _wait(effect.name)
        raise RuntimeError("boom")
    return app.created(request, effect)


def compressed(request: Request, effect: Effect) -> HttpResponse:
    body = gzip.compress(effect.name.encode() * 99)
    return HttpResponse(body, content_type="text/plain", headers={"Content-Encoding": "gzip"})


def invalid_utf8(request: Request, effect: Effect) -> HttpResponse:
    return HttpResponse(b"\xff\xfe\xfa", content_type="text/plain; charset=utf-8")


def file(request: Request, effect: Effect) -> FileResponse:
    return FileResponse(Path(__file__).open("rb"), as_attachment=True, filename="views.py")


def file_in_memory(request: Request, effect: Effect) -> FileResponse:
    return FileResponse(io.BytesIO(b"%PDF"), content_type="application/pdf")


def redirect(request: Request, effect: Effect) -> HttpResponse:
    return HttpResponse(status=303, headers={"Location": f"/effects/{effect.pk}/"})


def value(request: Request, effect: Effect) -> HttpResponse:
    data: Any = request.data
    return Response(data["value"])


def mutated(request: Request, effect: Effect) -> HttpResponse:
    data: Any = request.data
    data.clear()
    data["name"] = "another"
    return Response({"id": effect.pk}, status=201)


def hook_of_a_failure(request: Request, effect: Effect) -> HttpResponse:
    app.hook(request, effect)
    raise RuntimeError("boom")


#: What a view is told, by its name: all functions here and there over a request and its effect.
THEN: dict[str, Callable[[Request, Effect], Any]] = {
    **app.THEN,
    **{name: it for name, it in [*globals().items()] if app.is_told(it)},
}
