"""The walk of a sweep over expired rows on PostgreSQL, and what it leaves to SWEEP."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

import pytest
from django.db import connection, transaction

from django_idempotency.models import IdempotencyRecord
from django_idempotency.stores.database import sweeping
from django_idempotency.stores.database.postgresql import PostgreSQL
from tests.integration.database import claims
from tests.integration.database.claims import claim_request, won
from tests.integration.database.sessions import PATIENCE, execute
from tests.services.processes import wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.leg("postgres18", "postgres16")]

#: An advisory lock: the DELETE of the first row waits until somebody has it.
GO_ON = 4711
STOP = f"""
CREATE FUNCTION stop() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    WHILE NOT EXISTS (
        SELECT FROM pg_locks JOIN pg_database ON pg_database.oid = database
         WHERE datname = current_database() AND locktype = 'advisory' AND objid = {GO_ON}
    ) LOOP
        PERFORM pg_sleep(0.01);
    END LOOP;
    RETURN OLD;
END $$;
CREATE TRIGGER stop BEFORE DELETE ON idempotency_record
   FOR EACH ROW WHEN (OLD.key = 'first') EXECUTE FUNCTION stop();
"""
LET_GO_ON = f"SELECT pg_advisory_xact_lock({GO_ON})"
IS_STOPPED = "SELECT count(*) FROM pg_stat_activity WHERE pid = {} AND wait_event = 'PgSleep'"

#: Notes in the session how the transaction of a DELETE commits.
NOTE_COMMIT = """
CREATE FUNCTION note_commit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('idempotency.commit', current_setting('synchronous_commit'), false);
    RETURN OLD;
END $$;
CREATE TRIGGER note BEFORE DELETE ON idempotency_record
   FOR EACH ROW EXECUTE FUNCTION note_commit();
"""


PARTITIONED = """
ALTER TABLE idempotency_record RENAME TO whole;
CREATE TABLE idempotency_record (LIKE whole, PRIMARY KEY (id)) PARTITION BY HASH (id);
CREATE TABLE part_0 PARTITION OF idempotency_record FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE part_1 PARTITION OF idempotency_record FOR VALUES WITH (MODULUS 2, REMAINDER 1);
INSERT INTO idempotency_record SELECT * FROM whole ORDER BY key::int;
"""

#: Rows that have expired, or are going to.
FILL = """
INSERT INTO idempotency_record (
       id, scope, key, operation, state, epoch, token, created_at, updated_at, expires_at,
       attempts, error)
SELECT gen_random_uuid(), '', n, '', 'FAILED', 1, gen_random_uuid(), now(), now(), {}, 1, ''
  FROM generate_series(1, {}) AS n
"""
#: Every fourth of them gets a live lease.
LEASE = """
UPDATE idempotency_record SET state = 'IN_PROGRESS', lease_until = now() + interval '1 hour'
 WHERE key::int % 4 = 0
