"""`run`: the first attempt does the work, each later one gets its answer, in every mode."""

from __future__ import annotations

import asyncio
import logging
import os
from datetime import timedelta

import pytest
from django.db import IntegrityError, transaction

import django_idempotency as idempotency
from django_idempotency import (
    FingerprintMismatch,
    InProgress,
    InvalidKey,
    LeaseLost,
    Outcome,
    ResultTooLarge,
    ResultUnavailable,
    StoreError,
)
from django_idempotency.conf import store_for
from django_idempotency.records import State
from django_idempotency.stores.memory import MemoryStore
from tests.app.models import Child, Effect, Unique


def run(func, key="k", scope="s", **arguments):
    return idempotency.run(func, key=key, scope=scope, **arguments)


def record(outcome):
    return store_for().get(outcome.record_id)


class TestFirstAndReplay:
    def test_R24_first(self, mode, work):
        job = work({"id": 5})
        outcome = run(job)
        assert outcome.result == {"id": 5}
        assert outcome.replayed is False
        assert outcome.stored is True
        assert (job.runs, job.effects) == (1, 1)

    def test_R25_again(self, mode, work):
        job = work({"id": 5})
        first, second = run(job), run(job)
        assert second.result == {"id": 5}
        assert second.replayed is True
        assert second.stored is True
        assert (job.runs, job.effects) == (1, 1)
        assert (second.record_id, second.fencing_token) == (first.record_id, first.fencing_token)

    def test_R26_n_duplicates_are_n_replays_of_one_record(self, mode, work):
        job = work(1)
        outcomes = [run(job) for _ in range(5)]
        assert [outcome.replayed for outcome in outcomes] == [False, True, True, True, True]
        assert job.effects == 1

    def test_R73_retention_counts_from_the_completion_and_is_told(self, mode, work):
        first = run(work(1), retention=3600)
        kept = record(first)
        assert first.expires_at == kept.expires_at
        assert abs(kept.expires_at - kept.updated_at - timedelta(hours=1)) < timedelta(minutes=6)
        assert run(work(1)).expires_at == first.expires_at

    def test_R41_another_key_is_another_operation(self, mode, work):
        job = work(1)
        run(job, key="one", payload={"a": 1})
        run(job, key="two", payload={"a": 1})
        assert job.effects == 2

    def test_R19_another_scope_is_another_operation(self, mode, work):
        job = work(1)
        run(job, scope="one")
        run(job, scope="two")
        assert job.effects == 2

    def test_R11_keys_differ_by_case(self, mode, work):
        job = work(1)
        run(job, key="k")
        run(job, key="K")
        assert job.effects == 2

    @pytest.mark.parametrize(
        "result",
        [0, "", [], {}, None, False, 0.0],
        ids=["0", "str", "[]", "{}", "None", "False", "0.0"],
    )
    def test_R64_falsy_results_replay_as_they_are(self, mode, work, result):
        job = work(result)
        first, second = run(job), run(job)
        for outcome in (first, second):
            assert outcome.result == result
            assert type(outcome.result) is type(result)
        assert second.replayed is True
        assert job.runs == 1

    def test_the_first_caller_too_gets_a_list_for_a_tuple(self, mode, work):
        job = work((1, 2))
        assert run(job).result == run(job).result == [1, 2]

    def test_the_work_gets_the_lease(self, mode, work):
        job = work(1)
        outcome = run(job)
        [lease] = job.leases
        assert lease.record_id == outcome.record_id
        assert lease.fencing_token == outcome.fencing_token

    def test_record_tells_what_was_done(self, mode, work):
        kept = record(run(work(1), key="order-7", scope="billing", operation="charge"))
        assert (kept.key, kept.scope, kept.operation) == ("order-7", "billing", "charge")
        assert (kept.state, kept.attempts, kept.error) == (State.COMPLETED, 1, "")

    def test_outcome_is_public(self, mode, work):
        assert isinstance(run(work(1)), Outcome)


