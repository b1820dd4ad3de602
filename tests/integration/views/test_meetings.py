"""R51, R57: requests that meet while a transaction has written; SQLite queues them itself."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.app.models import Effect
from tests.unit.http.api import replayed
from tests.unit.http.conftest import SetPolicy
from tests.unit.views.conftest import Looks, sending, together
from tests.unit.views.test_async import send
from tests.unit.views.work import PAUSED, Gate

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.leg("postgres18", "postgres16"),
]

in_a_transaction = pytest.mark.parametrize("mode", ["single", "joined"], indirect=True)


def test_R51_single_waits_as_well(
    policy: SetPolicy, gate: Gate, looks: Looks, runs: list[str]
) -> None:
    policy(TRANSACTION="single", WAIT=30)
    with together(sending("function")) as first:
        assert gate.reached.wait(10)
        with together(*[sending("function")] * 3) as others:
            looks.wait_for(6)
            gate.open.set()

    assert [replayed(answer) for answer in (*first, *others)] == [False, True, True, True]
    assert len(runs) == 1


@in_a_transaction
@pytest.mark.parametrize("own_context", [True, False], ids=["context of the request", "no context"])
def test_R57_failure_of_one_leaves_the_others_rows(
    mode: str, own_context: bool, gate: Gate, in_loop: Any
) -> None:
    """Both have written before the first one fails; on one connection that would take both."""

    async def main() -> Any:
        body = {**PAUSED, "name": "failing", "after": "boom"}
        failing = asyncio.create_task(send("async-function", body, context=own_context))
        await asyncio.to_thread(gate.reached.wait, 10)
        body = {"name": "standing"}
        standing = await send("async-function", body, "key-2", context=own_context)
        gate.open.set()
        return standing.status_code, (await failing).status_code

    assert in_loop(main) == (201, 500)
    assert [effect.name for effect in Effect.objects.all()] == ["standing"]
