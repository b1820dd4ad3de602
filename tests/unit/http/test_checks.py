"""System checks of views: where the decorator stands, what policy they give, who authenticates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.middleware import AuthenticationMiddleware
from django.core import checks
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.http import HttpRequest, HttpResponse
from django.test import override_settings
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View
from rest_framework import permissions
from rest_framework.decorators import action, api_view, authentication_classes
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.routers import SimpleRouter
from rest_framework.throttling import BaseThrottle
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

from django_idempotency.contrib.rest_framework import IdempotencyMixin
from django_idempotency.http import idempotent
from django_idempotency.http.middleware import IdempotencyMiddleware
from django_idempotency.models import IdempotencyRecord
from tests.app.models import Effect
from tests.app.views import HeaderAuthentication
from tests.unit.http.api import problem, replayed
from tests.unit.views.users import HeaderUsers

ANYONE = "django_idempotency.http.scopes.anyone"
SESSIONS = "django.contrib.sessions.middleware.SessionMiddleware"
AUTHENTICATION = "django.contrib.auth.middleware.AuthenticationMiddleware"
OURS = "django_idempotency.http.middleware.IdempotencyMiddleware"


class Urls:
    def __init__(self, *patterns: Any) -> None:
        self.urlpatterns = [
            path(f"{number}/", view) if callable(view) else view
            for number, view in enumerate(patterns)
        ]


def messages(*views: Any, **settings: Any) -> list[checks.CheckMessage]:
    """What the checks say of a project with these views and settings."""
    settings = {"IDEMPOTENCY": {"default": {}}, **settings}
    with override_settings(ROOT_URLCONF=Urls(*views), DEBUG=True, **settings):
        found = checks.run_checks(tags=["urls", "idempotency"])
    ours = [message for message in found if str(message.id).startswith("django_idempotency")]
    assert all(message.hint for message in ours)
    return ours


def ids(*views: Any, **settings: Any) -> list[str]:
    return [str(m.id).partition(".")[2] for m in messages(*views, **settings)]


# The decorator on dispatch of a view of Django REST framework.


class Refused(permissions.BasePermission):
    """Lets nobody through once somebody has withdrawn the permission."""

    withdrawn = False

    def has_permission(self, request: Request, view: Any) -> bool:
        return not Refused.withdrawn


class Never(BaseThrottle):
    def allow_request(self, request: Request, view: Any) -> bool:
        return False

    def wait(self) -> float:
        return 60


class Plain(APIView):
    authentication_classes = [HeaderAuthentication]
    permission_classes = [permissions.IsAuthenticated, Refused]

    def get(self, request: Request) -> Response:
        return Response()

    def post(self, request: Request) -> Response:
        return Response({"secret": Effect.objects.create(name="once").pk}, status=201)


@method_decorator(idempotent(scope=ANYONE), name="dispatch")
class OnDispatch(Plain):
    pass


class Inherits(OnDispatch):
    pass


@method_decorator([idempotent(scope=ANYONE)], name="dispatch")
class OnDispatchOfMixin(IdempotencyMixin, Plain):
    pass


@method_decorator(idempotent, name="post")
class OnPost(Plain):
    pass


@method_decorator(idempotent, name="post")
class OnPostOfMixin(IdempotencyMixin, Plain):
    pass


ON_DISPATCH = [OnDispatch, Inherits]


@pytest.mark.django_db
@pytest.mark.parametrize("view", ON_DISPATCH)
def test_R14_dispatch_of_a_drf_view_is_refused_with_what_to_write(api, mount, view):
    write = rf"dispatch of {view.__name__}.*class {view.__name__}\(IdempotencyMixin, \.\.\.\)"
    for method in ("GET", "POST"):
        with pytest.raises(TypeError, match=write):
            api(path=mount(view), method=method)

    assert not Effect.objects.exists()
    assert not IdempotencyRecord.objects.exists()


@pytest.mark.parametrize("view", ON_DISPATCH)
def test_R14_check_finds_dispatch_of_a_drf_view(view):
    [found] = messages(view.as_view(), view.as_view())

    assert (found.id, found.obj, found.level) == ("django_idempotency.E012", view, checks.ERROR)
    assert f"class {view.__name__}(IdempotencyMixin, ...)" in str(found.hint)


def test_R14_check_finds_no_other_methods():
    right: list[Any] = [Plain, OnPost, OnPostOfMixin, OnDispatchOfMixin]

    assert ids(*[view.as_view() for view in right]) == []


@pytest.mark.django_db
@pytest.mark.parametrize("view", [OnPost, OnPostOfMixin])
def test_R14_R17_R34_post_of_a_drf_view_is_guarded_once_behind_permissions_and_throttles(
    api, mount, monkeypatch, view
):
    url = mount(view)

    assert [replayed(api(path=url)) for _ in range(2)] == [False, True]
    assert Effect.objects.count() == IdempotencyRecord.objects.count() == 1
    monkeypatch.setattr(Refused, "withdrawn", True)
    assert api(path=url).status_code == 403
    monkeypatch.setattr(view, "permission_classes", [])
    monkeypatch.setattr(view, "throttle_classes", [Never])
    assert api(path=url).status_code == 429


# The policy that a view gives.

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"keep": "defualt"}, "Did you mean 'default'?"),
    ({"lease": -1}, "lease must be"),
    ({"transaction": "jioned"}, "Did you mean 'joined'?"),
    ({"fingerprint_headers": 5}, "not iterable"),
    ({"scope": "shop.typo"}, "scope cannot be imported"),
    ({"scope": f"{__name__}.typo"}, "scope cannot be imported"),
    ({"error_renderer": "shop.typo"}, "error_renderer cannot be imported"),
    ({"replay_check": "typo"}, "replay_check cannot be imported"),
    ({"fingerprint": "jsn"}, "fingerprint cannot be imported"),
    ({"store": "defalt"}, "no alias 'defalt'. Did you mean 'default'?"),
    ({"store": None}, "no alias None"),
    ({"store": "memory", "transaction": "joined"}, "can only do 'separate'"),
]
MEMORY = {"BACKEND": "django_idempotency.stores.memory.MemoryStore"}


def function(request: Any) -> HttpResponse:
    return HttpResponse()


def decorated(**given: Any) -> Any:
    return idempotent(**given)(function)


def class_view(name: str) -> Callable[..., Any]:
    def made(**given: Any) -> Any:
        @method_decorator(idempotent(**given), name=name)
        class Decorated(View):
            def post(self, request: HttpRequest) -> HttpResponse:
                return HttpResponse()

        return Decorated.as_view()

    return made


def above(**given: Any) -> Any:
    return idempotent(**given)(api_view(["POST"])(function))


def below(**given: Any) -> Any:
    return api_view(["POST"])(idempotent(**given)(function))


def mixed(**given: Any) -> Any:
    members = {f"idempotency_{name}": value for name, value in given.items()}
    return type("Mixed", (IdempotencyMixin, Plain), members).as_view()


def of_as_view(**given: Any) -> Any:
    members = {f"idempotency_{name}": value for name, value in given.items()}
    return type("OfAsView", (IdempotencyMixin, Plain), {}).as_view(**members)


def of_action(**given: Any) -> Any:
    class Set(IdempotencyMixin, ViewSet):
        @action(
            detail=False,
            methods=["post"],
            **{f"idempotency_{name}": value for name, value in given.items()},
        )
        def capture(self, request: Request) -> Response:
            return Response()

    router = SimpleRouter()
    router.register("set", Set, basename="set")
    [pattern] = router.urls
    return pattern


def of_set(**given: Any) -> Any:
    @method_decorator(idempotent(**given), name="create")
    class Set(ViewSet):
        def create(self, request: Request) -> Response:
            return Response()

    return Set.as_view({"post": "create"})


KINDS = {
    "function": decorated,
    "class": class_view("dispatch"),
    "method": class_view("post"),
    "above api_view": above,
    "below api_view": below,
    "mixin": mixed,
    "as_view": of_as_view,
    "action": of_action,
    "method of a ViewSet": of_set,
}


@pytest.mark.parametrize(
    ("kind", "given", "text"),
    [*[(kind, *WRONG[0]) for kind in KINDS], *[("function", *wrong) for wrong in WRONG[1:]]],
)
def test_E013_policy_of_a_view_that_cannot_be(kind, given, text):
    view = KINDS[kind](**given)

    [message] = messages(view, view, IDEMPOTENCY={"default": {}, "memory": MEMORY})

    assert message.id == "django_idempotency.E013"
    assert message.level == checks.ERROR
    assert text in message.msg


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"keep": "stripe", "lease": 5, "scope": ANYONE, "fingerprint": "raw"},
        {"store": "memory", "transaction": "separate"},
    ],
)
def test_E013_policy_of_a_view_that_can_be(given):
    views = [made(**given) for made in KINDS.values()]

    assert ids(*views, IDEMPOTENCY={"default": {}, "memory": MEMORY}) == []


@pytest.mark.parametrize("kind", ["as_view", "action"])
def test_E013_callable_that_does_not_take_what_it_is_called_with(kind):
    [message] = messages(KINDS[kind](keep=lambda response: "keep"), IDEMPOTENCY={"default": {}})

    assert message.id == "django_idempotency.E013"
    assert "keep must take (response, exception)" in message.msg


def test_E013_callables_and_properties_of_a_mixin_are_not_computed():
    class Own(IdempotencyMixin, Plain):
        def idempotency_keep(self, response: Any, exception: Any) -> str:
            raise AssertionError

        def idempotency_scope(self, request: Request) -> str:
            raise AssertionError

        @property
        def idempotency_lease(self) -> int:
            raise AssertionError

    assert ids(Own.as_view()) == []


@pytest.mark.parametrize(
    ("setting", "number"),
    [
        ({"default": {"LEESE": 5}}, "E002"),
        ({"default": {"HTTP": {"KEEP": "defualt"}}}, "E002"),
        ({"default": {"HTTP": {"SCOPE": "shop.typo"}}}, "E005"),
        ({"fast": {}}, "E001"),
        ("memory", "E001"),
    ],
)
def test_E013_what_is_wrong_with_the_setting_is_told_once(setting, number):
    assert ids(*[made() for made in KINDS.values()], IDEMPOTENCY=setting) == [number]


class OfNoAlias(IdempotencyMiddleware):
    store = "typo"


@pytest.mark.parametrize("after", [[], [AUTHENTICATION]])
def test_E013_alias_of_a_middleware(after):
    own = f"{__name__}.OfNoAlias"
    assert ids(MIDDLEWARE=[SESSIONS, AUTHENTICATION, own]) == ["E013"]
    assert "E013" in ids(MIDDLEWARE=[SESSIONS, own, AUTHENTICATION])


def test_E013_manage_py_check_says_it_and_is_no_traceback():
    with (
        override_settings(ROOT_URLCONF=Urls(decorated(keep="defualt"))),
        pytest.raises(SystemCheckError, match=r"django_idempotency\.E013"),
    ):
        call_command("check")


# Who authenticates.


class OwnAuthentication(AuthenticationMiddleware):
    pass


def factory(get_response: Any) -> Any:
    return get_response


@pytest.mark.parametrize(
    ("middleware", "of_view", "of_middleware"),
    [
        ([SESSIONS], ["E007"], ["E009"]),
        ([SESSIONS, AUTHENTICATION], [], []),
        ([SESSIONS, f"{__name__}.OwnAuthentication"], [], []),
        ([f"{HeaderUsers.__module__}.HeaderUsers"], ["W010"], ["W010"]),
        ([f"{__name__}.factory"], ["W010"], ["W010"]),
        ([f"{__name__}.factory", AUTHENTICATION], [], []),
        (["django.contrib.auth.middleware.RemoteUserMiddleware"], ["E007"], ["E009"]),
    ],
)
def test_R21_middleware_that_sets_the_user(middleware, of_view, of_middleware):
    assert ids(decorated(), MIDDLEWARE=middleware) == of_view
    assert ids(class_view("post")(), MIDDLEWARE=middleware) == of_view
    assert ids(MIDDLEWARE=[*middleware, OURS]) == of_middleware


def test_R21_a_scope_or_a_view_of_drf_needs_no_middleware():
    scoped = [KINDS[kind](scope=ANYONE) for kind in ("function", "class", "method")]
    of_drf = [KINDS[kind]() for kind in ("above api_view", "below api_view", "mixin", "action")]

    assert ids(*scoped, *of_drf, MIDDLEWARE=[]) == []


@pytest.mark.parametrize("first", [[], [f"{HeaderUsers.__module__}.HeaderUsers"]])
def test_R21_middleware_before_a_subclass_of_authentication(first):
    middleware = [*first, SESSIONS, OURS, f"{__name__}.OwnAuthentication"]
    assert ids(MIDDLEWARE=middleware) == ["E009"]


@pytest.mark.django_db
def test_R21_W010_where_nobody_sets_the_user(api, mount, settings):
    settings.MIDDLEWARE = [f"{__name__}.factory"]

    assert problem(api(path=mount(decorated()))) == (400, "scope_missing")


# What can be, and was perhaps not meant.


@pytest.mark.parametrize(
    ("kind", "given", "number"),
    [
        *[(kind, {"fail_open": True}, "W005") for kind in KINDS],
        ("function", {"lease": 100, "retention": 10}, "W012"),
    ],
)
def test_R61_policy_of_a_view_that_is_doubtful(kind, given, number):
    [message] = messages(KINDS[kind](**given))

    assert message.id == f"django_idempotency.{number}"
    assert message.level == checks.WARNING
    assert message.obj is not None


@pytest.mark.parametrize(
    ("setting", "number"),
    [({"HTTP": {"FAIL_OPEN": True}}, "W005"), ({"LEASE": 100, "RETENTION": 10}, "W001")],
)
def test_R61_doubts_about_the_setting_are_told_once(setting, number):
    views = [made() for made in KINDS.values()]

    assert ids(*views, IDEMPOTENCY={"default": setting}) == [number]


@pytest.mark.parametrize(
    ("setting", "where"),
    [
        ({"REQUIRED": True}, "It belongs into 'HTTP'."),
        ({"HTTP": {"LEASE": 5}}, "It belongs beside 'HTTP'."),
        ({"HTTP": {"OPTIONS": {}}}, "It belongs beside 'HTTP'."),
    ],
)
def test_E002_known_name_at_the_wrong_level(setting, where):
    [message] = messages(IDEMPOTENCY={"default": setting})

    assert message.id == "django_idempotency.E002"
    assert message.msg.endswith(where)


# Views of Django REST framework that authenticate nobody.


def nobody(kind: str, **given: Any) -> Any:
    """Return a guarded view of this kind without authentication classes."""
    if "api_view" in kind:

        def own(request: Any) -> HttpResponse:  # which is marked, unlike that of other tests
            return HttpResponse()

        if kind == "above api_view":
            return idempotent(**given)(api_view(["POST"])(authentication_classes([])(own)))
        return api_view(["POST"])(authentication_classes([])(idempotent(**given)(own)))
    mixed = kind.endswith("of a mixin")
    bases = (IdempotencyMixin, Plain) if mixed else (Plain,)
    members = {"authentication_classes": [], "post": lambda self, request: Response()}
    view: Any = type("Nobody", bases, members)
    name = "dispatch" if kind.startswith("dispatch") else "post"
    return method_decorator(idempotent(**given), name=name)(view).as_view()


UNKNOWN = ["above api_view", "below api_view", "post", "post of a mixin", "dispatch of a mixin"]


@pytest.mark.parametrize("kind", UNKNOWN)
def test_R21_E006_decorated_view_that_authenticates_nobody(kind):
    assert ids(nobody(kind)) == ["E006"]
    assert ids(nobody(kind, scope=ANYONE)) == []


def test_R21_E006_not_for_a_view_that_is_not_guarded():
    free: Any = type("Free", (Plain,), {"authentication_classes": []})

    assert ids(free.as_view()) == []


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


@pytest.mark.parametrize(
    ("actions", "text"),
    [
        ({"creat"}, "no action 'creat', which idempotency_actions names. Did you mean 'create'?"),
        ({"create", "captur"}, "Did you mean 'capture'?"),
        ({"dispatch"}, "no action 'dispatch'"),
        ("create", "'create', one string"),
    ],
)
def test_R13_E014_action_that_there_is_not(actions, text):
    view = guarding(actions)

    [message] = messages(view.as_view({"post": "create"}), view.as_view({"post": "capture"}))

    assert (message.id, message.obj) == ("django_idempotency.E014", view)
    assert message.level == checks.ERROR
    assert text in message.msg


@pytest.mark.parametrize("actions", [None, set(), {"create"}, ["create", "capture", "release"]])
def test_R13_E014_actions_that_there_are(actions):
    assert ids(guarding(actions).as_view({"post": "create"})) == []


def test_R13_E014_view_that_is_no_viewset():
    view: Any = type("OnlyPost", (IdempotencyMixin, Plain), {"idempotency_actions": {"post"}})

    [message] = messages(view.as_view())

    assert (message.id, message.obj) == ("django_idempotency.E014", view)
    assert "idempotency_methods" in str(message.hint)


def test_R13_E014_base_of_several_names_what_one_of_them_has():
    base: Any = type("Base", (IdempotencyMixin, ViewSet), {"idempotency_actions": {"create", "x"}})
    one = type("One", (base,), {"create": Actions.create})
    other = type("Other", (base,), {"x": Actions.create})

    views = [one.as_view({"post": "create"}), other.as_view({"post": "x"})]

    assert ids(*views) == []
    [message] = messages(views[0])
    assert message.obj is base