class TestFingerprint:
    def test_R37_other_payload_is_a_mismatch_and_the_record_stays(self, mode, work):
        job = work(1)
        first = run(job, payload={"amount": 5})
        before = record(first)
        with pytest.raises(FingerprintMismatch):
            run(job, payload={"amount": 6})
        assert run(job, payload={"amount": 5}).replayed
        assert job.runs == 1
        after = record(first)
        assert (after.state, after.result, after.fingerprint, after.epoch, after.token) == (
            before.state,
            before.result,
            before.fingerprint,
            before.epoch,
            before.token,
        )

    def test_R37_no_payload_differs_from_one(self, mode, work):
        run(work(1))
        with pytest.raises(FingerprintMismatch):
            run(work(1), payload={})

    def test_R37_other_operation_is_a_mismatch(self, mode, work):
        run(work(1), operation="charge")
        with pytest.raises(FingerprintMismatch):
            run(work(1), operation="refund")

    def test_R38_mismatch_beats_in_progress(self, separate_mode, work):
        def nested():
            with pytest.raises(FingerprintMismatch):
                run(work(1), payload=2)

        run(work(nested), payload=1)

    def test_R47_rotation_of_secrets_turns_no_retry_into_a_mismatch(self, mode, work):
        job = work(1)
        run(job, payload=1, fingerprint_secrets=["old"])
        assert run(job, payload=1, fingerprint_secrets=["new", "old"]).replayed
        with pytest.raises(FingerprintMismatch):
            run(job, payload=2, fingerprint_secrets=["new", "old"])
        assert run(job, payload=1, fingerprint_secrets=["new"]).replayed  # it cannot be compared

    def test_R47_a_retry_after_a_failure_may_come_with_the_rotated_secret(self, mode, work):
        with pytest.raises(ValueError, match="boom"):
            run(work(ValueError("boom")), payload=1, fingerprint_secrets=["old"])
        assert run(work(1), payload=1, fingerprint_secrets=["new", "old"]).replayed is False
        assert run(work(1), payload=1, fingerprint_secrets=["old"]).replayed is True


class TestErrors:
    @pytest.mark.parametrize(
        "error",
        [ValueError("boom"), KeyError("k"), StopIteration(5), KeyboardInterrupt(), SystemExit(3)],
        ids=lambda error: type(error).__name__,
    )
    def test_R58_passes_on_unchanged_and_the_next_try_runs(self, mode, work, error):
        with pytest.raises(type(error)) as caught:
            run(work(error))
        assert caught.value is error
        assert run(work("second")).result == "second"

    def test_R57_what_the_failed_work_wrote_is_rolled_back(self, joining_mode, work):
        with pytest.raises(ValueError, match="boom"):
            run(work(ValueError("boom")))
        assert Effect.objects.count() == 0

    def test_R58_the_record_says_which_error_and_nothing_of_its_text(self, mode, work):
        job = work(ValueError("4111 1111"))
        with pytest.raises(ValueError, match="4111"):
            run(job)
        failed = store_for().get(job.leases[0].record_id)
        assert (failed.state, failed.error) == (State.FAILED, "builtins.ValueError")

    def test_R70_a_failed_record_needs_the_same_payload(self, mode, work):
        with pytest.raises(ValueError, match="boom"):
            run(work(ValueError("boom")), payload=1)
        with pytest.raises(FingerprintMismatch):
            run(work(1), payload=2)
        assert run(work(1), payload=1).result == 1

    def test_attempts_are_counted_and_epochs_grow(self, mode, work):
        jobs = [work(ValueError("boom")), work(ValueError("boom")), work(1)]
        for job in jobs[:2]:
            with pytest.raises(ValueError, match="boom"):
                run(job)
        outcome = run(jobs[2])
        assert record(outcome).attempts == 3
        tokens = [job.leases[0].fencing_token for job in jobs]
        assert tokens == sorted(set(tokens))

    def test_R58_out_of_a_broken_transaction(self, joining_mode, work):
        Unique.objects.create(name="taken")

        def twice():
            Unique.objects.create(name="taken")

        with pytest.raises(IntegrityError):
            run(work(twice))
        assert Effect.objects.count() == 0
        assert run(work(1)).result == 1

    def test_R58_deferred_constraint_that_fails_at_the_commit(self, joining_mode, work):
        def orphan():
            Child.objects.create(parent_id=10**9)

        with pytest.raises(IntegrityError):
            run(work(orphan))
        assert Effect.objects.count() == 0
        assert run(work(1)).replayed is False

    def test_work_that_marks_its_transaction_for_rollback_is_not_kept(self, joining_mode, work):
        def mark():
            transaction.set_rollback(True)
            return "undone"

        outcome = run(work(mark))
        assert (outcome.result, outcome.stored) == ("undone", False)
        assert Effect.objects.count() == 0
        assert run(work("second")).result == "second"

    def test_R86_hooks_run_once_after_the_commit_and_not_on_a_replay(self, mode, work):
        calls = []

        def hook():
            calls.append(transaction.get_connection().in_atomic_block)

        job = work(lambda: transaction.on_commit(hook))
        run(job)
        run(job)
        assert calls == [False]

    def test_R86_hooks_of_failed_work_do_not_run(self, joining_mode, work):
        calls = []

        def register():
            transaction.on_commit(lambda: calls.append(1))
            raise ValueError("boom")

        with pytest.raises(ValueError, match="boom"):
            run(work(register))
        assert calls == []

    def test_R58_a_hook_that_raises_leaves_the_result_kept(self, joining_mode, work):
        def hook():
            raise ValueError("boom in a hook")

        job = work(lambda: transaction.on_commit(hook))
        with pytest.raises(ValueError, match="boom in a hook"):
            run(job)
        assert run(job).replayed is True
        assert (job.runs, job.effects) == (1, 1)


