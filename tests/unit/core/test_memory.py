"""The memory store alone: operations repeated under their own token, and lost proofs."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from datetime import timedelta

import pytest

from django_idempotency import LeaseLost
from django_idempotency.engine import Engine
from django_idempotency.keys import record_id
from django_idempotency.records import ClaimRequest, Lease, Record, State
from django_idempotency.stores.memory import MemoryStore
from tests.meetings import MEANS, READERS, what_it_means

HOUR = timedelta(hours=1)
FAILED = (b"f" * 32, "boom")


def request(fingerprint=b"f" * 32, **fields):
    identifier = record_id("call", "s", "k")
    return ClaimRequest(identifier, "s", "k", fingerprints=(fingerprint,), **fields)


@pytest.fixture
def store(memory):
    return memory


class TestRepeated:
    """Drivers resend behind our back: each operation succeeds again under its own token."""

    def test_R68_a_claim_gives_the_same_lease_again(self, store, clock):
        asked = request()
        first = store.claim(asked)
        clock.tick(5)
        again = store.claim(asked)
        assert isinstance(again, Lease)
        assert again.proof == first.proof
        assert store.get(asked.record_id).attempts == 1

    def test_R68_a_claim_of_another_attempt_does_not(self, store):
        store.claim(request())
        assert isinstance(store.claim(request()), Record)

    def test_a_completion_succeeds_again_and_extends_nothing(self, store, clock):
        lease = store.claim(request())
        first = store.complete(lease, b"A", retention=HOUR)
        clock.tick(5)
        assert store.complete(lease, b"B", retention=HOUR) == first
        assert store.get(lease.record_id).result == b"A"

    @pytest.mark.parametrize("ending", ["release", "fail"])
    def test_I3_an_ending_after_the_completion_changes_nothing(self, store, ending):
        lease = store.claim(request())
        store.complete(lease, b"A", retention=HOUR)
        store.release(lease) if ending == "release" else store.fail(lease, "boom")
        record = store.get(lease.record_id)
        assert (record.state, record.result) == (State.COMPLETED, b"A")

    @pytest.mark.parametrize("ending", ["release", "fail"])
    def test_I6_an_ended_record_keeps_its_row_and_its_fingerprint_if_it_failed(self, store, ending):
        lease = store.claim(request())
        store.release(lease) if ending == "release" else store.fail(lease, "boom")
        record = store.get(lease.record_id)
        expected = (State.RELEASED, None, "") if ending == "release" else (State.FAILED, *FAILED)
        assert (record.state, record.fingerprint, record.error) == expected
        assert record.token == lease.token


class TestLostProof:
    @pytest.fixture
    def late(self, store, clock):
        """The lease of an attempt that another one has taken over."""
        lease = store.claim(request())
        clock.tick(61)
        assert isinstance(store.claim(request()), Lease)
        return lease

    def test_I7_no_write_of_the_late_owner_lands(self, store, late):
        before = store.get(late.record_id)
        store.fail(late, "late")
        store.release(late)
        with pytest.raises(LeaseLost):
            store.complete(late, b"late", retention=HOUR)
        assert store.renew([late], HOUR) == set()
        assert store.get(late.record_id) == before

    def test_epoch_alone_is_no_proof(self, store):
        lease = store.claim(request())
        forged = Lease(replace(lease.proof, token=request().token), request())
        with pytest.raises(LeaseLost):
            store.complete(forged, b"x", retention=HOUR)

    def test_a_swept_record_is_lost(self, store, clock):
        lease = store.claim(request())
        clock.tick(100 * 24 * 3600)
        assert store.sweep() == 1
        with pytest.raises(LeaseLost):
            store.complete(lease, b"x", retention=HOUR)
        assert store.renew([lease], HOUR) == set()


def test_R79_a_lease_shows_its_record_and_neither_key_nor_token(store):
    shown = repr(store.claim(request()))
    assert str(record_id("call", "s", "k"))[:12] in shown
    assert str(store.get(record_id("call", "s", "k")).token) not in shown


def test_a_state_is_its_name():
    assert [(str(it), it.value) for it in State] == [(it.name, it.name) for it in State]


def test_a_store_that_nobody_uses_is_not_kept():
    store = weakref.ref(MemoryStore())
    gc.collect()
    assert store() is None


@pytest.mark.parametrize("reader", READERS)
def test_I4_record_of_a_call_means_the_same_to_a_block_and_to_coroutines(reader):
    assert what_it_means(Engine(MemoryStore()), reader) == MEANS
