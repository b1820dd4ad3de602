"""SQLite, where writers queue: who waits for whom, and who does not."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from asgiref.sync import async_to_sync
from django.core import checks
from django.db import OperationalError, connection, transaction
from django.test.utils import CaptureQueriesContext

from django_idempotency.engine import Engine
from django_idempotency.exceptions import InProgress, LeaseLost, StoreError
from django_idempotency.leases import Lease
from django_idempotency.stores.database import sqlite
from tests.app.models import Effect
from tests.integration.database import claims
from tests.integration.database.claims import claim_request, effects, lapse, operation, won, work
from tests.integration.database.sessions import execute
from tests.unit.http.api import problem, replayed

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.leg("sqlite")]


def test_R61_sqlite_that_is_too_old_is_refused(store, monkeypatch):
    monkeypatch.setattr(sqlite, "sqlite_version_info", (3, 34, 1))
    monkeypatch.setattr(sqlite, "sqlite_version", "3.34.1")
    with pytest.raises(StoreError, match=r"no statements for SQLite 3\.34\.1") as refused:
        store.claim(claim_request())
    assert refused.value.retry_after == 60
    found = checks.run_checks(tags=["database"], databases=["default"])
    assert "django_idempotency.E011" in [message.id for message in found]


def never_wait():
    """Make waiting for the write lock an error in this session."""
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA busy_timeout = 0")


@pytest.mark.parametrize(("running", "mode"), [("joined", "single"), ("separate", "joined")])
def test_R49_duplicate_does_not_wait_for_the_work(two, running, mode):
    def run(lease):
        two.other(never_wait)
        with transaction.atomic():
            Effect.objects.create(name="mine")  # from here on nobody else can write
            with pytest.raises(InProgress):
                two.other(Engine(two.theirs).run, operation(transaction=mode), work("theirs"))

    Engine(two.mine).run(operation(transaction=running), run)
    assert effects() == ["mine"]


def test_R25_replay_does_not_wait_for_other_work(two):
    claims.completed(two.theirs, claim_request())
    with transaction.atomic():
        Effect.objects.create(name="other work")
        two.other(never_wait)
        assert two.other(Engine(two.theirs).run, operation(), work("theirs")).replayed


def test_coroutine_in_a_callers_transaction_begins_it_with_a_write(store):
    """A transaction that has read is refused the write lock, at once, where another one has it."""

    async def work(lease):
        return "mine"

    with transaction.atomic(), CaptureQueriesContext(connection) as sent:
        async_to_sync(Engine(store).arun)(operation(transaction="single"), work)
    first = next(query["sql"] for query in sent if "idempotency_record" in query["sql"])
    assert first.split()[0] == "INSERT"


@pytest.mark.parametrize("transaction_mode", [None, "single"])
def test_R50_R61_view_that_cannot_get_the_write_lock_is_503(api, two, settings, transaction_mode):
    """FAIL_OPEN opens nothing: the file was reached."""
    http = {"FAIL_OPEN": True}
    settings.IDEMPOTENCY = {"default": {"TRANSACTION": transaction_mode, "HTTP": http}}
    api(key="another")  # alice is there

    def send():
        never_wait()
        return api(key="mine")

    with transaction.atomic():
        Effect.objects.create(name="other work")
        refused = two.other(send)
    assert problem(refused) == (503, "store_unavailable")
    assert int(refused.headers["Retry-After"]) >= 1
    assert not replayed(api(key="mine"))


def test_end_that_meets_the_write_lock_is_refused_on_its_own_connection(two):
    """Another one is no help: the file has one lock."""
    lease = claims.live(two.mine, claim_request())
    with two.mine.atomic():
        claims.live(two.mine, claim_request("another"))
        two.other(never_wait)
        with pytest.raises(StoreError):
            two.other(two.theirs.fail, lease, "boom")
        assert two.other(execute, "PRAGMA busy_timeout") == 0


@pytest.mark.parametrize("part", ["record_id", "epoch", "token", "state"])
def test_I7_work_does_not_begin_without_the_whole_proof(store, part):
    lease, other = claims.live(store, claim_request()), claims.live(store, claim_request("other"))
    request, epoch = lease.request, lease.fencing_token
    if part == "record_id":
        request = replace(request, record_id=other.record_id)
    elif part == "epoch":
        epoch += 1
    elif part == "token":
        request = replace(request, token=other.token)
    else:
        store.fail(lease, "boom")
    with store.atomic(), pytest.raises(LeaseLost):
        store.fence(Lease(request, epoch))
    if part != "state":
        with store.atomic():
            store.fence(lease)


def test_thread_needs_no_connection_but_its_own(store):
    never_wait()
    with store.fresh_connection():
        assert execute("PRAGMA busy_timeout") == 0


def test_R69_renewal_that_meets_the_write_lock_counts_as_held(two):
    lease = claims.live(two.mine, claim_request())
    with two.mine.atomic():
        claims.live(two.mine, claim_request("another"))
        two.other(never_wait)
        assert two.other(two.theirs.renew, [lease], timedelta(hours=1)) == {lease}


def test_R69_joined_is_not_renewed(store):
    """Its own transaction would keep the renewal out."""
    assert not claims.live(store, claim_request(transaction="joined")).renewable


def test_R69_renewal_that_fails_otherwise_is_an_error(store, monkeypatch):
    lease = claims.live(store, claim_request())
    monkeypatch.setattr(type(store.dialect), "RENEW", "UPDATE nothing SET lease_until = 1")
    with pytest.raises(StoreError):
        store.renew([lease], timedelta(hours=1))


# The work of `joined` begins with a write to its own record.


@pytest.mark.parametrize("part", ["record_id", "epoch", "token"])
def test_R68_work_does_not_begin_under_a_proof_that_is_not_whole(store, part):
    lease, other = claims.live(store, claim_request()), claims.live(store, claim_request("other"))
    epoch = lease.fencing_token
    forged = {
        "record_id": Lease(replace(other.request, token=lease.token), epoch),
        "epoch": Lease(lease.request, epoch + 1),
        "token": Lease(replace(lease.request, token=other.token), epoch),
    }
    store.fence(lease)
    with pytest.raises(LeaseLost):
        store.fence(forged[part])


def test_R68_work_does_not_begin_under_a_lease_that_was_ended(store):
    lease = claims.live(store, claim_request())
    store.fail(lease, "boom")
    with pytest.raises(LeaseLost):
        store.fence(lease)


def test_R66_I7_work_does_not_begin_under_a_lease_that_was_taken_over(two):
    def take_over():
        lapse()
        won(two.theirs.claim(claim_request()))

    ran = []
    two.mine.before("FENCE", lambda: two.other(take_over))
    with pytest.raises(LeaseLost):
        Engine(two.mine).run(operation(), ran.append)
    assert two.mine.reached
    assert ran == []


def test_work_holds_the_write_lock_before_it_reads(two):
    """In the deferred mode a write after a read fails at once if another writer came between."""

    def begin_to_write():
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA busy_timeout = 0")
            cursor.execute("BEGIN IMMEDIATE")

    def run(lease):
        assert Effect.objects.count() == 0
        with pytest.raises(OperationalError, match="locked"):
            two.other(begin_to_write)
        return work("mine")(lease)

    Engine(two.mine).run(operation(), run)
    assert effects() == ["mine"]
