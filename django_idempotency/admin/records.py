"""The page of a record: its time line, what it means, and its stored answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.contrib.admin import AdminSite
from django.http import HttpRequest
from django.utils.translation import gettext as _
from django.utils.translation import ngettext, pgettext

from django_idempotency.admin.decisions import ACTIONS
from django_idempotency.admin.results import stored
from django_idempotency.admin.shown import May, ago, moment, state_of, user_of
from django_idempotency.operators.resolving import obstacle, told
from django_idempotency.records import Record, State

__all__ = ["Action", "Event", "context_of"]


@dataclass(frozen=True)
class Event:
    """A line of the time line."""

    time: str
    #: How long ago it was; "" for what is to come.
    ago: str
    text: str


@dataclass(frozen=True)
class Action:
    """A button, or why there is none."""

    name: str
    label: Any
    obstacle: str | None


def context_of(
    alias: str, record: Record, may: May, site: AdminSite, request: HttpRequest
) -> dict[str, Any]:
    """Return what the page of a record shows of it."""
    shown = record.result is not None and may.view_result
    return {
        "record": record,
        "may": may,
        "user_of_scope": user_of(record.scope, site, request) if may.view_key else None,
        "fingerprint": None if record.fingerprint is None else record.fingerprint.hex(),
        "size": None if record.result is None else len(record.result),
        "answer": stored(alias, record) if shown else None,
        "told": told(alias, record),
        "events": _time_line(record),
        "actions": [
            Action(name, label, obstacle(record, name, force=True))
            for name, (label, _done) in ACTIONS.items()
        ],
    }


def _time_line(record: Record) -> list[Event]:
    """Return what happened to the record, as far as it is kept, and what will."""
    events = [_event(record, record.created_at, pgettext("idempotency", "Claimed"))]
    if record.attempts > 1:
        more = record.attempts - 1
        said = ngettext("Claimed again, %d time", "Claimed again or taken over, %d times", more)
        last = record.state is State.IN_PROGRESS
        when = record.updated_at if last else None
        events.append(_event(record, when, said % more))
    if record.state is not State.IN_PROGRESS:
        events.append(_event(record, record.updated_at, state_of(record).capitalize()))
    elif record.lease_until is not None:
        lapsed = record.lease_until <= record.now
        said = _("The lease lapsed: no attempt renews it") if lapsed else _("The lease ends")
        events.append(_event(record, record.lease_until, said))
    if record.expires_at is None:
        events.append(_event(record, None, _("It does not expire: an operator decides")))
    else:
        ends = pgettext("idempotency", "Expires")
        if record.expires_at <= record.now:
            ends = pgettext("idempotency", "Expired")
        events.append(_event(record, record.expires_at, ends))
    return events


def _event(record: Record, when: Any, text: str) -> Event:
    if when is None:
        return Event("", "", text)
    return Event(moment(when), ago(record, when), text)
