"""The list of a store's records: search, filters, and the next page."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any, ClassVar

from django import forms
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from django_idempotency.operators import looks, search
from django_idempotency.records import Filters, Record, State
from django_idempotency.stores.base import BaseStore

__all__ = ["Found", "ListForm", "find"]

#: Records of one page.
_PAGE = 100
#: How long a search may read a store that is no database.
_SECONDS = 10
_AGES: dict[str, tuple[timedelta, bool]] = {
    "10m": (timedelta(minutes=10), False),
    "1h": (timedelta(hours=1), False),
    "1d": (timedelta(days=1), False),
    "over-1h": (timedelta(hours=1), True),
    "over-1d": (timedelta(days=1), True),
}


class ListForm(forms.Form):
    """What an operator looks for."""

    use_required_attribute = False

    q = forms.CharField(
        label=pgettext_lazy("idempotency", "Search"),
        required=False,
        strip=True,
        help_text=_(
            "A record id, or its first 8 characters or more. Whose key and the key: "
            "alice 8e03978e. Whose may be a scope, a user, a tenant and a user, or a task. "
            "A key, or an operation, alone is looked for among the newest records."
        ),
        widget=forms.TextInput(attrs={"type": "search", "aria-describedby": "id_q_helptext"}),
    )
    state = forms.ChoiceField(
        label=pgettext_lazy("idempotency", "State"),
        required=False,
        choices=[
            ("", pgettext_lazy("idempotency", "any")),
            (State.IN_PROGRESS.value, pgettext_lazy("idempotency", "in progress")),
            ("held", pgettext_lazy("idempotency", "in progress, running")),
            ("stale", pgettext_lazy("idempotency", "in progress, stale")),
            (State.COMPLETED.value, pgettext_lazy("idempotency", "completed")),
            (State.FAILED.value, pgettext_lazy("idempotency", "failed")),
            (State.RELEASED.value, pgettext_lazy("idempotency", "released")),
        ],
    )
    operation = forms.CharField(
        label=pgettext_lazy("idempotency", "Operation"),
        required=False,
        widget=forms.TextInput(attrs={"list": "operations"}),
    )
    scope = forms.CharField(label=pgettext_lazy("idempotency", "Scope or user"), required=False)
    age = forms.ChoiceField(
        label=pgettext_lazy("idempotency", "Created"),
        required=False,
        choices=[
            ("", pgettext_lazy("idempotency", "at any time")),
            ("10m", pgettext_lazy("idempotency", "in the last 10 minutes")),
            ("1h", pgettext_lazy("idempotency", "in the last hour")),
            ("1d", pgettext_lazy("idempotency", "in the last day")),
            ("over-1h", pgettext_lazy("idempotency", "more than an hour ago")),
            ("over-1d", pgettext_lazy("idempotency", "more than a day ago")),
        ],
    )

    filters_of: ClassVar[tuple[str, ...]] = ("state", "operation", "scope", "age")

    def __init__(self, data: Any, *, view_key: bool) -> None:
        super().__init__(data)
        if not view_key:  # it would tell whose records there are
            del self.fields["scope"]

    @property
    def is_filtered(self) -> bool:
        """Whether it asks for some of the records alone."""
        return self.is_valid() and any(
            self.cleaned_data.get(name) for name in ("q", *self.filters_of)
        )

    def filters(self) -> Filters:
        """Return what the fields but search and scope ask for."""
        state, age = self.cleaned_data["state"], self.cleaned_data["age"]
        created: dict[str, Any] = {}
        if age:
            ago, before = _AGES[age]
            created = {
                "created_before" if before else "created_after": datetime.now(timezone.utc) - ago
            }
        lease = state in ("held", "stale")
        return Filters(
            state=State.IN_PROGRESS if lease else State(state) if state else None,
            stale=state == "stale" if lease else None,
            operation=self.cleaned_data["operation"] or None,
            **created,
        )


@dataclass(frozen=True)
class Found:
    """The records of a page, and where the next page begins."""

    records: tuple[Record, ...] = ()
    cursor: str | None = None
    #: They are among those that a look has read, not found by their ids.
    looked: bool = False
    #: A key or an operation was looked for among the newest records alone, and there are more.
    more: bool = False


def find(store: BaseStore, form: ListForm, cursor: str | None) -> Found:
    """Return the records that a valid form asks for; raise StoreError, ValueError."""
    filters = form.filters()
    scope = form.cleaned_data.get("scope", "")
    scopes = frozenset(search.scopes_of(scope)) if scope else frozenset()
    if not (term := form.cleaned_data["q"]):
        look = looks.look(store, filters, scopes=scopes, cursor=cursor, limit=_PAGE)
        return Found(look.records, look.cursor, looked=True)
    found = search.find(store, term, read=looks.records_of, seconds=_SECONDS)
    if not found.records and filters.operation is None:
        look = looks.look(store, Filters(operation=term), cursor=cursor, limit=_PAGE)
        if look.records:
            kept = _kept(look.records, filters, scopes)
            return Found(kept, look.cursor, looked=True)
    return Found(_kept(found.records, filters, scopes), more=found.more and not found.records)


def _kept(
    records: tuple[Record, ...], filters: Filters, scopes: frozenset[str]
) -> tuple[Record, ...]:
    return tuple(
        record
        for record in records
        if filters.match(record) and (not scopes or record.scope in scopes)
    )
