"""From what an operator types to records, in every store."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from math import inf
from uuid import UUID

from django.contrib.auth import get_user_model
from django.core.exceptions import ImproperlyConfigured, ValidationError
from django.db import Error

from django_idempotency import keys
from django_idempotency.exceptions import StoreError
from django_idempotency.http import scopes
from django_idempotency.models import IdempotencyRecord
from django_idempotency.operators import looks
from django_idempotency.records import Filters, Record
from django_idempotency.stores.base import BaseStore
from django_idempotency.stores.database import DatabaseStore

__all__ = [
    "NEWEST",
    "Found",
    "find",
    "id_range",
    "ids_of_scope_and_key",
    "scopes_of",
]

#: Gets the records that have some ids.
Read = Callable[[BaseStore, Collection[UUID]], tuple[Record, ...]]

#: How many records are looked at for a key alone: there is no index on it, which would slow claims.
NEWEST = looks.MOST
#: Records of one `browse`, which come with their results.
_PAGE = 100
#: The most records that are found.
_MOST = 100
#: Between a scope and a key; more of them than this are no such words.
_GAPS = 4
_ID = re.compile(r"[0-9a-f]{8,32}")


@dataclass(frozen=True)
class Found:
    """The records that were found, and whether the search was of the newest records alone."""

    records: tuple[Record, ...]
    #: There are records that were not looked at; a scope before the key searches them all.
    more: bool = False


def find(
    store: BaseStore,
    term: str,
    *,
    scope: str | None = None,
    read: Read | None = None,
    seconds: float = inf,
) -> Found:
    """
    Return the records that an operator means.

    `term` is a record id, 8 or more of its first characters, a scope and a key with a space between
    them, or a key alone. With `scope` it is a key. The primary key finds all but a key alone and,
    in a store that is no database, the beginning of an id: these are looked for among the `NEWEST`
    records, outside of a database for so many `seconds`. `read` gets the records of ids, by default
    with their results. Raises StoreError.
    """
    term, read = term.strip(), read or _read
    try:
        term.encode()
    except UnicodeEncodeError:  # bytes of a terminal; no key has them
        return Found(())
    if scope is not None:
        return Found(read(store, _ids(scopes_of(scope), term)))
    ids = ids_of_scope_and_key(term)
    span = id_range(term)
    if span is not None and span[0] == span[1]:
        ids.add(span[0])
    if found := read(store, ids):
        return Found(found)
    if isinstance(store, DatabaseStore):
        return _find_in_table(store, term, span, read)
    return _find_in_newest(store, term, span, seconds)


def id_range(term: str) -> tuple[UUID, UUID] | None:
    """Return the first and the last record id that begin so; None for what is no such beginning."""
    digits = term.replace("-", "").lower()
    if not _ID.fullmatch(digits):
        return None
    return UUID(digits.ljust(32, "0")), UUID(digits.ljust(32, "f"))


def ids_of_scope_and_key(term: str) -> set[UUID]:
    """
    Return the ids that a scope and a key, with a space between them, may have.

    A scope as the record page shows it, a user's name, or a tenant and a user's name.
    """
    return {
        record_id for before, key in _halves(term) for record_id in _ids(scopes_of(before), key)
    }


def scopes_of(text: str) -> Iterator[str]:
    """Yield the scopes that `text` may mean: itself, a user's name, a tenant and a user's name."""
    yield text
    if (user := _user(text)) is not None:
        yield user
    for tenant, name in _halves(text):
        if (user := _user(name)) is not None:
            yield scopes.of_tenant(tenant, user)


def _find_in_table(
    store: DatabaseStore, term: str, span: tuple[UUID, UUID] | None, read: Read
) -> Found:
    rows = IdempotencyRecord.objects.using(store.using)
    ids: set[UUID] = set()
    more = False
    try:
        if looks.has_index(store, "key"):
            rows_of_key = rows.filter(key=term).values_list("pk", "key")[:_MOST]
            ids.update(pk for pk, key in rows_of_key if key == term)  # MariaDB ignores case
        else:
            look = looks.look(store, Filters(key=term), limit=_MOST)
            ids.update(record.record_id for record in look.records)
            more = look.cursor is not None
        if span is not None:
            ids.update(rows.filter(pk__range=span).values_list("pk", flat=True)[:_MOST])
    except Error as error:
        raise StoreError(f"The database {store.using!r} could not be searched.") from error
    return Found(read(store, ids), more)


def _find_in_newest(
    store: BaseStore, term: str, span: tuple[UUID, UUID] | None, seconds: float
) -> Found:
    """Look at the newest records of a store; those of one without an order are any of them."""
    found: dict[UUID, Record] = {}
    looked: set[UUID] = set()
    cursor, ends = None, time.monotonic() + seconds
    while True:
        page = store.browse(cursor=cursor, limit=min(_PAGE, NEWEST - len(looked)))
        for record in page.records:
            looked.add(record.record_id)  # Redis may give one twice
            if record.key == term or (span is not None and span[0] <= record.record_id <= span[1]):
                found[record.record_id] = record
        over = len(looked) >= NEWEST or len(found) >= _MOST or time.monotonic() > ends
        if over or page.cursor is None:
            return Found(tuple(found.values()), more=page.cursor is not None)
        cursor = page.cursor


def _read(store: BaseStore, ids: Collection[UUID]) -> tuple[Record, ...]:
    found = map(store.get, sorted(islice(ids, _MOST)))
    return tuple(record for record in found if record is not None)


def _ids(whose: Iterator[str], key: str) -> set[UUID]:
    return {record_id for scope in whose for record_id in keys.record_ids(scope, key)}


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
