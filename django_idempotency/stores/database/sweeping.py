"""The sweep of the database store: expired rows go in transactions that claims hardly meet."""

from __future__ import annotations

from datetime import datetime

from django.db import connections

from django_idempotency.exceptions import StoreError
from django_idempotency.stores.database.rows import utc, uuid_of
from django_idempotency.stores.database.statements import Statements
from django_idempotency.transactions.block import Block
from django_idempotency.transactions.errors import is_serialization_failure, sqlstate
from django_idempotency.transactions.state import commits_alone

#: Rows that a step of the walk deletes: so many take a few milliseconds.
_STEP = 1000
#: SQLSTATE: a row was not free within `lock_timeout`.
_NOT_FREE = "55P03"
#: Rows that a sweep holds at a time (MariaDB).
_HELD_TOGETHER = 200
#: How often a deadlock of two sweeps is met (MariaDB).
_TRIES = 3


class Sweeping(Statements):
    """
    Deletes expired rows, in the order in which they expired.

    On PostgreSQL a walk comes first. It deletes rows that nobody holds without locking them before,
    which would be a second write of each, and begins where it ended, since all that it has deleted
    would be looked at again. SWEEP then takes what the walk has left, from the first row on.
    """

    #: When the last row of the walk expired. None at its start. Threads may share it: whoever walks
    #: from a wrong place leaves more to SWEEP.
    _walked_to: datetime | None = None

    def sweep(self, *, limit: int = 5000) -> int:
        """See `BaseStore.sweep`; in short transactions."""
        if self.dialect.SWEEPABLE is not None:
            return self._sweep_held(limit)
        swept = 0
        if self.dialect.SWEEP_NEXT is not None and commits_alone(connections[self.using]):
            swept = self._walk(limit)
        if swept < limit:
            swept += self._count("SWEEP", {"limit": limit - swept})
        return swept

    def _walk(self, limit: int) -> int:
        swept = 0
        while swept < limit:
            some = min(limit - swept, _STEP)
            try:
                step = {"after": self._walked_to, "limit": some}
                [(count, last)] = self._execute("SWEEP_NEXT", step)
            except StoreError as error:
                # Somebody has taken a row meanwhile, or deleted one (above READ COMMITTED).
                if sqlstate(error) != _NOT_FREE and not is_serialization_failure(error):
                    raise
                # The session is sound. Django would look at it, and may end it: what the caller has
                # set in it would not count for SWEEP.
                connections[self.using].errors_occurred = False
                break  # and SWEEP goes around it
            swept += count
            if count < some:
                self._walked_to = None
                break
            self._walked_to = utc(last)
        return swept

    def _sweep_held(self, limit: int) -> int:
        """Hold some rows that nobody holds, delete them, and so on."""
        swept, deadlocks = 0, 0
        while swept < limit:
            some = min(limit - swept, _HELD_TOGETHER)
            try:
                with Block(self.using):
                    ids = [uuid_of(row[0]) for row in self._execute("SWEEPABLE", {"limit": some})]
                    deleted = self._count("SWEEP", {"ids": ids})
            except StoreError as error:
                # The server has ended a deadlock of two sweeps: this one has deleted nothing.
                deadlocks += 1
                again = deadlocks < _TRIES and is_serialization_failure(error)
                if not again or connections[self.using].in_atomic_block:
                    raise
                continue
            swept += deleted
            if len(ids) < some:
                break
        return swept

    def count_expired(self, *, limit: int | None = None) -> int:
        """See `BaseStore.count_expired`."""
        if limit is None:
            return int(self._execute("COUNT_EXPIRED", {})[0][0])
        return int(self._execute("COUNT_SOME_EXPIRED", {"limit": limit})[0][0])

    def count_stale(self) -> int:
        """Return how many leases are stale; reads the table, and no results."""
        return int(self._execute("COUNT_STALE", {})[0][0])
