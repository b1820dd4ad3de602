"""The part of the store contract about attempts that wait: one look at many records."""

from __future__ import annotations

from dataclasses import replace
from uuid import uuid4

from django_idempotency.claims import Decision, decide
from django_idempotency.leases import Lease
from django_idempotency.records import State
from django_idempotency.stores.base import BaseStore
from django_idempotency.testing.contract_base import ENDED, ContractBase

#: More records than DynamoDB gives in one answer.
_MANY = 120


class WaitingRules(ContractBase):
    """``peek`` finds what each claim would meet."""

    def test_R51_peek_finds_each_record_as_get_does(self, store: BaseStore) -> None:
        leases = [self.live(store), *(self.ended(store, ending) for ending in ENDED)]
        absent = uuid4()

        found = store.peek([absent, *(lease.record_id for lease in leases)])

        assert set(found) == {lease.record_id for lease in leases}
        for lease in leases:
            read, expected = found[lease.record_id], self.record(store, lease)
            assert read.live == expected.live
            assert decide(read, self.again(lease.request)) is self._decision(store, lease)
            if read.state is State.COMPLETED and read.result is None:
                read = replace(read, result=expected.result)  # it may come without
            assert replace(read, now=expected.now) == expected

    def _decision(self, store: BaseStore, lease: Lease) -> Decision:
        return decide(self.record(store, lease), self.again(lease.request))

    def test_R51_peek_finds_many_records(self, store: BaseStore) -> None:
        record_ids = {self.live(store).record_id for _ in range(_MANY)}

        assert store.peek(record_ids).keys() == record_ids
        assert store.peek([]) == {}
