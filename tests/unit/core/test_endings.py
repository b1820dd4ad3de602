"""Endings that the work does not choose: stores that fail, leases that are lost, lost COMMITs."""

from __future__ import annotations

import asyncio
import os
from contextlib import contextmanager

import pytest
from asgiref.sync import sync_to_async
from django.db import IntegrityError, OperationalError, transaction

import django_idempotency as idempotency
from django_idempotency import (
    InProgress,
    LeaseLost,
    ResultTooLarge,
    ResultUnavailable,
    StoreError,
)
from django_idempotency.codecs import JSONCodec, pack
from django_idempotency.engine import CLAIM_TRIES, Engine
from django_idempotency.models import IdempotencyRecord
from django_idempotency.records import State
from django_idempotency.stores.base import ClaimAgain
from django_idempotency.stores.database import DatabaseStore
from django_idempotency.stores.memory import MemoryStore
from tests import claims
from tests.app.models import Effect
from tests.claims import FINGERPRINT, OTHER_FINGERPRINT, asked, found, record_id
from tests.unit.core.conftest import Call, never, run_in_loop

HOUR = 3600


def levels(caplog):
    return [entry.levelname for entry in caplog.records]


def fail(lease):
    raise ValueError("boom")


class Failing(MemoryStore):
    """A store that raises an error, or loses all records, at the named operations."""

    fails: dict[str, Exception | None] = {}
    calls: list[str] = []

    def claim(self, request):
        self._may("claim")
        return super().claim(request)

    def complete(self, lease, result, *, retention):
        self._may("complete")
        return super().complete(lease, result, retention=retention)

    def fail(self, lease, error):
        self._may("fail")
        super().fail(lease, error)

    def release(self, lease):
        self._may("release")
        super().release(lease)

    def _may(self, name):
        self.calls.append(name)
        if name in self.fails:
            if self.fails[name] is None:
                self._records.clear()
            else:
                raise self.fails[name]


@pytest.fixture(params=["run", "arun", "attempt"])
def call(request):
    return Call(request.param, "memory")


@pytest.fixture
def failing(settings, clock, monkeypatch):
    """``failing(claim=error)``: from now on; None is a store that has lost its records."""
    backend = f"{__name__}.Failing"
    settings.IDEMPOTENCY = {"default": {"BACKEND": backend, "OPTIONS": {"clock": clock}}}
    monkeypatch.setattr(Failing, "calls", [])
    return lambda **errors: monkeypatch.setattr(Failing, "fails", errors)


class TestStoreDown:
    def test_R61_at_the_claim_nothing_runs(self, failing, call):
        failing(claim=StoreError("no claim"))
        with pytest.raises(StoreError, match="no claim"):
            call(never)

    @pytest.mark.parametrize("error", [StoreError("no complete"), None], ids=["down", "gone"])
    def test_R60_at_the_completion_the_caller_gets_its_result(
        self, failing, call, clock, caplog, error
    ):
        failing(complete=error)
        answer = call(lambda lease: "done")
        assert (answer.result, answer.stored, answer.replayed) == ("done", False, False)
        assert answer.outcome.expires_at is None
        assert levels(caplog) == ["ERROR"]
        assert ("is gone from the store" in caplog.text) is (error is None)
        failing()
        if error is not None:
            with pytest.raises(InProgress):
                call(never)
            clock.tick(60)
        assert call(lambda lease: "again").result == "again"

    def test_R58_an_end_that_cannot_be_written_masks_nothing(self, failing, call, caplog):
        failing(fail=StoreError("no end"), release=StoreError("no end"))
        with pytest.raises(ValueError, match="boom"):
            call(fail)
        assert (levels(caplog), "no end" in caplog.text) == (["ERROR"], True)
        assert call.record.state is State.IN_PROGRESS

    def test_R58_an_end_that_fails_otherwise_is_not_tried_again(self, failing, call):
        failing(fail=RuntimeError("broken"), complete=RuntimeError("broken"))
        for key, work in (("a", fail), ("b", lambda lease: "done")):
            with pytest.raises(RuntimeError, match="broken"):
                call(work, key=key)
        assert Failing.calls == ["claim", "fail", "claim", "complete", "fail"]

    @pytest.mark.parametrize("result", ["too large", "too large, after a commit"])
    @pytest.mark.django_db(transaction=True)
    def test_R62_result_too_large_for_the_store_itself_completes_without_it(
        self, settings, call, result
    ):
        settings.IDEMPOTENCY = {"default": {"BACKEND": f"{__name__}.Small"}}
        if result == "too large":
            assert call(lambda lease: os.urandom(200).hex()).stored is False
        else:
            with transaction.atomic():
                idempotency.run(lambda lease: os.urandom(200).hex(), key="k", scope="s")
        with pytest.raises(ResultUnavailable):
            call(never)


