"""The journal of a record in the database: sessions that race, transactions, lost connections."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection, transaction

from django_idempotency import journal
from django_idempotency.claims import Decision, decide
from django_idempotency.engine import Engine
from django_idempotency.exceptions import InProgress, LeaseLost, StoreError
from django_idempotency.models import IdempotencyRecord
from django_idempotency.records import State
from django_idempotency.stores.database import prepared
from tests.app.models import Effect
from tests.claims import found
from tests.integration.database import claims
from tests.integration.database.claims import effects, lost, operation, packed, state_of, won, work
from tests.integration.database.sessions import PATIENCE, execute
from tests.integration.database.tenants import go_to, rows
from tests.integration.database.test_held_rows import foreign_transaction
from tests.services import current_leg

pytestmark = pytest.mark.django_db(transaction=True)

SERVERS = pytest.mark.leg("postgres18", "postgres16", "mariadb")
POSTGRESQL = pytest.mark.leg("postgres18", "postgres16")
MINUTE, NOTHING = timedelta(minutes=1), timedelta(0)
ONE, TWO = journal.entry("one", b"1\0"), journal.entry("two", b"2")
OWN_SESSION = {"postgresql": "SELECT pg_backend_pid()", "mysql": "SELECT CONNECTION_ID()"}
KILL = {"postgresql": "SELECT pg_terminate_backend({}, 60000)", "mysql": "KILL {}"}


def asked(key="key", **fields):
    """The claim of an attempt with steps."""
    return claims.claim_request(key, **{"steps": True, **fields})


def note(store, lease, entry=ONE, *, duration=MINUTE, held=False):
    store.note(lease, entry, duration=duration, held=held)


def noted(store, key="key"):
    return found(store, key).steps


def lapsed_with_steps(store):
    """The lease of an attempt that has noted one step, and died."""
    lease = won(store.claim(asked()))
    note(store, lease)
    claims.lapse()
    return lease


@pytest.fixture
def at_once(monkeypatch):
    """Each statement is prepared when it is used for the first time, where any is."""
    connection.close()
    monkeypatch.setattr(prepared, "USES_BEFORE", 0)
    yield
    connection.close()


# The transaction of a step.


@pytest.mark.parametrize("ends", ["commits", "rolls back"])
def test_S5_note_is_part_of_the_steps_transaction(two, ends):
    lease = won(two.mine.claim(asked()))
    before = found(two.mine)
    with two.mine.atomic():
        two.mine.fence(lease)
        work("step")(lease)
        note(two.mine, lease)
        assert two.other(noted, two.theirs) is None
        if ends == "rolls back":
            transaction.set_rollback(True)
    after = found(two.mine)
    if ends == "commits":
        assert (after.steps, effects()) == (ONE, ["step"])
    else:
        assert (after.steps, after.lease_until, effects()) == (None, before.lease_until, [])


@pytest.mark.leg("sqlite")
def test_S6_nobody_takes_over_until_the_note_commits_where_writers_wait_for_one_another(two):
    """A live lease is told at once; what would have to be written waits for the busy timeout."""
    lease = won(two.mine.claim(asked()))
    two.other(execute, "PRAGMA busy_timeout = 0")
    with two.mine.atomic():
        two.mine.fence(lease)
        note(two.mine, lease)
        assert lost(two.other(two.theirs.claim, asked())).live
    claims.lapse()
    with two.mine.atomic():
        two.mine.fence(lease)
        note(two.mine, lease, TWO)
        with pytest.raises(StoreError):
            two.other(two.theirs.claim, asked())
    record = lost(two.other(two.theirs.claim, asked()))
    assert (record.token, record.live, record.steps) == (lease.token, True, ONE + TWO)


# Between the look of a claim and its write.


def test_S7_note_between_look_and_write_is_in_the_journal_of_the_claim(two):
    lease = won(two.theirs.claim(asked()))
    note(two.theirs, lease, duration=NOTHING)
    two.mine.before("RECLAIM", lambda: two.other(note, two.theirs, lease, TWO, duration=NOTHING))

    mine = won(two.mine.claim(asked()))

    assert two.mine.reached
    assert mine.journal == noted(two.mine) == ONE + TWO
    with pytest.raises(LeaseLost):
        note(two.theirs, lease)


@pytest.mark.leg("mariadb")
def test_S7_claim_that_is_taken_over_before_it_has_read_the_journal_is_lost(two):
    lapsed_with_steps(two.mine)
    taken = []

    def take_over(execute, sql, *arguments):
        if sql.lstrip().startswith("SELECT steps") and not taken:
            two.other(claims.lapse)
            taken.append(won(two.other(two.theirs.claim, asked())))
        return execute(sql, *arguments)

    with connection.execute_wrapper(take_over):
        record = lost(two.mine.claim(asked()))
    assert (record.token, taken[0].journal) == (taken[0].token, ONE)


def test_S10_first_note_after_the_look_keeps_a_request_without_steps_out(two):
    lease = won(two.theirs.claim(asked()))
    claims.lapse()
    two.mine.before("RECLAIM", lambda: two.other(note, two.theirs, lease, duration=NOTHING))
    request = asked(steps=False)

    record = lost(two.mine.claim(request))

    assert two.mine.reached
    assert (record.token, decide(record, request)) == (lease.token, Decision.STALE)
    assert noted(two.mine) == ONE


@POSTGRESQL
def test_S10_first_note_after_the_claim_of_single_keeps_its_completion_out(two):
    lease = won(two.theirs.claim(asked()))
    claims.lapse()
    with pytest.raises(LeaseLost), two.mine.atomic():  # noqa: PT012
        mine = won(two.mine.claim(asked(transaction="single", steps=False)))
        two.other(note, two.theirs, lease, duration=NOTHING)
        work("single")(mine)
        two.mine.complete(mine, packed("single"), retention=claims.RETENTION)
    assert (effects(), found(two.mine).token) == ([], lease.token)
    assert noted(two.mine) == ONE


@pytest.mark.parametrize("ends", ["lapses", "fails"])
def test_S10_half_done_record_is_stale_in_each_mode_without_steps(store, mode, ends):
    lease = lapsed_with_steps(store)
    if ends == "fails":
        store.fail(lease, "builtins.OSError")
    before = found(store)
    with pytest.raises(InProgress) as raised:
        Engine(store).run(operation(transaction=mode), work("never"))
    assert raised.value.stale
    after = found(store)
    assert (after.steps, after.token, after.attempts) == (ONE, before.token, 1)
    assert effects() == []


@pytest.mark.usefixtures("at_once")
def test_S8_journal_of_what_has_expired_does_not_come_with_a_claim_of_single(store):
    lapsed_with_steps(store)
    claims.expire()
    assert Engine(store).run(operation(transaction="single"), work("single")).stored
    assert (noted(store), state_of(store)) == (None, State.COMPLETED)


# Isolation.


@pytest.mark.parametrize("resent", [False, True], ids=["", "sent again"])
def test_S3_claim_with_steps_is_renewed_where_a_note_can_follow(store, resent):
    lease = won(store.claim(asked()))
    assert (won(store.claim(lease.request)) if resent else lease).renewable


@POSTGRESQL
@pytest.mark.parametrize("resent", [False, True], ids=["", "sent again"])
def test_S3_claim_with_steps_is_not_renewed_where_that_would_fail_the_note(isolation, two, resent):
    """A renewal is newer than the snapshot of a step that has begun."""
    lease = won(two.mine.claim(asked()))
    assert not (won(two.mine.claim(lease.request)) if resent else lease).renewable
    with pytest.raises(StoreError), two.mine.atomic():  # noqa: PT012
        work("step")(lease)
        assert two.other(two.theirs.renew, [lease], MINUTE) == {lease}
        note(two.mine, lease)
    assert (noted(two.mine), effects()) == (None, [])
    for entry in (ONE, TWO):
        with two.mine.atomic():
            work("step")(lease)
            note(two.mine, lease, entry)
    assert noted(two.mine) == ONE + TWO


@POSTGRESQL
def test_S17_note_by_itself_is_sent_again_if_another_was_under_way(isolation, two):
    """In autocommit, too, the server's default makes the second of two updates an error."""
    lease = won(two.mine.claim(asked()))
    with two.mine.atomic():
        note(two.mine, lease)
        writing = two.other.start(note, two.theirs, lease, TWO)
        two.other.settles(writing)
    writing.result(PATIENCE)
    assert noted(two.mine) == ONE + TWO


