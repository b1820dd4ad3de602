"""Nobody waits for a row that another session holds, or not for longer than its bound."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from contextvars import copy_context
from datetime import timedelta

import pytest
from django.db import connection, transaction

from django_idempotency.claims import Decision, Resolution, decide
from django_idempotency.engine import Engine
from django_idempotency.exceptions import StoreError, TransactionOpen
from django_idempotency.models import IdempotencyRecord
from django_idempotency.records import State
from django_idempotency.stores.database.mariadb import MariaDB
from django_idempotency.stores.database.postgresql import PostgreSQL
from django_idempotency.transactions.errors import sqlstate
from tests.integration.database import claims
from tests.integration.database.claims import claim_request, lost, operation, packed, state_of, won

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.leg("postgres18", "postgres16", "mariadb"),
]

HOUR = timedelta(hours=1)
#: PostgreSQL's SQLSTATE of a wait that met its lock_timeout; that of our tripwire is another.
LOCK_TIMEOUT = "55P03"


@contextmanager
def held():
    """Hold the row of "key" in a transaction of this session."""
    with transaction.atomic():
        IdempotencyRecord.objects.filter(key="key").update(error="a change under way")
        yield


def resolve(store, lease):
    seen = store.get(lease.record_id)
    return store.resolve(seen.record_id, Resolution("release", epoch=seen.epoch, state=seen.state))


def erase(store, lease):
    return store.erase(lease.record_id)


decisions = pytest.mark.parametrize("decide_on", [resolve, erase])


class TestHeldRow:
    @pytest.mark.parametrize("before", [claims.lapsed, claims.failed, claims.released])
    def test_R49_claim_is_told_in_progress_at_once(self, two, before):
        before(two.theirs, claim_request())
        with held():
            record = lost(two.other.at_once(two.theirs.claim, claim_request()))
        assert decide(record, claim_request()) is Decision.IN_PROGRESS

    def test_R69_renewal_counts_it_as_held_and_renews_the_others(self, two):
        lease = claims.lapsed(two.theirs, claim_request())
        other = claims.lapsed(two.theirs, claim_request("another key"))
        with held():
            assert two.other.at_once(two.theirs.renew, [lease, other], HOUR) == {lease, other}
        assert two.mine.get(other.record_id).live

    @decisions
    def test_operator_finds_it_busy(self, two, decide_on):
        lease = claims.lapsed(two.theirs, claim_request())
        with held():
            assert two.other.at_once(decide_on, two.theirs, lease) is False
        assert decide_on(two.mine, lease) is True

    @pytest.mark.leg("postgres18", "postgres16")
    @decisions
    def test_operator_finds_what_single_has_claimed_busy(self, two, decide_on):
        lease = claims.failed(two.mine, claim_request())
        with two.mine.atomic():
            won(two.mine.claim(claim_request(transaction="single")))
            assert two.other.at_once(decide_on, two.theirs, lease) is False
        assert decide_on(two.mine, lease) is True

    def test_I9_R75_sweep_leaves_it_and_takes_the_rest(self, two):
        for key in ("key", "another key"):
            claims.expired(two.theirs, claim_request(key))
        with held():
            assert two.other.at_once(two.theirs.sweep) == 1
            assert two.other(state_of, two.theirs, "another key") is None
        assert two.mine.sweep() == 1


# An attempt ends while a COMMIT of its own is still on its way.

ENDS = {
    "FAIL": lambda store, lease: store.fail(lease, "error"),
    "RELEASE": lambda store, lease: store.release(lease),
}


@contextmanager
def foreign_transaction(store):
    """Another coroutine's attempt has its transaction open on this thread's connection."""
    context = copy_context()
    attempt = Engine(store).attempt(operation("foreign"))
    context.run(attempt.__enter__)
    try:
        yield
    finally:
        context.run(attempt.__exit__, None, None, None)


def bind_sooner(monkeypatch, name):
    """Let a wait of 5 seconds be one of a moment; what has no bound meets the tripwire."""
    for module, long, short in (
        (PostgreSQL, "'5s'", "'50ms'"),
        (MariaDB, "innodb_lock_wait_timeout = 5 ", "innodb_lock_wait_timeout = 0 "),
    ):
        monkeypatch.setattr(module, name, getattr(module, name).replace(long, short))
    options = connection.settings_dict["OPTIONS"]
    if connection.vendor == "postgresql":  # for a fresh connection
        monkeypatch.setitem(options, "options", "-c statement_timeout=10s")


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize(
    "beside",
    ["nothing", pytest.param("foreign", marks=pytest.mark.leg("postgres18", "postgres16"))],
)
def test_R60_end_of_an_attempt_waits_for_a_commit_no_longer_than_its_bound(
    two, monkeypatch, end, beside
):
    lease = claims.live(two.mine, claim_request(transaction="joined"))
    bind_sooner(monkeypatch, end)

    def end_it():
        with nullcontext() if beside == "nothing" else foreign_transaction(two.theirs):
            ENDS[end](two.theirs, lease)

    with transaction.atomic():
        two.mine.complete(lease, packed("mine"), retention=claims.RETENTION)
        # MariaDB's error tells no bound from another, so there it is none at all.
        session = two.other.at_once if connection.vendor == "mysql" else two.other
        with pytest.raises(StoreError) as told:
            session(end_it)
    assert sqlstate(told.value) == (LOCK_TIMEOUT if connection.vendor == "postgresql" else None)
    assert state_of(two.mine) is State.COMPLETED


# Coroutines that share a thread share its connection.


@pytest.mark.parametrize(
    ("end", "state"),
    [("complete", State.COMPLETED), ("FAIL", State.FAILED), ("RELEASE", State.RELEASED)],
)
def test_I7_owners_write_is_no_part_of_anothers_transaction(two, end, state):
    lease = claims.live(two.mine, claim_request())
    with foreign_transaction(two.mine):
        if end == "complete":
            two.mine.complete(lease, packed("mine"), retention=claims.RETENTION)
        else:
            ENDS[end](two.mine, lease)
        assert two.other(state_of, two.theirs) is state  # the other's has not committed


@pytest.mark.leg("postgres18", "postgres16", "mariadb", "sqlite")
@pytest.mark.parametrize("mode", ["single", "separate"])
def test_R53_claim_in_anothers_transaction_is_refused(two, mode):
    with foreign_transaction(two.mine), pytest.raises(TransactionOpen):
        two.mine.claim(claim_request(transaction=mode))
    assert state_of(two.mine) is None
