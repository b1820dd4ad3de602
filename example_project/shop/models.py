"""Accounts and the rows that say why a balance is what it is; orders; quotes."""

from __future__ import annotations

import uuid

from django.conf import settings
from django.db import models
from django.db.models import F, Q
from django.urls import reverse

CURRENCIES = [("EUR", "Euro"), ("USD", "US dollar")]


class Account(models.Model):
    """A user's money in one currency; ``balance`` is in minor units (cents)."""

    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="accounts"
    )
    name = models.CharField(max_length=50)
    currency = models.CharField(max_length=3, choices=CURRENCIES)
    balance = models.BigIntegerField(default=0)

    class Meta:
        ordering = ["pk"]
        constraints = [
            models.UniqueConstraint(fields=["owner", "name"], name="shop_account_name_unique"),
            # The last line of defence: no code path, tested or not, can overdraw an account.
            models.CheckConstraint(
                condition=Q(balance__gte=0), name="shop_account_balance_not_negative"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.owner} / {self.name}"


class Transfer(models.Model):
    """Money moved from one account to another."""

    from_account = models.ForeignKey(
        Account, on_delete=models.PROTECT, related_name="transfers_out"
    )
    to_account = models.ForeignKey(Account, on_delete=models.PROTECT, related_name="transfers_in")
    amount = models.BigIntegerField()
    created = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-pk"]
        constraints = [
            models.CheckConstraint(condition=Q(amount__gt=0), name="shop_transfer_amount_positive"),
            models.CheckConstraint(
                condition=~Q(from_account=F("to_account")), name="shop_transfer_two_accounts"
            ),
        ]

    def __str__(self) -> str:
        return f"transfer {self.pk}"


class Payment(models.Model):
    """Money that an account paid to the shop."""

    class Status(models.TextChoices):
        PAID = "paid"
        PARTLY_REFUNDED = "partly_refunded"
        REFUNDED = "refunded"

    account = models.ForeignKey(Account, on_delete=models.PROTECT, related_name="payments")
    amount = models.BigIntegerField()
    reference = models.CharField(max_length=100)
    status = models.CharField(max_length=20, choices=Status.choices, default=Status.PAID)
    created = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-pk"]
        constraints = [
            models.CheckConstraint(condition=Q(amount__gt=0), name="shop_payment_amount_positive"),
        ]

    def __str__(self) -> str:
        return f"payment {self.pk}"


class Refund(models.Model):
    """Money of one payment that went back to its account."""

    payment = models.ForeignKey(Payment, on_delete=models.PROTECT, related_name="refunds")
    amount = models.BigIntegerField()
    created = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-pk"]
        constraints = [
            models.CheckConstraint(condition=Q(amount__gt=0), name="shop_refund_amount_positive"),
        ]

    def __str__(self) -> str:
        return f"refund {self.pk}"


class Order(models.Model):
    """What a visitor bought at the checkout; ``total`` and ``paid`` are cents."""

    class Product(models.TextChoices):
        COFFEE = "coffee"
        TEA = "tea"

    # Cannot be guessed: whoever has the link of an order sees its page.
    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    product = models.CharField(max_length=20, choices=Product.choices)
    quantity = models.PositiveSmallIntegerField()
    note = models.CharField(max_length=100, blank=True)
    total = models.BigIntegerField()
    paid = models.BigIntegerField(default=0)
    created = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-created"]

    def __str__(self) -> str:
        return f"order {self.pk}"

    def get_absolute_url(self) -> str:
        return reverse("order", kwargs={"pk": self.pk})


class Quote(models.Model):
    """A rate of exchange that a user was offered."""

    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="quotes"
    )
    sell = models.CharField(max_length=3, choices=CURRENCIES)
    buy = models.CharField(max_length=3, choices=CURRENCIES)
    amount = models.BigIntegerField()
    rate = models.DecimalField(max_digits=12, decimal_places=6)
    created = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-pk"]

    def __str__(self) -> str:
        return f"quote {self.pk}"
