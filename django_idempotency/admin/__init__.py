"""Browsing the records of the database store in the admin, read-only."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.text import Truncator
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_idempotency.admin.results import shown_result
from django_idempotency.admin.search import NEWEST, id_range, ids_of_key, ids_of_scope_and_key
from django_idempotency.keys import short
from django_idempotency.models import IdempotencyRecord
from django_idempotency.records import State

__all__ = ["IdempotencyRecordAdmin"]

if TYPE_CHECKING:
    _ModelAdmin = admin.ModelAdmin[IdempotencyRecord]
else:
    _ModelAdmin = admin.ModelAdmin


class LeaseFilter(admin.SimpleListFilter):
    """Records in progress, by whether their lease still stands."""

    title = _("lease")
    parameter_name = "lease"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """Return the choices."""
        return [("held", _("held")), ("stale", _("stale"))]

    def queryset(
        self, request: HttpRequest, queryset: QuerySet[IdempotencyRecord]
    ) -> QuerySet[IdempotencyRecord]:
        """Return the records of the choice."""
        in_progress, now = queryset.filter(state=State.IN_PROGRESS.value), timezone.now()
        if self.value() == "stale":
            return in_progress.filter(lease_until__lte=now)
        return in_progress.filter(lease_until__gt=now) if self.value() == "held" else queryset


@admin.register(IdempotencyRecord)
class IdempotencyRecordAdmin(_ModelAdmin):
    """
    A list and a page per record; nothing can be added, changed or deleted.

    Search takes a record id, or its beginning, or a scope and a key: the primary key answers,
    whatever the table's size. A key alone is looked for among the newest records.
    """

    list_display = (
        "short_id",
        "state",
        "lease",
        "short_scope",
        "short_key",
        "operation",
        "attempts",
        "created",
        "expires",
    )
    list_filter = ("state", LeaseFilter)
    search_fields = ("id",)
    search_help_text = _(
        "A record id, or its first 8 characters or more. Whose key and the key: alice 8e03978e. "
        "Whose may be a scope, a user, a tenant and a user, or a task. A key alone is looked for "
        "among the 10,000 newest records."
    )
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
        "created",
        "updated",
        "leased",
        "expires",
        "error",
        "result_size",
        "answer",
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

    @admin.display(description=_("created at"), ordering=None)
    def created(self, record: IdempotencyRecord) -> str:
        """Return the time of the first claim."""
        return _seconds(record.created_at)

    @admin.display(description=_("updated at"))
    def updated(self, record: IdempotencyRecord) -> str:
        """Return the time of the last change of state."""
        return _seconds(record.updated_at)

    @admin.display(description=_("lease until"))
    def leased(self, record: IdempotencyRecord) -> str:
        """Return the end of the lease."""
        return _seconds(record.lease_until)

    @admin.display(description=_("expires at"), ordering="expires_at")
    def expires(self, record: IdempotencyRecord) -> str:
        """Return the end of the record's time."""
        return _seconds(record.expires_at)

    @admin.display(description=_("result"))
    def result_size(self, record: IdempotencyRecord) -> str:
        """Return how large the stored result is."""
        if record.result is None:
            return "-"
        return f"{len(bytes(record.result))} bytes"

    @admin.display(description=_("stored answer"))
    def answer(self, record: IdempotencyRecord) -> str:
        """Return the stored result as text."""
        return "-" if record.result is None else shown_result(bytes(record.result))

    @admin.display(description=_("stored answer"))
    def masked_answer(self, record: IdempotencyRecord) -> str:
        """Return a note that a result is stored, for users who may not see it."""
        if record.result is None:
            return "-"
        return gettext("It takes the permission “Can view stored results”.")

    def get_fields(
        self, request: HttpRequest, obj: IdempotencyRecord | None = None
    ) -> tuple[str, ...]:
        """Return the fields, with the answer masked for those who may not see results."""
        if request.user.has_perm("django_idempotency.view_result"):
            return self.fields
        return (*self.fields[:-1], "masked_answer")

    def get_readonly_fields(
        self, request: HttpRequest, obj: IdempotencyRecord | None = None
    ) -> tuple[str, ...]:
        """Return all fields."""
        return self.get_fields(request, obj)

    def get_queryset(self, request: HttpRequest) -> QuerySet[IdempotencyRecord]:
        """Return the records; a list reads no results."""
        return super().get_queryset(request).defer("result")

    def lookup_allowed(self, lookup: str, value: Any, request: HttpRequest) -> bool:
        """Refuse filters in the URL by what no page shows: they would tell an answer by guesses."""
        hidden = lookup.partition("__")[0] in ("result", "token")
        return not hidden and super().lookup_allowed(lookup, value, request)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[IdempotencyRecord], search_term: str
    ) -> tuple[QuerySet[IdempotencyRecord], bool]:
        """Return the records of an id, of a scope and a key, or of a key among the newest."""
        term = search_term.strip()
        if not term:
            return queryset, False
        by_key, more = ids_of_key(term, queryset.db)
        wanted = Q(pk__in=by_key | ids_of_scope_and_key(term))
        if (of_id := id_range(term)) is not None:
            wanted |= Q(pk__range=of_id)
        found = queryset.filter(wanted)
        if more and not found.exists():
            message = gettext(
                "A key alone is looked for among the {number} newest records. Put its scope, or "
                "the user's name, before it to search them all."
            )
            self.message_user(request, message.format(number=NEWEST), messages.INFO)
        return found, False

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


def _seconds(moment: datetime | None) -> str:
    """Return a time to the second, in the time zone of the project."""
    if moment is None:
        return "-"
    local = timezone.localtime(moment) if timezone.is_aware(moment) else moment
    return f"{local:%Y-%m-%d %H:%M:%S}"
