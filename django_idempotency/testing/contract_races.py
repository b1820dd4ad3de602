"""The part of the store contract about threads: one winner, and nobody waits."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import Any

import pytest

from django_idempotency.claims import ClaimRequest, Resolution
from django_idempotency.exceptions import LeaseLost
from django_idempotency.leases import Lease
from django_idempotency.records import Record, State
from django_idempotency.stores.base import BaseStore
from django_idempotency.testing.contract_base import HOUR, ContractBase, needs


class RaceRules(ContractBase):
    """What holds when threads do things at the same moment."""

    def together(self, store: BaseStore, functions: Sequence[Callable[[], Any]]) -> list[Any]:
        """Call the functions at the same moment, each in a thread; return their results."""
        barrier = threading.Barrier(len(functions))
        results: dict[int, Any] = {}
        errors: list[BaseException] = []

        def call(index: int, function: Callable[[], Any]) -> None:
            try:
                barrier.wait(self.patience)
                results[index] = function()
            except BaseException as error:
                errors.append(error)
                barrier.abort()
            finally:
                store.idle()

        threads = [
            threading.Thread(target=call, args=item, daemon=True) for item in enumerate(functions)
        ]
        for thread in threads:
            thread.start()
        give_up = time.monotonic() + self.patience
        for thread in threads:
            thread.join(max(0.0, give_up - time.monotonic()))
        if errors:
            raise errors[0]
        late = sum(thread.is_alive() for thread in threads)
        assert not late, f"{late} of {len(threads)} threads still wait after {self.patience:g} s"
        return [results[index] for index in range(len(functions))]

    def lapsed_ones(self, store: BaseStore) -> list[Lease]:
        """Return lapsed leases of as many keys as a race has."""
        leases = [self.live(store, lease=self.moment) for _ in range(self.thread_keys)]
        for lease in leases:
            self.lapse(store, lease)
        return leases

    def prepared(self, store: BaseStore, before: str) -> list[ClaimRequest]:
        """Return requests for as many keys as a race has, whose records are all in one state."""
        if before == "absent":
            return [self.asked() for _ in range(self.thread_keys)]
        if before == "lapsed":
            leases = self.lapsed_ones(store)
        else:
            leases = [self.live(store) for _ in range(self.thread_keys)]
            for lease in leases:
                ending = "completed" if before == "expired" else before
                self.end(store, lease, ending, retention=self.moment)
        if before == "expired":
            for lease in leases:
                self.expire(store, lease)
        return [self.again(lease.request, lease=HOUR) for lease in leases]

    # Claims.

    @pytest.mark.parametrize("before", ["absent", "lapsed", "failed", "released", "expired"])
    def test_R26_I1_one_of_many_threads_wins_each_key(self, store: BaseStore, before: str) -> None:
        requests = self.prepared(store, before)
        round_begins = threading.Barrier(self.threads)

        def claim_all() -> list[Lease | Record]:
            claimed = []
            for request in map(self.again, requests):
                round_begins.wait(self.patience)
                claimed.append(store.claim(request))
            return claimed

        claimed = list(chain.from_iterable(self.together(store, [claim_all] * self.threads)))

        wins = Counter(lease.record_id for lease in claimed if isinstance(lease, Lease))
        assert wins == {request.record_id: 1 for request in requests}

    def test_R53_claims_of_different_keys_are_all_won(self, store: BaseStore) -> None:
        def claim_all() -> list[Lease]:
            return [self.live(store) for _ in range(self.thread_keys)]

        leases = list(chain.from_iterable(self.together(store, [claim_all] * self.threads)))

        assert store.renew(leases, HOUR) == set(leases)

    def test_R53_refused_claim_does_not_wait(self, store: BaseStore) -> None:
        request = self.again(self.live(store, lease=HOUR).request)
        begun = time.monotonic()

        [told] = self.together(store, [partial(store.claim, request)])

        assert time.monotonic() - begun < self.at_once
        self.refused(told)

    # Owners against those who take over.

    @pytest.mark.parametrize("write", ["complete", "fail", "release", "renew"])
    def test_R67_I7_no_late_write_undoes_a_take_over(self, store: BaseStore, write: str) -> None:
        writes: dict[str, Callable[[Lease], object]] = {
            "complete": lambda lease: store.complete(lease, b"late", retention=HOUR),
            "fail": lambda lease: store.fail(lease, "late"),
            "release": store.release,
            "renew": lambda lease: store.renew([lease], HOUR),
        }

        def refused(lease: Lease) -> bool:
            try:
                writes[write](lease)
            except LeaseLost:
                return True
            return False

        for number, lease in enumerate(self.lapsed_ones(store)):
            claim = partial(store.claim, self.again(lease.request, lease=HOUR))
            order = -1 if number % 2 else 1  # who comes first is ahead by a little

            calls: list[Callable[[], Any]] = [partial(refused, lease), claim]

            done = self.together(store, calls[::order])

            was_refused, claimed = done[::order]

            if isinstance(claimed, Lease):
                assert store.renew([claimed], HOUR) == {claimed}, "the take-over is undone"
            if write == "complete":
                assert was_refused is isinstance(claimed, Lease)

    def test_R69_renewals_that_meet_all_succeed(self, store: BaseStore) -> None:
        leases = [self.live(store, lease=HOUR) for _ in range(self.thread_keys)]

        def renew_all(order: int) -> list[set[Lease]]:
            return [store.renew(leases[::order], HOUR) for _ in range(10)]

        renewed = self.together(store, [partial(renew_all, way) for way in (1, -1)])

        assert all(held == set(leases) for held in chain.from_iterable(renewed))

    # The sweep.

    @needs("sweep")
    def test_I9_R75_no_sweep_deletes_a_lease_that_is_claimed_meanwhile(
        self, store: BaseStore
    ) -> None:
        for number in range(self.thread_keys // 2):
            claim = partial(store.claim, self.again(self.expired(store).request, lease=HOUR))
            order = -1 if number % 2 else 1

            calls: list[Callable[[], Any]] = [claim, store.sweep]

            done = self.together(store, calls[::order])

            lease = self.won(done[::order][0])
            assert store.renew([lease], HOUR) == {lease}, "a lease was swept"

    @needs("sweep")
    def test_I9_sweeps_that_meet_delete_each_record_once(self, store: BaseStore) -> None:
        while store.sweep():
            pass
        self.prepared(store, "expired")

        def sweep_all() -> int:
            return sum(iter(lambda: store.sweep(limit=3), 0))

        # Who meets nothing but records that others hold stops early.
        swept = sum(self.together(store, [sweep_all] * 4)) + sweep_all()

        assert swept == self.thread_keys

    # Operators.

    @pytest.mark.parametrize("action", ["release", "expire", "resume"])
    def test_one_of_many_operators_resolves_a_record(self, store: BaseStore, action: str) -> None:
        for lease in self.lapsed_ones(store)[:5]:
            resolve = partial(
                store.resolve,
                lease.record_id,
                Resolution(action, lease.fencing_token, State.IN_PROGRESS),
            )

            resolved = self.together(store, [resolve] * self.threads)

            assert resolved.count(True) == 1

    def test_I7_either_the_owner_or_an_operator_ends_a_lease(self, store: BaseStore) -> None:
        def completed(lease: Lease) -> bool:
            try:
                store.complete(lease, b"result", retention=HOUR)
            except LeaseLost:
                return False
            return True

        for number in range(self.thread_keys):
            lease = self.live(store)
            order = -1 if number % 2 else 1
            resolve = partial(
                store.resolve,
                lease.record_id,
                Resolution("release", lease.fencing_token, State.IN_PROGRESS, force=True),
            )

            done = self.together(store, [partial(completed, lease), resolve][::order])

            assert done.count(True) == 1
            expected = State.COMPLETED if done[::order][0] else State.RELEASED
            assert self.record(store, lease).state is expected
