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

IDEMPOTENCY = {"default": _policy}
