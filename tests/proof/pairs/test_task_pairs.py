"""Each case of a task is asked: does the guard change what it leaves behind, is it done once?"""
# mypy: ignore-errors

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from unittest import mock

import pytest
from django.db import connections

from django_idempotency import InProgress, Uncertain
from django_idempotency.engine.renewal import lease_renewer
from django_idempotency.testing import crash_at
from django_idempotency.testing.crash import Crash
from tests.app.models import Effect
from tests.proof.pairs.expected import ExpectedOfTask
from tests.proof.pairs.features_of_tasks import task_cases
from tests.proof.pairs.tasks import Order, Shop
from tests.services.redis import redis_url

pytestmark = pytest.mark.django_db(transaction=True)

CASES = task_cases(os.environ["PAIRS_SEED"])


@pytest.fixture(scope="module")
def redis_server() -> Iterator[str]:
    with redis_url("valkey9") as url:
        yield url


def effects() -> list[str]:
    return sorted(Effect.objects.values_list("name", flat=True))


def ends(done: list) -> list:
    """Return the ends of deliveries, so that those of two apps compare."""
    return [(end.state, type(end.value), told(end.value)) for end in done]


def told(value):
    return str(value) if isinstance(value, Exception) else value


@pytest.mark.parametrize("case", CASES, ids=str)
def test_guard_changes_nothing_and_a_later_duplicate_has_the_result(case, redis_server):
    expected = ExpectedOfTask(case)
    with Shop(case, guarded=False, redis=redis_server).open() as bare:
        bare_done, bare_effects = bare.call(), effects()
    with Shop(case, guarded=True, redis=redis_server).open() as shop:
        done = shop.call()
        assert ends(done) == ends(bare_done)
        assert (shop.runs, shop.followed) == (bare.runs, bare.followed)
        assert effects() == expected.effects(bare_effects)
        runs, left = shop.runs, effects()
        if case.call == "eager":
            again = shop.call()
        else:
            again = shop.deliver(shop.first, redelivered=True)
            assert all(value == bare.followed[0] for value in shop.followed)
        if expected.is_replayed:
            assert (shop.runs, effects()) == (runs, left)
            assert ends(again[-1:]) == ends(done[-1:]) or expected.is_told_of_failure
        else:
            assert shop.runs == runs + 1
            assert effects() == left or not expected.has_steps
        if expected.is_replayed and case.key != "id":
            shop.order = Order.FIRST.value
            shop.call()  # another message, with the same key
            assert (shop.runs, effects()) == (runs, left)


#: The cases that have a message, which can come again.
SENT = [case for case in CASES if case.call != "eager"]


@pytest.mark.parametrize("case", SENT, ids=str)
def test_duplicate_while_the_first_is_at_work(case, redis_server):
    """The message comes to another worker meanwhile."""
    expected = ExpectedOfTask(case)
    with Shop(case, guarded=False, redis=redis_server).open() as bare:
        bare_done, bare_effects = bare.call(), effects()
    with Shop(case, guarded=True, redis=redis_server).open() as shop:
        shop.meanwhile = lambda: shop.beside(shop.first, redelivered=False)
        done = shop.call()
        assert shop.met.state == expected.met, shop.met
        assert expected.met != "FAILURE" or isinstance(shop.met.value, InProgress)
        assert shop.sent == bare.sent
        last = [end for end in ends(done) if end[0] in ("SUCCESS", "FAILURE")]
        assert last[0] == ends(bare_done)[-1]
        if expected.is_replayed:
            assert (shop.runs, effects()) == (bare.runs, expected.effects(bare_effects))
            if not expected.is_chord_counted_twice:
                assert shop.followed[:1] == bare.followed[:1]
        else:
            assert shop.runs in (bare.runs, bare.runs + 1)
            assert effects() == expected.effects(bare_effects) or not expected.has_steps


def renewed_by_nobody():
    """No renewal is under way when the worker dies: here its thread would live on."""
    return mock.patch.object(lease_renewer, "add")


@pytest.mark.parametrize("case", [case for case in SENT if case.result != "exception"], ids=str)
def test_redelivery_after_a_death(case, redis_server):
    """The worker dies after the work, and the broker delivers its message again."""
    expected = ExpectedOfTask(case)
    with Shop(case, guarded=False, redis=redis_server).open() as bare:
        bare_done = bare.call()
    with Shop(case, guarded=True, redis=redis_server, lease=0.2).open() as shop:
        with suppress(Crash), renewed_by_nobody(), crash_at("after_work"):
            shop.call()
        connections.close_all()
        assert shop.runs == 1
        done = shop.deliver(shop.first, redelivered=True)
        assert ends(done[-1:]) == ends(bare_done[-1:])
        assert (shop.runs, len(effects())) == (2, 1 if expected.is_done_once else 2)


#: The cases whose work is done in steps.
STEPS = [case for case in SENT if case.mode == "steps" and case.result != "exception"]


@pytest.mark.parametrize("case", STEPS, ids=str)
def test_T12_redelivery_after_a_death_in_a_call(case, redis_server):
    """The worker dies when another service was called: that is done again, or the task fails."""
    expected = ExpectedOfTask(case)
    with Shop(case, guarded=False, redis=redis_server).open() as bare:
        bare_done = bare.call()
    with Shop(case, guarded=True, redis=redis_server, lease=0.2).open() as shop:
        with suppress(Crash), renewed_by_nobody(), crash_at("in_work") as shop.in_call:
            shop.call()
        shop.in_call = bool
        connections.close_all()
        [done] = shop.deliver(shop.first, redelivered=True)[-1:]
        if expected.is_uncertain:
            assert (done.state, type(done.value)) == ("FAILURE", Uncertain)
        else:
            assert ends([done]) == ends(bare_done[-1:])
        assert (shop.runs, shop.calls, len(effects())) == (2, 2 - expected.is_uncertain, 1)
