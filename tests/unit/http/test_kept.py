"""Section F, R55 to R64, R95: which answers are kept, hooks that raise, stores that fail or lie."""

from __future__ import annotations

import io
import logging
from typing import Any

import pytest
from django.conf import settings
from django.db import OperationalError, connection, connections, transaction
from django.http import FileResponse, HttpResponse, StreamingHttpResponse
from django.shortcuts import redirect
from django.test import Client
from rest_framework.request import Request
from rest_framework.response import Response

from django_idempotency.exceptions import InProgress, ResultTooLarge
from django_idempotency.exceptions.base import SessionLost
from django_idempotency.http import idempotent
from django_idempotency.http.snapshot import SnapshotCodec
from django_idempotency.http.verdicts import verdict_on
from django_idempotency.models import IdempotencyRecord
from django_idempotency.policy import HTTPPolicy
from django_idempotency.transactions.aliases import AtomicBlocks
from tests.app.models import Effect
from tests.app.views import EffectView, Refusal
from tests.unit.http.api import problem, replayed
from tests.unit.http.views import (
    ANYONE,
    BESIDE,
    KEYED,
    OPEN,
    UNAVAILABLE,
    GuardedView,
    answering,
    state_seen_by_others,
)

pytestmark = pytest.mark.django_db(transaction=True)
BOTH = pytest.mark.django_db(transaction=True, databases=["default", "other"])

# The verdicts.

RELEASED = {400, 401, 403, 404, 405, 406, 407, 408, 411, 413, 415, 425, 429}
STATUSES = [*range(200, 209), 226, *range(300, 309), *range(400, 432), 451, *range(500, 512), 599]


def default(status: int) -> str:
    if status >= 500:
        return "fail"
    return "release" if status in RELEASED else "keep"


def test_R55_R56_verdict_of_a_preset():
    presets = {
        "default": default,
        "success": lambda status: "keep" if status < 400 else "fail",
        "stripe": lambda status: "keep",
    }
    for preset, expected in presets.items():
        policy = HTTPPolicy(keep=preset)
        for error in (None, Refusal(409)):
            found = {s: verdict_on(policy, HttpResponse(status=s), error) for s in STATUSES}
            assert found == {s: expected(s) for s in STATUSES}, preset


def test_R34_redirect_to_the_login_page_is_never_kept(settings):
    verdicts = {
        ("/login/?next=/a", "/login/"): "release",
        ("https://shop.example/login/", "/login/"): "release",
        ("/login/", "https://shop.example/login/"): "keep",
        ("/elsewhere/", "/login/"): "keep",
        ("/elsewhere/", ""): "keep",
        ("/elsewhere/", None): "keep",
        ("https://[", "/login/"): "keep",
        ("/elsewhere/", "no-such-name"): "keep",
    }
    for (location, settings.LOGIN_URL), verdict in verdicts.items():
        response = HttpResponse(status=302, headers={"Location": location})
        for preset in ("default", "success", "stripe"):
            assert verdict_on(HTTPPolicy(keep=preset), response) == verdict, location


def test_R34_a_success_that_redirects_there_is_released_with_a_line_for_each_view(mount, caplog):
    """A sign-up, say: whoever wrote it learns that a retry signs up again."""
    work = idempotent(scope=ANYONE)(lambda request: redirect(settings.LOGIN_URL))
    urls = [mount(work, name=name) for name in ("sign-up", "join")]

    for url in (urls[0], *urls):
        for key in ("key-1", None):
            headers = {"Idempotency-Key": key} if key else {}
            assert Client().post(url, headers=headers).status_code == 302

    told = [line.getMessage() for line in caplog.records if "LOGIN_URL" in line.getMessage()]
    assert [line.split(" redirects ")[0] for line in told] == ["POST sign-up", "POST join"]


@pytest.mark.parametrize(
    ("status", "keep", "key"), [(302, "default", None), (302, "all", "k"), (404, "default", "k")]
)
def test_R34_nothing_is_told_of_a_login_that_is_kept_or_of_a_request_without_a_key(
    mount, caplog, status, keep, key
):
    """Nor of another answer that is released."""
    keep = (lambda response, error: "keep") if keep == "all" else keep
    answer = HttpResponse(status=status, headers={"Location": settings.LOGIN_URL})
    url = mount(idempotent(scope=ANYONE, keep=keep)(lambda request: answer))

    sent = Client().post(url, headers={"Idempotency-Key": key} if key else {})

    assert sent.status_code == status
    assert "LOGIN_URL" not in caplog.text


