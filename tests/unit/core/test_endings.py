"""Endings that the work does not choose: stores that fail, leases that are lost, lost COMMITs."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager, suppress
from dataclasses import replace
from unittest.mock import DEFAULT, Mock

import pytest
from django.db import IntegrityError, connections, transaction

from django_idempotency import (
    FingerprintMismatch,
    InProgress,
    LeaseLost,
    ResultTooLarge,
    ResultUnavailable,
    StoreError,
    signals,
)
from django_idempotency.claims import ClaimAgain
from django_idempotency.codecs import JSONCodec, pack, unavailable
from django_idempotency.engine import CLAIM_TRIES, Engine
from django_idempotency.engine.ending import RollBack, Verdict
from django_idempotency.models import IdempotencyRecord
from django_idempotency.records import State
from django_idempotency.stores.database import DatabaseStore
from django_idempotency.stores.memory import MemoryStore
from django_idempotency.transactions.outer import CommitHooks, OuterTransaction
from tests import claims
from tests.app.models import Effect
from tests.claims import FINGERPRINT, OTHER_FINGERPRINT, asked, found, record_id
from tests.unit.core.conftest import Call, fail, kept, levels, never, run, run_in_loop


class Interrupt(BaseException):
    """Not one of Python's own: an event loop ends by those at once, and forgets what it ran."""


def done(lease=None):
    return "done"


@pytest.fixture(params=["run", "arun"])
def call(request):
    return Call(request.param, "memory")


@pytest.mark.parametrize("gone", [False, True])
@pytest.mark.parametrize("caller", ["run", "arun"])
def test_R60_at_the_completion_the_caller_gets_its_result(memory, clock, caplog, caller, gone):
    if gone:
        work = lambda lease: memory._records.clear() or "done"  # noqa: E731
    else:
        work, memory.complete = done, Mock(side_effect=StoreError("no complete"))
    told = Mock()
    signals.store_failed.connect(told)
    try:
        answer = Call(caller, "memory")(work)
    finally:
        signals.store_failed.disconnect(told)
    assert (answer.result, answer.stored, answer.replayed) == ("done", False, False)
    assert answer.expires_at is None
    assert (levels(caplog), told.call_count) == (["ERROR"], 1)
    assert ("its work stands, and a retry will run again" in caplog.text) is gone
    if not gone:
        del memory.complete
        with pytest.raises(InProgress):
            run(never)
        clock.advance(60)
    assert run(lambda lease: "again").result == "again"


def test_R58_an_end_that_cannot_be_written_masks_nothing(memory, call, caplog):
    memory.fail = Mock(side_effect=StoreError("no end"))
    with pytest.raises(ValueError, match="boom"):
        call(fail)
    assert (levels(caplog), "no end" in caplog.text) == (["ERROR"], True)
    assert kept().state is State.IN_PROGRESS


@pytest.mark.parametrize("mode", ["separate", "joined", "single"])
def test_R58_the_line_of_an_end_that_cannot_be_written_says_what_follows(expired, caplog, mode):
    store = expired()
    store.fail = Mock(side_effect=StoreError("no end"))
    with pytest.raises(ValueError, match="boom"):
        perform(store, mode, fail)
    lapses = "no end" in caplog.text and "it will lapse" in caplog.text
    assert lapses is (mode != "single")
    assert ("it ends with its transaction" in caplog.text) is (mode == "single")


@pytest.mark.parametrize("told", [False, True])
def test_R58_an_end_has_no_line_where_that_of_the_stores_error_is_to_come(expired, caplog, told):
    """It is to come unless an attempt within has written it."""
    store, error = expired(), StoreError("no transaction")
    store.fail = Mock(side_effect=StoreError("no end"))
    if told:
        error.told = "the line of the attempt within"
    else:
        store.atomic = Mock(side_effect=error)
    with pytest.raises(StoreError, match="no transaction"):
        perform(store, "joined", Mock(side_effect=error))
    assert ("no end" in caplog.text) is told
    assert levels(caplog) == ["ERROR"]


