"""Settings of the shop; the part about idempotency is at the end."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.core.exceptions import ImproperlyConfigured

from example_project.database import database_from_environment

BASE_DIR = Path(__file__).resolve().parent

# A checkout runs as it is. With EXAMPLE_DEBUG=0 the secret and the hosts have to be given.
DEBUG = os.environ.get("EXAMPLE_DEBUG", "1") == "1"
SECRET_KEY = os.environ.get("EXAMPLE_SECRET_KEY", "known-to-everybody" if DEBUG else "")
if not SECRET_KEY:
    raise ImproperlyConfigured("Without EXAMPLE_DEBUG=1 the shop needs EXAMPLE_SECRET_KEY.")
ALLOWED_HOSTS = os.environ.get("EXAMPLE_HOSTS", "localhost,127.0.0.1,[::1]").split(",")
# `manage seed` makes users whose passwords stand in the README.
SEED_KNOWN_PASSWORDS = DEBUG

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "rest_framework",
    "drf_spectacular",
    "django_idempotency",
    "example_project.shop",
]

# Counters for Prometheus, at /metrics/, where the processes have a folder for them.
if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
    INSTALLED_APPS.append("django_idempotency.contrib.prometheus")

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
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
            ],
        },
    },
]

ROOT_URLCONF = "example_project.urls"
WSGI_APPLICATION = "example_project.wsgi.application"
ASGI_APPLICATION = "example_project.asgi.application"
STATIC_URL = "static/"
USE_TZ = True
TIME_ZONE = "UTC"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

LOGIN_URL = "rest_framework:login"

# What each payment provider signs its webhooks with. An empty secret lets nobody in.
WEBHOOK_SECRETS = {
    "acme": os.environ.get("EXAMPLE_WEBHOOK_SECRET", "known-to-everybody" if DEBUG else "")
}

# SQLite in EXAMPLE_DATABASE (a path), or the PostgreSQL of EXAMPLE_DATABASE_URL.
DATABASES = {"default": database_from_environment(os.environ, BASE_DIR / "db.sqlite3")}
DATABASES["default"]["ATOMIC_REQUESTS"] = os.environ.get("EXAMPLE_ATOMIC_REQUESTS") == "1"

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "rest_framework.authentication.BasicAuthentication",
        "rest_framework.authentication.SessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "DEFAULT_PAGINATION_CLASS": "rest_framework.pagination.PageNumberPagination",
    "PAGE_SIZE": 50,
    "TEST_REQUEST_DEFAULT_FORMAT": "json",
}

SPECTACULAR_SETTINGS = {
    "TITLE": "Payments shop",
    "DESCRIPTION": "Accounts, transfers, payments and refunds. Amounts are minor units (cents).",
    "VERSION": "1.0.0",
    "SERVE_PERMISSIONS": ["rest_framework.permissions.AllowAny"],
}

# The entry in INSTALLED_APPS is enough to begin with: records then live in the default database,
# for 24 hours, and work and record commit together. Everything below is optional.
_policy: dict[str, Any] = {
    # How long a silent owner keeps its right to run. Long work is renewed while its process lives.
    "LEASE": timedelta(seconds=float(os.environ.get("EXAMPLE_LEASE", "60"))),
    "RETENTION": timedelta(hours=24),
}
if "EXAMPLE_TRANSACTION" in os.environ:
    _policy["TRANSACTION"] = os.environ["EXAMPLE_TRANSACTION"]  # joined, single or separate

# Where the records are. In a database the work and its record commit together; elsewhere the record
# is completed right after the commit of the work.
_stores: dict[str, dict[str, Any]] = {
    "database": {},
    "redis": {
        "BACKEND": "django_idempotency.stores.redis.RedisStore",
        "OPTIONS": {"url": os.environ.get("EXAMPLE_REDIS_URL", "redis://127.0.0.1:6379/0")},
    },
    "dynamodb": {
        "BACKEND": "django_idempotency.stores.dynamodb.DynamoDBStore",
        "OPTIONS": {
            "table_name": os.environ.get("EXAMPLE_DYNAMODB_TABLE", "idempotency"),
            "endpoint_url": os.environ.get("EXAMPLE_DYNAMODB_URL"),
            "clock_skew": float(os.environ.get("EXAMPLE_CLOCK_SKEW", "5")),
        },
    },
}
_store = os.environ.get("IDEMPOTENCY_STORE", "database")
if _store not in _stores:
    raise ImproperlyConfigured(f"IDEMPOTENCY_STORE={_store}: one of {', '.join(_stores)}.")

IDEMPOTENCY = {"default": {**_stores[_store], **_policy}}

# Tasks run in a worker where there is a broker, and in place where there is none.
_broker = os.environ.get("EXAMPLE_BROKER_URL")
CELERY_BROKER_URL = _broker or "memory://"
CELERY_RESULT_BACKEND = _broker
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_TASK_ALWAYS_EAGER = _broker is None
# A process that is killed gives its message back: late acknowledgement alone would lose it.
CELERY_TASK_ACKS_LATE = True
CELERY_TASK_REJECT_ON_WORKER_LOST = True
# After so many seconds a message comes again that a killed worker had taken.
CELERY_BROKER_TRANSPORT_OPTIONS: dict[str, float] = {"visibility_timeout": 3600}
CELERY_BEAT_SCHEDULE = {
    "sweep": {
        "task": "django_idempotency.tasks.sweep_expired",
        "schedule": timedelta(minutes=5),
    }
}
EMAIL_BACKEND = "django.core.mail.backends.console.EmailBackend"
