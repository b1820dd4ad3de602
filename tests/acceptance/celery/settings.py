"""Settings of the workers that tests start: stores on Redis and DynamoDB beside the others."""

from __future__ import annotations

import os

from tests.settings import *  # noqa: F403
from tests.settings import IDEMPOTENCY as OTHERS

_redis = {
    "url": os.environ["IDEMPOTENCY_TEST_BROKER"],
    "prefix": os.environ["IDEMPOTENCY_TEST_PREFIX"],
    "timeout": 30,
}
_endpoint = os.environ["IDEMPOTENCY_TEST_TASKS_DYNAMODB"]
_table = {"table_name": "tasks", "endpoint_url": _endpoint, "clock_skew": 0, "timeout": 30}
IDEMPOTENCY = {
    **OTHERS,
    "redis": {"BACKEND": "django_idempotency.stores.redis.RedisStore", "OPTIONS": _redis},
    "dynamodb": {"BACKEND": "django_idempotency.stores.dynamodb.DynamoDBStore", "OPTIONS": _table},
}