@pytest.mark.parametrize(
    ("error", "said"), [(None, "not kept"), (ValueError("boom"), "builtins.ValueError")]
)
def test_R57_the_record_says_why_a_refusal_is_not_kept(memory, call, error, said):
    def refuse(lease):
        raise RollBack("fail", "refused", error)

    if error is None:
        assert call(refuse).result == "refused"
    else:
        with pytest.raises(ValueError, match="boom"):
            call(refuse)
    assert (kept().state, kept().error) == (State.FAILED, said)


@pytest.mark.parametrize("error", [RuntimeError, StoreError, LeaseLost, InProgress])
def test_R61_an_error_that_the_work_raises_is_its_own_whatever_it_says(memory, call, told, error):
    def work(lease):
        raise error

    with pytest.raises(error):
        call(work)
    assert told == ["failed"]


def test_R60_work_that_sees_that_its_lease_is_lost_is_told_as_that(memory, call, told):
    def work(lease):
        lease.mark_lost()
        lease.check()

    with pytest.raises(LeaseLost):
        call(work)
    assert told == ["lease lost"]


def test_R60_an_interrupted_completion_that_cannot_be_repeated_is_told(memory, call, told):
    memory.complete = Mock(side_effect=[Interrupt, StoreError("no complete")])
    with pytest.raises(Interrupt):
        call(done)
    assert told == ["store unavailable"]


def test_an_attempt_whose_completion_is_interrupted_again_and_again_has_one_end(memory, call, told):
    memory.complete = Mock(side_effect=[Interrupt, Interrupt])
    with pytest.raises(Interrupt):
        call(done)
    assert len(told) == 1


@pytest.mark.django_db(transaction=True)
def test_R94_where_no_completion_can_be_left_for_the_callers_commit_the_record_fails(memory):
    """It is not left behind the error that its caller gets."""

    class Outer(OuterTransaction):
        def after_commit(self, complete):
            calls.append(complete)
            if len(calls) == 1:
                raise KeyboardInterrupt

    calls = []
    with transaction.atomic():
        guarded = replace(claims.operation(), outer=Outer([connections["default"]]))
        with pytest.raises(KeyboardInterrupt):
            Engine(memory).run(guarded, done)
    assert (found(memory).state, len(calls)) == (State.FAILED, 1)


@pytest.mark.django_db(transaction=True)
def test_R94_a_refusal_within_the_callers_transaction_frees_the_key_at_once(memory, told):
    """There is no answer that would have to wait for the commit."""
    outer = OuterTransaction([connections["default"]])
    with transaction.atomic():
        guarded = replace(claims.operation(), outer=outer)
        with Engine(memory).attempt(guarded, None, lambda result: Verdict("fail")) as attempt:
            attempt.complete("refused")
        assert (found(memory).state, told) == (State.FAILED, ["failed"])


def test_R90_of_work_without_a_record_nothing_is_told(memory, told):
    unrecorded = replace(claims.operation(), recorded=False)
    with Engine(memory).attempt(unrecorded) as attempt:
        attempt.complete("done")
    with pytest.raises(ValueError, match="boom"), Engine(memory).attempt(unrecorded):
        fail()

    async def asynchronous():
        async with Engine(memory).aattempt(unrecorded) as attempt:
            attempt.complete("done")
        with pytest.raises(ValueError, match="boom"):
            async with Engine(memory).aattempt(unrecorded):
                fail()

    run_in_loop(asynchronous)
    assert (attempt.result, told) == ("done", [])


def test_R90_of_work_without_a_record_no_answer_is_kept(memory):
    unrecorded = replace(claims.operation(), recorded=False, unstorable_ok=False)
    result = object()
    with Engine(memory).attempt(unrecorded) as attempt:
        raise RollBack("keep", result)
    assert (attempt.result, attempt.outcome.stored) == (result, False)


