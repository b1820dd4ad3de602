"""Each defective store is noticed by the rule that is meant for it; the sound one by none."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from django_idempotency.stores.memory import MemoryStore
from django_idempotency.testing import FakeClock, StoreContract
from tests.unit.contract import test_memory
from tests.unit.contract.mutants import MUTANTS, NOTICED, PAGE, page, sound
from tests.unit.contract.running import failures


class Contract(StoreContract):
    """The contract on a clock that is moved."""

    shared = False
    supports_join = True
    thread_keys = 10
    store_class = sound(MemoryStore)

    def make_store(self):
        return self.store_class(clock=self.options["clock"])

    def corrupt(self, store, record_id):
        store.damage(record_id)

    def forget(self, store, record_id):
        assert store.drop([record_id])

    @contextmanager
    def lose_answer(self, store):
        store.losing = True
        yield
        assert not store.losing

    @contextmanager
    def between_read_and_write(self, store, callback):
        store.callback = callback
        yield
        assert store.callback is None


def contract_on(store_class, **attributes):
    attributes |= {"store_class": store_class, "options": {"clock": FakeClock()}}
    return type("OfOne", (Contract,), attributes)


def test_sound_store_breaks_no_rule_that_needs_a_hook():
    hooked = set(Contract.rules()) - set(test_memory.TestMemoryStore.rules())
    assert len(hooked) > 10
    assert failures(contract_on(Contract.store_class), hooked) == {}


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_mutant_is_noticed_by_the_rule_that_is_meant(mutant):
    """Which others fail is shown by `make proof`."""
    contract = contract_on(mutant.store_class(), **mutant.contract)

    assert set(failures(contract, [mutant.rule])) == {mutant.rule}


def test_every_rule_notices_something():
    assert set(Contract.rules()) <= {rule for rules in NOTICED.values() for rule in rules}


def test_page_of_mutants_is_current():
    assert PAGE.read_text() == page(), "python -m tests.unit.contract.mutants"
