"""What is MariaDB's own: nobody waits for a held row, and a claim sees its newest version."""

from __future__ import annotations

import re
import threading
from contextlib import nullcontext, suppress
from datetime import timedelta
from uuid import UUID

import pytest
from django.core import checks
from django.db import OperationalError, connection, transaction
from django.db.transaction import TransactionManagementError

import django_idempotency as idempotency
from django_idempotency import WorkRolledBack
from django_idempotency.claims import ClaimAgain, ClaimRequest
from django_idempotency.engine import Engine
from django_idempotency.exceptions import InProgress, StoreError
from django_idempotency.models import IdempotencyRecord
from django_idempotency.stores.database.mariadb import MariaDB
from tests.app.models import Effect, Unique
from tests.integration.database import claims
from tests.integration.database.claims import claim_request, effects, operation, won, work
from tests.integration.database.test_isolation import Counting

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.leg("mariadb")]

HOUR = timedelta(hours=1)


@pytest.mark.parametrize(
    ("before", "mode"),
    [(claims.absent, "single"), (claims.failed, "joined"), (claims.lapsed, "separate")],
)
def test_R49_duplicate_is_told_at_once(two, before, mode):
    before(two.mine, claim_request())

    def duplicate(lease):
        with pytest.raises(InProgress):
            two.other.at_once(Engine(two.theirs).run, operation(transaction=mode), work("other"))
        return work("mine")(lease)

    Engine(two.mine).run(operation(transaction="single"), duplicate)
    assert effects() == ["mine"]


def test_R85_lost_claim_leaves_the_callers_transaction_usable(two):
    with transaction.atomic():
        work("before")(None)
        two.mine.before("CLAIM", lambda: two.other(claims.live, two.theirs, claim_request()))
        with pytest.raises(InProgress):
            Engine(two.mine).run(operation(transaction="single"), work("mine"))
        work("after")(None)
    assert two.mine.reached
    assert effects() == ["before", "after"]


class TestIsolation:
    @pytest.fixture(autouse=True)
    def repeatable_read(self, two):
        with connection.cursor() as cursor:
            cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        # The fixture `two` closes this connection at the end.

    def test_R54_what_is_newer_than_the_snapshot_is_seen_by_a_claim(self, two):
        with transaction.atomic():
            assert effects() == []  # takes the snapshot
            two.other(Engine(two.theirs).run, operation(transaction="joined"), work("other"))
            outcome = Engine(two.mine).run(operation(transaction="single"), work("mine"))
            two.other(claims.live, two.theirs, claim_request("another"))
            with pytest.raises(InProgress):
                Engine(two.mine).run(operation("another", transaction="single"), work("mine"))
        assert (outcome.result, outcome.replayed) == ("other", True)
        assert effects() == ["other"]

    @pytest.mark.parametrize(("snapshots", "kept"), [("ON", 0), ("OFF", 1)])
    def test_R69_where_snapshots_count_for_writes_joined_is_not_renewed(
        self, two, monkeypatch, caplog, snapshots, kept
    ):
        def renewed(lease):
            assert effects() == []  # takes the snapshot
            assert two.other(two.theirs.renew, [lease], HOUR) == {lease}
            return work("mine")(lease)

        with connection.cursor() as cursor:
            cursor.execute(f"SET SESSION innodb_snapshot_isolation = {snapshots}")
        with nullcontext() if kept else pytest.raises(StoreError):
            assert Engine(two.mine).run(operation("renewed", transaction="joined"), renewed).stored
        told = [entry.getMessage() for entry in caplog.records if entry.levelname == "WARNING"]
        assert ['transaction="single"' in message for message in told] == [True] * (not kept)

        monkeypatch.setitem(connection.settings_dict["OPTIONS"], "isolation_level", None)
        keeper = Counting()
        joined = operation(transaction="joined", renew=True)
        Engine(two.mine, renewer=keeper).run(joined, work("mine"))
        assert len(keeper.given) == kept
        found = checks.run_checks(tags=["database"], databases=["default"])
        assert ("django_idempotency.W003" in [message.id for message in found]) == (not kept)


@pytest.mark.parametrize(
    ("variables", "renewed"),
    [
        ({"transaction_isolation": "READ-COMMITTED", "innodb_snapshot_isolation": "ON"}, True),
        ({"transaction_isolation": "REPEATABLE-READ", "innodb_snapshot_isolation": "ON"}, False),
        ({"tx_isolation": "REPEATABLE-READ", "innodb_snapshot_isolation": "ON"}, False),
        ({"tx_isolation": "REPEATABLE-READ"}, True),
    ],
)
def test_R69_server_of_each_version_says_whether_snapshots_count_for_writes(variables, renewed):
    def execute(name, parameters):
        return [*variables.items()]

    assert MariaDB().may_renew_joined({"isolation_level": None}, execute) is renewed


