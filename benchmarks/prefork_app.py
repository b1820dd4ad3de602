"""
The app of a task's variant: the prefork worker of it runs it, and `prefork_worker` sends to it.

Its broker, its locks or records, and what is counted are in one database of a Valkey server.
"""

from __future__ import annotations

import os
from typing import Any

import redis
from celery import Celery
from celery.signals import task_postrun, worker_process_init

VARIANT = os.environ["BENCHMARK_VARIANT"]
REDIS = os.environ["BENCHMARK_REDIS"]

app = Celery("bench", broker=REDIS, set_as_current=True)
app.conf.update(
    task_acks_late=True,
    task_ignore_result=True,
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
)
counted = redis.Redis.from_url(REDIS)


@worker_process_init.connect
def in_a_child(**about: Any) -> None:
    """A connection is one process's own."""
    counted.connection_pool.reset()


@task_postrun.connect
def note(**about: Any) -> None:
    """Count what has been delivered, replays included."""
    counted.incr("delivered")


def work(order: str) -> dict[str, int]:
    """The effect."""
    counted.hincrby("effects", order, 1)
    return {"amount": 1}


def charge(order: str) -> dict[str, int]:
    return work(order)


def _ours(store: dict[str, Any], database: dict[str, Any]) -> Any:
    import django
    from django.conf import settings

    settings.configure(
        DATABASES={"default": database} if database else {},
        INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "django_idempotency"],
        IDEMPOTENCY={"default": store},
        SECRET_KEY="of a benchmark",  # noqa: S106
        USE_TZ=True,
    )
    django.setup()
    if database:
        from django.core.management import call_command
        from django.db import connections

        call_command("migrate", verbosity=0)
        connections.close_all()
    from django_idempotency.contrib.celery import idempotent_task

    return app.task(name="charge")(idempotent_task(key="order")(charge))


def _task() -> Any:
    match VARIANT:
        case "bare":
            return app.task(name="charge")(charge)
        case "celery-once":
            from celery_once import QueueOnce

            app.conf.ONCE = {
                "backend": "celery_once.backends.Redis",
                "settings": {"url": REDIS, "default_timeout": 3600},
            }
            return app.task(name="charge", base=QueueOnce, once={"graceful": True})(charge)
        case "celery-singleton":
            from celery_singleton import Singleton

            app.conf.singleton_backend_url = REDIS
            return app.task(name="charge", base=Singleton)(charge)
        case "Redis":
            backend = "django_idempotency.stores.redis.RedisStore"
            return _ours({"BACKEND": backend, "OPTIONS": {"url": REDIS}}, {})
        case _:
            import json

            return _ours({}, json.loads(os.environ["BENCHMARK_DATABASE"]))


task = _task()
