"""The steps that a record has noted, as an operator sees them."""

from __future__ import annotations

from dataclasses import dataclass

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_idempotency import journal
from django_idempotency.exceptions import StoreError
from django_idempotency.records import Record

__all__ = ["Steps", "forgotten", "steps_of"]

#: How many steps a sentence names.
_NAMED = 10


@dataclass(frozen=True)
class Steps:
    """What the journal of a record says."""

    #: How many bytes the journal has.
    size: int
    #: The stored results by the names of their steps, in the order of the notes.
    noted: dict[str, bytes]
    #: Why the journal cannot be read, as a sentence; empty if it can be.
    damage: str = ""


def steps_of(record: Record) -> Steps | None:
    """Return the steps that a record has noted; None if it has no journal."""
    if record.steps is None:
        return None
    try:
        return Steps(len(record.steps), journal.read(record.steps).results)
    except StoreError as error:
        return Steps(len(record.steps), {}, str(error))


def forgotten(record: Record, *, completes: bool) -> str:
    """
    Return what it means for the steps that a decision drops the journal; empty if it has none.

    They run again, unless the decision completes the record.
    """
    steps = steps_of(record)
    if steps is None or (completes and steps.damage):
        return ""
    if steps.damage:
        return _("The journal of its steps cannot be read, and is forgotten: each step runs again.")
    names = [*steps.noted]
    more = len(names) - _NAMED
    listed = ", ".join(names[:_NAMED])
    if more > 0:
        listed += " " + ngettext("and %d more", "and %d more", more) % more
    said = _("These steps were done, are forgotten, and run again: %(names)s.")
    if completes:
        said = _("These steps were done, and what comes after them never runs: %(names)s.")
    return said % {"names": listed}
