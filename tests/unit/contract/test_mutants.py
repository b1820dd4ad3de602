"""Each defective store is noticed by the rule that is meant for it; the sound one by none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from uuid import UUID

import pytest

from django_idempotency.stores.base import BaseStore
from django_idempotency.testing import FakeClock, StoreContract
from tests.unit.contract.mutants import MUTANTS, Mutant, SoundStore
from tests.unit.contract.mutants.page import NOTICED, PAGE, page
from tests.unit.contract.running import failures


def contract_on(store_class: type[SoundStore]) -> type[StoreContract]:
    """Return the contract of a store, on a clock that is moved."""

    class Contract(StoreContract):
        shared = False
        thread_keys = 10

        def make_store(self) -> BaseStore:
            return store_class(clock=self.options["clock"])

        def corrupt(self, store: BaseStore, record_id: UUID) -> None:
            assert isinstance(store, SoundStore)
            store.damage(record_id)

        def forget(self, store: BaseStore, record_id: UUID) -> None:
            assert isinstance(store, SoundStore)
            store.forget(record_id)

        @contextmanager
        def lose_answer(self, store: BaseStore) -> Iterator[None]:
            assert isinstance(store, SoundStore)
            store.losing = True
            yield
            assert not store.losing

        @contextmanager
        def between_read_and_write(
            self, store: BaseStore, callback: Callable[[], object]
        ) -> Iterator[None]:
            assert isinstance(store, SoundStore)
            store.callback = callback
            yield
            assert store.callback is None

    Contract.options = {"clock": FakeClock()}
    for name, value in getattr(store_class, "contract", {}).items():
        setattr(Contract, name, value)
    return Contract


def test_sound_store_breaks_no_rule() -> None:
    assert failures(contract_on(SoundStore)) == {}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_mutant_is_noticed_by_the_rule_that_is_meant(mutant: type[Mutant]) -> None:
    """Which others fail is shown by `make proof`."""
    assert set(failures(contract_on(mutant), [mutant.rule])) == {mutant.rule}


def test_every_rule_notices_something() -> None:
    noticing = {rule for rules in NOTICED.values() for rule in rules}

    assert set(contract_on(SoundStore).rules()) - noticing == set()


def test_page_of_mutants_is_current() -> None:
    assert PAGE.read_text() == page(), "python -m tests.unit.contract.mutants.page"