# Connections.


@SERVERS
@pytest.mark.parametrize("lost_by", ["driver", "server"])
def test_S12_note_by_itself_is_sent_again_on_a_fresh_connection(store, other, lost_by):
    lease = won(store.claim(asked()))
    if lost_by == "driver":
        connection.connection.close()
    else:
        other(execute, KILL[connection.vendor].format(execute(OWN_SESSION[connection.vendor])))
    note(store, lease)
    assert noted(store) == ONE


@POSTGRESQL
def test_S5_note_beside_the_transaction_of_another_attempt_is_not_part_of_it(store, other):
    """Coroutines share a thread, and so its connection."""
    lease = won(store.claim(asked()))
    with foreign_transaction(store):
        note(store, lease)
        assert other(noted, store) == ONE


@pytest.mark.parametrize("left", ["open", "committed"])
def test_S5_note_by_itself_with_autocommit_off(two, left):
    lease = won(two.mine.claim(asked()))
    transaction.set_autocommit(False)
    try:
        Effect.objects.create(name="of the call")
        if left == "committed":
            transaction.commit()
            note(two.mine, lease)
            assert two.other(noted, two.theirs) == ONE
        else:
            with pytest.raises(StoreError, match="left a transaction open"):
                note(two.mine, lease)
            transaction.rollback()
            assert two.other(noted, two.theirs) is None
    finally:
        connection.close()


