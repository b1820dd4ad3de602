"""Endings that the work does not choose: stores that fail, leases that are lost, lost COMMITs."""

from __future__ import annotations

import asyncio
import os
from contextlib import contextmanager

import pytest
from asgiref.sync import sync_to_async
from django.db import IntegrityError, OperationalError, transaction

from django_idempotency import (
    InProgress,
    LeaseLost,
    ResultTooLarge,
    ResultUnavailable,
    StoreError,
)
from django_idempotency.claims import ClaimAgain
from django_idempotency.codecs import JSONCodec, pack
from django_idempotency.engine import CLAIM_TRIES, Engine
from django_idempotency.models import IdempotencyRecord
from django_idempotency.records import State
from django_idempotency.stores.database import DatabaseStore
from django_idempotency.stores.memory import MemoryStore
from tests import claims
from tests.app.models import Effect
from tests.claims import FINGERPRINT, OTHER_FINGERPRINT, asked, found, record_id
from tests.unit.core.conftest import Call, fail, kept, levels, never, run, run_in_loop

HOUR = 3600


def done(lease=None):
    return "done"


@pytest.fixture(params=["run", "arun"])
def call(request):
    return Call(request.param, "memory")


@pytest.fixture
def failing(memory, monkeypatch):
    """``failing(claim=error)``: the store raises that error; returns the calls that raised."""

    def failing(**errors):
        raised = []

        def operation(name):
            def method(*arguments, **options):
                raised.append(name)
                raise errors[name]

            return method

        for name in errors:
            monkeypatch.setattr(memory, name, operation(name))
        return raised

    return failing


@pytest.mark.parametrize("gone", [False, True], ids=["down", "gone"])
def test_R60_at_the_completion_the_caller_gets_its_result(
    memory, failing, call, clock, caplog, monkeypatch, gone
):
    def work(lease):
        memory._records.clear() if gone else failing(complete=StoreError("no complete"))
        return "done"

    answer = call(work)
    assert (answer.result, answer.stored, answer.replayed) == ("done", False, False)
    assert answer.outcome.expires_at is None
    assert levels(caplog) == ["ERROR"]
    assert ("is gone from the store" in caplog.text) is gone
    monkeypatch.undo()
    if not gone:
        with pytest.raises(InProgress):
            call(never)
        clock.advance(60)
    assert call(lambda lease: "again").result == "again"


def test_R58_an_end_that_cannot_be_written_masks_nothing(failing, call, caplog):
    failing(fail=StoreError("no end"), release=StoreError("no end"))
    with pytest.raises(ValueError, match="boom"):
        call(fail)
    assert (levels(caplog), "no end" in caplog.text) == (["ERROR"], True)
    assert kept().state is State.IN_PROGRESS


def test_R58_an_end_that_fails_otherwise_is_not_tried_again(failing, call):
    raised = failing(fail=RuntimeError("broken"), complete=RuntimeError("broken"))
    for key, work in (("a", fail), ("b", done)):
        with pytest.raises(RuntimeError, match="broken"):
            call(work, key=key)
    assert raised == ["fail", "complete", "fail"]


class Small(MemoryStore):
    """A store that cannot hold more than 100 bytes, whatever max_result_bytes says."""

    def complete(self, lease, result, *, retention):
        if len(result) > 100:
            raise ResultTooLarge
        return super().complete(lease, result, retention=retention)


@pytest.mark.parametrize("after_commit", [False, True])
@pytest.mark.django_db(transaction=True)
def test_R62_result_too_large_for_the_store_itself_completes_without_it(
    settings, call, after_commit
):
    def large(lease):
        return os.urandom(200).hex()

    settings.IDEMPOTENCY = {"default": {"BACKEND": f"{__name__}.Small"}}
    if after_commit:
        with transaction.atomic():
            run(large)
    else:
        assert call(large).stored is False
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


