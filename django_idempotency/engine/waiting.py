"""Waiting: one poller looks at the records that attempts of this process wait for (R51)."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from datetime import timedelta
from uuid import UUID

from django_idempotency.exceptions import StoreError
from django_idempotency.logs import log_failure
from django_idempotency.observers import logger
from django_idempotency.records import Record, State
from django_idempotency.stores.base import BaseStore
from django_idempotency.stores.forks import in_each_child

#: Seconds between two looks at a record: at first, and at most.
_SHORTEST, _LONGEST = 0.02, 0.2
#: The part of the time waited so far that the next look may come later.
_PART = 5
#: Seconds for which one connection is used; less than a silent server is given.
_CONNECTED = 5.0
#: Seconds without a waiter after which the thread ends.
_IDLE = 2.0


class Waiter:
    """How long one attempt may wait for another, and what it knows of that one's record."""

    def __init__(self, record_id: UUID, wait: timedelta, on_stale: str = "take_over") -> None:
        self.record_id = record_id
        #: Where its claim has met that record, in a store with several places.
        self.place: str | None = None
        self.on_stale = on_stale
        self.began = time.monotonic()
        self.until = self.began + wait.total_seconds()
        #: The record that the attempt met at its last claim.
        self.met: Record | None = None
        #: The record that the poller has read since then.
        self.seen: Record | None = None
        #: When the next look is due.
        self.due = 0.0
        #: Called once, from the poller's thread.
        self.wake: Callable[[], object]

    def goes_on(self, met: Record | None) -> bool:
        """Whether there is time left to wait for the attempt that holds the record `met`."""
        self.met = met
        return self.until > time.monotonic()

    @property
    def left(self) -> float:
        """Seconds until the time to wait is over."""
        return max(self.until - time.monotonic(), 0)

    def pause(self) -> float:
        """Return how many seconds to pause before the next look."""
        waited = time.monotonic() - self.began
        return min(max(waited / _PART, _SHORTEST), _LONGEST)

    def is_unchanged(self, record: Record | None) -> bool:
        """Whether the attempt that was met still holds the record, as far as can be seen."""
        epoch = 0 if self.met is None else self.met.epoch
        return record is not None and record.live and record.epoch == epoch

    def may_claim(self, record: Record | None) -> bool:
        """Whether the record keeps no attempt of its own request from running."""
        if record is None or record.expired:
            return True
        if record.state is State.IN_PROGRESS and not record.live:
            return self.on_stale == "take_over"
        return record.state in (State.FAILED, State.RELEASED)


