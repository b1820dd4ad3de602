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


class Order(models.Model):
    """What the checkout of the documentation creates, in a step of its own."""

    user_id = models.IntegerField(null=True)
    total = models.DecimalField(max_digits=8, decimal_places=2)
    state = models.CharField(max_length=20, default="new")
    charge = models.CharField(max_length=100, default="")


class Row(models.Model):
    """One line of a file that the documentation imports."""

    source = models.CharField(max_length=255)
    text = models.CharField(max_length=100)


class Event(models.Model):
    """An event that the documentation passes on."""

    text = models.CharField(max_length=100)


class Subscriber(models.Model):
    """Who is told of events."""

    url = models.URLField()
