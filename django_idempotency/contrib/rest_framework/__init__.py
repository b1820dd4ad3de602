"""Guard views of Django REST framework: APIViews, generic views, ViewSets and their actions."""

from __future__ import annotations

from django_idempotency.exceptions.base import missing

try:
    import rest_framework  # noqa: F401
except ModuleNotFoundError as error:
    raise missing("This adapter needs", "djangorestframework", "drf") from error

from django_idempotency.contrib.rest_framework.mixin import IdempotencyMixin
from django_idempotency.contrib.rest_framework.objects import object_permissions

__all__ = ["IdempotencyMixin", "object_permissions"]
