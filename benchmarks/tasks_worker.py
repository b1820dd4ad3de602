"""The worker of a task: eager, so that nothing hides the cost; on Redis, unless it is bare."""

from __future__ import annotations

import os
import threading
import uuid
from collections import Counter
from collections.abc import Callable
from typing import Any

from celery import Celery

from benchmarks.worker import first_and_replay, race

REDIS = os.environ["BENCHMARK_REDIS"]

CLAIM = """
local found = redis.call('HMGET', KEYS[1], 's', 'r')
if found[1] then return found end
redis.call('HSET', KEYS[1], 's', 'IN_PROGRESS', 't', ARGV[1])
redis.call('PEXPIRE', KEYS[1], 86400000)
return false
"""
COMPLETE = """
if redis.call('HGET', KEYS[1], 't') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 's', 'COMPLETED', 'r', ARGV[2])
return 1
"""


#: How often the work ran for each order.
effects: Counter[str] = Counter()
_mutex = threading.Lock()


def work(order: str) -> dict[str, int]:
    with _mutex:
        effects[order] += 1
    return {"amount": 1}


def prepare(variant: str) -> dict[str, Callable[..., Any]]:
    """Make the task, and return the commands."""
    app = Celery("bench", set_as_current=True)
    app.conf.task_always_eager = True
    app.conf.task_store_eager_result = False
    send = {
        "bare": _bare,
        "by hand": _by_hand,
        "celery-once": _celery_once,
        "celery-singleton": _celery_singleton,
        "Redis": _redis,
    }[variant](app)

    def race_on_one_key(times: int) -> list[int]:
        """Race 8 threads on one key, so often; how often the work ran each time."""
        orders = [str(uuid.uuid4()) for _ in range(times)]
        for order in orders:
            race(lambda order=order: send(order))  # type: ignore[misc]
        return [effects[order] for order in orders]

    return {**first_and_replay(send), "race": race_on_one_key}


def _bare(app: Celery) -> Callable[[str], Any]:
    @app.task(name="charge")
    def charge(order: str) -> dict[str, int]:
        return work(order)

    return lambda order: charge.apply_async(args=[order]).get()


def _by_hand(app: Celery) -> Callable[[str], Any]:
    import json

    import redis

    client = redis.Redis.from_url(REDIS)
    claim, complete = client.register_script(CLAIM), client.register_script(COMPLETE)

    @app.task(name="charge")
    def charge(order: str) -> Any:
        token = uuid.uuid4().bytes
        found = claim([f"charge:{order}"], [token])
        if found is not None:
            return json.loads(found[1])
        result = work(order)
        complete([f"charge:{order}"], [token, json.dumps(result)])
        return result

    return lambda order: charge.apply_async(args=[order]).get()


def _celery_once(app: Celery) -> Callable[[str], Any]:
    from celery_once import QueueOnce

    app.conf.ONCE = {
        "backend": "celery_once.backends.Redis",
        "settings": {"url": REDIS, "default_timeout": 3600},
    }

    @app.task(name="charge", base=QueueOnce, once={"graceful": True})
    def charge(order: str) -> dict[str, int]:
        return work(order)

    return lambda order: charge.apply_async(args=[order]).get()


def _celery_singleton(app: Celery) -> Callable[[str], Any]:
    from celery_singleton import Singleton

    app.conf.singleton_backend_url = REDIS

    @app.task(name="charge", base=Singleton)
    def charge(order: str) -> dict[str, int]:
        return work(order)

    return lambda order: charge.apply_async(args=[order]).get()


def _redis(app: Celery) -> Callable[[str], Any]:
    import django
    from django.conf import settings

    backend = "django_idempotency.stores.redis.RedisStore"
    settings.configure(
        INSTALLED_APPS=["django_idempotency"],
        IDEMPOTENCY={"default": {"BACKEND": backend, "OPTIONS": {"url": REDIS}}},
        SECRET_KEY="of a benchmark",  # noqa: S106
        USE_TZ=True,
    )
    django.setup()
    from django_idempotency.contrib.celery import idempotent_task

    @app.task(name="charge")
    @idempotent_task(key="order")
    def charge(order: str) -> dict[str, int]:
        return work(order)

    return lambda order: charge.apply_async(args=[order]).get()
