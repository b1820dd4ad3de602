"""Erasing all that a store keeps of a person: the records of their scope."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from uuid import UUID

from django.db import Error

from django_idempotency import keys
from django_idempotency.exceptions import StoreError
from django_idempotency.http import scopes
from django_idempotency.models import IdempotencyRecord
from django_idempotency.observers import logger
from django_idempotency.operators.search import pages
from django_idempotency.records import Filters
from django_idempotency.stores.base import BaseStore
from django_idempotency.stores.database import DatabaseStore

#: Rows of a table that are read at a time, without their results.
_ROWS = 5000


@dataclass
class Erasure:
    """What an erasure has done so far."""

    looked_at: int = 0
    erased: Counter[str] = field(default_factory=Counter)
    #: Records that an attempt holds, by scope.
    left: Counter[str] = field(default_factory=Counter)
    #: The short ids of damaged records: they were left, because nothing tells whose they are.
    damaged: list[str] = field(default_factory=list)


def erase(
    store: BaseStore, scope: str, *, force: bool, who: str, reason: str
) -> Generator[Erasure, None, None]:
    """
    Delete each record of a scope, alone or within a tenant or an endpoint, and all it keeps.

    Reads the whole store in batches: there is no index on the scope. Yields what was done after
    each batch, and at the end. Records that an attempt holds are left unless `force` is set. Those
    that are claimed while it reads may be missed, and it may be repeated. Raises StoreError.
    """
    done = Erasure()
    wanted = keys.bounded(scope)
    try:
        for batch in _scanned(store, done.damaged):
            for record_id, stored in batch:
                if wanted not in scopes.inner(stored):
                    continue
                went = store.erase(record_id, force=force)
                (done.erased if went else done.left)[stored] += 1
            done.looked_at += len(batch)
            yield done
        yield done
    finally:  # what is gone is told of, too, if the store fails, or the operator interrupts
        logger.warning(
            "Erased %d records of one scope by %s. Reason: %s (store %s, %d in progress were left, "
            "and %d that are damaged)",
            done.erased.total(),
            keys.bounded(who) or "an operator",
            keys.bounded(reason) or "none given",
            store.alias,
            done.left.total(),
            len(done.damaged),
        )


def _scanned(store: BaseStore, damaged: list[str]) -> Iterator[list[tuple[UUID, str]]]:
    """Yield the ids and scopes of all records, in batches; note the others in `damaged`."""
    if isinstance(store, DatabaseStore):
        yield from _rows_of(store)
        return
    for page in pages(store, Filters()):
        damaged.extend(name for name in page.damaged if name not in damaged)  # Redis may repeat
        yield [(record.record_id, record.scope) for record in page.records]


def _rows_of(store: DatabaseStore) -> Iterator[list[tuple[UUID, str]]]:
    rows = IdempotencyRecord.objects.using(store.using).order_by("pk").values_list("pk", "scope")
    batch: list[tuple[UUID, str]] = []
    while True:
        following = rows.filter(pk__gt=batch[-1][0]) if batch else rows
        try:
            batch = list(following[:_ROWS])
        except (Error, ValueError) as error:  # an id of SQLite may be any text
            raise StoreError(f"The table of {store.using!r} could not be read.") from error
        if not batch:
            return
        yield batch
