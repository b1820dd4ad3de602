"""A process dies in a call that may not be repeated, and an operator decides a day later (S13)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
import redis
from django.core.management import call_command
from django.db.models import F

from django_idempotency import Uncertain, keys
from django_idempotency.conf import store_for
from django_idempotency.models import IdempotencyRecord
from django_idempotency.records import State
from tests.acceptance.processes.checkout import DIED, Checkout, effects
from tests.acceptance.processes.test_steps import in_journal, record_of, run_in
from tests.services.forks import Forks
from tests.services.redis import redis_url

PIECES = ("order", "charge", "paid")
RECORD_ID = keys.record_id("call", "s", "k")
#: Longer than a record lives that is not held.
DAY = timedelta(hours=25)
POLICY = {"RETENTION": 20 * 3600}
TIMES = ("created_at", "updated_at", "lease_until", "expires_at")

Age = Callable[[], None]


@contextmanager
def on_a_database(settings: Any) -> Iterator[Age]:
    settings.IDEMPOTENCY = {"default": POLICY}
    aged = {name: F(name) - DAY for name in TIMES}
    yield lambda: assert_one(IdempotencyRecord.objects.update(**aged))


@contextmanager
def on_redis(settings: Any) -> Iterator[Age]:
    with redis_url() as url, redis.Redis.from_url(url) as client:
        alias = {
            "BACKEND": "django_idempotency.stores.redis.RedisStore",
            "OPTIONS": {"url": url, "prefix": "held:"},
        }
        settings.IDEMPOTENCY = {"default": {**POLICY, **alias}}
        name = f"held:{RECORD_ID}"

        def age() -> None:
            for time in set(TIMES) & {field.decode() for field in client.hkeys(name)}:
                client.hincrby(name, time, -DAY // timedelta(microseconds=1))
            if (left := client.pttl(name)) != -1:  # the server is to delete it some time
                client.pexpire(name, left - DAY // timedelta(milliseconds=1))

        yield age
        client.delete(name)


def assert_one(number: int) -> None:
    assert number == 1


@pytest.fixture(params=[on_a_database, pytest.param(on_redis, marks=pytest.mark.leg("postgres18"))])
def pass_a_day(
    request: pytest.FixtureRequest, settings: Any, transactional_db: None
) -> Iterator[Age]:
    """Let the records of a store be a day older, and then sweep them."""
    with request.param(settings) as age:

        def pass_a_day() -> None:
            age()
            call_command("idempotency_sweep", verbosity=0)

        yield pass_a_day


def test_S13_a_call_that_nobody_knows_of_is_held_until_an_operator_resumes_it(
    forks: Forks, pass_a_day: Age
) -> None:
    checkout = Checkout(PIECES, "refuse")
    assert run_in(forks, Checkout(PIECES, "refuse", piece="charge", point="in")) == DIED
    for state in (State.IN_PROGRESS, State.FAILED):
        pass_a_day()
        assert record_of("k").state is state
        assert in_journal(checkout) == (["order"], ["charge"])
        with pytest.raises(Uncertain):
            checkout.run()
    pass_a_day()
    call_command("idempotency_resume", "k", done='"told"', yes=True, verbosity=0)

    assert checkout.run() == ["order", "told", "paid"]
    assert effects() == ["order", "charge", "paid"]
    assert record_of("k").state is State.COMPLETED


def test_S13_a_call_that_may_be_repeated_holds_nothing(forks: Forks, pass_a_day: Age) -> None:
    assert run_in(forks, Checkout(PIECES, "repeat", piece="charge", point="in")) == DIED
    assert record_of("k").state is State.IN_PROGRESS
    pass_a_day()
    assert store_for().get(RECORD_ID) is None
