"""What a test has committed, deleted: a fraction of the time that Django's flush takes."""

from __future__ import annotations

from django.core.management import call_command
from django.db import connections, transaction
from django.test import TransactionTestCase

__all__ = ["delete_rows", "install"]

#: Made by migrate, and the same for all tests.
_KEPT = ("auth_permission", "django_content_type", "django_migrations")
#: Bytes above which tables are truncated, or all that follow would wade through dead rows.
_LARGE = 1024 * 1024


def install() -> None:
    TransactionTestCase._fixture_teardown = _fixture_teardown  # type: ignore[attr-defined]


def _fixture_teardown(case: TransactionTestCase) -> None:
    for alias in case._databases_names(include_mirrors=False):  # type: ignore[attr-defined]
        delete_rows(alias)


def delete_rows(alias: str) -> None:
    """Delete every row that tests have committed on a database; see `_KEPT`."""
    connection = connections[alias]
    quoted = connection.ops.quote_name
    with connection.cursor() as cursor:
        tables = [
            name
            for name in connection.introspection.django_table_names(only_existing=False)
            if name not in _KEPT
        ]
        cursor.execute(
            " UNION ALL ".join(
                f"SELECT '{name}' WHERE EXISTS (SELECT 1 FROM {quoted(name)})" for name in tables
            )
        )
        filled = [name for (name,) in cursor.fetchall()]
        if connection.vendor == "postgresql" and filled:
            sizes = "SELECT max(pg_relation_size(name::regclass)) FROM unnest(%s::text[]) AS name"
            cursor.execute(sizes, [filled])
            if cursor.fetchone()[0] > _LARGE:
                call_command("flush", verbosity=0, interactive=False, database=alias)
                return
    with (
        connection.constraint_checks_disabled(),
        transaction.atomic(using=alias),
        connection.cursor() as cursor,
    ):
        for name in filled:
            cursor.execute(f"DELETE FROM {quoted(name)}")