@pytest.mark.parametrize("losses", [CLAIM_TRIES - 1, CLAIM_TRIES])
def test_R54_R76_a_lost_claim_is_tried_again_and_not_for_ever(memory, monkeypatch, call, losses):
    claim, claims = memory.claim, []

    def unlucky(request):
        claims.append(request)
        if len(claims) <= losses:
            raise ClaimAgain
        return claim(request)

    monkeypatch.setattr(memory, "claim", unlucky)
    if losses < CLAIM_TRIES:
        assert call(done).result == "done"
    else:
        with pytest.raises(InProgress):
            call(never)
    assert len(claims) == CLAIM_TRIES


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("mode", ["joined", "single"])
def test_R60_work_whose_record_is_gone_is_rolled_back_and_single_writes_it(
    settings, work, mode, caplog, monkeypatch
):
    atomic = DatabaseStore.atomic

    def vanishing(store, *, committed=None):
        """The record is deleted before the transaction of the work, or of `single`, is opened."""
        if not store.in_transaction():
            IdempotencyRecord.objects.all().delete()
        return atomic(store, committed=committed)

    settings.IDEMPOTENCY = {"default": {"TRANSACTION": mode}}
    monkeypatch.setattr(DatabaseStore, "atomic", vanishing)
    job = work("done")
    if mode == "joined":
        with pytest.raises(LeaseLost) as raised:
            run(job)
        assert raised.value.gone
        assert (job.effects, levels(caplog)) == (0, ["ERROR"])
        assert "store unavailable" in caplog.text
    else:
        assert run(job).stored
    monkeypatch.undo()
    assert [run(job).replayed for _ in range(2)] == [mode == "single", True]
    assert job.effects == 1


# The COMMIT of work and record.


class Joining(MemoryStore):
    """
    A memory store whose work and record commit together.

    `at_commit` is called once, at the COMMIT, and may raise in its place. What others have
    committed, `others`, outlives a rollback.
    """

    supports_join = True
    depth = 0
    others = {}
    at_commit = None

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

    def theirs(self, fingerprint=FINGERPRINT):
        """Let another attempt commit an answer of its own."""
        other = MemoryStore(clock=self._clock)
        lease = other.claim(asked(fingerprints=(fingerprint,)))
        other.complete(lease, pack(JSONCodec(), "theirs", max_bytes=100), retention=HOUR)
        self.others = {record_id(): found(other)}


def lost(store, before):
    raise StoreError("The connection was lost at the COMMIT.")


def refused(store, before):
    """The COMMIT does not arrive."""
    store.roll_back(before)
    lost(store, before)


def interrupted(store, before):
    """The COMMIT has succeeded, and then somebody presses Ctrl-C."""
    raise KeyboardInterrupt


def forbidden(store, before):
    """A deferred constraint fails."""
    store.roll_back(before)
    raise IntegrityError("no such parent")


def overtaken(store, before, fingerprint=FINGERPRINT):
    """The COMMIT does not arrive, and another attempt has its answer committed."""
    store.theirs(fingerprint)
    refused(store, before)


def overtaken_by_another_request(store, before):
    """The record before had expired."""
    overtaken(store, before, OTHER_FINGERPRINT)


#: What becomes of the COMMIT -> the result or the error, what it says, and the record's state.
COMMITS = [
    ("joined", "keep", lost, "mine", "", State.COMPLETED),
    ("joined", "keep", refused, StoreError, "lost at the COMMIT", State.RELEASED),
    ("joined", "keep", forbidden, IntegrityError, "parent", State.FAILED),
    ("joined", "keep", interrupted, KeyboardInterrupt, "", State.COMPLETED),
    ("joined", "keep", overtaken, LeaseLost, "", State.COMPLETED),
    ("joined", "fail", lost, "mine", "", State.FAILED),
    ("joined", "fail", refused, StoreError, "lost at the COMMIT", State.RELEASED),
    ("joined", "fail", forbidden, IntegrityError, "parent", State.FAILED),
    ("joined", "release", lost, "mine", "", State.RELEASED),
    ("joined", "release", refused, StoreError, "lost at the COMMIT", State.FAILED),
    ("single", "keep", lost, "mine", "", State.COMPLETED),
    ("single", "keep", refused, StoreError, "lost at the COMMIT", State.FAILED),
    ("single", "keep", forbidden, IntegrityError, "parent", State.FAILED),
    ("single", "keep", interrupted, KeyboardInterrupt, "", State.COMPLETED),
    ("single", "keep", overtaken, "theirs", "", State.COMPLETED),
    ("single", "keep", overtaken_by_another_request, StoreError, "not known", State.COMPLETED),
    ("single", "release", lost, StoreError, "not known", State.RELEASED),
    ("single", "fail", lost, StoreError, "not known", State.FAILED),
    ("single", "fail", refused, StoreError, "not known", None),
]


