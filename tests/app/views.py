"""Guarded views of the tests: each writes an Effect, then does what the request's body says."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from inspect import isfunction, signature
from pathlib import Path
from typing import Any

from django.contrib.auth.models import AnonymousUser, User
from django.db import Error, transaction
from django.http import HttpResponse, StreamingHttpResponse
from rest_framework import mixins, permissions, serializers, viewsets
from rest_framework.authentication import BaseAuthentication
from rest_framework.decorators import action
from rest_framework.exceptions import APIException
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from django_idempotency.contrib.rest_framework import IdempotencyMixin
from tests.app.models import Child, Effect, Unique


class HeaderAuthentication(BaseAuthentication):
    """``X-User: alice`` is alice; no such header is anonymous."""

    def authenticate(self, request: Request) -> tuple[User | AnonymousUser, None] | None:
        name = request.headers.get("X-User")
        if not name:
            return None
        return User.objects.get_or_create(username=name)[0], None

    def authenticate_header(self, request: Request) -> str:
        return "Header"


class Refusal(APIException):
    """A domain error: raised, with a status of the test's choice."""

    def __init__(self, status: int) -> None:
        super().__init__({"detail": "refused"})
        self.status_code = status


def created(request: Request, effect: Effect) -> HttpResponse:
    response = Response({"id": effect.pk, "name": effect.name}, status=201)
    response["Location"] = f"/effects/{effect.pk}/"
    response["ETag"] = f'"{effect.pk}"'
    response["X-Request-Id"] = f"request-{effect.pk}"
    response["X-Custom"] = f"custom-{effect.pk}"
    response.set_cookie("seen", str(effect.pk))
    return response


def returned(request: Request, effect: Effect) -> HttpResponse:
    return Response({"detail": "returned"}, status=request.data["status"])


def raised(request: Request, effect: Effect) -> HttpResponse:
    raise Refusal(request.data["status"])


def invalid(request: Request, effect: Effect) -> HttpResponse:
    raise serializers.ValidationError({"amount": ["Not enough."]})


def boom(request: Request, effect: Effect) -> HttpResponse:
    raise RuntimeError("boom")


def broken(request: Request, effect: Effect) -> HttpResponse:
    """Break the transaction, swallow the error, and raise a domain error."""
    Unique.objects.get_or_create(name="taken")
    with suppress(Error):
        Unique.objects.create(name="taken")
    raise Refusal(409)


def deferred(request: Request, effect: Effect) -> HttpResponse:
    Child.objects.create(parent_id=10**9)
    return created(request, effect)


def hook(request: Request, effect: Effect) -> HttpResponse:
    transaction.on_commit(lambda: Effect.objects.create(name=f"hook of {effect.name}") and None)
    return created(request, effect)


def hook_boom(request: Request, effect: Effect) -> HttpResponse:
    def fail() -> None:
        raise RuntimeError("boom in a hook")

    transaction.on_commit(fail)
    return created(request, effect)


def rolled_back(request: Request, effect: Effect) -> HttpResponse:
    transaction.set_rollback(True)
    return Response({"detail": "rolled back"}, status=409)


def binary(request: Request, effect: Effect) -> HttpResponse:
    return HttpResponse(bytes(range(256)), content_type="application/pdf")


def empty(request: Request, effect: Effect) -> HttpResponse:
    return Response(status=204)


def accepted(request: Request, effect: Effect) -> HttpResponse:
    return Response({"id": effect.pk}, status=202, headers={"Retry-After": "7"})


def stream(request: Request, effect: Effect) -> StreamingHttpResponse:
    return StreamingHttpResponse([b"a", b"b"])


def large(request: Request, effect: Effect) -> HttpResponse:
    return HttpResponse(os.urandom(2 * 1024 * 1024))


def paused(request: Request, effect: Effect) -> HttpResponse:
    """Say in a file that the work is under way and by whom, and go on when told by another."""
    directory = Path(request.data["directory"])
    (directory / f"{effect.name}.{os.getpid()}.working").touch()
    while not (directory / f"{effect.name}.go").exists():
        time.sleep(0.005)
    return created(request, effect)


def told(request: Request, effect: Effect) -> HttpResponse:
    """Say in a file that this attempt is under way, and then do what a file for it alone says."""
    attempt = f"{effect.name}.{os.getpid()}.{uuid.uuid4().hex[:8]}"
    directory = Path(request.data["directory"])
    (directory / f"{attempt}.working").touch()
    while not (directory / f"{attempt}.then").exists():
        time.sleep(0.005)
    return THEN[(directory / f"{attempt}.then").read_text()](request, effect)


def is_told(it: object) -> bool:
    return isfunction(it) and list(signature(it).parameters) == ["request", "effect"]


#: What a view is told, by its name: all functions above over a request and its effect.
THEN: dict[str, Callable[[Request, Effect], Any]] = {
    name: it for name, it in [*globals().items()] if is_told(it)
}


class EffectView(IdempotencyMixin, APIView):
    """``{"name": …, "then": …}``: write the row, then answer as told."""

    authentication_classes = [HeaderAuthentication]
    permission_classes = [permissions.IsAuthenticated]
    idempotency_required = True

    def get(self, request: Request) -> Response:
        return Response({"effects": Effect.objects.count()})

    def post(self, request: Request) -> Any:
        effect = Effect.objects.create(name=request.data["name"])
        return THEN[request.data.get("then", "created")](request, effect)

    def put(self, request: Request) -> Any:
        return self.post(request)


class OptionalView(EffectView):
    """A key is welcome and not required; anybody may come."""

    permission_classes = [permissions.AllowAny]
    idempotency_required = False


class EffectSerializer(serializers.ModelSerializer[Effect]):
    class Meta:
        model = Effect
        fields = ["id", "name"]


class EffectViewSet(IdempotencyMixin, mixins.CreateModelMixin, viewsets.GenericViewSet[Effect]):
    """Only create and rename are guarded."""

    authentication_classes = [HeaderAuthentication]
    permission_classes = [permissions.IsAuthenticated]
    queryset = Effect.objects.all()
    serializer_class = EffectSerializer
    idempotency_actions = {"create", "rename"}

    @action(detail=True, methods=["post"], idempotency_lease=300, idempotency_required=True)
    def rename(self, request: Request, pk: str) -> Response:
        effect = self.get_object()
        Effect.objects.create(name=f"rename of {effect.name}")
        return Response(EffectSerializer(effect).data)

    @action(detail=True, methods=["post"])
    def unguarded(self, request: Request, pk: str) -> Response:
        Effect.objects.create(name="unguarded")
        return Response({})
