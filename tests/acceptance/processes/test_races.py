"""Many clients at once, over several processes: one effect per key, one answer for all."""

from __future__ import annotations

import threading

import pytest

from tests.acceptance.processes.clients import SECONDS, post
from tests.app.models import Effect
from tests.services import current_leg
from tests.services.threads import run_in_threads

pytestmark = pytest.mark.processes

CLIENTS = 32
KEYS = [f"key-{number}" for number in range(10)]


@pytest.mark.parametrize("mode", ["single", "joined", "separate"])
def test_R50_equal_requests_at_once_have_one_effect_and_one_answer(serve, mode):
    # With connections that stay open the claims come closer together.
    server = serve(mode, CONN_MAX_AGE=60)
    together = threading.Barrier(CLIENTS, timeout=2 * SECONDS)
    refused = {(409, "in_progress")}
    if current_leg() == "sqlite":
        refused.add((503, "store_unavailable"))

    def send(index):
        answers = []
        for key in KEYS:
            together.wait()
            answers.append(post(server, key, {"name": key}))
        return answers

    by_client = run_in_threads(CLIENTS, send, seconds=5 * SECONDS)

    for key, answers in zip(KEYS, zip(*by_client, strict=True), strict=True):
        kept = [answer for answer in answers if 200 <= answer.status < 300]
        retry = post(server, key, {"name": key})
        assert {answer.body for answer in kept} == {retry.body}
        assert sum(not answer.replayed for answer in [*kept, retry]) == 1
        assert {(x.status, x.code) for x in answers if x not in kept} <= refused
    assert sorted(Effect.objects.values_list("name", flat=True)) == sorted(KEYS)


@pytest.mark.leg("postgres18")
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
    assert waiting.result(SECONDS).status == 201
