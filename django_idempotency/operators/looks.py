"""A bounded look at the newest records of a store, for pages that must never read a whole table."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone, tzinfo
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import Error, connections, transaction
from django.db.models import CharField, Q, QuerySet, Value
from django.utils import timezone as zones

from django_idempotency import keys
from django_idempotency.exceptions import StoreError
from django_idempotency.models import IdempotencyRecord
from django_idempotency.observers import logger
from django_idempotency.records import Filters, Record, State
from django_idempotency.stores.base import BaseStore
from django_idempotency.stores.database import DatabaseStore

__all__ = [
    "INDEXES",
    "MOST",
    "SECONDS",
    "Look",
    "backlog",
    "has_index",
    "look",
    "records_of",
]

#: The most records that one look reads.
MOST = 10_000
#: How long one look may read a store that is no database, whose records come with their results.
SECONDS = 2
#: Records of one `browse`.
_PAGE = 100
#: The names of the indexes that a project may add, by their field (docs/howto/admin).
INDEXES = {"key": "idempotency_key", "operation": "idempotency_operation"}

#: Whether there is an index; one that was never finished is none.
_HAS_INDEX = {
    # By the table: another schema of the search_path may have an index of this name.
    "postgresql": """
SELECT 1 FROM pg_index JOIN pg_class AS named ON named.oid = indexrelid
 WHERE indrelid = to_regclass('idempotency_record') AND named.relname = %s AND indisvalid
""",
    "mysql": """
SELECT 1 FROM information_schema.statistics
 WHERE table_schema = DATABASE() AND table_name = 'idempotency_record' AND index_name = %s
 LIMIT 1
