"""The index that a project may add, as docs/howto/admin has it: on each vendor it is used."""

from __future__ import annotations

import re
from contextlib import contextmanager

import pytest
from django.db import connection

from django_idempotency.operators import search
from tests.claims import asked
from tests.pages import BLOCKS, DOCS

pytestmark = pytest.mark.django_db(transaction=True)


def statements():
    """Return the statements of the page that are for this vendor."""
    page = DOCS / "howto/admin.md"
    postgresql, mariadb = (it.text for it in BLOCKS if (it.page, it.language) == (page, "sql"))
    if connection.vendor == "mysql":
        return mariadb.splitlines()
    if connection.vendor == "sqlite":
        postgresql = postgresql.replace(" CONCURRENTLY", "")
    return postgresql.splitlines()


def execute(sql):
    with connection.cursor() as cursor:
        cursor.execute(sql)


@contextmanager
def indexed(field):
    """Have the index of the page."""
    [create] = (it for it in statements() if f"idempotency_{field} " in it)
    execute(create)
    try:
        yield
    finally:
        table = " ON idempotency_record" if connection.vendor == "mysql" else ""
        execute(f"DROP INDEX IF EXISTS {re.search(r'idempotency_[a-z]+', create)[0]}{table}")


@pytest.mark.parametrize("field", ["key", "operation"])
def test_an_index_lets_all_records_be_searched(store, monkeypatch, field):
    monkeypatch.setattr(search, "NEWEST", 1)
    for number in range(3):
        store.claim(asked(f"key {number}", operation=f"operation {number}"))

    def found():
        if field == "key":
            return search.find(store, "key 0").records
        return store.browse(filters={"operation": "operation 0"}, within=1).records

    assert (store.has_index(field), found()) == (False, ())
    with indexed(field):
        assert store.has_index(field)
        assert [record.key for record in found()] == ["key 0"]
    assert not store.has_index(field)


@pytest.mark.parametrize(
    "table",
    [
        pytest.param("elsewhere", marks=pytest.mark.leg("mariadb", "sqlite")),
        pytest.param("tenant.idempotency_record", marks=pytest.mark.leg("mariadb")),
    ],
)
def test_an_index_of_another_table_is_none(store, table):
    database, _, _ = table.rpartition(".")
    if database:
        execute(f"CREATE DATABASE {database}")
    execute(f"CREATE TABLE {table} (id integer)")
    try:
        execute(f"CREATE INDEX idempotency_key ON {table} (id)")
        assert not store.has_index("key")
    finally:
        execute(f"DROP TABLE {table}")
        if database:
            execute(f"DROP DATABASE {database}")


@pytest.mark.leg("postgres18")
def test_an_index_that_was_never_finished_is_none(store):
    with indexed("key"):
        execute(
            "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'idempotency_key'::regclass"
        )
        assert not store.has_index("key")


@pytest.mark.leg("postgres18")
def test_an_index_is_that_of_the_table_in_this_schema(store):
    """As with a schema for each tenant, before `public`, which has an index of its own."""
    with indexed("key"):
        execute("CREATE SCHEMA tenant")
        execute("CREATE TABLE tenant.idempotency_record (LIKE public.idempotency_record)")
        execute("SET search_path TO tenant, public")
        try:
            assert not store.has_index("key")
            execute("CREATE INDEX idempotency_key ON tenant.idempotency_record (key)")
            assert store.has_index("key")
        finally:
            execute("RESET search_path")
            execute("DROP SCHEMA tenant CASCADE")
