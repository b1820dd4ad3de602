"""`attempt`: the block that runs once, and every way to leave it."""

from __future__ import annotations

import logging

import pytest
from asgiref.sync import sync_to_async

import django_idempotency as idempotency
from django_idempotency import (
    FingerprintMismatch,
    InProgress,
    InvalidKey,
    ResultTooLarge,
    ResultUnavailable,
)
from django_idempotency.conf import store_for
from django_idempotency.records import State
from tests.app.models import Effect


def begin(key="k", scope="s", **arguments):
    return idempotency.attempt(key=key, scope=scope, **arguments)


def state(attempt):
    return store_for().get(attempt.lease.record_id).state


class TestBlock:
    def test_R24_first(self, mode):
        with begin() as attempt:
            assert attempt.replayed is False
            Effect.objects.create(name="x")
            attempt.complete({"id": 5})
        assert attempt.result == {"id": 5}
        assert attempt.outcome.stored is True
        assert Effect.objects.count() == 1

    def test_R25_again(self, mode):
        with begin() as first:
            first.complete({"id": 5})
        with begin() as second:
            assert second.replayed is True
            assert second.result == {"id": 5}
        assert second.result == {"id": 5}
        assert second.outcome.fencing_token == first.outcome.fencing_token

    def test_complete_takes_effect_when_the_block_ends(self, mode):
        with begin() as attempt:
            attempt.complete(1)
            with pytest.raises(RuntimeError, match="no outcome"):
                attempt.result  # noqa: B018
            with pytest.raises(InProgress), begin(transaction=None):
                pytest.fail("ran")
        assert attempt.result == 1

    def test_complete_without_a_result_keeps_None(self, mode):
        with begin() as attempt:
            attempt.complete()
        with begin() as attempt:
            assert attempt.replayed
        assert attempt.result is None

    def test_the_last_complete_counts(self, mode):
        with begin() as attempt:
            attempt.complete(1)
            attempt.complete(2)
        with begin() as attempt:
            pass
        assert attempt.result == 2

    def test_the_block_has_the_lease(self, mode):
        with begin() as attempt:
            assert idempotency.current() is attempt.lease
            attempt.complete(1)
        assert attempt.lease.fencing_token == attempt.outcome.fencing_token

    def test_R37_mismatch_on_entry(self, mode):
        with begin(payload=1) as attempt:
            attempt.complete(1)
        with pytest.raises(FingerprintMismatch), begin(payload=2):
            pytest.fail("ran")

    def test_invalid_key_on_entry_and_not_before(self, memory):
        block = begin(key="")
        with pytest.raises(InvalidKey), block:
            pytest.fail("ran")

    def test_one_object_is_entered_once(self, memory):
        block = begin()
        with block as first:
            with pytest.raises(RuntimeError, match="entered once"), block:
                pytest.fail("ran a second time, beside the first")
            first.complete(1)
        assert first.result == 1
        with pytest.raises(RuntimeError, match="entered once"), block:
            pytest.fail("ran again")

    def test_R62_too_large_a_result_in_the_works_transaction(self, joining_mode):
        def too_large():
            with begin() as attempt:
                Effect.objects.create(name="x")
                attempt.complete("x" * 2_000_000)

        with pytest.raises(ResultTooLarge):
            too_large()
        assert Effect.objects.count() == 0

    def test_R62_too_large_a_result_beside_it(self, separate_mode):
        with begin() as attempt:
            attempt.complete("x" * 2_000_000)
        assert attempt.outcome.stored is False
        with pytest.raises(ResultUnavailable), begin():
            pytest.fail("ran")


class TestReplay:
    @pytest.fixture
    def replay(self, memory):
        with begin() as attempt:
            attempt.complete(1)
        with begin() as attempt:
            yield attempt

    def test_cannot_be_completed(self, replay):
        with pytest.raises(RuntimeError, match="is a replay"):
            replay.complete(2)

    def test_has_no_lease(self, replay):
        with pytest.raises(RuntimeError, match="no lease"):
            replay.lease  # noqa: B018

    def test_current_is_none(self, replay):
        assert idempotency.current() is None

    def test_exception_in_its_block_passes_on_and_changes_nothing(self, memory):
        with begin() as attempt:
            attempt.complete(1)
        with pytest.raises(ValueError, match="boom"), begin():
            raise ValueError("boom")
        with begin() as attempt:
            assert attempt.replayed


