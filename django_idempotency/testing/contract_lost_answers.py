"""The part of the store contract about answers that are lost on the way: nothing is done twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest

from django_idempotency.claims import Resolution
from django_idempotency.exceptions import LeaseLost, StoreError
from django_idempotency.records import State
from django_idempotency.stores.base import BaseStore
from django_idempotency.testing.contract_base import HOUR, ContractBase, needs, unchanged

Result = TypeVar("Result")


class LostAnswerRules(ContractBase):
    """
    What holds when a write was done and its answer did not come back.

    A store may send the write again by itself, or raise StoreError because it does not know what
    became of it; then the caller sends it again. Either way the write is recognised as one's own.
    """

    def unanswered(self, store: BaseStore, call: Callable[[], Result]) -> Result:
        """Make a call whose answer is lost, and return what its caller learns in the end."""
        with self.lose_answer(store):
            try:
                return call()
            except StoreError:
                pass
        return call()

    @needs("lost answers")
    @pytest.mark.parametrize(
        ("before", "attempts"),
        [("absent", 1), ("lapsed", 2), ("failed", 2), ("released", 2), ("expired", 1)],
    )
    def test_R68_claim_whose_answer_is_lost_is_won_once(
        self, store: BaseStore, before: str, attempts: int
    ) -> None:
        request = self.asked()
        if before != "absent":
            ended = self.expired(store) if before == "expired" else self.ended(store, before)
            request = self.again(ended.request, lease=HOUR, retention=HOUR)

        lease = self.won(self.unanswered(store, lambda: store.claim(request)))

        record = self.record(store, lease)
        assert (record.state, record.token) == (State.IN_PROGRESS, request.token)
        assert (record.attempts, record.epoch) == (attempts, lease.fencing_token)
        assert store.complete(lease, b"result", retention=HOUR)

    @needs("lost answers")
    def test_I1_I12_refused_claim_whose_answer_is_lost_stays_refused(
        self, store: BaseStore
    ) -> None:
        owner = self.live(store)
        before = self.record(store, owner)
        request = self.again(owner.request)

        told = self.refused(self.unanswered(store, lambda: store.claim(request)))

        assert told.token == owner.token
        assert unchanged(before, self.record(store, owner))

    @needs("lost answers")
    def test_R68_completion_whose_answer_is_lost_is_kept(self, store: BaseStore) -> None:
        lease = self.live(store)

        expires_at = self.unanswered(
            store, lambda: store.complete(lease, b"result", retention=HOUR)
        )

        record = self.record(store, lease)
        assert (record.state, record.result) == (State.COMPLETED, b"result")
        assert record.expires_at == expires_at

    @needs("lost answers")
    @pytest.mark.parametrize("ending", ["failed", "released"])
    def test_R68_ending_whose_answer_is_lost_is_made(self, store: BaseStore, ending: str) -> None:
        lease = self.live(store)

        self.unanswered(store, lambda: self.end(store, lease, ending))

        record = self.record(store, lease)
        assert (record.state.value, record.epoch) == (ending.upper(), lease.fencing_token)

    @needs("lost answers")
    def test_R69_renewal_whose_answer_is_lost_is_held(self, store: BaseStore) -> None:
        leases = {self.live(store) for _ in range(2)}

        assert self.unanswered(store, lambda: store.renew(leases, HOUR)) == leases

    @needs("lost answers")
    def test_R66_I7_late_completion_whose_answer_is_lost_is_refused(self, store: BaseStore) -> None:
        late = self.lapsed(store)
        lease = self.won(store.claim(self.again(late.request, lease=HOUR)))

        with pytest.raises(LeaseLost):
            self.unanswered(store, lambda: store.complete(late, b"late", retention=HOUR))

        assert store.renew([lease], HOUR) == {lease}

    @needs("lost answers")
    @pytest.mark.parametrize("action", ["release", "complete", "expire"])
    def test_resolution_whose_answer_is_lost_was_made_once(
        self, store: BaseStore, action: str
    ) -> None:
        lease = self.ended(store, "failed")
        seen = self.record(store, lease)
        result = b"result" if action == "complete" else None

        def resolve() -> bool:
            return store.resolve(
                seen.record_id, Resolution(action, seen.epoch, seen.state, result=result)
            )

        with self.lose_answer(store):
            try:
                told = resolve()
            except StoreError:
                told = True  # so an operator looks again

        assert told
        record = store.get(lease.record_id)
        if action == "expire":
            assert record is None or (record.expired and record.epoch == seen.epoch + 1)
        else:
            assert record is not None
            assert (record.state.value, record.epoch) == (f"{action.upper()}D", seen.epoch + 1)
