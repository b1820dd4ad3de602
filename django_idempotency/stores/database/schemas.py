"""A schema that an operator names: its table in place of the one that the search path finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from django.db import Error, connections, transaction

from django_idempotency.exceptions import StoreError

_HAS_TABLE = "SELECT to_regclass(%s) IS NOT NULL"
_SEARCH_PATH = "SELECT current_setting('search_path')"
_SEARCH = "SELECT set_config('search_path', %s, true)"


@contextmanager
def in_schema(using: str, schema: str) -> Iterator[None]:
    """
    Send what this thread sends to the alias, the ORM's too, with the schema first in its path.

    The path is set for each statement anew, in its own transaction: a wrapper of tenants sets its
    own path before each cursor, and a pooler gives each transaction another session.
    """
    connection: Any = connections[using]
    quoted = '"' + schema.replace('"', '""') + '"'

    def search(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        begins = connection.get_autocommit() and not connection.in_atomic_block
        block = transaction.atomic(using) if begins else nullcontext()
        with block, connection.connection.cursor() as plain:
            plain.execute(_SEARCH_PATH)
            [path] = plain.fetchone()
            plain.execute(_SEARCH, [", ".join(filter(None, [quoted, path]))])
            done = execute(sql, params, many, context)
            plain.execute(_SEARCH, [path])  # of a transaction that goes on
            return done

    try:
        with connection.cursor() as cursor:
            cursor.execute(_HAS_TABLE, [f"{quoted}.idempotency_record"])
            [has_table] = cursor.fetchone()
    except Error as error:
        raise StoreError(f"The database {using!r} could not be asked for a schema.") from error
    if not has_table:
        raise StoreError(f"The schema {schema} of {using!r} has no table: run migrate for it.")
    with connection.execute_wrapper(search):
        yield