""",
    "sqlite": "SELECT 1 FROM sqlite_master WHERE type = 'index' AND name = %s",
}

#: The database's clock, in microseconds since 1970: it alone tells whether a lease has lapsed.
_NOW = {
    "postgresql": "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint",
    "mysql": "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))",
    "sqlite": "SELECT CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)",
}
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
#: By how much it differs from the clock of this host, and until when that is not asked again.
_ahead: dict[str, tuple[timedelta, float]] = {}

#: What the pages show of a record. Results can be large, and are left out.
_COLUMNS = (
    "id",
    "scope",
    "key",
    "operation",
    "fingerprint",
    "state",
    "epoch",
    "token",
    "lease_until",
    "created_at",
    "updated_at",
    "expires_at",
    "attempts",
    "error",
)
_ID, _EXPIRES_AT = _COLUMNS.index("id"), _COLUMNS.index("expires_at")

Rows = QuerySet[IdempotencyRecord]
Place = tuple[datetime | None, UUID]


@dataclass(frozen=True)
class Look:
    """The records that a look has found, and where the next look begins."""

    records: tuple[Record, ...]
    #: None at the end of the store.
    cursor: str | None = None


def look(
    store: BaseStore,
    filters: Filters,
    *,
    scopes: Collection[str] = (),
    cursor: str | None = None,
    limit: int = _PAGE,
) -> Look:
    """
    Return up to `limit` records, newest first if the store can order.

    A database is read in the order of its index on `expires_at`, `MOST` records at most of those
    that expire and of those that do not, and its records come without results. Another store is
    read for `SECONDS`. `scopes` are those of which a record must have one. Raises StoreError, and
    ValueError for a cursor that is none.
    """
    if isinstance(store, DatabaseStore):
        return _look_at_table(store, filters, scopes, cursor, limit)
    return _look_at_pages(store, filters, scopes, cursor, limit)


def records_of(store: BaseStore, ids: Collection[UUID], limit: int = _PAGE) -> tuple[Record, ...]:
    """Return the records that have these ids; those of a database come without results."""
    some = sorted(ids)[:limit]
    if not isinstance(store, DatabaseStore):
        found = map(store.get, some)
        return tuple(record for record in found if record is not None)
    with _reading(store):
        rows = list(_table(store).filter(pk__in=some).values_list(*_COLUMNS))
    zone, now = _zone(store), _now(store)
    records = (_record(row, zone, now) for row in rows)
    return tuple(record for record in records if record is not None)


def _look_at_pages(
    store: BaseStore, filters: Filters, scopes: Collection[str], cursor: str | None, limit: int
) -> Look:
    found: dict[UUID, Record] = {}
    ends = time.monotonic() + SECONDS
    while True:
        page = store.browse(filters=filters, cursor=cursor, limit=min(_PAGE, limit - len(found)))
        for record in page.records:
            if not scopes or record.scope in scopes:
                found[record.record_id] = record  # Redis may give one twice
        cursor = page.cursor
        if cursor is None or len(found) >= limit or time.monotonic() > ends:
            newest_first = sorted(found.values(), key=lambda it: it.created_at, reverse=True)
            return Look(tuple(newest_first), cursor)


def _look_at_table(
    store: DatabaseStore,
    filters: Filters,
    scopes: Collection[str],
    cursor: str | None,
    limit: int,
) -> Look:
    rows = _table(store)
    if filters.operation is not None and has_index(store, "operation"):
        rows = rows.filter(operation=filters.operation)
    found: list[Record] = []
    zone, now = _zone(store), _now(store)
    wanted = _wanted(store, filters, scopes, now)
    last = None if cursor is None else _place(cursor, zone)
    with _reading(store):
        for part in _parts(store, rows, last):
            end = None
            if wanted:  # the last one that is looked at: what comes before it is a bounded range
                end = part.values_list("expires_at", "pk")[MOST - 1 : MOST].first()
            room = limit - len(found)
            matching = (part if end is None else _until(store, part, end)).filter(wanted)
            columns = list(matching.values_list(*_COLUMNS)[: room + 1])
            for row in columns[:room]:
                last = row[_EXPIRES_AT], row[_ID]
                if (record := _record(row, zone, now)) is not None and filters.match(record):
                    found.append(record)  # MariaDB compares text without its case
            if len(columns) > room and last is not None:
                return Look(tuple(found), _cursor(last, zone))
            if end is not None:
                return Look(tuple(found), _cursor(end, zone))
    return Look(tuple(found))


def _parts(store: DatabaseStore, rows: Rows, after: Place | None) -> Iterator[Rows]:
    """
    Yield the two parts of the table: records without an expiry, and the others, newest first.

    Those without one wait for an operator (``on_stale="refuse"``), so they come first. Databases
    differ in where they sort them, so each part is a query of its own on the index.
    """
    when, pk = after or (None, None)
    rows = rows.order_by("-expires_at", "-pk")
    if when is None:
        endless = rows.filter(expires_at=None)
        yield endless if pk is None else endless.filter(pk__lt=pk)
    dated = rows.filter(expires_at__isnull=False)
    if when is not None:
        least, most = _instant(store, when)
        dated = dated.filter(Q(expires_at__lt=least) | Q(pk__lt=pk), expires_at__lte=most)
    yield dated


def _until(store: DatabaseStore, part: Rows, end: Place) -> Rows:
    """Return the rows of a part up to `end`, which is one of them."""
    when, pk = end
    if when is None:
        return part.filter(pk__gte=pk)
    least, most = _instant(store, when)
    return part.filter(Q(expires_at__gt=most) | Q(pk__gte=pk), expires_at__gte=least)


def _instant(store: DatabaseStore, moment: datetime) -> tuple[Any, Any]:
    """
    Return the least and the most that a column holds for a time.

    On SQLite it is text: the store writes milliseconds, and Django compares with microseconds.
    """
    if connections[store.using].vendor != "sqlite":
        return moment, moment
    if moment.tzinfo is not None:
        moment = moment.astimezone(timezone.utc)
    text = moment.replace(tzinfo=None).isoformat(sep=" ", timespec="milliseconds")
    return Value(text, CharField()), Value(f"{text}999", CharField())


def _wanted(store: DatabaseStore, filters: Filters, scopes: Collection[str], now: datetime) -> Q:
    """Return what `Filters.match` asks, for the database."""
    wanted = Q()
    names = ("state", "operation", "scope", "key")
    for name in names:
        if (value := getattr(filters, name)) is not None:
            wanted &= Q(**{name: value})
    if filters.stale is not None:
        lapsed = Q(lease_until__lte=_moment(store, now))
        stale = Q(state=State.IN_PROGRESS.value) & lapsed
        wanted &= stale if filters.stale else ~stale
    if filters.created_before is not None:
        wanted &= Q(created_at__lt=_moment(store, filters.created_before))
    if filters.created_after is not None:
        wanted &= Q(created_at__gt=_moment(store, filters.created_after))
    return wanted & Q(scope__in=scopes) if scopes else wanted


def has_index(store: DatabaseStore, field: str) -> bool:
    """Return whether the project has added an index on this field, and it can be used."""
    connection = connections[store.using]
    with _reading(store), connection.cursor() as cursor:
        cursor.execute(_HAS_INDEX[connection.vendor], [INDEXES[field]])
        return cursor.fetchone() is not None


def _now(store: DatabaseStore) -> datetime:
    """Return the time by the clock of the database, which is asked once a minute."""
    here, (ahead, until) = datetime.now(timezone.utc), _ahead.get(store.using, (timedelta(), 0))
    if time.monotonic() > until:
        connection = connections[store.using]
        with _reading(store), connection.cursor() as cursor:
            cursor.execute(_NOW[connection.vendor])
            ahead = _EPOCH + timedelta(microseconds=cursor.fetchone()[0]) - here
        _ahead[store.using] = ahead, time.monotonic() + 60
    return here + ahead


def _table(store: DatabaseStore) -> Rows:
    return IdempotencyRecord.objects.using(store.using)


@contextmanager
def _reading(store: DatabaseStore) -> Iterator[None]:
    """Read, in a savepoint if a transaction is open; the database's errors are StoreErrors."""
    using = store.using
    in_transaction = connections[using].in_atomic_block
    try:
        with transaction.atomic(using) if in_transaction else nullcontext():
            yield
    except Error as error:
        what = f"The table of the database {using!r} could not be read"
        raise StoreError(f"{what}: {type(error).__name__}.") from error


