"""Endings beside another's transaction, lost connections, and a commit that takes long."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from django.contrib.sessions.backends.cache import SessionStore
from django.db import connection, connections, transaction

import django_idempotency as idempotency
from django_idempotency.conf import engine_for, store_for
from django_idempotency.http import scopes
from django_idempotency.records import ClaimRequest, Record, State
from tests.app.models import Effect
from tests.services.processes import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.leg("postgres18", "postgres16")
def test_R60_separate_completes_on_a_new_connection_after_its_own_was_lost(settings):
    settings.IDEMPOTENCY = {"default": {"TRANSACTION": "separate"}}

    def work(lease):
        Effect.objects.create(name="x")
        with connection.copy().cursor() as other:
            pid = connection.connection.info.backend_pid
            other.execute("SELECT pg_terminate_backend(%s)", [pid])
            other.connection.close()
        return 1

    first = idempotency.run(work, key="k", scope="s")
    again = idempotency.run(work, key="k", scope="s")

    assert first.stored
    assert again.replayed
    assert Effect.objects.count() == 1


def test_R69_lease_is_kept_until_the_callers_commit(settings):
    """Another store's attempt is over, its completion waits: nobody may take over meanwhile."""
    settings.IDEMPOTENCY = {
        "default": {},
        "memory": {
            "BACKEND": "django_idempotency.stores.memory.MemoryStore",
            "LEASE": 0.3,
        },
    }
    store = store_for("memory")
    renewed = threading.Event()
    renew = store.renew

    def renew_and_tell(leases, duration):
        held = renew(leases, duration)
        renewed.set()
        return held

    store.renew = renew_and_tell
    with transaction.atomic():
        outcome = idempotency.run(lambda lease: 1, key="k", scope="s", store="memory")
        assert renewed.wait(5)
        request = ClaimRequest(outcome.record_id, "s", "k", lease=timedelta(seconds=1))
        assert isinstance(store.claim(request), Record)
    assert store.get(outcome.record_id).state is State.COMPLETED


def test_I8_lease_is_not_renewed_after_the_callers_rollback(settings):
    settings.IDEMPOTENCY = {
        "default": {},
        "memory": {"BACKEND": "django_idempotency.stores.memory.MemoryStore", "LEASE": 0.2},
    }
    keeper = engine_for("memory").keeper
    leases = []
    with transaction.atomic():
        idempotency.run(lambda lease: leases.append(lease), key="k", scope="s", store="memory")
        assert leases[0] in keeper._kept
        transaction.set_rollback(True)

    wait_until(
        lambda: leases[0] not in keeper._kept, seconds=5, what="the keeper to give the lease up"
    )


@pytest.mark.leg("postgres18", "postgres16")
def test_R69_renewal_takes_no_connection_of_the_pool(settings):
    """The work that a lease is for may have used the pool up."""
    settings.IDEMPOTENCY = {"default": {"TRANSACTION": "separate"}}
    store = store_for()
    lease = store.claim(ClaimRequest(record_id=_record_id(), scope="s", key="k"))
    pooled = connections["default"].copy()
    pooled.settings_dict["OPTIONS"]["pool"] = {"min_size": 1, "max_size": 1, "timeout": 1}
    pooled.settings_dict["CONN_MAX_AGE"] = 0
    original = connections["default"]
    original.close()
    connections["default"] = pooled
    try:
        pooled.ensure_connection()
        held = []
        thread = threading.Thread(target=_renew, args=(store, lease, pooled, held))
        thread.start()
        thread.join(20)
        assert held == [{lease}]
    finally:
        pooled.close()
        pooled.close_pool()
        connections["default"] = original


def _renew(store, lease, pooled, held):
    mine = pooled.copy()
    connections["default"] = mine
    try:
        held.append(store.renew([lease], timedelta(seconds=60)))
    finally:
        mine.close()


def _record_id():
    from django_idempotency.keys import record_id

    return record_id("call", "s", "k")


def test_R20_session_scope_does_not_show_the_sessions_key():
    visitor = SessionStore()
    visitor.create()

    class Request:
        session = visitor

    scope = scopes.session(Request())

    assert scope.startswith("session:")
    assert visitor.session_key not in scope
    assert scope == scopes.session(Request())