"""


@pytest.fixture
def stopping():
    """Stop the DELETE of the row of "first", which comes first in the place of the rows, too."""
    execute("TRUNCATE idempotency_record")  # or it may take the place of another test's row
    execute(STOP)
    yield
    execute("DROP FUNCTION stop CASCADE")


def started(two):
    """Start a sweep that has looked at the rows, and deletes the first of them."""
    sweep = two.other.start(two.theirs.sweep)
    wait_until(lambda: execute(IS_STOPPED.format(two.other.pid)), seconds=PATIENCE, what="a stop")
    return sweep


def explained(sweep, how="EXPLAIN"):
    with connection.cursor() as cursor:
        cursor.execute(f"{how} {sweep}", {"after": None, "limit": 1000})
        return "\n".join(line for (line,) in cursor.fetchall())


def left():
    return sorted(IdempotencyRecord.objects.values_list("key", flat=True))


def test_I9_R75_row_that_is_claimed_between_look_and_delete_is_left(two, stopping):
    for key in ("first", "second", "third"):
        claims.expired(two.theirs, claim_request(key))
    sweep = started(two)
    mine = won(two.mine.claim(claim_request("second")))
    with transaction.atomic():
        execute(LET_GO_ON)
        assert sweep.result(PATIENCE) == 2
    assert left() == ["second"]
    assert two.mine.get(mine.record_id).token == mine.token


def test_I9_row_that_is_held_between_look_and_delete_is_not_waited_for(two, stopping):
    for key in ("first", "second", "third"):
        claims.expired(two.theirs, claim_request(key))
    sweep = started(two)
    with transaction.atomic():
        won(two.mine.claim(claim_request("second")))
        execute(LET_GO_ON)
        assert sweep.result(PATIENCE) == 2
    assert left() == ["second"]


def test_I9_R75_walk_takes_what_is_free_without_a_look_at_what_is_held(two):
    """By a transaction, and by a lease."""
    befores = {
        "held": claims.expired,
        "live": claims.live_beyond_expiry,
        "lapsed": claims.expired_lapsed,
        "free": claims.expired,
    }
    for key, before in befores.items():
        before(two.theirs, claim_request(key))
    two.mine.before("SWEEP", lambda: pytest.fail("the walk has left it"))
    two.other(transaction.atomic().__enter__)
    two.other(IdempotencyRecord.objects.filter(key="held").update, error="a change under way")
    assert two.mine.sweep(limit=2) == 2
    assert left() == ["held", "live"]


def test_I9_what_expires_behind_a_walk_is_swept(store, monkeypatch):
    monkeypatch.setattr(sweeping, "_STEP", 2)
    for number in range(5):
        claims.expired(store, claim_request(str(number)))
    assert store.sweep(limit=4) == 4  # and the walk stands
    claims.expired(store, claim_request("older"))
    older = claims.LONG_AGO - timedelta(days=1)
    IdempotencyRecord.objects.filter(key="older").update(expires_at=older)
    assert store.sweep(limit=4) == 2
    assert left() == []


def test_walk_does_not_wait_for_the_disk(store):
    execute(NOTE_COMMIT)
    claims.expired(store, claim_request())
    try:
        assert store.sweep() == 1
    finally:
        execute("DROP FUNCTION note_commit CASCADE")
    assert execute("SHOW idempotency.commit") == "off" != execute("SHOW synchronous_commit")


@pytest.mark.parametrize("name", ["SWEEP", "SWEEP_NEXT"])
def test_I9_R75_sweep_of_a_partitioned_table_takes_what_has_expired_alone(store, name):
    """Rows of two partitions have the same place."""

    def swept():
        if name == "SWEEP":
            return store.sweep(limit=10)  # it walks in no transaction
        [(count, _)] = store._execute(name, {"after": None, "limit": 10})
        return count

    with transaction.atomic():
        execute(FILL.format("now() + (n % 2 * 2 - 1) * interval '1 hour'", 200))
        execute(LEASE)
        execute(PARTITIONED)
        while swept():
            pass
        assert IdempotencyRecord.objects.count() == 150
        transaction.set_rollback(True)


def test_sweep_leaves_no_setting_behind(store):
    before = [execute("SHOW lock_timeout"), execute("SHOW synchronous_commit")]
    claims.expired(store, claim_request("alone"))
    assert store.sweep() == 1
    assert [execute("SHOW lock_timeout"), execute("SHOW synchronous_commit")] == before
    claims.expired(store, claim_request("in a transaction"))
    with transaction.atomic():
        assert store.sweep() == 1
        assert [execute("SHOW lock_timeout"), execute("SHOW synchronous_commit")] == before


def test_walk_that_gives_up_keeps_its_session(two, stopping):
    for key in ("first", "second"):
        claims.expired(two.theirs, claim_request(key))
    sweep = started(two)
    with transaction.atomic():
        IdempotencyRecord.objects.filter(key="second").update(error="a change under way")
        execute(LET_GO_ON)
        assert sweep.result(PATIENCE) == 1
    assert two.other(execute, "SELECT pg_backend_pid()") == two.other.pid


def test_I9_walk_that_meets_the_delete_of_another_sweep_at_each_try(
    isolation, two, stopping, monkeypatch
):
    for key in ("first", "second", "third"):
        claims.expired(two.theirs, claim_request(key))
    # Above READ COMMITTED each try fails so.
    monkeypatch.setattr(two.theirs, "_send", partial(two.theirs._send, tries=1))
    sweep = started(two)
    IdempotencyRecord.objects.filter(key="second").delete()
    with transaction.atomic():
        execute(LET_GO_ON)
        assert sweep.result(PATIENCE) == 2
    assert left() == []


def test_I9_rows_that_expired_before_all_time_are_swept(store):
    claims.expired(store, claim_request())
    execute("UPDATE idempotency_record SET expires_at = '-infinity'")
    assert store.sweep() == 1
    assert left() == []


def test_walk_does_not_read_all_that_a_delete_left_which_was_rolled_back(store):
    execute(FILL.format("now() - interval '1 hour'", 3000))
    with transaction.atomic():
        execute("DELETE FROM idempotency_record")
        transaction.set_rollback(True)
    plan = explained(PostgreSQL.SWEEP_NEXT, "EXPLAIN (ANALYZE, TIMING OFF)")
    assert "Rows Removed by Filter: 2000\n" in plan, plan
    assert store.sweep() == 3000


@pytest.mark.parametrize("name", ["SWEEP", "SWEEP_NEXT"])
def test_sweep_finds_rows_by_place_whatever_the_statistics_say(db, name):
    with transaction.atomic():
        execute(FILL.format("now() + interval '1 hour'", 1000))
        execute("ANALYZE idempotency_record")
        execute("UPDATE idempotency_record SET expires_at = now() - interval '1 hour'")
        plan = explained(getattr(PostgreSQL, name))
        transaction.set_rollback(True)
    assert "Tid Scan on idempotency_record" in plan, plan
