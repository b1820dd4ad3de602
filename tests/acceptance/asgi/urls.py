"""Views for servers, chosen by IDEMPOTENCY_TEST_URLCONF: each pays by two Effects of one name."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

from asgiref.sync import sync_to_async
from django.http import HttpResponse, JsonResponse
from django.urls import include, path

from django_idempotency.http import idempotent
from tests.app.models import Effect
from tests.unit.forms.urls import ANYONE, digest, pieces

#: Requests whose view is at work now, in this process.
at_work: set[int] = set()


def _begin(body):
    Effect.objects.create(name=body["name"])
    (Path(body["directory"]) / f"{body['name']}.begun").touch()


def pay(request):
    body = json.loads(request.body)
    _begin(body)
    while not Path(body["wait_for"]).exists():
        time.sleep(0.005)
    Effect.objects.create(name=body["name"])
    return HttpResponse(status=201)


async def apay(request):
    body = json.loads(request.body)
    at_work.add(id(request))
    try:
        await sync_to_async(_begin)(body)
        await asyncio.sleep(body["seconds"])
        await Effect.objects.acreate(name=body["name"])
        return HttpResponse(status=201)
    finally:
        at_work.discard(id(request))


async def working(request):
    """Say how many requests are at work."""
    return JsonResponse({"at work": len(at_work)})


def upload(request):
    """Read what comes in pieces, as a view does that must not hold it in memory."""
    said = digest(pieces(request))
    Effect.objects.create(name="upload")
    return JsonResponse(said, status=201)


def guarded(view, **policy):
    return idempotent(required=True, scope=ANYONE, **policy)(view)


MODES = ("joined", "single", "separate")
urlpatterns = [
    path("", working),
    *(path(f"sync/{mode}/", guarded(pay, transaction=mode)) for mode in MODES),
    *(path(f"async/{mode}/", guarded(apay, transaction=mode)) for mode in MODES),
    path("upload/", guarded(upload)),
    path("forms/", include("tests.unit.forms.urls")),
]
