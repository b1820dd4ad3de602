"""The memory store, beside what the contract of stores says of it (tests/unit/contract)."""

from __future__ import annotations

import weakref

import pytest

from django_idempotency.claims import ClaimRequest
from django_idempotency.engine import Engine
from django_idempotency.keys import record_id
from django_idempotency.records import State
from django_idempotency.stores.memory import MemoryStore
from tests.meetings import MEANS, READERS, what_it_means


def request(fingerprint=b"f" * 32, **fields):
    identifier = record_id("call", "s", "k")
    return ClaimRequest(identifier, "s", "k", fingerprints=(fingerprint,), **fields)


@pytest.fixture
def store(memory):
    return memory


def test_R79_a_lease_shows_its_record_and_neither_key_nor_token(store):
    shown = repr(store.claim(request()))
    assert str(record_id("call", "s", "k"))[:12] in shown
    assert str(store.get(record_id("call", "s", "k")).token) not in shown


def test_a_state_is_its_name():
    assert [(str(it), it.value) for it in State] == [(it.name, it.name) for it in State]


def test_a_store_that_nobody_uses_is_not_kept():
    store = weakref.ref(MemoryStore())
    assert store() is None


@pytest.mark.parametrize("reader", READERS)
def test_I4_record_of_a_call_means_the_same_to_a_block_and_to_coroutines(reader):
    assert what_it_means(Engine(MemoryStore()), reader) == MEANS
