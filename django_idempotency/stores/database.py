"""Records in a table of the project's own database: PostgreSQL or SQLite."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta, timezone
from types import ModuleType, TracebackType
from typing import Any, ClassVar
from uuid import UUID
from weakref import WeakKeyDictionary

from django.core import checks
from django.db import DatabaseError, Error, InterfaceError, OperationalError, connections
from django.db import transaction as django_transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from django_idempotency import keys
from django_idempotency.attempts import Attempt, entered
from django_idempotency.engine import Decision, decide
from django_idempotency.exceptions import LeaseLost, StoreError, TransactionOpen
from django_idempotency.records import ClaimRequest, Lease, Proof, Record, State
from django_idempotency.stores import sql_postgresql, sql_sqlite
from django_idempotency.stores.base import BaseStore, ClaimAgain

__all__ = ["DatabaseStore"]

Row = tuple[Any, ...]

#: How often a claim looks again after it lost a race, before it answers "in progress".
TRIES = 3

_STATEMENTS: dict[str, ModuleType] = {"postgresql": sql_postgresql, "sqlite": sql_sqlite}
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
                if not look_first and (row := self._one("CLAIM", _claim_parameters(request))):
                    return self._lease(request, row, None)
                look_first = False
                record, now = self._look(request.record_id)
                if record is None:
                    continue
                if record.token == request.token and record.state is State.IN_PROGRESS:
                    return _resent(request, record)
                if decide(record, request) is not Decision.CLAIM_AGAIN:
                    return record
                parameters = _claim_parameters(request) | _seen_parameters(record)
                if row := self._one("RECLAIM", parameters):
                    return self._lease(request, row, record)
            except StoreError as error:
                if not _is_serialization_failure(error):
                    raise
                if self.connection.in_atomic_block:
                    raise ClaimAgain from error
        return _in_flight(request, now or datetime.now(timezone.utc))

    def _claim_single(self, request: ClaimRequest) -> Lease | Record:
        """Claim by the lock that ends with the transaction; a row is written at the end."""
        if not self.connection.in_atomic_block:
            raise TransactionOpen("A claim in mode 'single' belongs inside the store's atomic().")
        block = _Block.on(self.connection)
        if block is not None and block.holds(request.record_id):
            # The lock is re-entrant within a session, so it would not stop a nested attempt.
            return _in_flight(request, self._look(request.record_id)[1])
        if self.connection.vendor == "sqlite":
            claimed = self._claim_row(request)
        else:
            claimed = self._claim_locked(request)
        if block is not None and isinstance(claimed, Lease):
            block.held = request.record_id
        return claimed

    def _claim_locked(self, request: ClaimRequest) -> Lease | Record:
        [(*columns, locked, isolation)] = self._execute("SINGLE_LOCK", {"id": request.record_id})
        record, now = _record(columns)
        if locked is None and record is not None:
            return record
        if not locked:
            if record is not None and decide(record, request) is not Decision.CLAIM_AGAIN:
                return record
            return _in_flight(request, now)
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
            takeover=_is_takeover(record),
            renewable=False,
            seen=record,
            written=False,
        )

    def _lease(self, request: ClaimRequest, row: Row, seen: Record | None) -> Lease:
        epoch, lease_until, now, isolation = row
        return Lease(
            Proof(request.record_id, epoch, request.token),
            request,
            lease_until=_utc(lease_until),
            claimed_at=_utc(now),
            takeover=_is_takeover(seen),
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
        return getattr(option, "value", option) == _PSYCOPG_READ_COMMITTED

    # The owner's writes.

    def complete(self, lease: Lease, result: bytes, *, retention: timedelta) -> datetime:
        """See `BaseStore.complete`."""
        if not lease.written:
            return self._write_single(lease, State.COMPLETED, retention, result=result)
        parameters = {**_proof_parameters(lease), "result": result, "retention": retention}
        if row := self._one("COMPLETE", parameters):
            return _utc(row[0])
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
        return {by_token[_uuid(row[0])] for row in rows}

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
            **_claim_parameters(request),
            "epoch": lease.fencing_token,
            "state": state.value,
            "fingerprint": None if state is State.RELEASED else fingerprint,
            "claimed_at": lease.claimed_at,
            "retention": retention,
            "result": result,
            "error": error,
        }
        if seen is not None:
            row = self._one("SINGLE_UPDATE", {**parameters, **_seen_parameters(seen)})
            if row:
                return _utc(row[0])
        # Nothing was seen, or what was seen has been swept meanwhile.
        if row := self._one("SINGLE_INSERT", parameters):
            return _utc(row[0])
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

    def atomic(self) -> _Block:
        """
        Open the transaction, or a savepoint, in which work and record commit together.

        A connection that is lost at its BEGIN or COMMIT is a StoreError; what the server says
        against a COMMIT (a deferred constraint, a serialization failure) passes on unchanged.
        """
        return _Block(self.using)

    def rolled_back(self) -> bool:
        """See `BaseStore.rolled_back`."""
        return self.connection.in_atomic_block and self.connection.needs_rollback

    def committed(self, callback: Callable[[], None]) -> None:
        """See `BaseStore.committed`."""
        django_transaction.on_commit(callback, using=self.using)

    def fence(self, lease: Lease) -> None:
        """See `BaseStore.fence`: on SQLite the write that opens the work's transaction."""
        if self._sql.FENCE is None or lease.request.transaction != "joined":
            return
        with self._cursor("FENCE", _proof_parameters(lease)) as cursor:
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
        return _record(row)

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
        _Block.check(connection)
        if connection.vendor == "sqlite":
            parameters = {key: _for_sqlite(value) for key, value in parameters.items()}
        try:
            if connection.errors_occurred and not connection.in_atomic_block:
                connection.close_if_unusable_or_obsolete()
            with connection.cursor() as cursor:
                cursor.execute(getattr(self._sql, name), parameters)
                yield cursor
        except Error as error:
            raise StoreError(
                f"The store could not run its {name} statement on the database "
                f"{self.using!r}: {type(error).__name__}."
            ) from error

    def _ending(self, lease: Lease) -> dict[str, Any]:
        alone = not self.connection.in_atomic_block
        return {
            **_proof_parameters(lease),
            "retention": lease.request.retention,
            "alone": alone,
        }


