"""R34: the guard of a class view stands before its handler, within the checks of dispatch."""

from __future__ import annotations

import logging
from functools import partial, wraps
from itertools import product

import pytest
from asgiref.sync import iscoroutinefunction
from django.contrib.auth.mixins import UserPassesTestMixin
from django.core.exceptions import ImproperlyConfigured
from django.db import connection
from django.http import HttpResponse
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.cache import never_cache

from django_idempotency.http import IdempotencyViewMixin, idempotent
from django_idempotency.models import IdempotencyRecord
from tests.app.models import Effect
from tests.unit.http.api import problem, replayed
from tests.unit.http.views import ANYONE
from tests.unit.views.conftest import GUARD, USERS, api_for
from tests.unit.views.urls import FreeAsyncClass, FreeClass, FreeDRF

pytestmark = pytest.mark.django_db(transaction=True)

anybody = idempotent(scope=ANYONE)
on_dispatch = method_decorator(anybody, name="dispatch")


class Withdrawable(UserPassesTestMixin):
    """What a project may put before a view; `allowed` is what its test says."""

    allowed = True
    raise_exception = True

    def test_func(self):
        return Withdrawable.allowed


def new(*bases, **members):
    return type("New", bases, members)


def with_mixin(*bases, **members):
    return new(IdempotencyViewMixin, *bases, idempotency_scope=ANYONE, **members)


def never_cached(view):
    """Its `dispatch` is decorated, and as_view() copies what that has."""
    return method_decorator(never_cache, name="dispatch")(new(Withdrawable, view))


#: Where the guard may stand.
PLACES = {
    "on the class": lambda view: on_dispatch(new(Withdrawable, view)).as_view(),
    "on a base": lambda view: new(Withdrawable, on_dispatch(new(view))).as_view(),
    "mixin": lambda view: with_mixin(Withdrawable, view).as_view(),
    "mixin of a base": lambda view: never_cache(new(Withdrawable, with_mixin(view)).as_view()),
    "middleware": lambda view: new(Withdrawable, view).as_view(),
    "middleware, decorated": lambda view: never_cached(view).as_view(),
}


@pytest.fixture
def serve(settings, policy, monkeypatch):
    """`serve(view)` is a client of it, under WSGI unless told otherwise; all have one scope."""
    policy(HTTP={"SCOPE": ANYONE})
    monkeypatch.setattr(Withdrawable, "allowed", True)

    def mount(view, stack="wsgi", *, middleware=False):
        monkeypatch.setattr("tests.unit.views.urls.urlpatterns", [path("here/", view)])
        settings.ROOT_URLCONF = "tests.unit.views.urls"
        settings.MIDDLEWARE = [USERS, GUARD] if middleware else [USERS]
        return api_for(stack, "/here/")

    return mount


@pytest.mark.parametrize(
    ("place", "view_class"),
    [
        *product(PLACES, [FreeClass]),
        *product(["on the class", "mixin", "middleware"], [FreeAsyncClass]),
    ],
)
def test_R34_check_of_a_mixin_is_asked_on_a_replay(serve, runs, place, view_class):
    stack = "wsgi" if view_class is FreeClass else "asgi"
    api = serve(PLACES[place](view_class), stack, middleware="middleware" in place)
    Withdrawable.allowed = False
    refused_first = api()
    assert not IdempotencyRecord.objects.exists()

    Withdrawable.allowed = True
    first, again = api(), api()
    kept = IdempotencyRecord.objects.values().get()
    Withdrawable.allowed = False
    refused = api()

    assert [refused_first.status_code, first.status_code, refused.status_code] == [403, 201, 403]
    assert first.content not in refused.content
    assert IdempotencyRecord.objects.values().get() == kept
    Withdrawable.allowed = True
    assert replayed(again)
    assert replayed(api())
    assert len(runs) == 1


@pytest.mark.parametrize(
    ("place", "view_class"),
    [
        ("on the class", FreeClass),
        ("mixin", FreeAsyncClass),
        ("middleware", FreeClass),
    ],
)
def test_R15_method_that_the_view_lacks_never_claims(serve, policy, caplog, place, view_class):
    policy(HTTP={"KEEP": "stripe"})
    view = PLACES[place](type("OnlyGet", (View,), {"get": view_class.get}))
    api = serve(view, middleware="middleware" in place)

    assert [api(method=method).status_code for method in ("POST", "PATCH")] == [405, 405]
    assert not IdempotencyRecord.objects.exists()
    assert not [log for log in caplog.records if log.name == "django_idempotency"]


