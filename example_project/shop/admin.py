"""The shop in the admin: to look at. Nothing is changed here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.db.models import Model
from django.http import HttpRequest

from example_project.shop.models import Account, Order, Payment, Quote, Refund, Transfer

if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin[Model]
else:
    ModelAdmin = admin.ModelAdmin


class ReadOnlyAdmin(ModelAdmin):
    """Shows rows; adds, changes and deletes none."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


@admin.register(Account)
class AccountAdmin(ReadOnlyAdmin):
    list_display = ["id", "owner", "name", "currency", "balance"]
    list_filter = ["currency"]
    list_select_related = ["owner"]
    search_fields = ["owner__username", "name"]


@admin.register(Transfer)
class TransferAdmin(ReadOnlyAdmin):
    list_display = ["id", "from_account", "to_account", "amount", "created"]
    list_select_related = ["from_account__owner", "to_account__owner"]
    date_hierarchy = "created"


@admin.register(Payment)
class PaymentAdmin(ReadOnlyAdmin):
    list_display = ["id", "account", "amount", "reference", "status", "created"]
    list_filter = ["status"]
    list_select_related = ["account__owner"]
    search_fields = ["reference"]
    date_hierarchy = "created"


@admin.register(Refund)
class RefundAdmin(ReadOnlyAdmin):
    list_display = ["id", "payment", "amount", "created"]
    list_select_related = ["payment"]
    date_hierarchy = "created"


@admin.register(Order)
class OrderAdmin(ReadOnlyAdmin):
    list_display = ["id", "product", "quantity", "total", "paid", "note", "created"]
    list_filter = ["product"]
    search_fields = ["note"]
    date_hierarchy = "created"


@admin.register(Quote)
class QuoteAdmin(ReadOnlyAdmin):
    list_display = ["id", "owner", "sell", "buy", "amount", "rate", "created"]
    list_select_related = ["owner"]
    date_hierarchy = "created"
