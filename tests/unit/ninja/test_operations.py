"""
Guarded operations of django-ninja: what is claimed, kept and replayed, and what is refused.

What can be seen from outside is in tests/integration/contract_http/test_ninja.py.
"""
# mypy: ignore-errors

from __future__ import annotations

import json
from io import BytesIO
from typing import NamedTuple

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import ImproperlyConfigured
from django.test import Client, RequestFactory
from django.urls import path as route
from ninja import NinjaAPI, Router, Schema
from ninja.decorators import decorate_view
from ninja.streaming import SSE

from django_idempotency.contrib.ninja import idempotent
from django_idempotency.http import idempotent as plain
from django_idempotency.http.checks import check_views
from django_idempotency.models import IdempotencyRecord
from django_idempotency.operators.guarded import guarded
from tests.app.models import Effect
from tests.unit.http.api import problem, replayed
from tests.unit.ninja import urls
from tests.unit.views.work import found

pytestmark = pytest.mark.django_db(transaction=True)

SYNC, ASYNC, JOINED = "/api/effects/", "/api/aeffects/", "/api/ajoined/"
both = pytest.mark.parametrize("path", [SYNC, ASYNC])
FORM = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nabc\r\n--b--\r\n'


def states():
    return list(IdempotencyRecord.objects.values_list("state", flat=True))


class Work(NamedTuple):
    """What an operation does, what the caller gets, and what is left."""

    then: str
    status: int = 0
    answer: int = 500
    state: str = "FAILED"
    effects: int = 0


@pytest.mark.parametrize("path", [SYNC, JOINED, "/api/one/effects/"])
@pytest.mark.parametrize(
    "work",
    [
        Work("created", status=402, answer=402, state="COMPLETED", effects=1),
        Work("created", status=204, answer=204, state="COMPLETED", effects=1),
        Work("created", status=503, answer=503),
        Work("raised", status=402, answer=402, state="COMPLETED"),
        Work("raised", status=400, answer=400, state="RELEASED"),
        Work("raised", status=503, answer=503),
        Work("domain", answer=409, state="COMPLETED"),
        Work("odd"),
        Work("boom"),
        Work("misshapen"),
        Work("rolled_back", status=201, answer=201),
    ],
    ids=lambda work: f"{work.then}-{work.status}",
)
def test_R55_R57_R58_R91_status_decides_about_the_work_and_verdict_about_the_record(at, path, work):
    answers = [at(path).then(work.then, status=work.status) for _ in range(2)]

    kept = work.state == "COMPLETED"
    assert [it.status_code for it in answers] == [work.answer, work.answer]
    assert [replayed(it) for it in answers] == [False, kept]
    assert (Effect.objects.count(), states()) == (work.effects, [work.state])
    asked = {"domain": ["domain"], "odd": ["odd", "odd"]}
    assert urls.calls == asked.get(work.then, []), "the API's handlers are asked once for each run"


def release(response, exception):
    return "release"


@pytest.mark.parametrize("keep", ["default", release])
@pytest.mark.parametrize("path", ["/heard/effects/", "/heard/aeffects/"])
@pytest.mark.parametrize(
    ("then", "status", "asked"),
    [
        ("boom", 500, ["RuntimeError"]),
        ("odd", 500, ["Odd", "odd"]),
        ("domain", 409, ["Domain", "domain"]),
    ],
)
def test_R58_api_is_asked_once_about_an_error_and_is_left_as_it_was(
    at, policy, path, then, status, asked, keep
):
    """The API is of a class of the project's, which overrides on_exception."""
    policy(HTTP={"KEEP": keep})
    assert at(path).then(then).status_code == status
    assert urls.calls == asked
    assert at(SYNC).then("odd", key="key-2").status_code == 500
    assert [it for it in (urls.api, urls.heard) if "on_exception" in vars(it)] == []


@pytest.mark.parametrize(
    ("then", "effects", "state"),
    [("created", 1, "COMPLETED"), ("raised", 0, "COMPLETED"), ("domain", 0, "COMPLETED")],
)
@pytest.mark.parametrize("key", ["key-1", None])
def test_R83_R90_within_the_transaction_of_the_request(at, atomic, then, effects, state, key):
    answers = [at("/api/optional/").then(then, status=402, key=key) for _ in range(2)]

    assert [replayed(it) for it in answers] == [False, key is not None]
    assert (Effect.objects.count(), states()) == ((effects, [state]) if key else (2 * effects, []))