class Overridden(FreeClass):
    """Forms can only post: a hidden field names the method."""

    def dispatch(self, request, *args, **kwargs):
        request.method = "DELETE"
        return super().dispatch(request, *args, **kwargs)

    def delete(self, request):
        return super().post(request)


@pytest.mark.parametrize("place", PLACES)
def test_R1_handler_of_a_method_that_dispatch_has_changed_is_guarded(serve, policy, runs, place):
    policy(HTTP={"SCOPE": ANYONE, "METHODS": {"POST", "DELETE"}, "REQUIRED": True})
    api = serve(PLACES[place](Overridden), middleware="middleware" in place)
    first, again, keyless = api(), api(), api(key=None)
    assert (first.status_code, replayed(again), len(runs)) == (201, True, 1)
    assert problem(keyless) == (400, "idempotency_key_missing")


class Dressed(View):
    """Its dispatch does something before and after."""

    seen = []

    def dispatch(self, request, *args, **kwargs):
        self.seen.append((request.idempotency, connection.in_atomic_block))
        response = super().dispatch(request, *args, **kwargs)
        response["X-Dressed"] = "yes"
        return response

    def post(self, request):
        effect = Effect.objects.create(name="dressed")
        return HttpResponse(str((effect.pk, connection.in_atomic_block)))

    def get(self, request):
        return HttpResponse(str(connection.in_atomic_block))


@pytest.mark.parametrize("guard", [lambda view: on_dispatch(new(view)), with_mixin])
def test_R18_R83_own_dispatch_runs_on_each_request_outside_of_ATOMIC_REQUESTS(serve, atomic, guard):
    """They are around the handler, or around all of a method that is not guarded."""
    Dressed.seen.clear()
    api = serve(guard(Dressed).as_view())

    first, again, keyless, read = api(), api(), api(key=None), api(method="GET")

    assert Dressed.seen == [*[(None, False)] * 3, (None, True)]
    assert all(b"True" in answer.content for answer in (first, keyless, read))
    assert (replayed(again), again.content) == (True, first.content)
    assert first["X-Dressed"] == again["X-Dressed"] == "yes"


class Worker(View):
    idempotency_guards = "dispatch"

    def dispatch(self, request, *args, **kwargs):
        return HttpResponse(str(Effect.objects.create(name="work").pk))


class AsyncWorker(FreeAsyncClass):
    idempotency_guards = "dispatch"

    async def dispatch(self, request, *args, **kwargs):
        return HttpResponse(str((await Effect.objects.acreate(name="work")).pk))


@pytest.mark.parametrize(
    ("guard", "worker"),
    [
        (lambda view: on_dispatch(new(view)), Worker),
        (new, Worker),
        (with_mixin, Worker),
        (with_mixin, AsyncWorker),
    ],
    ids=["decorator", "middleware", "mixin", "mixin of a coroutine"],
)
def test_R25_dispatch_that_is_the_work_itself_and_says_so_is_guarded(serve, runs, guard, worker):
    stack = "asgi" if worker is AsyncWorker else "wsgi"
    api = serve(guard(worker).as_view(), stack, middleware=guard is new)

    assert [replayed(api()) for _ in range(2)] == [False, True]
    assert len(runs) == 1


def told(caplog):
    return [record.getMessage() for record in caplog.records if record.name[:6] == "django"]


@pytest.mark.parametrize("is_async", [False, True])
def test_R62_dispatch_that_passes_the_handler_by_is_not_silent(serve, caplog, is_async):
    """What it answers without success may be a check's."""

    async def coroutine(response):
        return response

    class Ajax(FreeAsyncClass if is_async else FreeClass):
        def dispatch(self, request, *args, **kwargs):
            if status := request.headers.get("X-Ajax"):
                response = HttpResponse("created", status=int(status))
                return coroutine(response) if is_async else response
            return super().dispatch(request, *args, **kwargs)

    api = serve(on_dispatch(Ajax).as_view())
    with caplog.at_level(logging.ERROR, "django_idempotency"):
        passed_by, *others = (api(headers={"X-Ajax": status}) for status in ("200", "302", "199"))

    assert (passed_by.content, passed_by["Idempotency-Stored"]) == (b"created", "false")
    assert told(caplog) == [
        "Ajax answered a request with an idempotency key without a call of its post(): nothing "
        "was guarded."
    ]
    others.append(api(headers={"X-Ajax": "200"}, key=None))
    assert not any("Idempotency-Stored" in other for other in others)
    assert [replayed(api()) for _ in range(2)] == [False, True]


