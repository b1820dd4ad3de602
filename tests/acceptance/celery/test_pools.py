"""Other pools than prefork: threads, greenlets, and none at all (C13)."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.acceptance.celery.stage import Test
from tests.app.models import Effect
from tests.unit.celery.conftest import WorkerFactory

pytestmark = [
    pytest.mark.processes,
    pytest.mark.leg("postgres18"),
    pytest.mark.django_db(transaction=True),
]


@pytest.mark.parametrize("pool", ["threads", "gevent", "solo"])
def test_C13_C8_a_lease_is_renewed_in_each_pool(
    stage: Test, workers: WorkerFactory, pool: str
) -> None:
    modes = ["joined"] if pool == "solo" else ["joined", "separate", "redis"]
    # A queue of its own: what a killed worker has not acknowledged comes again.
    [first] = workers(pool=pool, concurrency=4, queues=pool)
    tasks = {mode: stage.send(f"held-{mode}", f"{pool} {mode}", queue=pool) for mode in modes}
    for task in tasks.values():
        stage.wait_for("begun", id=task)

    # Another worker gets the messages when the broker has lost its patience with the first.
    [second] = workers(pool="threads", concurrency=4, queues=pool)
    for task in tasks.values():
        stage.wait_for("retried", 2, id=task)
    for mode in modes:
        stage.go(f"{pool} {mode}", 9)
    for task in tasks.values():
        stage.wait_for("succeeded", 2, id=task)
    first.kill()
    second.kill()

    assert [len(stage.events("begun", id=task)) for task in tasks.values()] == [1] * len(modes)
    assert Counter(Effect.objects.values_list("name", flat=True)) == {
        f"{pool} {mode}": 1 for mode in modes
    }
