"""Section C, R24 to R36: the first answer, what of it is kept, and who gets its replays."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import connection, connections
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.test import Client
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.http import etag
from rest_framework.decorators import api_view
from rest_framework.generics import GenericAPIView
from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.response import Response

from django_idempotency.contrib.rest_framework import object_permissions
from django_idempotency.http import idempotent
from django_idempotency.http.snapshot import SnapshotCodec
from django_idempotency.models import IdempotencyRecord
from django_idempotency.policy import HTTPPolicy, merge
from tests.app.models import Effect
from tests.unit.http.api import problem, replayed
from tests.unit.http.conftest import Mount
from tests.unit.http.views import ANYONE, BareView, GuardedView, answering

pytestmark = pytest.mark.django_db
REFUSED = (403, "replay_refused")

# What is kept of an answer: the codec alone.


def kept(response: Any, *replay_headers: str) -> HttpResponse:
    """Return what a replay of the response is."""
    codec = SnapshotCodec(replay_headers)
    return codec.decode(codec.encode(response)).response()


def with_field(name: str, value: str = "value") -> HttpResponse:
    return HttpResponse(b"body", headers={name: value})


KEPT = {
    **{"Content-Type": "text/x-test", "Content-Language": "de", "Content-Encoding": "identity"},
    **{"Content-Disposition": "attachment", "Content-Location": "/here/"},
    **{"Content-Security-Policy": "frame-ancestors 'self'", "Clear-Site-Data": '"cookies"'},
    **{"ETag": '"1"', "HX-Redirect": "/done/", "Last-Modified": "Wed, 21 Oct 2015 07:28:00 GMT"},
    **{"Link": '</next/>; rel="next"', "Location": "/there/", "Refresh": "5; url=/done/"},
    **{"Retry-After": "9", "Vary": "Accept", "X-Anything": "else"},
}
OF_ONE_REQUEST = [
    *("Correlation-Id", "RateLimit", "RateLimit-Policy", "traceparent", "X-Amzn-Trace-Id"),
    *("X-Correlation-ID", "X-Rate-Limit-Reset", "X-RateLimit-Remaining", "X-Request-Id"),
]
#: Not even if `replay_headers` names them. Set-Cookie may be written as a field, past `cookies`.
NEVER = [
    *("Access-Control-Allow-Origin", "Access-Control-Expose-Headers", "Connection", "Date"),
    *("Content-Length", "Idempotency-Stored", "Keep-Alive", "Proxy-Authenticate", "Server"),
    *("Set-Cookie", "TE", "Trailer", "Transfer-Encoding", "Upgrade", "WWW-Authenticate"),
]
ELSEWHERE = ["X-Accel-Redirect", "x-sendfile", "X-LIGHTTPD-send-file", "X-LiteSpeed-Location"]


def test_R30_header_fields_of_the_answer_are_kept():
    assert dict(kept(HttpResponse(b"body", headers=KEPT)).items()) == KEPT


def test_R30_header_field_of_a_request_or_a_connection_is_not_kept():
    names = [*OF_ONE_REQUEST, *NEVER]
    assert [name for name in names if name in kept(with_field(name))] == []
    assert [name for name in names if name in kept(with_field(name), name)] == OF_ONE_REQUEST


def test_R30_field_that_is_named_with_a_minus_is_dropped():
    named = ("-X-Anything", "ETag")
    assert "X-Anything" not in kept(with_field("x-anything"), *named)
    assert "Tag" in kept(with_field("Tag"), *named)
    old = SnapshotCodec().encode(with_field("X-Anything"))
    assert "X-Anything" not in SnapshotCodec(named).decode(old).response()


@pytest.mark.parametrize("field", ["X-Request-Id", "X-Bad", "Set-Cookie"])
def test_R30_field_that_a_replay_leaves_out_is_logged_once(api, mount, caplog, field):
    caplog.set_level("INFO", "django_idempotency")

    def answer(request: Any) -> HttpResponse:
        response = HttpResponse(b"body", headers=KEPT)
        if field == "Set-Cookie":
            response.set_cookie("seen", "secret")
        else:
            response[field] = "secret\0" if field == "X-Bad" else "secret"
        return response

    loud = mount(answering(answer), name="loud")
    named = mount(answering(answer, idempotency_replay_headers=[f"-{field}"]), name="named")
    for key in ("1", "1", "2"):
        api(path=loud, key=key)
        api(path=named, key=f"{key}-named")

    lines = [it.getMessage() for it in caplog.records if "leave out" in it.getMessage()]
    assert lines == [f"Replays of POST loud leave out the header field {field}."]
    assert "secret" not in caplog.text


def test_R30_nothing_is_logged_of_what_a_replay_has_or_of_what_is_not_kept(api, mount, caplog):
    caplog.set_level("INFO", "django_idempotency")

    def answer(request: Any) -> HttpResponse:
        status = 400 if request.headers["Idempotency-Key"] == "refused" else 201
        left_out = {"Date": "now", "Server": "x", "Idempotency-Key": "of the view"}
        left_out = {"X-Request-Id": "5"} if status == 400 else left_out
        return HttpResponse(b"body", status=status, headers={**KEPT, **left_out})

    path = mount(answering(answer), name="silent")
    for key in ("kept", "refused"):
        api(path=path, key=key)

    assert "leave out" not in caplog.text


def test_R30_R62_body_that_is_elsewhere_counts_as_a_stream_unless_it_is_named():
    for name in ELSEWHERE:
        for named in ((), (f"-{name}",)):
            with pytest.raises(TypeError, match="whose body is where"):
                kept(with_field(name), *named)
        assert kept(with_field(name), name.title())[name] == "value"


def test_R30_R62_retry_gets_the_place_of_a_body_that_is_elsewhere_where_it_is_named(
    api, mount, runs
):
    sent = answering(lambda request: HttpResponse(headers={"X-Accel-Redirect": "/files/1"}))
    api.path = mount(sent.as_view(idempotency_replay_headers=["X-Accel-Redirect"]))
    first, again = api(), api()
    assert first["X-Accel-Redirect"] == again["X-Accel-Redirect"] == "/files/1"
    assert replayed(again)

    api.path, api.key = mount(sent), "key-2"
    first, retry = api(), api()
    assert (first["X-Accel-Redirect"], first["Idempotency-Stored"]) == ("/files/1", "false")
    assert problem(retry) == (409, "result_unavailable")
    assert "X-Accel-Redirect" not in retry
    assert len(runs) == 2


def test_R30_field_whose_name_no_field_may_have_is_not_kept():
    """Django sends it; what is read again with it would count as forged."""
    assert "X Bad" not in kept(with_field("X Bad"))


def test_R25_redirects_have_a_url():
    """As Django's own: its test client follows that."""
    urls = {}
    for status in (299, 300, 399, 400):
        sent = HttpResponse(status=status, headers={"Location": "/there/"})
        urls[status] = getattr(kept(sent), "url", None)
    assert urls == {299: None, 300: "/there/", 399: "/there/", 400: None}