@pytest.mark.parametrize("guard", [with_mixin, new])
def test_R62_dispatch_that_is_the_work_and_does_not_say_so_is_not_silent(serve, caplog, guard):
    silent = guard(Worker, idempotency_guards="handler")
    answer = serve(silent.as_view(), middleware=guard is new)()

    assert answer["Idempotency-Stored"] == "false"
    [line] = told(caplog)
    assert "nothing was guarded" in line


def decorated(view):
    """Let nobody pass who is not `allowed`, as a decorator of a project may."""

    @wraps(view)
    def checked(request, *args, **kwargs):
        return view(request, *args, **kwargs) if Withdrawable.allowed else HttpResponse(status=403)

    @wraps(view)
    async def achecked(request, *args, **kwargs):
        return await view(request, *args, **kwargs) if Withdrawable.allowed else checked(request)

    return achecked if iscoroutinefunction(view) else checked


def naming_its_class(view):
    """A decorator that copies of ``as_view()`` the class alone."""

    def called(request, *args, **kwargs):
        return view(request, *args, **kwargs)

    called.view_class = view.view_class
    return called


#: What may stand around as_view().
AROUND = {
    "decorator": decorated(FreeClass.as_view()),
    "decorator of a coroutine": decorated(FreeAsyncClass.as_view()),
    "partial": partial(new(Withdrawable, FreeClass).as_view()),
    "function": naming_its_class(new(Withdrawable, FreeClass).as_view()),
}


@pytest.mark.parametrize("middleware", [True, False], ids=["middleware", "guard around it"])
@pytest.mark.parametrize("around", AROUND)
def test_R17_R34_no_decorator_of_a_class_view_is_skipped_and_no_request_passes_in_silence(
    serve, policy, runs, caplog, around, middleware
):
    """Around as_view() a guard cannot stand; where a key is required, nothing runs."""
    view, stack = AROUND[around], "asgi" if "coroutine" in around else "wsgi"
    api = serve(view if middleware else anybody(view), stack, middleware=middleware)

    answers = [api(), api(), api(key=None), api(method="GET")]
    Withdrawable.allowed = False
    refused = api()

    stored = [answer.get("Idempotency-Stored") for answer in answers]
    assert stored == ["false", "false", None, None]
    assert not any(map(replayed, answers))
    assert (refused.status_code, len(runs)) == (403, 3)
    assert told(caplog)[0].partition("Write class ")[2].startswith(("Free", "New"))
    Withdrawable.allowed = True
    policy(HTTP={"SCOPE": ANYONE, "REQUIRED": True})
    for key in ("1", None):
        with pytest.raises(ImproperlyConfigured, match=r"IdempotencyViewMixin, \.\.\.\)"):
            api(key=key)
    assert api(method="GET").status_code == 200
    assert len(runs) == 3
    assert not IdempotencyRecord.objects.exists()


def test_R17_middleware_leaves_a_view_of_rest_framework_behind_a_partial_alone(serve):
    api = serve(partial(FreeDRF.as_view()), middleware=True)
    assert [replayed(api()) for _ in range(2)] == [False, False]


by_own_header = idempotent(header="X-Own", scope=ANYONE)


@by_own_header
def own(request, status):
    return HttpResponse(status=status)


of_its_base = method_decorator(by_own_header, name="dispatch")(new(FreeAsyncClass))


@pytest.mark.parametrize(
    ("view", "stack"),
    [
        (partial(own, status=201), "wsgi"),
        # The mixin's dispatch hides the mark of the guard behind it.
        (new(Withdrawable, of_its_base).as_view(), "asgi"),
    ],
    ids=["behind a partial", "on a base"],
)
def test_R17_middleware_leaves_a_view_to_its_own_guard(serve, caplog, view, stack):
    api = serve(view, stack, middleware=True)
    answers = [api(headers={"X-Own": "1"}, key=key) for key in ("1", "2")]

    assert [replayed(answer) for answer in answers] == [False, True]
    assert "Idempotency-Stored" not in answers[1]
    assert told(caplog) == []