class Poller:
    """
    Looks at the records that attempts wait for, and wakes those that may go on.

    All waiters of a store share one thread and one connection, which end when there are no more.
    Those of one place share a look: another schema may have the same record id (R98). A waiter that
    is woken decides by itself: with the record that was read, if that answers it, or by another
    claim.
    """

    def __init__(self) -> None:
        self._reset()
        in_each_child(self._reset)

    def _reset(self) -> None:
        """Start with nothing: no thread of the parent is there in a forked child."""
        self._lock = threading.RLock()  # taken as it is: see LeaseRenewer
        self._changed = threading.Condition(self._lock)
        #: The waiters of each store that has a thread.
        self._waiters: dict[BaseStore, set[Waiter]] = {}
        self._wakes_at: dict[BaseStore, float] = {}
        self._told_of_threads = False

    def wait(self, store: BaseStore, waiter: Waiter) -> Record | None:
        """Return when the claim may be sent again, with the record that was read, if any."""
        woken = threading.Event()
        waiter.wake = woken.set
        # Another connection does not see what a TestCase has not committed, and nothing says where
        # to look for a record that no claim has met.
        if store.in_transaction() or waiter.met is None or not self._add(store, waiter):
            time.sleep(min(waiter.pause(), waiter.left))
            return None
        try:
            woken.wait(waiter.left)
        finally:
            self._remove(store, waiter)
        return waiter.seen

    async def await_(self, store: BaseStore, waiter: Waiter, *, alone: bool) -> Record | None:
        """See `wait`; `alone` says that no other connection can see the record."""
        loop, woken = asyncio.get_running_loop(), asyncio.Event()
        waiter.wake = lambda: loop.call_soon_threadsafe(woken.set)
        if alone or waiter.met is None or not self._add(store, waiter):
            await asyncio.sleep(min(waiter.pause(), waiter.left))
            return None
        timer = loop.call_later(waiter.left, woken.set)
        try:
            await woken.wait()
        finally:
            timer.cancel()
            self._remove(store, waiter)
        return waiter.seen

    def _add(self, store: BaseStore, waiter: Waiter) -> bool:
        """Have the waiter's record looked at; return False if no thread can be started for that."""
        waiter.seen = None
        waiter.due = time.monotonic() + waiter.pause()
        with self._lock:
            if store not in self._waiters:
                thread = threading.Thread(
                    target=self._poll, args=[store], name="django-idempotency-poller", daemon=True
                )
                try:
                    thread.start()
                except RuntimeError:  # the process may start no more threads
                    if not self._told_of_threads:  # once, and not at each pause of each waiter
                        self._told_of_threads = True
                        logger.exception(
                            "Each attempt that waits looks by itself: no thread started."
                        )
                    return False
                self._told_of_threads = False
                self._waiters[store] = set()
            self._waiters[store].add(waiter)
            if waiter.due < self._wakes_at.get(store, 0):
                self._changed.notify_all()
        return True

    def _remove(self, store: BaseStore, waiter: Waiter) -> None:
        with self._lock:
            self._waiters.get(store, set()).discard(waiter)

    # The thread of one store.

    def _poll(self, store: BaseStore) -> None:
        told = False
        while self._due(store, connected=False) is not None:
            asking: list[Waiter] = []
            try:
                with store.fresh_connection():
                    told = not self._look(store, asking) and told
            except Exception as error:  # whatever it is, each waiter meets it at its own claim
                if not told:  # once, and not for each look while a server is down
                    told = True
                    logger.warning(
                        "Attempts that wait claim again and again, since the store cannot be read "
                        "for all of them: %s",
                        error if isinstance(error, StoreError) else type(error).__name__,
                    )
                self._wake_all(store, asking)
            try:
                store.idle()
            except Exception as error:  # whatever it is, others must go on being woken
                log_failure("A connection of the poller could not be closed.", error=error)

    def _look(self, store: BaseStore, asking: list[Waiter]) -> bool:
        """
        Look on one connection, while there are waiters; return whether there were any.

        If a look fails, `asking` has those for whom it was: other places may be readable.
        """
        until, looked = time.monotonic() + _CONNECTED, False
        while time.monotonic() < until and (waiters := self._due(store, connected=True)):
            for place in {waiter.place for waiter in waiters}:
                asking[:] = [waiter for waiter in waiters if waiter.place == place]
                with store.at(place):
                    records = store.peek({waiter.record_id for waiter in asking})
                self._tell(store, asking, records)
                asking.clear()
            looked = True
        return looked

    def _due(self, store: BaseStore, *, connected: bool) -> list[Waiter] | None:
        """
        Wait until a look is due, and return all waiters of the store: one connection serves them.

        Returns none of them as soon as there are none while the store is `connected`, and None when
        there have been none for a while.
        """
        with self._lock:
            ends = time.monotonic() + _IDLE
            while True:
                waiters = self._waiters[store]
                if connected and not waiters:
                    return []
                wakes_at = min((waiter.due for waiter in waiters), default=ends)
                pause = wakes_at - time.monotonic()
                if pause > 0:
                    self._wakes_at[store] = wakes_at
                    self._changed.wait(pause)
                elif waiters:
                    return list(waiters)
                else:
                    del self._waiters[store]
                    self._wakes_at.pop(store, None)
                    return None

    def _tell(
        self, store: BaseStore, waiters: Collection[Waiter], records: Mapping[UUID, Record]
    ) -> None:
        """
        Wake the waiters whose record answers, or may be claimed.

        Of those for one record that may be claimed it wakes the one that has waited longest, since
        one alone can win. The others see at the next look what has become of it.
        """
        claiming: set[UUID] = set()
        with self._lock:
            there = self._waiters[store]
            now = time.monotonic()
            for waiter in sorted(waiters, key=lambda waiter: waiter.began):
                record = records.get(waiter.record_id)
                if waiter.is_unchanged(record):
                    # A placeholder lacks what the claim knows of the record.
                    waiter.seen = record if record and record.epoch else waiter.met
                elif not waiter.may_claim(record):
                    waiter.seen = _whole(record)
                    self._wake(there, waiter)
                elif waiter in there and waiter.record_id not in claiming:
                    claiming.add(waiter.record_id)
                    waiter.seen = None
                    self._wake(there, waiter)
                waiter.due = now + waiter.pause()

    def _wake_all(self, store: BaseStore, asking: list[Waiter]) -> None:
        """Wake those for whom a look has failed; all of them where no look was begun."""
        with self._lock:
            for waiter in asking or list(self._waiters[store]):
                waiter.seen = None
                self._wake(self._waiters[store], waiter)

    def _wake(self, there: set[Waiter], waiter: Waiter) -> None:
        """Wake a waiter that still waits."""
        if waiter in there:
            there.remove(waiter)
            with suppress(RuntimeError):  # its event loop has been closed
                waiter.wake()


def _whole(record: Record | None) -> Record | None:
    """Return the record, unless the store has left its result out."""
    if record is None or (record.state is State.COMPLETED and record.result is None):
        return None
    return record


#: The poller of this process.
poller = Poller()
