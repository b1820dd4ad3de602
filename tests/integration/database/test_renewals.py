"""R69: a server that does not answer costs a renewal of its own, and nobody else's."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
from django.db.backends.signals import connection_created

from django_idempotency.engine.renewal import LeaseRenewer
from django_idempotency.exceptions import StoreError
from django_idempotency.stores.database import DatabaseStore, fresh
from tests.integration.database import claims
from tests.integration.database.claims import claim_request
from tests.integration.database.sessions import PATIENCE, Session
from tests.services.processes import wait_until

pytestmark = [
    pytest.mark.django_db(transaction=True, databases=["default", "other"]),
    pytest.mark.leg("postgres18", "mariadb"),
]

HOUR = timedelta(hours=1)


@pytest.fixture(autouse=True)
def time_outs(monkeypatch):
    """The least that the drivers take."""
    monkeypatch.setattr(fresh, "CONNECT_SECONDS", 2)
    monkeypatch.setattr(fresh, "ANSWER_SECONDS", 1)


@pytest.fixture(params=["accepts", "is connected"])
def silent(request, wire):
    """A server that says nothing more from then on: to a client, or to one that is connected."""

    def swallow(**arguments):
        wire.swallow()

    if request.param == "accepts":
        wire.swallow()
    else:
        connection_created.connect(swallow)
    yield wire
    connection_created.disconnect(swallow)


def test_R69_a_renewal_waits_for_a_silent_server_no_longer_than_its_time(store, other, silent):
    lease = other(claims.live, store, claim_request())
    started = time.monotonic()
    with pytest.raises(StoreError):
        store.renew([lease], HOUR)
    assert time.monotonic() - started < 5


def test_R69_a_silent_server_stops_neither_other_aliases_nor_its_own_next_renewals(
    store, other, wire
):
    far, near = store, DatabaseStore(using="other")
    sessions = {far: other, near: Session("other")}
    request = claim_request(lease=timedelta(seconds=0.9))
    leases = {each: session(claims.live, each, request) for each, session in sessions.items()}

    def wait_for_renewal(each):
        def lease_until():
            return sessions[each](each.get, request.record_id).lease_until

        before = lease_until()
        wait_until(lambda: lease_until() > before, seconds=PATIENCE, what="a renewal")

    keeper = LeaseRenewer()
    wire.swallow()
    for each, lease in leases.items():
        keeper.add(each, lease)
    for _ in range(3):
        wait_for_renewal(near)
    wire.heal()  # what the wire has swallowed stays lost: the renewals have to connect anew
    wait_for_renewal(far)
    threads = list(keeper._threads.values())
    for lease in leases.values():
        lease.check()
        keeper.remove(lease)
    for thread in threads:
        thread.join(PATIENCE)
    sessions[near].close()
