"""System checks of views: where the decorator stands, what policy they give, who authenticates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.middleware import AuthenticationMiddleware
from django.http import HttpResponse
from django.utils.decorators import method_decorator
from django.views import View
from rest_framework import permissions
from rest_framework.decorators import action, api_view, authentication_classes
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.routers import SimpleRouter
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

from django_idempotency.contrib.rest_framework import IdempotencyMixin
from django_idempotency.http import IdempotencyViewMixin, idempotent
from django_idempotency.http.middleware import IdempotencyMiddleware
from django_idempotency.models import IdempotencyRecord
from tests.app.models import Effect
from tests.app.views import HeaderAuthentication
from tests.unit.http.checked import AUTHENTICATION, OURS, SESSIONS, ids, messages
from tests.unit.http.views import ANYONE, Permitted
from tests.unit.views.users import HeaderUsers

MEMORY = {"BACKEND": "django_idempotency.stores.memory.MemoryStore"}
WITH_MEMORY = {"default": {}, "memory": MEMORY}


# The decorator on dispatch of a view of Django REST framework.


class Plain(APIView):
    authentication_classes = [HeaderAuthentication]
    permission_classes = [permissions.IsAuthenticated, Permitted]

    def get(self, request: Request) -> Response:
        return Response()

    def post(self, request: Request) -> Response:
        return Response({"secret": Effect.objects.create(name="once").pk}, status=201)


def on(name: str, *bases: Any, **given: Any) -> Any:
    """Return a view class whose method of this name is decorated."""
    return method_decorator(idempotent(**given), name=name)(type("Decorated", bases, {}))


OnDispatch = on("dispatch", Plain, scope=ANYONE)
Inherits = type("Inherits", (OnDispatch,), {})
OnPost, OnPostOfMixin = on("post", Plain), on("post", IdempotencyMixin, Plain)


@pytest.mark.django_db
@pytest.mark.parametrize("view", [OnDispatch, Inherits])
def test_R14_E012_dispatch_of_a_drf_view_is_refused_with_what_to_write(api, mount, view):
    write = f"class {view.__name__}(IdempotencyMixin, ...)"
    for method in ("GET", "POST"):
        with pytest.raises(TypeError, match=f"dispatch of {view.__name__}") as refused:
            api(path=mount(view), method=method)
        assert write in str(refused.value)
    [(number, found)] = messages(view.as_view(), view.as_view())
    assert (number, found.obj) == ("E012", view)
    assert write in str(found.hint)
    assert not Effect.objects.exists()
    assert not IdempotencyRecord.objects.exists()


def test_R14_R21_checks_find_no_other_methods_and_no_view_that_is_not_guarded():
    of_mixin = on("dispatch", IdempotencyMixin, Plain, scope=ANYONE)
    free = type("Free", (Plain,), {"authentication_classes": []})
    assert ids(*[v.as_view() for v in (Plain, OnPost, OnPostOfMixin, of_mixin, free)]) == []


# The policy that a view gives.


def function(request: Any) -> HttpResponse:
    return HttpResponse()


def members(given: dict[str, Any]) -> dict[str, Any]:
    return {f"idempotency_{name}": value for name, value in given.items()}


Handlers: Any = type("Handlers", (View,), {"post": lambda self, request: HttpResponse()})


def class_view(name: str) -> Callable[..., Any]:
    return lambda **given: on(name, type("Own", (Handlers,), {}), **given).as_view()


def with_mixin(**given: Any) -> Any:
    return type("Mixed", (IdempotencyViewMixin, Handlers), members(given))


def of_action(**given: Any) -> Any:
    class Set(IdempotencyMixin, ViewSet):
        @action(detail=False, methods=["post"], **members(given))
        def capture(self, request: Request) -> Response:
            return Response()

    router = SimpleRouter()
    router.register("set", Set, basename="set")
    [pattern] = router.urls
    return pattern


def of_set(**given: Any) -> Any:
    base: Any = type("Set", (ViewSet,), {"create": lambda self, request: Response()})
    return on("create", base, **given).as_view({"post": "create"})


KINDS: dict[str, Callable[..., Any]] = {
    "function": lambda **given: idempotent(**given)(function),
    "class": class_view("dispatch"),
    "method": class_view("post"),
    "class with mixin": lambda **given: with_mixin(**given).as_view(),
    "keywords of a class": lambda **given: with_mixin().as_view(**members(given)),
    "above api_view": lambda **given: idempotent(**given)(api_view(["POST"])(function)),
    "below api_view": lambda **given: api_view(["POST"])(idempotent(**given)(function)),
    "mixin": lambda **given: type("M", (IdempotencyMixin, Plain), members(given)).as_view(),
    "as_view": lambda **given: type("M", (IdempotencyMixin, Plain), {}).as_view(**members(given)),
    "action": of_action,
    "method of a ViewSet": of_set,
}
decorated = KINDS["function"]
ONE_ARGUMENT = {"keep": lambda response: "keep"}
WRONG: list[tuple[str, dict[str, Any], str]] = [
    *[(kind, {"keep": "defualt"}, "Did you mean 'default'?") for kind in KINDS],
    *[
        (kind, ONE_ARGUMENT, "keep must take (response, exception)")
        for kind in ("as_view", "action", "keywords of a class")
    ],
    ("function", {"lease": -1}, "lease must be"),
    ("function", {"fingerprint_headers": 5}, "must be names of header fields"),
    ("function", {"scope": f"{__name__}.typo"}, "scope cannot be imported"),
    ("function", {"error_renderer": "shop.typo"}, "error_renderer cannot be imported"),
    ("function", {"replay_check": "typo"}, "replay_check cannot be imported"),
    ("function", {"fingerprint": "jsn"}, "fingerprint cannot be imported"),
    ("function", {"store": "defalt"}, "no alias 'defalt'. Did you mean 'default'?"),
    ("function", {"store": "memory", "transaction": "joined"}, "can only do 'separate'"),
    *[(kind, {"methods": ()}, "methods must not be empty") for kind in ("as_view", "action")],
    *[
        (kind, {"operation": 5}, "operation must be a string")
        for kind in ("mixin", "action", "class with mixin")
    ],
    ("class with mixin", {"store": "memory", "transaction": "joined"}, "can only do 'separate'"),
]


def test_E013_policy_of_a_view_that_cannot_be():
    for kind, given, text in WRONG:
        view = KINDS[kind](**given)
        [(number, message)] = messages(view, view, IDEMPOTENCY=WITH_MEMORY)
        assert number == "E013", kind
        assert text in message.msg, kind


def test_E013_policy_of_a_view_that_can_be():
    policies: list[dict[str, Any]] = [
        {},
        {"keep": "stripe", "lease": 5, "scope": ANYONE, "fingerprint": "raw"},
        {"store": "memory", "transaction": "separate"},
    ]
    views = [made(**given) for made in KINDS.values() for given in policies]
    assert ids(*views, IDEMPOTENCY=WITH_MEMORY) == []


def test_E013_callables_and_properties_of_a_mixin_are_not_computed():
    class Own(IdempotencyMixin, Plain):
        def idempotency_keep(self, response: Any, exception: Any) -> str:
            raise AssertionError

        @property
        def idempotency_lease(self) -> int:
            raise AssertionError

        idempotency_scope = idempotency_store = idempotency_lease
        authentication_classes = []

    assert ids(Own.as_view()) == []


@pytest.mark.parametrize(
    ("setting", "number"),
    [
        ({"default": {"LEESE": 5}}, "E002"),
        ({"default": {"HTTP": {"SCOPE": "shop.typo"}}}, "E005"),
        ("memory", "E001"),
        ({"default": {"HTTP": {"METHODS": []}}}, "E002"),
        ({"default": {"HTTP": {"FAIL_OPEN": True}}}, "W005"),
        ({"default": {"LEASE": 100, "RETENTION": 10}}, "W001"),
    ],
)
def test_E013_R61_what_is_wrong_with_the_setting_is_told_once(setting, number):
    assert ids(*[made() for made in KINDS.values()], IDEMPOTENCY=setting) == [number]


class OfNoAlias(IdempotencyMiddleware):
    store = "typo"


def test_E013_alias_of_a_middleware():
    own = f"{__name__}.OfNoAlias"
    assert ids(MIDDLEWARE=[SESSIONS, AUTHENTICATION, own]) == ["E013"]
    assert "E013" in ids(MIDDLEWARE=[SESSIONS, own, AUTHENTICATION])


def test_R61_policy_of_a_view_that_is_doubtful():
    assert {kind: ids(made(fail_open=True)) for kind, made in KINDS.items()} == {
        kind: ["W005"] for kind in KINDS
    }
    [(number, message)] = messages(decorated(lease=100, retention=10))
    assert (number, message.obj is None) == ("W012", False)


# Who authenticates.


class OwnAuthentication(AuthenticationMiddleware):
    pass


def factory(get_response: Any) -> Any:
    return get_response


OWN, FACTORY = f"{__name__}.OwnAuthentication", f"{__name__}.factory"
HEADER_USERS = f"{HeaderUsers.__module__}.HeaderUsers"


@pytest.mark.parametrize(
    ("middleware", "of_view", "of_middleware"),
    [
        ([SESSIONS], ["E007"], ["E009"]),
        ([SESSIONS, OWN], [], []),
        ([HEADER_USERS], ["W010"], ["W010"]),
        ([FACTORY, AUTHENTICATION], [], []),
    ],
)
def test_R21_middleware_that_sets_the_user(middleware, of_view, of_middleware):
    assert ids(decorated(), MIDDLEWARE=middleware) == of_view
    for kind in ("method", "class with mixin"):
        assert ids(KINDS[kind](), MIDDLEWARE=middleware) == of_view
    assert ids(MIDDLEWARE=[*middleware, OURS]) == of_middleware


def test_R21_middleware_before_a_subclass_of_authentication():
    assert ids(MIDDLEWARE=[HEADER_USERS, SESSIONS, OURS, OWN]) == ["E009"]


def test_R21_a_scope_or_a_view_of_drf_needs_no_middleware():
    kinds = ("function", "class", "method", "class with mixin")
    scoped = [KINDS[kind](scope=ANYONE) for kind in kinds]
    of_drf = [KINDS[kind]() for kind in ("above api_view", "below api_view", "mixin", "action")]
    assert ids(*scoped, *of_drf, MIDDLEWARE=[]) == []


def nobody(kind: str, **given: Any) -> Any:
    """Return a guarded view of this kind without authentication classes."""

    def own(request: Any) -> HttpResponse:  # which is marked, unlike that of other tests
        return HttpResponse()

    if kind == "below api_view":
        return api_view(["POST"])(authentication_classes([])(idempotent(**given)(own)))
    base: Any = type("Nobody", (Plain,), {"authentication_classes": []})
    if kind == "mixin":
        return type("Nobody", (IdempotencyMixin, base), members(given)).as_view()
    return on(
        "post", *((IdempotencyMixin, base) if "mixin" in kind else (base,)), **given
    ).as_view()


def test_R21_E006_view_that_authenticates_nobody():
    for kind in ("mixin", "below api_view", "post", "post of a mixin"):
        assert ids(nobody(kind)) == ["E006"], kind
        assert ids(nobody(kind, scope=ANYONE)) == [], kind


# The actions that are guarded.


class Actions(IdempotencyMixin, ViewSet):
    def create(self, request: Request) -> Response:
        return Response()

    @action(detail=False, methods=["post"])
    def capture(self, request: Request) -> Response:
        return Response()

    @capture.mapping.delete
    def release(self, request: Request) -> Response:
        return Response()


def guarding(actions: Any) -> type[Actions]:
    return type("Guarding", (Actions,), {"idempotency_actions": actions})


def test_R13_E014_actions_that_there_are_and_are_not():
    wrong: list[tuple[Any, str]] = [
        ({"create", "captur"}, "no action 'captur', which idempotency_actions names. Did you mean"),
        ({"dispatch"}, "no action 'dispatch'"),
        ("create", "'create', one string"),
    ]
    for actions, text in wrong:
        view = guarding(actions)
        [(number, message)] = messages(*[view.as_view({"post": n}) for n in ("create", "capture")])
        assert (number, message.obj) == ("E014", view)
        assert text in message.msg
    for right in (None, set(), ["create", "capture", "release"], property(lambda self: 1 / 0)):
        assert ids(guarding(right).as_view({"post": "create"})) == []


def test_R13_E014_view_that_is_no_viewset():
    view: Any = type("OnlyPost", (IdempotencyMixin, Plain), {"idempotency_actions": {"post"}})
    [(number, message)] = messages(view.as_view())
    assert (number, message.obj) == ("E014", view)
    assert "idempotency_methods" in str(message.hint)


def test_R13_E014_base_of_several_names_what_one_of_them_has():
    base: Any = type("Base", (IdempotencyMixin, ViewSet), {"idempotency_actions": {"create", "x"}})
    one = type("One", (base,), {"create": Actions.create}).as_view({"post": "create"})
    other = type("Other", (base,), {"x": Actions.create}).as_view({"post": "x"})
    assert ids(one, other) == []
    [(_, message)] = messages(one)
    assert message.obj is base
