"""The table of the database store."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _

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
        IN_PROGRESS = "IN_PROGRESS", _("in progress")
        COMPLETED = "COMPLETED", _("completed")
        FAILED = "FAILED", _("failed")
        RELEASED = "RELEASED", _("released")

    id = AnyUUIDField(_("record id"), primary_key=True, editable=False)
    scope = models.CharField(_("scope"), max_length=MAX_LENGTH)
    key = models.CharField(_("idempotency key"), max_length=MAX_LENGTH)
    operation = models.CharField(_("operation"), max_length=MAX_LENGTH, blank=True)
    fingerprint = models.BinaryField(_("fingerprint"), null=True)
    state = models.CharField(_("state"), max_length=11, choices=State.choices)
    epoch = models.BigIntegerField(_("epoch"))
    token = AnyUUIDField(_("token"))
    lease_until = models.DateTimeField(_("lease until"), null=True)
    created_at = models.DateTimeField(_("created at"))
    updated_at = models.DateTimeField(_("updated at"))
    expires_at = models.DateTimeField(_("expires at"), null=True)
    attempts = models.IntegerField(_("attempts"), default=1)
    result = models.BinaryField(_("result"), null=True)
    error = models.CharField(_("error"), max_length=MAX_LENGTH, blank=True)

    class Meta:
        db_table = "idempotency_record"
        verbose_name = _("idempotency record")
        verbose_name_plural = _("idempotency records")
        permissions = (
            ("view_result", "Can view stored results"),
            ("view_key", "Can view scopes and keys"),
            ("resolve_record", "Can release, complete and expire records"),
        )
        indexes: ClassVar[list[models.Index]] = [
            models.Index(fields=["expires_at"], name="idempotency_expires_at"),
        ]

    def __str__(self) -> str:
        return str(self.id)
