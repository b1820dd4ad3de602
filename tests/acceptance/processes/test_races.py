"""Many clients at once, over several processes: one effect per key, one answer for all."""

from __future__ import annotations

import threading

import pytest

from django_idempotency.models import IdempotencyRecord
from tests.acceptance.processes.clients import Answer, post
from tests.app.models import Effect
from tests.services import current_leg
from tests.services.gunicorn import Gunicorn
from tests.services.threads import run_in_threads

pytestmark = pytest.mark.processes

MODES = ["single", "joined", "separate"]
CLIENTS = 32
KEYS = [f"key-{number}" for number in range(10)]


def fire(server: Gunicorn) -> dict[str, list[Answer]]:
    """Let each client send each key, all of them the same key at the same moment."""
    together = threading.Barrier(CLIENTS, timeout=30)

    def send(index: int) -> list[Answer]:
        return [post(server, key, {"name": key}, connected=together.wait) for key in KEYS]

    by_client = run_in_threads(CLIENTS, send, seconds=90)
    return {key: [answers[place] for answers in by_client] for place, key in enumerate(KEYS)}


def violations(key: str, answers: list[Answer]) -> list[str]:
    """What is wrong with the answers to one key."""
    found = []
    kept = [answer for answer in answers if 200 <= answer.status < 300]
    if len({answer.body for answer in kept}) != 1:
        found.append(f"{key}: bodies of the answers differ")
    if sum(not answer.replayed for answer in kept) != 1:
        found.append(f"{key}: not exactly one first answer")
    refused = {(409, "in_progress")}
    if current_leg() == "sqlite":
        refused.add((503, "store_unavailable"))
    others = {(answer.status, answer.code) for answer in answers if answer not in kept}
    if not others <= refused:
        found.append(f"{key}: also answered {sorted(others - refused, key=str)}")
    return found


@pytest.mark.parametrize("mode", MODES)
def test_R50_equal_requests_at_once_have_one_effect_and_one_answer(serve, mode):
    # With connections that stay open the claims come closer together.
    server = serve(mode, workers=4, env={"IDEMPOTENCY_TEST_CONN_MAX_AGE": "60"})
    answers = fire(server)
    assert [found for key in KEYS for found in violations(key, answers[key])] == []
    assert sorted(Effect.objects.values_list("name", flat=True)) == sorted(KEYS)
    for key in KEYS:
        retry = post(server, key, {"name": key})
        assert retry.replayed
        assert retry.body in {answer.body for answer in answers[key]}


@pytest.mark.leg("postgres18", "sqlite")
def test_R26_every_later_duplicate_is_a_replay(serve):
    server = serve("joined")
    first = post(server, "key", {"name": "pay"})
    replays = run_in_threads(15, lambda index: post(server, "key", {"name": "pay"}))
    assert first.status == 201
    assert not first.replayed
    assert all(replay.replayed for replay in replays)
    assert {(replay.status, replay.body) for replay in replays} == {(201, first.body)}
    assert IdempotencyRecord.objects.count() == 1
    assert Effect.objects.count() == 1


@pytest.mark.leg("postgres18", "postgres16")
@pytest.mark.parametrize("mode", ["joined", "single"])
def test_R53_another_key_does_not_wait_for_work_under_way(serve, work, mode):
    server = serve(mode)
    slow = work("slow")
    waiting = slow.send(server)
    attempt = slow.begun()
    others = run_in_threads(8, lambda n: post(server, f"other-{n}", {"name": f"other-{n}"}))
    assert not waiting.done()
    attempt.go_on()
    assert [other.status for other in others] == [201] * 8
    assert waiting.result(10).status == 201