class Small(MemoryStore):
    """A store that cannot hold more than 100 bytes, whatever max_result_bytes says."""

    def complete(self, lease, result, *, retention):
        if len(result) > 100:
            raise ResultTooLarge
        return super().complete(lease, result, retention=retention)

    def transact_item(self, lease, result, *, retention):
        """Make items of transactions, too: here the call that each would be."""
        return lambda: self.complete(lease, result, retention=retention)


class TestItems:
    def test_completion_as_an_item_of_the_callers_transaction_is_recognised(self, settings):
        settings.IDEMPOTENCY = {"default": {"BACKEND": f"{__name__}.Small"}}

        def work(lease):
            lease.transact_item({"id": 5})()
            return {"id": 5}

        first, again = (idempotency.run(work, key="k", scope="s") for _ in range(2))
        assert (first.result, first.stored, first.replayed) == ({"id": 5}, True, False)
        assert (again.result, again.replayed) == ({"id": 5}, True)

    @pytest.mark.django_db(transaction=True)
    def test_item_is_refused_inside_a_callers_transaction(self, settings):
        settings.IDEMPOTENCY = {"default": {"BACKEND": f"{__name__}.Small"}}
        refused = pytest.raises(idempotency.TransactionOpen, match="outside atomic")
        with transaction.atomic(), refused:
            idempotency.run(lambda lease: lease.transact_item(1), key="k", scope="s")

    def test_item_is_refused_by_a_store_that_has_none(self, memory):
        with pytest.raises(RuntimeError, match="MemoryStore has no items"):
            idempotency.run(lambda lease: lease.transact_item(1), key="k", scope="s")


class TestFencing:
    """A stalls past its lease, B takes over; the clock is the test's."""

    def test_R66_I2_the_late_completion_is_refused_and_Bs_result_stays(self, memory, call, clock):
        tokens = []

        def a(lease):
            clock.tick(61)
            other = idempotency.run(lambda lease: "B", key="k", scope="s")
            tokens.extend([lease.fencing_token, other.fencing_token])
            return "A"

        with pytest.raises(LeaseLost):
            call(a)
        assert call(never).result == "B"
        assert tokens[0] < tokens[1]

    @pytest.mark.parametrize("end", ["fail", "release"])
    @pytest.mark.parametrize("done", [True, False], ids=["result", "claim"])
    def test_R67_the_late_end_does_not_touch_what_is_Bs(self, memory, clock, end, done):
        late = idempotency.attempt(key="k", scope="s")
        late.__enter__()
        clock.tick(61)
        with idempotency.attempt(key="k", scope="s") as attempt:
            if not done:
                leave(late, end)
            assert memory.get(attempt.lease.record_id).state is State.IN_PROGRESS
            attempt.complete("B")
        if done:
            leave(late, end)
        assert idempotency.run(never, key="k", scope="s").result == "B"
        assert idempotency.current() is None

    def test_R68_I2_tokens_are_new_and_epochs_grow_even_if_the_clock_goes_back(
        self, memory, call, clock
    ):
        leases = []

        def note(lease):
            leases.append(lease)
            raise ValueError("boom")

        for _ in range(3):
            with pytest.raises(ValueError, match="boom"):
                call(note)
            clock.tick(-HOUR)
        epochs = [lease.fencing_token for lease in leases]
        assert epochs == sorted(set(epochs))
        assert len({lease.token for lease in leases}) == 3


def leave(block, end):
    block.__exit__(*((ValueError, ValueError("late"), None) if end == "fail" else (None,) * 3))


