"""The memory store alone: operations repeated under their own token, and lost proofs."""

from __future__ import annotations

import gc
import os
import signal
import threading
import weakref
from dataclasses import replace
from datetime import timedelta

import pytest

import django_idempotency as idempotency
from django_idempotency import InProgress, LeaseLost
from django_idempotency.engine import CLAIM_TRIES, Engine
from django_idempotency.keys import record_id
from django_idempotency.records import ClaimRequest, Lease, Record, State
from django_idempotency.stores.base import ClaimAgain
from django_idempotency.stores.memory import MemoryStore
from tests.meetings import MEANS, READERS, what_it_means

HOUR = timedelta(hours=1)


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

    def test_a_released_record_keeps_its_row_and_forgets_the_fingerprint(self, store):
        lease = store.claim(request())
        store.release(lease)
        record = store.get(lease.record_id)
        assert (record.state, record.fingerprint, record.token) == (
            State.RELEASED,
            None,
            lease.token,
        )

    def test_I6_a_failed_record_keeps_its_fingerprint(self, store):
        lease = store.claim(request())
        store.fail(lease, "boom")
        record = store.get(lease.record_id)
        assert (record.state, record.fingerprint, record.error) == (
            State.FAILED,
            b"f" * 32,
            "boom",
        )


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


class Unlucky(MemoryStore):
    """Its claims are lost to somebody so many times."""

    losses = 0
    claims = 0

    def claim(self, request):
        type(self).claims += 1
        if self.claims <= self.losses:
            raise ClaimAgain
        return super().claim(request)


class TestClaimAgain:
    @pytest.fixture
    def losses(self, settings, monkeypatch):
        def lose(times):
            monkeypatch.setattr(Unlucky, "claims", 0)
            monkeypatch.setattr(Unlucky, "losses", times)
            settings.IDEMPOTENCY = {"default": {"BACKEND": f"{__name__}.Unlucky"}}

        return lose

    def test_R76_a_lost_claim_is_tried_again(self, losses):
        losses(CLAIM_TRIES - 1)
        assert idempotency.run(lambda lease: "done", key="k", scope="s").result == "done"

    def test_R54_but_not_for_ever(self, losses):
        losses(CLAIM_TRIES)
        with pytest.raises(InProgress):
            idempotency.run(lambda lease: pytest.fail("ran"), key="k", scope="s")
        assert Unlucky.claims == CLAIM_TRIES

    def test_R54_for_coroutines_alike(self, losses, in_loop):
        async def never(lease):
            pytest.fail("ran")

        losses(CLAIM_TRIES)
        with pytest.raises(InProgress):
            in_loop(lambda: idempotency.arun(never, key="k", scope="s"))
        assert Unlucky.claims == CLAIM_TRIES


def test_R79_a_lease_shows_its_record_and_neither_key_nor_token(store):
    shown = repr(store.claim(request()))
    assert str(record_id("call", "s", "k"))[:12] in shown
    assert str(store.get(record_id("call", "s", "k")).token) not in shown


@pytest.mark.parametrize("state", list(State))
def test_a_state_is_its_name(state):
    assert str(state) == state.value == state.name


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_forked_child_does_not_wait_for_a_thread_of_its_parent(store):
    store.claim(request())
    held, over = threading.Event(), threading.Event()

    def hold():
        with store._mutex:
            held.set()
            over.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(10)
    try:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                signal.alarm(10)
                code = 0 if isinstance(store.claim(request()), Record) else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        over.set()
        thread.join(10)


def test_a_store_that_nobody_uses_is_not_kept():
    store = weakref.ref(MemoryStore())
    gc.collect()
    assert store() is None


@pytest.mark.parametrize("reader", READERS)
def test_I4_record_of_a_call_means_the_same_to_a_block_and_to_coroutines(reader):
    assert what_it_means(Engine(MemoryStore()), reader) == MEANS
