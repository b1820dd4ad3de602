"""Views of adrf of every kind: each writes an Effect, and answers as its body says."""
# mypy: ignore-errors

from __future__ import annotations

from adrf.decorators import api_view
from adrf.views import APIView
from adrf.viewsets import ModelViewSet, ViewSet
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.urls import path
from rest_framework import permissions, serializers, throttling
from rest_framework.authentication import BaseAuthentication
from rest_framework.decorators import action, authentication_classes, permission_classes
from rest_framework.exceptions import APIException
from rest_framework.response import Response

from django_idempotency.contrib.rest_framework import IdempotencyMixin
from django_idempotency.http import idempotent
from tests.app.models import Effect


class Users(BaseAuthentication):
    """``X-User: alice`` is alice."""

    async def authenticate(self, request):
        name = request.headers.get("X-User")
        return ((await User.objects.aget_or_create(username=name))[0], None) if name else None

    def authenticate_header(self, request):
        return "Header"


class MayPay(permissions.BasePermission):
    async def has_permission(self, request, view):
        return "X-Forbidden" not in request.headers


class Throttle(throttling.BaseThrottle):
    async def allow_request(self, request, view):
        return True


class Refusal(APIException):
    def __init__(self, status):
        super().__init__({"detail": "refused"})
        self.status_code = status


def act(data):
    effect = Effect.objects.create(name=data["name"])
    match data.get("then", "created"):
        case "raised":
            raise Refusal(data["status"])
        case "boom":
            raise RuntimeError("boom")
    headers = {"Location": f"/effects/{effect.pk}/"}
    return Response({"id": effect.pk}, status=data.get("status", 201), headers=headers)


class Guarded(IdempotencyMixin):
    authentication_classes = [Users]
    permission_classes = [permissions.IsAuthenticated, MayPay]
    throttle_classes = [Throttle]
    idempotency_required = True


class View(Guarded, APIView):
    def post(self, request):
        return act(request.data)


class AsyncView(Guarded, APIView):
    async def get(self, request):
        return Response({"count": await Effect.objects.acount()})

    async def post(self, request):
        return await sync_to_async(act)(request.data)


class AsyncSet(Guarded, ViewSet):
    async def acreate(self, request):
        return await sync_to_async(act)(request.data)

    @action(detail=False, methods=["post"], idempotency_transaction="joined")
    async def ajoined(self, request):
        return await sync_to_async(act)(request.data)

    def create(self, request):
        """A function beside coroutines."""
        return act(request.data)


class SyncSet(Guarded, ViewSet):
    def create(self, request):
        return act(request.data)


class EffectSerializer(serializers.ModelSerializer):
    class Meta:
        model = Effect
        fields = ["id", "name"]


class Model(Guarded, ModelViewSet):
    queryset = Effect.objects.order_by("pk")
    serializer_class = EffectSerializer

    async def perform_acreate(self, serializer):
        await sync_to_async(serializer.save)()


class Joined(AsyncView):
    idempotency_transaction = "joined"


@idempotent(required=True)
@api_view(["POST"])
@authentication_classes([Users])
@permission_classes([permissions.IsAuthenticated, MayPay])
async def above(request):
    return await sync_to_async(act)(request.data)


@api_view(["GET", "POST"])
@authentication_classes([Users])
@permission_classes([permissions.IsAuthenticated, MayPay])
@idempotent(required=True)
async def below(request):
    return await sync_to_async(act)(request.data or {"name": "read"})


@api_view(["POST"])
@authentication_classes([Users])
@idempotent(required=True)
async def named(request, declared, function):
    return await sync_to_async(act)(request.data)


@idempotent(required=True)
@api_view(["POST"])
@authentication_classes([Users])
@permission_classes([permissions.IsAuthenticated, MayPay])
def sync_above(request):
    return act(request.data)


VIEWS = {
    "view": View.as_view(),
    "async-view": AsyncView.as_view(),
    "async-joined": Joined.as_view(),
    "async-set": AsyncSet.as_view({"post": "acreate"}),
    "async-action": AsyncSet.as_view({"post": "ajoined"}, **AsyncSet.ajoined.kwargs),
    "async-set-sync": AsyncSet.as_view({"post": "create"}),
    "set": SyncSet.as_view({"post": "create"}),
    "async-model": Model.as_view({"post": "acreate", "get": "alist"}),
    "async-above": above,
    "async-below": below,
    "above": sync_above,
}
urlpatterns = [path(f"{name}/", view, name=name) for name, view in VIEWS.items()]
urlpatterns += [path("named/<str:declared>/<str:function>/", named)]
