"""The rules of the engine, once each, for whoever calls: see `call` in conftest.py."""

from __future__ import annotations

import asyncio
import functools
from contextlib import suppress
from contextvars import Context

import pytest
from asgiref.sync import sync_to_async
from django.db import IntegrityError, OperationalError, connection, transaction

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
from tests.unit.core.conftest import (
    MEMORY,
    Call,
    begin,
    callers,
    fail,
    joining,
    kept,
    names,
    never,
    run,
)


def warnings_of(caplog):
    found = [entry for entry in caplog.records if entry.name == "django_idempotency"]
    return [(entry.levelname, entry.getMessage()) for entry in found]


def test_R24_R25_R26_the_first_runs_and_n_duplicates_replay_it(call, work):
    job = work({"id": 5})
    first, *others = [call(job) for _ in range(3)]
    assert (first.result, first.replayed) == ({"id": 5}, False)
    assert [(other.result, other.replayed) for other in others] == [({"id": 5}, True)] * 2
    assert (job.runs, job.effects) == (1, 1)
    [lease], record = job.leases, kept()
    assert (record.state, record.attempts, record.error) == (State.COMPLETED, 1, "")
    assert (record.record_id, record.epoch) == (lease.record_id, lease.fencing_token)
    if call.caller != "decorated":
        assert first.stored
        assert {it.fencing_token for it in (first, *others)} == {record.epoch}


@pytest.mark.django_db
def test_R64_falsy_results_replay_as_they_are_and_a_tuple_is_a_list(memory, work):
    for number, result in enumerate([0, "", [], {}, None, False, 0.0, [1, 2]]):
        job = work((1, 2) if result == [1, 2] else result)
        answers = [Call("run", "memory")(job, key=str(number)).result for _ in range(3)]
        assert [(type(it), it) for it in answers] == [(type(result), result)] * 3
        assert job.runs == 1


@pytest.mark.django_db
def test_R11_R19_R41_keys_scopes_and_cases_do_not_meet(memory, work):
    job, keys = work(1), [("k", "s"), ("K", "s"), ("k2", "s"), ("k", "S")]
    for key, scope in [*keys, ("k", "s" * 1000), ("k", "s" * 1001)]:
        assert not idempotency.run(job, key=key, scope=scope, payload=1).replayed
    assert job.effects == 6
    assert max(len(record.scope) for record in memory._records.values()) == 255


@callers([("run", "single"), ("arun", "memory")])
def test_R37_another_payload_or_operation_is_a_mismatch_and_the_record_stays(call, work):
    asked = {"payload": {"amount": 5}, "operation": "charge"}
    call(work(1), **asked)
    before = kept()
    for changes in ({"payload": {"amount": 6}}, {"payload": None}, {"operation": "refund"}):
        with pytest.raises(FingerprintMismatch):
            call(never, **{**asked, **changes})
    assert call(never, **asked).replayed
    for name in ("state", "result", "fingerprint", "token"):
        assert getattr(kept(), name) == getattr(before, name)


def test_R49_retry_after_is_how_long_it_has_been_running_and_at_most_what_is_left(memory, clock):
    """And 30 seconds at most."""
    for lease, passed, told in (
        (60, 0, 1),
        (60, 1.2, 2),
        (60, 29.5, 30),
        (60, 31, 29),
        (3600, 999, 30),
    ):
        key = f"{lease} {passed}"
        with begin(key, lease=lease):
            clock.advance(passed)
            with pytest.raises(InProgress) as raised:
                run(never, key)
        assert (raised.value.retry_after, raised.value.stale) == (told, False)
        assert raised.value.record.state is State.IN_PROGRESS
        assert raised.value.record.running_for == passed


@pytest.mark.parametrize("wait", [0, 60])
def test_R49_a_call_within_its_own_key_is_told_so_and_does_not_wait(memory, wait):
    def outer(lease):
        return run(never, wait=wait).result

    with pytest.raises(InProgress, match=r"your own outer call.+derive_key") as caught:
        run(outer)
    assert caught.value.retry_after >= 1
    with begin(key="outer"):
        assert run(lambda lease: "of another key").result == "of another key"


def test_R49_a_call_within_another_key_or_the_same_of_another_store_is_another_attempt(
    settings, memory
):
    settings.IDEMPOTENCY = {**settings.IDEMPOTENCY, "second": {"BACKEND": MEMORY}}
    elsewhere, context = begin(store="second"), Context()
    context.run(elsewhere.__enter__).complete("theirs")
    for around in ({"key": "k"}, {"key": "another", "store": "second"}):
        with pytest.raises(InProgress, match=r"^Another attempt"):
            run(lambda lease: run(never, store="second"), **around)
    context.run(elsewhere.__exit__, None, None, None)


