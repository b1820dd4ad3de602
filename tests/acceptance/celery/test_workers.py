"""Real workers: duplicates, chains, chords, retries, limits, children (C6 to C10, C14, C15)."""

from __future__ import annotations

import os
import signal
import uuid

import pytest
from celery import chain, chord

from django_idempotency import TaskFailed
from django_idempotency.models import IdempotencyRecord
from tests.acceptance.celery.stage import MODES, SECONDS
from tests.acceptance.effects import effects
from tests.services.processes import wait_until

pytestmark = [
    pytest.mark.processes,
    pytest.mark.leg("postgres18"),
    pytest.mark.django_db(transaction=True),
]
redelivered = pytest.mark.usefixtures("workers")


def effects_of(*names):
    """A test's own: a message of the one before may come again, when the tables are empty."""
    found = effects()
    return [found[name] for name in names]


@redelivered
def test_C6_C8_R69_a_message_that_two_workers_have_has_one_effect_and_one_result(stage):
    tasks = {mode: stage.send(f"held-{mode}", f"held-{mode}") for mode in MODES}

    # Each message comes again when its lease would be over, and finds it renewed.
    for mode, task in tasks.items():
        stage.wait_for_a_refusal_after_the_lease(task)
        stage.go(f"held-{mode}", 9)
    ends = [stage.end(task) for task in tasks.values()]
    for task in tasks.values():
        stage.wait_for("succeeded", 2, id=task)

    assert {state for state, _ in ends} == {"SUCCESS"}
    assert [stage.end(task) for task in tasks.values()] == ends
    assert [len(stage.events("begun", id=task)) for task in tasks.values()] == [1] * len(MODES)
    assert effects_of(*(f"held-{mode}" for mode in MODES)) == [1] * len(MODES)


@redelivered
def test_C8_R66_without_renewal_it_is_taken_over_and_its_completion_refused(stage):
    # With its completion, the work of the first is refused; elsewhere it has been committed. In
    # `single` there is no lease.
    committed = {"joined": 1, "separate": 2, "redis": 2, "dynamodb": 2}
    tasks = {mode: stage.send(f"stalled-{mode}", f"stalled-{mode}") for mode in committed}

    for mode, task in tasks.items():
        stage.wait_for("succeeded", id=task)
        stage.go(f"stalled-{mode}")
    failed = [event for task in tasks.values() for event in stage.wait_for("failed", id=task)]

    assert {stage.end(task)[0] for task in tasks.values()} == {"SUCCESS"}
    assert {event["error"] for event in failed} == {"LeaseLost"}
    assert [len(stage.events("begun", id=task)) for task in tasks.values()] == [2] * len(tasks)
    assert effects_of(*(f"stalled-{mode}" for mode in committed)) == [*committed.values()]


@redelivered
def test_C14_a_chord_whose_header_comes_twice_runs_its_body_once(stage):
    held = stage.sig("held-joined", "header")
    result = chord([held, stage.sig("add", 1)], app=stage.app)(stage.sig("count"))
    [begun] = stage.wait_for("begun", name="header")

    stage.wait_for("retried", id=begun["id"])
    stage.go("header", 9)
    stage.wait_for("succeeded", 2, id=begun["id"])

    assert stage.end(result.id) == ("SUCCESS", 2)
    assert len(stage.events("succeeded", of="tests.count")) == 1
    assert effects_of("header", "add") == [1, 1]


def test_C14_C7_a_chain_goes_on_and_a_task_is_replaced_once(calm):
    steps = [calm.sig("add", 1, 2), calm.sig("add", 3), calm.sig("replaced", 4)]

    assert calm.end(chain(*steps, app=calm.app).apply_async().id) == ("SUCCESS", 10)
    # It sends its replacement, which may be faster, before it commits.
    wait_until(lambda: effects_of("replaced") == [1], seconds=SECONDS, what="its commit")
    assert effects_of("add") == [3]


def test_C7_retries_come_to_their_end_and_only_once(calm):
    first = calm.send("retries", "retries", 2)

    assert calm.end(first) == ("SUCCESS", 2)
    calm.send("retries", "retries", 2, task_id=first)
    calm.wait_for("succeeded", 2, id=first)
    assert len(calm.events("begun", id=first)) == 3
    assert effects_of("retries") == [1]


def test_C7_a_duplicate_of_a_failure_says_what_it_was_by_its_result_backend(calm):
    task = calm.send("declines", "declines")
    calm.wait_for("failed", id=task, error="Declined")
    calm.send("declines", "declines", task_id=task)
    calm.wait_for("failed", id=task, error="TaskFailed")

    state, error = calm.end(task)
    assert (state, type(error)) == ("FAILURE", TaskFailed)
    assert error.kind == "tests.acceptance.celery.tasks.Declined"
    assert error.arguments == ["no money", 7]
    assert effects_of("declines") == [0]


@pytest.mark.parametrize(
    ("limit", "error"),
    [("soft_time_limit", "SoftTimeLimitExceeded"), ("time_limit", "TimeLimitExceeded")],
)
def test_C9_a_time_limit(calm, limit, error):
    task = calm.send("limited", limit, 300, **{limit: 3})

    calm.wait_for("failed", id=task, error=error)
    if limit == "soft_time_limit":
        assert IdempotencyRecord.objects.get(key=task).state == "FAILED"
    assert effects_of(limit) == [0]
    calm.send("limited", limit, 0, task_id=task)
    calm.wait_for("succeeded", id=task)
    assert effects_of(limit) == [1]


def test_C10_what_never_starts_leaves_no_record(calm):
    revoked = str(uuid.uuid4())
    # The worker knows of it before there is a task.
    assert calm.app.control.revoke(revoked, reply=True, limit=1, timeout=SECONDS)
    calm.send("limited", "revoked", 0, task_id=revoked)
    expired = calm.send("limited", "expired", 0, countdown=1, expires=0.3)

    for task in (revoked, expired):
        calm.wait_for("revoked", id=task)

    assert not IdempotencyRecord.objects.filter(key__in=[revoked, expired]).exists()
    assert effects_of("revoked", "expired") == [0, 0]


def test_C15_a_parent_that_is_killed_and_run_again_has_one_child(calm):
    parent = calm.send("capture", "one")
    [begun] = calm.wait_for("begun", id=parent)

    os.kill(begun["pid"], signal.SIGKILL)
    calm.wait_for("begun", 2, id=parent)
    calm.go("one")

    assert calm.end(parent) == ("SUCCESS", "one")
    # Each run sent one before its commit, and the last one another one after it.
    calm.wait_for("succeeded", 3, of="tests.receipt")
    assert effects_of("one", "receipt one") == [1, 1]
