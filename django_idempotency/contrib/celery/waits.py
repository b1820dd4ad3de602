"""The wait of a message in its own delivery, for an attempt that may be dead (C8)."""

from __future__ import annotations

import time
from datetime import timedelta
from uuid import UUID

from django_idempotency.engine.waiting import Waiter
from django_idempotency.policy import Policy
from django_idempotency.records import Record

#: Seconds of a wait for which no time limit is known.
_YEAR = timedelta(days=365).total_seconds()
#: Seconds between two looks, at most, at the record of an attempt that is alive.
_LONGEST = 5.0


class DeliveryWaiter(Waiter):
    """
    How long a message waits in its own delivery for the attempt that holds its record.

    A live owner renews its lease after each third of it. So a lease whose end moves has a live
    owner, and one whose end stays lapses within the wait. Until then the owner's state is unknown.
    """

    def __init__(
        self,
        record_id: UUID,
        policy: Policy,
        wait: timedelta,
        *,
        first: bool,
        most: float,
        finds_out: bool = True,
    ) -> None:
        super().__init__(record_id, wait, policy.on_stale)
        self._lease = policy.lease.total_seconds()
        self._renewed = policy.renew and policy.deadline is None
        #: The broker says that it has not delivered the message before: no worker died of it.
        self._first = first
        #: Without this every attempt counts as alive.
        self._finds_out = finds_out or not first
        #: When the message may wait no longer; the end of the wait for a live owner.
        self._most, self._wait_until = self.began + min(most, _YEAR), self.until
        #: The epoch and the end of the lease that was met last.
        self._seen: tuple[int, object] | None = None
        #: When an attempt was met first of which a lock is all that can be seen.
        self._locked: float | None = None
        #: Whether the attempt that holds the record is alive.
        self.alive = False
        #: Whether the message waits for a live owner, too, because it could not be sent again.
        self.stays = False

    def goes_on(self, met: Record | None) -> bool:
        """See `Waiter.goes_on`; `alive` says then whose record it is."""
        self.alive = self._is_alive(met)
        if self.stays:
            self.until = self._most
        elif self.alive:
            self.until = self._wait_until
        elif met is None or met.lease_left is None:
            self.until = min(self._most, self._knows_lock_at())
        else:
            in_time = time.monotonic() + met.lease_left < self._most
            self.until = self._most if in_time else 0
        return super().goes_on(met)

    def stay(self) -> bool:
        """Wait for a live owner, too; return whether there is time left for that."""
        self.stays = True
        return self._most > time.monotonic()

    def pause(self) -> float:
        """See `Waiter.pause`; longer where nothing but the end of a live owner is waited for."""
        if self.stays and self.alive:
            return min(max((time.monotonic() - self.began) / 5, 0.02), _LONGEST)
        return super().pause()

    def is_unchanged(self, record: Record | None) -> bool:
        """See `Waiter.is_unchanged`; a renewal is a change, which shows that the owner is alive."""
        met = self.met
        if record is None or not super().is_unchanged(record):
            return False
        if self.stays or met is None or met.lease_until is None:
            return True
        return record.lease_until == met.lease_until

    def _is_alive(self, met: Record | None) -> bool:
        if not self._finds_out:
            return True
        if met is None or met.lease_left is None:  # `single`, or a claim that is not visible yet
            return self._first or time.monotonic() >= self._knows_lock_at()
        self._locked = None
        seen, self._seen = self._seen, (met.epoch, met.lease_until)
        if seen is not None and seen[0] == met.epoch and seen[1] != met.lease_until:
            return True
        # A message that no worker died of need not find out: it is sent again without a loss.
        young = met.lease_left > self._lease / 2
        return young and ((self._first and self._renewed) or (self.alive and seen == self._seen))

    def _knows_lock_at(self) -> float:
        """Return when the owner of a lock counts as alive: a dead one's is soon given up."""
        if self._locked is None:
            self._locked = time.monotonic()
        return self._locked + self._lease / 3
