"""`run` on the Redis store, in and out of the caller's transaction."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction
from django.test import TestCase, override_settings

import django_idempotency as idempotency
from django_idempotency import InProgress, TransactionOpen
from django_idempotency.conf import store_for
from django_idempotency.keys import record_id
from django_idempotency.records import Lease, Record, State
from tests.app.models import Effect
from tests.integration.database.test_testcase import Rules, RulesWithin
from tests.integration.redis.conftest import or_skip
from tests.services.processes import wait_until
from tests.services.redis import RedisServer

REDIS = "django_idempotency.stores.redis.RedisStore"


@pytest.fixture
def default(settings: Any, url: str, prefix: str) -> Any:
    """The default alias is in Redis, with a lease that lapses soon."""
    options = {"url": url, "prefix": prefix}
    settings.IDEMPOTENCY = {
        "default": {"BACKEND": REDIS, "OPTIONS": options, "LEASE": timedelta(milliseconds=300)},
        "database": {},
    }
    return store_for()


def effect(lease: Lease) -> int:
    return int(Effect.objects.create(name="x").pk)


def never(lease: Lease) -> None:
    pytest.fail("ran")


def run(work: Any = effect, **arguments: Any) -> Any:
    return idempotency.run(work, key="k", scope="s", **arguments)


def record() -> Record:
    found = store_for().get(record_id("call", "s", "k"))
    assert found is not None
    return found


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("default")
class TestRun:
    def test_I5_second_call_is_a_replay(self, version: str) -> None:
        first, again = run(), run(never)
        assert (first.result, first.replayed) == (again.result, False)
        assert again.replayed
        assert Effect.objects.count() == 1

    def test_long_work_is_renewed(self) -> None:
        def long(lease: Lease) -> str:
            begun = record()
            wait_until(
                lambda: record().now - begun.now > timedelta(seconds=0.7),
                seconds=5,
                what="two leases to pass",
            )
            lease.check()
            with pytest.raises(InProgress):
                run(never)
            return "done"

        assert run(long).stored

    def test_I12_nested_call_with_the_same_key_is_in_progress(self) -> None:
        def nested(lease: Lease) -> None:
            run(never)

        with pytest.raises(InProgress):
            run(nested)

    @pytest.mark.parametrize("transaction", ["single", "joined"])
    def test_transaction_that_only_a_database_store_can_do_is_an_error(
        self, transaction: str
    ) -> None:
        with pytest.raises(ValueError, match="RedisStore can only do 'separate'"):
            run(never, transaction=transaction)

    def test_alias_can_be_named(self) -> None:
        assert not run(store="database").replayed
        assert not run().replayed


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("default")
class TestInsideTheCallersTransaction:
    def test_I13_record_is_completed_when_the_caller_has_committed(self) -> None:
        with transaction.atomic():
            outcome = run()
            assert record().state is State.IN_PROGRESS
            with pytest.raises(InProgress):
                run(never)
        assert not outcome.replayed
        assert record().state is State.COMPLETED
        assert run(never).result == outcome.result

    def test_I13_after_a_rollback_the_lease_lapses_and_a_retry_runs(self) -> None:
        with transaction.atomic():
            run()
            transaction.set_rollback(True)
        assert Effect.objects.count() == 0
        with pytest.raises(InProgress):
            run(never)
        wait_until(lambda: record().stale, seconds=5, what="the lease to lapse")
        assert not run().replayed
        assert Effect.objects.count() == 1

    def test_R69_lease_is_renewed_until_the_caller_commits(self) -> None:
        with transaction.atomic():
            run()
            begun = record()
            wait_until(
                lambda: record().now - begun.now > timedelta(seconds=0.7),
                seconds=5,
                what="two leases to pass",
            )
            assert record().live
        assert record().state is State.COMPLETED

    def test_separate_by_name_raises_and_nothing_runs(self) -> None:
        with transaction.atomic(), pytest.raises(TransactionOpen):
            run(never, transaction="separate")
        assert store_for().get(record_id("call", "s", "k")) is None

    def test_failure_frees_the_key_at_once(self) -> None:
        def fail(lease: Lease) -> None:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError), transaction.atomic():
            run(fail)
        assert record().state is State.FAILED
        assert run().stored


class OnRedis:
    """A server for the rules of a TestCase."""

    server: RedisServer
    _setting: Any

    @classmethod
    def setUpClass(cls) -> None:
        cls.server = or_skip(lambda: RedisServer().start())
        options = {"url": cls.server.url}
        cls._setting = override_settings(
            IDEMPOTENCY={"default": {"BACKEND": REDIS, "OPTIONS": options}}
        )
        cls._setting.enable()
        super().setUpClass()  # type: ignore[misc]

    @classmethod
    def tearDownClass(cls) -> None:
        super().tearDownClass()  # type: ignore[misc]
        cls._setting.disable()
        cls.server.close()


class TestTestCase(OnRedis, RulesWithin, TestCase):
    """R84 with ATOMIC_REQUESTS."""


class TestTestCaseAutocommit(OnRedis, Rules, TestCase):
    """R84 without."""

    atomic_requests = False