class TestErrors:
    """Imported by tests/integration/database/test_engine.py, as are TestConcurrency, TestNested."""

    def test_R58_R70_an_error_passes_on_and_the_next_try_runs(self, call, work):
        """The record says which error, and nothing of its text; epochs and attempts grow."""
        error, jobs = ValueError("4111 1111"), []
        for _ in range(2):
            jobs.append(work(error))
            with pytest.raises(ValueError, match="4111") as caught:
                call(jobs[-1])
            assert caught.value is error
            assert (kept().state, kept().error) == (State.FAILED, "builtins.ValueError")
        with pytest.raises(FingerprintMismatch):
            call(never, payload=2)
        jobs.append(work("third"))
        assert call(jobs[-1]).result == "third"
        assert kept().attempts == 3
        tokens = [job.leases[0].fencing_token for job in jobs]
        assert tokens == sorted(set(tokens))
        assert jobs[-1].effects == (1 if call.joins else 3)

    def test_R58_whatever_it_is(self, mode, work):
        for error in (KeyboardInterrupt(), SystemExit(3), StopIteration(5)):
            with pytest.raises(type(error)) as caught:
                run(work(error), repr(error))
            assert caught.value is error
            assert run(work("second"), repr(error)).result == "second"

    @joining
    def test_R57_R58_an_error_of_the_database_rolls_back_and_frees_the_key(self, call):
        """In the work, or at the COMMIT."""
        Unique.objects.create(name="taken")
        for model, fields in ((Unique, {"name": "taken"}), (Child, {"parent_id": 10**9})):

            def work(lease, model=model, fields=fields):
                Effect.objects.create(name="x")
                model.objects.create(**fields)

            with pytest.raises(IntegrityError):
                call(work)
            assert (names(), kept().state) == ([], State.FAILED)
        assert not call(lambda lease: "second").replayed

    @callers([("run", "single"), ("arun", "joined")])
    def test_R58_R86_a_hook_runs_after_the_commit_alone_and_its_error_is_no_lost_COMMIT(
        self, call, work
    ):
        calls = []

        def hook():
            calls.append(connection.in_atomic_block)
            raise OperationalError("the hook's own server closed the connection")

        job = work(lambda: transaction.on_commit(hook))
        with pytest.raises(OperationalError, match="the hook's own"):
            call(job)
        assert call(job).replayed
        assert (job.runs, job.effects, calls) == (1, 1, [False])


def circular():
    return (result := []).append(result) or result


UNSTORABLE = [(lambda: "x" * 1_100_000, ResultTooLarge), (lambda: object(), TypeError)]
UNSTORABLE += [(circular, (TypeError, ValueError))]
UNSTORABLE += [(lambda: 10**5000, TypeError)]  # of more digits than Python writes


@callers([("run", "joined"), ("aattempt", "single")])
def test_R62_raises_before_the_commit(call, work):
    for result, error in UNSTORABLE:
        job = work(result)
        with pytest.raises(error):
            call(job)
        assert (job.runs, job.effects) == (1, 0)
    with pytest.raises(ResultTooLarge):
        call(work("x" * 100), max_result_bytes=50)
    assert not call(work("x" * 100), max_result_bytes=102).replayed


@callers([("arun", "memory"), ("decorated", "separate")])
def test_R62_separate_completes_without_the_result_and_says_so(call, work, caplog):
    for number, (result, _) in enumerate(UNSTORABLE):
        caplog.clear()
        job, key = work(result), f"secret-{number}"
        answer = call(job, key=key)
        assert (answer.replayed, answer.stored in (False, None)) == (False, True)
        assert answer.result is not None
        [(level, said)] = warnings_of(caplog)
        assert (level, str(job.leases[0].record_id)[:12] in said) == ("WARNING", True)
        assert "secret" not in said
        with pytest.raises(ResultUnavailable):
            call(job, key=key)
        assert job.runs == 1


class TestConcurrency:
    def test_R50_equal_calls_in_threads_run_once(self, mode, run_in_threads):
        def call(index):
            with suppress(InProgress):
                return run(lambda lease: Effect.objects.create(name="x").pk, payload=1)

        outcomes = [it for it in run_in_threads(4, call, using=["default"]) if it is not None]
        assert [outcome.replayed for outcome in outcomes].count(False) == 1
        assert len({outcome.result for outcome in outcomes}) == Effect.objects.count() == 1

    def test_R50_equal_coroutines_run_once(self, mode, in_loop, work):
        job = work(1)

        async def call():
            with suppress(InProgress):
                return await idempotency.arun(sync_to_async(job), key="k", scope="s")

        async def main():
            return await asyncio.gather(*(call() for _ in range(4)))

        outcomes = [outcome for outcome in in_loop(main) if outcome is not None]
        assert [outcome.replayed for outcome in outcomes].count(False) == 1
        assert (job.runs, job.effects) == (1, 1)
        assert run(never).replayed


ARGUMENTS = [
    *(({"key": key}, InvalidKey, "key") for key in ("", " ", "k" * 256, "a\x00", None, 5, b"k")),
    *(({"scope": scope}, TypeError, "scope") for scope in ("", None)),
    ({"leese": 3}, TypeError, "Did you mean 'lease'"),
    ({"required": True}, TypeError, "give it to a view, or to 'HTTP' of the alias"),
    ({"on_stale": "panic"}, ValueError, "on_stale"),
    *(({"transaction": it}, ValueError, "can only do 'separate'") for it in ("single", "joined")),
    ({"payload": object()}, TypeError, "object"),
    ({"store": "fats"}, InvalidStore, "no alias 'fats'. It has 'default'"),
]


