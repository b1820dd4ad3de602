"""The index that a project may add: on each vendor it is made, used, and dropped again."""

from __future__ import annotations

import io

import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError, connection

from django_idempotency.operators import looks, search
from django_idempotency.records import Filters
from tests.claims import asked

pytestmark = pytest.mark.django_db(transaction=True)


def command(field, **options):
    said = io.StringIO()
    call_command("idempotency_index", field, stdout=said, **options)
    return said.getvalue()


@pytest.mark.parametrize("field", ["key", "operation"])
def test_an_index_lets_all_records_be_searched_and_is_dropped_again(store, monkeypatch, field):
    monkeypatch.setattr(looks, "MOST", 1)
    for number in range(3):
        store.claim(asked(f"key {number}", operation=f"operation {number}"))

    def found():
        if field == "key":
            return search.find(store, "key 0").records
        return looks.look(store, Filters(operation="operation 0")).records

    assert (looks.has_index(store, field), found()) == (False, ())
    assert "to one more index" in command(field)
    try:
        assert looks.has_index(store, field)
        assert [record.key for record in found()] == ["key 0"]
        assert command(field) == f"the index {looks.INDEXES[field]} is there\n"
    finally:
        assert command(field, drop=True) == f"the index {looks.INDEXES[field]} is dropped\n"
    assert not looks.has_index(store, field)
    command(field, drop=True)


@pytest.mark.leg("postgres18")
def test_an_index_that_was_never_finished_is_none_and_is_made_anew(store):
    command("key")
    try:
        with connection.cursor() as cursor:
            cursor.execute(
                "UPDATE pg_index SET indisvalid = false"
                " WHERE indexrelid = 'idempotency_key'::regclass"
            )
        assert not looks.has_index(store, "key")
        assert "is ready" in command("key")
        assert looks.has_index(store, "key")
    finally:
        command("key", drop=True)


def test_other_stores_have_no_index():
    for alias in ("memory", "nowhere"):
        with pytest.raises(CommandError) as refused:
            command("key", store=alias)
        assert refused.value.returncode == 2


@pytest.mark.leg("postgres18")
def test_an_index_is_that_of_the_table_in_this_schema(store):
    """As with a schema for each tenant, before `public`, which has an index of its own."""
    command("key")
    with connection.cursor() as cursor:
        cursor.execute("CREATE SCHEMA tenant")
        cursor.execute("CREATE TABLE tenant.idempotency_record (LIKE public.idempotency_record)")
        cursor.execute("SET search_path TO tenant, public")
    try:
        assert not looks.has_index(store, "key")
        command("key", drop=True)
        assert schemas_of_the_index() == ["public"]
        assert "is ready" in command("key")
        assert looks.has_index(store, "key")
        assert schemas_of_the_index() == ["public", "tenant"]
        with connection.cursor() as cursor:
            cursor.execute("SET search_path TO public, tenant")
        command("key", drop=True)
        assert schemas_of_the_index() == ["tenant"]
    finally:
        with connection.cursor() as cursor:
            cursor.execute("RESET search_path")
            cursor.execute("DROP SCHEMA tenant CASCADE")
        command("key", drop=True)


def schemas_of_the_index():
    with connection.cursor() as cursor:
        cursor.execute("SELECT schemaname FROM pg_indexes WHERE indexname = 'idempotency_key'")
        return sorted(name for (name,) in cursor.fetchall())


def test_a_database_that_does_not_answer_is_an_error_of_the_command(store, monkeypatch):
    def execute(*given):
        raise OperationalError("The server is gone.")

    for options in ({}, {"drop": True}):
        with connection.execute_wrapper(execute), pytest.raises(CommandError) as raised:
            command("key", **options)
        assert raised.value.returncode == 1
