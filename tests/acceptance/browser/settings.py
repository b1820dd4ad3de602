"""The shop's settings with a store of each kind, for the tests of the admin."""

from __future__ import annotations

import os

from example_project.demo.settings import *  # noqa: F403
from example_project.demo.settings import IDEMPOTENCY as SHOPS
from example_project.demo.settings import MIDDLEWARE as SHOP_MIDDLEWARE

ROOT_URLCONF = "tests.acceptance.browser.urls"
MIDDLEWARE = [*SHOP_MIDDLEWARE]
MIDDLEWARE.insert(2, "django.middleware.locale.LocaleMiddleware")
IDEMPOTENCY = {
    **SHOPS,
    "redis": {
        "BACKEND": "django_idempotency.stores.redis.RedisStore",
        "OPTIONS": {"url": os.environ["EXAMPLE_REDIS_URL"], "timeout": 30},
    },
    "dynamodb": {
        "BACKEND": "django_idempotency.stores.dynamodb.DynamoDBStore",
        "OPTIONS": {
            "table_name": "idempotency",
            "endpoint_url": os.environ["EXAMPLE_DYNAMODB_URL"],
            "clock_skew": 0.0,
            "timeout": 30,
        },
    },
    "events": {
        "BACKEND": "django_idempotency.stores.redis.RedisStore",
        "OPTIONS": {"url": "redis://127.0.0.1:9/0"},  # where no server is
    },
}