def test_R90_work_without_a_record_is_asked_for_no_deadline(memory):
    unrecorded = replace(claims.operation(deadline=never), recorded=False)
    with Engine(memory).attempt(unrecorded) as attempt:
        attempt.complete("done")
    assert attempt.result == "done"


def test_an_error_at_the_claim_that_is_no_answer_is_told_as_a_failure(memory, call, told):
    memory.claim = Mock(side_effect=RuntimeError("broken"))
    with pytest.raises(RuntimeError, match="broken"):
        call(never)
    assert told == ["failed"]


def test_R61_a_block_that_cannot_be_opened_is_no_error_of_the_claim(expired):
    """Nobody may run without a lease where there was one."""
    store = expired()
    store.atomic = Mock(side_effect=StoreError("no transaction", unreachable=True))
    with pytest.raises(StoreError, match="no transaction") as raised:
        perform(store, "joined", never, on_error=never)
    assert not raised.value.at_claim


def test_R58_an_end_that_fails_otherwise_is_not_tried_again(memory, call):
    for name in ("fail", "complete"):
        setattr(memory, name, Mock(side_effect=RuntimeError("broken")))
    for key, work in (("a", fail), ("b", done)):
        with pytest.raises(RuntimeError, match="broken"):
            call(work, key=key)
    # A completion is repeated once: what broke may be an interrupt, and the first one on its way.
    assert (memory.fail.call_count, memory.complete.call_count) == (2, 2)


def test_R58_a_completion_that_is_repeated_leaves_the_record_to_its_next_owner(memory, call):
    memory.complete = Mock(side_effect=[RuntimeError("interrupt"), LeaseLost()])
    memory.fail = Mock()
    ended = Mock()
    signals.lease_lost.connect(ended)
    try:
        with pytest.raises(RuntimeError, match="interrupt"):
            call(done)
    finally:
        signals.lease_lost.disconnect(ended)
    assert (memory.fail.call_count, ended.call_count) == (0, 1)


def test_R58_an_interrupt_after_the_completion_repeats_nothing(memory, call, told):
    class Interrupting:
        @property
        def result(self):
            raise RuntimeError("interrupt")

    def complete(lease, result, *, retention):
        lease.completed_before = Interrupting()
        return MemoryStore.complete(memory, lease, result, retention=retention)

    memory.complete = Mock(side_effect=complete)
    with pytest.raises(RuntimeError, match="interrupt"):
        call(done)
    assert (memory.complete.call_count, told) == (1, ["completed"])


def test_R62_what_transact_item_has_completed_without_a_result_answers_with_the_works(
    memory, call, caplog
):
    def complete(lease, result, *, retention):
        expires_at = MemoryStore.complete(memory, lease, unavailable(JSONCodec()), retention=1)
        lease.completed_before = kept()
        return expires_at

    memory.complete = complete
    answer = call(done)
    assert (answer.result, answer.replayed, answer.stored) == ("done", False, False)
    assert levels(caplog) == []


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("commits", [True, False])
def test_R60_R90_work_is_rolled_back_unless_its_own_transaction_has_committed(memory, commits):
    memory.complete = Mock(side_effect=LeaseLost)
    beside = replace(claims.operation(), aliases=["default"])
    with suppress(LeaseLost, ValueError), Engine(memory).attempt(beside) as attempt:
        Effect.objects.create(name="x")
        attempt.complete("done" if commits else fail())
    assert (attempt.rolled_back, Effect.objects.exists()) == (not commits, commits)


@pytest.mark.parametrize("after_commit", [False, True])
@pytest.mark.django_db(transaction=True)
def test_R62_result_too_large_for_the_store_itself_completes_without_it(memory, call, after_commit):
    """Whatever max_result_bytes says."""
    memory.complete = Mock(wraps=memory.complete, side_effect=[ResultTooLarge(), DEFAULT])
    if after_commit:
        with transaction.atomic():
            run(done)
    else:
        assert call(done).stored is False
    with pytest.raises(ResultUnavailable):
        call(never)


