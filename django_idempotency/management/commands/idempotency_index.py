"""The command that adds an index for searches by key, or by operation."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import Error, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from django_idempotency.conf import DEFAULT_ALIAS
from django_idempotency.exceptions import StoreError
from django_idempotency.management.operating import add_schema, chosen_stores
from django_idempotency.management.shell import ShellCommand
from django_idempotency.operators.looks import INDEXES, has_index
from django_idempotency.stores.database import DatabaseStore
from django_idempotency.sweep import there

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
#: The table and its index on PostgreSQL, with their schema: if the table of this search_path has no
#: index, the bare name is that of another table's.
TABLE = """
SELECT (pg_identify_object('pg_class'::regclass, 'idempotency_record'::regclass, 0)).identity
"""
NAME = """
SELECT (pg_identify_object('pg_class'::regclass, indexrelid, 0)).identity
  FROM pg_index JOIN pg_class AS named ON named.oid = indexrelid
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
        add_schema(parser)
        parser.add_argument("--drop", action="store_true", help="drop the index again")

    def handle(self, *args: Any, **options: Any) -> None:
        """Add or drop the index; exit code 1 if the database refuses, 2 for another store."""
        [store] = chosen_stores(options["store"], options["schema"])
        field: str = options["field"]
        if not isinstance(store, DatabaseStore):
            raise CommandError(f"{store.alias!r} is not a database store.", returncode=2)
        connection = connections[store.using]
        try:
            with there(store, options["schema"]):
                if not options["drop"] and has_index(store, field):
                    self.stdout.write(f"the index {INDEXES[field]} is there")
                    return
                drop, create = _statements(connection, field)
            with connection.cursor() as cursor:
                for statement in drop:  # one never finished is in the way
                    cursor.execute(statement)
                if not options["drop"]:
                    cursor.execute(create)
        except StoreError as error:
            raise CommandError(str(error)) from error
        except Error as error:
            raise CommandError(f"The database refused: {error}") from error
        what = "dropped" if options["drop"] else "ready"
        self.stdout.write(self.style.SUCCESS(f"the index {INDEXES[field]} is {what}"))
        if not options["drop"]:
            self.stdout.write(_COST)


def _statements(connection: BaseDatabaseWrapper, field: str) -> tuple[list[str], str]:
    """Return what drops the index, if the table has it, and what creates it."""
    vendor = connection.vendor
    if vendor != "postgresql":
        return [DROP[vendor, field]], CREATE[vendor, field]
    with connection.cursor() as cursor:
        cursor.execute(NAME, [INDEXES[field]])
        names = [name for (name,) in cursor.fetchall()]
        cursor.execute(TABLE)
        [table] = cursor.fetchone()
    create = CREATE[vendor, field].replace("idempotency_record", table)
    return [f"DROP INDEX CONCURRENTLY IF EXISTS {name}" for name in names], create
