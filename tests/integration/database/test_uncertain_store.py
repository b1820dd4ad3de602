"""Held records and `resume` in the database: sessions that race, transactions, and what is read."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from uuid import UUID

import pytest
from django.db import connection

from django_idempotency import journal
from django_idempotency.claims import Resolution
from django_idempotency.exceptions import LeaseLost, StoreError
from django_idempotency.models import IdempotencyRecord
from django_idempotency.records import State
from django_idempotency.testing.contract_base import unchanged
from tests.claims import found
from tests.integration.database import claims
from tests.integration.database.claims import packed, record_id, won
from tests.integration.database.sessions import PATIENCE, execute
from tests.integration.database.test_admin_plans import SORTED_AT_ONCE, nodes_of, rows_of
from tests.integration.database.test_indexes import indexed
from tests.integration.database.test_steps_store import NOTHING, ONE, asked, note, noted

pytestmark = pytest.mark.django_db(transaction=True)

SERVERS = pytest.mark.leg("postgres18", "postgres16", "mariadb")
POSTGRESQL = pytest.mark.leg("postgres18", "postgres16")
HOUR = timedelta(hours=1)
INTENT, OTHER_INTENT = journal.intent("charge"), journal.intent("mail")
RESULT, WITHDRAWN = journal.entry("charge", b"owner\0"), journal.withdrawn("charge")
#: What an operator says of the call.
DONE, NOT_DONE = {"step": "charge", "result": b"operator"}, {"step": "charge", "not_done": True}


def uncertain(store, ending="lapsed", key="key", **fields):
    """The lease of an attempt that has noted the intent of a call, and ended so."""
    lease = won(store.claim(asked(key, **fields)))
    note(store, lease, ONE + INTENT, held=True)
    if ending == "lapsed":
        claims.lapse(key)
    elif ending == "failed":
        store.fail(lease, "builtins.OSError", held=True)
    return lease


def resume(store, seen, **said):
    """Ask for what an operator decided who saw the record so."""
    return store.resolve(seen.record_id, Resolution("resume", seen.epoch, seen.state, **said))


def note_late(store, lease, entry=OTHER_INTENT):
    """Note under a lease that has lapsed, and leave it lapsed."""
    note(store, lease, entry, duration=NOTHING, held=True)


# Records that are held.


def test_S13_record_that_waits_for_an_operator_is_held_only_by_its_journal(store):
    """The claim of a newer policy takes it over, and gives it an expiry."""
    for key, steps in (("without", False), ("with", True)):
        lease = won(store.claim(asked(key, on_stale="refuse")))
        if steps:
            note(store, lease, held=True)
        claims.lapse(key)
        won(store.claim(asked(key)))
    assert (found(store, "without").held, found(store, "with").held) == (False, True)


def test_S13_failure_holds_its_record_and_says_whether_the_lease_held(store):
    lease = won(store.claim(asked()))
    assert store.fail(lease, "builtins.OSError", held=True)
    assert found(store).held
    assert not store.fail(lease, "builtins.OSError")
    assert found(store).held


# An operator resumes, and another session is at the record.


@SERVERS
@pytest.mark.parametrize("said", [{}, DONE, NOT_DONE], ids=["go on", "done", "not done"])
def test_S18_resume_does_not_wait_for_a_note_and_knows_it_afterwards(two, said):
    lease = uncertain(two.mine)
    seen = found(two.mine)
    with two.mine.atomic():
        note_late(two.mine, lease)
        assert not two.other.at_once(resume, two.theirs, seen, **said)
    assert noted(two.mine) == ONE + INTENT + OTHER_INTENT
    assert two.other(resume, two.theirs, seen, **said)
    assert (found(two.mine).state, found(two.mine).held) == (State.FAILED, True)


@pytest.mark.leg("sqlite")
def test_S18_resume_waits_for_a_writer_no_longer_than_the_busy_timeout(two):
    lease = uncertain(two.mine)
    seen = found(two.mine)
    two.other(execute, "PRAGMA busy_timeout = 0")
    with two.mine.atomic():
        two.mine.fence(lease)
        note_late(two.mine, lease)
        with pytest.raises(StoreError):
            two.other(resume, two.theirs, seen, **DONE)
    assert (found(two.mine).token, noted(two.mine)) == (lease.token, ONE + INTENT + OTHER_INTENT)


@pytest.mark.parametrize("live", [False, True], ids=["lapsed", "live and forced"])
@pytest.mark.parametrize("first", [True, False], ids=["its first note", "another note"])
def test_S18_note_between_look_and_write_of_resume_is_not_overlooked(two, live, first):
    lease = won(two.theirs.claim(asked()))
    if not first:
        note(two.theirs, lease, ONE + INTENT, held=True)
    if not live:
        claims.lapse()
    seen = found(two.mine)
    noting = note if live else note_late
    two.mine.before("RESOLVE", lambda: two.other(noting, two.theirs, lease, OTHER_INTENT))

    assert not resume(two.mine, seen, force=live, **DONE)

    assert two.mine.reached
    kept = found(two.mine)
    assert (kept.token, kept.state) == (lease.token, State.IN_PROGRESS)
    assert kept.steps == (b"" if first else ONE + INTENT) + OTHER_INTENT
    assert resume(two.mine, seen, force=live, **DONE)
    assert found(two.mine).held  # by the other call


@pytest.mark.parametrize("end", ["complete", "fail", "release", "take over", "erase", "sweep"])
@pytest.mark.parametrize("said", [{}, DONE], ids=["go on", "done"])
def test_S18_what_comes_between_look_and_write_of_resume_stands(two, end, said):
    lease = uncertain(two.theirs)
    seen = found(two.mine)

    def ends():
        if end == "complete":
            two.theirs.complete(lease, packed("late"), retention=claims.RETENTION)
        elif end == "take over":
            won(two.theirs.claim(asked()))
        elif end == "erase":
            assert two.theirs.erase(lease.record_id)
        elif end == "sweep":
            claims.expire()
            assert two.theirs.sweep() == 1
        else:
            getattr(two.theirs, end)(lease, *(["builtins.OSError"] if end == "fail" else []))
        return two.theirs.get(lease.record_id)

    after = []
    two.mine.before("RESOLVE", lambda: after.append(two.other(ends)))

    assert not resume(two.mine, seen, **said)

    [expected] = after
    assert unchanged(expected, two.mine.get(lease.record_id))


@SERVERS
def test_S18_late_note_waits_for_the_resume_to_commit_and_is_refused(two):
    lease = uncertain(two.theirs)
    with two.mine.atomic():
        assert resume(two.mine, found(two.mine), **DONE)
        writing = two.other.start(note_late, two.theirs, lease)
        two.other.settles(writing)
        assert not writing.done()
    with pytest.raises(LeaseLost):
        writing.result(PATIENCE)
    assert journal.read(noted(two.mine)) == ({"one": b"1\0", "charge": b"operator"}, ())


@POSTGRESQL
def test_S18_resume_at_a_level_whose_snapshot_does_not_have_the_note(isolation, two):
    """By itself it looks again, and within a transaction it changes nothing."""
    lease = uncertain(two.theirs)
    seen = found(two.mine)
    two.mine.before("RESOLVE", lambda: two.other(note_late, two.theirs, lease))
    assert not resume(two.mine, seen, **DONE)
    two.mine.before("RESOLVE", lambda: two.other(note_late, two.theirs, lease))
    with pytest.raises(StoreError), two.mine.atomic():
        resume(two.mine, seen, **DONE)
    assert noted(two.mine) == ONE + INTENT + OTHER_INTENT + OTHER_INTENT
    assert resume(two.mine, seen, **DONE)


def test_S18_result_of_a_step_is_no_result_of_the_record(store):
    for key in ("failed", "lapsed"):
        uncertain(store, key, key)
        assert resume(store, found(store, key), **DONE)
        assert IdempotencyRecord.objects.get(pk=record_id(key)).result is None


def test_to_resume_is_a_look_and_a_write_and_each_other_decision_is_a_write(
    store, django_assert_num_queries
):
    for action, count in (("resume", 2), ("release", 1), ("complete", 1), ("expire", 1)):
        uncertain(store, "failed", action)
        seen = found(store, action)
        result = b"" if action == "complete" else None
        with django_assert_num_queries(count):
            assert store.resolve(
                seen.record_id, Resolution(action, seen.epoch, seen.state, result=result)
            )


# What is held is found.


@pytest.fixture
def some(store):
    """Five records that are held, and five that expire; the names of each kind, as browsed."""
    fill(5, held=True)
    fill(5, held=False)
    return {
        True: [f"held {number}" for number in (4, 3, 2, 1, 0)],
        False: [f"expires {number}" for number in (4, 3, 2, 1, 0)],
    }


def fill(count, *, held):
    """Write so many records; of those that expire, the last one expires last."""
    begins, kind = (2_000_000, "held") if held else (1_000_000, "expires")
    now = datetime.now(timezone.utc)
    IdempotencyRecord.objects.bulk_create(
        IdempotencyRecord(
            id=UUID(int=(begins + number) << 64),
            scope="scope",
            key=f"{kind} {number}",
            operation=f"operation {number % 2}",
            state="FAILED" if number else "IN_PROGRESS",
            epoch=1,
            token=UUID(int=begins + number),
            lease_until=None if number else now - HOUR,
            created_at=now,
            updated_at=now,
            expires_at=None if held else now + HOUR + timedelta(minutes=number),
        )
        for number in range(count)
    )


def names(records):
    return [record.key for record in records]


@pytest.mark.parametrize("limit", [1, 2, 5, 100])
@pytest.mark.parametrize("held", [True, False])
def test_S15_pages_of_what_is_held_and_of_what_is_not(store, some, held, limit):
    seen, cursor = [], None
    while True:
        page = store.browse(filters={"held": held}, limit=limit, cursor=cursor)
        seen += names(page.records)
        if (cursor := page.cursor) is None:
            break
        assert len(page.records) == limit
    assert seen == some[held]


@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize(
    ("other", "expected"),
    [
        ({"state": "FAILED"}, (4, 3, 2, 1)),
        ({"stale": True}, (0,)),
        ({"operation": "operation 1"}, (3, 1)),
        ({"scope": "scope"}, (4, 3, 2, 1, 0)),
        ({"state": "COMPLETED"}, ()),
    ],
    ids=str,
)
def test_S15_held_goes_with_each_other_filter(store, some, held, other, expected):
    kind = "held" if held else "expires"
    for within in (None, 5):  # no record of the other kind is looked at
        page = store.browse(filters={"held": held, **other}, within=within)
        assert names(page.records) == [f"{kind} {number}" for number in expected]
        assert page.cursor is None


@pytest.mark.parametrize("held", [True, False])
def test_S15_held_goes_with_what_has_an_index_of_its_own(store, some, held):
    uncertain(store, "failed")
    of_key = {"record_id": record_id(), "held": held}
    assert names(store.browse(filters=of_key).records) == (["key"] if held else [])
    begins = str(UUID(int=2_000_000 << 64))[:13]
    assert names(store.browse(filters={"record_id": begins, "held": held}).records) == (
        some[True] if held else []
    )
    with indexed("key"):
        of_key = {"key": "held 3", "held": held}
        assert names(store.browse(filters=of_key, within=1).records) == (["held 3"] if held else [])


def test_S15_page_goes_on_from_a_page_of_other_filters(store, some):
    both = some[True] + some[False]
    for number in range(1, len(both)):
        page = store.browse(limit=number)
        assert names(page.records) == both[:number]
        for held in (True, False):
            rest = store.browse(filters={"held": held}, cursor=page.cursor)
            assert names(rest.records) == [it for it in both[number:] if it in some[held]]


@pytest.mark.parametrize("other", [{}, {"state": "FAILED"}], ids=str)
@pytest.mark.parametrize("held", [True, False])
def test_S15_many_records_of_the_other_kind_are_not_read(store, held, other):
    fill(5, held=held)
    few = read_by_browse(store, held=held, **other)
    fill(3000, held=not held)
    execute({"mysql": "ANALYZE TABLE idempotency_record"}.get(connection.vendor, "ANALYZE"))
    many = read_by_browse(store, held=held, **other)
    assert 0 < many <= few + SORTED_AT_ONCE


def test_S15_page_of_what_expires_reads_as_many_records_as_it_shows(store):
    fill(5, held=False)
    few = read_by_browse(store, held=False)
    IdempotencyRecord.objects.all().delete()
    fill(3000, held=False)
    execute({"mysql": "ANALYZE TABLE idempotency_record"}.get(connection.vendor, "ANALYZE"))
    assert 0 < read_by_browse(store, held=False, limit=5) <= few + SORTED_AT_ONCE


def read_by_browse(store, *, limit=100, **filters):
    """Return how many rows a page reads: on SQLite, how many instructions in tens it takes."""
    read = []

    def measure(execute, sql, parameters, many, context):
        if "row_number()" not in sql:
            return execute(sql, parameters, many, context)
        if connection.vendor == "postgresql":
            cursor = context["cursor"]
            execute("EXPLAIN (ANALYZE, FORMAT JSON) " + sql, parameters, many, context)
            [(plan,)] = cursor.fetchall()
            nodes = nodes_of(plan[0]["Plan"])
            read.append(max(rows_of(node) for node in nodes if "Scan" in node["Node Type"]))
            return execute(sql, parameters, many, context)
        if connection.vendor == "sqlite":
            connection.connection.set_progress_handler(lambda: read.append(1), 100)
            try:
                return execute(sql, parameters, many, context)
            finally:
                connection.connection.set_progress_handler(None, 100)
        before = handled()
        result = execute(sql, parameters, many, context)
        read.append(handled() - before)
        return result

    with connection.execute_wrapper(measure):
        assert len(store.browse(filters=filters, limit=limit).records) >= 4
    return sum(read)


def handled():
    """Return how many rows this session of MariaDB has read."""
    with connection.cursor() as cursor:
        cursor.execute("SHOW SESSION STATUS LIKE 'Handler_read%%'", ())
        return sum(int(count) for _, count in cursor.fetchall())
