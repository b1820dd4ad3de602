"""The part of the store contract about processes: races, deaths and stalls of real ones."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from datetime import timedelta

import pytest

from django_idempotency.leases import Lease
from django_idempotency.records import State
from django_idempotency.stores.base import BaseStore
from django_idempotency.testing.children import Children
from django_idempotency.testing.contract_base import HOUR, ContractBase, needs, unchanged


class ProcessRules(ContractBase):
    """What holds between processes that share a store."""

    @pytest.fixture(scope="class")
    @classmethod
    def children(cls) -> Iterator[Children]:
        """Processes of the store; they end with the last rule of the class."""
        with Children() as children:
            yield children

    @needs("processes")
    def test_R26_I1_one_of_many_processes_wins_each_key(
        self, store: BaseStore, children: Children
    ) -> None:
        racers = children.get(self, self.racers)
        for number in range(self.process_keys):
            request = self.asked()
            first = number % len(racers)  # who is told first is ahead by a little
            for child in racers[first:] + racers[:first]:
                child.tell("claim", request.key, "60")

            won = [child.answer()[0] for child in racers].count("won")

            assert won == 1, f"{won} processes won key {number}"

    @needs("processes")
    def test_R59_result_is_what_other_processes_are_told(
        self, store: BaseStore, children: Children
    ) -> None:
        lease = self.live(store)
        store.complete(lease, bytes(range(256)), retention=HOUR)

        [child] = children.get(self, 1)

        told = child.ask("claim", lease.request.key, "60")
        assert told == ["refused", "COMPLETED", bytes(range(256)).hex()]

    @needs("processes")
    def test_R65_I8_lease_of_a_killed_process_is_taken_over_when_it_has_lapsed(
        self, store: BaseStore, children: Children
    ) -> None:
        request = self.asked()
        [child] = children.get(self, 1)
        [_, epoch] = child.ask("claim", request.key, self._lapses)
        record = store.get(request.record_id)
        assert record is not None
        assert record.lease_until is not None
        child.process.kill()
        child.process.wait()

        lease = store.claim(self.again(request))
        if not isinstance(lease, Lease):  # or it has lapsed already
            self.pass_time(store, request.record_id, record.lease_until + self.margin)
            lease = self.won(store.claim(self.again(request)))

        taken_over_at = self.record(store, lease).updated_at
        assert taken_over_at >= record.lease_until - self.precision
        assert lease.takeover
        assert lease.fencing_token > int(epoch)

    @needs("processes")
    def test_R66_R67_R68_I7_process_that_stalled_past_its_lease_writes_nothing(
        self, store: BaseStore, children: Children
    ) -> None:
        requests = {write: self.asked() for write in ("complete", "fail", "release", "renew")}
        [child] = children.get(self, 1)
        for request in requests.values():
            assert child.ask("claim", request.key, self._lapses)[0] == "won"
        child.process.send_signal(signal.SIGSTOP)
        try:
            leases = {
                write: self.taken_over(store, request.key) for write, request in requests.items()
            }
            before = {write: self.record(store, lease) for write, lease in leases.items()}
        finally:
            child.process.send_signal(signal.SIGCONT)

        told = {write: child.ask(write, request.key) for write, request in requests.items()}

        assert told == {
            "complete": ["lost"],
            "fail": ["done"],
            "release": ["done"],
            "renew": ["lost"],
        }
        for write, lease in leases.items():
            assert unchanged(before[write], self.record(store, lease)), f"{write} came through"
        assert store.renew(list(leases.values()), HOUR) == set(leases.values())

    @needs("clock")
    @pytest.mark.parametrize("skew", [600, -600], ids=["ahead", "behind"])
    def test_R72_process_whose_host_has_another_time_goes_by_the_stores(
        self, store: BaseStore, children: Children, skew: int
    ) -> None:
        live, lapsed = self.live(store), self.lapsed(store)
        completed = self.live(store)
        store.complete(completed, b"result", retention=timedelta(minutes=5))
        new = self.asked()

        [child] = children.get(self, 1, skewed=True)
        child.ask("skew", str(skew))
        told = [
            child.ask("claim", lease.request.key, "60")[0] for lease in (live, completed, lapsed)
        ]
        child.ask("claim", new.key, "60")

        assert told == ["refused", "refused", "won"]
        record = store.get(new.record_id)
        assert record is not None
        assert record.lease_left is not None
        assert 60 - self.patience < record.lease_left <= 60

    @property
    def _lapses(self) -> str:
        """Seconds of a lease that a process claims, to lose it."""
        return str(20 * self.moment.total_seconds())

    def taken_over(self, store: BaseStore, key: str) -> Lease:
        """Return the lease that follows one that will have lapsed."""
        request = self.asked(key, lease=HOUR)
        record = store.get(request.record_id)
        assert record is not None
        assert record.state is State.IN_PROGRESS
        assert record.lease_until is not None
        self.pass_time(store, request.record_id, record.lease_until + self.margin)
        return self.won(store.claim(request))