# What they come to.


def test_R56_another_verdict_keeps_nothing(api, mount):
    keep = staticmethod(lambda response, exception: "maybe")
    with pytest.raises(ValueError, match="'maybe'"):
        api(path=mount(type("Judged", (EffectView,), {"idempotency_keep": keep})))
    assert IdempotencyRecord.objects.get().state == "FAILED"
    assert not Effect.objects.exists()


# R62: streams, files, and responses that are too large: the codec alone.


class Counted(io.BytesIO):
    """A file that knows how much of it was asked for."""

    asked: Any = None

    def read(self, size: Any = -1) -> bytes:
        self.asked = size
        return super().read(size)


def encoded(response: Any, limit: int) -> int:
    return len(SnapshotCodec(max_bytes=limit).encode(response))


@pytest.mark.parametrize("kind", [HttpResponse, lambda body: FileResponse(io.BytesIO(body))])
def test_R62_limit_counts_all_that_is_stored(kind):
    """Status and header fields included, to the byte; a limit of 0 keeps nothing."""
    size = encoded(kind(b"x" * 100), 10_000)
    assert encoded(kind(b"x" * 100), size) == size > 100
    for limit in (size - 1, 100, 0):
        with pytest.raises(ResultTooLarge):
            encoded(kind(b"x" * 100), limit)


def test_R62_of_a_large_file_no_more_is_read_than_is_allowed():
    file = Counted(b"x" * 1000)
    file.seek(10)
    with pytest.raises(ResultTooLarge):
        encoded(FileResponse(file), 100)
    assert (file.asked, file.tell()) == (100, 10)


# And in the guard.


def test_R62_a_kept_error_that_is_too_large_is_protected_and_one_that_is_not_kept_is_free(
    api, policy, runs, caplog
):
    policy(MAX_RESULT_BYTES=1)
    kept, retry = (api.then("raised", status=409) for _ in range(2))
    free, again = (api.then("invalid", key="free") for _ in range(2))
    assert (kept.status_code, kept["Idempotency-Stored"]) == (409, "false")
    assert problem(retry) == (409, "result_unavailable")
    assert free.status_code == again.status_code == 400
    assert "Idempotency-Stored" not in free.headers
    assert "generator" not in caplog.text  # that is told of a stream
    assert len(runs) == 3


def test_R62_stream_that_answers_an_error_is_told_of_too(api, mount, caplog):
    class Streaming(GuardedView):
        def post(self, request: Request) -> Response:
            raise Refusal(409)

        def handle_exception(self, exc: Exception) -> Any:
            return StreamingHttpResponse([b"refused"], status=409)

    api.path = mount(Streaming)
    first, retry = (api() for _ in range(2))

    assert (first.status_code, first["Idempotency-Stored"]) == (409, "false")
    assert problem(retry) == (409, "result_unavailable")
    assert "the generator of its response runs after its record is completed" in caplog.text


# R58: hooks that raise after the commit.


@pytest.mark.parametrize("store", ["default", "memory"])
def test_R58_hook_that_raises_after_the_commit_of_atomic_requests(
    api, mount, policy, atomic, runs, store
):
    policy(TRANSACTION="separate")
    api.path = mount(type("Stored", (EffectView,), {"idempotency_store": store}))
    with pytest.raises(RuntimeError, match=r"^boom in a hook$"):
        api.then("hook_boom")
    again = api.then("hook_boom")
    assert (again.status_code, replayed(again)) == (201, True)
    assert Effect.objects.count() == len(runs) == 1


@pytest.mark.parametrize("mode", ["single"], indirect=True)
@pytest.mark.parametrize("status", [400, 409])
def test_R58_error_of_an_idempotent_call_in_a_hook_of_a_refusal_is_the_hooks_own(
    api, mount, mode, status
):
    """Of one that is returned and not kept, and of one that is kept without its work."""

    def meet() -> None:
        raise InProgress

    class Refusing(GuardedView):
        def post(self, request: Request) -> Response:
            if status == 409:
                raise Refusal(409)
            transaction.on_commit(meet)
            return Response(status=status)

        def handle_exception(self, exc: Exception) -> Any:
            transaction.on_commit(meet)
            return super().handle_exception(exc)

    with pytest.raises(InProgress):
        api(path=mount(Refusing))


