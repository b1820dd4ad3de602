"""Attempts of several keys at work on one loop at a time, and a lease that is lost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connections

import django_idempotency as idempotency
from tests.app.models import Effect
from tests.unit.core.conftest import run_in_loop

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "other"])

JOINS = pytest.mark.parametrize("mode", ["joined", "single"])


async def arun(work: Any, key: str = "k", **arguments: Any) -> Any:
    return await idempotency.arun(work, key=key, scope="s", **arguments)


def names() -> list[str]:
    return sorted(Effect.objects.values_list("name", flat=True))


@JOINS
def test_I5_the_failure_of_one_leaves_the_others_rows(mode: str) -> None:
    """
    Both have written before the first one fails; then the second one goes on.

    On one shared connection the second one's commit would be a savepoint of the first one's
    transaction.
    """

    async def main() -> None:
        written = [asyncio.Event(), asyncio.Event()]
        failed = asyncio.Event()

        async def failing(lease: Any) -> None:
            await Effect.objects.acreate(name="failing")
            written[0].set()
            await written[1].wait()
            raise ValueError("boom")

        async def standing(lease: Any) -> None:
            await written[0].wait()
            await Effect.objects.acreate(name="before")
            written[1].set()
            await failed.wait()
            await Effect.objects.acreate(name="after")

        other = asyncio.create_task(arun(standing, "standing", transaction=mode))
        with pytest.raises(ValueError, match="boom"):
            await arun(failing, "failing", transaction=mode)
        failed.set()
        await other

    run_in_loop(main)
    assert names() == ["after", "before"]


@JOINS
def test_connections_of_their_threads_are_closed(mode: str) -> None:
    """Those of every alias that the work used: a ResourceWarning would fail the test."""
    used = []

    def work(lease: Any) -> None:
        for alias in ("default", "other"):
            Effect.objects.using(alias).create(name="x")
            used.append(connections[alias])

    async def main() -> None:
        calls = (arun(sync_to_async(work), str(n), transaction=mode) for n in range(2))
        await asyncio.gather(*calls)

    run_in_loop(main)
    assert len({id(connection) for connection in used}) == 4
    assert {connection.connection for connection in used} == {None}