def test_function_that_takes_no_lease_is_told_what_to_write(memory):
    with pytest.raises(TypeError, match=r"must take \(lease\).*Write 'lambda lease: \.\.\.'"):
        Call("run", "memory")(lambda: None)
    with pytest.raises(TypeError, match="of its own"):
        Call("run", "memory")(gives_another)


def charge(lease, gateway):
    raise TypeError("of its own")


@functools.wraps(charge)
def gives_another(lease):
    return charge(lease, "gateway")


def test_arguments_that_cannot_be_are_told_and_nothing_runs(memory):
    for caller in ("run", "arun", "attempt"):
        for arguments, error, told in ARGUMENTS:
            with pytest.raises(error, match=told):
                Call(caller, "memory")(never, **arguments)


# What is said of a block alone.


@pytest.fixture(params=["attempt", "aattempt"])
def block(request, in_loop):
    """``block(body, …)``: enter an attempt, call ``body(attempt)``, and return the attempt."""

    def enter(body, **arguments):
        with begin(**arguments) as attempt:
            body(attempt)
        return attempt

    async def aenter(body, **arguments):
        async with begin(**arguments) as attempt:
            body(attempt)
        return attempt

    if request.param == "attempt":
        return enter
    return lambda body, **arguments: in_loop(lambda: aenter(body, **arguments))


def test_complete_takes_effect_when_the_block_ends_and_a_replay_cannot_be_completed(memory, block):
    def complete_twice(attempt):
        attempt.complete(1)
        with pytest.raises(RuntimeError, match="no outcome"):
            attempt.result  # noqa: B018
        attempt.complete()

    def replayed(attempt):
        assert idempotency.current() is None
        with pytest.raises(RuntimeError, match="is a replay"):
            attempt.complete(2)
        with pytest.raises(RuntimeError, match="no lease"):
            attempt.lease  # noqa: B018
        fail()

    assert block(complete_twice).result is None
    with pytest.raises(ValueError, match="boom"):
        block(replayed)
    assert block(lambda attempt: None).replayed


@pytest.mark.parametrize("completes", [True, False])
def test_complete_comes_too_late_when_the_block_has_ended(memory, block, completes):
    attempt = block(lambda attempt: attempt.complete(1) if completes else None)
    with pytest.raises(RuntimeError, match="too late"):
        attempt.complete(2)
    assert attempt.result == (1 if completes else None)


def test_R25_a_replay_opens_no_transaction(mode, in_loop):
    def is_in_transaction():
        return connection.in_atomic_block

    async def main():
        async with begin() as attempt:
            return attempt.replayed, await sync_to_async(is_in_transaction)()

    run(lambda lease: 1)
    with begin() as attempt:
        assert (attempt.replayed, is_in_transaction()) == (True, False)
    assert in_loop(main) == (True, False)


def test_R57_left_without_complete_it_is_released_and_rolled_back(mode, caplog):
    """Nothing is stored, and the warning names the record and not the key."""
    with begin("4111-1111", payload=1) as attempt:
        Effect.objects.create(name="x")
    assert (attempt.outcome.stored, attempt.result) == (False, None)
    assert kept("4111-1111").state is State.RELEASED
    assert names() == (["x"] if mode == "memory" else [])
    [(level, said)] = warnings_of(caplog)
    assert (level, str(attempt.lease.record_id)[:12] in said) == ("WARNING", True)
    assert "4111-1111" not in caplog.text
    assert not run(lambda lease: 2, "4111-1111", payload=2).replayed


def test_R58_an_exception_after_complete_fails_it(memory, block, caplog):
    with pytest.raises(ValueError, match="boom"):
        block(lambda attempt: (attempt.complete(1), fail()))
    assert kept().state is State.FAILED
    assert warnings_of(caplog) == []


def test_one_object_is_entered_once_and_looks_at_its_arguments_then(memory):
    block = begin()
    with block as first:
        with pytest.raises(RuntimeError, match="entered once"), block:
            never()
        first.complete(1)
    with pytest.raises(RuntimeError, match="entered once"), block:
        never()
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
        committed = {None: ["inner", "outer"], "inner": ["outer"], "outer": []}[fails]
        assert names() == committed
        for key in ("inner", "outer"):
            assert run(lambda lease: None, key).replayed is (key in committed)

    @pytest.mark.parametrize("outermost", ["joined", "single"])
    def test_R25_R49_R58_the_same_key_again_inside(self, outermost):
        """In progress two levels in, free after the inner one failed, then a replay."""
        with begin("outer", transaction=outermost) as outer:
            with pytest.raises(ValueError, match="boom"):
                run(fail, "inner")
            with begin("inner") as inner:
                for key in ("outer", "inner"):
                    with pytest.raises(InProgress):
                        run(never, key)
                inner.complete(2)
            assert run(never, "inner").replayed
            assert idempotency.current() is outer.lease
            outer.complete(3)
        assert run(never, "outer").result == 3
