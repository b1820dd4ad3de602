"""What a request writes, and the record of the hand-written protocols."""

from __future__ import annotations

from typing import ClassVar

from django.db import models


class Payment(models.Model):
    """The effect of one request."""

    reference = models.CharField(max_length=100)
    amount = models.IntegerField()
    key = models.CharField(max_length=100)

    objects: ClassVar[models.Manager[Payment]]


class FloorRecord(models.Model):
    """The record of a protocol written by hand: no more than it needs."""

    id = models.UUIDField(primary_key=True)
    fingerprint = models.BinaryField()
    state = models.CharField(max_length=12)
    token = models.UUIDField()
    lease_until = models.DateTimeField()
    expires_at = models.DateTimeField()
    status = models.SmallIntegerField(null=True)
    body = models.BinaryField(null=True)

    objects: ClassVar[models.Manager[FloorRecord]]