class _Block:
    """
    An ``atomic()`` of the store, which knows whose it is.

    Coroutines that share a thread share its connection: the transaction of one must not take in
    the statements of another.
    """

    _open: ClassVar[WeakKeyDictionary[BaseDatabaseWrapper, _Block]] = WeakKeyDictionary()

    def __init__(self, using: str) -> None:
        self.using = using
        #: The record id whose lock this block's transaction took.
        self.held: UUID | None = None
        self.outer: _Block | None = None
        #: The attempt that this block is part of.
        self.owner: Attempt | None = None

    @classmethod
    def on(cls, connection: BaseDatabaseWrapper) -> _Block | None:
        """Return the innermost open block on this connection."""
        return cls._open.get(connection)

    @classmethod
    def check(cls, connection: BaseDatabaseWrapper) -> None:
        """Raise TransactionOpen if the connection is in the transaction of somebody else."""
        block = cls._open.get(connection)
        if block is not None and block.owner is not None and block.owner not in entered():
            raise TransactionOpen(
                "Another attempt's transaction is open on this thread's connection. Await one "
                "attempt after the other, or use transaction='separate'."
            )

    def holds(self, record_id: UUID) -> bool:
        """Whether this block or one around it holds the lock of `record_id`."""
        return self.held == record_id or (self.outer is not None and self.outer.holds(record_id))

    def __enter__(self) -> None:
        connection = connections[self.using]
        self.check(connection)
        self._atomic = django_transaction.atomic(using=self.using)
        try:
            self._atomic.__enter__()
        except (InterfaceError, OperationalError) as error:
            raise StoreError("A transaction could not be begun.") from error
        self.outer = self._open.get(connection)
        self._open[connection] = self
        self.owner = next(reversed(entered()), None)

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        connection = connections[self.using]
        if self.outer is None:
            self._open.pop(connection, None)
        else:
            self._open[connection] = self.outer
        try:
            self._atomic.__exit__(exc_type, exc_value, traceback)
        except (InterfaceError, OperationalError) as error:
            if exc_type is None and _is_connection_failure(error):
                raise StoreError("The connection was lost at the COMMIT.") from error
            raise


