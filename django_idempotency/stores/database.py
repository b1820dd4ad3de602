"""Records in a table of the project's own database: PostgreSQL or SQLite."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta, timezone
from types import ModuleType
from typing import Any, ClassVar
from uuid import UUID

from django.core import checks
from django.db import Error, InterfaceError, OperationalError, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from django_idempotency import keys
from django_idempotency.engine import Decision, decide
from django_idempotency.exceptions import LeaseLost, StoreError, TransactionOpen
from django_idempotency.records import ClaimRequest, Lease, Proof, Record, State
from django_idempotency.stores import sql_postgresql, sql_sqlite
from django_idempotency.stores.base import BaseStore, ClaimAgain
from django_idempotency.stores.blocks import (
    Block,
    is_connection_failure,
    is_doomed,
    is_serialization_failure,
)
from django_idempotency.stores.rows import (
    claim_parameters,
    for_sqlite,
    in_flight,
    is_takeover,
    lease_of_resent,
    proof_parameters,
    record_of,
    seen_parameters,
    utc,
    uuid_of,
)

__all__ = ["DatabaseStore"]

Row = tuple[Any, ...]

#: How often a claim looks again after it lost a race, before it answers "in progress".
TRIES = 3

_STATEMENTS: dict[str, ModuleType] = {"postgresql": sql_postgresql, "sqlite": sql_sqlite}
#: What opens an attempt; it is refused where another's transaction is open on the connection.
_CLAIMS = ("CLAIM", "RECLAIM", "SINGLE_LOCK")
#: What is conditional on the proof of ownership, so that it may be sent twice.
_OWNERS_WRITES = ("COMPLETE", "FAIL", "RELEASE", "RENEW")
_READ_COMMITTED = "read committed"
_PSYCOPG_READ_COMMITTED = 2


class DatabaseStore(BaseStore):
    """
    Records in the table of `IdempotencyRecord`, always on the write connection of one alias.

    Outside a transaction each operation commits by itself; inside one it is part of it.
    """

    supports_join: ClassVar[bool] = True

    def __init__(self, *, using: str = "default") -> None:
        self.using = using

    @property
    def connection(self) -> BaseDatabaseWrapper:
        """This thread's connection."""
        return connections[self.using]

    @property
    def writers_queue(self) -> bool:  # type: ignore[override]
        """SQLite has one writer at a time."""
        return self.connection.vendor == "sqlite" and not self.connection.in_atomic_block

    # The claim.

    def claim(self, request: ClaimRequest) -> Lease | Record:
        """See `BaseStore.claim`; ``single`` is claimed inside `atomic`."""
        if request.transaction == "single":
            return self._claim_single(request)
        look_first = self._sql.LOOK_FIRST and not self.connection.in_atomic_block
        return self._claim_row(request, look_first=look_first)

    def _claim_row(self, request: ClaimRequest, *, look_first: bool = False) -> Lease | Record:
        """Claim by writing a row that others can see, or will see after the commit."""
        now: datetime | None = None
        for _ in range(TRIES):
            try:
                if not look_first and (row := self._one("CLAIM", claim_parameters(request))):
                    return self._lease(request, row, None)
                look_first = False
                record, now = self._look(request.record_id)
                if record is None:
                    continue
                if record.token == request.token and record.state is State.IN_PROGRESS:
                    return lease_of_resent(request, record)
                if decide(record, request) is not Decision.CLAIM_AGAIN:
                    return record
                parameters = claim_parameters(request) | seen_parameters(record)
                if row := self._one("RECLAIM", parameters):
                    return self._lease(request, row, record)
            except StoreError as error:
                if not is_serialization_failure(error):
                    raise
                if self.connection.in_atomic_block:
                    raise ClaimAgain from error
        return in_flight(request, now or datetime.now(timezone.utc))

    def _claim_single(self, request: ClaimRequest) -> Lease | Record:
        """Claim by the lock that ends with the transaction; a row is written at the end."""
        if not self.connection.in_atomic_block:
            raise TransactionOpen("A claim in mode 'single' belongs inside the store's atomic().")
        block = Block.on(self.connection)
        if block is not None and block.holds(request.record_id):
            # The lock is re-entrant within a session, so it would not stop a nested attempt.
            return in_flight(request, self._look(request.record_id)[1])
        if self.connection.vendor == "sqlite":
            claimed = self._claim_row(request)
        else:
            claimed = self._claim_locked(request)
        if block is not None and isinstance(claimed, Lease):
            block.held = request.record_id
        return claimed

    def _claim_locked(self, request: ClaimRequest) -> Lease | Record:
        [(*columns, locked, isolation)] = self._execute("SINGLE_LOCK", {"id": request.record_id})
        record, now = record_of(columns)
        if locked is None and record is not None:
            return record
        if not locked:
            if record is not None and decide(record, request) is not Decision.CLAIM_AGAIN:
                return record
            return in_flight(request, now)
        if isolation != _READ_COMMITTED:
            # The snapshot is older than the lock and stays so: only a write can tell.
            return self._claim_row(request)
        record, now = self._look(request.record_id)
        if record is not None and decide(record, request) is not Decision.CLAIM_AGAIN:
            return record
        epoch = max(int(now.timestamp() * 1_000_000), record.epoch + 1 if record else 0)
        return Lease(
            Proof(request.record_id, epoch, request.token),
            request,
            claimed_at=now,
            takeover=is_takeover(record),
            renewable=False,
            seen=record,
            written=False,
        )

    def _lease(self, request: ClaimRequest, row: Row, seen: Record | None) -> Lease:
        epoch, lease_until, now, isolation = row
        return Lease(
            Proof(request.record_id, epoch, request.token),
            request,
            lease_until=utc(lease_until),
            claimed_at=utc(now),
            takeover=is_takeover(seen),
            renewable=self._renewable(request, isolation),
        )

    def _renewable(self, request: ClaimRequest, isolation: str) -> bool:
        """Whether another connection can see the row, and may write it while the work runs."""
        if request.transaction == "single" or self.connection.in_atomic_block:
            return False
        if request.transaction == "separate":
            return True
        # Joined: on SQLite the work itself keeps every writer out. Under REPEATABLE READ and above
        # a renewal would make the completion fail.
        return self.connection.vendor != "sqlite" and self._is_read_committed(isolation)

    def is_read_committed(self) -> bool:
        """Whether transactions on this database run at READ COMMITTED; asks the server."""
        if self.connection.vendor != "postgresql":
            return True
        [(isolation,)] = self._execute("ISOLATION", {})
        return self._is_read_committed(isolation)

    def _is_read_committed(self, default: str) -> bool:
        """Django's own option applies to transactions; without it the server's default does."""
        option = self.connection.settings_dict["OPTIONS"].get("isolation_level")
        if option is None:
            return default == _READ_COMMITTED
        return bool(getattr(option, "value", option) == _PSYCOPG_READ_COMMITTED)

    # The owner's writes.

    def complete(self, lease: Lease, result: bytes, *, retention: timedelta) -> datetime:
        """See `BaseStore.complete`."""
        if not lease.written:
            return self._write_single(lease, State.COMPLETED, retention, result=result)
        parameters = {**proof_parameters(lease), "result": result, "retention": retention}
        if row := self._one("COMPLETE", parameters):
            return utc(row[0])
        return self._written_before(lease, State.COMPLETED)

    def fail(self, lease: Lease, error: str) -> None:
        """See `BaseStore.fail`."""
        if lease.written:
            self._execute("FAIL", {**self._ending(lease), "error": keys.bounded(error)})
        elif self.connection.in_atomic_block:  # outside it a late insert left nothing to end
            self._write_ending(lease, State.FAILED, error=keys.bounded(error))

    def release(self, lease: Lease) -> None:
        """See `BaseStore.release`."""
        if lease.written:
            self._execute("RELEASE", self._ending(lease))
        elif self.connection.in_atomic_block:  # outside it a late insert left nothing to end
            self._write_ending(lease, State.RELEASED)

    def renew(self, leases: Collection[Lease], duration: timedelta) -> set[Lease]:
        """See `BaseStore.renew`; a lock that is met counts as held."""
        by_token = {lease.token: lease for lease in leases}
        parameters: dict[str, Any]
        if self.connection.vendor == "sqlite":
            proofs = [[x.record_id.hex, x.fencing_token, x.token.hex] for x in leases]
            parameters = {"leases": json.dumps(proofs), "duration": duration}
        else:
            parameters = {
                "ids": [lease.record_id for lease in leases],
                "epochs": [lease.fencing_token for lease in leases],
                "tokens": [lease.token for lease in leases],
                "duration": duration,
            }
        try:
            rows = self._execute("RENEW", parameters)
        except StoreError as error:
            if self.connection.vendor == "sqlite" and "locked" in str(error.__cause__):
                return set(leases)
            raise
        return {by_token[uuid_of(row[0])] for row in rows}

    def _write_ending(self, lease: Lease, state: State, error: str = "") -> None:
        with suppress(LeaseLost):  # like any owner's ending, without effect once the proof is lost
            self._write_single(lease, state, lease.request.retention, error=error)

    def _write_single(
        self,
        lease: Lease,
        state: State,
        retention: timedelta,
        *,
        result: bytes | None = None,
        error: str = "",
    ) -> datetime:
        """Write the record of a `single` attempt, at its end and under its lock."""
        request, seen = lease.request, lease.seen
        fingerprint = request.fingerprint
        if seen is not None and not seen.expired and seen.fingerprint is not None:
            fingerprint = seen.fingerprint
        parameters = {
            **claim_parameters(request),
            "epoch": lease.fencing_token,
            "state": state.value,
            "fingerprint": None if state is State.RELEASED else fingerprint,
            "claimed_at": lease.claimed_at,
            "retention": retention,
            "result": result,
            "error": error,
        }
        if seen is not None:
            row = self._one("SINGLE_UPDATE", {**parameters, **seen_parameters(seen)})
            if row:
                return utc(row[0])
        # Nothing was seen, or what was seen has been swept meanwhile.
        if row := self._one("SINGLE_INSERT", parameters):
            return utc(row[0])
        return self._written_before(lease, state)

    def _written_before(self, lease: Lease, state: State) -> datetime:
        """Return when the record expires that this very attempt has ended; raise LeaseLost."""
        record, _ = self._look(lease.record_id)
        if record is None or record.expires_at is None or record.state is not state:
            raise LeaseLost
        if (record.epoch, record.token) != (lease.fencing_token, lease.token):
            raise LeaseLost
        return record.expires_at

    # Reading and sweeping.

    def get(self, record_id: UUID) -> Record | None:
        """See `BaseStore.get`."""
        return self._look(record_id)[0]

    def sweep(self, *, limit: int = 5000) -> int:
        """See `BaseStore.sweep`; one short transaction."""
        with self._cursor("SWEEP", {"limit": limit}) as cursor:
            return int(cursor.rowcount)

    def count_expired(self) -> int:
        """Return how many records a sweep would delete now."""
        row = self._one("COUNT_EXPIRED", {})
        return int(row[0]) if row else 0

    # The transaction of the work.

    def atomic(self, *, committed: Callable[[], None] | None = None) -> Block:
        """
        Open the transaction, or a savepoint, in which work and record commit together.

        A connection that is lost at its BEGIN or COMMIT is a StoreError; what the server says
        against a COMMIT (a deferred constraint, a serialization failure) passes on unchanged.
        """
        return Block(self.using, committed)

    def rolled_back(self) -> bool:
        """See `BaseStore.rolled_back`."""
        return is_doomed(self.connection)

    def fence(self, lease: Lease) -> None:
        """See `BaseStore.fence`: on SQLite the write that opens the work's transaction."""
        if self._sql.FENCE is None:
            return
        with self._cursor("FENCE", proof_parameters(lease)) as cursor:
            if cursor.rowcount != 1:
                raise LeaseLost

    def in_transaction(self) -> bool:
        """See `BaseStore.in_transaction`."""
        return self.connection.in_atomic_block

    def idle(self) -> None:
        """Close this thread's connections."""
        for connection in connections.all(initialized_only=True):
            if not connection.in_atomic_block:
                connection.close()

    def check(self) -> list[checks.CheckMessage]:
        """See `BaseStore.check`."""
        if self.using not in connections.settings:
            return [
                checks.Error(
                    f"The database store uses the alias {self.using!r}, which DATABASES lacks.",
                    hint="Set OPTIONS['using'] to one of " + ", ".join(connections.settings) + ".",
                    id="django_idempotency.E003",
                )
            ]
        if self.connection.vendor not in _STATEMENTS:
            return [
                checks.Error(
                    f"The database store has no statements for {self.connection.vendor!r}.",
                    hint="Point OPTIONS['using'] to a PostgreSQL or SQLite database.",
                    id="django_idempotency.E004",
                )
            ]
        return []

    # Statements.

    @property
    def _sql(self) -> ModuleType:
        vendor = self.connection.vendor
        if vendor not in _STATEMENTS:
            raise StoreError(f"The database store has no statements for {vendor!r}.")
        return _STATEMENTS[vendor]

    def _look(self, record_id: UUID) -> tuple[Record | None, datetime]:
        [row] = self._execute("LOOK", {"id": record_id})
        return record_of(row)

    def _one(self, name: str, parameters: Mapping[str, Any]) -> Row | None:
        rows = self._execute(name, parameters)
        return rows[0] if rows else None

    def _execute(self, name: str, parameters: Mapping[str, Any]) -> list[Row]:
        with self._cursor(name, parameters) as cursor:
            return cursor.fetchall() if cursor.description else []

    @contextmanager
    def _cursor(self, name: str, parameters: Mapping[str, Any]) -> Iterator[Any]:
        """Run a statement; a driver's error becomes a StoreError."""
        connection = self.connection
        foreign = Block.is_foreign(connection)
        if foreign and name in _CLAIMS:
            raise Block.open_error()
        # An owner's write must neither wait for another's transaction nor be part of it, and a
        # renewal not for a connection of the pool, which the work that it is for may have used up.
        beside = foreign or (name == "RENEW" and self._is_pooled)
        if beside:
            connection = connection.copy()
            connection.settings_dict["OPTIONS"].pop("pool", None)
        if connection.vendor == "sqlite":
            parameters = {key: for_sqlite(value) for key, value in parameters.items()}
        try:
            if connection.errors_occurred and not connection.in_atomic_block:
                connection.close_if_unusable_or_obsolete()
            with self._sent(connection, name, parameters) as cursor:
                yield cursor
        except Error as error:
            raise StoreError(
                f"The store could not run its {name} statement on the database "
                f"{self.using!r}: {type(error).__name__}."
            ) from error
        finally:
            if beside:
                connection.close()

    def _sent(
        self, connection: BaseDatabaseWrapper, name: str, parameters: Mapping[str, Any]
    ) -> Any:
        """
        Run a statement and return its cursor; where it is its own transaction, perhaps again.

        If it met a concurrent change under a strict isolation level: then it has done nothing. And
        an owner's write on a connection that was lost, while the work ran say: it succeeds again
        under its own token.
        """
        tries = 1 if connection.in_atomic_block else TRIES
        while True:
            tries -= 1
            cursor = connection.cursor()
            try:
                cursor.execute(getattr(self._sql, name), parameters)
            except (InterfaceError, OperationalError) as error:
                cursor.close()
                lost = connection.vendor != "sqlite" and is_connection_failure(error)
                if lost and tries and name in _OWNERS_WRITES:
                    connection.close()
                elif not tries or not is_serialization_failure(error):
                    raise
            else:
                return cursor

    @property
    def _is_pooled(self) -> bool:
        return bool(self.connection.settings_dict["OPTIONS"].get("pool"))

    def _ending(self, lease: Lease) -> dict[str, Any]:
        alone = not self.connection.in_atomic_block or Block.is_foreign(self.connection)
        return {
            **proof_parameters(lease),
            "retention": lease.request.retention,
            "alone": alone,
        }
