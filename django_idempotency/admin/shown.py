"""How the admin shows a record: times, durations, masks, and a link to its user."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from datetime import timezone as zones
from typing import Any

from django.apps import apps
from django.contrib.admin import AdminSite
from django.contrib.admin.exceptions import NotRegistered
from django.core.exceptions import ValidationError
from django.db import Error
from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.translation import pgettext

from django_idempotency.http import scopes
from django_idempotency.keys import short
from django_idempotency.operators.facts import STATES, ago, span
from django_idempotency.records import Record

_MASKED = "•••••"
#: The scope of a user, as `http.scopes` makes it.
_OF_USER = re.compile(r"user:(?P<model>[a-z0-9_]+\.[a-z0-9_]+):(?P<pk>.+)")


@dataclass(frozen=True)
class May:
    """What the user may see and do."""

    view_key: bool
    view_result: bool
    resolve: bool


class Row:
    """A record as the pages show it; `url` is its page, `seen` the signed state for decisions."""

    def __init__(self, record: Record, may: May, url: str, seen: str) -> None:
        self.record, self.url, self.seen = record, url, seen
        self.short = short(record.record_id)
        self.key = record.key if may.view_key else _MASKED
        self.scope = record.scope if may.view_key else _MASKED
        self.state = STATES[record.state]
        #: The class of the badge.
        self.kind = "stale" if record.stale else record.state.value.lower()
        #: How long the lease lasts, or that it is stale; "" if the record is not in progress.
        self.lease = "" if record.lease_left is None else f"{record.lease_left:.0f} s"
        if record.stale:
            self.lease = pgettext("idempotency", "stale")
        #: How long the last attempt has held the record.
        self.held_for = span(record.now - record.updated_at)
        self.age = span(record.now - record.created_at)
        self.created_ago = ago(record, record.created_at)
        #: The time that is left to the record.
        self.expires_in = pgettext("idempotency", "never")
        if record.expired:
            self.expires_in = pgettext("idempotency", "expired")
        elif record.expires_at is not None:
            self.expires_in = ago(record, record.expires_at)


def moments(value: datetime | None) -> list[str]:
    """Return a time with its zone: the current one, and UTC if that is another."""
    if value is None:
        return ["-"]
    both = timezone.localtime(value), value.astimezone(zones.utc)
    return list(dict.fromkeys(f"{it:%Y-%m-%d %H:%M:%S %Z}" for it in both))


def link_to_user(scope: str, site: AdminSite, request: HttpRequest) -> str:
    """Return a link to the user of a scope of `http.scopes`; "" for another, or without a page."""
    *_before, alone = scopes.inner(scope)
    if (found := _OF_USER.fullmatch(alone)) is None:
        return ""
    try:
        model: Any = apps.get_model(found["model"])
        admin = site.get_model_admin(model)
        user = model._default_manager.filter(pk=found["pk"]).first()
        if user is None or not admin.has_view_permission(request, user):
            return ""
        names = model._meta.app_label, model._meta.model_name
        url = reverse("admin:{}_{}_change".format(*names), args=[user.pk], current_app=site.name)
    except (Error, LookupError, NoReverseMatch, NotRegistered, ValidationError, ValueError):
        return ""
    return format_html('<a href="{}">{}</a>', url, user)
