"""The rules of the engine, once each, for whoever calls: see `call` in conftest.py."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta
from functools import partial

import pytest
from django.db import IntegrityError, connection, transaction

import django_idempotency as idempotency
from django_idempotency import (
    FingerprintMismatch,
    InProgress,
    InvalidKey,
    InvalidStore,
    ResultTooLarge,
    ResultUnavailable,
)
from django_idempotency.records import State
from tests.app.models import Child, Effect, Unique
from tests.unit.core.conftest import Call, never


def warnings_of(caplog):
    found = [entry for entry in caplog.records if entry.name == "django_idempotency"]
    return [(entry.levelname, entry.getMessage()) for entry in found]


class TestFirstAndAgain:
    def test_R24_R25_R26_the_first_runs_and_n_duplicates_replay_it(self, call, work):
        job = work({"id": 5})
        first, *others = [call(job) for _ in range(4)]
        assert (first.result, first.replayed, first.stored) in (
            ({"id": 5}, False, True),
            ({"id": 5}, False, None),
        )
        assert [(other.result, other.replayed) for other in others] == [({"id": 5}, True)] * 3
        assert (job.runs, job.effects) == (1, 1)
        [lease] = job.leases
        record = call.record
        assert (record.state, record.attempts, record.error) == (State.COMPLETED, 1, "")
        assert (record.record_id, record.epoch) == (lease.record_id, lease.fencing_token)
        if first.outcome is not None:
            assert {it.outcome.fencing_token for it in (first, *others)} == {record.epoch}

    def test_R64_falsy_results_replay_as_they_are_and_a_tuple_is_a_list(self, call, work):
        results = [0, "", [], {}, None, False, 0.0, [1, 2]]
        for number, result in enumerate(results):
            job = work((1, 2) if result == [1, 2] else result)
            answers = [call(job, key=str(number)).result for _ in range(2)]
            assert [(type(it), it) for it in answers] == [(type(result), result)] * 2
            assert job.runs == 1

    def test_R11_R19_R41_keys_scopes_and_cases_do_not_meet(self, call, work):
        job = work(1)
        for key, scope in [("k", "s"), ("K", "s"), ("k2", "s"), ("k", "S"), ("k", "s" * 1000)]:
            assert not call(job, key=key, scope=scope, payload=1).replayed
        assert not call(job, scope="s" * 1001, payload=1).replayed
        assert job.effects == 6

    def test_R73_retention_counts_from_the_completion_and_is_told(self, call, work):
        first = call(work(1), retention=3600)
        kept = call.record
        assert abs(kept.expires_at - kept.updated_at - timedelta(hours=1)) < timedelta(minutes=6)
        if first.outcome is not None:
            assert first.outcome.expires_at == kept.expires_at
            assert call(never).outcome.expires_at == kept.expires_at

    def test_the_lease_is_current_while_the_work_runs_and_not_afterwards(self, call):
        seen = []
        call(lambda lease: seen.append(idempotency.current() is lease))
        assert (seen, idempotency.current()) == ([True], None)

    def test_long_and_hostile_texts_fit_the_record(self, call, work):
        job = work(1)
        texts = {"scope": "s\x00" * 500, "key": "'\"; DROP" + "\\" * 247, "operation": "o" * 1000}
        call(job, **texts)
        assert call(job, **texts).replayed
        kept = idempotency.conf.store_for().get(job.leases[0].record_id)
        assert kept.key == texts["key"]
        assert max(len(kept.scope), len(kept.operation)) == 255

    def test_callers_share_their_records(self, mode, work, in_loop):
        job, named = work(1), {"key": "k", "scope": "s"}
        in_loop(lambda: idempotency.arun(job.asynchronous, **named))
        assert idempotency.run(job, **named).replayed
        with idempotency.attempt(**named) as attempt:
            assert attempt.replayed


class TestFingerprint:
    def test_R37_another_payload_or_operation_is_a_mismatch_and_the_record_stays(self, call, work):
        job = work(1)
        call(job, payload={"amount": 5}, operation="charge")
        before = call.record
        for changes in ({"payload": {"amount": 6}}, {"payload": None}, {"operation": "refund"}):
            asked = {"payload": {"amount": 5}, "operation": "charge", **changes}
            with pytest.raises(FingerprintMismatch):
                call(job, **asked)
        assert call(job, payload={"amount": 5}, operation="charge").replayed
        after = call.record
        assert job.runs == 1
        assert [getattr(after, name) for name in ("state", "result", "fingerprint", "token")] == [
            getattr(before, name) for name in ("state", "result", "fingerprint", "token")
        ]

    def test_R38_R49_the_same_key_inside_its_own_work(self, call):
        """Nested work asks for no mode: within the transaction of the outer one it is `single`."""
        told = []

        def nested(lease):
            with pytest.raises(InProgress) as caught:
                idempotency.run(never, key="k", scope="s", payload=1, transaction=None, **name)
            told.append((caught.value.retry_after, caught.value.stale))
            expected = InProgress if call.mode == "single" else FingerprintMismatch  # no row yet
            with pytest.raises(expected):
                idempotency.run(never, key="k", scope="s", payload=2, transaction=None, **name)

        name = {"operation": "o"}
        call(nested, payload=1, **name)
        assert told == [(1, False)]

    def test_R58_R70_a_failed_record_needs_the_same_payload(self, call, work):
        with pytest.raises(ValueError, match="boom"):
            call(work(ValueError("boom")), payload=1)
        with pytest.raises(FingerprintMismatch):
            call(never, payload=2)
        assert call(work(1), payload=1).result == 1

    def test_R47_rotation_of_secrets_turns_no_retry_into_a_mismatch(self, call, work):
        with pytest.raises(ValueError, match="boom"):
            call(work(ValueError("boom")), payload=1, fingerprint_secrets=["old"])
        assert not call(work(1), payload=1, fingerprint_secrets=["new", "old"]).replayed
        assert call(never, payload=1, fingerprint_secrets=["old"]).replayed
        with pytest.raises(FingerprintMismatch):
            call(never, payload=2, fingerprint_secrets=["new", "old"])
        assert call(never, payload=1, fingerprint_secrets=["new"]).replayed  # cannot be compared


class TestErrors:
    def test_R58_an_error_passes_on_and_the_next_try_runs(self, call, work):
        """The record says which error, and nothing of its text; epochs and attempts grow."""
        error, jobs = ValueError("4111 1111"), []
        for _ in range(2):
            jobs.append(work(error))
            with pytest.raises(ValueError, match="4111") as caught:
                call(jobs[-1])
            assert caught.value is error
            assert (call.record.state, call.record.error) == (State.FAILED, "builtins.ValueError")
        jobs.append(work("third"))
        assert call(jobs[-1]).result == "third"
        assert call.record.attempts == 3
        tokens = [job.leases[0].fencing_token for job in jobs]
        assert tokens == sorted(set(tokens))
        assert jobs[-1].effects == (1 if call.joins else 3)

    @pytest.mark.parametrize("error", [KeyError("k"), KeyboardInterrupt(), SystemExit(3)], ids=repr)
    def test_R58_whatever_it_is(self, mode, work, error):
        for name, odd in (("k", error), ("stop", StopIteration(5))):
            with pytest.raises(type(odd)) as caught:
                idempotency.run(work(odd), key=name, scope="s")
            assert caught.value is odd
            assert idempotency.run(work("second"), key=name, scope="s").result == "second"

    @pytest.mark.parametrize("late", [False, True], ids=["in the work", "at the commit"])
    def test_R57_R58_an_error_of_the_database_rolls_back_and_frees_the_key(
        self, joining_call, late
    ):
        def work(lease):
            Effect.objects.create(name="x")
            if late:
                Child.objects.create(parent_id=10**9)
            else:
                Unique.objects.create(name="taken")

        Unique.objects.create(name="taken")
        with pytest.raises(IntegrityError):
            joining_call(work)
        assert (Effect.objects.count(), joining_call.record.state) == (0, State.FAILED)
        assert not joining_call(lambda lease: "second").replayed

    def test_R86_hooks_run_once_after_the_commit_and_not_on_a_replay(self, call):
        calls = []

        def hook():
            calls.append(connection.in_atomic_block)

        for _ in range(2):
            call(lambda lease: transaction.on_commit(hook))
        assert calls == [False]

    def test_R57_R86_hooks_of_failed_work_do_not_run(self, joining_call):
        def work(lease):
            transaction.on_commit(never)
            raise ValueError("boom")

        with pytest.raises(ValueError, match="boom"):
            joining_call(work)

    def test_R58_a_hook_that_raises_leaves_the_result_kept(self, joining_call, work):
        def hook():
            raise ValueError("boom in a hook")

        job = work(lambda: transaction.on_commit(hook))
        with pytest.raises(ValueError, match="boom in a hook"):
            joining_call(job)
        assert joining_call(job).replayed
        assert (job.runs, job.effects) == (1, 1)


class TestUnstorable:
    @staticmethod
    def circular():
        result = []
        result.append(result)
        return result

    RESULTS = ((lambda: "x" * 2_000_000, ResultTooLarge), (lambda: object(), TypeError))

    def results(self):
        return (*self.RESULTS, (self.circular, (TypeError, ValueError)))

    def test_R62_raises_before_the_commit(self, joining_call, work):
        for result, error in self.results():
            job = work(result)
            with pytest.raises(error):
                joining_call(job)
            assert (job.runs, job.effects) == (1, 0)
        assert joining_call(work("small")).result == "small"

    def test_R62_separate_completes_without_the_result_and_says_so(
        self, separate_call, work, caplog
    ):
        for key, (result, _) in zip(
            ("secret-a", "secret-b", "secret-c"), self.results(), strict=True
        ):
            caplog.clear()
            job = work(result)
            answer = separate_call(job, key=key)
            assert (answer.replayed, answer.stored in (False, None)) == (False, True)
            assert answer.result is not None
            [(level, said)] = warnings_of(caplog)
            assert (level, str(job.leases[0].record_id)[:12] in said) == ("WARNING", True)
            assert "secret" not in said
            with pytest.raises(ResultUnavailable):
                separate_call(job, key=key)
            assert job.runs == 1

    def test_R62_max_result_bytes_is_a_policy(self, joining_call, work):
        with pytest.raises(ResultTooLarge):
            joining_call(work("x" * 100), max_result_bytes=50)
        assert not joining_call(work("x" * 100), max_result_bytes=102).replayed


class TestConcurrency:
    def test_R50_equal_calls_in_threads_run_once(self, mode, run_in_threads):
        def call(index):
            with suppress(InProgress):
                return idempotency.run(effect, key="k", scope="s", payload=1)

        def effect(lease):
            return Effect.objects.create(name="x").pk

        outcomes = [it for it in run_in_threads(4, call, using=["default"]) if it is not None]
        assert [outcome.replayed for outcome in outcomes].count(False) == 1
        assert len({outcome.result for outcome in outcomes}) == Effect.objects.count() == 1

    def test_R50_equal_coroutines_run_once(self, mode, in_loop, work):
        job = work(1)

        async def call():
            with suppress(InProgress):
                return await idempotency.arun(job.asynchronous, key="k", scope="s")

        async def main():
            return await asyncio.gather(*(call() for _ in range(4)))

        outcomes = [outcome for outcome in in_loop(main) if outcome is not None]
        assert [outcome.replayed for outcome in outcomes].count(False) == 1
        assert (job.runs, job.effects) == (1, 1)


ARGUMENTS = [
    *(({"key": key}, InvalidKey, "key") for key in ("", " ", "k" * 256, "a\x00", None, 5, b"k")),
    *(({"scope": scope}, TypeError, "scope") for scope in ("", None, 5)),
    ({"leese": 3}, TypeError, "Did you mean 'lease'"),
    ({"on_stale": "panic"}, ValueError, "on_stale"),
    ({"transaction": "single"}, ValueError, "MemoryStore can only do 'separate'"),
    ({"transaction": "joined"}, ValueError, "MemoryStore can only do 'separate'"),
    ({"payload": object()}, TypeError, "object"),
    ({"store": "fats"}, InvalidStore, "no alias 'fats'"),
]


class TestArguments:
    @pytest.mark.parametrize("caller", ["run", "arun", "attempt", "aattempt"])
    def test_what_cannot_be_is_told_and_nothing_runs(self, memory, caller):
        for arguments, error, told in ARGUMENTS:
            with pytest.raises(error, match=told):
                Call(caller, "memory")(never, **arguments)

    def test_an_argument_beats_the_alias(self, settings, memory):
        settings.IDEMPOTENCY = {"default": {**settings.IDEMPOTENCY["default"], "LEASE": 40}}
        kept = partial(idempotency.run, lambda lease: lease.request.lease.seconds, scope="s")
        assert [kept(key="a").result, kept(key="b", lease=50).result] == [40, 50]


def begin(key="k", **arguments):
    return idempotency.attempt(key=key, scope="s", **arguments)


async def aenter(block, body):
    async with block as attempt:
        body(attempt)
    return attempt


def enter(block, body):
    with block as attempt:
        body(attempt)
    return attempt


@pytest.fixture(params=["attempt", "aattempt"])
def block(request, in_loop):
    """``block(body, …)``: enter an attempt, call ``body(attempt)``, and return the attempt."""

    def call(body, **arguments):
        if request.param == "attempt":
            return enter(begin(**arguments), body)
        return in_loop(lambda: aenter(begin(**arguments), body))

    return call


def state_of(attempt):
    return idempotency.conf.store_for().get(attempt.outcome.record_id).state


class TestAttempt:
    """What is said of a block alone."""

    def test_complete_takes_effect_when_the_block_ends_and_the_last_one_counts(self, mode, block):
        def body(attempt):
            attempt.complete(1)
            with pytest.raises(RuntimeError, match="no outcome"):
                attempt.result  # noqa: B018
            attempt.complete()

        assert block(body).result is None
        assert block(lambda attempt: None).replayed

    def test_left_without_complete_it_is_released(self, mode, block, caplog):
        """Nothing is stored, and the warning names the record and not the key."""
        attempt = block(lambda attempt: None, key="4111-1111", payload=1)
        assert (attempt.outcome.stored, attempt.result) == (False, None)
        assert state_of(attempt) is State.RELEASED
        [(level, said)] = warnings_of(caplog)
        assert (level, str(attempt.lease.record_id)[:12] in said) == ("WARNING", True)
        assert "4111" not in caplog.text
        assert not block(lambda it: it.complete(2), key="4111-1111", payload=2).replayed

    @pytest.mark.parametrize("complete", [True, False], ids=["after complete", "before"])
    def test_an_exception_fails_it(self, mode, block, complete, caplog):
        attempts = []

        def body(attempt):
            attempts.append(attempt)
            if complete:
                attempt.complete(1)
            raise ValueError("boom")

        with pytest.raises(ValueError, match="boom"):
            block(body, payload=1)
        store = idempotency.conf.store_for()
        assert store.get(attempts[0].lease.record_id).state is State.FAILED
        assert warnings_of(caplog) == []
        with pytest.raises(FingerprintMismatch):
            block(never, payload=2)
        assert not block(lambda attempt: attempt.complete(1), payload=1).replayed

    @pytest.mark.parametrize("raises", [True, False], ids=["exception", "no complete"])
    @pytest.mark.parametrize("mode", ["single", "joined"])
    @pytest.mark.django_db(transaction=True)
    def test_R57_what_an_unfinished_block_did_is_rolled_back(self, mode, raises):
        with suppress(ValueError), begin(transaction=mode):
            Effect.objects.create(name="x")
            if raises:
                raise ValueError
        assert Effect.objects.count() == 0

    def test_a_replay_has_no_lease_and_cannot_be_completed(self, memory, block):
        def body(attempt):
            assert idempotency.current() is None
            with pytest.raises(RuntimeError, match="is a replay"):
                attempt.complete(2)
            with pytest.raises(RuntimeError, match="no lease"):
                attempt.lease  # noqa: B018
            raise ValueError("boom")

        block(lambda attempt: attempt.complete(1))
        with pytest.raises(ValueError, match="boom"):
            block(body)
        assert block(lambda attempt: None).result == 1

    def test_one_object_is_entered_once(self, memory):
        block = begin()
        with block as first:
            with pytest.raises(RuntimeError, match="entered once"), block:
                never()
            first.complete(1)
        assert first.result == 1
        with pytest.raises(RuntimeError, match="entered once"), block:
            never()

    def test_its_arguments_are_looked_at_on_entry(self, memory):
        block = begin(key="")
        with pytest.raises(InvalidKey), block:
            never()


@pytest.mark.django_db(transaction=True)
class TestNested:
    """Without a choice of mode: the inner attempt takes part in the outer one's transaction."""

    @pytest.mark.parametrize("fails", [None, "inner", "outer"])
    def test_I13_the_inner_one_commits_with_the_outer_one_and_fails_alone(self, fails):
        def both():
            with begin("outer") as outer:
                Effect.objects.create(name="outer")
                with suppress(KeyError), begin("inner") as inner:
                    assert idempotency.current() is inner.lease
                    Effect.objects.create(name="inner")
                    inner.complete(1)
                    if fails == "inner":
                        raise KeyError
                assert idempotency.current() is outer.lease
                outer.complete(2)
                if fails == "outer":
                    raise ValueError

        with suppress(ValueError):
            both()
        kept = {None: ["inner", "outer"], "inner": ["outer"], "outer": []}[fails]
        assert sorted(effect.name for effect in Effect.objects.all()) == kept
        for key in ("inner", "outer"):
            with begin(key) as attempt:
                assert attempt.replayed is (key in kept)
                attempt.replayed or attempt.complete()

    @pytest.mark.parametrize("outermost", ["joined", "single"])
    def test_R49_the_same_key_two_levels_in_is_in_progress(self, outermost):
        with begin("outer", transaction=outermost) as outer:
            with begin("inner") as inner:
                for key in ("outer", "inner"):
                    with pytest.raises(InProgress), begin(key):
                        never()
                inner.complete(1)
            outer.complete(1)

    @pytest.mark.parametrize("outermost", ["joined", "single"])
    def test_R25_R58_the_same_key_again_after_the_inner_one_failed(self, outermost):
        with begin("outer", transaction=outermost) as outer:
            with pytest.raises(ValueError, match="boom"), begin("inner"):
                raise ValueError("boom")
            with begin("inner") as inner:
                inner.complete(2)
            with begin("inner") as inner:
                assert inner.replayed
                assert idempotency.current() is outer.lease
            outer.complete(inner.result)
        assert outer.result == 2
