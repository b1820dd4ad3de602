"""R34: `object_permissions`, the replay_check that asks ``get_object()`` of a view."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.db.models import QuerySet
from django.http import JsonResponse
from rest_framework.decorators import api_view
from rest_framework.generics import GenericAPIView
from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.response import Response

from django_idempotency.contrib.rest_framework import object_permissions
from django_idempotency.http import idempotent
from django_idempotency.models import IdempotencyRecord
from tests.app.models import Effect
from tests.app.views import EffectSerializer
from tests.unit.http.api import problem, replayed
from tests.unit.http.conftest import Mount
from tests.unit.http.views import BareView, GuardedView

pytestmark = pytest.mark.django_db(transaction=True)


class Own(BasePermission):
    """An object is its namesake's."""

    def has_object_permission(self, request: Request, view: Any, obj: Effect) -> bool:
        return obj.name == request.user.username


class Effects(GuardedView, GenericAPIView[Effect]):
    permission_classes = [Own]
    serializer_class = EffectSerializer
    idempotency_replay_check = object_permissions

    def get_queryset(self) -> QuerySet[Effect]:
        assert connections["default"].in_atomic_block  # as the handler has it
        return Effect.objects.select_for_update().exclude(name="hidden")

    def post(self, request: Request, **kwargs: Any) -> Response:
        if kwargs:
            return Response(EffectSerializer(self.get_object()).data)
        return Response(status=201)

    def delete(self, request: Request, pk: int) -> Response:
        effect = self.get_object()
        if request.data.get("refuse"):
            return Response({"why": "it has children"}, status=409)
        effect.delete()
        return Response(status=204)


@pytest.fixture
def url(mount: Mount) -> str:
    return f"{mount(Effects, '<int:pk>/')}{Effect.objects.create(name='alice').pk}/"


@pytest.mark.parametrize("name", ["bob", "hidden", None])
def test_R34_object_permission_withdrawn_in_between(api, url, name):
    first, again = api(path=url), api(path=url)
    if name is None:
        Effect.objects.all().delete()
    else:
        Effect.objects.update(name=name)
    kept = IdempotencyRecord.objects.values().get()
    refused = api(path=url)

    assert first.status_code == 200
    assert replayed(again)
    assert problem(refused) == (403, "replay_refused")
    assert IdempotencyRecord.objects.values().get() == kept


def test_R34_ATOMIC_REQUESTS_are_around_the_check(api, url, policy, monkeypatch):
    policy(TRANSACTION="separate")
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)

    assert [replayed(api(path=url)) for _ in range(2)] == [False, True]


def test_R34_DELETE_that_was_done_is_replayed(api, url):
    answers = [api(path=url, method="DELETE") for _ in range(2)]

    assert [answer.status_code for answer in answers] == [204, 204]
    assert replayed(answers[1])


def test_R34_DELETE_that_was_refused_is_not_shown_when_the_object_is_out_of_sight(api, url):
    refuse = {"body": {"refuse": True}, "path": url, "method": "DELETE"}
    assert [replayed(api(**refuse)) for _ in range(2)] == [False, True]

    Effect.objects.update(name="hidden")

    assert problem(api(**refuse)) == (403, "replay_refused")


@pytest.mark.parametrize("kind", ["look-up argument", "mixin", "@api_view", "plain"])
def test_R34_without_a_look_up_argument_it_is_true(api, mount, policy, kind):
    """A view that has no get_object() is an error as soon as its URL names something."""
    policy(HTTP={"REPLAY_CHECK": "django_idempotency.contrib.rest_framework.object_permissions"})
    anybody: Any = idempotent(scope="django_idempotency.http.scopes.anyone")

    @anybody
    @api_view(["POST"])
    def of_drf(request: Request, **kwargs: Any) -> Response:
        return Response()

    plain = anybody(lambda request, **kwargs: JsonResponse({}))
    views = {"look-up argument": Effects, "mixin": BareView, "@api_view": of_drf, "plain": plain}
    url = mount(views[kind])
    assert [replayed(api(path=url)) for _ in range(2)] == [False, True]

    if kind != "look-up argument":
        named = f"{mount(views[kind], '<int:pk>/')}1/"
        api(key="named", path=named)
        with pytest.raises(ImproperlyConfigured, match="replay_check of its own"):
            api(key="named", path=named)
