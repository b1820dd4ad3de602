"""Guarded views that do what a test gives them to do, and say which transactions they are in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from django.db import connections, transaction
from django.urls import path
from django.utils.decorators import method_decorator
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from django_idempotency.contrib.rest_framework import IdempotencyMixin
from tests.app import urls
from tests.app.models import Effect
from tests.app.views import EffectView, Refusal


class ToldView(EffectView):
    """Writes an Effect, and does what the test says."""

    does: ClassVar[Callable[[], Any]] = staticmethod(lambda: None)

    def post(self, request: Request) -> Response:
        Effect.objects.create(name=request.data["name"])
        return Response({"done": type(self).does()}, status=201)


class AtomicView(IdempotencyMixin, APIView):
    """Tells on which aliases a transaction is open."""

    idempotency_scope = staticmethod(lambda request: "anybody")

    def get(self, request: Request) -> Response:
        if "refuse" in request.query_params:
            raise Refusal(409)
        opened = {alias: connections[alias].in_atomic_block for alias in connections}
        return Response(sorted(alias for alias, is_open in opened.items() if is_open))

    post = get


@method_decorator(transaction.non_atomic_requests, name="dispatch")
class NonAtomicView(AtomicView):
    pass


@method_decorator(transaction.non_atomic_requests(using="other"), name="dispatch")
class NonAtomicOtherView(AtomicView):
    pass


urlpatterns = [
    *urls.urlpatterns,
    path("told/", ToldView.as_view()),
    path("atomic/", AtomicView.as_view()),
    path("non-atomic/", NonAtomicView.as_view()),
    path("non-atomic-other/", NonAtomicOtherView.as_view()),
    path("non-atomic-url/", transaction.non_atomic_requests(AtomicView.as_view())),
]
