"""Plain guarded views: a shop's order form, and receivers of every kind of body."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

from django.contrib.auth import login
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.http.multipartparser import MultiPartParser
from django.template import engines
from django.urls import path

from django_idempotency.http import idempotent
from tests.app.models import Effect
from tests.unit.views.work import gates

ANYONE = "django_idempotency.http.scopes.anyone"
SESSION = "django_idempotency.http.scopes.session"
PAGE = """{% load idempotency %}<!doctype html>
<title>Order</title>
<form method="post">{% csrf_token %}{% idempotency_key %}<input name="item"></form>"""


def order(request: HttpRequest) -> HttpResponse:
    """Show the form; take an order, and answer with its page or a redirect to it."""
    if request.method != "POST":
        return HttpResponse(engines["django"].from_string(PAGE).render({}, request))
    effect = Effect.objects.create(name=request.POST["item"])
    if effect.name == "slow" and "gate" in gates:
        gates["gate"].passed()
    if request.POST.get("then") == "redirect":
        return HttpResponseRedirect(f"/receipts/{effect.pk}/")
    return HttpResponse(f"<p>Order {effect.pk}</p>", status=200)


def join(request: HttpRequest) -> HttpResponse:
    """See `order`; the visitor gets an account with it, and is logged in."""
    response = order(request)
    if request.method == "POST":
        request.session["basket"] = []
        login(request, User.objects.create(username=f"user-{User.objects.count()}"))
    return response


def _digest(chunks: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()


def receive(request: HttpRequest) -> HttpResponse:
    """Say what has arrived, read as a view reads it: parsed, whole, or in pieces."""
    said: dict[str, Any] = {}
    kind = request.content_type
    if kind == "multipart/form-data":
        fields, files = request.POST, request.FILES
        if request.method != "POST":
            stream: Any = request
            parser = MultiPartParser(request.META, stream, request.upload_handlers)
            fields, files = parser.parse()
        said["fields"] = dict(fields.lists())
        said["files"] = {
            name: [_digest(upload.chunks()) for upload in uploads]
            for name, uploads in files.lists()
        }
        for upload in files.values():
            upload.close()
    elif kind == "application/json" and request.headers.get("X-Read") != "pieces":
        said["json"] = json.loads(request.body or b"null")
    else:
        digest, size = hashlib.sha256(), 0
        while chunk := request.read(64 * 1024):
            digest.update(chunk)
            size += len(chunk)
        said = {"sha256": digest.hexdigest(), "size": size}
    Effect.objects.create(name="received")
    return JsonResponse(said, status=201)


async def areceive(request: HttpRequest) -> HttpResponse:
    """See `receive`, of raw uploads."""
    digest, size = hashlib.sha256(), 0
    while chunk := request.read(64 * 1024):
        digest.update(chunk)
        size += len(chunk)
    await Effect.objects.acreate(name="received")
    return JsonResponse({"sha256": digest.hexdigest(), "size": size}, status=201)


order_view = idempotent(order)
receive_view = idempotent(required=True, scope=ANYONE)(receive)

urlpatterns = [
    path("", order_view),
    path("order/", order_view),
    path("join/", idempotent(join)),
    path("join/session/", idempotent(scope=SESSION)(join)),
    path("receive/", receive_view),
    path("async/", idempotent(required=True, scope=ANYONE)(areceive)),
]