def test_R66_I2_the_late_completion_is_refused_and_Bs_result_stays(memory, call, clock):
    tokens = []

    def a(lease):
        clock.advance(61)
        tokens.extend([lease.fencing_token, run(lambda lease: "B").fencing_token])
        return "A"

    with pytest.raises(LeaseLost):
        call(a)
    assert call(never).result == "B"
    assert tokens[0] < tokens[1]


def test_R54_R76_a_lost_claim_is_tried_again_and_not_for_ever(memory, call):
    memory.claim = Mock(wraps=memory.claim, side_effect=[ClaimAgain()] * CLAIM_TRIES)
    with pytest.raises(InProgress):
        call(never)
    memory.claim.side_effect = [*([ClaimAgain()] * (CLAIM_TRIES - 1)), DEFAULT]
    assert call(done).result == "done"


def test_R47_R76_a_record_that_has_expired_is_compared_with_nothing(memory, call, clock, caplog):
    call(done, fingerprint_secrets=["old"], retention=1)
    clock.advance(2)
    memory.claim = Mock(wraps=memory.claim, side_effect=[kept(), DEFAULT])
    assert not call(done, fingerprint_secrets=["new"]).replayed
    assert levels(caplog) == []


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("mode", ["joined", "single"])
def test_R60_work_whose_record_is_gone_is_rolled_back_and_single_writes_it(
    settings, work, mode, caplog, monkeypatch
):
    """It is deleted before the transaction of the work, or of `single`, is opened."""
    job, atomic = work("done"), DatabaseStore.atomic

    def vanishing(store, *, committed=None):
        if not store.in_transaction():
            IdempotencyRecord.objects.all().delete()
        return atomic(store, committed=committed)

    settings.IDEMPOTENCY = {"default": {"TRANSACTION": mode}}
    monkeypatch.setattr(DatabaseStore, "atomic", vanishing)
    if mode == "single":
        assert run(job).stored
    else:
        with pytest.raises(LeaseLost) as raised:
            run(job)
        assert raised.value.gone
        assert (job.runs, levels(caplog)) == (0, ["ERROR"])  # SQLite begins it with a write
        assert "store unavailable" in caplog.text
    monkeypatch.undo()
    assert run(job).replayed is (mode == "single")
    assert job.effects == 1


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("mode", "queue"), [("single", True), ("single", False), ("joined", True)])
def test_R86_the_same_key_from_an_on_commit_hook_is_a_replay(settings, monkeypatch, mode, queue):
    """Also where no look comes before the claim of `single`, as on PostgreSQL."""
    seen = []

    def work(lease):
        transaction.on_commit(lambda: seen.append(run(never, operation="o").result))
        return Effect.objects.create(name="x").pk

    settings.IDEMPOTENCY = {"default": {"TRANSACTION": mode}}
    monkeypatch.setattr(DatabaseStore, "looks_before_single", queue)
    assert run(work, operation="o").result == seen[0]
    assert Effect.objects.count() == len(seen) == 1


# The COMMIT of work and record.

#: Whether it arrives, the fingerprint of another attempt's answer that does, and what is raised.
AT_COMMIT = {
    "lost": (True, None, StoreError, "lost at the COMMIT"),
    "refused": (False, None, StoreError, "lost at the COMMIT"),
    "interrupted": (True, None, Interrupt, ""),
    "forbidden": (False, None, IntegrityError, "no such parent"),
    "overtaken": (False, FINGERPRINT, StoreError, "lost at the COMMIT"),
    "forbidden and overtaken": (False, FINGERPRINT, IntegrityError, "no such parent"),
    "overtaken by another": (False, OTHER_FINGERPRINT, StoreError, "lost at the COMMIT"),
}


