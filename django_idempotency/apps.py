"""The Django app."""

from __future__ import annotations

import sys
from typing import Any

from django.apps import AppConfig, apps
from django.core.checks import CheckMessage, register
from django.utils.translation import gettext_lazy as _

__all__ = ["IdempotencyConfig"]


class IdempotencyConfig(AppConfig):
    """Guarding of requests, tasks and calls by idempotency keys."""

    name = "django_idempotency"
    verbose_name = _("Idempotency")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the system checks, and what describes guarded views to drf-spectacular."""
        register(check_celery, "idempotency")
        from django_idempotency import checks  # noqa: F401
        from django_idempotency.http import checks as http_checks  # noqa: F401

        if apps.is_installed("rest_framework"):
            from django_idempotency.contrib.rest_framework import checks as rest_framework_checks  # noqa: F401
        if apps.is_installed("drf_spectacular"):
            from django_idempotency.contrib import spectacular  # noqa: F401


def check_celery(**kwargs: Any) -> list[CheckMessage]:
    """Check guarded tasks and beat's schedule where the project has imported Celery by now."""
    if "celery" not in sys.modules:
        return []
    from django_idempotency.contrib.celery import checks as celery_checks

    return [*celery_checks.check_tasks(**kwargs), *celery_checks.check_sweep(**kwargs)]
