"""Section E, within one session: what a duplicate is told while the first runs."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection

from django_idempotency.models import IdempotencyRecord
from tests.unit.http.api import Api, problem
from tests.unit.http.conftest import InProgress, SetPolicy

pytestmark = pytest.mark.django_db


@pytest.mark.django_db(transaction=True)
def test_R49_I12_outstanding_is_409_and_leaves_no_transaction_open(
    api: Api, in_progress: InProgress, mode: str, atomic_requests: bool, runs: list[str]
) -> None:
    api()
    in_progress()
    before = IdempotencyRecord.objects.values().get()

    response = api()

    assert problem(response) == (409, "in_progress")
    assert response.json()["title"] == "A request is outstanding for this Idempotency-Key"
    assert response.json()["retryable"] is True
    assert runs == ["first"]
    assert IdempotencyRecord.objects.values().get() == before
    assert not connection.in_atomic_block
    assert connection.get_autocommit()


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
