"""The shop's settings with a store in Redis beside its database, for ``benchmarks.runbook``."""

from __future__ import annotations

import os

from example_project.demo.settings import *  # noqa: F403

IDEMPOTENCY = {
    "default": {},
    "redis": {
        "BACKEND": "django_idempotency.stores.redis.RedisStore",
        "OPTIONS": {"url": os.environ["EXAMPLE_REDIS_URL"], "timeout": 30},
    },
}
