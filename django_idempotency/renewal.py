"""Renewal: one keeper per process extends the leases of work that takes long (R69)."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from django_idempotency.records import Lease
from django_idempotency.stores.base import BaseStore

__all__ = ["Keeper", "keeper"]

logger = logging.getLogger("django_idempotency")

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


class Keeper:
    """
    Renews leases from a thread of its own, off the path of the work.

    A lease that ends before a third of it has passed costs an entry in a dict and nothing else.
    The thread starts with the first lease, and ends when there has been none for a while.
    """

    def __init__(self) -> None:
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        """Start with nothing: a forked child renews none of its parent's leases."""
        self._changed = threading.Condition()
        self._kept: dict[Lease, _Kept] = {}
        self._thread: threading.Thread | None = None
        self._wakes_at = 0.0

    def add(
        self, store: BaseStore, lease: Lease, *, wanted: Callable[[], bool] | None = None
    ) -> None:
        """Renew `lease` until it is removed, no longer wanted, or its ``max_duration`` is over."""
        now = time.monotonic()
        every = lease.request.lease.total_seconds() / _PART
        due = now + every
        until = now + lease.request.max_duration.total_seconds()
        with self._changed:
            self._kept[lease] = _Kept(store, lease, every, due, until, wanted)
            if self._thread is None:
                thread = threading.Thread(
                    target=self._keep, name="django-idempotency-keeper", daemon=True
                )
                try:
                    thread.start()
                except RuntimeError:  # the process may start no more threads
                    logger.exception("Leases are not renewed: their keeper could not be started.")
                else:
                    self._thread = thread
            elif due < self._wakes_at:
                self._changed.notify()

    def remove(self, lease: Lease) -> None:
        """Stop renewing `lease`; a renewal under way may still reach the store."""
        with self._changed:
            self._kept.pop(lease, None)

    def _keep(self) -> None:
        connected: set[BaseStore] = set()
        while (due := self._wait(connected=bool(connected))) is not None:
            for store in connected if not due else ():  # nothing is left to renew
                self._disconnect(store)
            connected = connected | set(due) if due else set()
            for store, leases in due.items():
                self._renew(store, leases)

    def _wait(self, *, connected: bool) -> dict[BaseStore, list[Lease]] | None:
        """
        Wait until leases are due and return them by store.

        An empty dict says that none is left while stores are still connected, None that there has
        been none for a while.
        """
        with self._changed:
            idle_since = time.monotonic()
            while True:
                now = time.monotonic()
                if self._kept:
                    idle_since = now
                due: dict[BaseStore, list[Lease]] = defaultdict(list)
                wake = any(kept.due <= now for kept in self._kept.values())
                for kept in list(self._kept.values()):
                    unwanted = wake and kept.wanted is not None and not kept.wanted()
                    if kept.until <= now or unwanted:
                        del self._kept[kept.lease]
                    elif wake and kept.due - kept.every * _TOGETHER <= now:
                        due[kept.store].append(kept.lease)
                        kept.due = now + kept.every
                if due or (connected and not self._kept):
                    return due
                if not self._kept and now - idle_since >= _IDLE:
                    self._thread = None
                    return None
                self._wakes_at = min([now + _IDLE, *(kept.due for kept in self._kept.values())])
                self._changed.wait(max(self._wakes_at - now, 0))

    def _disconnect(self, store: BaseStore) -> None:
        try:
            store.idle()
        except Exception:  # whatever it is, the leases of others must go on being renewed
            logger.exception("A connection of the keeper could not be closed.")

    def _renew(self, store: BaseStore, leases: list[Lease]) -> None:
        """Renew leases of one store, those of one duration in one round trip."""
        by_duration: dict[timedelta, list[Lease]] = defaultdict(list)
        for lease in leases:
            by_duration[lease.request.lease].append(lease)
        for duration, group in by_duration.items():
            try:
                held = store.renew(group, duration)
            except Exception:  # whatever it is, the leases of others must go on being renewed
                logger.exception("Leases could not be renewed; the next try is in a third of one.")
                continue
            for lease in group:
                if lease not in held and self._is_kept(lease):
                    lease.mark_lost()
                    self.remove(lease)

    def _is_kept(self, lease: Lease) -> bool:
        with self._changed:
            return lease in self._kept


#: The keeper of this process.
keeper = Keeper()
