"""Records in a table of the project's own database: PostgreSQL, SQLite or MariaDB."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any, ClassVar
from uuid import UUID

from django.core import checks
from django.db import Error, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from django_idempotency import keys
from django_idempotency.claims import (
    ClaimAgain,
    ClaimRequest,
    Decision,
    Resolution,
    decide,
    placeholder,
)
from django_idempotency.exceptions import LeaseLost, StoreError, TransactionOpen
from django_idempotency.exceptions.base import SessionLost
from django_idempotency.leases import Lease
from django_idempotency.observers import logger
from django_idempotency.policy import Policy
from django_idempotency.records import Record, State, as_duration
from django_idempotency.stores.database.browsing import Browsing
from django_idempotency.stores.database.checks import misfits, problems
from django_idempotency.stores.database.dialect import READ_COMMITTED
from django_idempotency.stores.database.places import is_one_table
from django_idempotency.stores.database.rows import (
    claim_parameters,
    is_takeover,
    proof_parameters,
    record_of,
    seen_parameters,
    utc,
    uuid_of,
)
from django_idempotency.stores.database.schemas import in_schema
from django_idempotency.stores.database.sweeping import Sweeping
from django_idempotency.transactions.block import Block
from django_idempotency.transactions.errors import (
    is_duplicate,
    is_held,
    is_newer,
    is_serialization_failure,
)
from django_idempotency.transactions.state import (
    commits_alone,
    is_doomed,
    is_lost,
    is_replaced,
    transaction_around,
)

#: How often a claim looks again after it lost a race, before it answers "in progress".
TRIES = 3

#: Seconds between two tries of a claim at an expired row that another session holds.
_SWEPT_WITHIN = 0.01


class DatabaseStore(Browsing, Sweeping):
    """
    Records in the table of `IdempotencyRecord`, always on the write connection of one alias.

    Outside a transaction each operation commits by itself; inside one it is part of it, and the end
    of an attempt in mode ``separate`` is then a StoreError.
    """

    supports_join: ClassVar[bool] = True
    supports_steps: ClassVar[bool] = True

    _told_of_isolation = False

    @property
    def looks_before_single(self) -> bool:  # type: ignore[override]
        """So it is where a transaction waits for other writers."""
        return self.dialect.writers_queue and not connections[self.using].in_atomic_block

    # The claim.

    def claim(self, request: ClaimRequest) -> Lease | Record:
        """See `BaseStore.claim`; ``single`` is claimed inside `atomic`."""
        if request.transaction == "single":
            return self._claim_single(request)
        return self._claim_row(request)

    def _claim_row(self, request: ClaimRequest) -> Lease | Record:
        """Claim by writing a row that others can see, or will see after the commit."""
        swept = True
        for _ in range(self.dialect.ROUNDS):
            claimed = self._race_for_row(request)
            if isinstance(claimed, Lease) or not claimed.expired:
                return claimed
            held = claimed
            if not swept:
                break
            swept = self._is_sweeping()  # if not, it may have ended just now: one more try
            if swept:
                time.sleep(_SWEPT_WITHIN)  # a sweep is no reason for a 409 (R76)
        return placeholder(request, held.now, held.place)

    def _is_sweeping(self) -> bool:
        """Return whether a sweep may hold an expired row; True where no query can tell."""
        if self.dialect.SWEEPING is None:
            return True
        [(sweeping,)] = self._execute("SWEEPING", {})
        return bool(sweeping)

    def _race_for_row(self, request: ClaimRequest) -> Lease | Record:
        """Try a few times; return an expired record if another session holds its row."""
        record: Record | None = None
        now: datetime | None = None
        place: str | None = None
        connection = connections[self.using]
        # Where writers queue, the first statement of a transaction has to be a write.
        must_write = self.dialect.writers_queue and connection.in_atomic_block
        look_first = self.dialect.looks_first and not must_write
        suffix = "_ASYNC" if self.async_claim and self._may_lose(request) else ""
        claim, look, reclaim = f"CLAIM{suffix}", "LOOK", f"RECLAIM{suffix}"
        for _ in range(TRIES):
            try:
                seen: Record | None = None
                if not look_first and (
                    rows := self._execute(claim, claim_parameters(request), connection)
                ):
                    *columns, epoch, _, _, _, place = rows[0]
                    if epoch is not None:
                        return self._lease(request, rows[0][-5:], connection)
                    seen, now = record_of(columns, place)  # of CLAIM_OR_LOOK
                look_first = False
                if seen is None:
                    seen, now, place = self._look(request.record_id, look)
                if (record := seen) is None:
                    continue
                if record.state is State.IN_PROGRESS and record.token == request.token:
                    return self._lease_of_resent(request, record, connection)
                if decide(record, request) is not Decision.CLAIM_AGAIN:
                    return record
                parameters = claim_parameters(request) | seen_parameters(record)
                if rows := self._execute(reclaim, parameters, connection):
                    journal, *row = rows[0]  # of the version that it has changed, not of the look
                    takeover = is_takeover(record)
                    return self._lease(request, row, connection, takeover, journal)
            except StoreError as error:
                if is_held(error):
                    break
                look_first, within = is_duplicate(error), connection.in_atomic_block
                if look_first and within:
                    look = "LOOK_AGAIN"
                elif not look_first and not is_serialization_failure(error):
                    raise
                elif within:
                    raise ClaimAgain from error
        if record is not None and record.expired:
            return record
        return placeholder(request, now or datetime.now(timezone.utc), place)

    def _may_lose(self, request: ClaimRequest) -> bool:
        """
        Return whether a crash of the server may lose the claim, and nothing else with it.

        The completion of joined work is then refused, and the work rolls back. With
        ``on_stale="refuse"`` an operator is to see each attempt that did not end. In a transaction
        of the caller's it is the caller's COMMIT that would not wait for the disk.
        """
        joined = request.transaction == "joined" and request.on_stale == "take_over"
        can = self.dialect.CLAIM_ASYNC is not None
        return can and joined and commits_alone(connections[self.using])

    def _claim_single(self, request: ClaimRequest) -> Lease | Record:
        """Claim by the lock that ends with the transaction; a row is written at the end."""
        connection = connections[self.using]
        if not connection.in_atomic_block:
            raise TransactionOpen("A claim in mode 'single' belongs inside the store's atomic().")
        block = Block.on(connection)
        outer = [] if block is None else [*block.leases(request.record_id)]
        if outer:
            # The lock is re-entrant within a session, so it would not stop a nested attempt.
            _, now, place = self._look(request.record_id)
            if any(is_one_table(lease.place, place) for lease in outer):
                return placeholder(request, now, place)
        claimed = (
            self._claim_locked(request, block, connection)
            if self.dialect.takes_advisory_lock
            else self._claim_row(request)
        )
        if block is not None and isinstance(claimed, Lease):
            block.held = claimed
        return claimed

    def _claim_locked(
        self, request: ClaimRequest, block: Block | None, connection: BaseDatabaseWrapper
    ) -> Lease | Record:
        rows = self._execute("SINGLE_LOCK", {"id": request.record_id}, connection)
        *columns, place, locked, isolation = rows[0]
        record, now = record_of(columns, place)
        if locked is None and record is not None:
            return record
        if not locked:
            if record is not None and decide(record, request) is not Decision.CLAIM_AGAIN:
                return record
            return placeholder(request, now, place)
        if isolation != READ_COMMITTED:
            # The snapshot is older than the lock and stays so: only a write can tell.
            return self._claim_row(request)
        if len(rows) > 1:  # LOOK_AGAIN was sent along, and SAVEPOINT
            *columns, place = rows[1]
            record, now = record_of(columns, place)
            if block is not None:
                block.has_savepoint = request.opens_work
        else:
            record, now, place = self._look(request.record_id, "LOOK_AGAIN")
        if record is not None and decide(record, request) is not Decision.CLAIM_AGAIN:
            return record
        epoch = max(int(now.timestamp() * 1_000_000), record.epoch + 1 if record else 0)
        return Lease(
            request,
            epoch,
            claimed_at=now,
            takeover=is_takeover(record),
            renewable=False,
            seen=record,
            written=False,
            place=place,
        )

    def _lease(
        self,
        request: ClaimRequest,
        row: Sequence[Any],
        connection: BaseDatabaseWrapper,
        takeover: bool = False,
        journal: Any = None,
    ) -> Lease:
        epoch, lease_until, now, isolation, place = row
        return Lease(
            request,
            epoch,
            lease_until=utc(lease_until),
            claimed_at=utc(now),
            takeover=takeover,
            renewable=self._renewable(request, isolation, connection),
            place=place,
            journal=None if journal is None else bytes(journal),
        )

    def _lease_of_resent(
        self, request: ClaimRequest, record: Record, connection: BaseDatabaseWrapper
    ) -> Lease:
        """Return the lease of a claim that had already been won under its token."""
        separate = request.transaction == "separate"
        return Lease(
            request,
            record.epoch,
            lease_until=record.lease_until,
            claimed_at=record.updated_at,
            renewable=separate and self._renewable(request, None, connection),
            place=record.place,
            journal=record.steps,
        )

    def _renewable(
        self, request: ClaimRequest, isolation: str | None, connection: BaseDatabaseWrapper
    ) -> bool:
        """Whether another connection can see the row, and may write it while the work runs."""
        if request.transaction == "single" or connection.in_atomic_block:
            return False
        if request.transaction == "separate" and not request.steps:
            return True
        # Where writers queue, the transaction of joined work keeps the other writers out.
        dialect, options = self.dialect, connection.settings_dict["OPTIONS"]
        if dialect.writers_queue:
            return request.steps
        return dialect.may_renew_joined(options, self._execute, isolation)

    # The owner's writes.

    def complete(self, lease: Lease, result: bytes, *, retention: timedelta) -> datetime:
        """See `BaseStore.complete`."""
        retention = as_duration(retention)
        if not lease.written:
            return self._write_single(lease, State.COMPLETED, retention, result=result)
        parameters = {**proof_parameters(lease), "result": result, "retention": retention}
        try:
            rows = self._write("COMPLETE", parameters, lease)
        except StoreError as error:
            if connections[self.using].in_atomic_block and lease.renewable and is_newer(error):
                self._tell_of_isolation(lease)
            raise
        return utc(rows[0][0]) if rows else self._written_before(lease, State.COMPLETED)

    def _tell_of_isolation(self, lease: Lease) -> None:
        """Tell, once in a process, that the work has raised the level of its own transaction."""
        if self._told_of_isolation:
            return
        self._told_of_isolation = True
        if lease.request.steps:
            logger.warning(
                "Record %s: a step could not be noted, since its work runs above READ COMMITTED, "
                "where a renewal or another note makes its own fail. Give the work a lease that "
                "covers its longest step, with renew=False.",
                keys.short(lease.record_id),
            )
        else:
            logger.warning(
                "Record %s could not be completed: its work runs above READ COMMITTED, where a "
                'renewal makes the completion fail. Give it transaction="single", a lease that '
                "covers it, or renew=False.",
                keys.short(lease.record_id),
            )

    def fail(self, lease: Lease, error: str, *, held: bool = False) -> bool:
        """See `BaseStore.fail`."""
        return self._end(lease, State.FAILED, "FAIL", error=keys.bounded(error), held=held)

    def release(self, lease: Lease) -> bool:
        """See `BaseStore.release`."""
        return self._end(lease, State.RELEASED, "RELEASE", error="")

    def note(self, lease: Lease, entry: bytes, *, duration: timedelta, held: bool) -> None:
        """See `BaseStore.note`."""
        lifetime = lease.request.noted_lifetime
        parameters = {
            **proof_parameters(lease),
            "entry": entry,
            "duration": as_duration(duration),
            "lifetime": lifetime,
            "half": lifetime / 2,
            "held": held,
        }
        # In a step's transaction it is meant to be part of that.
        within = connections[self.using].in_atomic_block
        try:
            written = (
                self._execute("NOTE", parameters, counts=True, place=lease.place)
                if within
                else self._write("NOTE", parameters, lease, counts=True)
            )
        except StoreError as error:
            if within and lease.renewable and is_newer(error):
                self._tell_of_isolation(lease)
            raise
        if not written:
            raise LeaseLost(gone=self._look(lease.record_id, place=lease.place)[0] is None)

    def _end(
        self, lease: Lease, state: State, name: str, *, error: str, held: bool = False
    ) -> bool:
        """End the lease, and return whether its proof stood."""
        connection = connections[self.using]
        if lease.written:
            alone = not connection.in_atomic_block or Block.is_foreign(connection)
            retention = lease.request.retention
            parameters = {"retention": retention, "alone": alone, "error": error, "held": held}
            parameters |= proof_parameters(lease)
            return bool(self._write(name, parameters, lease, counts=True) == 1)
        if not connection.in_atomic_block:  # `single`: there is no row to end
            return False
        try:
            self._write_single(lease, state, lease.request.retention, error=error)
        except LeaseLost:
            return False
        return True

    def _write(
        self, name: str, parameters: Mapping[str, Any], lease: Lease, *, counts: bool = False
    ) -> Any:
        """
        Send a statement of a lease's owner, and return its rows, or how many they are.

        In mode ``separate`` it commits by itself. Where the work has turned autocommit off, and has
        committed all that it did, it is committed here. Raises StoreError where it is part of a
        transaction that the work has left open, and that Django rolls back at the end of a request.
        """
        connection, around = connections[self.using], "none"
        if lease.request.transaction == "separate":
            foreign = connection.in_atomic_block and Block.is_foreign(connection)
            around = "none" if foreign else transaction_around(connection)
        if around == "none":
            return self._execute(name, parameters, connection, counts=counts, place=lease.place)
        try:
            # Never again on another connection: this one's may take the work with it.
            written = self._send(connection, name, parameters, counts, lease.place, tries=1)
            if around == "idle":
                connection.commit()
        except Error as error:
            if around == "idle":
                with suppress(Error):
                    connection.rollback()
            raise StoreError(f"The store could not run its {name} statement.") from error
        if written and around == "open":
            raise StoreError(
                f"The work has left a transaction open on the database {self.using!r}, and the "
                "record is part of it."
            )
        return written

    def renew(self, leases: Iterable[Lease], duration: timedelta) -> set[Lease]:
        """
        See `BaseStore.renew`; one round trip for each place. A row that is locked counts as held.

        Each renewal has a connection of its own: the work may use all those of the pool, and a
        server that does not answer must not delay the next renewal.
        """
        duration = as_duration(duration)
        by_place: dict[str | None, list[Lease]] = defaultdict(list)
        for lease in leases:
            by_place[lease.place].append(lease)
        renewed: set[Lease] = set()
        with self.fresh_connection():
            for place, group in by_place.items():
                execute = partial(self._execute, place=place)
                renewed |= self.dialect.renew(execute, group, duration)
        return renewed

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
            **proof_parameters(lease),
            "state": state.value,
            "fingerprint": None if state is State.RELEASED else fingerprint,
            "claimed_at": lease.claimed_at,
            "retention": retention,
            "result": result,
            "error": error,
        }
        execute = partial(self._execute, place=lease.place)
        if seen is not None:
            rows = execute("SINGLE_UPDATE", {**parameters, **seen_parameters(seen)})
            if rows:
                return utc(rows[0][0])
        # The claim saw no record, or a sweep has deleted it meanwhile.
        if rows := execute("SINGLE_INSERT", parameters):
            return utc(rows[0][0])
        return self._written_before(lease, state)

    def _written_before(self, lease: Lease, state: State) -> datetime:
        """Return when the record expires, if this attempt has ended it; else raise LeaseLost."""
        record, _, _ = self._look(lease.record_id, place=lease.place)
        if record is None:
            raise LeaseLost(gone=True)
        if record.expires_at is None or record.state is not state:
            raise LeaseLost
        if (record.epoch, record.token) != (lease.fencing_token, lease.token):
            raise LeaseLost
        return record.expires_at

    # Reading and deciding.

    def get(self, record_id: UUID) -> Record | None:
        """See `BaseStore.get`."""
        return self._look(record_id)[0]

    def peek(self, record_ids: Iterable[UUID]) -> dict[UUID, Record]:
        """See `BaseStore.peek`; one statement."""
        found: dict[UUID, Record] = {}
        for *columns, wanted, held in self._execute("PEEK", {"ids": list(record_ids)}):
            record, now = record_of(columns)
            record_id = uuid_of(wanted)
            if held:
                record = placeholder(ClaimRequest(record_id, scope="", key=""), now)
            if record is not None:
                found[record_id] = record
        return found

    def resolve(self, record_id: UUID, resolution: Resolution) -> bool:
        """See `BaseStore.resolve`; ``"resume"`` looks first, and asks for that journal."""
        steps, noted = None, resolution.noted
        if resolution.action == "resume":
            seen = self.get(record_id)
            if seen is None or not resolution.saw(seen.steps):
                return False
            steps, noted = seen.steps, len(seen.steps or b"")
        parameters = {
            "id": record_id,
            "action": resolution.action,
            "seen_epoch": resolution.epoch,
            "seen_state": resolution.state.value,
            "force": resolution.force,
            "result": resolution.result,
            "retention": resolution.retention,
            "entry": resolution.entry,
            "held": resolution.holds(steps),
            # The journal of an epoch only grows: of this size it is the one that was seen.
            "seen_size": noted,
            "token": keys.new_token(),
        }
        try:
            return bool(self._count("RESOLVE", parameters))
        except StoreError as error:
            if is_held(error):
                return False
            raise

    def erase(self, record_id: UUID, *, force: bool = False) -> bool:
        """See `BaseStore.erase`."""
        try:
            if self._count("ERASE", {"id": record_id, "force": force}):
                return True
        except StoreError as error:
            if is_held(error):
                return False
            raise
        return self.get(record_id) is None

    # The transaction of the work.

    def atomic(self, *, committed: Callable[[], None] | None = None) -> Block:
        """
        Open the transaction, or a savepoint, in which work and record commit together.

        A connection that is lost at its BEGIN or COMMIT is a StoreError; what the server says
        against a COMMIT (a deferred constraint, a serialization failure) passes on unchanged.
        """
        return Block(self.using, committed)

    def rolled_back(self) -> bool:
        """
        See `BaseStore.rolled_back`; where the session is lost, the completion will tell.

        Raises SessionLost where it would not: the work has connected anew, and the completion would
        commit without what it did before.
        """
        connection = connections[self.using]
        if not is_doomed(connection):
            return False
        if is_replaced(connection):
            raise SessionLost("The session in which the work has begun is lost.")
        return not is_lost(connection)

    def rollback_is_deliberate(self) -> bool:
        """See `BaseStore.rollback_is_deliberate`."""
        block = Block.on(connections[self.using])
        return block is not None and block.watch.deliberate

    def fence(self, lease: Lease) -> None:
        """See `BaseStore.fence`: on SQLite the write that opens the work's transaction."""
        if self.dialect.FENCE is None:
            return
        if self._execute("FENCE", proof_parameters(lease), counts=True) != 1:
            raise LeaseLost(gone=self.get(lease.record_id) is None)

    def in_transaction(self) -> bool:
        """See `BaseStore.in_transaction`."""
        return connections[self.using].in_atomic_block

    def idle(self) -> None:
        """Close this thread's connections; one in a block that was left open, too."""
        connections.close_all()

    @property
    def has_schemas(self) -> bool:  # type: ignore[override]
        """Whether this is PostgreSQL."""
        return self.dialect.SESSION is not None

    def in_schema(self, schema: str) -> AbstractContextManager[None]:
        """See `BaseStore.in_schema`; the ORM's statements on its alias are there, too."""
        return in_schema(self.using, schema) if self.has_schemas else super().in_schema(schema)

    def check_database(self, policy: Policy) -> list[checks.CheckMessage]:
        """See `BaseStore.check_database`."""
        return list(problems(self, policy))

    def check(self) -> list[checks.CheckMessage]:
        """See `BaseStore.check`."""
        return list(misfits(self))
