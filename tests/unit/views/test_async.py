"""R57, R63: async views whose work commits with its record, and what a cancellation leaves."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack

import pytest
from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.db import connections
from django.test import AsyncClient

from django_idempotency.models import IdempotencyRecord
from tests.app.models import Effect
from tests.unit.http.api import replayed
from tests.unit.views.work import PAUSED

pytestmark = pytest.mark.django_db(transaction=True)

#: The view on the loop; the other kinds go through the same guard (test_kinds).
KIND = "async-function"


async def send(kind, body=PAUSED, key="key-1", *, context=True):
    """Send a request; ASGIHandler gives each a ThreadSensitiveContext, and others do not."""

    async def close():
        closing = asyncio.ensure_future(sync_to_async(connections.close_all)())
        try:
            await asyncio.shield(closing)
        finally:  # a cancellation at this moment must not leave a thread behind
            await closing

    async with AsyncExitStack() as stack:
        if context:
            await stack.enter_async_context(ThreadSensitiveContext())
            stack.push_async_callback(close)
        return await AsyncClient(raise_request_exception=False).post(
            f"/{kind}/",
            json.dumps(body),
            content_type="application/json",
            headers={"Idempotency-Key": key, "X-User": "alice"},
        )


def names() -> list[str]:
    return sorted(Effect.objects.values_list("name", flat=True))


def states() -> set[str]:
    return set(IdempotencyRecord.objects.values_list("state", flat=True))


@pytest.mark.parametrize(
    ("mode", "own_context"), [("single", True), ("joined", False)], indirect=["mode"]
)
def test_R57_failed_work_is_rolled_back(mode, own_context, in_loop):
    async def main():
        bodies = [{"then": "boom"}, {"then": "missing"}, {"then": "status", "status": 409}]
        answers = [
            await send(KIND, body, str(n), context=own_context) for n, body in enumerate(bodies)
        ]
        return [answer.status_code for answer in answers]

    assert in_loop(main) == [500, 404, 409]
    assert names() == ["first"]
    assert states() == {"FAILED", "RELEASED", "COMPLETED"}


def test_R18_default_of_async_views_is_separate(in_loop):
    in_loop(lambda: send(KIND, {"then": "boom"}))

    assert (names(), states()) == (["first"], {"FAILED"})


@pytest.mark.parametrize("mode", ["joined"], indirect=True)
def test_R57_connections_of_own_threads_are_closed(mode, in_loop):
    """A ResourceWarning of a connection that was left open would fail the test."""

    async def main():
        sent = [send(KIND, {"name": str(n)}, str(n), context=False) for n in range(4)]
        return [answer.status_code for answer in await asyncio.gather(*sent)]

    assert in_loop(main) == [201] * 4


def test_R63_cancelled_in_mid_work(mode, gate, in_loop, runs):
    """When the request is over, its lease is over, too; nothing runs on, and a retry runs."""

    async def main():
        task = asyncio.create_task(send(KIND))
        await asyncio.to_thread(gate.reached.wait, 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        left = await sync_to_async(states)(), await sync_to_async(names)()
        gate.open.set()
        return left, await send(KIND), await send(KIND)

    left, retried, again = in_loop(main)

    assert left == ({"FAILED"}, ["first"] if mode == "separate" else [])
    assert (retried.status_code, replayed(retried), replayed(again)) == (201, False, True)
    assert len(runs) == 2


def test_R63_cancelled_waiter_leaves_the_owner_alone(policy, gate, looks, in_loop):
    policy(WAIT=30)

    async def main():
        owner = asyncio.create_task(send(KIND))
        await asyncio.to_thread(gate.reached.wait, 10)
        waiter = asyncio.create_task(send(KIND))
        await asyncio.to_thread(looks.wait_for, 1)
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
        state = await sync_to_async(states)()
        gate.open.set()
        return state, await owner

    state, answer = in_loop(main)

    assert state == {"IN_PROGRESS"}
    assert (answer.status_code, states()) == (201, {"COMPLETED"})
