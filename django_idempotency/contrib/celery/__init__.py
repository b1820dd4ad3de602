"""Guard Celery tasks: each message, or each key, runs once."""

from __future__ import annotations

from django_idempotency.exceptions.base import missing

try:
    import celery  # noqa: F401
except ModuleNotFoundError as error:
    raise missing("This adapter needs", "celery", "celery") from error

from django_idempotency.contrib.celery.deliveries import DuplicateTask
from django_idempotency.contrib.celery.parents import from_parent
from django_idempotency.contrib.celery.task import idempotent_task

__all__ = ["DuplicateTask", "from_parent", "idempotent_task"]
