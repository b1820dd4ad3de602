"""R57, R63: async views whose work commits with its record, and what a cancellation leaves."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.db import connections
from django.test import AsyncClient

from django_idempotency.models import IdempotencyRecord
from tests.app.models import Effect
from tests.unit.http.api import replayed
from tests.unit.http.conftest import SetPolicy
from tests.unit.views.work import PAUSED, Gate

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def kind() -> str:
    """The view on the loop; the other kinds go through the same guard (test_kinds)."""
    return "async-function"


async def send(kind: str, body: Any = PAUSED, key: str = "key-1", *, context: bool = True) -> Any:
    async def post() -> Any:
        return await AsyncClient(raise_request_exception=False).post(
            f"/{kind}/",
            json.dumps(body),
            content_type="application/json",
            headers={"Idempotency-Key": key, "X-User": "alice"},
        )

    if not context:
        return await post()
    async with ThreadSensitiveContext():
        try:
            return await post()
        finally:
            closing = asyncio.ensure_future(sync_to_async(connections.close_all)())
            try:
                await asyncio.shield(closing)
            finally:  # a cancellation at this moment must not leave a thread behind
                await closing


def names() -> list[str]:
    return sorted(Effect.objects.values_list("name", flat=True))


def states(**which: str) -> set[str]:
    return set(IdempotencyRecord.objects.filter(**which).values_list("state", flat=True))


@pytest.mark.parametrize("mode", ["single", "joined"], indirect=True)
@pytest.mark.parametrize("own_context", [True, False], ids=["context of the request", "no context"])
def test_R57_failed_work_is_rolled_back(
    kind: str, mode: str, own_context: bool, in_loop: Any
) -> None:
    """ASGIHandler gives each request a ThreadSensitiveContext; others do not."""

    async def main() -> Any:
        failed = await send(kind, {"then": "boom"}, context=own_context)
        refused = await send(kind, {"then": "missing"}, "key-2", context=own_context)
        kept = await send(kind, {"then": "status", "status": 409}, "key-3", context=own_context)
        return [failed.status_code, refused.status_code, kept.status_code]

    assert in_loop(main) == [500, 404, 409]
    assert names() == ["first"]
    assert states() == {"FAILED", "RELEASED", "COMPLETED"}


def test_R18_default_of_async_views_is_separate(kind: str, in_loop: Any) -> None:
    in_loop(lambda: send(kind, {"then": "boom"}))

    assert names() == ["first"]
    assert states() == {"FAILED"}


@pytest.mark.parametrize("mode", ["single", "joined"], indirect=True)
def test_R57_connections_of_own_threads_are_closed(
    kind: str, mode: str, in_loop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ResourceWarning of a connection that was left open would fail the test."""

    async def main() -> list[int]:
        answers = await asyncio.gather(
            *(send(kind, {"name": str(n)}, str(n), context=False) for n in range(4))
        )
        return [answer.status_code for answer in answers]

    assert in_loop(main) == [201] * 4


def test_R63_cancelled_in_mid_work(
    kind: str, mode: str, gate: Gate, in_loop: Any, runs: list[str]
) -> None:
    """When the request is over, its lease is over, too; nothing runs on, and a retry runs."""

    async def main() -> Any:
        task = asyncio.create_task(send(kind))
        await asyncio.to_thread(gate.reached.wait, 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        left = await sync_to_async(states)(), await sync_to_async(names)()
        gate.open.set()
        return left, await send(kind), await send(kind)

    left, retried, again = in_loop(main)

    assert left == ({"FAILED"}, ["first"] if mode == "separate" else [])
    assert (retried.status_code, replayed(retried), replayed(again)) == (201, False, True)
    assert len(runs) == 2


def test_R63_cancelled_waiter_leaves_the_owner_alone(
    kind: str, policy: SetPolicy, gate: Gate, in_loop: Any
) -> None:
    policy(WAIT=30)

    async def main() -> Any:
        owner = asyncio.create_task(send(kind))
        await asyncio.to_thread(gate.reached.wait, 10)
        waiter = asyncio.create_task(send(kind))
        await asyncio.wait([waiter], timeout=0.2)
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
        state = await sync_to_async(states)()
        gate.open.set()
        return state, await owner

    state, answer = in_loop(main)

    assert state == {"IN_PROGRESS"}
    assert (answer.status_code, states()) == (201, {"COMPLETED"})
