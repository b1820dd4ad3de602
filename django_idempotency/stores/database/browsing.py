"""Browsing the table: how a page is found by an index, and what its cursor says."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any
from uuid import UUID

from django.db import connections

from django_idempotency import keys
from django_idempotency.exceptions import StoreError
from django_idempotency.observers import logger
from django_idempotency.records import Filters, Page, Record
from django_idempotency.stores.database.dialect import Row
from django_idempotency.stores.database.rows import COLUMNS, record_of, uuid_of
from django_idempotency.stores.database.statements import Statements

#: The names of the indexes that a project may add, by their field (docs/howto/admin).
INDEXES = {"key": "idempotency_key", "operation": "idempotency_operation"}

#: Columns of BROWSE.
_ID, _EXPIRES_AT, _NUMBER = 0, COLUMNS.index("expires_at"), -1
#: No record expires then.
_LATEST = datetime(9999, 12, 31, tzinfo=timezone.utc)


class Browsing(Statements):
    """
    Reads the table in the order of its one index, nearly that of creation.

    Records without an expiry come first: they wait for an operator.
    """

    def look_on(
        self, filters: Filters, cursor: str | None, limit: int, most: int, results: bool
    ) -> tuple[Page, int]:
        """See `BaseStore.look_on`; one statement."""
        if replace(filters, held=None) == Filters():  # each row that is looked at is on the page
            most = min(most, limit)
        room = {"most": most, "one_more": most + 1, "limit": limit + 1, "results": results}
        place = self._place_of(cursor)
        # Records that are held have a part of the index for themselves.
        place["endless"] &= filters.held is not False
        parameters = {**place, "expiring": filters.held is not True, **_asked(filters), **room}
        rows: list[Row] = self._execute(self._statement_for(filters), parameters)
        page, damaged = [row for row in rows[:limit] if row[_NUMBER] <= most], list[str]()
        found = (_readable(row[:_NUMBER], damaged) for row in page)
        records = tuple(record for record in found if record is not None and filters.match(record))
        cursor = _cursor(page[-1]) if len(rows) > len(page) else None
        return Page(records, cursor, tuple(damaged)), page[-1][_NUMBER] if page else 0

    def _statement_for(self, filters: Filters) -> str:
        """Return the name of the statement that reads the least."""
        if filters.ids is not None:
            return "BROWSE_IDS"
        if filters.digits is not None:
            return "BROWSE_RANGE"
        for field in INDEXES:
            if getattr(filters, field) is not None and self.has_index(field):
                return f"BROWSE_{field.upper()}"
        return "BROWSE"

    def has_index(self, field: str) -> bool:
        """Return whether the project has added an index on this field, and it can be used."""
        return bool(self._execute("HAS_INDEX", {"index": INDEXES[field]}))

    def limited(self, seconds: float | None) -> AbstractContextManager[None]:
        """See `BaseStore.limited`."""
        if seconds is None:
            return nullcontext()
        connection = connections[self.using]
        self._close_if_unusable(connection)  # the limit is the session's, or of its transaction
        return self.dialect.limited(connection, seconds)

    def _place_of(self, cursor: str | None) -> dict[str, Any]:
        """Return where a page begins; raise ValueError for a cursor that `_cursor` did not make."""
        if cursor is None:
            return {"endless": True, "after": _LATEST, "after_id": None}
        try:
            after, after_id = json.loads(cursor)
            place = {"after_id": UUID(after_id), "endless": after is None}
            return {**place, "after": _LATEST if after is None else self.dialect.time_of(after)}
        except (AttributeError, OverflowError, TypeError, ValueError) as error:
            raise ValueError("The database store did not make this cursor.") from error


def _asked(filters: Filters) -> dict[str, Any]:
    """Return the filters as parameters; ids stand for scope and key: a long scope is cut short."""
    asked: dict[str, Any] = {
        "state": None if filters.state is None else filters.state.value,
        "stale": filters.stale,
        "operation": filters.operation,
        "any_scope": filters.scopes is None or filters.ids is not None,
        "scopes": sorted(filters.scopes or ()),
        "key": filters.key if filters.ids is None else None,
        "created_before": filters.created_before,
        "created_after": filters.created_after,
    }
    if filters.ids is not None:
        asked["ids"] = sorted(filters.ids)
    elif filters.digits is not None:
        asked["first_id"] = UUID(filters.digits.ljust(32, "0"))
        asked["last_id"] = UUID(filters.digits.ljust(32, "f"))
    return asked


def _cursor(row: Row) -> str:
    """Return the place of a row, as text."""
    expires_at = row[_EXPIRES_AT]
    after = expires_at.isoformat() if isinstance(expires_at, datetime) else expires_at
    return json.dumps([after, str(uuid_of(row[_ID]))])


def _readable(row: Row, damaged: list[str]) -> Record | None:
    """Return the row's record; None for a damaged one, which is logged and noted in `damaged`."""
    try:
        return record_of(row)[0]
    except StoreError as error:
        # Without a traceback: it would go on to quote what is in the record (R79).
        damaged.append(keys.short(uuid_of(row[_ID])))
        logger.error("Record %s cannot be shown. %s", damaged[-1], error)
        return None
