"""One message that two workers have at once: the broker lost patience with the first (C6, C8)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest
from celery import chord

from tests.acceptance.celery.stage import MODES, Test
from tests.app.models import Effect
from tests.unit.celery.conftest import WorkerFactory

pytestmark = [
    pytest.mark.processes,
    pytest.mark.leg("postgres18"),
    pytest.mark.django_db(transaction=True),
]

#: Longer than the broker waits (2 s), and several times the lease (3 s).
LONG = 20.0


@pytest.fixture(scope="module", autouse=True)
def two_workers(workers: WorkerFactory) -> None:
    workers(2, concurrency=6)


def effects(names: Iterable[str]) -> dict[str, int]:
    """A test's own: a message of the one before may come again, when the tables are empty."""
    found = Counter(Effect.objects.values_list("name", flat=True))
    return {name: found[name] for name in names}


def test_C6_C8_one_effect_and_one_result(stage: Test) -> None:
    names = {mode: f"held-{mode}" for mode in MODES}
    tasks = {mode: stage.send(f"held-{mode}", name) for mode, name in names.items()}

    # Each message comes again, finds the first at work, and is sent again, more than once.
    for mode, task in tasks.items():
        stage.wait_for("retried", 2, id=task)
        stage.go(names[mode], 9)
    ends = {mode: stage.end(task) for mode, task in tasks.items()}
    for task in tasks.values():
        stage.wait_for("succeeded", 2, id=task)

    assert {mode: state for mode, (state, _) in ends.items()} == dict.fromkeys(MODES, "SUCCESS")
    assert {mode: stage.end(task) for mode, task in tasks.items()} == ends
    assert [len(stage.events("begun", id=task)) for task in tasks.values()] == [1] * len(MODES)
    assert set(effects(names.values()).values()) == {1}


def test_C6_a_duplicate_of_a_short_task_has_its_result_in_a_moment(stage: Test) -> None:
    first = stage.send("keyed", "short")
    stage.wait_for("begun", name="short")
    second = stage.send("keyed", "short")
    [retried, *_] = stage.wait_for("retried", id=second)

    stage.go("short")
    assert stage.end(first) == stage.end(second)

    [succeeded, *_] = stage.wait_for("succeeded", id=second)
    # 1 s, and what a busy machine adds; a lease has 60.
    assert succeeded["at"] - retried["at"] < 5
    assert len(stage.events("begun", name="short")) == 1


def test_C14_a_chord_whose_header_comes_twice_runs_its_body_once(stage: Test) -> None:
    held = stage.sig("held-joined", "header")
    result = chord([held, stage.sig("add", 1)], app=stage.app)(stage.sig("count"))
    [begun] = stage.wait_for("begun", name="header")

    stage.wait_for("retried", id=begun["id"])
    stage.go("header", 9)
    stage.wait_for("succeeded", 2, id=begun["id"])

    assert stage.end(result.id) == ("SUCCESS", 2)
    assert len(stage.events("succeeded", of="tests.count")) == 1
    assert effects(["header", "add"]) == {"header": 1, "add": 1}


def test_C8_R69_renewal_keeps_a_task_that_is_longer_than_its_lease(stage: Test) -> None:
    modes = ["joined", "separate", "redis", "dynamodb"]  # in `single` there is no lease to renew
    tasks = [stage.send(f"slow-{mode}", f"renewed-{mode}", LONG) for mode in modes]

    for task in tasks:
        stage.wait_for("succeeded", 2, id=task)

    assert all(stage.events("retried", id=task) for task in tasks)
    assert [len(stage.events("begun", id=task)) for task in tasks] == [1] * len(modes)
    assert set(effects(f"renewed-{mode}" for mode in modes).values()) == {1}


def test_C8_R66_without_renewal_it_is_taken_over_and_its_completion_refused(stage: Test) -> None:
    modes = ["joined", "separate", "redis", "dynamodb"]
    tasks = {mode: stage.send(f"unrenewed-{mode}", f"stalled-{mode}", LONG) for mode in modes}

    failed = {mode: stage.wait_for("failed", id=task) for mode, task in tasks.items()}
    ends = {mode: stage.end(task) for mode, task in tasks.items()}

    assert {mode: state for mode, (state, _) in ends.items()} == dict.fromkeys(modes, "SUCCESS")
    assert {event["error"] for events in failed.values() for event in events} == {"LeaseLost"}
    assert [len(stage.events("begun", id=task)) for task in tasks.values()] == [2] * len(modes)
    # With its completion, the work of the first was refused; elsewhere it had been committed.
    committed = {"joined": 1, "separate": 2, "redis": 2, "dynamodb": 2}
    assert effects(f"stalled-{mode}" for mode in modes) == {
        f"stalled-{mode}": count for mode, count in committed.items()
    }
