"""Stores that fail where a test wants them to, by errors of a real database."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import NoReturn

from django.db import DatabaseError, connections

from django_idempotency.exceptions import StoreError
from django_idempotency.leases import Lease
from django_idempotency.stores.database import DatabaseStore

__all__ = ["CannotComplete", "CannotEnd"]


def _break(store: DatabaseStore) -> NoReturn:
    """Run a statement that fails, which breaks the transaction if one is open."""
    try:
        with connections[store.using].cursor() as cursor:
            cursor.execute("SELECT 1 FROM no_such_table")
    except DatabaseError as error:
        raise StoreError from error
    raise AssertionError("there is no such table")


class CannotComplete(DatabaseStore):
    """No completion can be written."""

    def complete(self, lease: Lease, result: bytes, *, retention: timedelta) -> datetime:
        _break(self)


class CannotEnd(CannotComplete):
    """Nor a failure, nor a release."""

    def fail(self, lease: Lease, error: str) -> None:
        _break(self)

    def release(self, lease: Lease) -> None:
        _break(self)
