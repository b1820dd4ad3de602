"""Two sessions at one record, and a session that the server ends: PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from django.contrib import messages
from django.db import DatabaseError, connection, connections
from django.http import HttpRequest
from django.test import Client
from rest_framework.request import Request
from rest_framework.response import Response

from django_idempotency.models import IdempotencyRecord
from tests.app.models import Effect
from tests.app.views import EffectView, Refusal
from tests.services.processes import wait_until
from tests.unit.http.api import Api, problem, replayed
from tests.unit.http.shoppers import Shopper
from tests.unit.http.test_sessions import checkout, told
from tests.unit.http.views import ANYONE, BESIDE, MISMATCH, WAYS
from tests.unit.views.conftest import together

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.leg("postgres18", "postgres16")]

# While the first is at work.


@pytest.fixture
def working(tmp_path: Path) -> Callable[..., Any]:
    """``with working() as body``: a first request is in the view meanwhile; body is its body."""

    @contextmanager
    def start() -> Iterator[dict[str, str]]:
        body = {"name": "first", "then": "paused", "directory": str(tmp_path)}
        with together(lambda: Api()(body)) as answers:
            wait_until(lambda: any(tmp_path.glob("first.*.working")), seconds=60, what="the view")
            yield body
            (tmp_path / "first.go").touch()
        assert answers[0].status_code == 201

    return start


@BESIDE
def test_R38_mismatch_beats_in_progress_while_the_view_runs(api, mode, working):
    with working() as body:
        other, same = api({"name": "other"}), api(body)
    assert problem(other) == MISMATCH
    assert problem(same) == (409, "in_progress")
    assert replayed(api(body))


@pytest.mark.parametrize("mode", ["single"], indirect=True)
def test_R38_single_has_no_row_yet(api, mode, atomic_requests, working):
    with working() as body:
        during, same = api({"name": "other"}), api(body)
    after = api({"name": "other"})
    assert problem(during) == problem(same) == (409, "in_progress")
    assert during.headers["Retry-After"] == same.headers["Retry-After"] == "1"
    assert problem(after) == MISMATCH
    assert replayed(api(body))
    assert Effect.objects.count() == 1


# A lease that is lost.

TOKEN = UUID("8e03978e-40d5-43e8-bc93-6894a57f9324")


def take_over() -> None:
    """Another attempt takes over while this one runs."""
    other = connections["default"].copy()
    try:
        with other.cursor() as cursor:
            cursor.execute("UPDATE idempotency_record SET epoch = epoch + 1, token = %s", [TOKEN])
    finally:
        other.close()


class TakenOver(EffectView):
    def post(self, request: Request) -> Any:
        take_over()
        return super().post(request)


@pytest.mark.parametrize(
    ("mode", "then", "status", "answer"),
    [
        ("joined", "created", 201, 409),
        ("joined", "returned", 400, 409),
        ("joined", "raised", 422, 409),
        ("joined", "raised", 400, 400),
        ("joined", "raised", 500, 500),
        ("separate", "created", 201, 409),
        ("separate", "returned", 400, 400),  # the work has committed; nothing is to be kept
        ("separate", "raised", 422, 409),
    ],
    indirect=["mode"],
)
def test_R57_nothing_is_kept_without_the_lease(api, mount, mode, then, status, answer):
    response = api.then(then, status=status, path=mount(TakenOver))
    record = IdempotencyRecord.objects.get()
    assert response.status_code == answer
    if answer == 409:
        assert problem(response) == (409, "lease_lost")
    assert (record.token, record.state) == (TOKEN, "IN_PROGRESS")
    if mode == "joined":
        assert not Effect.objects.exists()


def test_R57_single_releases_nothing_without_the_proof(api, mount, policy):
    policy(TRANSACTION="single")
    api.then("returned", status=400)  # leaves a record for another to take
    Effect.objects.all().delete()
    response = api.then("returned", status=400, path=mount(TakenOver))
    assert problem(response) == (409, "lease_lost")
    assert not Effect.objects.exists()


def unsaved(get_response: Any) -> Any:
    """A middleware that leaves something in the session, and a message, before the work."""

    def middleware(request: HttpRequest) -> Any:
        request.session["seen"] = "before"
        messages.info(request, "Welcome")
        return get_response(request)

    return middleware


def test_R92_what_a_middleware_has_left_before_the_work_stays(mount, policy, settings):
    policy(HTTP={"SCOPE": ANYONE})
    url, page, shopper = mount(checkout("pop", take_over)), mount(told), Shopper()
    before = settings.MIDDLEWARE
    settings.MIDDLEWARE = [*before, f"{__name__}.unsaved"]

    assert problem(shopper.post(url)) == (409, "lease_lost")

    settings.MIDDLEWARE = before
    later = Client()
    later.cookies = shopper.client.cookies
    assert (later.session["cart"], later.session["seen"]) == (["tea"], "before")
    assert later.get(page).content == b"Welcome"


# A session that the server ends in the middle of the work, which goes on regardless.


class Severed(EffectView):
    def post(self, request: Request) -> Any:
        Effect.objects.create(name="severed")
        with suppress(DatabaseError), connection.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        if request.data["then"] == "used again":
            with suppress(DatabaseError):
                Effect.objects.create(name="swallowed")
        if request.data["then"] == "raised":
            raise Refusal(409)
        if request.data["then"] == "boom":
            raise RuntimeError("boom")
        return Response({"done": True}, status=201)


@WAYS
def test_R57_answer_is_kept_on_a_new_connection(api, mount, mode, atomic_requests, runs):
    url = mount(Severed)
    first, again = api.then("raised", path=url), api.then("raised", path=url)
    assert first.status_code == again.status_code == 409
    assert replayed(again)
    assert Effect.objects.count() == (mode == "separate" and not atomic_requests)
    assert len(runs) == 1


# What PostgreSQL answers to the COMMIT of a transaction that an error has ended.
