"""override_store: another store for a block, a test, a class of tests, and back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from django.core import checks
from django.test import SimpleTestCase

import django_idempotency as idempotency
from django_idempotency import InvalidStore
from django_idempotency.conf import policy_for, store_for
from django_idempotency.stores.database import DatabaseStore
from django_idempotency.stores.memory import MemoryStore
from django_idempotency.testing import FakeClock, override_store


@pytest.fixture(autouse=True)
def _project(settings: Any) -> None:
    settings.IDEMPOTENCY = {
        "default": {"LEASE": 30, "TRANSACTION": "single"},
        "other": {"OPTIONS": {"using": "other"}},
    }


def test_store_is_replaced_in_the_block_and_comes_back() -> None:
    with override_store("memory") as store:
        assert isinstance(store, MemoryStore)
        assert store_for() is store

    assert isinstance(store_for(), DatabaseStore)


def test_store_works() -> None:
    with override_store("memory"):
        outcomes = [idempotency.run(lambda lease: 5, key="k", scope="s") for _ in range(2)]

    assert [outcome.replayed for outcome in outcomes] == [False, True]


def test_each_block_has_a_store_of_its_own() -> None:
    for _ in range(2):
        with override_store("memory"):
            assert not idempotency.run(lambda lease: 5, key="k", scope="s").replayed


def test_policy_of_the_alias_stays() -> None:
    with override_store("memory"):
        assert policy_for().lease.total_seconds() == 30


def test_mode_that_the_store_cannot_do_is_left_out() -> None:
    with override_store("memory"):
        assert policy_for().transaction is None


def test_mode_that_the_store_can_do_stays() -> None:
    with override_store("database", using="other") as store:
        assert isinstance(store, DatabaseStore)
        assert (store.using, policy_for().transaction) == ("other", "single")


def test_another_alias_is_replaced() -> None:
    with override_store("memory", "other"):
        assert isinstance(store_for("other"), MemoryStore)
        assert isinstance(store_for(), DatabaseStore)


def test_alias_may_be_new() -> None:
    with override_store("memory", "new") as store:
        assert store_for("new") is store


def test_project_without_the_setting_has_a_store_replaced(settings: Any) -> None:
    del settings.IDEMPOTENCY

    with override_store("memory") as store:
        assert store_for() is store


def test_store_may_be_a_dotted_path_with_options() -> None:
    clock = FakeClock()

    with override_store("django_idempotency.stores.memory.MemoryStore", clock=clock):
        lease = idempotency.run(lambda lease: lease.claimed_at, key="k", scope="s").result

    assert lease == clock()


def test_store_may_be_an_object() -> None:
    given = MemoryStore()

    with override_store(given) as store:
        assert store is store_for() is given
        assert checks.run_checks(tags=["idempotency"])[0].id == "django_idempotency.W002"


@pytest.mark.parametrize("alias", ["default", "other"])
def test_store_of_an_outer_block_keeps_its_records_when_another_is_replaced(alias: str) -> None:
    with override_store("memory") as outer:
        first = idempotency.run(lambda lease: 5, key="k", scope="s")
        with override_store("memory", alias) as inner:
            assert not idempotency.run(lambda lease: 5, key="k", scope="s", store=alias).replayed

        assert store_for() is outer is not inner
        again = idempotency.run(lambda lease: pytest.fail("ran"), key="k", scope="s")
        assert again.record_id == first.record_id


def test_store_of_the_fixture_keeps_its_records_when_another_is_replaced(
    idempotency_store: Any,
) -> None:
    idempotency.run(lambda lease: 5, key="k", scope="s")

    with override_store("memory", "other"):
        assert store_for() is idempotency_store

    assert idempotency.run(lambda lease: pytest.fail("ran"), key="k", scope="s").replayed


def test_store_may_be_a_class_with_options() -> None:
    clock = FakeClock()

    class Mine(MemoryStore):
        """Of no path that could be imported."""

    with override_store(Mine, clock=clock) as store:
        lease = idempotency.run(lambda lease: lease.claimed_at, key="k", scope="s").result

    assert isinstance(store, Mine)
    assert lease == clock()


@pytest.mark.parametrize("given", [{"BACKEND": "memory"}, None, dict])
def test_what_is_no_store_is_told_with_what_there_is(given: Any) -> None:
    with pytest.raises(TypeError, match=r"takes 'database', .* a class of stores or a store"):
        override_store(given)


def test_object_takes_no_options() -> None:
    with pytest.raises(TypeError, match="no options"):
        override_store(MemoryStore(), clock=FakeClock())


@pytest.mark.parametrize(
    "replaced",
    [
        override_store("nowhere.Store"),
        override_store("memory", clok=FakeClock()),
        override_store(MemoryStore, clok=FakeClock()),
    ],
)
def test_store_that_cannot_be_built_is_told_and_replaces_nothing(replaced: Any) -> None:
    with pytest.raises(InvalidStore), replaced:
        pass

    assert isinstance(store_for(), DatabaseStore)


def test_test_is_decorated() -> None:
    @override_store("memory", kwarg_name="store")
    def test(*, store: Any) -> None:
        assert store_for() is store

    test()
    assert isinstance(store_for(), DatabaseStore)


def test_coroutine_is_decorated() -> None:
    @override_store("memory", kwarg_name="store")
    async def test(*, store: Any) -> bool:
        return store_for() is store

    assert asyncio.run(test())


@override_store("memory", attr_name="store")
class TestOfAProject(SimpleTestCase):
    store: MemoryStore

    def test_class_is_decorated(self) -> None:
        assert store_for() is self.store