class Joining(MemoryStore):
    """
    A memory store whose work and record commit together.

    `at_commit` is what becomes of the next COMMIT. What others have committed outlives a rollback.
    """

    supports_join = True
    depth = 0
    others = {}
    at_commit = ""

    @contextmanager
    def atomic(self, *, committed=None):
        before = dict(self._records)
        self.depth += 1
        try:
            yield
        except BaseException:
            self.roll_back(before)
            raise
        finally:
            self.depth -= 1
        if self.depth == 0 and self.at_commit:
            arrives, fingerprint, error, text = AT_COMMIT[self.at_commit]
            self.at_commit = ""
            if fingerprint is not None:
                self.theirs(fingerprint)
            if not arrives:
                self.roll_back(before)
            raise error(text)
        if self.depth == 0 and committed is not None:
            committed()

    def roll_back(self, before):
        self._records.clear()
        self._records.update({**before, **self.others})

    def theirs(self, fingerprint, result=None):
        """Let another attempt commit an answer of its own."""
        result = result or pack(JSONCodec(), "theirs", max_bytes=100)
        other = MemoryStore(clock=self._clock)
        lease = other.claim(asked(fingerprints=(fingerprint,)))
        other.complete(lease, result, retention=3600)
        self.others = {record_id(): found(other)}


#: What becomes of the COMMIT -> the result or the error, what it says, and the record's state.
COMMITS = [
    ("joined", "keep", "lost", "mine", "", State.COMPLETED),
    ("joined", "keep", "refused", StoreError, "lost at the COMMIT", State.RELEASED),
    ("joined", "keep", "forbidden", IntegrityError, "parent", State.FAILED),
    ("joined", "keep", "interrupted", Interrupt, "", State.COMPLETED),
    ("joined", "keep", "overtaken", LeaseLost, "", State.COMPLETED),
    ("joined", "keep", "forbidden and overtaken", IntegrityError, "parent", State.COMPLETED),
    ("joined", "fail", "lost", "mine", "", State.FAILED),
    ("joined", "fail", "refused", StoreError, "lost at the COMMIT", State.RELEASED),
    ("joined", "fail", "forbidden", IntegrityError, "parent", State.FAILED),
    ("joined", "release", "lost", "mine", "", State.RELEASED),
    ("joined", "release", "refused", StoreError, "lost at the COMMIT", State.FAILED),
    ("single", "keep", "lost", "mine", "", State.COMPLETED),
    ("single", "keep", "refused", StoreError, "lost at the COMMIT", State.FAILED),
    ("single", "keep", "forbidden", IntegrityError, "parent", State.FAILED),
    ("single", "keep", "interrupted", Interrupt, "", State.COMPLETED),
    ("single", "keep", "overtaken", "theirs", "", State.COMPLETED),
    ("single", "keep", "overtaken by another", StoreError, "not known", State.COMPLETED),
    ("single", "release", "lost", StoreError, "not known", State.RELEASED),
    ("single", "fail", "lost", StoreError, "not known", State.FAILED),
    ("single", "fail", "refused", StoreError, "not known", None),
    ("single", "fail", "forbidden", IntegrityError, "parent", State.FAILED),
]


#: What signal and log say of those, and of the verdicts on what was committed.
TOLD = {StoreError: "store unavailable", LeaseLost: "lease lost", IntegrityError: "failed"}
TOLD |= {Interrupt: "completed", "theirs": "replayed"}
TOLD |= {"keep": "completed", "release": "released", "fail": "failed"}


@pytest.fixture
def told():
    """The words of the signals of ends, one after the other."""
    words = []

    def receive(outcome, **facts):
        words.append(outcome)

    for signal in signals.TERMINAL.values():
        signal.connect(receive)
    yield words
    for signal in signals.TERMINAL.values():
        signal.disconnect(receive)


@pytest.fixture
def expired(clock):
    """``expired()``: a store that joins, with the record of another request that has expired."""

    def new():
        store = Joining(clock=clock)
        store.complete(store.claim(asked(fingerprints=(OTHER_FINGERPRINT,))), b"", retention=1)
        clock.advance(2)
        return store

    return new


