"""From what an operator types to records, in every store."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.contrib.auth import get_user_model
from django.core.exceptions import ImproperlyConfigured, ValidationError
from django.db import Error

from django_idempotency.exceptions import StoreError
from django_idempotency.http import scopes
from django_idempotency.records import Filters, Page, Record
from django_idempotency.stores.base import BaseStore
from django_idempotency.stores.database import DatabaseStore

#: How many records are looked at for a key alone: there is no index on it, which would slow claims.
NEWEST = 10_000
#: The most records that are found.
_MOST = 100
#: Between a scope and a key; more of them than this are no such words.
_GAPS = 4
#: More records than any store has.
_ALL = 10**9


@dataclass(frozen=True)
class Found:
    """The records that were found."""

    records: tuple[Record, ...] = ()
    #: There are records that were not looked at; a scope before the key searches them all.
    more: bool = False
    #: They were looked for among the newest records, as a list is: where its next page begins.
    looked: bool = False
    cursor: str | None = None


def find(
    store: BaseStore,
    term: str,
    *,
    scope: str | None = None,
    results: bool = True,
    seconds: float | None = None,
) -> Found:
    """
    Return the records that an operator means.

    `term` is a record id, 8 or more of its first characters, a scope and a key with a space between
    them, or a key alone. With `scope` it is a key. The ids tell all but a key alone and, in a store
    that is no database, the beginning of an id: these are looked for among the `NEWEST` records,
    for so many `seconds`. Raises StoreError.
    """
    term = term.strip()
    try:
        term.encode()
    except UnicodeEncodeError:  # bytes of a terminal; no key has them
        return Found()
    found: dict[UUID, Record] = {}
    more = False
    for asked in _meant(term, scope):
        for filters in asked:
            if filters.ids is not None:
                page = store.browse(filters=filters, limit=_MOST, results=results)
            else:
                page = store.browse(
                    filters=filters, limit=_MOST, within=NEWEST, results=results, seconds=seconds
                )
            found |= {record.record_id: record for record in page.records}
            more |= page.cursor is not None
        if found:
            break
    return Found(tuple(found.values()), more)


class _StaleOrHeld(Filters):
    """Both, so that a store is read once."""

    def match(self, record: Record) -> bool:
        return record.stale or record.held


def waiting(store: BaseStore, seconds: float) -> Iterator[Any]:
    """
    Yield the records that are held, see `held_in`, and then how many leases are stale, of all.

    A database is asked by its index and `BaseStore.count_stale`; iterate in a block of
    `BaseStore.limited`. Another store is read record by record, once. Raises StoreError if that
    takes longer than so many seconds.
    """
    if isinstance(store, DatabaseStore):  # limited by the block: SQLite ends an outer limit
        yield held_in(store.browse(filters=Filters(held=True), limit=_ALL).records)
        yield store.count_stale()
        return
    page = store.browse(filters=_StaleOrHeld(), limit=_ALL, seconds=seconds)
    if page.cursor is not None:
        raise StoreError(f"The store {store.alias!r} was not read in {seconds} seconds.")
    yield held_in(page.records)
    yield sum(record.stale for record in page.records)


def held_in(records: Iterable[Record]) -> list[Record]:
    """Return the records that wait for an operator, the oldest first: held, and no attempt runs."""
    held = (record for record in records if record.held and not record.live)
    return sorted(held, key=lambda record: record.created_at)


def pages(store: BaseStore, wanted: Filters) -> Iterator[Page]:
    """Yield pages of all records that match, be the whole store read for it; raise StoreError."""
    cursor: str | None = None
    while True:
        page = store.browse(filters=wanted, cursor=cursor, limit=_MOST)
        yield page
        if (cursor := page.cursor) is None:
            return


def _meant(term: str, scope: str | None) -> Iterator[list[Filters]]:
    """Yield what a term may mean: first that of which the ids are known."""
    if scope is not None:
        yield [Filters(scope=[*scopes_of(scope)], key=term)]
        return
    known = [Filters(scope=[*scopes_of(whose)], key=key) for whose, key in _halves(term)]
    others = [Filters(key=term)]
    with suppress(ValueError):
        by_id = Filters(record_id=term)
        (others if by_id.ids is None else known).append(by_id)
    yield known
    yield others


def scopes_of(text: str) -> Iterator[str]:
    """Yield the scopes that `text` may mean: itself, a user's name, a tenant and a user's name."""
    yield text
    if (user := _user(text)) is not None:
        yield user
    for tenant, name in _halves(text):
        if (user := _user(name)) is not None:
            yield scopes.of_tenant(tenant, user)


def _user(name: str) -> str | None:
    """Return the scope of a user by name, as they log in."""
    if "\x00" in name:  # no column holds it
        return None
    # Names of users may be numbers, or UUIDs; a project may have no users, or no database up.
    with suppress(ValidationError, ValueError, ImproperlyConfigured, Error):
        model = get_user_model()
        found = model._default_manager.filter(**{model.USERNAME_FIELD: name}).first()
        return None if found is None else scopes.of_user(found)
    return None


def _halves(text: str) -> Iterator[tuple[str, str]]:
    """Yield the text in two, at each of its spaces."""
    gaps = list(re.finditer(r"\s+", text))
    if len(gaps) <= _GAPS:
        yield from ((text[: gap.start()], text[gap.end() :]) for gap in gaps)
