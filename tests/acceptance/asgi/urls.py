"""Views for servers, chosen by IDEMPOTENCY_TEST_URLCONF: each pays by two Effects of one name."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from django.http import HttpResponse, JsonResponse
from django.urls import include, path

from django_idempotency.http import idempotent
from tests.app.models import Effect
from tests.unit.forms.urls import ANYONE, digest, pieces

#: Requests whose view is at work now, in this process.
at_work: set[int] = set()


async def apay(request):
    body = json.loads(request.body)
    at_work.add(id(request))
    try:
        await Effect.objects.acreate(name=body["name"])
        (Path(body["directory"]) / f"{body['name']}.begun").touch()
        await asyncio.sleep(body["seconds"])
        await Effect.objects.acreate(name=body["name"])
        return HttpResponse(status=201)
    finally:
        at_work.discard(id(request))


async def working(request):
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
    *(path(f"async/{mode}/", guarded(apay, transaction=mode)) for mode in MODES),
    path("upload/", guarded(upload)),
    path("forms/", include("tests.unit.forms.urls")),
]