class TestWithoutComplete:
    def leave(self):
        with begin(payload=1) as attempt:
            Effect.objects.create(name="x")
        return attempt

    def test_releases_so_that_anything_may_claim(self, mode):
        attempt = self.leave()
        assert state(attempt) is State.RELEASED
        with begin(payload=2) as attempt:
            attempt.complete(2)
        assert attempt.outcome.replayed is False

    def test_rolls_back(self, joining_mode):
        self.leave()
        assert Effect.objects.count() == 0

    def test_logs_a_warning_that_names_the_record_and_not_the_key(self, mode, caplog):
        with begin(key="4111-1111") as attempt:
            pass
        [entry] = [entry for entry in caplog.records if entry.name == "django_idempotency"]
        assert entry.levelno == logging.WARNING
        assert str(attempt.lease.record_id)[:12] in entry.getMessage()
        assert "4111" not in caplog.text

    def test_nothing_is_stored(self, mode):
        attempt = self.leave()
        assert attempt.outcome.stored is False
        assert attempt.result is None


class TestException:
    def leave(self, *, complete):
        with begin(payload=1) as attempt:
            self.attempt = attempt
            Effect.objects.create(name="x")
            if complete:
                attempt.complete(1)
            raise ValueError("boom")

    @pytest.mark.parametrize("complete", [True, False], ids=["after complete", "before complete"])
    def test_fails_so_that_the_same_payload_may_claim(self, mode, complete):
        with pytest.raises(ValueError, match="boom"):
            self.leave(complete=complete)
        assert state(self.attempt) is State.FAILED
        with pytest.raises(FingerprintMismatch), begin(payload=2):
            pytest.fail("ran")
        with begin(payload=1) as attempt:
            assert not attempt.replayed
            attempt.complete(1)

    @pytest.mark.parametrize("complete", [True, False], ids=["after complete", "before complete"])
    def test_rolls_back(self, joining_mode, complete):
        with pytest.raises(ValueError, match="boom"):
            self.leave(complete=complete)
        assert Effect.objects.count() == 0

    def test_logs_nothing(self, mode, caplog):
        with pytest.raises(ValueError, match="boom"):
            self.leave(complete=False)
        assert [entry for entry in caplog.records if entry.name == "django_idempotency"] == []


