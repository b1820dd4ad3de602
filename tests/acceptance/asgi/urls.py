"""Views for uvicorn, chosen by IDEMPOTENCY_TEST_URLCONF: each writes two Effects of one name."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from pathlib import Path
from typing import Any

from asgiref.sync import sync_to_async
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path

from django_idempotency.http import idempotent
from tests.app.models import Effect

ANYONE = "django_idempotency.http.scopes.anyone"

#: Requests whose view is at work now, in this process.
at_work: set[int] = set()


def _begun(body: dict[str, Any]) -> None:
    if directory := body.get("directory"):
        (Path(directory) / f"{body['name']}.begun").touch()


def _pay(request: HttpRequest) -> HttpResponse:
    body = json.loads(request.body)
    Effect.objects.create(name=body["name"])
    _begun(body)
    if body.get("wait_for"):
        while not Path(body["wait_for"]).exists():
            time.sleep(0.005)
    effect = Effect.objects.create(name=body["name"])
    return JsonResponse({"id": effect.pk}, status=body.get("status", 201))


async def _apay(request: HttpRequest) -> HttpResponse:
    body = json.loads(request.body)
    at_work.add(id(request))
    try:
        await Effect.objects.acreate(name=body["name"])
        await sync_to_async(_begun)(body)
        await asyncio.sleep(body.get("seconds", 0))
        if body.get("wait_for"):
            while not Path(body["wait_for"]).exists():
                await asyncio.sleep(0.005)
        effect = await Effect.objects.acreate(name=body["name"])
        return JsonResponse({"id": effect.pk}, status=body.get("status", 201))
    finally:
        at_work.discard(id(request))


async def working(request: HttpRequest) -> HttpResponse:
    """How many requests are at work."""
    return JsonResponse({"at work": len(at_work)})


def upload(request: HttpRequest) -> HttpResponse:
    """Read what comes in pieces, as a view does that must not hold it in memory."""
    digest, size = hashlib.sha256(), 0
    while chunk := request.read(64 * 1024):
        digest.update(chunk)
        size += len(chunk)
    Effect.objects.create(name="upload")
    return JsonResponse({"sha256": digest.hexdigest(), "size": size}, status=201)


def _guarded(view: Any, **policy: Any) -> Any:
    return idempotent(required=True, scope=ANYONE, **policy)(view)


urlpatterns = [
    path("", working),
    path("sync/", _guarded(_pay)),
    path("async/", _guarded(_apay)),
    path("sync/joined/", _guarded(_pay, transaction="joined")),
    path("sync/separate/", _guarded(_pay, transaction="separate")),
    path("async/joined/", _guarded(_apay, transaction="joined")),
    path("async/single/", _guarded(_apay, transaction="single")),
    path("async/separate/", _guarded(_apay, transaction="separate")),
    path("upload/", _guarded(upload)),
]