@BOTH
@BESIDE
@KEYED
def test_R58_R90_hook_that_raises_on_one_database_rolls_no_other_back(
    api, mount, monkeypatch, mode, atomic, key
):
    monkeypatch.setitem(connections.settings["other"], "ATOMIC_REQUESTS", True)
    hooks: list[str] = []

    def boom() -> None:
        raise RuntimeError("boom in a hook")

    def answer(request: Request) -> Response:
        Effect.objects.using("other").create(name="half")
        transaction.on_commit(lambda: hooks.append("default"))
        transaction.on_commit(boom, using="other")
        return Response(status=201)

    api.path = mount(answering(answer, idempotency_required=False))

    with pytest.raises(RuntimeError, match=r"^boom in a hook$"):
        api(key=key)

    assert [Effect.objects.using(using).count() for using in ("default", "other")] == [1, 1]
    assert hooks == ["default"]
    assert not key or replayed(api(key=key))


@BOTH
def test_R83_where_one_transaction_cannot_be_begun_the_one_before_is_ended_once(monkeypatch):
    """The engine leaves the blocks of an attempt in any case."""

    def refuse(*args: object, **options: object) -> None:
        raise OperationalError("the server is down")

    monkeypatch.setattr(connections["other"], "set_autocommit", refuse)
    blocks = AtomicBlocks(["default", "other"])

    with pytest.raises(OperationalError) as raised:
        blocks.__enter__()
    blocks.__exit__(OperationalError, raised.value, None)

    assert connections["default"].atomic_blocks == []
    assert not blocks.committed


# R60: the completion cannot be written.


@OPEN
def test_R60_work_that_cannot_be_completed_is_rolled_back(api, policy, mode, runs):
    policy(BACKEND="tests.unit.http.stores.CannotComplete")
    refused = api()
    left = state_seen_by_others(), Effect.objects.count()
    policy(BACKEND="django_idempotency.stores.database.DatabaseStore")
    retried, again = api(), api()
    assert problem(refused) == UNAVAILABLE
    assert refused.headers["Retry-After"] == "1"
    assert left == ({"joined": "RELEASED", "single": "FAILED"}[mode], 0)
    assert [replayed(retried), replayed(again)] == [False, True]
    assert len(runs) == 2


def test_R60_R79_session_that_the_work_has_lost_is_an_error_of_the_log(
    api, policy, atomic, monkeypatch, caplog
):
    """The engine takes what is raised within the work for an error of the work."""
    policy(TRANSACTION="separate")

    def lost(connection: Any) -> bool:
        raise SessionLost

    monkeypatch.setattr("django_idempotency.transactions.aliases.is_rolled_back", lost)
    assert problem(api()) == UNAVAILABLE
    [line] = [r for r in caplog.records if r.name == "django_idempotency"]
    assert line.outcome == "store unavailable"


# R61: the store is down at the claim.


@BOTH
@pytest.mark.usefixtures("store_is_down")
def test_R61_store_down_at_the_claim_is_503(api, mode, runs):
    response = api()
    assert problem(response) == UNAVAILABLE
    assert response.json()["retryable"] is True
    assert response.headers["Retry-After"] == "1"
    assert runs == []
    assert not connection.in_atomic_block


@BOTH
@BESIDE
@pytest.mark.usefixtures("store_is_down")
def test_R61_R90_requests_without_a_key_do_not_need_the_store_unless_they_join_it(
    api, mode, runs, caplog
):
    assert api(method="GET", body="").status_code == 200
    assert api(key=None, path="/optional/").status_code == (201 if mode == "separate" else 503)
    assert runs == (["first"] if mode == "separate" else [])
    assert ("store unavailable" in caplog.text) == (mode == "joined")


# R95: what a store gives back is input; which forged results there are: core/test_codecs.py.


def test_R95_forged_record_of_the_database(api, caplog):
    api()
    for envelope in (b"\x01", b"\0" * 64, b"\x01\x00\x06pickle\x80\x04N.forged"):
        IdempotencyRecord.objects.update(result=envelope)
        caplog.clear()
        assert problem(api()) == UNAVAILABLE
        [line] = [x for x in caplog.records if x.name == "django_idempotency"]
        assert line.levelno == logging.ERROR
        assert "The stored result " in line.getMessage()
        assert "forged" not in caplog.text
    IdempotencyRecord.objects.update(fingerprint=b"")
    assert problem(api()) == UNAVAILABLE
    assert Effect.objects.count() == 1