@pytest.fixture
def joining(clock):
    """A store that joins, with the record of an earlier request whose time is over."""
    store = Joining(clock=clock)
    store.complete(store.claim(asked(fingerprints=(OTHER_FINGERPRINT,))), b"", retention=1)
    clock.advance(2)
    return store


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
        if request.param == "sync":
            return sync(*given)
        return run_in_loop(lambda: asynchronous(*given))

    return call


@pytest.mark.parametrize(("mode", "verdict", "at_commit", "expected", "said", "state"), COMMITS)
def test_R57_R60_I13_what_the_lost_answer_of_a_COMMIT_means(
    joining, perform, mode, verdict, at_commit, expected, said, state
):
    joining.at_commit = at_commit
    if isinstance(expected, str):
        assert perform(mode, verdict=verdict).result == expected
    else:
        with pytest.raises(expected) as raised:
            perform(mode, verdict=verdict)
        assert said in str(raised.value)
    record = joining.get(record_id())
    assert record.expired if state is None else record.state is state


@pytest.mark.parametrize(
    ("mode", "fingerprint", "replayed"),
    [
        ("joined", FINGERPRINT, False),
        ("single", FINGERPRINT, True),
        ("single", OTHER_FINGERPRINT, False),
    ],
)
def test_R60_I11_a_completion_that_is_refused(joining, perform, mode, fingerprint, replayed):
    """In `single` the answer that came first is the answer, if it is to the same request."""

    def work():
        joining.theirs(fingerprint)
        joining.roll_back({})
        return "mine"

    if replayed:
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

    monkeypatch.setattr(joining, "complete", break_once)
    assert perform(mode, fail, on_error=lambda error: "sorry").result == "sorry"
    assert joining.get(record_id()).state is State.COMPLETED
    assert perform(mode, never).replayed


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("caller", "mode"), [("run", "single"), ("arun", "joined")])
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

    def work(lease):
        transaction.on_commit(lambda: seen.append(run(never, operation="o").result))
        return Effect.objects.create(name="x").pk

    monkeypatch.setattr(DatabaseStore, "writers_queue", queue)
    assert joining_call(work, operation="o").result == seen[0]
    assert Effect.objects.count() == len(seen) == 1


# A store whose client is truly asynchronous.


class Wire(MemoryStore):
    """What is cancelled while it awaits the answer of this store goes no further."""

    def __init__(self, clock, paused):
        super().__init__(clock=clock)
        self.pause(paused)

    def pause(self, at):
        self.paused, self.reached, self.go_on = at, asyncio.Event(), asyncio.Event()

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
    clock, in_loop, moment, ending, paused, state
):
    async def call(store):
        on_error = (lambda error: "an answer") if ending == "answer" else None
        async with Engine(store).aattempt(claims.operation(), on_error) as attempt:
            if ending in ("fail", "answer"):
                fail()
            if ending != "release":
                attempt.complete("done")

    async def main():
        store = Wire(clock, (moment, paused))
        task = asyncio.ensure_future(call(store))
        await store.reached.wait()
        if ending == "given back":  # cancelled at the claim, and again while it is given back
            store.go_on.set()
            store.pause((moment, "fail"))
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
