"""Section E, within one process: what a duplicate is told while the first runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, connections

from django_idempotency.models import IdempotencyRecord
from tests.app.models import Effect
from tests.services.processes import wait_until
from tests.unit.http.api import Api, problem, replayed
from tests.unit.http.conftest import InProgress, SetPolicy

pytestmark = pytest.mark.django_db


def test_R49_outstanding_is_409(
    api: Api, in_progress: InProgress, mode: str, atomic_requests: bool, runs: list[str]
) -> None:
    api()
    in_progress()
    before = IdempotencyRecord.objects.values().get()

    response = api()

    assert problem(response) == (409, "in_progress")
    title = "A request is outstanding for this Idempotency-Key"
    assert response.json()["title"] == title
    assert response.json()["retryable"] is True
    assert "Idempotency-Replayed" not in response.headers
    assert runs == ["first"]
    assert IdempotencyRecord.objects.values().get() == before


@pytest.mark.parametrize(
    ("ran", "left", "least", "most"),
    [
        pytest.param(0, 3600, 1, 1, id="1 at least"),
        pytest.param(9, 3600, 10, 12, id="as long as it has been running"),
        pytest.param(3600, 10, 9, 10, id="what is left"),
        pytest.param(3600, 3600, 30, 30, id="30 at most"),
    ],
)
def test_R49_retry_after_is_how_long_the_attempt_has_been_running(
    api: Api, in_progress: InProgress, ran: float, left: float, least: int, most: int
) -> None:
    api()
    in_progress(lease=timedelta(seconds=left))
    began = IdempotencyRecord.objects.get().updated_at - timedelta(seconds=ran)
    IdempotencyRecord.objects.update(updated_at=began)

    response = api()

    assert response.status_code == 409
    assert least <= int(response.headers["Retry-After"]) <= most


def test_R49_in_progress_status_is_a_choice(
    api: Api, in_progress: InProgress, policy: SetPolicy
) -> None:
    policy(HTTP={"IN_PROGRESS_STATUS": 425})
    api()
    in_progress()

    assert problem(api()) == (425, "in_progress")


def test_R49_another_key_is_not_held_up(api: Api, in_progress: InProgress, mode: str) -> None:
    api()
    in_progress()

    assert api(key="key-2").status_code == 201


@pytest.fixture
def working(tmp_path: Path, settings: Any) -> Callable[..., Any]:
    """``with working() as body``: a first request is in the view meanwhile; body is its body."""

    @contextmanager
    def start() -> Iterator[dict[str, str]]:
        body = {"name": "first", "then": "paused", "directory": str(tmp_path)}
        answers: list[Any] = []

        def send() -> None:
            try:
                answers.append(Api()(body))
            finally:
                connections.close_all()

        thread = threading.Thread(target=send, daemon=True)
        thread.start()
        try:
            wait_until(lambda: any(tmp_path.glob("first.*.working")), seconds=10, what="the view")
            yield body
        finally:
            (tmp_path / "first.go").touch()
            thread.join(10)
        [answer] = answers
        assert answer.status_code == 201

    return start


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("mode", ["joined", "separate"], indirect=True)
def test_R38_mismatch_beats_in_progress_while_the_view_runs(
    api: Api, mode: str, atomic_requests: bool, working: Callable[..., Any]
) -> None:
    with working() as body:
        other, same = api({"name": "other"}), api(body)

    assert problem(other) == (422, "idempotency_key_reused")
    assert problem(same) == (409, "in_progress")
    assert replayed(api(body))


@pytest.mark.django_db(transaction=True)
@pytest.mark.leg("postgres18", "postgres16")
@pytest.mark.parametrize("mode", ["single"], indirect=True)
def test_R38_single_has_no_row_yet(
    api: Api, mode: str, atomic_requests: bool, working: Callable[..., Any]
) -> None:
    with working() as body:
        during = api({"name": "other"})
        same = api(body)
    after = api({"name": "other"})

    assert problem(during) == (409, "in_progress")
    assert problem(same) == (409, "in_progress")
    assert during.headers["Retry-After"] == same.headers["Retry-After"] == "1"
    assert problem(after) == (422, "idempotency_key_reused")
    assert replayed(api(body))
    assert Effect.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_R49_I12_409_leaves_no_transaction_open(
    api: Api, in_progress: InProgress, mode: str, atomic_requests: bool
) -> None:
    api()
    in_progress()

    api()

    assert not connection.in_atomic_block
    assert connection.get_autocommit()