def test_R95_head_that_is_cut_short_is_refused_and_each_final_status_is_one():
    """Its JSON may be whole, where the length is wrong."""
    codec = SnapshotCodec()
    payload = codec.encode(HttpResponse(status=599))
    assert codec.decode(payload).status == 599
    length = int.from_bytes(payload[:4], "big") + 1
    with pytest.raises(ValueError, match="cut short"):
        codec.decode(length.to_bytes(4, "big") + payload[4:])


def test_R30_replay_headers_are_names():
    for names in (["-"], ["a b"], ["X-A\r\nX-B"], [""], [5]):
        with pytest.raises(ValueError, match="replay_headers must be names of header fields"):
            merge(HTTPPolicy(), {"replay_headers": names})


# Again.


def test_R25_replay_header_may_be_left_out(api, policy):
    policy(HTTP={"REPLAY_HEADER": None})
    first, again = api(), api()
    assert again.content == first.content
    assert not replayed(again)
    assert {*again.headers} <= {*first.headers, "Cache-Control"}


def test_R31_a_replay_is_not_stored_in_between_whatever_the_view_says(api, mount):
    api.path = mount(answering(lambda request: with_field("Cache-Control", "public, max-age=60")))
    said = [api().headers["Cache-Control"] for _ in range(2)]
    assert said == ["public, max-age=60", "no-store"]


# R33: conditions of Django's, above the guard and below it.


def add(request: Any, /, **kwargs: Any) -> HttpResponse:
    return HttpResponse(str(Effect.objects.create(name="added").pk), status=201)


class Free(View):
    def post(self, request: HttpRequest) -> HttpResponse:
        return add(request)


class OfDRF(GuardedView):
    def post(self, request: Request) -> HttpResponse:
        return add(request)


def on(name: str, view: type[View], decorator: Any) -> type[View]:
    """Return a subclass whose method, or `dispatch`, has the decorator."""
    return method_decorator(decorator, name=name)(type(view.__name__, (view,), {}))


anybody: Any = idempotent(scope=ANYONE)
#: What stands above the guard, and what below it, by the kind of view.
ORDERS: dict[str, tuple[Any, Any]] = {
    "function": (lambda check: check(anybody(add)), lambda check: anybody(check(add))),
    "class": (
        lambda check: on("dispatch", on("dispatch", Free, anybody), check),
        lambda check: on("dispatch", on("post", Free, check), anybody),
    ),
    "DRF": (lambda check: on("dispatch", OfDRF, check), lambda check: on("post", OfDRF, check)),
    "api_view": (
        lambda check: check(anybody(api_view(["POST"])(add))),
        lambda check: anybody(api_view(["POST"])(check(add))),
    ),
}


