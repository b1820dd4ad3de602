"""Clients that hang up in the middle of the work: R63, many times in a row."""

from __future__ import annotations

import itertools
import json
from collections import Counter

import pytest
from django.db import connection

from django_idempotency.models import IdempotencyRecord
from django_idempotency.records import State
from tests.acceptance.effects import effects
from tests.services.processes import wait_until

pytestmark = [pytest.mark.processes, pytest.mark.django_db(transaction=True)]

ENDED = {State.COMPLETED, State.FAILED, State.RELEASED}
BUSY = """
SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
AND pid <> pg_backend_pid() AND state <> 'idle'
"""
each_mode = pytest.mark.parametrize("mode", ["joined", "single", "separate"])


@pytest.fixture
def times():
    """How many clients hang up in a row; tests/proof has 200."""
    return 20


@pytest.fixture
def hang_up(peer, tmp_path):
    """Send a request, and close the connection as soon as its view has written its first row."""

    def send(path, key, **body):
        connection = peer.open(path, key, {"name": key, "directory": str(tmp_path), **body})
        try:
            wait_until((tmp_path / f"{key}.begun").exists, seconds=60, what="the view")
        finally:
            connection.close()

    return send


def states() -> dict[str, str]:
    return dict(IdempotencyRecord.objects.values_list("key", "state"))


def settle(peer, number: int) -> None:
    """Wait until no request is at work and no transaction is open."""

    def sessions():
        if connection.vendor != "postgresql":
            return 0
        with connection.cursor() as cursor:
            cursor.execute(BUSY)
            return cursor.fetchone()[0]

    def quiet():
        at_work = json.loads(peer.send("/", None, None, method="GET").body)["at work"]
        return not at_work and State.IN_PROGRESS not in states().values() and not sessions()

    wait_until(quiet, seconds=60, what=f"the end of {number} requests that nobody waits for")


@each_mode
def test_R63_a_view_that_waits_when_its_client_hangs_up_is_ended(peer, hang_up, mode, times):
    """Each in the middle of its work, which would take ten minutes more."""
    keys = [f"pay-{number}" for number in range(times)]
    for key in keys:
        hang_up(f"/async/{mode}/", key, seconds=600)
    settle(peer, times)

    assert states() == dict.fromkeys(keys, State.FAILED)
    # A row that autocommit wrote stands; nothing was written after the end of the request.
    assert effects() == Counter(keys if mode == "separate" else ())


@each_mode
def test_R63_clients_that_hang_up_at_every_moment_leave_no_half_committed_work(
    peer, hang_up, tmp_path, mode, times
):
    """The work needs 0 to 5 ms more when its client hangs up: some of it is completed, some not."""
    moments = itertools.cycle([0, 0.0005, 0.001, 0.002, 0.005])
    seconds = {f"pay-{number}": next(moments) for number in range(times)}
    for key, moment in seconds.items():
        hang_up(f"/async/{mode}/", key, seconds=moment)
    settle(peer, times)

    found, written = states(), effects()
    assert found.keys() == seconds.keys()
    assert set(found.values()) <= ENDED
    completed = {key for key, state in found.items() if state == State.COMPLETED}
    assert {key for key, rows in written.items() if rows == 2} >= completed
    if mode != "separate":
        assert written == Counter(dict.fromkeys(completed, 2))

    # Each retry gets the answer that was kept, or runs the work once.
    for key, moment in seconds.items():
        body = {"name": key, "directory": str(tmp_path), "seconds": moment}
        retry = peer.send(f"/async/{mode}/", key, body)
        assert (retry.status, retry.replayed) == (201, key in completed)
    assert set(states().values()) == {State.COMPLETED}
    if mode != "separate":
        assert effects() == Counter(dict.fromkeys(seconds, 2))