def perform(store, mode, work=lambda: "mine", *, verdict="keep", on_error=None):
    """Make one attempt of the engine on the store that joins."""
    operation, judged = claims.operation(transaction=mode), Verdict(verdict)
    attempting = Engine(store).attempt(operation, on_error, judge=lambda _: judged)
    with attempting as attempt:
        attempt.replayed or attempt.complete(work())
    return attempt


def aperform(store, mode, work=lambda: "mine", *, verdict="keep", on_error=None):
    async def asynchronous():
        operation, judged = claims.operation(transaction=mode), Verdict(verdict)
        attempting = Engine(store).aattempt(operation, on_error, judge=lambda _: judged)
        async with attempting as attempt:
            attempt.replayed or attempt.complete(work())
        return attempt

    return run_in_loop(asynchronous)


@pytest.mark.parametrize("perform", [perform, aperform])
def test_R57_R60_I13_what_the_lost_answer_of_a_COMMIT_means(expired, perform, told):
    for mode, verdict, at_commit, expected, said, state in COMMITS:
        store, row = expired(), (mode, verdict, at_commit)
        store.at_commit = at_commit
        if isinstance(expected, str):
            outcome = perform(store, mode, verdict=verdict).outcome
            assert outcome.result == expected, row
            assert (outcome.expires_at is None) is (verdict != "keep"), row
        else:
            with pytest.raises(expected) as raised:
                perform(store, mode, verdict=verdict)
            assert said in str(raised.value), row
        record = store.get(record_id())
        assert record.expired if state is None else record.state is state, row
        assert told.pop() == TOLD.get(expected, TOLD[verdict]), row
    assert told == []


@pytest.mark.parametrize(
    "error",
    [ClaimAgain(), FingerprintMismatch(), InProgress(), LeaseLost(), StoreError("out of reach")],
    ids=lambda error: type(error).__name__,
)
def test_R60_whoever_cannot_ask_what_the_COMMIT_did_says_so(expired, error):
    store = expired()
    store.at_commit = "lost"
    store.claim = Mock(wraps=store.claim, side_effect=[DEFAULT, error])

    with pytest.raises(StoreError, match="not known") as raised:
        perform(store, "single")

    assert raised.value.__cause__ is error


def test_R60_whoever_cannot_read_what_the_COMMIT_of_joined_did_says_so(expired):
    store, error = expired(), StoreError("out of reach")
    store.at_commit, store.get = "lost", Mock(side_effect=error)

    with pytest.raises(StoreError, match="not known") as raised:
        perform(store, "joined")

    assert raised.value.__cause__ is error


def test_R60_after_a_COMMIT_without_an_answer_the_record_may_be_gone(expired, told):
    store = expired()
    store.at_commit, store.get = "lost", Mock(return_value=None)

    with pytest.raises(LeaseLost) as raised:
        perform(store, "joined")

    assert (raised.value.gone, told) == (True, ["store unavailable"])


def test_R60_a_record_of_single_that_is_still_in_progress_tells_nothing_of_its_COMMIT(expired):
    store = expired()
    store.at_commit = "lost"
    claim = store.claim

    def claim_again(request):
        store.claim = lambda request: replace(claim(request), state=State.IN_PROGRESS)
        return claim(request)

    store.claim = claim_again
    with pytest.raises(StoreError, match="not known"):
        perform(store, "single")


@pytest.mark.parametrize("gone", [False, True])
def test_R57_R60_a_refusal_that_is_refused_says_whether_its_record_is_gone(expired, told, gone):
    store = expired()

    def work():
        if gone:
            store._records.clear()
        store.fail = Mock(return_value=False)
        return "refused"

    with pytest.raises(LeaseLost) as raised:
        perform(store, "joined", work, verdict="fail")

    assert raised.value.gone is gone
    assert told == ["store unavailable" if gone else "lease lost"]


