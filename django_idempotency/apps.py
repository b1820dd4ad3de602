"""The Django app."""

from __future__ import annotations

import sys

from django.apps import AppConfig, apps
from django.utils.translation import gettext_lazy as _

__all__ = ["IdempotencyConfig"]


class IdempotencyConfig(AppConfig):
    """Guarding of requests, tasks and calls by idempotency keys."""

    name = "django_idempotency"
    verbose_name = _("Idempotency")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the system checks, of DRF and Celery where they are used."""
        from django_idempotency import checks  # noqa: F401
        from django_idempotency.http import checks as http_checks  # noqa: F401

        if apps.is_installed("rest_framework"):
            from django_idempotency.contrib import rest_framework_checks  # noqa: F401
        if "celery" in sys.modules:  # a project that uses it has imported its app by now
            from django_idempotency.contrib import celery_checks  # noqa: F401
