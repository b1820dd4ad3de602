"""From what an operator types to records, in every store."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.contrib.auth import get_user_model
from django.core.exceptions import ImproperlyConfigured, ValidationError
from django.db import Error

from django_idempotency.exceptions import StoreError
from django_idempotency.http import scopes
from django_idempotency.records import Filters, Page, Record, State
from django_idempotency.stores.base import BaseStore
from django_idempotency.stores.database import DatabaseStore

__all__ = ["NEWEST", "Found", "find", "scopes_of", "stale_leases", "stale_pages"]

#: How many records are looked at for a key alone: there is no index on it, which would slow claims.
NEWEST = 10_000
#: The most records that are found.
_MOST = 100
#: Between a scope and a key; more of them than this are no such words.
_GAPS = 4
#: More stale leases than any store has.
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


def stale_leases(store: BaseStore, seconds: float) -> int:
    """
    Return how many leases are stale, of all records of a store.

    A database counts; call it in a block of `BaseStore.limited`. Another store is read record by
    record. Raises StoreError if that takes longer than so many seconds.
    """
    if isinstance(store, DatabaseStore):
        return store.count_stale()
    wanted = Filters(state=State.IN_PROGRESS, stale=True)
    page = store.browse(filters=wanted, limit=_ALL, seconds=seconds)
    if page.cursor is not None:
        raise StoreError(f"The store {store.alias!r} was not read in {seconds} seconds.")
    return len(page.records)


def stale_pages(
    store: BaseStore, *, operation: str | None = None, created_before: datetime | None = None
) -> Iterator[Page]:
    """
    Yield pages of the records whose lease is stale: all of them, so the whole store is read.

    Raises StoreError.
    """
    wanted = Filters(
        state=State.IN_PROGRESS, stale=True, operation=operation, created_before=created_before
    )
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
