"""Clients that hang up in the middle of the work: R63, many times in a row."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.db import connection

from django_idempotency.models import IdempotencyRecord
from django_idempotency.records import State
from tests.acceptance.asgi.conftest import Peer
from tests.app.models import Effect
from tests.services.processes import wait_until

pytestmark = [pytest.mark.processes, pytest.mark.django_db(transaction=True)]

ENDED = {State.COMPLETED, State.FAILED, State.RELEASED}


@pytest.fixture
def times() -> int:
    """How many clients hang up in a row; tests/proof has 200."""
    return 20


each_mode = pytest.mark.parametrize("mode", ["joined", "single", "separate"])


def hang_up(peer: Peer, path: str, key: str, directory: Path, **body: object) -> None:
    """Send a request, and close the connection as soon as its view has written its first row."""
    body = {"name": key, "directory": str(directory), **body}
    connection = peer.open(path, key, body)
    try:
        wait_until((directory / f"{key}.begun").exists, seconds=10, what="the view")
    finally:
        connection.close()


def states() -> dict[str, str]:
    return dict(IdempotencyRecord.objects.values_list("key", "state"))


def effects() -> Counter[str]:
    return Counter(Effect.objects.values_list("name", flat=True))


def settled(peer: Peer, number: int) -> None:
    """Wait until no request is at work and no transaction is open."""

    def quiet() -> bool:
        answer = peer.get("/")
        return json.loads(answer.body) == {"at work": 0} and not in_progress() and not sessions()

    def in_progress() -> bool:
        return IdempotencyRecord.objects.filter(state=State.IN_PROGRESS).exists()

    def sessions() -> bool:
        if connection.vendor != "postgresql":
            return False
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT 1 FROM pg_stat_activity WHERE datname = current_database()"
                " AND pid <> pg_backend_pid() AND state <> 'idle'"
            )
            return cursor.fetchone() is not None

    wait_until(quiet, seconds=20, what=f"the end of {number} requests that nobody waits for")


@each_mode
def test_R63_a_view_that_waits_when_its_client_hangs_up_is_ended(
    peer: Peer, tmp_path: Path, mode: str, times: int
) -> None:
    """Each in the middle of its work, which would take a minute more."""
    for number in range(times):
        hang_up(peer, f"/async/{mode}/", f"pay-{number}", tmp_path, seconds=60)
    settled(peer, times)

    keys = [f"pay-{number}" for number in range(times)]
    assert states() == dict.fromkeys(keys, State.FAILED)
    # A row that autocommit wrote stands; nothing was written after the end of the request.
    assert effects() == Counter(keys if mode == "separate" else ())


@each_mode
def test_R63_clients_that_hang_up_at_every_moment_leave_no_half_committed_work(
    peer: Peer, tmp_path: Path, mode: str, times: int
) -> None:
    """The work needs 0 to 5 ms more when its client hangs up: some of it is completed, some not."""
    moments: Iterator[float] = itertools.cycle([0, 0.0005, 0.001, 0.002, 0.005])
    bodies = {f"pay-{number}": {"seconds": next(moments)} for number in range(times)}
    for key, body in bodies.items():
        hang_up(peer, f"/async/{mode}/", key, tmp_path, **body)
    settled(peer, times)

    found, written = states(), effects()
    assert set(found) == set(bodies)
    assert set(found.values()) <= ENDED
    completed = {key for key, state in found.items() if state == State.COMPLETED}
    assert {key for key, rows in written.items() if rows == 2} >= completed
    if mode != "separate":
        assert written == Counter(dict.fromkeys(completed, 2))

    # Each retry gets the answer that was kept, or runs the work once.
    for key, body in bodies.items():
        retry = peer.post(f"/async/{mode}/", key, {"name": key, "directory": str(tmp_path), **body})
        assert (retry.status, retry.replayed) == (201, key in completed)
    assert set(states().values()) == {State.COMPLETED}
    if mode != "separate":
        assert effects() == Counter(dict.fromkeys(bodies, 2))


@pytest.mark.parametrize("mode", ["joined", "separate"])
def test_R63_a_sync_view_goes_on_and_its_completion_is_kept(
    peer: Peer, tmp_path: Path, mode: str
) -> None:
    """A thread cannot be cancelled: its work ends as if the client were there."""
    go = tmp_path / "go"
    body = {"name": "pay", "directory": str(tmp_path), "wait_for": str(go)}

    hang_up(peer, f"/sync/{mode}/", "pay", tmp_path, wait_for=str(go))
    go.touch()
    settled(peer, 1)
    retry = peer.post(f"/sync/{mode}/", "pay", body)

    assert (retry.status, retry.replayed) == (201, True)
    assert effects() == Counter(pay=2)
