"""The part of the store contract about coroutines: the twins of all operations."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest
from asgiref.sync import async_to_sync

from django_idempotency.exceptions import LeaseLost
from django_idempotency.leases import Lease
from django_idempotency.records import State
from django_idempotency.stores.base import BaseStore
from django_idempotency.testing.contract_base import HOUR, ContractBase, needs, unchanged

__all__ = ["TwinRules"]

Result = TypeVar("Result")


class TwinRules(ContractBase):
    """``aclaim`` and the others do what ``claim`` and the others do."""

    def awaited(self, call: Callable[[], Awaitable[Result]]) -> Result:
        """Return what a call gives that is made and awaited in an event loop."""

        async def main() -> Result:
            return await call()

        return async_to_sync(main)()

    def test_twin_of_claim(self, store: BaseStore) -> None:
        request = self.asked()

        async def main() -> tuple[object, object, object]:
            first = await store.aclaim(request)
            return first, await store.aclaim(request), await store.aclaim(self.again(request))

        first, resent, other = self.awaited(main)

        assert isinstance(first, Lease)
        assert isinstance(resent, Lease)
        assert resent.proof == first.proof
        assert unchanged(self.record(store, first), other)  # type: ignore[arg-type]

    def test_twin_of_complete(self, store: BaseStore) -> None:
        lease = self.live(store)

        expires_at = self.awaited(lambda: store.acomplete(lease, b"result", retention=HOUR))

        record = self.record(store, lease)
        assert (record.state, record.result) == (State.COMPLETED, b"result")
        assert record.expires_at == expires_at

    def test_twin_of_complete_refuses_what_is_late(self, store: BaseStore) -> None:
        late = self.ended(store, "released")

        async def main() -> None:
            with pytest.raises(LeaseLost):
                await store.acomplete(late, b"late", retention=HOUR)

        self.awaited(main)

    @needs("deletion")
    def test_twin_of_complete_says_that_a_record_is_gone(self, store: BaseStore) -> None:
        lease = self.live(store)
        self.forget(store, lease.record_id)

        async def main() -> bool:
            try:  # an error that is kept would keep this frame, and its loop
                await store.acomplete(lease, b"result", retention=HOUR)
            except LeaseLost as lost:
                return lost.gone
            return False

        assert self.awaited(main)

    def test_twin_of_fail(self, store: BaseStore) -> None:
        lease = self.live(store)

        self.awaited(lambda: store.afail(lease, "builtins.RuntimeError"))

        record = self.record(store, lease)
        assert (record.state, record.error) == (State.FAILED, "builtins.RuntimeError")

    def test_twin_of_release(self, store: BaseStore) -> None:
        lease = self.live(store)

        self.awaited(lambda: store.arelease(lease))

        assert self.record(store, lease).state is State.RELEASED

    def test_twin_of_get(self, store: BaseStore) -> None:
        lease = self.ended(store, "completed")

        record = self.awaited(lambda: store.aget(lease.record_id))

        assert unchanged(self.record(store, lease), record)

    def test_R26_I1_one_of_many_coroutines_wins(self, store: BaseStore) -> None:
        request = self.asked()

        async def main() -> list[object]:
            claims = [store.aclaim(self.again(request)) for _ in range(self.threads)]
            return [*await asyncio.gather(*claims)]

        claimed = self.awaited(main)

        assert sum(isinstance(lease, Lease) for lease in claimed) == 1
