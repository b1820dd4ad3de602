"""What a worker does: take the money of an order, and send the receipt for it."""

from __future__ import annotations

from celery import shared_task
from django.core.mail import send_mail

from django_idempotency import TaskFailed
from django_idempotency.contrib.celery import from_parent, idempotent_task
from example_project.shop import ledger
from example_project.shop.exceptions import InsufficientFunds
from example_project.shop.models import Account, Order, Payment


# One payment per account and reference, however many messages ask for it. A refusal stays one.
@shared_task(throws=(InsufficientFunds, TaskFailed))
@idempotent_task(key="{account_id}#{reference}", on_failed="replay")
def capture_payment(account_id: int, amount: int, reference: str) -> int:
    """Take the money, have a receipt sent once it is taken, and return the payment's number."""
    account = Account.objects.get(pk=account_id)
    payment = ledger.pay(account=account, amount=amount, reference=reference)
    send_receipt.delay_on_commit(payment.pk)
    return payment.pk


# One receipt per capture: its key is made of the capture's, which may run more than once.
@shared_task(autoretry_for=(OSError,), retry_backoff=True, max_retries=10)
@idempotent_task(key=from_parent("receipt"))
def send_receipt(payment_id: int) -> None:
    """Send the receipt of a payment to the owner of the account."""
    payment = Payment.objects.select_related("account__owner").get(pk=payment_id)
    send_mail(
        subject=f"Your payment {payment.reference}",
        message=f"We have received {payment.amount / 100:.2f} {payment.account.currency}.",
        from_email="shop@example.com",
        recipient_list=[payment.account.owner.email or "nobody@example.com"],
    )


# One receipt per purchase, though the step that starts this task may be repeated.
@shared_task(autoretry_for=(OSError,), retry_backoff=True, max_retries=10)
@idempotent_task(key=from_parent("receipt"))
def send_order_receipt(order_id: str, email: str, parcel: str) -> None:
    """Send the receipt of an order that was paid by card."""
    order = Order.objects.get(pk=order_id)
    send_mail(
        subject=f"Your order {order.note or order.pk}",
        message=f"We have received {order.paid / 100:.2f} EUR. Your parcel is {parcel}.",
        from_email="shop@example.com",
        recipient_list=[email or "nobody@example.com"],
    )
