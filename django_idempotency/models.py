"""The table of the database store."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from django_idempotency.fields import AnyUUIDField
from django_idempotency.keys import MAX_LENGTH

__all__ = ["IdempotencyRecord"]


class IdempotencyRecord(models.Model):
    """
    One record; see `django_idempotency.records.Record`.

    Only the statements of the database store write it: saving instances would bypass the conditions
    on which the guarantees rest.
    """

    class State(models.TextChoices):
        IN_PROGRESS = "IN_PROGRESS", pgettext_lazy("idempotency", "in progress")
        COMPLETED = "COMPLETED", pgettext_lazy("idempotency", "completed")
        FAILED = "FAILED", pgettext_lazy("idempotency", "failed")
        RELEASED = "RELEASED", pgettext_lazy("idempotency", "released")

    id = AnyUUIDField("record id", primary_key=True, editable=False)
    scope = models.CharField("scope", max_length=MAX_LENGTH)
    key = models.CharField("idempotency key", max_length=MAX_LENGTH)
    operation = models.CharField("operation", max_length=MAX_LENGTH, blank=True)
    fingerprint = models.BinaryField("fingerprint", null=True)
    state = models.CharField("state", max_length=11, choices=State.choices)
    epoch = models.BigIntegerField("epoch")
    token = AnyUUIDField("token")
    lease_until = models.DateTimeField("lease until", null=True)
    created_at = models.DateTimeField("created at")
    updated_at = models.DateTimeField("updated at")
    expires_at = models.DateTimeField("expires at", null=True)
    attempts = models.IntegerField("attempts", default=1)
    result = models.BinaryField("result", null=True)
    error = models.CharField("error", max_length=MAX_LENGTH, blank=True)
    steps = models.BinaryField("steps", null=True)

    class Meta:
        db_table = "idempotency_record"
        verbose_name = _("idempotency record")
        verbose_name_plural = _("idempotency records")
        permissions = (
            ("view_result", "Can view stored results"),
            ("view_key", "Can view scopes and keys"),
            ("resolve_record", "Can release, complete, expire and resume records"),
        )
        indexes: ClassVar[list[models.Index]] = [
            models.Index(fields=["expires_at"], name="idempotency_expires_at"),
        ]

    def __str__(self) -> str:
        return str(self.id)