# Rows and parameters.


def _record(columns: Collection[Any]) -> tuple[Record | None, datetime]:
    """Return the record of a LOOK, and the store's clock."""
    record_id, scope, key, operation, fingerprint, state, epoch, token, *times_on = columns
    lease_until, created, updated, expires, attempts, result, error, clock = times_on
    now = _utc(clock)
    if record_id is None:
        return None, now
    record = Record(
        record_id=_uuid(record_id),
        scope=scope,
        key=key,
        operation=operation,
        fingerprint=None if fingerprint is None else bytes(fingerprint),
        state=State(state),
        epoch=epoch,
        token=_uuid(token),
        lease_until=None if lease_until is None else _utc(lease_until),
        created_at=_utc(created),
        updated_at=_utc(updated),
        expires_at=None if expires is None else _utc(expires),
        attempts=attempts,
        result=None if result is None else bytes(result),
        error=error,
        now=now,
    )
    return record, now


def _in_flight(request: ClaimRequest, now: datetime) -> Record:
    """Return what is known of an attempt that holds the lock and has written nothing yet."""
    return Record(
        record_id=request.record_id,
        scope=request.scope,
        key=request.key,
        operation="",
        fingerprint=None,
        state=State.IN_PROGRESS,
        epoch=0,
        token=UUID(int=0),
        lease_until=None,
        created_at=now,
        updated_at=now,
        expires_at=None,
        attempts=1,
        result=None,
        error="",
        now=now,
    )


def _resent(request: ClaimRequest, record: Record) -> Lease:
    """Return the lease of a claim that had already been won under its token."""
    return Lease(
        Proof(record.record_id, record.epoch, record.token),
        request,
        lease_until=record.lease_until,
        claimed_at=record.updated_at,
        renewable=request.transaction == "separate",
    )


def _is_takeover(seen: Record | None) -> bool:
    return seen is not None and seen.state is State.IN_PROGRESS and not seen.expired


def _claim_parameters(request: ClaimRequest) -> dict[str, Any]:
    return {
        "id": request.record_id,
        "scope": request.scope,
        "key": request.key,
        "operation": request.operation,
        "fingerprint": request.fingerprint,
        "fingerprints": list(request.fingerprints),
        "token": request.token,
        "lease": request.lease,
        "lifetime": None if request.on_stale == "refuse" else request.lifetime,
        "take_over": request.on_stale == "take_over",
    }


def _seen_parameters(seen: Record) -> dict[str, Any]:
    return {"seen_epoch": seen.epoch, "seen_token": seen.token, "seen_state": seen.state.value}


def _proof_parameters(lease: Lease) -> dict[str, Any]:
    return {"id": lease.record_id, "epoch": lease.fencing_token, "token": lease.token}


def _for_sqlite(value: Any) -> Any:
    """Return `value` as the SQLite statements take it."""
    if isinstance(value, UUID):
        return value.hex
    if isinstance(value, timedelta):
        return f"{value.total_seconds():+.6f} seconds"
    if isinstance(value, list):
        return json.dumps([fingerprint.hex().upper() for fingerprint in value])
    return value


def _utc(value: datetime | str) -> datetime:
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    return value.replace(tzinfo=timezone.utc)


def _uuid(value: UUID | str) -> UUID:
    return value if isinstance(value, UUID) else UUID(value)


def _sqlstate(error: BaseException | None) -> str | None:
    """Return the SQLSTATE that the driver gave, if any (psycopg 3)."""
    while error is not None:
        if state := getattr(error, "sqlstate", None):
            return str(state)
        error = error.__cause__
    return None


def _is_serialization_failure(error: BaseException) -> bool:
    return _sqlstate(error) in ("40001", "40P01")


def _is_connection_failure(error: DatabaseError | InterfaceError) -> bool:
    state = _sqlstate(error)
    return state is None or state.startswith(("08", "57P"))
