"""Views that one module of the HTTP rules alone would not explain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connections
from rest_framework import permissions
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from django_idempotency.contrib.rest_framework import IdempotencyMixin
from tests.app.models import Effect
from tests.app.views import HeaderAuthentication

ANYONE = "django_idempotency.http.scopes.anyone"
MISMATCH = (422, "idempotency_key_reused")
UNAVAILABLE = (503, "store_unavailable")
KEYED = pytest.mark.parametrize("key", ["key-1", None], ids=["key", "no key"])
#: How work commits: each way, and Django's own transaction around a record that is beside it.
WAYS = pytest.mark.parametrize(
    ("mode", "atomic_requests"),
    [("single", False), ("joined", False), ("separate", False), ("separate", True)],
    indirect=True,
)
#: The ways in which claim or completion is part of the work's own transaction.
OPEN = pytest.mark.parametrize("mode", ["single", "joined"], indirect=True)
BESIDE = pytest.mark.parametrize("mode", ["joined", "separate"], indirect=True)


class Permitted(permissions.BasePermission):
    """Lets nobody through once a test has withdrawn the permission."""

    withdrawn = False

    def has_permission(self, request: Request, view: Any) -> bool:
        return not self.withdrawn


class GuardedView(IdempotencyMixin, APIView):
    """What the views below and those of single tests are made of."""

    authentication_classes = [HeaderAuthentication]
    permission_classes = [permissions.IsAuthenticated]
    idempotency_required = True


class BareView(GuardedView):
    """Each unsafe method writes an Effect, reads nothing of the request and answers 201."""

    def work(self, request: Request, **kwargs: Any) -> Response:
        effect = Effect.objects.create(name="bare")
        return Response({"id": effect.pk}, status=201)

    post = put = patch = delete = work


def answering(answer: Callable[[Request], Any], **attributes: Any) -> type[GuardedView]:
    """Return a view that writes an Effect and answers a POST with ``answer(request)``."""

    def post(self: GuardedView, request: Request) -> Any:
        Effect.objects.create(name="answer")
        return answer(request)

    return type("Answering", (GuardedView,), {"post": post, **attributes})


def state_seen_by_others() -> str | None:
    """Return the state of the one record as another session sees it; None if there is none."""
    connection = connections["default"].copy()
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT state FROM idempotency_record")
            rows = cursor.fetchall()
    finally:
        connection.close()
    return rows[0][0] if rows else None