def _zone(store: DatabaseStore) -> tzinfo:
    """Return the zone of naive times, without USE_TZ: PostgreSQL's driver converts to ours."""
    converts = connections[store.using].vendor == "postgresql"
    return zones.get_default_timezone() if converts else timezone.utc


def _moment(store: DatabaseStore, moment: datetime) -> datetime:
    """Return a time as the project's queries take it."""
    return moment if settings.USE_TZ else moment.astimezone(_zone(store)).replace(tzinfo=None)


def _record(row: tuple[Any, ...], zone: tzinfo, now: datetime) -> Record | None:
    """Return the record of a row; None for a damaged one, which is logged."""
    record_id, scope, key, operation, fingerprint, state, epoch, token, *times, attempts, error = (
        row
    )
    try:
        lease_until, created, updated, expires = (
            moment.replace(tzinfo=zone) if moment is not None and moment.tzinfo is None else moment
            for moment in times
        )
        return Record(
            record_id=record_id,
            scope=scope,
            key=key,
            operation=operation,
            fingerprint=None if fingerprint is None else bytes(fingerprint),
            state=State(state),
            epoch=epoch,
            token=token,
            lease_until=lease_until,
            created_at=created,
            updated_at=updated,
            expires_at=expires,
            attempts=attempts,
            result=None,
            error=error,
            now=now,
        )
    except (StoreError, TypeError, ValueError) as damage:
        logger.error("Record %s cannot be shown. %s", keys.short(record_id), damage)
        return None


def _cursor(place: Place, zone: tzinfo) -> str:
    when, pk = place
    if when is not None and when.tzinfo is None:
        when = when.replace(tzinfo=zone)
    return f"{'' if when is None else when.isoformat()}~{pk}"


def _place(cursor: str, zone: tzinfo) -> Place:
    """Return what `_cursor` wrote, as the project's queries take it; raise ValueError."""
    when, _, pk = cursor.partition("~")
    try:
        moment = datetime.fromisoformat(when).astimezone(zone) if when else None
        if moment is not None and not settings.USE_TZ:
            moment = moment.replace(tzinfo=None)
        return moment, UUID(pk)
    except (OverflowError, ValueError) as error:
        raise ValueError("No look at this store has made this cursor.") from error


def backlog(store: BaseStore, newest: Look) -> tuple[int | None, bool]:
    """
    Return how many expired records a sweep would delete, and whether there are more.

    None for a store that deletes them by itself. A database counts up to `MOST` of them by its
    index; of another store they are those among `newest`.
    """
    if store.native_expiry:
        return None, False
    if not isinstance(store, DatabaseStore):
        return sum(record.expired for record in newest.records), newest.cursor is not None
    now = _moment(store, _now(store))
    held = Q(state=State.IN_PROGRESS.value, lease_until__gt=now)
    with _reading(store):  # in the order of the index, or the planner reads the table
        expired = _table(store).filter(expires_at__lte=now).exclude(held).order_by("expires_at")
        number = expired[: MOST + 1].count()
    return min(number, MOST), number > MOST