class Unlucky(MemoryStore):
    """Its claims are lost to somebody so many times."""

    losses = claims = 0

    def claim(self, request):
        type(self).claims += 1
        if self.claims <= self.losses:
            raise ClaimAgain
        return super().claim(request)


@pytest.mark.parametrize("losses", [CLAIM_TRIES - 1, CLAIM_TRIES])
def test_R54_R76_a_lost_claim_is_tried_again_and_not_for_ever(settings, monkeypatch, call, losses):
    monkeypatch.setattr(Unlucky, "claims", 0)
    monkeypatch.setattr(Unlucky, "losses", losses)
    settings.IDEMPOTENCY = {"default": {"BACKEND": f"{__name__}.Unlucky"}}
    if losses < CLAIM_TRIES:
        assert call(lambda lease: "done").result == "done"
    else:
        with pytest.raises(InProgress):
            call(never)
    assert Unlucky.claims == CLAIM_TRIES


class Vanishing(DatabaseStore):
    """Records are deleted before the transaction of the work, or of `single`, is opened."""

    def atomic(self, *, committed=None):
        if not self.in_transaction():
            IdempotencyRecord.objects.all().delete()
        return super().atomic(committed=committed)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("mode", ["joined", "single"])
def test_R60_work_whose_record_is_gone_is_rolled_back_and_single_writes_it(
    settings, work, mode, caplog
):
    backend = f"{__name__}.Vanishing"
    settings.IDEMPOTENCY = {"default": {"BACKEND": backend, "TRANSACTION": mode}}
    job, named = work("done"), {"key": "k", "scope": "s"}
    if mode == "joined":
        with pytest.raises(LeaseLost) as raised:
            idempotency.run(job, **named)
        assert raised.value.gone
        assert (job.effects, levels(caplog)) == (0, ["ERROR"])
        assert "store unavailable" in caplog.text
    else:
        assert idempotency.run(job, **named).stored
    settings.IDEMPOTENCY = {}
    assert [idempotency.run(job, **named).replayed for _ in range(2)] == [mode == "single", True]
    assert job.effects == 1


# The COMMIT of work and record.


class Joining(MemoryStore):
    """
    A memory store whose work and record commit together.

    `at_commit` is called once, at the COMMIT, and may raise in its place. What others have
    committed, `others`, outlives a rollback.
    """

    supports_join = True

    def __init__(self, clock):
        super().__init__(clock=clock)
        self.depth = 0
        self.others = {}
        self.at_commit = None

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
        if self.depth == 0:
            at_commit, self.at_commit = self.at_commit, None
            if at_commit is not None:
                at_commit(self, before)
            if committed is not None:
                committed()

    def roll_back(self, before):
        self._records.clear()
        self._records.update({**before, **self.others})

    def theirs(self, fingerprint=FINGERPRINT, *, state=State.COMPLETED):
        """Let another attempt commit an answer of its own."""
        other = MemoryStore(clock=self._clock)
        lease = other.claim(asked(fingerprints=(fingerprint,)))
        if state is State.COMPLETED:
            other.complete(lease, pack(JSONCodec(), "theirs", max_bytes=100), retention=HOUR)
        self.others[record_id()] = found(other)


def lost(store, before):
    """The answer to the COMMIT does not arrive."""
    raise StoreError("The connection was lost at the COMMIT.")


def refused(store, before):
    """The COMMIT does not arrive."""
    store.roll_back(before)
    raise StoreError("The connection was lost at the COMMIT.")


def interrupted(store, before):
    """The COMMIT has succeeded, and then somebody presses Ctrl-C."""
    raise KeyboardInterrupt


def forbidden(store, before):
    """A deferred constraint fails."""
    store.roll_back(before)
    raise IntegrityError("no such parent")


def overtaken(store, before):
    """The COMMIT does not arrive, and another attempt has its answer committed."""
    store.theirs()
    refused(store, before)


def overtaken_by_another_request(store, before):
    """As `overtaken`, under another fingerprint: the record before had expired."""
    store.theirs(OTHER_FINGERPRINT)
    refused(store, before)


