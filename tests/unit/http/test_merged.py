"""R17: `@idempotent` on a view that has the mixin: one guard, the mixin's, of one policy."""

from __future__ import annotations

from typing import Any

import pytest
from django.utils.decorators import method_decorator
from rest_framework import permissions
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import ViewSet

from django_idempotency.contrib.rest_framework import IdempotencyMixin
from django_idempotency.http import idempotent
from django_idempotency.models import IdempotencyRecord
from tests.app.models import Effect
from tests.app.views import HeaderAuthentication
from tests.unit.http.api import Api, problem, replayed
from tests.unit.http.conftest import Mount, SetPolicy

pytestmark = pytest.mark.django_db

ANYONE = "django_idempotency.http.scopes.anyone"


class Refused(permissions.BasePermission):
    """Lets nobody through once somebody has withdrawn the permission."""

    withdrawn = False

    def has_permission(self, request: Request, view: Any) -> bool:
        return not Refused.withdrawn


class Mixed(IdempotencyMixin, ViewSet):
    authentication_classes = [HeaderAuthentication]
    permission_classes = [permissions.IsAuthenticated, Refused]
    idempotency_replay_header = "X-Of-Class"
    idempotency_echo_key = True

    def create(self, request: Request) -> Response:
        return Response({"id": Effect.objects.create(name="once").pk}, status=201)


def in_urlconf(**given: Any) -> Any:
    return idempotent(**given)(Mixed.as_view({"post": "create"}))


def on_dispatch(**given: Any) -> Any:
    view: Any = method_decorator(idempotent(**given), name="dispatch")(type("On", (Mixed,), {}))
    return view.as_view({"post": "create"})


def below_a_subclass(**given: Any) -> Any:
    base: Any = method_decorator(idempotent(**given), name="dispatch")(type("On", (Mixed,), {}))
    return type("Below", (base,), {}).as_view({"post": "create"})


def on_method(**given: Any) -> Any:
    members = {"create": lambda self, request: Mixed.create(self, request)}
    view: Any = method_decorator(idempotent(**given), name="create")(type("On", (Mixed,), members))
    return view.as_view({"post": "create"})


PLACES = {
    "URLconf": in_urlconf,
    "dispatch": on_dispatch,
    "dispatch of a base": below_a_subclass,
    "method": on_method,
}


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> Any:
    """``place(required=True)`` is a view with the mixin, and with the decorator somewhere."""
    return PLACES[request.param]


def test_R17_decorator_and_mixin_do_the_work_once(
    api: Api, mount: Mount, place: Any, runs: list[str]
) -> None:
    url = mount(place())

    first, again = api(path=url), api(path=url)

    assert (first.status_code, again.content) == (201, first.content)
    assert again.headers["X-Of-Class"] == "true"
    assert len(runs) == IdempotencyRecord.objects.count() == 1


def test_R17_decorator_counts_before_the_class(api: Api, mount: Mount, place: Any) -> None:
    url = mount(place(required=True, replay_header="X-Of-Decorator"))

    missing, _, again = api(key=None, path=url), api(path=url), api(path=url)

    assert problem(missing) == (400, "idempotency_key_missing")
    assert again.headers["X-Of-Decorator"] == "true"
    assert again.headers["Idempotency-Key"] == '"key-1"'  # the class's own


def test_R17_callable_of_the_decorator_gets_the_request(api: Api, mount: Mount, place: Any) -> None:
    api(path=mount(place(scope=lambda request: request.headers["X-User"])))

    assert IdempotencyRecord.objects.get().scope == "alice"


def test_R17_store_of_the_decorator(
    api: Api, mount: Mount, place: Any, policy: SetPolicy, runs: list[str]
) -> None:
    url = mount(place(store="memory"))
    key = f"{url} {place.__name__}"

    answers = [api(path=url, key=key) for _ in range(2)]

    assert [answer.status_code for answer in answers] == [201, 201]
    assert len(runs) == 1
    assert not IdempotencyRecord.objects.exists()


def test_R14_R17_permissions_come_before_the_replay(
    api: Api, mount: Mount, place: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = mount(place(scope=ANYONE))
    api(path=url)

    monkeypatch.setattr(Refused, "withdrawn", True)

    assert api(path=url).status_code == 403


def test_R17_keyword_of_action_counts_before_dispatch(api: Api, mount: Mount) -> None:
    @method_decorator(idempotent(required=True, echo_key=False), name="dispatch")
    class Set(Mixed):
        @action(detail=False, methods=["post"], idempotency_required=False)
        def capture(self, request: Request) -> Response:
            return self.create(request)

    keywords = Set.capture.kwargs  # type: ignore[attr-defined]
    url = mount(Set.as_view({"post": "capture"}, **keywords))

    assert api(key=None, path=url).status_code == 201
    assert "Idempotency-Key" not in api(path=url).headers


def test_R17_undecorated_override_leaves_what_its_base_said(api: Api, mount: Mount) -> None:
    @method_decorator(idempotent(required=True), name="create")
    class Base(Mixed):
        def create(self, request: Request) -> Response:
            return super().create(request)

    class Override(Base):
        def create(self, request: Request) -> Response:
            return Response(status=201)

    assert api(key=None, path=mount(Override.as_view({"post": "create"}))).status_code == 201


def test_R17_two_requests_by_turns_have_the_policy_of_their_own_views(
    api: Api, mount: Mount
) -> None:
    """What a decorator gives is no state of the class."""
    strict, free = mount(in_urlconf(required=True)), mount(Mixed.as_view({"post": "create"}))

    statuses = [api(key=None, path=url).status_code for url in (strict, free, strict)]

    assert statuses == [400, 201, 400]
    assert not replayed(api(path=free))
