"""What goes over the wire."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from rest_framework import serializers

from example_project.shop.models import Account, Order, Payment, Refund, Transfer

MAX_AMOUNT = 10**12


class OwnAccountField(serializers.PrimaryKeyRelatedField[Account]):
    """An account of the user who asks; those of others do not exist."""

    def get_queryset(self) -> QuerySet[Account]:
        return Account.objects.filter(owner=self.context["request"].user)


class AccountSerializer(serializers.HyperlinkedModelSerializer[Account]):
    owner = serializers.CharField(source="owner.get_username", read_only=True)

    class Meta:
        model = Account
        fields = ["url", "id", "owner", "name", "currency", "balance"]


class TransferSerializer(serializers.HyperlinkedModelSerializer[Transfer]):
    from_account = OwnAccountField(queryset=Account.objects.all())
    to_account = serializers.PrimaryKeyRelatedField(queryset=Account.objects.all())
    amount = serializers.IntegerField(min_value=1, max_value=MAX_AMOUNT)

    class Meta:
        model = Transfer
        fields = ["url", "id", "from_account", "to_account", "amount", "created"]

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if attrs["from_account"] == attrs["to_account"]:
            raise serializers.ValidationError("A transfer needs two different accounts.")
        return attrs


class PaymentSerializer(serializers.HyperlinkedModelSerializer[Payment]):
    account = OwnAccountField(queryset=Account.objects.all())
    amount = serializers.IntegerField(min_value=1, max_value=MAX_AMOUNT)

    class Meta:
        model = Payment
        fields = ["url", "id", "account", "amount", "reference", "status", "created"]
        read_only_fields = ["status"]


class RefundSerializer(serializers.ModelSerializer[Refund]):
    amount = serializers.IntegerField(
        min_value=1, max_value=MAX_AMOUNT, required=False, help_text="Left out: all that is left."
    )

    class Meta:
        model = Refund
        fields = ["id", "payment", "amount", "created"]
        read_only_fields = ["payment"]


class OrderSerializer(serializers.ModelSerializer[Order]):
    class Meta:
        model = Order
        fields = ["id", "product", "quantity", "note", "total", "paid", "created"]


class PurchaseSerializer(serializers.ModelSerializer[Order]):
    card = serializers.RegexField(r"^[0-9]{16}\Z", write_only=True)
    quantity = serializers.IntegerField(min_value=1, max_value=10)

    class Meta:
        model = Order
        fields = ["product", "quantity", "note", "card"]
