"""The Celery app of the workers that tests start (``celery --app``)."""

from __future__ import annotations

import os
from typing import Any

from celery import Celery

BROKER = "IDEMPOTENCY_TEST_BROKER"
PREFIX = "IDEMPOTENCY_TEST_PREFIX"
#: Where the messages are, if not with all else.
AMQP = "IDEMPOTENCY_TEST_TASKS_AMQP"

#: Seconds after which a message comes again that nobody has acknowledged.
VISIBILITY = 2


def configuration(url: str, prefix: str, amqp: str | None = None) -> dict[str, Any]:
    """
    Return the settings of an app whose messages and results lie on `url` under `prefix`.

    With `amqp` the messages are there.
    """
    on_redis = {
        "global_keyprefix": prefix,
        "visibility_timeout": VISIBILITY,
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
        # Who is killed while it looks for such messages keeps the others from it for so long.
        "unacked_mutex_expire": 2,
    }
    return {
        "broker_url": amqp or url,
        "broker_transport_options": on_redis if amqp is None else {},
        "broker_connection_retry_on_startup": True,
        "result_backend": url,
        "result_backend_transport_options": {"global_keyprefix": prefix},
        "result_extended": True,
        "task_acks_late": True,
        "task_always_eager": False,
        "task_reject_on_worker_lost": True,
        "worker_prefetch_multiplier": 1,
    }


if BROKER in os.environ:
    app = Celery("tests.acceptance.celery", include=["tests.acceptance.celery.tasks"])
    app.conf.update(configuration(os.environ[BROKER], os.environ[PREFIX], os.environ.get(AMQP)))