@pytest.mark.parametrize("kind", ORDERS)
def test_R33_condition_below_the_guard_is_not_asked_on_a_replay_and_one_above_it_is(
    api, mount, kind
):
    condition, headers = etag(lambda request: f'"{Effect.objects.count()}"'), {"If-Match": '"0"'}
    for decorated, statuses in zip(ORDERS[kind], ([201, 412], [201, 201]), strict=True):
        Effect.objects.all().delete()
        url = mount(decorated(condition))
        first, again = (api(path=url, key=url, headers=headers) for _ in range(2))

        assert [first.status_code, again.status_code] == statuses
        assert replayed(again) == (again.content == first.content) == (statuses[1] == 201)
        assert api(path=url, key=f"{url}new", headers=headers).status_code == 412
        assert Effect.objects.count() == 1


# R34: decorators of a function, below the middleware.


# R34: `object_permissions`, the replay_check that asks ``get_object()``.


class Own(BasePermission):
    """An object is its namesake's."""

    def has_object_permission(self, request: Request, view: Any, obj: Effect) -> bool:
        return obj.name == request.user.username


class Effects(GuardedView, GenericAPIView[Effect]):
    permission_classes = [Own]
    idempotency_replay_check = object_permissions

    def get_queryset(self) -> QuerySet[Effect]:
        assert connections["default"].in_atomic_block  # as the handler has it
        return Effect.objects.select_for_update().exclude(name="hidden")

    def post(self, request: Request, **kwargs: Any) -> Response:
        return Response(self.get_object().pk if kwargs else None)

    def delete(self, request: Request, pk: int) -> Response:
        effect = self.get_object()
        if request.data.get("refuse"):
            return Response({"why": "it has children"}, status=409)
        effect.delete()
        return Response(status=204)


@pytest.fixture
def url(mount: Mount, transactional_db: None) -> str:
    return f"{mount(Effects, '<int:pk>/')}{Effect.objects.create(name='alice').pk}/"


@pytest.mark.parametrize("name", ["bob", "hidden"])
def test_R34_object_permission_withdrawn_in_between(api, url, name):
    assert [replayed(api(path=url)) for _ in range(2)] == [False, True]
    Effect.objects.update(name=name)
    kept = IdempotencyRecord.objects.values().get()
    assert problem(api(path=url)) == REFUSED
    assert IdempotencyRecord.objects.values().get() == kept


@pytest.mark.parametrize("coroutine", [False, True])
@pytest.mark.parametrize(("mode", "within"), [("joined", True), ("separate", False)])
def test_R34_the_check_has_a_transaction_where_the_work_had_one(
    transactional_db, mount, policy, mode, within, coroutine
):
    """And is asked on a thread that may use the database."""
    policy(TRANSACTION=mode)
    seen: list[bool] = []

    def check(request: Any, record: Any) -> bool:
        seen.append(connection.in_atomic_block)
        return not Effect.objects.exists()

    async def work(request: Any) -> HttpResponse:
        return HttpResponse()

    view = work if coroutine else lambda request: HttpResponse()
    url = mount(idempotent(scope=ANYONE, replay_check=check)(view))
    sent = [Client().post(url, headers={"Idempotency-Key": "k"}) for _ in range(2)]

    assert [replayed(it) for it in sent] == [False, True]
    assert seen == [within]


@pytest.mark.parametrize("keys", [(), [bytes(32)]], ids=["plain", "encrypted"])
def test_R34_DELETE_is_replayed_when_it_was_done_and_the_object_is_out_of_sight(
    api, url, policy, keys
):
    policy(ENCRYPTION_KEYS=keys)
    refused: dict[str, Any] = {"body": {"refuse": True}, "path": url, "method": "DELETE"}
    done = {**refused, "body": {}, "key": "done"}
    assert [replayed(api(**refused)) for _ in range(2)] == [False, True]
    assert [replayed(api(**done)) for _ in range(2)] == [False, True]
    assert problem(api(**refused)) == REFUSED


def test_R34_without_a_look_up_argument_it_is_true(api, mount, policy):
    """A view that has no get_object() is an error as soon as its URL names something."""
    policy(HTTP={"REPLAY_CHECK": "django_idempotency.contrib.rest_framework.object_permissions"})
    of_drf = api_view(["POST"])(lambda request, **kwargs: Response())
    views = [BareView, anybody(of_drf), anybody(lambda request, **kwargs: JsonResponse({}))]
    for view in (Effects, *views):
        url = mount(view)
        assert [replayed(api(path=url, key=url)) for _ in range(2)] == [False, True]
    for view in views:
        url = f"{mount(view, '<int:pk>/')}1/"
        api(key=url, path=url)
        with pytest.raises(ImproperlyConfigured, match="replay_check of its own"):
            api(key=url, path=url)
