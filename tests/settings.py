"""Django settings of the tests; IDEMPOTENCY_TEST_LEG chooses the database."""

from __future__ import annotations

import os
from typing import Any

from tests.services.databases import databases

SECRET_KEY = "tests"
DEBUG = False
ALLOWED_HOSTS = ["*"]
USE_TZ = True
TIME_ZONE = "UTC"
DATABASES = databases()
for _database in DATABASES.values():
    _database["ATOMIC_REQUESTS"] = os.environ.get("IDEMPOTENCY_TEST_ATOMIC_REQUESTS") == "1"
    _database["CONN_MAX_AGE"] = int(os.environ.get("IDEMPOTENCY_TEST_CONN_MAX_AGE", "0"))
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
ROOT_URLCONF = os.environ.get("IDEMPOTENCY_TEST_URLCONF", "tests.app.urls")
STATIC_URL = "static/"
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "rest_framework",
    "django_idempotency",
    "tests.app",
]
# What a process that a test starts is to use; the tests themselves override the setting.
_policy: dict[str, Any] = {
    "TRANSACTION": os.environ.get("IDEMPOTENCY_TEST_TRANSACTION"),
    "LEASE": float(os.environ.get("IDEMPOTENCY_TEST_LEASE", "60")),
    "MAX_DURATION": float(os.environ.get("IDEMPOTENCY_TEST_MAX_DURATION", "3600")),
    "RENEW": os.environ.get("IDEMPOTENCY_TEST_RENEW", "1") == "1",
}
IDEMPOTENCY: dict[str, dict[str, Any]] = {
    "default": _policy,
    "other": {"OPTIONS": {"using": "other"}},
    "memory": {"BACKEND": "django_idempotency.stores.memory.MemoryStore"},
}
REST_FRAMEWORK: dict[str, Any] = {"DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema"}
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
