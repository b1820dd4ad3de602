"""The list of a store's records: search, filters, and the next page."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

from django import forms
from django.utils.text import format_lazy
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from django_idempotency.operators import search
from django_idempotency.operators.facts import STATES
from django_idempotency.operators.search import Found
from django_idempotency.records import Filters, Page, State
from django_idempotency.stores.base import BaseStore
from django_idempotency.stores.database import DatabaseStore

#: Records of one page.
_PAGE = 100
#: How long a page may read the store.
SECONDS = 5
_AGES = {
    "10m": ("created_after", timedelta(minutes=10)),
    "1h": ("created_after", timedelta(hours=1)),
    "1d": ("created_after", timedelta(days=1)),
    "over-1h": ("created_before", timedelta(hours=1)),
    "over-1d": ("created_before", timedelta(days=1)),
}


_OR_WHOSE = _("So is a user.")


class ListForm(forms.Form):
    """What an operator looks for."""

    q = forms.CharField(
        label=pgettext_lazy("idempotency", "Search"),
        required=False,
        strip=True,
        help_text=_(
            "A record id, or its first 8 characters or more. Whose key and the key: "
            "alice 8e03978e. Whose may be a scope, a user, a tenant and a user, or a task. "
            "A key, or an operation, alone is looked for among the newest records."
        ),
        widget=forms.TextInput(
            attrs={"type": "search", "aria-describedby": "id_q_helptext", "dir": "auto"}
        ),
    )
    state = forms.ChoiceField(
        label=pgettext_lazy("idempotency", "State"),
        required=False,
        choices=[
            ("", pgettext_lazy("idempotency", "any")),
            *((state.value, name) for state, name in STATES.items()),
            ("running", pgettext_lazy("idempotency", "in progress, running")),
            ("stale", pgettext_lazy("idempotency", "in progress, stale")),
            ("held", pgettext_lazy("idempotency", "held: an operator decides")),
        ],
    )
    operation = forms.CharField(
        label=pgettext_lazy("idempotency", "Operation"),
        required=False,
        widget=forms.TextInput(attrs={"list": "operations", "dir": "auto"}),
    )
    scope = forms.CharField(
        label=pgettext_lazy("idempotency", "Scope or user"),
        required=False,
        widget=forms.TextInput(attrs={"dir": "auto"}),
    )
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

    def __init__(self, data: Any, *, view_key: bool) -> None:
        super().__init__(data)
        if not view_key:  # it would tell whose records there are
            del self.fields["scope"]
        else:
            help_text = self.fields["q"].help_text
            self.fields["q"].help_text = format_lazy("{} {}", help_text, _OR_WHOSE)

    @property
    def is_whole(self) -> bool:
        """Whether it asks for what is looked for among all records."""
        return self.is_valid() and self.cleaned_data["state"] in ("stale", "held")

    @property
    def is_filtered(self) -> bool:
        """Whether it asks for some of the records alone."""
        return self.is_valid() and any(self.cleaned_data.values())

    def filters(self) -> Filters:
        """Return what the fields but the search ask for."""
        state, age = self.cleaned_data["state"], self.cleaned_data["age"]
        wanted: dict[str, Any] = {"state": state or None}
        if state == "held":
            wanted = {"held": True}
        elif state in ("running", "stale"):
            wanted = {"state": State.IN_PROGRESS, "stale": state == "stale"}
        if age:
            bound, ago = _AGES[age]
            wanted[bound] = datetime.now(timezone.utc) - ago
        if scope := self.cleaned_data.get("scope"):
            wanted["scope"] = [*search.scopes_of(scope)]
        return Filters(operation=self.cleaned_data["operation"] or None, **wanted)


def find(store: BaseStore, form: ListForm, cursor: str | None) -> Found:
    """Return the records that a valid form asks for; raise StoreError, ValueError."""
    filters = form.filters()
    if not (term := form.cleaned_data["q"]):
        page = look(store, filters, cursor, _PAGE)
        return Found(page.records, looked=True, cursor=page.cursor)
    found = search.find(store, term, results=False, seconds=SECONDS)
    if found.records:
        return replace(found, records=tuple(filter(filters.match, found.records)), more=False)
    others = [Filters(operation=term)] if filters.operation is None else []
    if "scope" in form.fields and filters.scope is None:
        _itself, *users = search.scopes_of(term)
        others += [replace(filters, scope=users)] if users else []
    for wanted in others:
        if (page := look(store, wanted, cursor, _PAGE)).records:
            matching = tuple(filter(filters.match, page.records))
            return Found(matching, looked=True, cursor=page.cursor)
    return found


def look(store: BaseStore, filters: Filters, cursor: str | None, limit: int) -> Page:
    """
    Return a page of the newest records, whatever the store; raise StoreError, ValueError.

    Stale leases and held records are looked for among all records: an alert tells of them when
    newer ones have come. Of the held ones, those wait for an operator that no attempt works on.
    """
    within = None if filters.stale or filters.held else search.NEWEST
    page = store.browse(filters=filters, cursor=cursor, limit=limit, within=within, seconds=SECONDS)
    if filters.held:
        page = replace(page, records=tuple(search.held_in(page.records)))
    if filters.held or isinstance(store, DatabaseStore):
        return page
    newest_first = sorted(page.records, key=lambda it: it.created_at, reverse=True)
    return replace(page, records=tuple(newest_first))
