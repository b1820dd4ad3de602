"""How the admin shows a record: times, durations, masks, and the user that a scope names."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.apps import apps
from django.contrib.admin import AdminSite
from django.contrib.admin.exceptions import NotRegistered
from django.core.exceptions import ValidationError
from django.db import Error
from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse
from django.utils import timezone
from django.utils.text import Truncator
from django.utils.translation import pgettext

from django_idempotency.keys import short
from django_idempotency.models import IdempotencyRecord
from django_idempotency.records import Record, State

__all__ = [
    "MASKED",
    "May",
    "Row",
    "User",
    "ago",
    "moment",
    "span",
    "state_of",
    "user_of",
]

MASKED = "•••••"
_APP = IdempotencyRecord._meta.app_label
_UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


@dataclass(frozen=True)
class May:
    """What the user may see and do."""

    view_key: bool
    view_result: bool
    resolve: bool

    @classmethod
    def of(cls, request: HttpRequest) -> May:
        """Return what the user of this request may see and do."""
        names = ("view_key", "view_result", "resolve_record")
        return cls(*(request.user.has_perm(f"{_APP}.{name}") for name in names))


class Row:
    """A record as the pages show it; `url` is its page, `seen` the signed state for decisions."""

    def __init__(self, record: Record, may: May, url: str = "", seen: str = "") -> None:
        self.record, self.url, self.seen = record, url, seen
        self.short = short(record.record_id)
        self.key = record.key if may.view_key else MASKED
        self.scope = record.scope if may.view_key else MASKED
        self.short_key = Truncator(self.key).chars(36)
        self.short_scope = Truncator(self.scope).chars(36)
        self.short_operation = Truncator(record.operation).chars(48)
        self.state = state_of(record)

    @property
    def kind(self) -> str:
        """The class of the badge."""
        return "stale" if self.record.stale else self.record.state.value.lower()

    @property
    def lease(self) -> str:
        """How long the lease lasts, or that it is stale; "" if the record is not in progress."""
        record = self.record
        if record.stale:
            return pgettext("idempotency", "stale")
        left = record.lease_left
        return "" if left is None else f"{left:.0f} s"

    @property
    def held_for(self) -> str:
        """How long the attempt has held the record."""
        return span(self.record.now - self.record.updated_at)

    @property
    def created(self) -> str:
        """The time of the first claim."""
        return moment(self.record.created_at)

    @property
    def created_ago(self) -> str:
        """The time since the first claim."""
        return ago(self.record, self.record.created_at)

    @property
    def expires(self) -> str:
        """The end of the record's time."""
        return moment(self.record.expires_at)

    @property
    def expires_in(self) -> str:
        """The time that is left to the record."""
        if self.record.expires_at is None:
            return pgettext("idempotency", "never")
        if self.record.expired:
            return pgettext("idempotency", "expired")
        return ago(self.record, self.record.expires_at)


def state_of(record: Record) -> str:
    """Return the name of the record's state."""
    return state_name(record.state)


def state_name(state: State) -> str:
    """Return the name of a state."""
    names = {
        State.IN_PROGRESS: pgettext("idempotency", "in progress"),
        State.COMPLETED: pgettext("idempotency", "completed"),
        State.FAILED: pgettext("idempotency", "failed"),
        State.RELEASED: pgettext("idempotency", "released"),
    }
    return names[state]


def moment(value: datetime | None) -> str:
    """Return a time to the second, in the time zone of the project."""
    return "-" if value is None else f"{timezone.localtime(value):%Y-%m-%d %H:%M:%S}"


def span(value: timedelta) -> str:
    """Return a duration in its two largest units: 3 d 4 h, 5 min 6 s."""
    left, parts = max(int(value.total_seconds()), 0), []
    for seconds, unit in _UNITS:
        if left >= seconds:
            parts.append(f"{left // seconds} {unit}")
            left %= seconds
        elif parts:
            break
    return " ".join(parts[:2]) or "0 s"


def ago(record: Record, when: datetime) -> str:
    """Return how long ago a time was, or in how long it will be, by the record's clock."""
    since = record.now - when
    if since.total_seconds() < 0:
        return pgettext("idempotency", "in %s") % span(-since)
    return pgettext("idempotency", "%s ago") % span(since)


@dataclass(frozen=True)
class User:
    """The user that a scope names, and their page in this admin if there is one."""

    name: str
    url: str


def user_of(scope: str, site: AdminSite, request: HttpRequest) -> User | None:
    """Return the user of a scope of `http.scopes`; None for another scope, and without a page."""
    label, pk = _user_in(scope)
    try:
        model: Any = apps.get_model(label)
        admin = site.get_model_admin(model)
        user = model._default_manager.filter(pk=pk).first() if pk else None
        if user is None or not admin.has_view_permission(request, user):
            return None
        names = model._meta.app_label, model._meta.model_name
        url = reverse("admin:{}_{}_change".format(*names), args=[user.pk], current_app=site.name)
    except (Error, LookupError, NoReverseMatch, NotRegistered, ValidationError, ValueError):
        return None
    return User(str(user), url)


def _user_in(scope: str) -> tuple[str, str]:
    """Return model and primary key out of a scope: the parts before it have their lengths."""
    while found := re.match(r"(?:tenant:)?(\d{1,3}):", scope):
        scope = scope[found.end() + int(found[1]) + 1 :]
    found = re.fullmatch(r"user:([a-z0-9_]+\.[a-z0-9_]+):(.+)", scope)
    return (found[1], found[2]) if found else ("", "")