@pytest.mark.parametrize(
    ("mode", "fingerprint", "replayed"),
    [("joined", FINGERPRINT, 0), ("single", OTHER_FINGERPRINT, 0), ("single", FINGERPRINT, 1)],
)
def test_R60_I11_a_completion_that_is_refused(expired, mode, fingerprint, replayed):
    """In `single` the answer that came first is the answer, if it is to the same request."""
    store = expired()

    def work():
        store.theirs(fingerprint)
        store.roll_back({})
        return "mine"

    if replayed:
        assert perform(store, mode, work).replayed
    else:
        with pytest.raises(LeaseLost):
            perform(store, mode, work)


def test_R60_a_completion_that_is_refused_over_a_record_that_has_expired(expired):
    """That is no answer which came first."""
    store = expired()
    store.complete, store.get = Mock(side_effect=LeaseLost), Mock(return_value=found(store))
    with pytest.raises(LeaseLost):
        perform(store, "single")


@pytest.mark.parametrize(("fingerprint", "replayed"), [(OTHER_FINGERPRINT, 0), (FINGERPRINT, 1)])
def test_R57_R60_an_answer_of_an_error_that_is_refused(expired, fingerprint, replayed):
    store = expired()

    def work():
        store.theirs(fingerprint)
        store.roll_back({})
        fail()

    if replayed:
        assert perform(store, "single", work, on_error=lambda error: "sorry").replayed
    else:
        with pytest.raises(LeaseLost):
            perform(store, "single", work, on_error=lambda error: "sorry")


@pytest.mark.parametrize(
    ("result", "error"),
    [(unavailable(JSONCodec()), ResultUnavailable), (b"damaged", StoreError)],
    ids=["not kept", "damaged"],
)
def test_R60_R62_the_answer_that_came_first_and_cannot_be_read(expired, result, error):
    """The work is rolled back, so its own result is no answer."""
    store = expired()

    def work():
        store.theirs(FINGERPRINT, result)
        store.roll_back({})
        return "mine"

    with pytest.raises(error):
        perform(store, "single", work)


@pytest.mark.parametrize("mode", ["separate", "joined", "single"])
def test_R57_R58_an_interrupt_of_the_work_is_no_error_to_answer(expired, mode):
    answer = Mock(return_value="sorry")
    with pytest.raises(KeyboardInterrupt):
        perform(expired(), mode, Mock(side_effect=KeyboardInterrupt), on_error=answer)
    assert answer.call_count == 0


def test_R57_a_refusal_is_the_answer_whatever_its_COMMIT_did(expired):
    for at_commit in ("lost", "refused"):
        store = expired()
        store.at_commit = at_commit
        assert perform(store, "single", refuse).result == "refused"


def test_R58_of_single_an_end_that_fails_otherwise_is_not_tried_again(expired):
    store = expired()
    store.fail = Mock(side_effect=RuntimeError("broken"))
    with pytest.raises(RuntimeError, match="broken"):
        perform(store, "single", fail)
    assert store.fail.call_count == 1


def test_R60_a_completion_of_single_that_the_store_refuses_leaves_nothing_to_be_asked(expired):
    """Its transaction is still there: in another one the key may have been claimed meanwhile."""
    store = expired()
    store.complete = Mock(side_effect=StoreError("refused by a trigger"))
    store.claim = Mock(wraps=store.claim, side_effect=[DEFAULT, InProgress()])
    with pytest.raises(StoreError, match="by a trigger"):
        perform(store, "single")
    assert store.get(record_id()).state is State.FAILED


def test_R60_a_completion_that_is_lost_in_the_callers_transaction_has_not_committed(expired):
    store, error = expired(), StoreError("out of reach", unreachable=True)
    store.complete = store.fail = Mock(side_effect=error)
    store.claim = Mock(wraps=store.claim, side_effect=[DEFAULT, error])
    operation = replace(claims.operation(transaction="single"), commit_hooks=CommitHooks([]))
    with pytest.raises(StoreError, match="out of reach"):
        Engine(store).run(operation, done)


