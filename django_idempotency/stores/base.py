"""What every store promises to the engine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    nullcontext,
)
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, ClassVar, TypeVar
from uuid import UUID

from asgiref.sync import sync_to_async

from django_idempotency import keys
from django_idempotency.claims import ClaimRequest, Resolution
from django_idempotency.leases import Lease
from django_idempotency.policy import Policy
from django_idempotency.records import Filters, Page, Record

__all__ = ["BaseStore", "on_its_thread"]

T = TypeVar("T")


class BaseStore:
    """
    A store of records: thread-safe, one object per process and alias.

    Every state change repeats its whole condition in the write itself; each method names its
    condition. The write of a claim repeats the clauses of `decide`, although it compares epoch and
    token of the record that was read: so the statement is right by itself, whichever release
    decided. All methods raise StoreError if the store cannot be reached. Durations are timedelta or
    seconds; other types raise TypeError.
    """

    # Can the work and its record commit in one transaction?
    supports_join: ClassVar[bool] = False

    # Does the store delete expired records by itself?
    native_expiry: ClassVar[bool] = False

    # Does `check` ask the server? Then ``manage.py check`` only calls it with --deploy.
    checks_server: ClassVar[bool] = False

    # Do the twins run one by one, on the thread of the coroutine's database connections?
    thread_sensitive: ClassVar[bool] = True

    # Which database alias holds the records? None: no database.
    using: str | None = None

    # What does IDEMPOTENCY call it? Set when the setting is read.
    alias: str = ""

    # Can an operator name the schema whose records are meant?
    has_schemas: bool = False

    # Is a read cheaper than a transaction? Then the engine reads the record first, for a replay of
    # "single".
    looks_before_single: bool = False

    # Each store implements these methods, except `transact_item`, `browse_key` and `count_expired`.

    def claim(self, request: ClaimRequest) -> Lease | Record:
        """
        Give this attempt the right to run, or return the record that prevents it.

        One atomic step. The claim is won when the record is absent, expired, released, failed with
        the same fingerprint, or in progress under a lapsed lease with the same fingerprint
        (``on_stale="take_over"``). Otherwise nothing changes. A claim repeated under its own token
        returns the same lease again, or, once that lease has ended, the record or a new lease. A
        claim that lost a race is not an error. Raises ResultUnavailable for a completed record
        whose result the store has lost. Raises ClaimAgain only inside a caller's database
        transaction whose snapshot is older than the record.
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

    def transact_item(self, lease: Lease, result: bytes, *, retention: timedelta) -> Any:
        """Return `complete` as an item of a transaction; RuntimeError for a store without items."""
        raise RuntimeError(f"{type(self).__name__} has no items for TransactWriteItems.")

    def fail(self, lease: Lease, error: str) -> bool | None:
        """
        End the lease; the same fingerprint may claim again. Changes nothing if the lease was lost.

        A store that joins returns whether the lease still held; other stores may return None.
        """
        raise NotImplementedError

    def release(self, lease: Lease) -> bool | None:
        """End the lease and forget the fingerprint; otherwise as `fail`."""
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
    ) -> Page:
        """
        Return a page of at most `limit` records, expired or not, and the cursor of the next one.

        Newest first if the store can order. A page before the last may be shorter, even empty.
        `filters` may be a mapping with the names of `Filters`. With scope and key together, the
        store computes the record id and reads nothing else. Raises ValueError for a cursor that
        this store did not make, for an unknown state and for a limit below 1, and TypeError for an
        unknown name.
        """
        raise NotImplementedError

    def browse_key(self, filters: Filters, limit: int) -> Page | None:
        """
        Return the page of one scope and key, by record id; None unless `filters` name both.

        Raises ValueError for a limit below 1.
        """
        if limit < 1:
            raise ValueError(f"A page has at least 1 record: limit={limit} leaves room for none.")
        if filters.scope is None or filters.key is None:
            return None
        others = replace(filters, scope=None, key=None)  # a long scope is stored cut short
        found = map(self.get, keys.record_ids(filters.scope, filters.key))
        records = [record for record in found if record is not None and others.match(record)]
        return Page(tuple(records[:limit]))

    def resolve(self, record_id: UUID, resolution: Resolution) -> bool:
        """
        Carry out an operator's decision, and return whether it was carried out.

        Conditional on the epoch and state that the operator saw, and on the record not being
        expired. If another session has locked the record, it returns False and does not wait. The
        epoch grows by one and the token is new, so a former owner has lost its lease.
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

    def count_expired(self) -> int | None:
        """Return how many records a sweep would delete now; None for a store that cannot count."""
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

    # Async twins; only a store whose client has coroutines implements them.

    async def aclaim(self, request: ClaimRequest) -> Lease | Record:
        """See `claim`."""
        return await self._twin(self.claim, request)

    async def acomplete(self, lease: Lease, result: bytes, *, retention: timedelta) -> datetime:
        """See `complete`."""
        return await self._twin(self.complete, lease, result, retention=retention)

    async def afail(self, lease: Lease, error: str) -> bool | None:
        """See `fail`."""
        return await self._twin(self.fail, lease, error)

    async def arelease(self, lease: Lease) -> bool | None:
        """See `release`."""
        return await self._twin(self.release, lease)

    async def aget(self, record_id: UUID) -> Record | None:
        """See `get`."""
        return await self._twin(self.get, record_id)

    def aatomic(
        self, *, committed: Callable[[], None] | None = None
    ) -> AbstractAsyncContextManager[None]:
        """See `atomic`: opened and closed on the thread on which the work's queries run."""
        return on_its_thread(self.atomic(committed=committed))

    async def _twin(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        call = sync_to_async(function, thread_sensitive=self.thread_sensitive)
        return await call(*args, **kwargs)


@asynccontextmanager
async def on_its_thread(block: AbstractContextManager[Any]) -> AsyncIterator[None]:
    """Open and close a block on the thread on which a coroutine's queries run."""
    await sync_to_async(block.__enter__)()
    try:
        yield
    except BaseException as error:
        if not await sync_to_async(block.__exit__)(type(error), error, error.__traceback__):
            raise
    else:
        await sync_to_async(block.__exit__)(None, None, None)
