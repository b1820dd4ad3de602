"""The shop's API: whatever moves money needs an idempotency key."""

from __future__ import annotations

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework import filters, mixins, permissions, status, viewsets
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import BaseSerializer

from django_idempotency.contrib.rest_framework import IdempotencyMixin
from example_project.shop import ledger
from example_project.shop.models import Account, Order, Payment, Transfer
from example_project.shop.openapi import REFUSALS
from example_project.shop.serializers import (
    AccountSerializer,
    OrderSerializer,
    PaymentSerializer,
    RefundSerializer,
    TransferSerializer,
)


class AccountViewSet(viewsets.ReadOnlyModelViewSet[Account]):
    """Your accounts; staff sees everybody's."""

    queryset = Account.objects.select_related("owner")
    serializer_class = AccountSerializer

    def get_queryset(self) -> QuerySet[Account]:
        accounts = super().get_queryset()
        if self.request.user.is_staff:
            return accounts
        return accounts.filter(owner=self.request.user.pk)


@extend_schema_view(create=extend_schema(responses={201: TransferSerializer, **REFUSALS}))
class TransferViewSet(
    IdempotencyMixin,  # first, so that it stands around everything that the others do
    mixins.CreateModelMixin,
    mixins.RetrieveModelMixin,
    mixins.ListModelMixin,
    viewsets.GenericViewSet[Transfer],
):
    """Money from one of your accounts to another account of the same currency."""

    idempotency_required = True
    queryset = Transfer.objects.all()
    serializer_class = TransferSerializer

    def get_queryset(self) -> QuerySet[Transfer]:
        return super().get_queryset().filter(from_account__owner=self.request.user.pk)

    def perform_create(self, serializer: BaseSerializer[Transfer]) -> None:
        serializer.instance = ledger.transfer(**serializer.validated_data)


@extend_schema_view(create=extend_schema(responses={201: PaymentSerializer, **REFUSALS}))
class PaymentViewSet(
    IdempotencyMixin,
    mixins.CreateModelMixin,
    mixins.RetrieveModelMixin,
    mixins.ListModelMixin,
    viewsets.GenericViewSet[Payment],
):
    """Payments out of your accounts."""

    idempotency_required = True
    queryset = Payment.objects.all()
    serializer_class = PaymentSerializer
    filter_backends = [filters.SearchFilter]
    search_fields = ["=reference"]

    def get_queryset(self) -> QuerySet[Payment]:
        return super().get_queryset().filter(account__owner=self.request.user.pk)

    def perform_create(self, serializer: BaseSerializer[Payment]) -> None:
        serializer.instance = ledger.pay(**serializer.validated_data)

    @extend_schema(request=RefundSerializer, responses={201: RefundSerializer, **REFUSALS})
    # A refund may take its time; a key of one endpoint does not fit the other.
    @action(detail=True, methods=["post"], idempotency_lease=300)
    def refund(self, request: Request, pk: str | None = None) -> Response:
        """Give a payment back, in part or what is left of it."""
        payment = self.get_object()
        serializer = RefundSerializer(data=request.data, context=self.get_serializer_context())
        serializer.is_valid(raise_exception=True)
        refund = ledger.refund(payment=payment, amount=serializer.validated_data.get("amount"))
        return Response(RefundSerializer(refund).data, status=status.HTTP_201_CREATED)


class OrderViewSet(viewsets.ReadOnlyModelViewSet[Order]):
    """The checkout's orders, for staff."""

    permission_classes = [permissions.IsAdminUser]
    queryset = Order.objects.all()
    serializer_class = OrderSerializer
    filter_backends = [filters.SearchFilter]
    search_fields = ["=note"]