OWN = ("mine", "", State.COMPLETED)
THEIRS = ("theirs", "", State.COMPLETED)
#: What becomes of the COMMIT -> the result or the error, what it says, and the record's state.
COMMITS = [
    ("joined", "keep", lost, *OWN),
    ("joined", "keep", refused, StoreError, "lost at the COMMIT", State.RELEASED),
    ("joined", "keep", forbidden, IntegrityError, "parent", State.FAILED),
    ("joined", "keep", interrupted, KeyboardInterrupt, "", State.COMPLETED),
    ("joined", "keep", overtaken, LeaseLost, "", State.COMPLETED),
    ("joined", "fail", lost, "mine", "", State.FAILED),
    ("joined", "fail", refused, StoreError, "lost at the COMMIT", State.RELEASED),
    ("joined", "fail", forbidden, IntegrityError, "parent", State.FAILED),
    ("joined", "fail", interrupted, KeyboardInterrupt, "", State.FAILED),
    ("joined", "release", lost, "mine", "", State.RELEASED),
    ("joined", "release", refused, StoreError, "lost at the COMMIT", State.FAILED),
    ("single", "keep", lost, *OWN),
    ("single", "keep", refused, StoreError, "lost at the COMMIT", State.FAILED),
    ("single", "keep", forbidden, IntegrityError, "parent", State.FAILED),
    ("single", "keep", interrupted, KeyboardInterrupt, "", State.COMPLETED),
    ("single", "keep", overtaken, *THEIRS),
    ("single", "keep", overtaken_by_another_request, StoreError, "not known", State.COMPLETED),
    ("single", "release", lost, StoreError, "not known", State.RELEASED),
    ("single", "fail", lost, StoreError, "not known", State.FAILED),
    ("single", "fail", refused, StoreError, "not known", None),
]


@pytest.fixture
def joining(clock):
    return Joining(clock)


@pytest.fixture(params=["sync", "async"])
def perform(request, joining):
    """``perform(mode, …)``: one attempt of the engine on the store that joins."""
    engine = Engine(joining)

    def sync(operation, work, verdict, on_error):
        with engine.attempt(operation, on_error) as attempt:
            attempt.verdict = verdict
            attempt.replayed or attempt.complete(work())
        return attempt

    async def asynchronous(operation, work, verdict, on_error):
        async with engine.aattempt(operation, on_error) as attempt:
            attempt.verdict = verdict
            attempt.replayed or attempt.complete(await sync_to_async(work)())
        return attempt

    def call(mode, work=lambda: "mine", *, verdict="keep", on_error=None):
        given = (claims.operation(transaction=mode), work, verdict, on_error)
        return (
            sync(*given) if request.param == "sync" else run_in_loop(lambda: asynchronous(*given))
        )

    return call


def expired_record(store, clock):
    """Leave the record of an earlier request, whose time is over."""
    store.complete(store.claim(asked(fingerprints=(OTHER_FINGERPRINT,))), b"", retention=1)
    clock.tick(2)


@pytest.mark.parametrize(
    ("mode", "verdict", "at_commit", "expected", "said", "state"),
    COMMITS,
    ids=lambda value: getattr(value, "__name__", None) if callable(value) else None,
)
def test_R57_R60_I13_what_the_lost_answer_of_a_COMMIT_means(
    joining, clock, perform, mode, verdict, at_commit, expected, said, state
):
    expired_record(joining, clock)
    joining.at_commit = at_commit
    if isinstance(expected, str):
        assert perform(mode, verdict=verdict).result == expected
    else:
        with pytest.raises(expected) as raised:
            perform(mode, verdict=verdict)
        assert said in str(raised.value)
    record = joining.get(record_id())
    if state is None:  # the earlier one, which has expired, is as it was
        assert record.expired
    else:
        assert record.state is state


@pytest.mark.parametrize("mode", ["joined", "single"])
@pytest.mark.parametrize(
    ("fingerprint", "in_single"), [(FINGERPRINT, "theirs"), (OTHER_FINGERPRINT, LeaseLost)]
)
def test_R60_I11_a_completion_that_is_refused(
    joining, clock, perform, mode, fingerprint, in_single
):
    """In `single` the answer that came first is the answer, if it is to the same request."""

    def work():
        joining.theirs(fingerprint)
        joining.roll_back({})
        return "mine"

    expired_record(joining, clock)
    expected = in_single if mode == "single" else LeaseLost
    if expected == "theirs":
        assert perform(mode, work).replayed
    else:
        with pytest.raises(LeaseLost):
            perform(mode, work)


