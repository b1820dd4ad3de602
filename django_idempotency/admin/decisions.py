"""An operator's decision in the admin: what was seen, the form, and carrying it out."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django import forms
from django.contrib.admin.models import LogEntry
from django.core import signing
from django.core.exceptions import ValidationError
from django.db import router, transaction
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, pgettext_lazy

from django_idempotency.exceptions import IdempotencyError, ResultTooLarge, StoreError
from django_idempotency.operators import looks
from django_idempotency.operators.resolving import consequence, obstacle, resolve
from django_idempotency.operators.results import kind_of, packed_answer, packed_value
from django_idempotency.records import Record, State
from django_idempotency.stores.base import BaseStore
from django_idempotency.stores.database import DatabaseStore

__all__ = [
    "ACTIONS",
    "DecisionForm",
    "Seen",
    "Subject",
    "carry_out",
    "form_for",
    "refusal",
    "subjects",
]

#: What the buttons say, and what the log says afterwards.
ACTIONS = {
    "release": (pgettext_lazy("idempotency", "Release"), pgettext_lazy("idempotency", "Released")),
    "complete": (
        pgettext_lazy("idempotency", "Complete"),
        pgettext_lazy("idempotency", "Completed"),
    ),
    "expire": (pgettext_lazy("idempotency", "Expire"), pgettext_lazy("idempotency", "Expired")),
}


@dataclass(frozen=True)
class Seen:
    """What the operator saw of a record: the decision is conditional on it."""

    record_id: UUID
    epoch: int
    state: State

    @classmethod
    def of(cls, record: Record) -> Seen:
        """Return what is seen of this record."""
        return cls(record.record_id, record.epoch, record.state)

    @classmethod
    def load(cls, text: str, alias: str) -> Seen:
        """Return what `dump` wrote for this store; raise BadSignature."""
        record_id, epoch, state = signing.loads(text, salt=_salt(alias))
        return cls(UUID(record_id), epoch, State(state))

    def dump(self, alias: str) -> str:
        """Return it as signed text for a form."""
        seen = (self.record_id.hex, self.epoch, self.state.value)
        return signing.dumps(seen, salt=_salt(alias))


@dataclass(frozen=True)
class Subject:
    """A record about which is to be decided, and what stands against it or follows from it."""

    seen: Seen
    record: Record | None
    #: Why nothing can be done; "" if it can be tried.
    obstacle: str
    #: What will happen.
    consequence: str = ""

    @property
    def live(self) -> bool:
        """Whether an attempt is running, which only `force` ends."""
        return not self.obstacle and self.record is not None and self.record.live


def refusal(action: str, seen: Sequence[Seen]) -> str | None:
    """Return why there is nothing to decide; None if there is."""
    if action not in ACTIONS:
        return _("Choose an action.")
    if not seen:
        return _("Select the records first.")
    if action == "complete" and len(seen) > 1:
        return _("Complete one record at a time.")
    return None


def subjects(store: BaseStore, seen: Sequence[Seen], action: str) -> list[Subject]:
    """Return the records as they are now, beside what the operator saw; raise StoreError."""
    ids = [it.record_id for it in seen]
    now = {record.record_id: record for record in looks.records_of(store, ids)}
    return [_subject(it, now.get(it.record_id), action) for it in seen]


def _subject(seen: Seen, record: Record | None, action: str) -> Subject:
    if record is None:
        return Subject(seen, None, _("It is gone from the store."))
    if Seen.of(record) != seen:
        return Subject(seen, record, _("It has changed since you saw it. Look at it again."))
    if why := obstacle(record, action, force=True):
        return Subject(seen, record, why)
    if action == "complete" and kind_of(record) is None:
        why = _("Its scope is too long to tell what made it: complete it in code, by resolve().")
        return Subject(seen, record, why)
    return Subject(seen, record, "", consequence(record, action))


class DecisionForm(forms.Form):
    """Why, and whether a running attempt is to be ended."""

    reason = forms.CharField(
        label=pgettext_lazy("idempotency", "Reason"),
        max_length=200,
        help_text=gettext_lazy("It stands in the admin log and in the project's log."),
        widget=forms.TextInput(attrs={"size": 80, "autocomplete": "off"}),
    )
    force = forms.BooleanField(
        label=gettext_lazy("End the running attempt"),
        required=False,
        help_text=gettext_lazy("Without this, a record under a live lease is left as it is."),
    )

    def result(self, alias: str) -> bytes | None:
        """Return the result that the record is to have."""
        return None


class AnswerForm(DecisionForm):
    """The answer that a view's record is to have."""

    status = forms.IntegerField(
        label=pgettext_lazy("idempotency", "Status"), min_value=200, max_value=599, initial=200
    )
    content_type = forms.CharField(
        label=pgettext_lazy("idempotency", "Content type"),
        initial="application/json",
        max_length=255,
    )
    body = forms.CharField(
        label=pgettext_lazy("idempotency", "Body"),
        required=False,
        strip=False,
        widget=forms.Textarea(attrs={"rows": 8, "cols": 80}),
    )
    field_order = ("status", "content_type", "body", "reason", "force")

    def clean(self) -> dict[str, Any]:
        """Refuse what no header field may have, and what is no JSON under that name."""
        kind, body = self.cleaned_data.get("content_type", ""), self.cleaned_data.get("body", "")
        if not kind.isprintable():
            self.add_error("content_type", _("It has a character that cannot be printed."))
        elif "json" in kind and body:
            try:
                json.loads(body)
            except (ValueError, RecursionError) as error:
                self.add_error("body", _("This is no JSON: %(error)s") % {"error": error})
        return self.cleaned_data

    def result(self, alias: str) -> bytes | None:
        """Return the answer, packed."""
        data = self.cleaned_data
        return packed_answer(alias, data["status"], data["body"], data["content_type"])


