"""The settings of one variant: its name, its database and its Redis are in the environment."""

from __future__ import annotations

import json
import os
from typing import Any

from benchmarks.site.variants import VARIANTS

VARIANT = VARIANTS[os.environ["BENCHMARK_VARIANT"]]
REDIS = os.environ.get("BENCHMARK_REDIS", "")


def _located(value: Any) -> Any:
    """Put the server's URL in the place of REDIS."""
    if isinstance(value, dict):
        return {key: _located(inner) for key, inner in value.items()}
    return REDIS if value == "REDIS" else value


ALLOWED_HOSTS = ["*"]
CACHES = {
    "default": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": REDIS}
    if VARIANT.redis
    else {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}
}
DATABASES = {"default": {**json.loads(os.environ["BENCHMARK_DATABASE"]), "CONN_MAX_AGE": None}}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "rest_framework",
    "benchmarks.site",
    *VARIANT.apps,
]
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "loggers": {"django.request": {"level": "ERROR"}, "django_idempotency": {"level": "ERROR"}},
}
MIDDLEWARE = list(VARIANT.middleware)
MIGRATION_MODULES = {"site": None}
REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": ["benchmarks.site.users.Known"],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["rest_framework.parsers.JSONParser"],
}
ROOT_URLCONF = "benchmarks.site.urls"
SECRET_KEY = "of a benchmark"  # noqa: S105
USE_TZ = True
globals().update(_located(dict(VARIANT.settings)))
