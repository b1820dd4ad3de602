"""Django settings of the served views: the tests' own, with all kinds of guards and stores."""

from __future__ import annotations

from tests.settings import *  # noqa: F403
from tests.settings import DATABASES as TESTS_DATABASES

ROOT_URLCONF = "tests.app.contract.urls"
MIDDLEWARE = [
    "django.middleware.common.CommonMiddleware",
    "tests.app.contract.views.Programs",
    "django_idempotency.http.middleware.IdempotencyMiddleware",
]
# Nothing listens on port 1: that database is down.
DATABASES = {**TESTS_DATABASES, "down": {**TESTS_DATABASES["default"], "PORT": "1"}}
IDEMPOTENCY = {
    "default": {},
    "incomplete": {"BACKEND": "tests.unit.http.stores.CannotComplete"},
    "down": {"OPTIONS": {"using": "down"}},
}
