"""A store that fails where a test wants it to, by an error of a real database."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db import DatabaseError, connections

from django_idempotency.exceptions import StoreError
from django_idempotency.leases import Lease
from django_idempotency.stores.database import DatabaseStore

__all__ = ["CannotComplete"]


class CannotComplete(DatabaseStore):
    """No completion can be written."""

    def complete(self, lease: Lease, result: bytes, *, retention: timedelta) -> datetime:
        """Run a statement that fails, which breaks the transaction if one is open."""
        try:
            with connections[self.using].cursor() as cursor:
                cursor.execute("SELECT 1 FROM no_such_table")
        except DatabaseError as error:
            raise StoreError from error
        raise AssertionError("there is no such table")