#: Of version 8, with the ninth byte that MariaDB's own UUID type refuses.
REFUSED = UUID("cab7ace3-d22d-8c64-8032-2627f6ffc27b")


def test_every_id_of_version_8_can_be_claimed_which_the_servers_own_type_refuses(store):
    lease = won(store.claim(ClaimRequest(record_id=REFUSED, scope="s", key="k")))
    store.complete(lease, b"1", retention=HOUR)
    assert store.get(REFUSED).result == b"1"
    assert IdempotencyRecord.objects.get(pk=REFUSED).pk == REFUSED
    with connection.cursor() as cursor:
        cursor.execute("CREATE TEMPORARY TABLE u (id uuid)")
        with pytest.raises(OperationalError, match="Incorrect uuid"):
            cursor.execute("INSERT INTO u VALUES (%s)", [str(REFUSED)])


@pytest.mark.parametrize(
    ("attribute", "value", "named"),
    [("mysql_is_mariadb", False, "MySQL"), ("mysql_version", (10, 5, 29), r"MariaDB 10\.5\.29")],
)
def test_R61_server_too_old_or_MySQL_is_refused(store, monkeypatch, attribute, value, named):
    monkeypatch.setattr(connection, attribute, value)
    with pytest.raises(StoreError, match=f"no statements for {named}") as refused:
        store.claim(claim_request())
    assert refused.value.retry_after == 60
    found = checks.run_checks(tags=["database"], databases=["default"])
    [message] = [message.msg for message in found if message.id == "django_idempotency.E011"]
    assert re.search(named, message)


def test_R54_deadlock_in_a_claim_starts_the_transaction_again(store, monkeypatch):
    """What the server says when it has rolled the transaction back to end a deadlock."""

    def refuse(*arguments):
        raise OperationalError(1213, "Deadlock found when trying to get lock")

    with connection.cursor() as cursor:
        monkeypatch.setattr(type(cursor), "execute", refuse)
        with transaction.atomic(), pytest.raises(ClaimAgain):
            store.claim(claim_request())


@pytest.mark.parametrize(
    ("field", "value"), [("scope", "scope"), ("key", "key"), ("operation", "pay")]
)
def test_R11_what_a_search_names_is_told_apart_by_case_and_by_a_space_at_its_end(
    store, field, value
):
    claims.live(store, claim_request(operation="pay"))
    assert store.browse(filters={field: value}).records
    assert not store.browse(filters={field: value.upper()}).records
    assert not store.browse(filters={field: f"{value} "}).records


def test_I9_sweep_that_a_deadlock_has_ended_begins_again(store):
    claims.expired(store, claim_request())
    met = []

    def meet(execute, sql, params, many, context):
        if sql.lstrip().startswith("DELETE") and len(met) < 2:
            met.append(sql)
            raise OperationalError(1213, "Deadlock found when trying to get lock")
        return execute(sql, params, many, context)

    with connection.execute_wrapper(meet):
        assert store.sweep() == 1
    assert len(met) == 2


def test_R91_work_that_goes_on_after_a_deadlock_is_no_success(run_in_threads):
    """The server has rolled back all that came before; what follows would commit without it."""
    for name in ("a", "b"):
        Unique.objects.create(name=name)
    both_hold_one = threading.Barrier(2, timeout=60)

    def lock(name):
        return Unique.objects.select_for_update().get(name=name)

    def victim(lease):
        Effect.objects.create(name="before")
        lock("a")
        both_hold_one.wait()
        with suppress(OperationalError):
            lock("b")
        with suppress(TransactionManagementError):
            Effect.objects.create(name="after")
        return "done"

    def run(number):
        if number == 0:
            with pytest.raises(WorkRolledBack):
                idempotency.run(victim, key="k", scope="s", transaction="joined")
            return
        with transaction.atomic():  # the heavier of the two, so that it is spared
            Effect.objects.bulk_create([Effect(name="other") for _ in range(50)])
            lock("b")
            both_hold_one.wait()
            lock("a")

    run_in_threads(2, run)

    assert not Effect.objects.exclude(name="other").exists()
    again = idempotency.run(lambda lease: "again", key="k", scope="s", transaction="joined")
    assert not again.replayed
