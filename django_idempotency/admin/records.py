"""The page of a record: its time line, what it means, and its stored answer."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import datetime
from typing import Any

from django.contrib.admin import AdminSite
from django.contrib.humanize.templatetags.humanize import intcomma
from django.http import HttpRequest
from django.utils.text import Truncator
from django.utils.translation import gettext as _
from django.utils.translation import ngettext, pgettext

from django_idempotency.admin.decisions import ACTIONS, CALLS, question_of
from django_idempotency.admin.shown import May, link_to_user, moments
from django_idempotency.models import IdempotencyRecord
from django_idempotency.operators.decisions import Decision
from django_idempotency.operators.facts import STATES, Answer, Reading, ago
from django_idempotency.operators.guarded import guard_of, lines
from django_idempotency.operators.results import members
from django_idempotency.records import NAMED, Record, State

#: How many characters of a body are on the page.
_SHOWN = 100_000


def context_of(found: Reading, may: May, site: AdminSite, request: HttpRequest) -> dict[str, Any]:
    """Return what the page of a record shows of it."""
    record, guard = found.record, guard_of(found)
    question = question_of(found, guard) if record.stale else None
    answers = [] if question is None else [name for name, *_told in question["answers"]]
    context = {
        "record": record,
        "may": may,
        "user_link": link_to_user(record.scope, site, request) if may.view_key else "",
        "texts": [
            (_label(name), getattr(record, name))
            for name in NAMED
            if name not in ("scope", "key")  # which take a permission
        ],
        "fingerprint": None if record.fingerprint is None else record.fingerprint.hex(),
        "told": found.told,
        "events": _time_line(record),
        "actions": {
            name: label
            for name, (label, _done) in ACTIONS.items()
            if name not in (*answers, *CALLS)
            and (name != "resume" or (record.steps is not None and not record.live))
            and Decision.of(found, name, force=True).obstacle is None
        },
        "policy": "" if guard is None else "\n".join(lines(guard)),
        "question": question,
    }
    if (steps := found.steps) is not None:
        context["steps"] = steps
        context["noted"] = [
            (name, it.size, *(body_of(it) if may.view_result else (None, "")))
            for name, it in steps.noted.items()
        ]
        if may.resolve and Decision.of(found, "resume").obstacle is None:
            context["calls"] = {name: ACTIONS[name][0] for name in CALLS}
    if found.answer is not None and may.view_result:
        context["answer"] = found.answer
        context["body"], context["note"] = body_of(found.answer)
    return context


def _label(name: str) -> str:
    """Return how the page names a column: by the model's name, unless it is translated here."""
    if name == "operation":
        return pgettext("idempotency", "Operation")
    return str(getattr(IdempotencyRecord, name).field.verbose_name)


def _time_line(record: Record) -> list[tuple[list[str], str, str]]:
    """
    Return what happened to the record, as far as it is kept, and what will.

    Each event is a time in each zone, how long ago it was or in how long it will be, and a text.
    """
    is_running = record.state is State.IN_PROGRESS
    events: list[tuple[datetime | None, str]] = [
        (record.created_at, pgettext("idempotency", "Claimed"))
    ]
    if (more := record.attempts - 1) > 0:
        said = ngettext("Claimed again, %d time", "Claimed again or taken over, %d times", more)
        events.append((record.updated_at if is_running else None, said % more))
    if not is_running:
        events.append((record.updated_at, STATES[record.state].capitalize()))
    elif record.lease_until is not None:
        lapsed = record.lease_until <= record.now
        said = _("The lease lapsed: no attempt renews it") if lapsed else _("The lease ends")
        events.append((record.lease_until, said))
    if record.expires_at is None:
        events.append((None, _("It does not expire: an operator decides")))
    elif record.expires_at <= record.now:
        events.append((record.expires_at, pgettext("idempotency", "Expired")))
    else:
        events.append((record.expires_at, pgettext("idempotency", "Expires")))
    return [(moments(when), ago(record, when) if when else "", text) for when, text in events]


def body_of(answer: Answer) -> tuple[str | None, str]:
    """
    Return the body of a stored result as text, JSON with a member to each line (R80).

    If there is none to show, it is None, and the second value says why: the body was not kept, or
    is no text, of this size and type.
    """
    text = answer.text
    if answer.note:
        return None, answer.note
    if text is None:
        said = _("%(size)s bytes, %(type)s")
        return None, said % {"size": intcomma(len(answer.body)), "type": answer.content_type}
    if "json" in answer.content_type:
        with suppress(ValueError, RecursionError):  # a view may call anything JSON
            text = _indented(text)
    return Truncator(text).chars(_SHOWN), ""


def _indented(text: str) -> str:
    """
    Return JSON with a member to each line, and little more of it than is shown.

    Raises ValueError where that would change it: 1.10, or a name that comes twice.
    """
    value, indented = json.loads(text, parse_float=_exact, object_pairs_hook=members), ""
    for piece in json.JSONEncoder(indent=2, ensure_ascii=False).iterencode(value):
        indented += piece
        if len(indented) > _SHOWN:  # indentation makes a thousand times as much of deep nesting
            break
    return indented.encode(errors="backslashreplace").decode()  # half a surrogate pair


def _exact(text: str) -> float:
    value = float(text)
    if repr(value) != text:
        raise ValueError("This number would be shown as another.")
    return value
