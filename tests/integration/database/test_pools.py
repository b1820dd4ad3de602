"""R88: psycopg's pools, server-side binding, and connections that are opened for each statement."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from django.db import connection, connections

from django_idempotency.engine import Engine
from django_idempotency.engine.renewal import LeaseRenewer
from django_idempotency.exceptions import FingerprintMismatch, InProgress
from django_idempotency.records import State
from tests.integration.database import claims
from tests.integration.database.claims import Boom, effects, operation, state_of, won, work
from tests.integration.database.sessions import PATIENCE
from tests.services.processes import wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.leg("postgres18")]

POOL = {"pool": {"min_size": 1, "max_size": 4}}
MODES = pytest.mark.parametrize("mode", ["single", "joined", "separate"])


@pytest.fixture(
    autouse=True,
    params=[POOL, {"pool": True, "server_side_binding": True}, {"prepare_threshold": 0}],
    ids=lambda options: "+".join(options),
)
def options(request, transactional_db, monkeypatch):
    """OPTIONS of the default database."""
    settings = connections.settings["default"]
    connection.close()
    monkeypatch.setitem(settings, "OPTIONS", {**settings["OPTIONS"], **request.param})
    yield request.param
    connection.close()
    if "pool" in request.param:
        connection.close_pool()


@pytest.fixture
def engine(store):
    return Engine(store)


@MODES
def test_R88_new_key_and_replay(engine, mode):
    def fail(lease):
        raise Boom

    with pytest.raises(Boom):
        engine.run(operation(transaction=mode), fail)
    assert state_of(engine.store) is State.FAILED
    assert engine.run(operation(transaction=mode), work("mine")).result == "mine"
    for _ in range(8):  # more than it takes to prepare a statement
        assert engine.run(operation(transaction=mode), work("again")).replayed
    assert effects() == ["mine"]
    with pytest.raises(FingerprintMismatch):
        engine.run(operation(transaction=mode, fingerprint=claims.OTHER_FINGERPRINT), work("other"))
    claims.expire()
    assert engine.store.sweep(limit=10) == 1


@MODES
def test_R88_keys_in_threads(engine, run_in_threads, mode):
    keys = [f"key {number}" for number in range(5)]
    together = threading.Barrier(4)

    def run_all(index):
        for key in keys:
            together.wait(60)
            try:
                engine.run(operation(key, transaction=mode), work(key))
            except InProgress:
                continue
            finally:
                connection.close()  # as the end of a request does

    run_in_threads(4, run_all)
    assert effects() == keys


SMALLEST = {"pool": {"min_size": 1, "max_size": 1}}


@pytest.mark.parametrize("options", [SMALLEST], indirect=True, ids=["pool"])
def test_R69_R88_keeper_renews_where_the_work_has_used_up_the_pool(store, options):
    lease = won(store.claim(claims.claim_request(lease=timedelta(seconds=0.6))))
    assert connections_in_use() == 1
    keeper = LeaseRenewer()
    keeper.add(store, lease)
    wait_until(
        lambda: store.get(lease.record_id).lease_until > lease.lease_until,
        seconds=PATIENCE,
        what="the keeper to renew",
    )
    keeper.remove(lease)
    wait_until(lambda: sessions() == 1, seconds=PATIENCE, what="the keeper's session to end")


def connections_in_use():
    figures = connection.pool.get_stats()
    return figures["pool_size"] - figures["pool_available"]


def sessions():
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND backend_type = 'client backend'"
        )
        return cursor.fetchone()[0]
