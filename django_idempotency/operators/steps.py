"""The steps of a record, noted or uncertain, as an operator sees them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_idempotency import journal
from django_idempotency.exceptions import StoreError
from django_idempotency.operators.results import result_of_step
from django_idempotency.records import Record

#: How many steps a sentence names.
_NAMED = 10


@dataclass(frozen=True)
class NotedSteps:
    """What the journal of a record says."""

    #: How many bytes the journal has.
    size: int
    #: The stored results by the names of their steps, in the order of the notes.
    noted: dict[str, bytes]
    #: The calls of which nobody knows whether they were made.
    uncertain: tuple[str, ...] = ()
    #: Why the journal cannot be read, as a sentence; empty if it can be.
    damage: str = ""
    #: The same of a result that it has noted.
    unreadable: str = ""


def steps_of(alias: str, record: Record) -> NotedSteps | None:
    """Return the steps of a record of a store; None if it has no journal."""
    if record.steps is None:
        return None
    try:
        noted, uncertain = journal.read(record.steps)
    except StoreError as error:
        return NotedSteps(len(record.steps), {}, damage=str(error))
    errors = (result_of_step(alias, record, name, noted[name]).error for name in noted)
    why = next(filter(None, errors), "")
    return NotedSteps(len(record.steps), noted, uncertain, unreadable=why)


def forgotten(alias: str, record: Record, *, completes: bool) -> str:
    """
    Return what it means for the steps that a decision drops the journal; empty if it has none.

    They run again, unless the decision completes the record.
    """
    steps = steps_of(alias, record)
    if steps is None or (completes and steps.damage):
        return ""
    if steps.damage:
        return _("The journal of its steps cannot be read, and is forgotten: each step runs again.")
    said = [_("These steps were done, are forgotten, and run again: %(names)s.")]
    said += [_("Nobody knows whether these calls were made, and they are made again: %(names)s.")]
    if completes:
        said = [_("These steps were done, and what comes after them never runs: %(names)s.")]
        said += [
            _("Nobody knows whether these calls were made, and no attempt asks again: %(names)s.")
        ]
    both = zip(said, (steps.noted, steps.uncertain), strict=True)
    return " ".join(text % {"names": listed([*names])} for text, names in both if names)


def why_not_resumed(alias: str, record: Record, step: str | None) -> str | None:
    """Return why a record cannot be resumed with a word about a call; None if it can."""
    steps = steps_of(alias, record)
    if steps is not None and (why := steps.damage or steps.unreadable):
        return f"{_('Its steps cannot be read.')} {why}"
    uncertain = () if steps is None else steps.uncertain
    if step is None or step in uncertain:
        return None
    if not uncertain:
        return _("None of its calls is uncertain. Resume it without a word about a call.")
    said = _("It has no uncertain call %(step)s. Uncertain are: %(names)s.")
    return said % {"step": step, "names": listed(uncertain)}


def resumed(alias: str, record: Record, step: str | None, *, not_done: bool) -> str:
    """Return what a decision to go on means for the calls of a record."""
    said = []
    if step is not None:
        told = _("The call %(step)s counts as made, and has the result that you give.")
        if not_done:
            told = _("The call %(step)s counts as not made: the next attempt makes it.")
        said.append(told % {"step": step})
    steps = steps_of(alias, record)
    if left := [it for it in (steps.uncertain if steps else ()) if it != step]:
        told = _("These calls stay uncertain, and the record does not expire: %(names)s.")
        said.append(told % {"names": listed(left)})
    return " ".join(said)


def listed(names: Sequence[str]) -> str:
    """Return names with commas, the first ones of many."""
    listed, more = ", ".join(names[:_NAMED]), len(names) - _NAMED
    if more > 0:
        listed += " " + ngettext("and %d more", "and %d more", more) % more
    return listed