@POSTGRESQL
def test_R98_note_goes_into_the_schema_of_its_claim(store, tenants):
    """Whatever search path the work of the step leaves."""
    go_to(tenants[0])
    lease = won(store.claim(asked()))
    with store.atomic():
        go_to(tenants[1])
        note(store, lease)
    note(store, lease, TWO)
    connection.close()
    assert [bytes(steps) for (steps,) in rows(tenants[0], "steps")] == [ONE + TWO]
    assert [rows(place) for place in (tenants[1], "public")] == [[], []]


# What it costs.


def test_note_is_one_statement(store, django_assert_num_queries):
    lease = won(store.claim(asked()))
    with django_assert_num_queries(1):
        note(store, lease)
    with django_assert_num_queries(3), store.atomic():  # with BEGIN and COMMIT
        note(store, lease, TWO)


@pytest.mark.parametrize("steps", [True, False])
def test_claims_cost_as_many_statements_as_ever(store, django_assert_num_queries, steps):
    """But for MariaDB, which reads the journal of a record that is claimed again."""
    first = current_leg() in ("sqlite", "mariadb")
    with django_assert_num_queries(2 if first else 1):
        lease = won(store.claim(asked(steps=steps)))
    store.fail(lease, "")
    read = steps and current_leg() == "mariadb"
    with django_assert_num_queries((2 if first else 3) + read):
        lease = won(store.claim(asked(steps=steps)))
    with django_assert_num_queries(1):
        store.complete(lease, packed("done"), retention=claims.RETENTION)


@POSTGRESQL
def test_note_is_a_hot_update(store):
    """It leaves the indexed expires_at alone."""
    execute("TRUNCATE idempotency_record")  # other tests may have filled its pages
    lease = won(store.claim(asked()))
    with store.atomic():
        note(store, lease)
        hot = (
            "SELECT n_tup_upd || ' ' || n_tup_hot_upd FROM pg_stat_xact_user_tables"
            " WHERE relname = 'idempotency_record'"
        )
        assert execute(hot) == "1 1"


def test_S4_half_of_the_lifetime_decides(store):
    """A little less is prolonged, a little more is left."""
    lease = won(store.claim(asked()))
    half = lease.request.lifetime / 2
    for left, stays in ((half - MINUTE, False), (half + MINUTE, True)):
        expires_at = found(store).now + left
        IdempotencyRecord.objects.update(expires_at=expires_at)
        note(store, lease)
        assert (found(store).expires_at == expires_at) is stays
