"""The store in a database of the project: PostgreSQL, MariaDB or SQLite."""

from __future__ import annotations

from django_idempotency.stores.database.store import DatabaseStore

__all__ = ["DatabaseStore"]
