"""Records as items of a DynamoDB table, or of a server that speaks DynamoDB's protocol."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from functools import partial
from itertools import islice
from typing import Any, ClassVar
from uuid import UUID

from django_idempotency import keys
from django_idempotency.claims import ClaimRequest, Decision, Resolution, decide, placeholder
from django_idempotency.exceptions import (
    LeaseLost,
    ResultTooLarge,
    ResultUnavailable,
    StoreError,
)
from django_idempotency.leases import ItemLease, Lease
from django_idempotency.observers import logger
from django_idempotency.records import Filters, Page, Record, State, as_duration
from django_idempotency.stores.base import BaseStore, held_of
from django_idempotency.stores.dynamodb import checks
from django_idempotency.stores.dynamodb.client import Client, ConditionFailed
from django_idempotency.stores.dynamodb.items import (
    Item,
    Names,
    binary,
    claimed_values,
    microseconds,
    number,
    proof_values,
    seconds,
    string,
    whole_seconds,
)
from django_idempotency.stores.dynamodb.overflow import INLINE_BYTES, Overflow
from django_idempotency.stores.dynamodb.table import Table, side_by_side
from django_idempotency.stores.options import clock_of, flag_of, seconds_of, text_of

#: How often a claim looks again after it met a change, before it answers "in progress".
TRIES = 4
#: Items that a page with filters, or a sweep, reads at a time.
READ_AT_ONCE = 1000
_NEVER = number(0)
_END_OF_TIME = number(10**12)


def _utc_now() -> datetime:
    return datetime.now(timezone.utc)


class DynamoDBStore(BaseStore):
    """
    One item per record; each change is one conditional write.

    DynamoDB does not give its time, so the store uses the host's clock, and a lease can be taken
    over only `clock_skew` seconds after its end. `timeout` limits each call, in seconds;
    `ttl=False` is for tables that do not delete expired items by themselves. `attributes` maps
    names of `stores.dynamodb.items.ATTRIBUTES` to those of the table. With `sort_key` all records
    are in the partition `static_partition_key`. `overflow_storage`, an alias of STORAGES, holds the
    results that are too large for an item.
    """

    supports_steps: ClassVar[bool] = True
    # Of an item of 400 KiB: the result of a call that was made is noted beyond the limit.
    steps_bytes: ClassVar[int | None] = 190 * 1024
    checks_server: ClassVar[bool] = True

    def __init__(
        self,
        *,
        table_name: str,
        region_name: str | None = None,
        endpoint_url: str | None = None,
        partition_key: str = "idempotencyKey",
        sort_key: str | None = None,
        static_partition_key: str = "idempotency",
        attributes: Mapping[str, str] | None = None,
        clock_skew: float | timedelta = 5,
        timeout: float | timedelta = 2,
        ttl: bool = True,
        overflow_storage: str | None = None,
        clock: Callable[[], datetime] = _utc_now,
    ) -> None:
        self.names = Names(partition_key, sort_key, static_partition_key, attributes or {})
        client = Client(
            region_name=region_name,
            endpoint_url=endpoint_url,
            timeout=seconds_of("timeout", timeout),
        )
        self.table = Table(text_of("table_name", table_name), self.names, client)
        self.ttl = flag_of("ttl", ttl)
        if overflow_storage is not None:
            text_of("overflow_storage", overflow_storage)
        self.overflow = None if overflow_storage is None else Overflow(overflow_storage)
        self._skew = timedelta(seconds=seconds_of("clock_skew", clock_skew, may_be_zero=True))
        self._clock = clock_of(clock)

    @property
    def native_expiry(self) -> bool:  # type: ignore[override]
        """Whether TTL deletes expired items."""
        return self.ttl

    def _now(self) -> datetime:
        """Return this host's time, after the client is built, because that takes a moment."""
        self.table.client.ready()
        return self._clock()

    # The claim.

    def claim(self, request: ClaimRequest) -> Lease | Record:
        """
        See `BaseStore.claim`: one conditional update, whose failure brings the record.

        An expired record that TTL has not deleted yet takes a second write, which replaces it. So
        does a record with an older fingerprint, or one that is held, which it keeps.
        """
        seen: Record | None = None
        for _ in range(TRIES):
            now = self._now()
            try:
                if seen is not None and seen.expired:
                    return self._claim_expired(request, seen, now)
                return self._claim(request, seen, now)
            except ConditionFailed as failed:
                item = failed.item or self.table.item(request.record_id)
            if item is None:  # deleted between the two
                seen = None
                continue
            seen = self.names.record(item, now, self._skew)
            if seen.token == request.token and seen.state is State.IN_PROGRESS:
                until = seen.lease_until
                return self._lease(request, seen.epoch, now, until, journal=seen.steps)
            decision = decide(seen, request)
            if decision is Decision.REPLAY:
                seen = self._with_result(seen, item)
                if seen.result is None:
                    raise ResultUnavailable
                return seen
            # This attempt has ended it: a claim that is sent again must not win once more.
            ended = seen.token == request.token and not seen.expired
            if decision is not Decision.CLAIM_AGAIN or ended:
                return seen
        return placeholder(request, self._now())

    def _claim(self, request: ClaimRequest, seen: Record | None, now: datetime) -> Lease:
        """Claim a new record, or the one that was seen: with its fingerprint, and held if it is."""
        refuse = request.on_stale == "refuse"
        fingerprint = seen.fingerprint if seen is not None else None
        values = {
            **claimed_values(request, fingerprint or request.fingerprint, now),
            ":clock": number(microseconds(now)),
            ":now": seconds(now),
            ":stale": _NEVER if refuse else seconds(now - self._skew),
            ":resumes": _END_OF_TIME if request.steps else _NEVER,
        }
        statement = "CLAIM_WITHOUT_EXPIRY" if refuse else "CLAIM"
        if not refuse and seen is not None and seen.held and seen.steps is not None:
            statement = "CLAIM_HELD"
            del values[":expiry"]
        answer = self.table.update(statement, request.record_id, values, ReturnValues="ALL_OLD")
        until, replaced = now + request.lease, answer.get("Attributes")
        if not replaced:
            return self._lease(request, microseconds(now) + 1, now, until)
        # What this write has replaced: a note may have come since the last look.
        old = self.names.record(replaced, now, self._skew)
        takeover = old.state is State.IN_PROGRESS
        return self._lease(request, old.epoch + 1, now, until, takeover=takeover, journal=old.steps)

    def _claim_expired(self, request: ClaimRequest, seen: Record, now: datetime) -> Lease:
        epoch = max(microseconds(now), seen.epoch + 1)
        values = {
            ":seenEpoch": number(seen.epoch),
            ":seenToken": string(seen.token),
            ":now": seconds(now),
            ":lapsed": seconds(now - self._skew),
        }
        claimed = {
            **claimed_values(request, request.fingerprint, now),
            ":status": string(State.IN_PROGRESS),
            ":epoch": number(epoch),
            ":attempts": number(1),
            ":createdAt": seconds(now),
            ":updatedAt": seconds(now),
        }
        self.table.put("CLAIM_EXPIRED", request.record_id, claimed, values)
        return self._lease(request, epoch, now, now + request.lease)

    def _lease(
        self,
        request: ClaimRequest,
        epoch: int,
        now: datetime,
        until: datetime | None,
        *,
        takeover: bool = False,
        journal: bytes | None = None,
    ) -> Lease:
        lease = ItemLease(
            request, epoch, lease_until=until, claimed_at=now, takeover=takeover, journal=journal
        )
        lease.item_of = partial(self._item_of, lease)
        return lease

    # The owner's writes.

    def complete(self, lease: Lease, result: bytes, *, retention: timedelta) -> datetime:
        """See `BaseStore.complete`; the expiry is a whole second, as TTL wants it."""
        values, expires_at = self._completion(lease, result, retention)
        try:
            self.table.update("COMPLETE", lease.record_id, values)
        except ConditionFailed as failed:
            return self._completed_before(lease, result, failed)
        return expires_at

    def _item_of(self, lease: Lease, result: bytes, retention: timedelta) -> dict[str, Any]:
        """Return `complete` as an ``Update`` of TransactWriteItems of boto3's low-level client."""
        values, _ = self._completion(lease, result, retention)
        return {"Update": self.table.parameters("COMPLETE", lease.record_id, values)}

    def fail(self, lease: Lease, error: str, *, held: bool = False) -> None:
        """See `BaseStore.fail`."""
        values = {":error": string(keys.bounded(error))}
        self._end("FAIL_HELD" if held else "FAIL", lease, values)

    def release(self, lease: Lease) -> None:
        """See `BaseStore.release`."""
        self._end("RELEASE", lease, {})

    def note(self, lease: Lease, entry: bytes, *, duration: timedelta, held: bool) -> None:
        """See `BaseStore.note`."""
        now = self._now()
        values = {
            **proof_values(lease),
            ":entry": {"L": [binary(entry)]},
            ":lockExpiry": seconds(now + as_duration(duration)),
        }
        if not held:
            values[":expiry"] = seconds(whole_seconds(now + lease.request.noted_lifetime))
        try:
            self.table.update("NOTE_HELD" if held else "NOTE", lease.record_id, values)
        except ConditionFailed as failed:
            item = failed.item or self.table.item(lease.record_id)
            raise LeaseLost(gone=item is None) from None

    def renew(self, leases: Iterable[Lease], duration: timedelta) -> set[Lease]:
        """
        See `BaseStore.renew`: one write for each, side by side.

        Leases whose write could not be sent count as held; StoreError if none could be sent.
        """
        until = seconds(self._now() + as_duration(duration))

        def renew(lease: Lease) -> bool | StoreError:
            try:
                self.table.update(
                    "RENEW", lease.record_id, {**proof_values(lease), ":lockExpiry": until}
                )
            except ConditionFailed:
                return False
            except StoreError as error:
                return error
            return True

        leases = list(leases)
        return held_of(leases, side_by_side(renew, leases))

    def _completion(
        self, lease: Lease, result: bytes, retention: timedelta
    ) -> tuple[dict[str, Any], datetime]:
        now = self._now()
        expires_at = whole_seconds(now + as_duration(retention))
        values = {
            **proof_values(lease),
            ":responsePayload": self._kept(lease.record_id, lease.token, result),
            ":expiry": seconds(expires_at),
            ":now": seconds(now),
        }
        return values, expires_at

    def _kept(self, record_id: UUID, token: UUID, result: bytes) -> dict[str, Any]:
        """Return the value that keeps a result: its bytes, or the name and hash of its object."""
        if len(result) <= INLINE_BYTES:
            return binary(result)
        if self.overflow is None:
            raise ResultTooLarge(
                f"The result has {len(result)} bytes, and an item of DynamoDB can hold "
                f"{INLINE_BYTES}; OPTIONS['overflow_storage'] names a storage for such results."
            )
        name, digest = self.overflow.write(record_id, token, result)
        return {"M": {"name": string(name), "sha256": binary(digest)}}

    def _completed_before(self, lease: Lease, result: bytes, failed: ConditionFailed) -> datetime:
        """
        Return when the record expires, if this attempt has completed it; else raise LeaseLost.

        An earlier send, or `transact_item`, has completed it then, the latter maybe with another
        result.
        """
        item = failed.item or self.table.item(lease.record_id)
        if item is None:
            raise LeaseLost(gone=True)
        record = self.names.record(item, self._now(), self._skew)
        mine = (record.epoch, record.token) == (lease.fencing_token, lease.token)
        if not mine or record.state is not State.COMPLETED or record.expires_at is None:
            raise LeaseLost
        overflow = self.names.overflow(item)
        if overflow is not None and overflow[1] == hashlib.sha256(result).digest():
            return record.expires_at
        with suppress(StoreError):  # it is completed, whether its storage answers or not
            stored = self._with_result(record, item)
            if stored.result not in (None, result):
                lease.completed_before = stored
        return record.expires_at

    def _end(self, statement: str, lease: Lease, values: dict[str, Any]) -> None:
        now = self._now()
        values = {**proof_values(lease), **values, ":now": seconds(now)}
        if statement != "FAIL_HELD":
            values[":expiry"] = seconds(whole_seconds(now + lease.request.retention))
        try:
            self.table.update(statement, lease.record_id, values)
        except ConditionFailed:
            return  # without effect once the proof is lost

    # Reading, resolving and sweeping.

    def get(self, record_id: UUID) -> Record | None:
        """See `BaseStore.get`; without a result that is gone from its storage, or was altered."""
        item = self.table.item(record_id)
        if item is None:
            return None
        return self._with_result(self.names.record(item, self._now(), self._skew), item)

    def peek(self, record_ids: Iterable[UUID]) -> dict[UUID, Record]:
        """See `BaseStore.peek`: 100 items a call, without results of the storage."""
        now = self._now()
        records = [
            self.names.record(item, now, self._skew) for item in self.table.items(record_ids)
        ]
        return {record.record_id: record for record in records}

    def look_on(
        self, filters: Filters, cursor: str | None, limit: int, most: int, results: bool
    ) -> tuple[Page, int]:
        """See `BaseStore.look_on`: in no order, and one read."""
        if filters.ids is not None:
            return self.look_up(filters, cursor, limit)
        at_once = limit if filters == Filters() else max(limit, READ_AT_ONCE)
        items, last = self.table.read(self._after(cursor), min(most, at_once))
        damaged: list[str] = []
        matching = self._records(items, damaged, filters, results)
        found = tuple(islice(matching, limit + 1))
        cursor = None if last is None else str(self.names.record_id(last))
        if len(found) > limit:
            found, cursor = found[:limit], str(found[limit - 1].record_id)
        return Page(found, cursor, tuple(damaged)), len(items)

    def _records(
        self,
        items: list[Item],
        damaged: list[str],
        filters: Filters | None = None,
        results: bool = False,
    ) -> Iterator[Record]:
        """Yield those that match; one that cannot be read is logged and noted in `damaged`."""
        now = self._now()
        for item in items:
            try:
                record = self.names.record(item, now, self._skew)
                if filters is None or filters.match(record):
                    yield self._with_result(record, item) if results else record
            except StoreError as error:
                damaged.append(name := self._name_of(item))
                # Without a traceback: its cause would quote the record (R79).
                logger.error(
                    "Record %s of the table %s cannot be shown. %s", name, self.table.name, error
                )

    def _name_of(self, item: Item) -> str:
        try:
            return keys.short(self.names.record_id(item))
        except StoreError:
            return "without an id"

    def _after(self, cursor: str | None) -> Item | None:
        try:
            return None if cursor is None else self.names.key(UUID(cursor))
        except ValueError as error:
            raise ValueError("The DynamoDB store did not make this cursor.") from error

    def resolve(self, record_id: UUID, resolution: Resolution) -> bool:
        """See `BaseStore.resolve`; False, too, if a note comes after the look."""
        action, state = resolution.action, resolution.state
        if action != "expire" and state not in (State.IN_PROGRESS, State.FAILED):
            return False
        is_any = action != "resume" and resolution.noted is None
        now, token = self._now(), keys.new_token()
        seen = None if is_any else self.table.item(record_id)
        steps = None if seen is None else self.names.record(seen, now, self._skew).steps
        if not resolution.saw(steps):
            return False
        lapsed = seconds(now - self._skew)
        # An expiry is a whole second; this one is rounded down, so that it is over now.
        expires_at = now + resolution.retention
        if action == "expire":
            expires_at = now.replace(microsecond=0)
        values: dict[str, Any] = {
            ":seenEpoch": number(resolution.epoch),
            ":seenStatus": string(state),
            ":epoch": number(resolution.epoch + 1),
            ":token": string(token),
            ":now": seconds(now),
            ":lapsed": lapsed,
            ":over": _END_OF_TIME if resolution.force else lapsed,
            ":expiry": seconds(whole_seconds(expires_at)),
            # Under one epoch the journal only grows: with so many entries it is the one just read.
            ":noted": number(len(seen[self.names.of["steps"]]["L"]) if seen and steps else 0),
            ":withoutSteps": _NEVER if steps is None else _END_OF_TIME,
            ":anySteps": _NEVER if is_any else _END_OF_TIME,
        }
        statement = f"RESOLVE_{action.upper()}"
        if action == "resume" and steps is None:
            statement += "_WITHOUT_STEPS"
        elif action == "resume":
            values[":entry"] = {"L": [binary(resolution.entry)] if resolution.entry else []}
            if resolution.holds(steps):
                statement += "_HELD"
                del values[":expiry"]
        elif resolution.result is not None:
            values[":responsePayload"] = self._kept(record_id, token, resolution.result)
        elif action == "expire" and state is State.IN_PROGRESS:
            statement += "_STALE"
        try:
            self.table.update(statement, record_id, values)
        except ConditionFailed as failed:
            item = failed.item or self.table.item(record_id)
            # True for a write that was sent again, and meets itself.
            return item is not None and self.names.record(item, now, self._skew).token == token
        return True

    def erase(self, record_id: UUID, *, force: bool = False) -> bool:
        """
        See `BaseStore.erase`.

        The objects of the overflow storage go first: without its item nothing refers to them. They
        go again after it, because an attempt may have written one in between.
        """
        lapsed = seconds(self._now() - self._skew)
        item = self.table.item(record_id)
        if item is not None and not force:
            record = self.names.record(item, self._now(), self._skew)
            if record.live:
                return False
        self._erase_objects(record_id)
        try:
            self.table.delete("ERASE", record_id, {":over": _END_OF_TIME if force else lapsed})
        except ConditionFailed:  # claimed meanwhile
            return False
        self._erase_objects(record_id)
        return True

    def _erase_objects(self, record_id: UUID) -> None:
        if self.overflow is not None:
            self.overflow.erase(record_id)

    def sweep(self, *, limit: int = 5000) -> int:
        """
        See `BaseStore.sweep`; nothing to do where TTL is on.

        Each batch reads the table from its start until it has deleted `limit` items or is at the
        end. So the last batch reads the whole table.
        """
        if self.ttl:
            return 0
        deleted = 0
        for expired in self._expired():
            deleted += sum(side_by_side(self._delete_expired, expired[: limit - deleted]))
            if deleted >= limit:
                break
        return deleted

    def count_expired(self, *, limit: int | None = None) -> int:
        """See `BaseStore.count_expired`; reads the table."""
        count = 0
        for expired in self._expired():
            count += len(expired)
            if limit is not None and count >= limit:
                break
        return count

    def _expired(self) -> Iterator[list[UUID]]:
        """Read the table in steps; yield the ids of the expired records of each."""
        start: Item | None = None
        while True:
            items, start = self.table.read(start, READ_AT_ONCE)
            yield [record.record_id for record in self._records(items, []) if record.expired]
            if start is None:
                return

    def _delete_expired(self, record_id: UUID) -> bool:
        now = self._now()
        values = {":now": seconds(now), ":lapsed": seconds(now - self._skew)}
        try:
            self.table.delete("SWEEP", record_id, values)
        except ConditionFailed:  # claimed meanwhile, or deleted by another sweep
            return False
        return True

    def check(self) -> list[Any]:
        """See `BaseStore.check`: what `checks.problems` finds."""
        return list(checks.problems(self.table, ttl=self.ttl, overflow=self.overflow))

    def _with_result(self, record: Record, item: Item) -> Record:
        """
        Return the record with its result, or with None if the result is gone from its storage or
        altered.

        Raises StoreError without a storage, for a storage that does not answer, and for a damaged
        item.
        """
        if record.state is not State.COMPLETED or record.expired:
            return record
        overflow = self.names.overflow(item)
        if overflow is None:
            if record.result is None:
                raise StoreError(
                    f"The item of record {keys.short(record.record_id)} is damaged: no result."
                )
            return record
        if self.overflow is None:
            raise StoreError(
                f"The result of record {keys.short(record.record_id)} is in a storage, and this "
                f"store has no OPTIONS['overflow_storage']."
            )
        return replace(record, result=self.overflow.read(record.record_id, *overflow))
