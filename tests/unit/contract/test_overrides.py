"""Another store for a block, a test, a class of tests, and back; the fixtures, and their clock."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta, timezone

import pytest
from django.conf import settings
from django.core import checks
from django.test import SimpleTestCase

import django_idempotency as idempotency
from django_idempotency import InvalidStore
from django_idempotency.conf import policy_for, store_for
from django_idempotency.stores.database import DatabaseStore
from django_idempotency.stores.memory import MemoryStore
from django_idempotency.testing import FakeClock, override_store
from tests.pages import DOCS, blocks_of


@pytest.fixture(autouse=True)
def _project(settings):
    settings.IDEMPOTENCY = {
        "default": {"LEASE": 30, "TRANSACTION": "single"},
        "other": {"OPTIONS": {"using": "other"}},
    }


def run(**options):
    return idempotency.run(lambda lease: lease.claimed_at, key="k", scope="s", **options)


def test_policy_of_the_alias_stays_without_a_mode_that_the_store_cannot_do():
    with override_store("memory"):
        assert (policy_for().lease.total_seconds(), policy_for().transaction) == (30, None)
    with override_store("database", using="other") as store:
        assert (store.using, policy_for().transaction) == ("other", "single")
    assert isinstance(store_for(), DatabaseStore)


def test_alias_may_be_new_and_the_setting_absent(settings):
    del settings.IDEMPOTENCY

    with override_store("memory") as store, override_store("memory", "new") as new:
        assert (store_for(), store_for("new")) == (store, new)


class Mine(MemoryStore):
    """A class of stores."""


@pytest.mark.parametrize("given", ["django_idempotency.stores.memory.MemoryStore", Mine])
def test_store_may_be_a_dotted_path_or_a_class_with_options(given):
    clock = FakeClock()

    with override_store(given, clock=clock) as store:
        assert run().result == clock()
    assert isinstance(store, Mine if given is Mine else MemoryStore)


def test_store_may_be_an_object():
    given = MemoryStore()

    with override_store(given) as store:
        assert store is store_for() is given
        assert checks.run_checks(tags=["idempotency"])[0].id == "django_idempotency.W002"


@pytest.mark.parametrize("alias", ["default", "other"])
def test_store_of_an_outer_block_keeps_its_records_when_another_is_replaced(alias):
    with override_store("memory") as outer:
        first = run()
        with override_store("memory", alias) as inner:
            assert not run(store=alias).replayed

        assert store_for() is outer is not inner
        again = run()
        assert (again.replayed, again.record_id) == (True, first.record_id)


def test_what_is_no_store_is_told_with_what_there_is():
    with pytest.raises(TypeError, match=r"takes 'database', .* a class of stores or a store"):
        override_store(dict)
    with pytest.raises(TypeError, match="no options"):
        override_store(MemoryStore(), clock=FakeClock())


@pytest.mark.parametrize("replaced", ["nowhere.Store", MemoryStore])
def test_store_that_cannot_be_built_is_told_and_replaces_nothing(replaced):
    with pytest.raises(InvalidStore), override_store(replaced, clok=FakeClock()):
        pass
    assert isinstance(store_for(), DatabaseStore)


def test_coroutine_is_decorated():
    @override_store("memory", kwarg_name="store")
    async def test(*, store):
        return store_for() is store

    assert asyncio.run(test())


@override_store("memory", attr_name="store")
class TestOfAProject(SimpleTestCase):
    def test_class_is_decorated(self):
        assert store_for() is self.store


@pytest.fixture
def setting_that_comes_back():
    before = settings.IDEMPOTENCY
    yield
    assert settings.IDEMPOTENCY is before


def test_fixture_puts_the_setting_back(setting_that_comes_back, idempotency_store):
    assert store_for() is idempotency_store
    assert idempotency_store.browse().records == ()


def test_documented_test_with_the_fixtures_passes(idempotency_store, idempotency_clock):
    texts = [block.text for block in blocks_of(DOCS / "howto" / "testing.md")]
    names = {"idempotency": idempotency, "timedelta": timedelta}
    [called] = [text for text in texts if "def run(" in text]
    [test] = [text for text in texts if "idempotency_clock" in text]
    exec(called.partition("clock = ")[0] + test, names)

    names["test_a_key_is_new_after_a_day"](idempotency_store, idempotency_clock)


NEW_YEAR = datetime(2026, 1, 1, tzinfo=timezone.utc)


def test_clock_begins_with_now_or_elsewhere_stands_still_and_is_in_utc():
    before = datetime.now(timezone.utc)
    clock = FakeClock()
    assert before <= clock() == clock() <= datetime.now(timezone.utc)

    clock = FakeClock(datetime(2026, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))))
    assert (clock(), clock().utcoffset()) == (NEW_YEAR, timedelta(0))
    assert repr(clock) == "<FakeClock 2026-01-01T00:00:00+00:00>"
    with pytest.raises(ValueError, match="aware"):
        FakeClock(datetime(2026, 1, 1))


def test_clock_moves_when_told():
    clock = FakeClock(NEW_YEAR)

    assert clock.advance(timedelta(seconds=90)) == clock() == NEW_YEAR + timedelta(seconds=90)
    assert clock.advance(-90.0) == NEW_YEAR
