"""How a DRF view says what it wants: attributes, `@action`, and `@idempotent` beside the mixin."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.cache import never_cache
from rest_framework import permissions, serializers, viewsets
from rest_framework.decorators import action, api_view, authentication_classes
from rest_framework.exceptions import PermissionDenied
from rest_framework.generics import CreateAPIView
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.routers import SimpleRouter
from rest_framework.views import APIView

from django_idempotency.conf import store_for
from django_idempotency.contrib.ninja import idempotent as idempotent_operation
from django_idempotency.contrib.rest_framework import IdempotencyMixin
from django_idempotency.http import IdempotencyViewMixin, idempotent
from django_idempotency.keys import record_id
from django_idempotency.models import IdempotencyRecord
from tests.app.models import Effect
from tests.app.views import HeaderAuthentication
from tests.unit.http.api import problem, replayed
from tests.unit.http.views import ANYONE, BareView, Permitted

pytestmark = pytest.mark.django_db

MISSING = (400, "idempotency_key_missing")
#: What a class of either kind is made of.
MIXINS = [(IdempotencyMixin, APIView), (IdempotencyViewMixin, View)]

# Actions and attributes.


def test_R13_R18_actions_and_their_keywords(api, runs):
    """Only create and rename are guarded; rename requires a key, and has a lease of its own."""
    pk = api(path="/set/").json()["id"]
    url = f"/set/{pk}/rename/"
    assert problem(api(key=None, path=url)) == MISSING
    assert replayed(api(path="/set/"))
    assert [replayed(api(path=url, key="key-2")) for _ in range(2)] == [False, True]
    for key in ('"', None):
        assert api(key=key, path=f"/set/{pk}/unguarded/").status_code == 200
    assert runs == ["first", "rename of first", "unguarded", "unguarded"]


def look(request: Request) -> Response:
    return Response(request.idempotency and request.idempotency.fencing_token)


OF_MIXIN = dict.fromkeys(("get", "post"), lambda self, request: look(request))
LOOKING = {
    "mixin": type("Looking", (BareView,), {"idempotency_required": False, **OF_MIXIN}),
    "below api_view": api_view(["GET", "POST"])(
        authentication_classes([HeaderAuthentication])(idempotent(look))
    ),
}


@pytest.mark.parametrize("kind", LOOKING)
def test_R18_lease_is_on_the_request_of_guarded_work_alone(api, mount, kind):
    api.path = mount(LOOKING[kind])
    assert api().data == IdempotencyRecord.objects.get().epoch
    assert api(key=None).data is api(method="GET", body="").data is None


# Errors of a class.


def test_mixin_stands_first():
    for base in (APIView, CreateAPIView, viewsets.ModelViewSet):
        with pytest.raises(TypeError, match=r"IdempotencyMixin before.*\(IdempotencyMixin, \.\.\."):
            type("Wrong", (base, IdempotencyMixin), {})
    right: Any = type("Base", (IdempotencyMixin, viewsets.ModelViewSet), {})
    type("Derived", (right, CreateAPIView), {"serializer_class": serializers.Serializer})


def test_mixin_of_rest_framework_is_for_its_views():
    """On any other it would guard nothing, without a word."""
    write = r"Pay is no view of Django REST framework.*\(IdempotencyViewMixin, \.\.\.\)"
    abstract: Any = type("Abstract", (IdempotencyMixin,), {})
    for mixin in (IdempotencyMixin, abstract):
        type("Pay", (mixin, APIView), {})
        with pytest.raises(TypeError, match=write):
            type("Pay", (mixin, View), {})


def test_R18_unknown_keyword_of_action_and_of_as_view_is_refused_with_a_suggestion():
    class Renaming(IdempotencyMixin, viewsets.ViewSet):
        @action(detail=True, methods=["post"], idempotency_leese=5)
        def rename(self, request: Request, pk: str) -> Response:
            raise NotImplementedError

    of_base = {"idempotency_of_base": None}
    said = "has 'idempotency_leese'. Did you mean 'idempotency_lease'?"
    router = SimpleRouter()
    router.register("names", Renaming, basename="name")
    with pytest.raises(TypeError, match=re.escape(f"Renaming {said}")):
        assert router.urls
    for bases in MIXINS:
        pay: Any = type("Pay", bases, {})
        with pytest.raises(TypeError, match=re.escape(f"Pay {said}")):
            pay.as_view(idempotency_leese=5)
        behind: Any = type("Behind", (*bases[:-1], type("Base", bases[1:], of_base)), {})
        assert behind.as_view(idempotency_of_base=5)


def test_R18_R56_wrong_attribute_is_refused_when_the_class_is_made():
    wrong: dict[str, tuple[Any, str]] = {
        "idempotency_require": (True, ".*Did you mean 'idempotency_required'"),
        "idempotency_keep": (lambda response: "", r" must take \(response, exception\)"),
        "idempotency_scope": (staticmethod(lambda: "all"), r" must take \(request\)"),
    }
    for name, (value, said) in wrong.items():
        for bases in MIXINS:
            with pytest.raises(TypeError, match=f"{name}{said}"):
                type("Pay", bases, {name: value})
    with pytest.raises(TypeError, match=r"idempotency_action.*Did you mean 'idempotency_actions'"):
        type("Pay", (IdempotencyMixin, APIView), {"idempotency_action": True})


@pytest.mark.parametrize("empty", [(), [], set(), frozenset()])
def test_R13_an_empty_set_of_methods_is_refused_where_it_is_declared(empty):
    named = r"methods must not be empty\. Name some of DELETE, .* leave the guard out"
    for guard in (idempotent, idempotent_operation):
        with pytest.raises(ValueError, match=named):
            guard(methods=empty)
    for bases in MIXINS:
        with pytest.raises(ValueError, match=f"Pay: idempotency_{named}"):
            type("Pay", bases, {"idempotency_methods": empty})


def test_R13_an_empty_set_of_methods_of_as_view_raises(api, mount):
    api.path = mount(BareView.as_view(idempotency_methods=()))
    with pytest.raises(ValueError, match="methods must not be empty"):
        api()


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


# R18: methods of the view that the mixin works in, and that do not pass a request on to it.


def test_R18_a_dispatch_that_does_not_call_that_of_the_mixin_is_refused(api, mount, runs):
    class Own(BareView):
        def dispatch(self, request: Any, *args: Any, **kwargs: Any) -> Any:
            self.headers: dict[str, str] = {}
            self.request = self.initialize_request(request, *args, **kwargs)
            self.initial(self.request, *args, **kwargs)
            handler = getattr(self, self.request.method.lower())
            return self.finalize_response(self.request, handler(self.request))

        def get(self, request: Request) -> Response:
            return Response("read")

    api.path = mount(Own)
    for key in ("key-1", None):
        with pytest.raises(ImproperlyConfigured, match=r"Own\.dispatch\(\) must call super"):
            api(key=key)
    assert api(method="GET", body="", key=None).data == "read"
    api.path = mount(type("OnlyDelete", (Own,), {"idempotency_methods": {"DELETE"}}))
    assert api().status_code == 201
    api.path = mount(idempotent(scope=ANYONE)(lambda request: Own.as_view()(request)))
    assert [replayed(api(key="key-2")) for _ in range(2)] == [False, True]
    assert runs == ["bare"] * 2


def test_R18_an_initial_that_does_not_call_that_of_the_mixin_is_told(api, mount, caplog):
    class Own(BareView):
        def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
            if "no" in request.headers:
                raise PermissionDenied

    api.path = mount(Own)
    for method, told in {"POST": True, "OPTIONS": False}.items():
        caplog.clear()
        answer = api(method=method)
        assert (answer.headers.get("Idempotency-Stored") == "false") is told, method
        assert ("a call of IdempotencyMixin.initial(): nothing was guarded" in caplog.text) is told
    caplog.clear()
    assert api(headers={"no": "1"}).status_code == 403
    api.path = mount(type("Optional", (Own,), {"idempotency_required": False}))
    assert "Idempotency-Stored" not in api(key=None).headers
    api.path = mount(BareView)
    assert "Idempotency-Stored" not in api().headers
    assert "nothing was guarded" not in caplog.text


# R17: `@idempotent` on a view that has the mixin: one guard, the mixin's, of one policy.


class Mixed(IdempotencyMixin, viewsets.ViewSet):
    authentication_classes = [HeaderAuthentication]
    permission_classes = [permissions.IsAuthenticated, Permitted]
    idempotency_replay_header = "X-Of-Class"
    idempotency_echo_key = True
    idempotency_operation = "payment-create"

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
def test_R17_decorator_and_mixin_do_the_work_once(api, mount, policy, place, runs, monkeypatch):
    """Behind the permissions, by what the decorator says before what the class says."""
    scope = lambda request: request.headers["X-User"]  # noqa: E731
    given = {"replay_header": "X-Of-Decorator", "store": "memory", "scope": scope}
    api.path = mount(place(required=True, **given))

    missing, first, again = api(key=None), api(), api()

    assert problem(missing) == MISSING
    assert (first.status_code, again.content) == (201, first.content)
    assert again.headers["X-Of-Decorator"] == "true"
    assert again.headers["Idempotency-Key"] == '"key-1"'  # the class's own
    assert len(runs) == 1
    record = store_for("memory").get(record_id("http", "alice", "key-1"))
    assert record is not None
    assert record.operation == "POST payment-create"  # the class's own, too
    monkeypatch.setattr(Permitted, "withdrawn", True)
    assert api().status_code == 403


def test_R17_keyword_of_action_counts_before_dispatch(api, mount):
    @method_decorator(idempotent(required=True, echo_key=False), name="dispatch")
    class Set(Mixed):
        @action(detail=False, methods=["post"], idempotency_required=False)
        def capture(self, request: Request) -> Response:
            return self.create(request)

    keywords = Set.capture.kwargs  # type: ignore[attr-defined]
    api.path = mount(Set.as_view({"post": "capture"}, **keywords))
    assert api(key=None).status_code == 201
    assert "Idempotency-Key" not in api().headers


@pytest.mark.parametrize(("name", "derive"), [("dispatch", True), ("create", False)])
def test_R17_R1_of_two_decorators_on_a_method_the_outer_counts_first(api, mount, name, derive):
    said: dict[str, Any] = {"required": False, "echo_key": True, "store": "memory"}
    inner = method_decorator(idempotent(**said), name=name)
    guarded: Any = inner(type("Base", (Mixed,), dict(OWN_CREATE)))
    outer = method_decorator([never_cache, idempotent(required=True)], name=name)
    view = outer(type("Sub", (guarded,), {}) if derive else guarded)
    api.path = mount(view.as_view({"post": "create"}))
    assert api(key=None).status_code == 400
    assert api().headers["Idempotency-Key"]
    assert not IdempotencyRecord.objects.exists()  # the outer one says nothing of the store


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