@both
def test_R62_generator_runs_after_its_record_is_completed_and_the_log_says_so(at, path, caplog):
    found.clear()
    first, _, retry = (at(path).then("broken_stream", key=key) for key in ("a", "b", "a"))

    assert (found, states()) == ([], ["COMPLETED", "COMPLETED"])
    assert first["Idempotency-Stored"] == "false"
    with pytest.raises(OSError, match="broken off"):
        b"".join(first)
    assert found == [["COMPLETED", "COMPLETED"]]
    assert problem(retry) == (409, "result_unavailable")
    said = [it for it in caplog.records if "the generator of its response" in it.getMessage()]
    assert len(said) == 1


@pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume:Warning")  # of a coroutine
@pytest.mark.parametrize("path", ["events", "aevents"])
def test_R17_guard_of_a_router_leaves_what_reads_a_stream_alone(client, path):
    answer = client.get(f"/api/one/{path}/", headers={"X-User": "alice"})
    lines = b"".join(answer).splitlines()
    assert [json.loads(line)["name"] for line in lines] == ["a", "b"]


def test_R34_decorator_above_the_guard_is_asked_on_a_replay_too(at):
    for path in ("/api/asked/", "/api/one/effects/"):
        api = at(path)
        api.key = path
        refused = [api(headers=forbidden).status_code for forbidden in ({}, {"X-Forbidden": "1"})]
        assert refused == [201, 403]


@pytest.mark.parametrize(
    ("path", "body", "kind"),
    [
        ("/api/upload/3/", FORM, "multipart/form-data; boundary=b"),
        ("/api/bare/?amount=5", b"12", "text/plain"),
        (SYNC, b'{"name": "first"}', "application/json"),
    ],
)
def test_body_that_breaks_off_does_not_have_the_key(path, body, kind):
    def send(length):
        """Send as servers hand on what they have: with the Content-Length that was said."""
        headers = {"Idempotency-Key": "key-1", "X-User": "alice"}
        environ = {"CONTENT_LENGTH": str(length), "CONTENT_TYPE": kind}
        environ["wsgi.input"] = BytesIO(body)
        return Client().generic("POST", path, headers=headers, **environ)

    assert (send(len(body) + 50).status_code, states()) == (400, [])
    assert send(len(body)).status_code < 300


def test_R17_nearest_guard_counts_and_several_do_the_work_once(at):
    own = ("/api/one/own/", "/api/one/child/effects/")
    for path in ("/api/twice/", *own):
        api = at(path)
        api.key = path
        assert [replayed(api()), replayed(api())] == [False, True]
    assert IdempotencyRecord.objects.count() == Effect.objects.count() == 3
    for path in own:
        assert at(path)(key=None).status_code == 201, "its own guard asks for no key"
    assert problem(at("/api/one/effects/")(key=None))[0] == 400


def test_R17_middleware_leaves_guarded_operations_alone(at, settings):
    settings.MIDDLEWARE = ["django_idempotency.http.middleware.IdempotencyMiddleware"]
    assert at(SYNC)(user=None).status_code == 401
    assert states() == []


def test_R21_default_scope_is_whom_the_operation_has_authenticated(at, client):
    alice = User.objects.create_user("alice")
    client.force_login(alice)

    api = at("/texts/keys/")
    api.client = client  # an API key beside a session cookie: neither may be the other's scope
    with pytest.raises(ImproperlyConfigured, match=r"gives a str as request\.auth, not a user"):
        api()
    assert (Effect.objects.count(), states()) == (0, [])

    one, other = at("/texts/scoped/")(), at("/texts/scoped/")(user="bob")
    assert [replayed(one), replayed(other)] == [False, False]
    scopes = IdempotencyRecord.objects.values_list("scope", flat=True)
    assert set(scopes) == {"key:alice", "key:bob"}

    of_session = at("/texts/session/")
    of_session.client = client
    assert of_session(user=None).status_code == 201
    assert f"user:auth.user:{alice.pk}" in scopes.all()


def test_R21_problem_is_written_by_the_renderer_of_the_api(at):
    refused = at("/texts/open/")(user=None)

    assert refused["Content-Type"] == "text/plain; charset=utf-8"
    assert json.loads(refused.content.lower())["code"] == "scope_missing"
    assert (refused.status_code, states()) == (400, [])