class TestArguments:
    @pytest.mark.parametrize("key", ["", " ", "k" * 256, "a\x00", None, 5, b"k"])
    def test_invalid_key(self, memory, key):
        with pytest.raises(InvalidKey):
            run(lambda lease: pytest.fail("ran"), key=key)

    @pytest.mark.parametrize("scope", ["", None, 5])
    def test_a_scope_is_a_string_that_is_not_empty(self, memory, scope):
        with pytest.raises(TypeError, match="scope"):
            run(lambda lease: pytest.fail("ran"), scope=scope)

    def test_unknown_argument_with_a_suggestion(self, memory):
        with pytest.raises(TypeError, match="Did you mean 'lease'"):
            run(lambda lease: pytest.fail("ran"), leese=3)

    def test_argument_that_cannot_be(self, memory):
        with pytest.raises(ValueError, match="on_stale"):
            run(lambda lease: pytest.fail("ran"), on_stale="panic")

    @pytest.mark.parametrize("transaction", ["single", "joined"])
    def test_a_store_that_cannot_join_says_so(self, memory, transaction):
        with pytest.raises(ValueError, match="MemoryStore can only do 'separate'"):
            run(lambda lease: pytest.fail("ran"), transaction=transaction)

    def test_payload_without_a_canonical_form(self, memory):
        with pytest.raises(TypeError, match="object"):
            run(lambda lease: pytest.fail("ran"), payload=object())

    def test_unknown_store(self, memory):
        with pytest.raises(idempotency.InvalidStore, match="no alias 'fats'"):
            run(lambda lease: pytest.fail("ran"), store="fats")

    def test_long_and_hostile_texts_fit_the_record(self, mode, work):
        job = work(1)
        scope, key, operation = "s\x00" * 500, "'\"; DROP" + "\\" * 247, "o" * 1000
        outcome = run(job, scope=scope, key=key, operation=operation)
        assert run(job, scope=scope, key=key, operation=operation).replayed
        kept = record(outcome)
        assert kept.key == key
        assert max(len(kept.scope), len(kept.operation)) == 255

    def test_scopes_that_are_cut_to_one_beginning_do_not_meet(self, mode, work):
        job = work(1)
        run(job, scope="s" * 1000)
        run(job, scope="s" * 1001)
        assert job.runs == 2

    def test_an_argument_beats_the_alias(self, settings, memory, work, db):
        settings.IDEMPOTENCY = {"default": {**settings.IDEMPOTENCY["default"], "LEASE": 40}}
        job = work(1)
        run(job, key="a")
        run(job, key="b", lease=50)
        assert [lease.request.lease.seconds for lease in job.leases] == [40, 50]


class Circular:
    """A result that holds itself: JSON cannot say it."""

    def __call__(self):
        result = []
        result.append(result)
        return result


class TestUnstorable:
    RESULTS = {
        "too large": (lambda: "x" * 2_000_000, ResultTooLarge),
        "no JSON": (lambda: object(), TypeError),
        "holds itself": (Circular(), (TypeError, ValueError)),
    }
    unstorable = pytest.mark.parametrize(("result", "error"), RESULTS.values(), ids=RESULTS.keys())

    @unstorable
    def test_R62_raises_before_the_commit(self, joining_mode, work, result, error):
        job = work(result)
        with pytest.raises(error):
            run(job)
        assert (job.runs, job.effects) == (1, 0)
        assert run(work("small")).result == "small"

    @unstorable
    def test_R62_separate_completes_without_the_result(self, separate_mode, work, result, error):
        job = work(result)
        outcome = run(job)
        assert outcome.stored is False
        assert outcome.replayed is False
        assert outcome.result is not None
        with pytest.raises(ResultUnavailable):
            run(job)
        assert (job.runs, job.effects) == (1, 1)

    def test_R62_and_says_so_in_the_log(self, separate_mode, work, caplog):
        outcome = run(work(lambda: "x" * 2_000_000), key="my-secret-key")
        [entry] = [entry for entry in caplog.records if entry.name == "django_idempotency"]
        assert entry.levelno == logging.WARNING
        assert str(outcome.record_id)[:12] in entry.getMessage()
        assert "my-secret-key" not in caplog.text

    def test_R62_max_result_bytes_is_a_policy(self, joining_mode, work):
        with pytest.raises(ResultTooLarge):
            run(work("x" * 100), max_result_bytes=50)
        assert run(work("x" * 100), max_result_bytes=102).stored


