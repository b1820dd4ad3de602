"""The command that adds an index for searches by key, or by operation."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import Error, connections
from django.db.backends.utils import CursorWrapper

from django_idempotency.conf import DEFAULT_ALIAS, InvalidStore, store_for
from django_idempotency.exceptions import StoreError
from django_idempotency.management.shell import ShellCommand
from django_idempotency.operators.looks import INDEXES, has_index
from django_idempotency.stores.database import DatabaseStore

#: Whole statements. On PostgreSQL no claim waits for them; they run outside of a transaction.
CREATE = {
    ("postgresql", "key"): "CREATE INDEX CONCURRENTLY idempotency_key ON idempotency_record (key)",
    ("postgresql", "operation"): "CREATE INDEX CONCURRENTLY idempotency_operation "
    "ON idempotency_record (operation, expires_at, id)",
    ("mysql", "key"): "CREATE INDEX idempotency_key ON idempotency_record (`key`)",
    ("mysql", "operation"): "CREATE INDEX idempotency_operation "
    "ON idempotency_record (operation, expires_at)",
    ("sqlite", "key"): "CREATE INDEX idempotency_key ON idempotency_record (key)",
    ("sqlite", "operation"): "CREATE INDEX idempotency_operation "
    "ON idempotency_record (operation, expires_at, id)",
}
DROP = {
    ("mysql", "key"): "DROP INDEX IF EXISTS idempotency_key ON idempotency_record",
    ("mysql", "operation"): "DROP INDEX IF EXISTS idempotency_operation ON idempotency_record",
    ("sqlite", "key"): "DROP INDEX IF EXISTS idempotency_key",
    ("sqlite", "operation"): "DROP INDEX IF EXISTS idempotency_operation",
}
#: The name for DROP INDEX on PostgreSQL, with its schema where it needs one: if the table of this
#: search_path has no index, the bare name is that of another table's.
NAME = """
SELECT indexrelid::regclass::text FROM pg_index JOIN pg_class AS named ON named.oid = indexrelid
 WHERE indrelid = to_regclass('idempotency_record') AND named.relname = %s
"""
_COST = (
    "Each claim of a new key, and each record that a sweep deletes, now writes to one more index: "
    "measure a claim before and after, and drop the index if it is not worth it."
)


class Command(ShellCommand):
    """Add an index on the key, or on the operation, to the table of a database store."""

    help = (
        "Adds an index, so that the admin and idempotency_show search all records by key, or by "
        "operation, and not the newest alone. It costs each claim a write."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument("field", choices=sorted(INDEXES), help="what to search by")
        parser.add_argument("--store", default=DEFAULT_ALIAS, help="the alias of IDEMPOTENCY")
        parser.add_argument("--drop", action="store_true", help="drop the index again")

    def handle(self, *args: Any, **options: Any) -> None:
        """Add or drop the index; exit code 1 if the database refuses, 2 for another store."""
        alias, field = options["store"], options["field"]
        try:
            store = store_for(alias)
        except InvalidStore as error:
            raise CommandError(str(error), returncode=2) from error
        if not isinstance(store, DatabaseStore):
            raise CommandError(f"{alias!r} is not a database store.", returncode=2)
        connection = connections[store.using]
        try:
            if not options["drop"] and has_index(store, field):
                self.stdout.write(f"the index {INDEXES[field]} is there")
                return
            with connection.cursor() as cursor:
                _drop(cursor, connection.vendor, field)  # one never finished is in the way
                if not options["drop"]:
                    cursor.execute(CREATE[connection.vendor, field])
        except StoreError as error:
            raise CommandError(str(error)) from error
        except Error as error:
            raise CommandError(f"The database refused: {error}") from error
        what = "dropped" if options["drop"] else "ready"
        self.stdout.write(self.style.SUCCESS(f"the index {INDEXES[field]} is {what}"))
        if not options["drop"]:
            self.stdout.write(_COST)


def _drop(cursor: CursorWrapper, vendor: str, field: str) -> None:
    """Drop the index, if the table has it."""
    if vendor != "postgresql":
        cursor.execute(DROP[vendor, field])
        return
    cursor.execute(NAME, [INDEXES[field]])
    for (name,) in cursor.fetchall():
        cursor.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")
