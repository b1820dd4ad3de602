"""Browsing the records of the database store in the admin, read-only."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from uuid import UUID

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.text import Truncator
from django.utils.translation import gettext_lazy as _

from django_idempotency.keys import short
from django_idempotency.models import IdempotencyRecord
from django_idempotency.records import State

__all__ = ["IdempotencyRecordAdmin"]

if TYPE_CHECKING:
    _ModelAdmin = admin.ModelAdmin[IdempotencyRecord]
else:
    _ModelAdmin = admin.ModelAdmin


@admin.register(IdempotencyRecord)
class IdempotencyRecordAdmin(_ModelAdmin):
    """
    A list and a page per record; nothing can be added, changed or deleted.

    Search takes the beginning of a record id: the primary key answers, whatever the table's size.
    """

    list_display = (
        "short_id",
        "state",
        "lease",
        "short_key",
        "operation",
        "attempts",
        "expires_at",
        "short_scope",
    )
    list_filter = ("state",)
    search_fields = ("id",)
    search_help_text = _("A record id, or its first 8 characters or more, as log lines name it.")
    ordering = ("-expires_at",)  # indexed, and nearly the order of creation
    show_full_result_count = False
    fields = (
        "id",
        "state",
        "lease",
        "scope",
        "key",
        "operation",
        "attempts",
        "epoch",
        "fingerprint_hex",
        "created_at",
        "updated_at",
        "lease_until",
        "expires_at",
        "error",
        "result_size",
    )
    readonly_fields = fields

    @admin.display(description=_("record id"), ordering=None)
    def short_id(self, record: IdempotencyRecord) -> str:
        """Return as much of the record id as log lines name."""
        return short(record.pk)

    @admin.display(description=_("scope"), ordering=None)
    def short_scope(self, record: IdempotencyRecord) -> str:
        """Return the beginning of the scope: one word of 255 signs would push all else aside."""
        return Truncator(record.scope).chars(24)

    @admin.display(description=_("idempotency key"), ordering=None)
    def short_key(self, record: IdempotencyRecord) -> str:
        """Return the key, or the beginning of a long one."""
        return Truncator(record.key).chars(36)

    @admin.display(description=_("lease"))
    def lease(self, record: IdempotencyRecord) -> str:
        """Return how long the lease lasts, or that it is stale."""
        if record.state != State.IN_PROGRESS.value or record.lease_until is None:
            return "-"
        left = (record.lease_until - timezone.now()).total_seconds()
        return f"{left:.0f} s" if left > 0 else str(_("stale"))

    @admin.display(description=_("fingerprint"))
    def fingerprint_hex(self, record: IdempotencyRecord) -> str:
        """Return the fingerprint as hexadecimal digits."""
        return bytes(record.fingerprint).hex() if record.fingerprint is not None else "-"

    @admin.display(description=_("result"))
    def result_size(self, record: IdempotencyRecord) -> str:
        """Return how large the stored result is; never what it says."""
        if record.result is None:
            return "-"
        return f"{len(bytes(record.result))} bytes"

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[IdempotencyRecord], search_term: str
    ) -> tuple[QuerySet[IdempotencyRecord], bool]:
        """Return the records whose ids begin so: a range of the primary key, never a scan."""
        if not search_term:
            return queryset, False
        digits = search_term.strip().replace("-", "").lower()
        if not re.fullmatch(r"[0-9a-f]{8,32}", digits):
            return queryset.none(), False
        first, last = UUID(digits.ljust(32, "0")), UUID(digits.ljust(32, "f"))
        return queryset.filter(pk__range=(first, last)), False

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Records are made by claims."""
        return False

    def has_change_permission(
        self, request: HttpRequest, obj: IdempotencyRecord | None = None
    ) -> bool:
        """Records are changed by their owners."""
        return False

    def has_delete_permission(
        self, request: HttpRequest, obj: IdempotencyRecord | None = None
    ) -> bool:
        """A deleted record would let its work run again."""
        return False