class TestConcurrency:
    def test_R49_the_same_key_inside_its_own_work_is_in_progress(self, mode, work):
        def nested():
            with pytest.raises(InProgress) as caught:
                run(lambda lease: pytest.fail("ran"), transaction=None)
            assert caught.value.stale is False
            return caught.value.retry_after

        retry_after = run(work(nested)).result
        assert retry_after == 1

    def test_R50_equal_calls_in_threads_run_once(self, mode, run_in_threads):
        def call(index):
            try:
                return run(lambda lease: Effect.objects.create(name="x").pk, payload=1)
            except InProgress:
                return None

        outcomes = run_in_threads(8, call, using=["default"])
        won = [outcome for outcome in outcomes if outcome is not None and not outcome.replayed]
        assert len(won) == 1
        assert Effect.objects.count() == 1
        assert {o.result for o in outcomes if o is not None} == {won[0].result}


class FailingStore(MemoryStore):
    """A memory store that cannot be reached at the named operations."""

    fails: set[str] = set()

    def claim(self, request):
        self._may("claim")
        return super().claim(request)

    def complete(self, lease, result, *, retention):
        self._may("complete")
        return super().complete(lease, result, retention=retention)

    def fail(self, lease, error):
        self._may("fail")
        super().fail(lease, error)

    def _may(self, name):
        if name in self.fails:
            raise StoreError(f"no {name}")


@pytest.fixture
def failing(settings, clock, monkeypatch):
    settings.IDEMPOTENCY = {
        "default": {"BACKEND": f"{__name__}.FailingStore", "OPTIONS": {"clock": clock}}
    }
    return lambda *names: monkeypatch.setattr(FailingStore, "fails", set(names))


class TestStoreDown:
    def test_R61_at_the_claim_nothing_runs(self, failing):
        failing("claim")
        with pytest.raises(StoreError, match="no claim"):
            run(lambda lease: pytest.fail("ran"))

    def test_R60_at_the_completion_the_caller_gets_its_result(self, failing, clock, caplog):
        failing("complete")
        outcome = run(lambda lease: "done")
        assert (outcome.result, outcome.stored, outcome.replayed) == ("done", False, False)
        assert outcome.expires_at is None
        assert [entry.levelname for entry in caplog.records] == ["ERROR"]
        failing()
        with pytest.raises(InProgress):
            run(lambda lease: pytest.fail("ran"))
        clock.tick(60)
        assert run(lambda lease: "again").result == "again"

    def test_R58_a_fail_that_cannot_be_written_masks_nothing(self, failing, caplog):
        failing("fail")

        def boom(lease):
            raise ValueError("boom")

        with pytest.raises(ValueError, match="boom"):
            run(boom)
        assert [entry.levelname for entry in caplog.records] == ["ERROR"]


class TestFencing:
    """A stalls past its lease, B takes over; the clock is the test's."""

    def stalled(self, clock, *, then):
        """Run A, which stalls while B runs under the same key; return what B got."""
        got = []

        def a(lease):
            clock.tick(61)
            got.append(run(lambda lease: "B"))
            return then()

        return a, got

    def test_R66_the_late_completion_is_refused_and_Bs_result_stays(self, memory, clock):
        a, got = self.stalled(clock, then=lambda: "A")
        with pytest.raises(LeaseLost):
            run(a)
        assert got[0].result == "B"
        assert run(lambda lease: pytest.fail("ran")).result == "B"

    def test_R67_the_late_failure_does_not_touch_Bs_result(self, memory, clock):
        def boom():
            raise ValueError("boom")

        a, _ = self.stalled(clock, then=boom)
        with pytest.raises(ValueError, match="boom"):
            run(a)
        assert run(lambda lease: pytest.fail("ran")).result == "B"

    def test_R67_the_late_release_does_not_touch_Bs_result(self, memory, clock):
        with idempotency.attempt(key="k", scope="s"):
            clock.tick(61)
            run(lambda lease: "B")
        assert run(lambda lease: pytest.fail("ran")).result == "B"

    def test_R67_the_late_failure_does_not_touch_Bs_claim(self, memory, clock):
        late = idempotency.attempt(key="k", scope="s")
        late.__enter__()
        clock.tick(61)
        with idempotency.attempt(key="k", scope="s") as attempt:
            late.__exit__(ValueError, ValueError("late"), None)
            assert memory.get(attempt.lease.record_id).state is State.IN_PROGRESS
            attempt.complete("B")
        assert run(lambda lease: pytest.fail("ran")).result == "B"
        assert idempotency.current() is None

    def test_I2_epochs_grow_with_each_take_over(self, memory, clock):
        a, got = self.stalled(clock, then=lambda: "A")
        tokens = []

        def first(lease):
            tokens.append(lease.fencing_token)
            return a(lease)

        with pytest.raises(LeaseLost):
            run(first)
        assert got[0].fencing_token > tokens[0]

    def test_I2_epochs_grow_even_if_the_clock_goes_back(self, memory, clock):
        leases = []

        def boom(lease):
            leases.append(lease)
            raise ValueError("boom")

        for _ in range(2):
            with pytest.raises(ValueError, match="boom"):
                run(boom)
            clock.tick(-3600)
        assert leases[1].fencing_token > leases[0].fencing_token

    def test_R68_each_claim_has_a_token_of_its_own(self, memory):
        leases = []

        def boom(lease):
            leases.append(lease)
            raise ValueError("boom")

        for _ in range(3):
            with pytest.raises(ValueError, match="boom"):
                run(boom)
        assert len({lease.token for lease in leases}) == 3


