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
    _database["ATOMIC_REQUESTS"] = False
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
IDEMPOTENCY: dict[str, dict[str, Any]] = {
    "default": {"LEASE": 60, "MAX_DURATION": 3600},
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