class ValueForm(DecisionForm):
    """The result that the record of a task or a call is to have."""

    value = forms.CharField(
        label=gettext_lazy("Result, as JSON"),
        initial="null",
        widget=forms.Textarea(attrs={"rows": 8, "cols": 80}),
    )
    field_order = ("value", "reason", "force")
    record: Record

    def clean_value(self) -> Any:
        """Return the value of the text."""
        try:
            return json.loads(self.cleaned_data["value"])
        except (ValueError, RecursionError) as error:
            raise ValidationError(_("This is no JSON: %(error)s") % {"error": error}) from error

    def result(self, alias: str) -> bytes | None:
        """Return the value, packed for the adapter that made the record."""
        return packed_value(alias, self.record, self.cleaned_data["value"])


def form_for(action: str, about: Sequence[Subject], data: Any = None) -> DecisionForm:
    """Return the form of a decision about these records."""
    [*records] = (it.record for it in about if it.record is not None)
    form: DecisionForm
    if action != "complete" or not records:
        form = DecisionForm(data)
    elif kind_of(records[0]) == "http":
        form = AnswerForm(data)
    else:
        form = ValueForm(data)
        form.record = records[0]
    if not any(it.live for it in about):
        del form.fields["force"]
    return form


def carry_out(
    store: BaseStore,
    subject: Subject,
    action: str,
    form: DecisionForm,
    *,
    who: str,
    log: Callable[[Record, str], Any],
) -> str | None:
    """
    Carry out a decision, and write its entry into the admin log; return why it was not done.

    The entry commits after the decision, and both do where they share a database: without the
    entry nothing is decided, and an entry of what was not done is rolled back. If it is not known
    whether the store has done it, an entry says so.
    """
    if subject.record is None or subject.obstacle:
        return subject.obstacle
    data = form.cleaned_data
    force = data.get("force", False)
    if why := obstacle(subject.record, action, force=force):
        return why
    entry = _("%(done)s in the store %(alias)s: %(reason)s")
    if force and subject.live:  # of several, one may run
        entry = _("%(done)s in the store %(alias)s, with a running attempt: %(reason)s")
    words = {"done": ACTIONS[action][1], "alias": store.alias, "reason": data["reason"]}
    try:
        result = form.result(store.alias) if action == "complete" else None
    except (LookupError, RecursionError, TypeError, ValueError, ResultTooLarge) as error:
        return str(error)
    using = router.db_for_write(LogEntry)
    try:
        with transaction.atomic(using=using):
            log(subject.record, entry % words)
            resolve(
                store,
                subject.record,
                action,
                result=result,
                force=force,
                who=who,
                reason=data["reason"],
            )
    except StoreError as error:
        if isinstance(store, DatabaseStore) and store.using == using:
            return str(error)  # rolled back with the entry
        unknown = _("It may have been done: look at it again.")
        log(subject.record, f"{entry % words} ({unknown})")
        return f"{error} {unknown}"
    except IdempotencyError as error:
        return str(error)
    return None


def _salt(alias: str) -> str:
    return f"django_idempotency.admin.{alias}"
