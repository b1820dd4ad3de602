"""Settings of the workers that tests start: stores on Redis and DynamoDB beside the others."""

from __future__ import annotations

import os

from tests.settings import *  # noqa: F403
from tests.settings import IDEMPOTENCY as OTHERS

IDEMPOTENCY = {
    **OTHERS,
    "redis": {
        "BACKEND": "django_idempotency.stores.redis.RedisStore",
        "OPTIONS": {
            "url": os.environ["IDEMPOTENCY_TEST_BROKER"],
            "prefix": os.environ["IDEMPOTENCY_TEST_PREFIX"],
        },
    },
    "dynamodb": {
        "BACKEND": "django_idempotency.stores.dynamodb.DynamoDBStore",
        "OPTIONS": {
            "table_name": "tasks",
            "endpoint_url": os.environ["IDEMPOTENCY_TEST_TASKS_DYNAMODB"],
            "clock_skew": 0,
        },
    },
}