class TestNested:
    """Without a choice of mode: the inner attempt takes part in the outer one's transaction."""

    @pytest.fixture(autouse=True)
    def database(self, transactional_db):
        pass

    def test_the_lease_is_that_of_the_innermost(self):
        with begin("outer") as outer:
            with begin("inner") as inner:
                assert idempotency.current() is inner.lease
                inner.complete(1)
            assert idempotency.current() is outer.lease
            outer.complete(2)
        assert idempotency.current() is None

    def test_both_are_kept(self):
        with begin("outer") as outer:
            with begin("inner") as inner:
                Effect.objects.create(name="x")
                inner.complete(1)
            outer.complete(2)
        for key, result in (("inner", 1), ("outer", 2)):
            with begin(key) as attempt:
                assert attempt.replayed
            assert attempt.result == result

    def test_I13_the_inner_one_goes_with_the_outer_one(self):
        def fails():
            with begin("outer"):
                with begin("inner") as inner:
                    Effect.objects.create(name="x")
                    inner.complete(1)
                raise ValueError("boom")

        with pytest.raises(ValueError, match="boom"):
            fails()
        assert Effect.objects.count() == 0
        with begin("inner") as inner:
            assert not inner.replayed
            inner.complete(1)

    def test_the_inner_one_fails_alone(self):
        def fails():
            with begin("inner"):
                Effect.objects.create(name="inner")
                raise ValueError("boom")

        with begin("outer") as outer:
            Effect.objects.create(name="outer")
            with pytest.raises(ValueError, match="boom"):
                fails()
            outer.complete(1)
        assert [effect.name for effect in Effect.objects.all()] == ["outer"]
        with begin("inner") as inner:
            assert not inner.replayed
            inner.complete(1)

    def test_R25_a_replay_inside(self):
        with begin("inner") as inner:
            inner.complete(1)
        with begin("outer") as outer:
            with begin("inner") as inner:
                assert inner.replayed
                assert idempotency.current() is outer.lease
            outer.complete(inner.result)
        assert outer.result == 1

    @pytest.mark.parametrize("outermost", ["joined", "single"])
    def test_R49_the_same_key_two_levels_in_is_in_progress(self, outermost):
        with begin("outer", transaction=outermost) as outer:
            with begin("inner") as inner:
                for key in ("outer", "inner"):
                    with pytest.raises(InProgress), begin(key):
                        pytest.fail("ran")
                inner.complete(1)
            outer.complete(1)

    @pytest.mark.parametrize("outermost", ["joined", "single"])
    def test_the_same_key_again_after_the_inner_one_failed(self, outermost):
        with begin("outer", transaction=outermost) as outer:
            with pytest.raises(ValueError, match="boom"), begin("inner"):
                raise ValueError("boom")
            with begin("inner") as inner:
                assert not inner.replayed
                inner.complete(2)
            with begin("inner") as inner:
                assert inner.replayed
            outer.complete(inner.result)
        assert outer.result == 2

    def test_a_store_that_cannot_join_waits_for_the_outer_commit(self, settings):
        settings.IDEMPOTENCY = {
            "default": {},
            "memory": {"BACKEND": "django_idempotency.stores.memory.MemoryStore"},
        }
        with begin("outer") as outer:
            with begin("inner", store="memory") as inner:
                inner.complete(1)
            assert store_for("memory").get(inner.lease.record_id).state is State.IN_PROGRESS
            outer.complete(1)
        assert store_for("memory").get(inner.lease.record_id).state is State.COMPLETED


class TestAsync:
    def test_R24_first_and_R25_again(self, mode, in_loop):
        async def main():
            async with begin() as first:
                await Effect.objects.acreate(name="x")
                first.complete({"id": 5})
            async with begin() as second:
                assert second.replayed
            return first, second

        first, second = in_loop(main)
        assert first.result == second.result == {"id": 5}
        assert Effect.objects.count() == 1

    def test_leaving_without_complete_rolls_back_and_releases(self, joining_mode, in_loop, caplog):
        async def main():
            async with begin(payload=1) as attempt:
                await Effect.objects.acreate(name="x")
            return await sync_to_async(state)(attempt)

        assert in_loop(main) is State.RELEASED
        assert Effect.objects.count() == 0
        assert [entry.levelname for entry in caplog.records] == ["WARNING"]

    def test_an_exception_after_complete_rolls_back_and_fails(self, joining_mode, in_loop):
        attempts = []

        async def fails():
            async with begin() as attempt:
                attempts.append(attempt)
                await Effect.objects.acreate(name="x")
                attempt.complete(1)
                raise ValueError("boom")

        async def main():
            with pytest.raises(ValueError, match="boom"):
                await fails()
            return await sync_to_async(state)(attempts[0])

        assert in_loop(main) is State.FAILED
        assert Effect.objects.count() == 0

    def test_a_live_duplicate_is_in_progress_on_entry(self, mode, in_loop):
        async def main():
            async with begin() as outer:
                with pytest.raises(InProgress):
                    async with begin(transaction=None):
                        pytest.fail("ran")
                outer.complete(1)

        in_loop(main)

    def test_the_lease_is_current_also_in_threads(self, mode, in_loop):
        async def main():
            async with begin() as attempt:
                here = idempotency.current()
                there = await sync_to_async(idempotency.current)()
                attempt.complete(1)
            assert here is there is attempt.lease
            assert idempotency.current() is None

        in_loop(main)