def test_OpenAPI_describes_the_key_and_the_problems(policy):
    paths = urls.api.get_openapi_schema()["paths"]

    def header(path, method="post"):
        parameters = paths[f"/api/{path}/"][method]["parameters"]
        return [it for it in parameters if it["in"] == "header"]

    [required] = header("effects")
    assert (required["name"], required["required"]) == ("Idempotency-Key", True)
    for path in ("optional", "one/own", "one/child/effects"):
        [optional] = header(path)
        assert "required" not in optional
    assert [len(header(path)) for path in ("one/effects", "two/effects", "twice")] == [1, 1, 1]
    assert header("one/effects", "get") == header("effects", "get") == []
    assert [it["name"] for it in header("named")] == ["idempotency-key", "tag"]
    responses = paths["/api/effects/"]["post"]["responses"]
    assert {201, 400, 409, 422, 503} <= set(responses)
    assert "Idempotency-Expires" in responses[201]["headers"]
    assert responses[201]["content"]["application/json"]["schema"]
    assert "application/problem+json" in responses[409]["content"]
    json.dumps(urls.api.get_openapi_schema())


def no_wraps(function):
    return lambda request: function(request)


def work():
    return lambda request: {}


REFUSED = {
    "above": lambda router: idempotent(router.post("/")(work())),
    "operation mode": lambda router: (
        router.post("/")(work()),
        router.add_decorator(idempotent()),
    ),
    "class": lambda router: idempotent(Schema),
    "above decorate_view without wraps": lambda router: router.post("/")(
        idempotent(decorate_view(no_wraps)(work()))
    ),
    "stream": lambda router: router.post("/", response=SSE[Schema])(idempotent(work())),
    "stream of a method that is not guarded": lambda router: router.get("/", response=SSE[Schema])(
        idempotent(work())
    ),
    "stream under a router": lambda router: (
        router.add_decorator(idempotent(), mode="view"),
        router.post("/", response=SSE[Schema])(work()),
    ),
    "unknown field": lambda router: idempotent(requird=True),
    "plain above": lambda router: plain(router.post("/")(work())),
    "plain below": lambda router: router.post("/")(plain(work())),
    "plain in decorate_view": lambda router: router.post("/")(
        decorate_view(plain(required=True))(work())
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_guarded_is_refused_when_it_is_declared(what):
    router, api = Router(), NinjaAPI(urls_namespace=what)
    api.add_router("", router)

    def declare():
        REFUSED[what](router)
        return api.urls

    with pytest.raises(TypeError, match="idempotent"):
        declare()


def test_guard_that_ninja_does_not_know_refuses_each_request():
    api = NinjaAPI(urls_namespace="unknown")
    api.post("/here/")(no_wraps(idempotent(work())))
    [here] = [pattern for pattern in api.urls[0] if "here" in str(pattern.pattern)]
    with pytest.raises(TypeError, match=r"functools\.wraps"):
        here.callback(RequestFactory().post("/here/"))


def test_plain_decorator_says_what_to_use_for_a_result_that_is_no_response():
    request = RequestFactory().post("/")
    request.user = User.objects.create(username="alice")
    with pytest.raises(TypeError, match=r"contrib\.ninja"):
        plain(lambda request: {"id": 1})(request)


def test_command_shows_each_operation_of_a_path_and_how_it_commits():
    """One guard of a router stands around them all; ninja makes one coroutine of their path."""
    found = [it for it in guarded() if any("mixed" in route for route in it["routes"])]
    routes = [f"/{api}/{name}/mixed/" for api in ("api", "texts") for name in ("one", "two")]
    shown = [(it["name"], it["methods"], it["transaction"], it["routes"]) for it in found]
    assert shown == [
        (f"{urls.__name__}.made", ["POST"], "joined", routes),
        (f"{urls.__name__}.areplaced", ["PUT"], "separate", routes),
    ]


def test_R96_check_reports_each_coroutine_of_a_router(atomic):
    reported = " ".join(it.msg for it in check_views() if it.id == "django_idempotency.E015")
    assert f"{urls.__name__}.areplaced is a coroutine" in reported


@pytest.mark.parametrize("wrong", [{"keep": "defualt"}, {"lease": -1}, {"store": "nowhere"}])
def test_invalid_value_is_an_error_of_the_check_and_not_of_the_import(settings, wrong):
    api = NinjaAPI(urls_namespace="wrong")
    api.post("/", auth=urls.Users())(idempotent(**wrong)(work()))
    settings.ROOT_URLCONF = (route("", api.urls),)
    assert [it.id for it in check_views()] == ["django_idempotency.E013"]
    [shown] = [it for it in guarded() if it["kind"] == "view"]
    assert shown["problem"]
