"""What happens to a record between a claim's look at it and its write."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.db import transaction

from django_idempotency.claims import Decision, decide
from django_idempotency.models import IdempotencyRecord
from django_idempotency.records import State
from django_idempotency.stores.database import store as database
from django_idempotency.stores.database.postgresql import PostgreSQL
from django_idempotency.stores.database.store import TRIES
from tests.integration.database import claims
from tests.integration.database.claims import claim_request, lost, packed, won
from tests.integration.database.sessions import PATIENCE, execute, in_another_database
from tests.services.processes import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


def test_I6_owner_releases_between_look_and_reclaim(two):
    lease = claims.lapsed(two.theirs, claim_request())
    two.mine.before("RECLAIM", lambda: two.other(two.theirs.release, lease))
    mine = won(two.mine.claim(claim_request()))
    two.mine.fail(mine, "")
    asked_for_another_thing = claim_request(fingerprints=(claims.OTHER_FINGERPRINT,))
    record = lost(two.mine.claim(asked_for_another_thing))
    assert two.mine.reached
    assert decide(record, asked_for_another_thing) is Decision.MISMATCH


def test_R76_swept_between_conflict_and_look(two):
    claims.expired(two.theirs, claim_request())
    two.mine.before("LOOK", lambda: two.other(two.theirs.sweep))
    mine = won(two.mine.claim(claim_request()))
    assert two.mine.reached
    assert two.mine.get(mine.record_id).token == mine.token


@pytest.mark.leg("postgres18", "postgres16", "mariadb")
def test_R76_row_that_a_sweep_holds_is_no_conflict(two):
    claims.expired(two.theirs, claim_request())
    sweeping = transaction.atomic()
    two.other(sweeping.__enter__)
    assert two.other(two.theirs.sweep) == 1

    def commit_after(reclaims):
        if reclaims:
            two.mine.before("RECLAIM", lambda: commit_after(reclaims - 1))
        else:
            two.other(sweeping.__exit__, None, None, None)

    commit_after(2 * TRIES)

    mine = won(two.mine.claim(claim_request()))

    assert two.mine.reached
    assert two.mine.get(mine.record_id).token == mine.token


@pytest.mark.leg("postgres18", "postgres16")
@pytest.mark.parametrize("holder", ["single", "whoever"])
def test_R49_expired_record_that_no_sweep_holds_is_in_progress_at_once(two, holder, monkeypatch):
    monkeypatch.setattr(database, "_SWEPT_WITHIN", 2 * PATIENCE)  # waiting would be noticed
    claims.expired(two.theirs, claim_request())
    with transaction.atomic():
        if holder == "whoever":
            IdempotencyRecord.objects.select_for_update().get()
        else:
            won(two.theirs.claim(claim_request(transaction=holder)))

        record = lost(two.other(two.mine.claim, claim_request()))
    assert decide(record, claim_request()) is Decision.IN_PROGRESS


@pytest.mark.leg("postgres18", "postgres16")
def test_R49_locks_that_look_like_a_sweeps_are_none(two, monkeypatch):
    """Of another table, of another number, of one key, in another database."""
    monkeypatch.setattr(database, "_SWEPT_WITHIN", 2 * PATIENCE)  # waiting would be noticed
    claims.expired(two.theirs, claim_request())
    oid = execute("SELECT 'idempotency_record'::regclass::oid::int")

    def hold():
        for keys in (f"{oid + 1}, 0", f"{oid}, 1", f"{oid}::bigint << 32"):
            execute(f"SELECT pg_advisory_xact_lock_shared({keys})")
        IdempotencyRecord.objects.select_for_update().get()

    sweeps = f"SELECT pg_advisory_xact_lock_shared({oid}, 0)"
    with transaction.atomic(), in_another_database(sweeps):
        hold()
        record = lost(two.other(two.mine.claim, claim_request()))
    assert decide(record, claim_request()) is Decision.IN_PROGRESS


@pytest.mark.leg("postgres18", "postgres16", "mariadb")
@pytest.mark.parametrize("does", ["takes over", "renews"])
def test_R53_write_in_an_open_transaction_holds_no_record_but_its_own(two, does):
    lease, _ = (claims.lapsed(two.theirs, claim_request(key)) for key in ("one", "two"))
    with transaction.atomic():
        if does == "takes over":
            won(two.mine.claim(claim_request("one")))
        else:
            assert two.mine.renew([lease], timedelta(hours=1)) == {lease}
        assert won(two.other(two.theirs.claim, claim_request("two"))).takeover


@pytest.mark.leg("postgres18", "postgres16")
@pytest.mark.parametrize("before", [claims.lapsed, claims.live_beyond_expiry], ids=["", "live"])
def test_R75_sweep_in_an_open_transaction_holds_no_record_that_it_leaves(two, before):
    claims.expired(two.theirs, claim_request("expired"))
    lease = before(two.theirs, claim_request())
    with transaction.atomic():
        assert two.mine.sweep() == 1
        two.other.at_once(two.theirs.complete, lease, packed("theirs"), retention=claims.RETENTION)
    assert two.mine.get(lease.record_id).state is State.COMPLETED


@pytest.mark.leg("postgres18", "postgres16", "mariadb")
def test_R69_renewal_does_not_meet_the_lock_of_another_record(two):
    lease, _ = (claims.lapsed(two.theirs, claim_request(key)) for key in ("one", "two"))
    with transaction.atomic():
        IdempotencyRecord.objects.select_for_update().get(key="two")
        assert two.other(two.theirs.renew, [lease], timedelta(hours=1)) == {lease}
    assert two.mine.get(lease.record_id).live


#: An advisory lock: a renewal that has looked at the leases waits for whoever has it.
GO_ON = 4711


@pytest.mark.leg("postgres18", "postgres16")
def test_R69_lease_that_ends_between_the_look_and_the_write_of_a_renewal_is_not_renewed(
    two, monkeypatch
):
    lease, other = (claims.live(two.mine, claim_request(key)) for key in ("one", "two"))
    looked = f"(SELECT id FROM held, pg_advisory_xact_lock({GO_ON}))"
    renewal = PostgreSQL.RENEW.replace("(SELECT id FROM held)", looked)
    monkeypatch.setattr(PostgreSQL, "RENEW", renewal)
    execute(f"SELECT pg_advisory_lock({GO_ON})")
    renewed = two.other.start(two.theirs.renew, [lease, other], timedelta(days=1))
    waits = f"SELECT count(*) FROM pg_locks WHERE objid = {GO_ON} AND NOT granted"
    wait_until(lambda: execute(waits), seconds=PATIENCE, what="the renewal to have looked")
    two.mine.complete(lease, packed("mine"), retention=claims.RETENTION)
    execute(f"SELECT pg_advisory_unlock({GO_ON})")
    assert renewed.result(PATIENCE) >= {other}
    completed, live = (two.mine.get(it.record_id) for it in (lease, other))
    assert (completed.state, completed.lease_until) == (State.COMPLETED, None)
    assert live.lease_until > other.lease_until


@pytest.mark.leg("postgres18", "postgres16")
def test_R76_sweep_that_has_just_let_go_is_no_conflict(two, monkeypatch):
    claims.expired(two.theirs, claim_request())
    sweeping = transaction.atomic()
    two.other(sweeping.__enter__)
    assert two.other(two.theirs.sweep) == 1
    two.mine.before("SWEEPING", lambda: two.other(sweeping.__exit__, None, None, None))
    monkeypatch.setattr(database, "_SWEPT_WITHIN", 2 * PATIENCE)  # nothing to wait for
    mine = won(two.mine.claim(claim_request()))
    assert two.mine.reached
    assert two.mine.get(mine.record_id).token == mine.token


@pytest.mark.leg("postgres18", "postgres16")
def test_I9_R75_sweep_against_a_reclaim_that_commits_meanwhile(two):
    claims.expired(two.theirs, claim_request())
    with transaction.atomic():
        mine = won(two.mine.claim(claim_request()))
        sweep = two.other.start(two.theirs.sweep)
        two.other.settles(sweep)
    assert sweep.result(PATIENCE) == 0
    assert two.mine.get(mine.record_id).token == mine.token


@pytest.mark.leg("postgres18", "postgres16")
def test_sweep_looks_for_expired_records_once_however_it_is_planned(two):
    """A join may be planned to run the limited query anew for each record."""
    with transaction.get_connection().cursor() as cursor:
        cursor.execute(f"EXPLAIN (COSTS false) {PostgreSQL.SWEEP}", {"limit": 2})
        plan = "\n".join(line for (line,) in cursor.fetchall())
    assert re.search(r"^ *InitPlan .*\n *->  Limit$", plan, re.MULTILINE), plan


@pytest.mark.leg("postgres18", "postgres16")
@pytest.mark.parametrize("before", [claims.live, claims.lapsed], ids=["live", "lapsed"])
def test_claim_does_not_wait_for_an_owner_between_completion_and_commit(two, before):
    lease = before(two.theirs, claim_request(transaction="joined"))
    with transaction.atomic():
        two.mine.complete(lease, packed("owner"), retention=claims.RETENTION)
        record = lost(two.other(two.theirs.claim, claim_request()))
        assert decide(record, claim_request()) is Decision.IN_PROGRESS
    assert lost(two.other(two.theirs.claim, claim_request())).state is State.COMPLETED


@pytest.mark.leg("postgres18", "postgres16")
def test_claim_of_a_new_key_does_not_wait_for_an_uncommitted_claim(two):
    with transaction.atomic():
        won(two.mine.claim(claim_request()))
        record = lost(two.other(two.theirs.claim, claim_request()))
        assert decide(record, claim_request()) is Decision.IN_PROGRESS