class SmallStore(MemoryStore):
    """A store that cannot hold more than 100 bytes, whatever max_result_bytes says."""

    def complete(self, lease, result, *, retention):
        if len(result) > 100:
            raise idempotency.ResultTooLarge
        return super().complete(lease, result, retention=retention)


@pytest.fixture
def small_store(settings):
    backend = "tests.unit.core.test_run.SmallStore"
    settings.IDEMPOTENCY = {"default": {"BACKEND": backend}}
    return store_for()


def test_R62_result_too_large_for_the_store_itself_completes_without_it(small_store):
    call = {"key": "k", "scope": "tests"}

    outcome = idempotency.run(lambda lease: os.urandom(200).hex(), **call)

    assert (len(outcome.result), outcome.stored) == (400, False)
    with pytest.raises(idempotency.ResultUnavailable):
        idempotency.run(lambda lease: 1, **call)


def test_R62_coroutine_with_a_result_too_large_for_the_store_completes_without_it(small_store):
    async def work(lease):
        return os.urandom(200).hex()

    async def run():
        outcome = await idempotency.arun(work, key="k", scope="tests")
        with pytest.raises(idempotency.ResultUnavailable):
            await idempotency.arun(work, key="k", scope="tests")
        return outcome

    outcome = asyncio.run(run())

    assert (len(outcome.result), outcome.stored) == (400, False)


@pytest.mark.django_db(transaction=True)
def test_R62_result_too_large_after_the_callers_commit_completes_without_it(small_store):
    call = {"key": "k", "scope": "tests"}

    with transaction.atomic():
        idempotency.run(lambda lease: os.urandom(200).hex(), **call)

    with pytest.raises(idempotency.ResultUnavailable):
        idempotency.run(lambda lease: 1, **call)


class ItemStore(MemoryStore):
    """A store that makes items of transactions: here the call that they would be."""

    def transact_item(self, lease, result, *, retention):
        return lambda: self.complete(lease, result, retention=retention)


def test_completion_as_an_item_of_the_callers_transaction_is_recognised(settings):
    settings.IDEMPOTENCY = {"default": {"BACKEND": "tests.unit.core.test_run.ItemStore"}}
    call = {"key": "k", "scope": "tests"}

    def work(lease):
        lease.transact_item({"id": 5})()
        return {"id": 5}

    first = idempotency.run(work, **call)
    again = idempotency.run(work, **call)

    assert (first.result, first.stored, first.replayed) == ({"id": 5}, True, False)
    assert (again.result, again.replayed) == ({"id": 5}, True)


def test_item_is_refused_by_a_store_that_has_none(settings):
    settings.IDEMPOTENCY = {"default": {"BACKEND": "django_idempotency.stores.memory.MemoryStore"}}

    with pytest.raises(RuntimeError, match="MemoryStore has no items"):
        idempotency.run(lambda lease: lease.transact_item(1), key="k", scope="tests")


@pytest.mark.django_db(transaction=True)
def test_item_is_refused_inside_a_callers_transaction(settings):
    settings.IDEMPOTENCY = {"default": {"BACKEND": "tests.unit.core.test_run.ItemStore"}}

    with transaction.atomic(), pytest.raises(idempotency.TransactionOpen, match="outside atomic"):
        idempotency.run(lambda lease: lease.transact_item(1), key="k", scope="tests")
