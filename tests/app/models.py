"""What the guarded work of the tests leaves behind."""

from __future__ import annotations

from django.db import models


class Effect(models.Model):
    """One row per time that the work ran and committed."""

    name = models.CharField(max_length=255)


class Parent(models.Model):
    """What a child points to."""


class Child(models.Model):
    """Its foreign key is deferred: a parent that does not exist fails at the COMMIT."""

    parent = models.ForeignKey(Parent, on_delete=models.CASCADE)


class Unique(models.Model):
    """A second row of a name breaks the transaction on PostgreSQL."""

    name = models.CharField(max_length=255, unique=True)


class Payment(models.Model):
    """What the examples of the documentation know as ``shop.models.Payment``."""

    amount = models.IntegerField()
    reference = models.CharField(max_length=100)
    captured = models.BooleanField(default=False)

    class Meta:
        ordering = ["pk"]
