"""1 000 attempts on PostgreSQL and Redis: one terminal signal each, and metrics that agree."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any
from uuid import uuid4

import pytest
from asgiref.sync import sync_to_async
from celery import Celery, _state
from django.conf import settings as django_settings
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import path
from opentelemetry import metrics as otel
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import REGISTRY

import django_idempotency as idempotency
from django_idempotency import signals
from django_idempotency.claims import Resolution
from django_idempotency.conf import store_for
from django_idempotency.contrib.celery import idempotent_task
from django_idempotency.http import idempotent
from django_idempotency.leases import Lease
from django_idempotency.records import State
from django_idempotency.stores.base import BaseStore
from tests.services import or_skip
from tests.services.redis import redis_url
from tests.services.threads import run_in_threads
from tests.unit.core.conftest import run_in_loop

APPS = ["django_idempotency.contrib.prometheus", "django_idempotency.contrib.opentelemetry"]
THREADS = 4
#: Attempts of one round, below.
EXPECTED = {
    "completed": 2,
    "conflicted": 1,
    "replayed": 2,
    "mismatched": 1,
    "failed": 1,
    "released": 1,
    "lease_lost": 1,
    "store_failed": 1,
}
ROUNDS = 100

Work = Callable[[Lease], Any]
#: What a view and a task run: the work of a key.
works: dict[str, Work] = {}


def view(alias: str) -> Any:
    @idempotent(store=alias, scope=lambda request: "s", required=True)
    def pay(request: HttpRequest, amount: str) -> HttpResponse:
        lease = idempotency.current()
        assert lease is not None
        works[request.headers["Idempotency-Key"]](lease)
        return HttpResponse("paid", status=201)

    return pay


urlpatterns = [path(f"{alias}/<amount>/", view(alias)) for alias in ("default", "fast", "down")]

tasks: dict[str, Any] = {}


def add_tasks(app: Celery) -> None:
    app.conf.task_always_eager = True
    for alias in ("default", "fast", "down"):

        @app.task(name=f"told.{alias}", shared=False)
        @idempotent_task(key="key", store=alias, scope="s", on_in_progress="raise")
        def charge(key: str, amount: int) -> None:
            lease = idempotency.current()
            assert lease is not None
            works[key](lease)

        tasks[alias] = charge


def request(alias: str, key: str, amount: int) -> None:
    client = Client(raise_request_exception=False)
    client.post(f"/{alias}/{amount}/", headers={"Idempotency-Key": key})


def deliver(alias: str, key: str, amount: int) -> None:
    tasks[alias].apply(args=[key, amount])


def call(alias: str, key: str, amount: int) -> None:
    idempotency.run(works[key], key=key, scope="s", payload=amount, store=alias)


def await_call(alias: str, key: str, amount: int) -> None:
    if idempotency.current() is not None:  # within the work, on a thread of the loop
        return call(alias, key, amount)
    work = sync_to_async(works[key])
    asked: Any = {"key": key, "scope": "s", "payload": amount, "store": alias}
    run_in_loop(lambda: idempotency.arun(work, **asked))


def fail(lease: Lease) -> None:
    raise ZeroDivisionError


def lose(store: BaseStore) -> Work:
    def work(lease: Lease) -> None:
        """Have an operator complete the record."""
        state, epoch = State.IN_PROGRESS, lease.fencing_token
        decision = Resolution("complete", epoch, state, force=True, result=b"by an operator")
        assert store.resolve(lease.record_id, decision)

    return work


def play(adapter: Callable[[str, str, int], None], alias: str) -> None:
    """Be one round: ten attempts."""

    def attempt(work: Work, key: str, amount: int = 1, alias: str = alias) -> None:
        works[key] = work
        with suppress(idempotency.IdempotencyError, ZeroDivisionError):
            adapter(alias, key, amount)

    def busy(lease: Lease) -> None:
        attempt(busy, first)

    def done(lease: Lease) -> None:
        pass

    first, second, third = (f"{uuid4()}" for _ in range(3))
    attempt(busy, first)  # and a duplicate while it runs
    attempt(fail, first)
    attempt(fail, first)
    attempt(fail, first, amount=2)
    attempt(fail, second)
    attempt(done, second)
    attempt(lose(store_for(alias)), third)
    attempt(done, third, alias="down")
    with idempotency.attempt(key=str(uuid4()), scope="s", store=alias, operation="released"):
        pass


@pytest.fixture(scope="session")
def reader() -> InMemoryMetricReader:
    """Read the metrics of the process, which takes one MeterProvider in its life."""
    reader = InMemoryMetricReader()
    otel.set_meter_provider(MeterProvider([reader]))
    return reader


@pytest.fixture
def installed(
    settings: Any, reader: InMemoryMetricReader, monkeypatch: pytest.MonkeyPatch
) -> Iterator[InMemoryMetricReader]:
    with or_skip(lambda: redis_url()) as url:
        redis = "django_idempotency.stores.redis.RedisStore"
        settings.IDEMPOTENCY = {
            "default": {},
            "fast": {
                "BACKEND": redis,
                "OPTIONS": {"url": url, "prefix": f"{uuid4()}:", "timeout": 30},
            },
            "down": {"BACKEND": redis, "OPTIONS": {"url": "redis://127.0.0.1:1/0"}},
        }
        settings.ROOT_URLCONF = __name__
        settings.INSTALLED_APPS = [*django_settings.INSTALLED_APPS, *APPS]
        # As before when the test is over: a default app has the tasks of all modules, for checks.
        monkeypatch.setattr(_state, "default_app", None)
        add_tasks(Celery("told", set_as_current=False))
        from django_idempotency.contrib.opentelemetry.metrics import metrics as opentelemetry
        from django_idempotency.contrib.prometheus.metrics import metrics as prometheus

        yield reader
        opentelemetry.disconnect()
        prometheus.disconnect()


def in_prometheus(name: str) -> Counter[tuple[str, str]]:
    counts: Counter[tuple[str, str]] = Counter()
    for family in REGISTRY.collect():
        for sample in family.samples:
            if sample.name == name:
                labels = sample.labels
                counts[labels["alias"], labels.get("outcome", "")] += int(sample.value)
    return +counts


def in_opentelemetry(reader: InMemoryMetricReader, name: str) -> Counter[tuple[str, str]]:
    counts: Counter[tuple[str, str]] = Counter()
    data = reader.get_metrics_data()
    assert data is not None
    for metric in data.resource_metrics[0].scope_metrics[0].metrics:
        for point in metric.data.data_points if metric.name == name else ():
            found = dict(point.attributes or {})
            value = getattr(point, "value", None)
            count = point.count if value is None else value  # type: ignore[union-attr]
            counts[str(found["alias"]), str(found.get("outcome", ""))] += int(count)
    return +counts


@pytest.mark.django_db(transaction=True)
def test_each_of_a_thousand_attempts_has_one_terminal_event(
    installed: InMemoryMetricReader,
) -> None:
    mutex, heard = threading.Lock(), Counter[tuple[str, str]]()

    def receive(signal: Any, alias: str, **facts: Any) -> None:
        [name] = [name for name, known in signals.TERMINAL.items() if known is signal]
        with mutex:
            heard[alias, name] += 1

    for signal in signals.TERMINAL.values():
        signal.connect(receive)
    before = in_prometheus("django_idempotency_attempts_total")
    kinds = list(itertools.product((request, deliver, call, await_call), ("default", "fast")))
    try:
        run_in_threads(
            THREADS,
            lambda index: [
                play(*kinds[number % len(kinds)]) for number in range(index, ROUNDS, THREADS)
            ],
            seconds=300,
        )
    finally:
        for signal in signals.TERMINAL.values():
            signal.disconnect(receive)

    expected: Counter[tuple[str, str]] = Counter()
    for number in range(ROUNDS):
        for name, count in EXPECTED.items():
            alias = "down" if name == "store_failed" else kinds[number % len(kinds)][1]
            expected[alias, name] += count
    assert heard == expected
    assert heard.total() == 1000
    assert in_prometheus("django_idempotency_attempts_total") - before == expected
    assert in_opentelemetry(installed, "django_idempotency_attempts") == expected

    calls = in_prometheus("django_idempotency_store_call_seconds_count")
    assert calls == in_opentelemetry(installed, "django_idempotency_store_call_seconds")
    assert calls["down", "error"] == ROUNDS
    assert min(calls["default", "ok"], calls["fast", "ok"]) > 5 * ROUNDS
    assert in_prometheus("django_idempotency_in_flight") == Counter()
    assert in_opentelemetry(installed, "django_idempotency_in_flight") == Counter()
