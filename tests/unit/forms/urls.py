"""Plain guarded views: a shop's order form, and receivers of every kind of body."""

from __future__ import annotations

import hashlib

from django.contrib.auth import login
from django.contrib.auth.models import User
from django.http import HttpResponse, HttpResponseRedirect, JsonResponse
from django.http.multipartparser import MultiPartParser
from django.template import engines
from django.urls import path

from django_idempotency.http import idempotent
from tests.app.models import Effect
from tests.unit.views.work import gates

ANYONE = "django_idempotency.http.scopes.anyone"
PAGE = """{% load idempotency %}<!doctype html>
<title>Order</title>
<form method="post">{% csrf_token %}{% idempotency_key %}<input name="item"></form>"""


def order(request):
    """Show the form; take an order, and answer with its page or a redirect to it."""
    if request.method != "POST":
        return HttpResponse(engines["django"].from_string(PAGE).render({}, request))
    effect = Effect.objects.create(name=request.POST["item"])
    if effect.name == "slow" and "gate" in gates:
        gates["gate"].passed()
    if request.POST.get("then") == "redirect":
        return HttpResponseRedirect(f"/receipts/{effect.pk}/")
    return HttpResponse(f"<p>Order {effect.pk}</p>", status=200)


def join(request):
    """See `order`; the visitor gets an account with it, and is logged in."""
    response = order(request)
    if request.method == "POST":
        request.session["basket"] = []
        login(request, User.objects.create(username=f"user-{User.objects.count()}"))
    return response


def digest(chunks):
    """Return SHA-256 and size of what comes in pieces."""
    sha256, size = hashlib.sha256(), 0
    for chunk in chunks:
        sha256.update(chunk)
        size += len(chunk)
    return {"sha256": sha256.hexdigest(), "size": size}


def pieces(request):
    return iter(lambda: request.read(64 * 1024), b"")


def receive(request):
    """Say what has arrived, read as a view reads it: parsed, whole, or in pieces."""
    kind = request.content_type
    if kind == "multipart/form-data":
        fields, files = request.POST, request.FILES
        if request.method != "POST":
            fields, files = MultiPartParser(request.META, request, request.upload_handlers).parse()
        uploads = {
            name: [digest(upload.chunks())["sha256"] for upload in uploads]
            for name, uploads in files.lists()
        }
        said = {"fields": dict(fields.lists()), "files": uploads}
        for upload in files.values():
            upload.close()
    else:
        said = digest(pieces(request))
    Effect.objects.create(name="received")
    return JsonResponse(said, status=201)


async def areceive(request):
    """See `receive`, of raw uploads."""
    said = digest(pieces(request))
    await Effect.objects.acreate(name="received")
    return JsonResponse(said, status=201)


guarded = idempotent(required=True, scope=ANYONE)
urlpatterns = [
    path("order/", idempotent(order)),
    path("join/", idempotent(join)),
    path("receive/", guarded(receive)),
    path("async/", guarded(areceive)),
]
