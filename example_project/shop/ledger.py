"""
How money moves: each function is one transaction, whoever calls it.

Nothing here knows about idempotency. The guard around the view sees to it that a function runs once
per key; these functions see to it that one run is right.
"""

from __future__ import annotations

from django.db import transaction
from django.db.models import F, Sum

from example_project.shop.exceptions import CurrencyMismatch, InsufficientFunds, RefundTooLarge
from example_project.shop.models import Account, Payment, Refund, Transfer


@transaction.atomic
def transfer(*, from_account: Account, to_account: Account, amount: int) -> Transfer:
    """Move ``amount`` between two accounts of one currency."""
    if from_account.currency != to_account.currency:
        raise CurrencyMismatch
    # In one order for everybody: two transfers that cross would otherwise wait for each other.
    # (SQLite has one writer at a time anyway, and leaves FOR UPDATE out.)
    both = Account.objects.select_for_update().filter(pk__in=[from_account.pk, to_account.pk])
    list(both.order_by("pk"))
    _withdraw(from_account, amount)
    _deposit(to_account, amount)
    return Transfer.objects.create(from_account=from_account, to_account=to_account, amount=amount)


@transaction.atomic
def pay(*, account: Account, amount: int, reference: str) -> Payment:
    """Take ``amount`` from an account and write the payment down."""
    _withdraw(account, amount)
    return Payment.objects.create(account=account, amount=amount, reference=reference)


@transaction.atomic
def refund(*, payment: Payment, amount: int | None = None) -> Refund:
    """Give ``amount`` of a payment back to its account, or all that is left of it."""
    payment = Payment.objects.select_for_update().get(pk=payment.pk)
    refunded = payment.refunds.aggregate(total=Sum("amount", default=0))["total"]
    left = payment.amount - refunded
    if amount is None:
        amount = left
    if not 0 < amount <= left:
        raise RefundTooLarge
    _deposit(payment.account, amount)
    payment.status = Payment.Status.REFUNDED if amount == left else Payment.Status.PARTLY_REFUNDED
    payment.save(update_fields=["status"])
    return Refund.objects.create(payment=payment, amount=amount)


def _withdraw(account: Account, amount: int) -> None:
    # Check and write in one statement: a balance that was read before may have changed since.
    enough = Account.objects.filter(pk=account.pk, balance__gte=amount)
    if not enough.update(balance=F("balance") - amount):
        raise InsufficientFunds


def _deposit(account: Account, amount: int) -> None:
    Account.objects.filter(pk=account.pk).update(balance=F("balance") + amount)
