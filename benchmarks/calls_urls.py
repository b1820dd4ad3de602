"""The views whose calls `benchmarks.calls` counts."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, JsonResponse
from django.urls import URLPattern, path
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from benchmarks.calls import MODES
from django_idempotency.contrib.rest_framework import IdempotencyMixin
from django_idempotency.http import idempotent, scopes
from django_idempotency.options import Transaction


def plain(mode: Transaction) -> URLPattern:
    @idempotent(transaction=mode, scope=scopes.anyone)
    def view(request: HttpRequest) -> JsonResponse:
        return JsonResponse({"amount": 1}, status=201)

    return path(f"plain/{mode}/", view, name=f"plain-{mode}")


def drf(mode: Transaction) -> Any:
    class Charge(IdempotencyMixin, APIView):
        idempotency_transaction = mode
        idempotency_scope = staticmethod(scopes.anyone)

        def post(self, request: Request) -> Response:
            data: Any = request.data
            return Response({"amount": data["amount"]}, status=201)

    return path(f"drf/{mode}/", Charge.as_view(), name=f"drf-{mode}")


urlpatterns: list[Any] = [make(mode) for mode in MODES for make in (plain, drf)]
