"""Renewal: the lease renewer of a process extends the leases of work that takes long (R69)."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from django_idempotency import keys
from django_idempotency.leases import Lease
from django_idempotency.logs import log_failure
from django_idempotency.observers import logger
from django_idempotency.stores.base import BaseStore
from django_idempotency.stores.forks import in_each_child

#: A lease is renewed when this part of it has passed, so two renewals may fail before it lapses.
_PART = 3
#: A renewal takes along what is due within this part of the time between two renewals.
_TOGETHER = 0.25
#: Seconds without a lease to renew after which the thread ends.
_IDLE = 2.0


@dataclass
class _Kept:
    store: BaseStore
    lease: Lease
    every: float
    due: float
    until: float
    wanted: Callable[[], bool] | None


class LeaseRenewer:
    """
    Renews leases from threads of its own, off the path of the work.

    Each store has a thread, so that none waits for another's. A lease that ends before a third of
    it has passed costs an entry in a dict and nothing else. A thread starts with the first lease of
    its store, and ends when there has been none for a while.
    """

    def __init__(self) -> None:
        self._reset()
        in_each_child(self._reset)

    def _reset(self) -> None:
        """Start with nothing: a forked child renews none of its parent's leases."""
        # Taken as it is, and not by the condition, which is Python: an exception that a signal or
        # another thread raises there would leave the lock taken, for all threads and for ever.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._kept: dict[Lease, _Kept] = {}
        self._threads: dict[BaseStore, threading.Thread] = {}
        self._wakes_at: dict[BaseStore, float] = {}

    def add(
        self, store: BaseStore, lease: Lease, *, wanted: Callable[[], bool] | None = None
    ) -> None:
        """Renew `lease` until it is removed, no longer wanted, or its ``max_duration`` is over."""
        now = time.monotonic()
        every = lease.request.lease.total_seconds() / _PART
        due = now + every
        until = now + lease.request.max_duration.total_seconds()
        with self._lock:
            self._kept[lease] = _Kept(store, lease, every, due, until, wanted)
            if store not in self._threads:
                thread = threading.Thread(
                    target=self._keep, args=[store], name="django-idempotency-renewer", daemon=True
                )
                try:
                    thread.start()
                except RuntimeError:  # the process may start no more threads
                    logger.exception("Leases are not renewed: their thread could not be started.")
                else:
                    self._threads[store] = thread
            elif due < self._wakes_at.get(store, 0):
                self._changed.notify_all()

    def remove(self, lease: Lease) -> None:
        """Stop renewing `lease`; a renewal under way may still reach the store."""
        with self._lock:
            self._kept.pop(lease, None)

    def _keep(self, store: BaseStore) -> None:
        connected = False
        while (woken := self._wait(store, connected=connected)) is not None:
            due, over = woken
            for lease in over:
                logger.warning(
                    "The lease on record %s is renewed no longer: its max_duration is over.",
                    keys.short(lease.record_id),
                )
            if due:
                self._renew(store, due)
                connected = True
            elif not over:  # nothing is left to renew
                self._disconnect(store)
                connected = False

    def _wait(self, store: BaseStore, *, connected: bool) -> tuple[list[Lease], list[Lease]] | None:
        """
        Wait until leases of `store` are due, and return them and those whose time is over.

        Two empty lists say that none is left while the store is still connected, None that there
        has been none for a while.
        """
        with self._lock:
            idle_since = time.monotonic()
            while True:
                now = time.monotonic()
                due, over = self._take(store, now)
                left = [kept.due for kept in self._kept.values() if kept.store is store]
                if due or over or (connected and not left):
                    return due, over
                if left:
                    idle_since = now
                elif now - idle_since >= _IDLE:
                    del self._threads[store]
                    self._wakes_at.pop(store, None)
                    return None
                wakes_at = min([now + _IDLE, *left])
                self._wakes_at[store] = wakes_at
                self._changed.wait(max(wakes_at - now, 0))

    def _take(self, store: BaseStore, now: float) -> tuple[list[Lease], list[Lease]]:
        """Return leases to renew, and those whose time is over; these are kept no longer."""
        ours = [kept for kept in self._kept.values() if kept.store is store]
        wake = any(min(kept.due, kept.until) <= now for kept in ours)
        due: list[Lease] = []
        over: list[Lease] = []
        for kept in ours if wake else ():
            if kept.wanted is not None and not kept.wanted():
                del self._kept[kept.lease]
            elif kept.until <= now:
                del self._kept[kept.lease]
                over.append(kept.lease)
            elif kept.due - kept.every * _TOGETHER <= now:
                due.append(kept.lease)
                kept.due = now + kept.every
        return due, over

    def _disconnect(self, store: BaseStore) -> None:
        try:
            store.idle()
        except Exception as error:  # whatever it is, the leases of others must go on being renewed
            log_failure("A connection of the lease renewer could not be closed.", error=error)

    def _renew(self, store: BaseStore, leases: list[Lease]) -> None:
        """Renew leases of one store, those of one duration in one round trip."""
        by_duration: dict[timedelta, list[Lease]] = defaultdict(list)
        for lease in leases:
            by_duration[lease.request.lease].append(lease)
        for duration, group in by_duration.items():
            try:
                held = store.renew(group, duration)
            except Exception as error:  # whatever it is, those of others go on being renewed
                log_failure(
                    "Leases could not be renewed; the next try is in a third of one.", error=error
                )
                continue
            for lease in group:
                if lease not in held and self._is_kept(lease):
                    lease.mark_lost(gone=self._is_gone(store, lease))
                    self.remove(lease)

    def _is_gone(self, store: BaseStore, lease: Lease) -> bool:
        """Whether there is no record any more; False where the store cannot tell."""
        try:
            # As for a renewal: a silent server stops no others.
            with store.fresh_connection(), store.at(lease.place):
                return store.get(lease.record_id) is None
        except Exception as error:  # whatever it is, the leases of others must go on being renewed
            log_failure("A record whose lease was lost could not be read.", error=error)
            return False

    def _is_kept(self, lease: Lease) -> bool:
        """Whether the lease is still to be renewed; its completion may have begun meanwhile."""
        with self._lock:
            kept = self._kept.get(lease)
            return kept is not None and (kept.wanted is None or kept.wanted())


#: The lease renewer of this process.
lease_renewer = LeaseRenewer()
