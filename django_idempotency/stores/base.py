"""What every store promises to the engine."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, ClassVar
from uuid import UUID

from django_idempotency.claims import ClaimRequest, Resolution
from django_idempotency.exceptions import StoreError
from django_idempotency.leases import Lease
from django_idempotency.policy import Policy
from django_idempotency.records import Filters, Page, Record

__all__ = ["BaseStore", "held_of"]

#: Records at which one step of `browse` looks: on a database so many take some 10 ms.
LOOKED_AT = 10_000


class BaseStore:
    """
    A store of records: thread-safe, one object per process and alias.

    Every state change repeats its whole condition in the write itself; each method names its
    condition. The write of a claim repeats the clauses of `decide`, although it compares epoch and
    token of the record that was read: so the statement is right by itself, whichever release
    decided. All methods raise StoreError if the store cannot be reached. Durations are timedelta or
    seconds; other types raise TypeError.
    """

    # Can the work and its record commit in one transaction? That of the database `using`.
    supports_join: ClassVar[bool] = False

    # Can the store note steps? Without it ``transaction="steps"`` is InvalidStore.
    supports_steps: ClassVar[bool] = False

    # How many bytes of notes fit into a record? None: as many as MAX_STEPS_BYTES allows.
    steps_bytes: ClassVar[int | None] = None

    # Does the store delete expired records by itself?
    native_expiry: ClassVar[bool] = False

    # Does `check` ask the server? Then ``manage.py check`` only calls it with --deploy.
    checks_server: ClassVar[bool] = False

    # Which database alias holds the records? None: no database.
    using: str | None = None

    # Which variables of a database's session does an attempt keep?
    session_variables: tuple[str, ...] = ()

    # What does IDEMPOTENCY call it? Set when the setting is read.
    alias: str = ""

    # Can an operator name the schema whose records are meant?
    has_schemas: bool = False

    # Is a read cheaper than a transaction? Then the engine reads the record first, for a replay of
    # "single".
    looks_before_single: bool = False

    # Each store implements these methods, except `browse`, `look_up`, `limited`, `count_expired`.

    def claim(self, request: ClaimRequest) -> Lease | Record:
        """
        Give this attempt the right to run, or return the record that prevents it.

        One atomic step. The claim is won when the record is absent, expired, released, failed with
        the same fingerprint, or in progress under a lapsed lease with the same fingerprint
        (``on_stale="take_over"``). A failed or lapsed record with a journal is only for a request
        with steps (S10), whose lease gets the journal. Otherwise nothing changes. A claim repeated
        under its own token returns the same lease again, or, once that lease has ended, the record
        or a new lease. A claim that lost a race is not an error. Raises ResultUnavailable for a
        completed record whose result the store has lost. Raises ClaimAgain only inside a caller's
        database transaction whose snapshot is older than the record.
        """
        raise NotImplementedError

    def complete(self, lease: Lease, result: bytes, *, retention: timedelta) -> datetime:
        """
        Keep the result and return when it expires.

        Raises LeaseLost unless the record is in progress under the lease's epoch and token, with
        ``gone=True`` if there is no record: `complete` creates none. Repeated under its own token
        it succeeds again. Raises ResultTooLarge, and changes nothing, for a result that the store
        itself cannot hold.
        """
        raise NotImplementedError

    def fail(self, lease: Lease, error: str, *, held: bool = False) -> bool | None:
        """
        End the lease; the same fingerprint may claim again. Changes nothing if the lease was lost.

        A `held` record does not expire until a later write says so (S13).
        A store that joins returns whether the lease still held; other stores may return None.
        """
        raise NotImplementedError

    def release(self, lease: Lease) -> bool | None:
        """End the lease and forget the fingerprint; otherwise as `fail`."""
        raise NotImplementedError

    def note(self, lease: Lease, entry: bytes, *, duration: timedelta, held: bool) -> None:
        """
        Append an entry to the journal of the record, and extend its lease to `duration` from now.

        The recovery point and the fence of a step in one write (S1 to S4). Within `atomic` it
        commits with the work. It leaves at least half of the request's `noted_lifetime`; a `held`
        record does not expire at all until the next write. Raises LeaseLost unless the record is in
        progress under the lease's epoch and token, with ``gone=True`` if there is no record. Sent
        again it succeeds: the entry then stands twice, and means the same.
        """
        raise NotImplementedError

    def renew(self, leases: Iterable[Lease], duration: timedelta) -> set[Lease]:
        """Extend the leases to `duration` from now in one round trip; return those still held."""
        raise NotImplementedError

    def get(self, record_id: UUID) -> Record | None:
        """Return the record as it is now, expired or not, or None."""
        raise NotImplementedError

    def peek(self, record_ids: Iterable[UUID]) -> dict[UUID, Record]:
        """
        Return what claims of these would meet, for attempts that wait; in one round trip.

        What `get` returns, by its id; a completed record may come without its result. A store in
        which an attempt holds an id before its record can be seen gives a `placeholder` for it,
        where it can tell. Otherwise those that wait claim again and again, one of them at a time.
        """
        found = {record_id: self.get(record_id) for record_id in record_ids}
        return {record_id: record for record_id, record in found.items() if record is not None}

    def browse(
        self,
        *,
        filters: Filters | Mapping[str, Any] | None = None,
        cursor: str | None = None,
        limit: int = 100,
        within: int | None = None,
        results: bool = False,
        seconds: float | None = None,
    ) -> Page:
        """
        Return a page of at most `limit` records, expired or not, and the cursor of the next one.

        Newest first if the store can order; without their results, unless `results` are asked for.
        Looks for matches until the page is full or the store at its end; at no more than `within`
        records from the cursor on, and begins no step after so many `seconds`, which limit each
        statement of a database, too. A page that ends early, even an empty one, has the cursor of
        the place where it ended: only the last page has none.

        `filters` may be a mapping with the names of `Filters`. With a whole record id, or with
        scope and key together, the store reads those records alone. Raises ValueError for a cursor
        that this store did not make, for an unknown state, for what begins no record id, and for a
        limit below 1, and TypeError for an unknown name.
        """
        if limit < 1 or (within is not None and within < 1):
            room = f"limit={limit}, within={within}"
            raise ValueError(f"A page has at least 1 record: {room} leaves room for none.")
        wanted = Filters.of(filters)
        ends = math.inf if seconds is None else time.monotonic() + seconds
        left = math.inf if within is None else within
        found: dict[UUID, Record] = {}  # a store without an order may give one twice
        damaged: list[str] = []
        is_first = True
        try:
            with self.limited(seconds):
                while True:
                    most = int(min(left, LOOKED_AT))
                    page, looked = self.look_on(wanted, cursor, limit - len(found), most, results)
                    found |= {record.record_id: record for record in page.records}
                    damaged += page.damaged
                    cursor, left, is_first = page.cursor, left - looked, False
                    over = len(found) >= limit or left < 1 or time.monotonic() >= ends
                    if cursor is None or over:
                        break
        except StoreError:
            if is_first or time.monotonic() < ends:
                raise
        records = tuple(found.values())
        if not results:
            records = tuple(replace(it, result=None) if it.result else it for it in records)
        return Page(records, cursor, tuple(dict.fromkeys(damaged)))

    def look_on(
        self, filters: Filters, cursor: str | None, limit: int, most: int, results: bool
    ) -> tuple[Page, int]:
        """
        Look at up to `most` records from a cursor on: a step of `browse`.

        Returns at most `limit` of them that match, with the cursor of where the step has ended, and
        how many it has looked at. Calls `look_up` where the ids are known. Without `results` a
        record may come with its result.
        """
        raise NotImplementedError

    def look_up(self, filters: Filters, cursor: str | None, limit: int) -> tuple[Page, int]:
        """Return the same for the ids that alone can match; raise ValueError for no cursor."""
        after = None if cursor is None else UUID(cursor)
        ids = [it for it in sorted(filters.ids or ()) if after is None or it > after]
        found = [record for it in ids if (record := self.get(it)) and filters.match(record)]
        more = str(found[limit - 1].record_id) if len(found) > limit else None
        return Page(tuple(found[:limit]), more), len(ids)

    def limited(self, seconds: float | None) -> AbstractContextManager[None]:
        """Limit the time of each statement of the block on a database; None is no limit."""
        return nullcontext()

    def resolve(self, record_id: UUID, resolution: Resolution) -> bool:
        """
        Carry out an operator's decision, and return whether it was carried out.

        Conditional on what the operator saw, which is epoch, state and journal (`Resolution.saw`),
        and on the record not being expired. If another session has locked the
        record, it returns False and does not wait. The epoch grows by one and the token is new, so
        a former owner has lost its lease. ``"resume"`` appends the resolution's `entry` to a
        journal and keeps it, with the fingerprint; what `Resolution.holds` says is true of the
        journal to which it was appended, or nothing changes (S18). Raises StoreError for a journal
        that cannot be read.
        """
        raise NotImplementedError

    def erase(self, record_id: UUID, *, force: bool = False) -> bool:
        """
        Delete the record, and all that the store keeps of it; return whether it is gone.

        Returns False, and changes nothing, if an attempt holds the record under a live lease
        (unless `force` is set) or another session has locked it. An owner whose record was erased
        has lost its lease. The next claim is the first one. Repeated, it returns True again.
        """
        raise NotImplementedError

    def sweep(self, *, limit: int = 5000) -> int:
        """Delete one batch of at most `limit` expired records; return how many they were."""
        raise NotImplementedError

    def count_expired(self, *, limit: int | None = None) -> int | None:
        """
        Return how many records a sweep would delete now; None for a store that cannot count.

        With a `limit` a store may stop to count there.
        """
        return None

    # A store that joins implements these methods; the defaults are for a store that cannot join.

    def atomic(self, *, committed: Callable[[], None] | None = None) -> AbstractContextManager[Any]:
        """
        Open the transaction in which work and record commit together.

        An exception rolls both back. `committed` is called right after the commit, before any other
        hook. A store that cannot join returns an empty block.
        """
        return nullcontext()

    def rolled_back(self) -> bool:
        """Whether the transaction of `atomic` is still open, but can only be rolled back."""
        return False

    def rollback_is_deliberate(self) -> bool:
        """Whether the work called ``set_rollback(True)`` for the transaction of `atomic` (R91)."""
        return False

    def fence(self, lease: Lease) -> None:
        """
        Make sure, at the start of the work's transaction, that the lease still holds.

        Does something only in a store where a later check would be too late. Raises LeaseLost.
        """

    def in_transaction(self) -> bool:
        """Whether a transaction is open on this thread's connection to the store."""
        return False

    # A store with a connection for each thread implements these methods.

    def idle(self) -> None:
        """Close this thread's connections; called when the lease renewer has nothing to do."""

    def fresh_connection(self) -> AbstractContextManager[None]:
        """Use a new connection, with time-outs, for the block's calls on this thread, if it can."""
        return nullcontext()

    def working_connection(self) -> AbstractContextManager[None]:
        """Use this thread's connection for the block's calls, or a new one if it was lost."""
        return nullcontext()

    # A store with several places implements these methods: a table for each schema, say.

    def at(self, place: str | None) -> AbstractContextManager[None]:
        """
        Make the block's calls on this thread where a claim was made.

        The store gives the `place` with a lease, and with the record that a claim returns; None is
        where each call finds itself. A write with a lease goes to the lease's place in any case.
        """
        return nullcontext()

    def in_schema(self, schema: str) -> AbstractContextManager[None]:
        """
        Make the block's calls on this thread in a schema that an operator has named.

        Raises StoreError for one without a table, and ValueError for a store without schemas.
        """
        raise ValueError(f"{self.alias!r} is a {type(self).__name__}, which has no schemas.")

    # Checks.

    def check(self) -> list[Any]:
        """Return Django check messages about this store's options and server."""
        return []

    def check_database(self, policy: Policy) -> list[Any]:
        """Return Django check messages about the store's database, which this check may query."""
        return []


def held_of(leases: list[Lease], answers: list[Any]) -> set[Lease]:
    """Return the leases that may still be held; raise StoreError if none could be renewed."""
    errors = [answer for answer in answers if isinstance(answer, StoreError)]
    if errors and len(errors) == len(answers):
        raise errors[0]
    # An error counts as held: it does not say that the lease is lost.
    return {lease for lease, answer in zip(leases, answers, strict=True) if answer}
