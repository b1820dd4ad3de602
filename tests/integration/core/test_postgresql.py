"""What the engine and the checks make of a server: errors that only the driver sees, isolation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.core import checks
from django.db import DatabaseError, connection, connections, transaction
from django.test import override_settings
from psycopg import IsolationLevel

import django_idempotency as idempotency
from django_idempotency import WorkRolledBack
from django_idempotency.models import IdempotencyRecord
from tests.app.models import Effect
from tests.unit.core.conftest import run_in_loop

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "other"])

SERIALIZABLE = IsolationLevel.SERIALIZABLE
MEMORY = "django_idempotency.stores.memory.MemoryStore"


def run(work: Any, **arguments: Any) -> Any:
    return idempotency.run(work, key="k", scope="s", **arguments)


def swallow(using: str) -> Callable[[Any], str]:
    """Return work that swallows the error of a raw statement, which Django does not see."""

    def work(lease: Any) -> str:
        Effect.objects.using(using).create(name="work")
        with suppress(DatabaseError), connections[using].cursor() as cursor:
            cursor.execute("SELECT no_such_column")
        return "done"

    return work


@pytest.mark.django_db(transaction=False)
def test_R51_R84_waiter_in_a_TestCase_meets_what_is_not_committed() -> None:
    """The attempt that it waits for uses the same connection; another one would see its lock."""

    async def main() -> Any:
        working, go_on = asyncio.Event(), asyncio.Event()

        async def work(lease: Any) -> str:
            working.set()
            await go_on.wait()
            return "done"

        def call(wait: float) -> Any:
            return asyncio.ensure_future(
                idempotency.arun(work, key="k", scope="s", wait=wait, transaction="separate")
            )

        first = call(0)
        await working.wait()
        second = call(10)
        await asyncio.sleep(0.1)
        go_on.set()
        return await asyncio.gather(first, second)

    assert [outcome.replayed for outcome in async_to_sync(main)()] == [False, True]


@pytest.mark.parametrize("mode", ["joined", "single"])
def test_R91_error_of_a_raw_cursor_on_the_stores_alias(mode: str) -> None:
    with pytest.raises(WorkRolledBack):
        run(swallow("default"), transaction=mode)
    assert (Effect.objects.count(), IdempotencyRecord.objects.get().state) == (0, "FAILED")


@pytest.mark.parametrize("using", ["default", "other"])
def test_R91_error_of_a_raw_cursor_in_a_transaction_of_the_callers(
    settings: Any, using: str
) -> None:
    settings.IDEMPOTENCY = {"default": {"BACKEND": MEMORY}}
    with transaction.atomic(using=using), pytest.raises(WorkRolledBack):
        run(swallow(using))
    assert not run(lambda lease: "again").replayed


@pytest.mark.parametrize("where", ["option", "server"])
def test_W003_joined_alone_above_READ_COMMITTED(where: str, monkeypatch: Any) -> None:
    """A renewal would make the completion of `joined` fail."""

    def check(databases: Any = ("default",), **alias: Any) -> list[Any]:
        with override_settings(IDEMPOTENCY={"default": alias}):
            found = checks.run_checks(tags=["database"], databases=databases)
        return [it.id for it in found if str(it.id).startswith("django_idempotency")]

    assert check() == []
    with connection.cursor() as cursor:
        if where == "option":
            level = {**connection.settings_dict["OPTIONS"], "isolation_level": SERIALIZABLE}
            monkeypatch.setitem(connection.settings_dict, "OPTIONS", level)
        else:
            cursor.execute("SET default_transaction_isolation TO 'serializable'")
        for alias in ({}, {"TRANSACTION": "joined"}):
            assert check(**alias) == ["django_idempotency.W003"]
        quiet = {"TRANSACTION": "single"}, {"TRANSACTION": "separate"}, {"RENEW": False}
        for alias in (*quiet, {"LEESE": 5}):
            assert check(**alias) == []
        assert check(databases=()) == []  # those that are not asked for are not touched
        cursor.execute("RESET default_transaction_isolation")


def test_connections_of_the_threads_of_coroutines_are_closed() -> None:
    """Those of every alias that the work used: a ResourceWarning would fail the test."""
    used = []

    def work(lease: Any) -> None:
        for alias in ("default", "other"):
            Effect.objects.using(alias).create(name="x")
            used.append(connections[alias])

    async def main() -> None:
        keys = ("a", "b")
        awork = sync_to_async(work)
        calls = (idempotency.arun(awork, key=k, scope="s", transaction="joined") for k in keys)
        await asyncio.gather(*calls)

    run_in_loop(main)
    assert len({id(connection) for connection in used}) == 4
    assert {connection.connection for connection in used} == {None}