@pytest.mark.parametrize("mode", ["joined", "single"])
def test_R57_an_answer_of_an_error_is_kept_although_its_transaction_broke(
    joining, perform, mode, monkeypatch
):
    complete, broken = joining.complete, [StoreError("broken")]

    def break_once(lease, result, *, retention):
        if mode == "single" and broken:
            raise broken.pop()
        return complete(lease, result, retention=retention)

    def work():
        raise ValueError("boom")

    monkeypatch.setattr(joining, "complete", break_once)
    assert perform(mode, work, on_error=lambda error: "sorry").result == "sorry"
    assert joining.get(record_id()).state is State.COMPLETED
    assert perform(mode, never).replayed


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("mode", ["joined", "single"])
@pytest.mark.parametrize("caller", ["run", "arun"])
def test_R58_a_hooks_own_OperationalError_is_no_lost_COMMIT(settings, mode, caller, work):
    def hook():
        raise OperationalError("the hook's own server closed the connection")

    settings.IDEMPOTENCY = {"default": {"TRANSACTION": mode}}
    call, job = Call(caller, mode), work(lambda: transaction.on_commit(hook))
    with pytest.raises(OperationalError, match="the hook's own"):
        call(job)
    assert call(job).replayed
    assert (job.runs, job.effects) == (1, 1)


@pytest.mark.parametrize("queue", [True, False])
def test_R86_the_same_key_from_an_on_commit_hook_is_a_replay(joining_call, monkeypatch, queue):
    """Also where no look comes before the claim of `single`, as on PostgreSQL."""
    seen = []

    def again():
        seen.append(idempotency.run(never, key="k", scope="s", operation="o").result)

    def work(lease):
        transaction.on_commit(again)
        return Effect.objects.create(name="x").pk

    if not queue:
        monkeypatch.setattr(DatabaseStore, "writers_queue", False)
    assert joining_call(work, operation="o").result == seen[0]
    assert Effect.objects.count() == len(seen) == 1


# A store whose client is truly asynchronous.


class Wire(MemoryStore):
    """What is cancelled while it awaits the answer of this store goes no further."""

    def __init__(self, clock, paused):
        super().__init__(clock=clock)
        self.paused = paused
        self.reached, self.go_on = asyncio.Event(), asyncio.Event()

    async def _send(self, name, function, *arguments, **options):
        for moment in ("before", "after"):
            if moment == "after":
                answer = function(*arguments, **options)
            if self.paused == (moment, name):
                self.reached.set()
                await self.go_on.wait()
        return answer

    async def aclaim(self, request):
        return await self._send("claim", self.claim, request)

    async def acomplete(self, lease, result, *, retention):
        return await self._send("complete", self.complete, lease, result, retention=retention)

    async def afail(self, lease, error):
        return await self._send("fail", self.fail, lease, error)

    async def arelease(self, lease):
        return await self._send("release", self.release, lease)


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize(
    ("operation", "state"),
    [
        ("claim", State.FAILED),
        ("complete", State.COMPLETED),
        ("answer", State.COMPLETED),
        ("fail", State.FAILED),
        ("release", State.RELEASED),
        ("given back", State.FAILED),
    ],
)
def test_R63_what_the_store_is_told_is_told_to_the_end_although_cancelled(
    clock, in_loop, moment, operation, state
):
    name = {"answer": "complete", "given back": "fail"}.get(operation, operation)

    async def call(store):
        def on_error(error):
            if operation == "answer":
                return "an answer"
            raise error

        async with Engine(store).aattempt(claims.operation(), on_error) as attempt:
            if operation in ("fail", "answer"):
                raise ValueError("boom")
            if operation != "release":
                attempt.complete("done")

    async def main():
        store = Wire(clock, (moment, "claim" if operation == "given back" else name))
        task = asyncio.ensure_future(call(store))
        await store.reached.wait()
        if operation == "given back":  # cancelled at the claim, and again while it is given back
            store.paused = (moment, "fail")
            store.go_on.set()
            store.go_on, store.reached = asyncio.Event(), asyncio.Event()
            task.cancel()
            await store.reached.wait()
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
        store.go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        return found(store).state

    assert in_loop(main) is state
