"""Guarded views without DRF, and a store that notes when it is asked to complete."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connections
from django.http import HttpRequest, JsonResponse
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View

from django_idempotency.http import idempotent
from django_idempotency.records import Lease
from django_idempotency.stores.redis import RedisStore
from tests.app import urls as app_urls
from tests.app.models import Effect

ANYONE = "django_idempotency.http.scopes.anyone"


class Watched(RedisStore):
    """Notes what another session sees at the moment of each completion."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.seen: list[int] = []

    def complete(self, lease: Lease, result: bytes, *, retention: timedelta) -> datetime:
        other = connections["default"].copy()
        try:
            with other.cursor() as cursor:
                cursor.execute(f"SELECT count(*) FROM {Effect._meta.db_table}")
                self.seen.append(cursor.fetchone()[0])
        finally:
            other.close()
        return super().complete(lease, result, retention=retention)


def write(request: HttpRequest) -> JsonResponse:
    effect = Effect.objects.create(name=json.loads(request.body)["name"])
    return JsonResponse({"id": effect.pk}, status=201)


@idempotent(required=True, scope=ANYONE)
def function(request: HttpRequest) -> JsonResponse:
    return write(request)


@idempotent(required=True, scope=ANYONE)
async def async_function(request: HttpRequest) -> JsonResponse:
    return await sync_to_async(write)(request)


@method_decorator(idempotent(required=True, scope=ANYONE), name="dispatch")
class Class(View):
    def post(self, request: HttpRequest) -> JsonResponse:
        return write(request)


urlpatterns = [
    *app_urls.urlpatterns,
    path("function/", function),
    path("async-function/", async_function),
    path("class/", Class.as_view()),
]
