"""The Django app."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _

__all__ = ["IdempotencyConfig"]


class IdempotencyConfig(AppConfig):
    """Guarding of requests, tasks and calls by idempotency keys."""

    name = "django_idempotency"
    verbose_name = _("Idempotency")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the system checks."""
        from django_idempotency import checks  # noqa: F401
