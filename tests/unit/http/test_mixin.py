"""How a DRF view says what it wants: attributes, `@action`, and `@idempotent` beside the mixin."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from django.utils.decorators import method_decorator
from django.views.decorators.cache import never_cache
from rest_framework import permissions, serializers, viewsets
from rest_framework.decorators import action
from rest_framework.generics import CreateAPIView
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

import django_idempotency as idempotency
from django_idempotency.conf import InvalidStore, store_for
from django_idempotency.contrib.rest_framework import IdempotencyMixin
from django_idempotency.http import idempotent
from django_idempotency.keys import record_id
from django_idempotency.models import IdempotencyRecord
from tests.app.models import Effect
from tests.app.views import HeaderAuthentication
from tests.unit.http.api import problem, replayed
from tests.unit.http.views import ANYONE, BareView, FullViewSet, Permitted

pytestmark = pytest.mark.django_db

MISSING = (400, "idempotency_key_missing")

# Actions and attributes.


def test_R13_idempotency_actions_leave_others_unguarded(api, mount, runs):
    only_copy: Any = type("OnlyCopy", (FullViewSet,), {"idempotency_actions": {"copy"}})
    copy, create = (mount(only_copy.as_view({"post": name})) for name in ("copy", "create"))

    assert problem(api(key=None, path=copy)) == MISSING
    assert api(key='"', path=create).status_code == 201
    assert [replayed(api(path=create)) for _ in range(2)] == [False, False]
    assert [replayed(api(path=copy)) for _ in range(2)] == [False, True]
    assert len(runs) == 4


def test_R18_keywords_of_action_are_policy(api, mount):
    class Leased(FullViewSet):
        idempotency_required = False

        @action(detail=False, methods=["post"], idempotency_lease=300, idempotency_required=True)
        def long(self, request: Request) -> Response:
            return Response(request.idempotency.request.lease.total_seconds())  # type: ignore[attr-defined]

    url = mount(Leased.as_view({"post": "long"}, **Leased.long.kwargs))  # type: ignore[attr-defined]

    assert api(path=url).data == 300
    assert problem(api(key=None, path=url)) == MISSING


def test_R18_unknown_keyword_of_action_is_a_type_error():
    with pytest.raises(TypeError, match="idempotency_leese"):
        FullViewSet.as_view({"post": "copy"}, idempotency_leese=300)


def test_a_view_decides_before_the_setting_and_a_subclass_inherits(api, policy, mount):
    class Own(BareView):
        idempotency_replay_header = "X-Own"
        idempotency_retention = timedelta(days=9)

    policy(RETENTION=60, HTTP={"REPLAY_HEADER": "X-Setting"})
    url = mount(type("Child", (Own,), {}))

    api(path=url)

    assert "X-Own" in api(path=url).headers
    expires_at = IdempotencyRecord.objects.get().expires_at
    assert expires_at is not None
    assert expires_at > timezone.now() + timedelta(days=8)


@pytest.mark.parametrize(
    ("given", "error", "match"),
    [
        ({"idempotency_lease": -1}, ValueError, "lease"),
        ({"idempotency_store": "memroy"}, InvalidStore, "Did you mean 'memory'"),
    ],
)
def test_values_that_cannot_be_are_errors(api, mount, policy, runs, given, error, match):
    with pytest.raises(error, match=match):
        api(path=mount(type("Wrong", (BareView,), given)))
    assert runs == []


def test_idempotency_store_is_an_alias(api, policy, mount, runs):
    members = {"idempotency_store": "memory", "idempotency_scope": ANYONE}
    url = mount(type("InMemory", (BareView,), members))

    assert [replayed(api(path=url, key="in-memory")) for _ in range(2)] == [False, True]
    assert len(runs) == 1
    assert not IdempotencyRecord.objects.exists()
    assert store_for("memory").get(record_id("http", "anyone", "in-memory")) is not None


# What the view sees.


def test_lease_is_in_reach_of_the_work_and_none_where_nothing_is_guarded(api, mount):
    class Looking(BareView):
        idempotency_required = False

        def look(self, request: Request) -> Response:
            lease = request.idempotency  # type: ignore[attr-defined]
            assert lease is idempotency.current()
            return Response(lease and [lease.fencing_token, lease.derive_key("stripe")])

        get = post = look

    url = mount(Looking)
    (token, derived), (_, other) = api(path=url).json(), api(path=url, key="key-2").json()

    assert token == IdempotencyRecord.objects.get(key="key-1").epoch
    assert derived != other
    assert "key-1" not in derived
    assert idempotency.current() is None
    assert api(key=None, path=url).data is None
    assert api(method="GET", body="", path=url).data is None


# Errors of a class.


def test_mixin_stands_first():
    for base in (APIView, CreateAPIView, viewsets.ModelViewSet):
        with pytest.raises(TypeError, match=r"IdempotencyMixin before.*\(IdempotencyMixin, \.\.\."):
            type("Wrong", (base, IdempotencyMixin), {})
    right: Any = type("Base", (IdempotencyMixin, viewsets.ModelViewSet), {})
    type("Derived", (right, CreateAPIView), {"serializer_class": serializers.Serializer})


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("idempotency_require", True, ".*Did you mean 'idempotency_required'"),
        ("idempotency_action", True, ".*Did you mean 'idempotency_actions'"),
        ("idempotency_replay_headres", True, ".*Did you mean 'idempotency_replay_headers'"),
        ("idempotency_xyzzy", True, "'"),
        ("idempotency_keep", lambda response: "keep", r" must take \(response, exception\)"),
        ("idempotency_scope", staticmethod(lambda: "all"), r" must take \(request\)"),
    ],
)
def test_R18_R56_wrong_attribute_is_refused_when_the_class_is_made(name, value, said):
    with pytest.raises(TypeError, match=f"{name}{said}"):
        type("Pay", (IdempotencyMixin, APIView), {name: value})


def test_R18_callable_without_self_is_refused_when_the_class_is_made():
    write = r"Pay\.idempotency_scope must take \(self, request\), and idempotency_scope\(request\)"
    with pytest.raises(TypeError, match=write):

        class Pay(IdempotencyMixin, APIView):
            def idempotency_scope(request: Any) -> str:
                return "all"


def test_R18_every_form_of_a_callable_is_taken():
    class Scope:
        def __call__(self, request: Any) -> str:
            return "all"

    class Pay(IdempotencyMixin, APIView):
        idempotency_scope = Scope()
        idempotency_fingerprint = staticmethod(lambda request: b"")
        idempotency_keep = classmethod(lambda cls, response, *rest: "keep")
        idempotency_replay_check = property(lambda self: lambda request, record: True)

    assert issubclass(Pay, IdempotencyMixin)


# R17: `@idempotent` on a view that has the mixin: one guard, the mixin's, of one policy.


class Mixed(IdempotencyMixin, viewsets.ViewSet):
    authentication_classes = [HeaderAuthentication]
    permission_classes = [permissions.IsAuthenticated, Permitted]
    idempotency_replay_header = "X-Of-Class"
    idempotency_echo_key = True

    def create(self, request: Request) -> Response:
        return Response({"id": Effect.objects.create(name="once").pk}, status=201)


OWN_CREATE: Any = {"create": lambda self, request: Mixed.create(self, request)}


def in_urlconf(**given: Any) -> Any:
    return idempotent(**given)(Mixed.as_view({"post": "create"}))


def below_a_subclass(**given: Any) -> Any:
    base: Any = method_decorator(idempotent(**given), name="dispatch")(type("On", (Mixed,), {}))
    return type("Below", (base,), {}).as_view({"post": "create"})


def on_method(**given: Any) -> Any:
    view = type("On", (Mixed,), dict(OWN_CREATE))
    return method_decorator(idempotent(**given), name="create")(view).as_view({"post": "create"})


@pytest.mark.parametrize("place", [in_urlconf, below_a_subclass, on_method])
def test_R17_decorator_and_mixin_do_the_work_once(api, mount, place, runs, monkeypatch):
    """Behind the permissions, by what the decorator says before what the class says."""
    scope = lambda request: request.headers["X-User"]  # noqa: E731
    url = mount(place(required=True, replay_header="X-Of-Decorator", scope=scope))

    missing, first, again = api(key=None, path=url), api(path=url), api(path=url)

    assert problem(missing) == MISSING
    assert (first.status_code, again.content) == (201, first.content)
    assert again.headers["X-Of-Decorator"] == "true"
    assert again.headers["Idempotency-Key"] == '"key-1"'  # the class's own
    assert len(runs) == 1
    assert IdempotencyRecord.objects.get().scope == "alice"
    monkeypatch.setattr(Permitted, "withdrawn", True)
    assert api(path=url).status_code == 403


@pytest.mark.parametrize("place", [in_urlconf, on_method])
def test_R17_store_of_the_decorator(api, mount, place, policy, runs):
    url = mount(place(store="memory"))

    answers = [api(path=url, key=f"{url} {place.__name__}") for _ in range(2)]

    assert [answer.status_code for answer in answers] == [201, 201]
    assert len(runs) == 1
    assert not IdempotencyRecord.objects.exists()


def test_R17_keyword_of_action_counts_before_dispatch(api, mount):
    @method_decorator(idempotent(required=True, echo_key=False), name="dispatch")
    class Set(Mixed):
        @action(detail=False, methods=["post"], idempotency_required=False)
        def capture(self, request: Request) -> Response:
            return self.create(request)

    keywords = Set.capture.kwargs  # type: ignore[attr-defined]
    url = mount(Set.as_view({"post": "capture"}, **keywords))

    assert api(key=None, path=url).status_code == 201
    assert "Idempotency-Key" not in api(path=url).headers


@pytest.mark.parametrize("name", ["dispatch", "create"])
@pytest.mark.parametrize("derive", [True, False])
def test_R17_R1_of_two_decorators_on_a_method_the_outer_counts_first(api, mount, name, derive):
    inner = method_decorator(idempotent(required=False, echo_key=True), name=name)
    guarded: Any = inner(type("Base", (Mixed,), dict(OWN_CREATE)))
    outer = method_decorator([never_cache, idempotent(required=True)], name=name)
    url = mount(
        outer(type("Sub", (guarded,), {}) if derive else guarded).as_view({"post": "create"})
    )

    assert api(key=None, path=url).status_code == 400
    assert api(path=url).headers["Idempotency-Key"]


def test_R17_undecorated_override_leaves_what_its_base_said(api, mount):
    base = type("Base", (Mixed,), dict(OWN_CREATE))
    strict: Any = method_decorator(idempotent(required=True), name="create")(base)
    override: Any = type("Override", (strict,), dict(OWN_CREATE))

    assert api(key=None, path=mount(override.as_view({"post": "create"}))).status_code == 201


def test_R17_two_requests_by_turns_have_the_policy_of_their_own_views(api, mount):
    """What a decorator gives is no state of the class."""
    strict, free = mount(in_urlconf(required=True)), mount(Mixed.as_view({"post": "create"}))

    statuses = [api(key=None, path=url).status_code for url in (strict, free, strict)]

    assert statuses == [400, 201, 400]
