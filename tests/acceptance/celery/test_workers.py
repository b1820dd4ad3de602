"""Real workers: duplicates, chains, chords, retries, limits, children (C6 to C10, C14, C15)."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterable

import pytest
from celery import chain, chord

from django_idempotency.models import IdempotencyRecord
from tests.acceptance.celery.stage import MODES, Test
from tests.app.models import Effect

pytestmark = [
    pytest.mark.processes,
    pytest.mark.leg("postgres18"),
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("workers"),
]


def effects(names: Iterable[str]) -> dict[str, int]:
    """A test's own: a message of the one before may come again, when the tables are empty."""
    found = Counter(Effect.objects.values_list("name", flat=True))
    return {name: found[name] for name in names}


class TestDoubleDelivery:
    """Two workers have one message at once: the broker lost patience with the first."""

    def test_C6_C8_R69_one_effect_and_one_result(self, stage: Test) -> None:
        names = {mode: f"held-{mode}" for mode in MODES}
        tasks = {mode: stage.send(f"held-{mode}", name) for mode, name in names.items()}

        # Each message comes again when its lease of 1 s would be over, and finds it renewed.
        for mode, task in tasks.items():
            stage.wait_for("retried", 2, id=task)
            stage.go(names[mode], 9)
        ends = {mode: stage.end(task) for mode, task in tasks.items()}
        for task in tasks.values():
            stage.wait_for("succeeded", 2, id=task)

        assert {mode: state for mode, (state, _) in ends.items()} == dict.fromkeys(MODES, "SUCCESS")
        assert {mode: stage.end(task) for mode, task in tasks.items()} == ends
        assert [len(stage.events("begun", id=task)) for task in tasks.values()] == [1] * len(MODES)
        assert effects(names.values()) == dict.fromkeys(names.values(), 1)

    def test_C8_R66_without_renewal_it_is_taken_over_and_its_completion_refused(
        self, stage: Test
    ) -> None:
        modes = ["joined", "separate", "redis", "dynamodb"]  # in `single` there is no lease
        tasks = {mode: stage.send(f"stalled-{mode}", f"stalled-{mode}") for mode in modes}

        for mode, task in tasks.items():
            stage.wait_for("succeeded", id=task)
            stage.go(f"stalled-{mode}")
        failed = {mode: stage.wait_for("failed", id=task) for mode, task in tasks.items()}
        ends = {mode: stage.end(task)[0] for mode, task in tasks.items()}

        assert ends == dict.fromkeys(modes, "SUCCESS")
        assert {event["error"] for events in failed.values() for event in events} == {"LeaseLost"}
        assert [len(stage.events("begun", id=task)) for task in tasks.values()] == [2] * len(modes)
        # With its completion, the work of the first was refused; elsewhere it had been committed.
        committed = {"joined": 1, "separate": 2, "redis": 2, "dynamodb": 2}
        assert effects(f"stalled-{mode}" for mode in modes) == {
            f"stalled-{mode}": count for mode, count in committed.items()
        }

    def test_C14_a_chord_whose_header_comes_twice_runs_its_body_once(self, stage: Test) -> None:
        held = stage.sig("held-joined", "header")
        result = chord([held, stage.sig("add", 1)], app=stage.app)(stage.sig("count"))
        [begun] = stage.wait_for("begun", name="header")

        stage.wait_for("retried", id=begun["id"])
        stage.go("header", 9)
        stage.wait_for("succeeded", 2, id=begun["id"])

        assert stage.end(result.id) == ("SUCCESS", 2)
        assert len(stage.events("succeeded", of="tests.count")) == 1
        assert effects(["header", "add"]) == {"header": 1, "add": 1}


class TestCanvas:
    def test_C14_a_chain(self, stage: Test) -> None:
        steps = [stage.sig("add", 1, 2), stage.sig("add", 3), stage.sig("add", 4)]

        assert stage.end(chain(*steps, app=stage.app).apply_async().id) == ("SUCCESS", 10)
        assert effects(["add"]) == {"add": 3}

    def test_C7_C14_a_task_is_replaced_once(self, stage: Test) -> None:
        assert stage.end(stage.send("replaced", 5, 6)) == ("SUCCESS", 11)
        assert effects(["replaced", "add"]) == {"replaced": 1, "add": 1}

    def test_C14_a_callback_is_sent_again_and_runs_once(self, stage: Test) -> None:
        after = stage.sig("add", 1).set(task_id="after")

        for count in (1, 2):
            stage.send("add", 1, task_id="before", link=after)
            stage.wait_for("succeeded", count, id="before")
        stage.wait_for("succeeded", 2, id="after")

        assert stage.end("after") == ("SUCCESS", 2)
        assert effects(["add"]) == {"add": 2}


class TestRetries:
    def test_C7_they_come_to_their_end_and_only_once(self, stage: Test) -> None:
        first = stage.send("retries", "retries", 2)

        assert stage.end(first) == ("SUCCESS", 2)
        stage.send("retries", "retries", 2, task_id=first)
        stage.wait_for("succeeded", 2, id=first)
        assert len(stage.events("begun", id=first)) == 3
        assert effects(["retries"]) == {"retries": 1}

    def test_C7_a_duplicate_of_a_final_failure_fails_at_once(self, stage: Test) -> None:
        first = stage.send("refused", "order-1")
        stage.wait_for("failed", id=first)

        again = stage.send("refused", "order-1")

        stage.wait_for("failed", id=again, error="ConnectionError")
        assert len(stage.events("begun", id=first)) == len(stage.events("retried", id=first)) + 1
        assert len(stage.events("retried", id=first)) == 2
        assert stage.events("begun", id=again) == stage.events("retried", id=again) == []


class TestLimits:
    @pytest.mark.parametrize(
        ("limit", "error"),
        [("soft_time_limit", "SoftTimeLimitExceeded"), ("time_limit", "TimeLimitExceeded")],
    )
    def test_C9_a_time_limit(self, stage: Test, limit: str, error: str) -> None:
        task = stage.send("limited", limit, 30, **{limit: 1})

        stage.wait_for("failed", id=task, error=error)
        if limit == "soft_time_limit":
            assert IdempotencyRecord.objects.get(key=task).state == "FAILED"
        assert effects([limit]) == {limit: 0}
        stage.send("limited", limit, 0, task_id=task)
        stage.wait_for("succeeded", id=task)
        assert effects([limit]) == {limit: 1}

    def test_C10_what_never_starts_leaves_no_record(self, stage: Test) -> None:
        revoked = stage.send("limited", "revoked", 0, countdown=1)
        stage.app.control.revoke(revoked)
        expired = stage.send("limited", "expired", 0, countdown=1, expires=0.3)

        for task in (revoked, expired):
            stage.wait_for("revoked", id=task)

        assert not IdempotencyRecord.objects.filter(key__in=[revoked, expired]).exists()
        assert effects(["revoked", "expired"]) == {"revoked": 0, "expired": 0}


class TestChildren:
    def test_C15_a_parent_that_is_killed_and_run_again_has_one_child(self, stage: Test) -> None:
        parent = stage.send("capture", "one")
        [begun] = stage.wait_for("begun", id=parent)

        os.kill(begun["pid"], signal.SIGKILL)
        stage.wait_for("begun", 2, id=parent)
        stage.go("one")

        assert stage.end(parent) == ("SUCCESS", "one")
        # Each run sent one before its commit, and the last one another one after it.
        stage.wait_for("succeeded", 3, of="tests.receipt")
        assert effects(["one", "receipt one"]) == {"one": 1, "receipt one": 1}