def test_R17_middleware_changes_no_class_of_the_project(serve):
    before = dict(vars(FreeClass)), dict(vars(View))
    api = serve(FreeClass.as_view(), middleware=True)
    assert [replayed(api()) for _ in range(2)] == [False, True]
    assert (dict(vars(FreeClass)), dict(vars(View))) == before


@pytest.mark.parametrize("base", [FreeClass, FreeAsyncClass])
def test_R17_R1_of_two_guards_of_a_class_the_outer_one_guards_alone(serve, caplog, base):
    own = idempotent(required=True, scope=ANYONE)
    view = method_decorator(own, name="dispatch")(new(on_dispatch(new(base)))).as_view()

    api = serve(view, "asgi" if base is FreeAsyncClass else "wsgi")
    assert problem(api(key=None)) == (400, "idempotency_key_missing")
    answers = [api(), api()]

    assert [replayed(answer) for answer in answers] == [False, True]
    assert "Idempotency-Stored" not in answers[1]
    assert told(caplog) == []


# The mixin.


class Owned(IdempotencyViewMixin, FreeClass):
    tenant = "one"
    idempotency_required = True
    idempotency_echo_key = True

    def idempotency_scope(self, request):
        return f"{self.tenant} {self.request.headers['X-User']}"


@method_decorator(idempotent(required=False), name="put")
@method_decorator([never_cache, idempotent(echo_key=False, store="memory")], name="dispatch")
class Nearer(Owned):
    def put(self, request, **kwargs):
        return super().put(request, **kwargs)


def test_R18_attributes_of_the_mixin_are_the_policy_and_callables_are_methods(serve):
    api = serve(Owned.as_view(tenant="two"))

    assert problem(api(key=None)) == (400, "idempotency_key_missing")
    assert [(it["Idempotency-Key"], replayed(it)) for it in (api(), api())] == [
        ('"key-1"', False),
        ('"key-1"', True),
    ]
    assert IdempotencyRecord.objects.get().scope == "two alice"


def test_R17_what_stands_nearest_to_the_work_counts_and_one_guard_guards(serve, runs):
    api = serve(Nearer.as_view(idempotency_header="X-Key"))

    def with_key(**given):
        return api(key=None, headers={"X-Key": "k"}, **given)

    assert problem(api()) == (400, "idempotency_key_missing")
    answers = [with_key(), with_key()]
    assert [replayed(answer) for answer in answers] == [False, True]
    assert "X-Key" not in answers[0]
    assert [api(method="PUT").status_code for _ in range(2)] == [201, 201]
    assert (len(runs), IdempotencyRecord.objects.count()) == (3, 0)


def test_R89_mixin_finds_the_key_in_a_form(serve):
    api = serve(with_mixin(View, post=lambda self, request: HttpResponse("done")).as_view())
    form = {"key": None, "content_type": "application/x-www-form-urlencoded"}
    assert [replayed(api("idempotency_key=k", **form)) for _ in range(2)] == [False, True]


def test_R18_mixin_refuses_a_class_that_it_cannot_guard():
    mixin = IdempotencyViewMixin
    for bases, members, error, said in (
        ((FreeClass, mixin), {}, TypeError, r"New\(IdempotencyViewMixin, \.\.\.\)"),
        ((mixin, FreeDRF), {}, TypeError, r"contrib\.rest_framework"),
        ((mixin, View), {"idempotency_actions": {"post"}}, TypeError, "idempotency_actions"),
        ((mixin, View), {"idempotency_guards": "post"}, ValueError, "'handler' or 'dispatch'"),
    ):
        with pytest.raises(error, match=said):
            new(*bases, **members)


def test_R17_decorator_around_as_view_of_a_class_that_guards_itself_is_refused():
    for view in (Owned.as_view(), on_dispatch(new(FreeClass)).as_view()):
        with pytest.raises(TypeError, match="guarded already"):
            anybody(view)


def test_R83_mixin_leaves_the_transactions_to_the_guard_and_methods_take_no_memory(serve):
    """Clients may send any method; only those that a view has are known by name."""
    view = Owned.as_view()
    assert "default" in view._non_atomic_requests
    api = serve(view)
    assert {api(method=method).status_code for method in ("ODD", "ODDER")} == {405}
    assert not {"odd", "odder"} & set(Owned._plans)
