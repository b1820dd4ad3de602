"""How a DRF view says what it wants: attributes, actions, keywords of @action, and its errors."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from rest_framework import serializers, viewsets
from rest_framework.decorators import action
from rest_framework.generics import CreateAPIView
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

import django_idempotency as idempotency
from django_idempotency.conf import InvalidStore, store_for
from django_idempotency.contrib.rest_framework import IdempotencyMixin
from django_idempotency.keys import record_id
from django_idempotency.models import IdempotencyRecord
from tests.app.models import Effect
from tests.unit.http.api import Api, problem, replayed
from tests.unit.http.conftest import Mount, SetPolicy
from tests.unit.http.views import BareView, FullViewSet, GuardedView

pytestmark = pytest.mark.django_db


# Actions.


def test_R13_idempotency_actions_leave_others_unguarded(
    api: Api, mount: Mount, runs: list[str]
) -> None:
    class OnlyCopy(FullViewSet):
        idempotency_actions = {"copy"}

    copy = mount(OnlyCopy.as_view({"post": "copy"}))
    create = mount(OnlyCopy.as_view({"post": "create"}))

    assert problem(api(key=None, path=copy)) == (400, "idempotency_key_missing")
    assert api(key=None, path=create).status_code == 201
    assert [replayed(api(path=create)) for _ in range(2)] == [False, False]
    assert [replayed(api(path=copy)) for _ in range(2)] == [False, True]
    assert len(runs) == 4
    assert IdempotencyRecord.objects.get().operation.startswith("POST")


def test_R13_unguarded_action_passes_with_a_malformed_key(api: Api) -> None:
    response = api(key='"', path="/set/1/unguarded/")

    assert response.status_code == 200


def test_R18_keywords_of_action_are_policy(api: Api) -> None:
    Effect.objects.create(pk=7_000_000, name="seven")

    with_key, without = api(path="/set/7000000/rename/"), api(key=None, path="/set/7000000/rename/")

    assert with_key.status_code == 200
    assert problem(without) == (400, "idempotency_key_missing")
    assert api(key=None, path="/set/").status_code == 201


def test_R18_lease_of_an_action(api: Api, mount: Mount) -> None:
    leases: list[Any] = []

    class Leased(FullViewSet):
        @action(detail=False, methods=["post"], idempotency_lease=300)
        def long(self, request: Request) -> Response:
            leases.append(request._request.idempotency)  # type: ignore[attr-defined]
            return Response({})

        @action(detail=False, methods=["post"])
        def short(self, request: Request) -> Response:
            leases.append(request._request.idempotency)  # type: ignore[attr-defined]
            return Response({})

    for name in ("long", "short"):
        keywords = getattr(Leased, name).kwargs
        api(path=mount(Leased.as_view({"post": name}, **keywords)), key=name)

    lengths = [lease.request.lease for lease in leases]
    assert lengths == [timedelta(seconds=300), timedelta(seconds=60)]


def test_R18_unknown_keyword_of_action_is_a_type_error(mount: Mount) -> None:
    class Misspelt(FullViewSet):
        @action(detail=False, methods=["post"], idempotency_leese=300)
        def long(self, request: Request) -> Response:
            return Response({})

    with pytest.raises(TypeError, match="idempotency_leese"):
        Misspelt.as_view({"post": "long"}, **Misspelt.long.kwargs)  # type: ignore[attr-defined]


# Attributes.


def test_a_view_decides_before_the_setting(api: Api, policy: SetPolicy, mount: Mount) -> None:
    class Own(BareView):
        idempotency_replay_header = "X-Own"
        idempotency_retention = timedelta(days=9)

    policy(RETENTION=60, HTTP={"REPLAY_HEADER": "X-Setting"})
    url = mount(Own)

    api(path=url)

    assert "X-Own" in api(path=url).headers
    expires_at = IdempotencyRecord.objects.get().expires_at
    assert expires_at is not None
    assert expires_at > timezone.now() + timedelta(days=8)


def test_a_subclass_inherits_the_policy(api: Api, mount: Mount) -> None:
    class Parent(BareView):
        idempotency_echo_key = True

    class Child(Parent):
        pass

    assert api(path=mount(Child)).headers["Idempotency-Key"] == '"key-1"'


def test_values_that_cannot_be_are_errors(api: Api, mount: Mount, runs: list[str]) -> None:
    class Wrong(BareView):
        idempotency_lease = -1

    with pytest.raises(ValueError, match="lease"):
        api(path=mount(Wrong))
    assert runs == []


@pytest.mark.django_db(transaction=True)
def test_idempotency_store_is_an_alias(
    api: Api, policy: SetPolicy, mount: Mount, atomic_requests: bool, runs: list[str]
) -> None:
    class InMemory(BareView):
        idempotency_store = "memory"
        idempotency_scope = "django_idempotency.http.scopes.anyone"

    url = mount(InMemory)
    first, again = api(path=url, key="in-memory"), api(path=url, key="in-memory")

    assert again.content == first.content
    assert replayed(again)
    assert len(runs) == 1
    assert not IdempotencyRecord.objects.exists()
    assert store_for("memory").get(record_id("http", "anyone", "in-memory")) is not None


def test_R37_memory_store_tells_mismatches(
    api: Api, policy: SetPolicy, mount: Mount, runs: list[str]
) -> None:
    class InMemory(BareView):
        idempotency_store = "memory"

    url = mount(InMemory)
    api({"a": 1}, path=url)

    assert problem(api({"a": 2}, path=url)) == (422, "idempotency_key_reused")
    assert len(runs) == 1


def test_unknown_alias_is_an_error_with_a_suggestion(
    api: Api, policy: SetPolicy, mount: Mount
) -> None:
    class Misspelt(BareView):
        idempotency_store = "memroy"

    with pytest.raises(InvalidStore, match="Did you mean 'memory'"):
        api(path=mount(Misspelt))


@pytest.mark.parametrize("header", ["X-Idempotency-Key", "Idempotency-Key"])
def test_header_can_have_another_name(api: Api, policy: SetPolicy, header: str) -> None:
    policy(HTTP={"HEADER": header})

    first, again = (api(key=None, headers={header: "key-1"}) for _ in range(2))

    assert first.status_code == 201
    assert replayed(again)


def test_other_header_is_not_the_key(api: Api, policy: SetPolicy) -> None:
    policy(HTTP={"HEADER": "X-Key"})

    assert problem(api(key="key-1")) == (400, "idempotency_key_missing")


# What the view sees.


def test_lease_is_in_reach_of_the_work(api: Api, mount: Mount) -> None:
    class Looking(BareView):
        def post(self, request: Request) -> Response:
            lease = request.idempotency
            assert lease is idempotency.current()
            return Response(
                {"token": lease.fencing_token, "key": lease.derive_key("stripe")}, status=201
            )

    url = mount(Looking)
    told = api(path=url).json()
    other = api(path=url, key="key-2").json()

    record = IdempotencyRecord.objects.get(key="key-1")
    assert told["token"] == record.epoch
    assert told["key"] != other["key"]
    assert "key-1" not in told["key"]
    assert idempotency.current() is None


def test_lease_is_none_where_nothing_is_guarded(api: Api, mount: Mount) -> None:
    seen: list[Any] = []

    class Looking(BareView):
        idempotency_required = False

        def look(self, request: Request) -> Response:
            seen.append(request._request.idempotency)  # type: ignore[attr-defined]
            return Response({})

        get = post = look

    url = mount(Looking)
    api(key=None, path=url)
    api(method="GET", body="", path=url)

    assert seen == [None, None]


def test_R58_idempotent_calls_of_the_work_keep_their_own_errors(api: Api, mount: Mount) -> None:
    """An error about another key is the view's to answer, and no problem of this request's."""

    class Nested(BareView):
        def post(self, request: Request) -> Response:
            for payload in (1, 2):
                idempotency.run(lambda lease: None, key="inner", scope="test", payload=payload)
            return Response({})

    with pytest.raises(idempotency.FingerprintMismatch):
        api(path=mount(Nested))


# Errors of a class.


def test_mixin_after_other_bases_is_a_type_error() -> None:
    with pytest.raises(TypeError, match=r"class Wrong\(IdempotencyMixin, \.\.\.\)"):

        class Wrong(APIView, IdempotencyMixin):
            pass


@pytest.mark.parametrize(
    "base", [CreateAPIView, viewsets.ViewSet, viewsets.GenericViewSet, viewsets.ModelViewSet]
)
def test_mixin_after_any_view_is_a_type_error(base: type[Any]) -> None:
    with pytest.raises(TypeError, match="IdempotencyMixin before"):
        type("Wrong", (base, IdempotencyMixin), {})


def test_mixin_first_is_right_also_in_a_subclass() -> None:
    class Base(IdempotencyMixin, viewsets.ModelViewSet[Effect]):
        pass

    class Derived(Base, CreateAPIView[Effect]):  # type: ignore[misc]
        serializer_class = serializers.Serializer

    assert Derived.__mro__.index(IdempotencyMixin) < Derived.__mro__.index(APIView)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("idempotency_require", "idempotency_required"),
        ("idempotency_leases", "idempotency_lease"),
        ("idempotency_action", "idempotency_actions"),
        ("idempotency_replay_headres", "idempotency_replay_headers"),
    ],
)
def test_unknown_attribute_is_a_type_error_with_a_suggestion(name: str, meant: str) -> None:
    with pytest.raises(TypeError, match=f"{name}.*Did you mean '{meant}'"):
        type("Misspelt", (GuardedView,), {name: True})


def test_unknown_attribute_without_a_likeness() -> None:
    with pytest.raises(TypeError, match="idempotency_xyzzy"):
        type("Misspelt", (GuardedView,), {"idempotency_xyzzy": True})


# Signatures.


def test_R18_callable_without_self_is_refused_when_the_class_is_made() -> None:
    write = r"Pay\.idempotency_scope must take \(self, request\), and idempotency_scope\(request\)"
    with pytest.raises(TypeError, match=write):

        class Pay(IdempotencyMixin, APIView):
            def idempotency_scope(request: Any) -> str:
                return "all"


def test_R56_keep_of_the_wrong_arity_is_refused_when_the_class_is_made() -> None:
    with pytest.raises(TypeError, match=r"must take \(self, response, exception\)"):

        class Pay(IdempotencyMixin, APIView):
            def idempotency_keep(self, response: Any) -> str:
                return "keep"


def test_R18_every_form_of_a_callable_is_a_form_of_its_own() -> None:
    class Scope:
        def __call__(self, request: Any) -> str:
            return "all"

    class Pay(IdempotencyMixin, APIView):
        idempotency_scope = Scope()
        idempotency_fingerprint = staticmethod(lambda request: b"")

        @classmethod
        def idempotency_keep(cls, response: Any, *rest: Any) -> str:
            return "keep"

        @property
        def idempotency_replay_check(self) -> Any:
            return lambda request, record: True

    with pytest.raises(TypeError, match=r"must take \(request\)"):

        class Wrong(Pay):
            idempotency_scope = staticmethod(lambda: "all")
