"""
A checkout that charges a card between its writes, in steps that commit one by one.

No transaction covers the charge. So each step notes its result in the record of the key, and a
retry after a killed process goes on behind what is noted.
"""

from __future__ import annotations

from typing import Any

from django.db import transaction
from drf_spectacular.utils import extend_schema
from rest_framework import status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

import django_idempotency as idempotency
from django_idempotency.contrib.rest_framework import IdempotencyMixin
from example_project.shop import carrier, gateway
from example_project.shop.checkout import PRICES
from example_project.shop.models import Order
from example_project.shop.openapi import DECLINES
from example_project.shop.serializers import OrderSerializer, PurchaseSerializer
from example_project.shop.tasks import send_order_receipt


class PurchaseView(IdempotencyMixin, APIView):
    """An order that is paid by card at once."""

    idempotency_transaction = "steps"  # a key is always required

    @extend_schema(request=PurchaseSerializer, responses={201: OrderSerializer, **DECLINES})
    def post(self, request: Request) -> Response:
        """Place an order, charge the card, mark it as paid, book a parcel, and send a receipt."""
        asked = PurchaseSerializer(data=request.data)
        asked.is_valid(raise_exception=True)  # before the first step: a 400 leaves the key free
        card = asked.validated_data.pop("card")

        order = idempotency.step("order", place, **asked.validated_data)
        charge = idempotency.external(
            "charge",
            lambda key: gateway.charge(
                order["total"], card, reference=order["id"], idempotency_key=key
            ),
            uncertain="repeat",  # the gateway knows the key: it charges once
        )
        if charge["status"] == "declined":  # returned, so a retry is told the same
            idempotency.step("declined", cancel, order["id"])
            return Response({"detail": "The card was declined."}, status.HTTP_402_PAYMENT_REQUIRED)
        idempotency.step("paid", mark_paid, order["id"])
        parcel = idempotency.external(
            "parcel",
            lambda key: carrier.book(order["id"]),
            uncertain="refuse",  # the carrier knows no keys: an operator looks whether it has one
        )
        email = getattr(request.user, "email", "")
        idempotency.external(
            "receipt",  # published twice by a repeat, sent once: the task has its key from here
            lambda key: send_order_receipt.delay(order["id"], email, parcel).id,
            uncertain="repeat",
        )
        paid = Order.objects.get(pk=order["id"])
        return Response(OrderSerializer(paid).data, status.HTTP_201_CREATED)


def place(**asked: Any) -> dict[str, Any]:
    """Place an order, and return what the next steps need of it."""
    order = Order.objects.create(**asked, total=PRICES[asked["product"]] * asked["quantity"])
    return {"id": str(order.pk), "total": order.total}


@transaction.atomic
def mark_paid(order_id: str) -> None:
    """Mark an order as paid."""
    order = Order.objects.select_for_update().get(pk=order_id)
    order.paid = order.total
    order.save(update_fields=["paid"])


def cancel(order_id: str) -> None:
    """Take back an order whose card was declined."""
    Order.objects.filter(pk=order_id).delete()
