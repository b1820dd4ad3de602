"""An operator's decision in the admin: what was seen, its form, and its entry in the log."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django import forms
from django.core import signing
from django.http import QueryDict
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, pgettext_lazy

from django_idempotency import keys
from django_idempotency.operators.decisions import Decision, NotResolved, Seen
from django_idempotency.operators.facts import Reading
from django_idempotency.operators.results import given_result
from django_idempotency.records import State
from django_idempotency.stores.base import BaseStore

#: What the buttons say, and what the log says afterwards.
ACTIONS = {
    "release": (pgettext_lazy("idempotency", "Release"), pgettext_lazy("idempotency", "Released")),
    "complete": (
        pgettext_lazy("idempotency", "Complete"),
        pgettext_lazy("idempotency", "Completed"),
    ),
    "expire": (pgettext_lazy("idempotency", "Expire"), pgettext_lazy("idempotency", "Expired")),
    "resume": (pgettext_lazy("idempotency", "Go on"), pgettext_lazy("idempotency", "Resumed")),
    # To resume it with a word about a call.
    "done": (
        pgettext_lazy("idempotency", "It was done"),
        gettext_lazy("Resumed (%(step)s was done)"),
    ),
    "not_done": (
        pgettext_lazy("idempotency", "It was not done"),
        gettext_lazy("Resumed (%(step)s was not done)"),
    ),
}
#: Those about a call.
CALLS = ("done", "not_done")
#: What each answer to "Was the work done?" leads to.
_ANSWERS = {
    "complete": gettext_lazy("It was done: each duplicate gets the result that you give."),
    "release": gettext_lazy("It was not done: the next duplicate runs it."),
    "resume": gettext_lazy("It was half done: the same request goes on behind its steps."),
}
_TOGETHER = gettext_lazy(
    "The mode is %(mode)s: nothing that the attempt wrote in its transaction is committed. Another "
    "service may have done what the attempt asked of it."
)
#: What may be left of a stale attempt, by the mode of its view or task.
_LEFT = {
    "joined": _TOGETHER,
    "single": _TOGETHER,
    "separate": gettext_lazy(
        "The mode is %(mode)s: rows of the attempt may be in the database. Another service may "
        "have done what the attempt asked of it."
    ),
    "steps": gettext_lazy(
        "The mode is %(mode)s: what its steps have noted is done, and the same request goes on "
        "behind them. Of the step in which the attempt ended, the database keeps nothing; another "
        "service may have done what it was asked."
    ),
}
#: The fields of a view's answer.
_OF_ANSWER = ("status", "content_type", "body")


def signed(seen: Seen, alias: str) -> str:
    """Return what was seen of a record of this store, as signed text for a form."""
    values = (seen.record_id.hex, seen.epoch, seen.state.value, seen.noted)
    return signing.dumps(values, salt=_salt(alias))


def _unsigned(text: str, alias: str) -> Seen:
    """Return what `signed` was given for this store; raise BadSignature."""
    record_id, epoch, state, noted = signing.loads(text, salt=_salt(alias))
    return Seen(UUID(record_id), epoch, State(state), noted)


def asked_for(store: BaseStore, form: QueryDict) -> list[Decision]:
    """
    Return the decisions that a form asks for, each beside the record as it is now.

    Raises NotResolved for a form that asks for none, and StoreError.
    """
    action, texts = form.get("action", ""), form.getlist("seen")
    if action not in ACTIONS:
        raise NotResolved(_("Choose an action."))
    if not texts:
        raise NotResolved(_("Select the records first."))
    if action in ("complete", *CALLS) and len(texts) > 1:
        raise NotResolved(_("Decide about one record at a time."))
    try:
        seen = [_unsigned(text, store.alias) for text in texts]
    except signing.BadSignature as error:
        raise NotResolved(_("This form is not of this store. Begin anew.")) from error
    step = form.get("step", "") if action in CALLS else None
    name, not_done = action if step is None else "resume", action == "not_done"
    about = []
    for it in seen:
        record = store.get(it.record_id)
        found = None if record is None else Reading(store, record)
        it = it if record is None else it.to_end(record, name)
        about.append(Decision(store, name, it, found, True, step, not_done))
    return about


def past_of(decision: Decision) -> str:
    """Return what the log says of a decision that was carried out."""
    name = decision.action
    if decision.step is not None:
        name = "not_done" if decision.not_done else "done"
    return str(ACTIONS[name][1]) % {"step": keys.bounded(decision.step or "")}


def question_of(found: Reading, guard: dict[str, Any] | None) -> dict[str, Any] | None:
    """
    Return what a page asks about the work of a record, and the answers to it.

    None while an attempt is running, and where neither answer can be carried out.
    """
    record = found.record
    answers = [
        (name, ACTIONS[name][0], text, Decision.of(found, name, force=True).obstacle)
        for name, text in _ANSWERS.items()
        if name != "resume" or record.steps is not None
    ]
    if record.live or all(obstacle for *_told, obstacle in answers):
        return None
    mode = guard["transaction"] if guard else ""
    if guard and "transaction" in guard.get("per request", ""):  # it may have been another one
        mode = ""
    return {
        "left": _LEFT[mode] % {"mode": mode} if record.stale and mode else "",
        # Name and label of the action, what it is for, and why it cannot be carried out.
        "answers": answers,
    }


class DecisionForm(forms.Form):
    """Why, whether a running attempt is to be ended, and the result that a record is to have."""

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
        widget=forms.Textarea(attrs={"rows": 8, "cols": 80, "dir": "ltr"}),
    )
    value = forms.CharField(
        label=gettext_lazy("Result, as JSON"),
        initial="null",
        widget=forms.Textarea(attrs={"rows": 8, "cols": 80, "dir": "ltr"}),
    )
    reason = forms.CharField(
        label=pgettext_lazy("idempotency", "Reason"),
        max_length=200,
        help_text=gettext_lazy("It stands in the admin log and in the project's log."),
        widget=forms.TextInput(attrs={"size": 80, "autocomplete": "off", "dir": "auto"}),
    )
    force = forms.BooleanField(
        label=gettext_lazy("End the running attempt"),
        required=False,
        help_text=gettext_lazy("Without this, a record under a live lease is left as it is."),
    )

    def __init__(self, about: Sequence[Decision], data: Any = None) -> None:
        """Ask for what these decisions take: a completion for a result of the record's adapter."""
        super().__init__(data, initial={} if about[0].step is None else {"value": ""})
        self.decision = about[0]
        #: The result that the record is to have, once the form is valid.
        self.result: bytes | None = None
        completed = self.decision.found if self.decision.action == "complete" else None
        is_view = completed is not None and completed.kind == "http"
        was_done = self.decision.step is not None and not self.decision.not_done
        taken = {
            "reason": True,
            "force": any(it.ends_attempt for it in about),
            "value": was_done or (completed is not None and not is_view),
            **dict.fromkeys(_OF_ANSWER, is_view),
        }
        self.fields = {name: field for name, field in self.fields.items() if taken[name]}

    def clean(self) -> dict[str, Any]:
        """Refuse what no header field may have, what is no JSON, and what cannot be kept."""
        data, found, step = self.cleaned_data, self.decision.found, self.decision.step
        kind, name = data.get("content_type", ""), "value" if "value" in data else "body"
        if not kind.isprintable():
            self.add_error("content_type", _("It has a character that cannot be printed."))
        if name == "value" or ("json" in kind and data.get("body")):
            try:
                json.loads(data[name])
            except (ValueError, RecursionError) as error:
                self.add_error(name, _("This is no JSON: %(error)s") % {"error": error})
        given = {each: data[each] for each in (*_OF_ANSWER, "value") if each in data}
        if given and found is not None and not self.errors:
            try:
                self.result = given_result(found, **given, step=step)
            except ValueError as error:
                self.add_error(name, str(error))
        return data


def _salt(alias: str) -> str:
    return f"django_idempotency.admin.{alias}"