def test_R58_an_error_of_the_work_is_not_masked_by_its_COMMIT(expired):
    for at_commit in ("lost", "refused"):
        store = expired()
        store.at_commit = at_commit
        with pytest.raises(ValueError, match="boom"):
            perform(store, "single", fail)


def test_R58_an_error_of_the_COMMIT_is_not_masked_by_a_record_that_was_decided_meanwhile(expired):
    store = expired()
    store.at_commit, store.fail = "forbidden", Mock(return_value=False)
    with pytest.raises(IntegrityError):
        perform(store, "single")


def too_large():
    return "x" * 2**21


def refuse(error=None):
    raise RollBack("fail", "refused", error)


@pytest.mark.parametrize("work", [too_large, refuse, lambda: refuse(ValueError("boom"))])
def test_R58_an_interrupt_of_an_end_without_an_answer_passes_on(expired, work):
    store = expired()
    store.fail = Mock(side_effect=KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        perform(store, "single", work)


def test_R58_an_interrupt_of_the_COMMIT_of_a_refusal_passes_on(expired):
    store = expired()
    store.at_commit = "interrupted"
    with pytest.raises(Interrupt):
        perform(store, "single", refuse)


#: The mode, and whether the completion arrives whose answer is lost.
UNANSWERED = [("joined", True), ("single", True), ("single", False)]


@pytest.mark.parametrize(("mode", "arrives"), UNANSWERED)
def test_R57_an_answer_of_an_error_is_kept_although_its_completion_has_no_answer(
    expired, mode, arrives
):
    store, complete = expired(), MemoryStore.complete

    def unanswered(lease, result, *, retention):
        del store.complete
        if arrives:
            complete(store, lease, result, retention=retention)
            store.others = {record_id(): found(store)}
        raise StoreError("no answer")

    store.complete, told = unanswered, Mock()
    signals.completed.connect(told)
    try:
        attempt = perform(store, mode, fail, on_error=lambda error: "sorry")
    finally:
        signals.completed.disconnect(told)
    assert (attempt.result, attempt.rolled_back, told.call_count) == ("sorry", True, 1)
    assert attempt.outcome.expires_at == found(store).expires_at
    assert perform(store, mode, never).replayed


# A store that answers late.


class Late(MemoryStore):
    """A store that pauses in one of its calls until told to go on."""

    def pause_at(self, name):
        self.reached, self.go_on = threading.Event(), threading.Event()
        call = getattr(MemoryStore, name)

        def late(*args, **kwargs):
            answer = call(self, *args, **kwargs)
            self.reached.set()
            assert self.go_on.wait(60)
            return answer

        setattr(self, name, late)


@pytest.mark.parametrize(
    ("ending", "paused", "state"),
    [
        ("done", "claim", State.FAILED),
        ("done", "complete", State.COMPLETED),
        ("answer", "complete", State.COMPLETED),
        ("fail", "fail", State.FAILED),
        ("release", "release", State.RELEASED),
        ("given back", "claim", State.FAILED),
    ],
)
def test_R63_what_the_store_is_told_is_told_to_the_end_although_cancelled(
    clock, in_loop, ending, paused, state
):
    async def call(store):
        on_error = (lambda error: "an answer") if ending == "answer" else None
        async with Engine(store).aattempt(claims.operation(), on_error) as attempt:
            if ending in ("fail", "answer"):
                fail()
            if ending != "release":
                attempt.complete("done")

    async def main():
        store = Late(clock=clock)
        store.pause_at(paused)
        task = asyncio.ensure_future(call(store))
        assert await asyncio.to_thread(store.reached.wait, 60)
        if ending == "given back":  # cancelled at the claim, and again while it is given back
            go_on = store.go_on
            store.pause_at("fail")
            task.cancel()
            await asyncio.sleep(0)
            go_on.set()
            assert await asyncio.to_thread(store.reached.wait, 60)
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
        store.go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        return found(store).state

    assert in_loop(main) is state
