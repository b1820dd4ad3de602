"""An operator's decision about a record: what it will do, whether it can be done, and doing it."""

from __future__ import annotations

from datetime import timedelta

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_idempotency import keys
from django_idempotency.claims import Resolution
from django_idempotency.codecs import is_unavailable
from django_idempotency.codecs.encryption import sealed
from django_idempotency.conf import policy_for
from django_idempotency.exceptions import IdempotencyError, StoreError
from django_idempotency.observers import logger
from django_idempotency.operators.answers import answer_of
from django_idempotency.records import Record, State
from django_idempotency.stores.base import BaseStore

__all__ = ["NotResolved", "consequence", "obstacle", "resolve", "told"]

#: The states of which an operator can make RELEASED or COMPLETED.
_OPEN = (State.IN_PROGRESS, State.FAILED)
_NEXT = {
    "release": gettext_lazy("The next request with this key runs, whatever it asks for."),
    "complete": gettext_lazy("Each duplicate gets the given result, until the record expires."),
    "expire": gettext_lazy("The next request with this key runs as if it were the first one."),
}


class NotResolved(IdempotencyError):
    """The record was not changed."""


def resolve(
    store: BaseStore,
    seen: Record,
    action: str,
    *,
    result: bytes | None = None,
    retention: timedelta | None = None,
    force: bool = False,
    who: str = "",
    reason: str = "",
) -> None:
    """
    Release, complete or expire the record that the operator saw, and write a line of the log.

    `result` is for "complete": see `django_idempotency.operators.results`. It is encrypted here if
    the alias has keys. `retention` is how long it is kept; the alias's by default. `force` ends a
    live lease, too. Raises NotResolved, with the reason, if the record was not changed, and
    StoreError if that is not known: to decide again is safe, because the epoch that the operator
    saw is part of the condition.
    """
    policy = policy_for(store.alias)
    retention = policy.retention if retention is None else retention
    if result is not None:
        result = sealed(result, seen.record_id, policy.encryption_keys)
    resolution = Resolution(action, seen.epoch, seen.state, force, result, retention)
    short = keys.short(seen.record_id)
    words = (keys.bounded(who) or "an operator", keys.bounded(reason) or "none given", store.alias)
    try:
        is_done = store.resolve(seen.record_id, resolution)
    except (StoreError, KeyboardInterrupt, SystemExit):  # the log must not lack what was done
        logger.warning(
            "Record %s: %s by %s may have been done. Reason: %s (store %s)", short, action, *words
        )
        raise
    if not is_done:
        said = _("Record %(record)s was not changed.") % {"record": short}
        raise NotResolved(f"{said} {_why_not(store, seen, action, force)}")
    logger.warning("Record %s: %s by %s. Reason: %s (store %s)", short, action, *words)


def obstacle(record: Record, action: str, *, force: bool = False) -> str | None:
    """Return why an action cannot be done to `record`, as a sentence; None if it can be tried."""
    if record.expired:
        return _("It has expired: the next request with this key runs.")
    if action != "expire" and record.state not in _OPEN:
        said = _("It is %(state)s, and such a record can only be expired.")
        return said % {"state": record.state}
    if record.live and not force:
        said = _("An attempt is running. Wait for its end, or force the decision.")
        if (left := record.lease_left) is not None:
            said = _(
                "An attempt is running, and its lease lasts for %(seconds).0f s unless renewed. "
                "Wait for its end, or force the decision."
            ) % {"seconds": left}
        return said
    return None


def consequence(record: Record, action: str) -> str:
    """Return what an action will do to a running owner and to the next duplicate."""
    said = []
    if record.state is State.IN_PROGRESS and record.live:
        said.append(_("The running attempt loses its lease and cannot write its result."))
    elif record.state is State.IN_PROGRESS:
        said.append(
            _(
                "The former attempt, should it still run, loses its lease and cannot write its "
                "result."
            )
        )
    if record.state is State.IN_PROGRESS:
        said.append(_("The database rolls joined work back, other work stays done."))
    if record.state is State.COMPLETED:
        said.append(_("The stored result is replayed no more, and the work runs a second time."))
    return " ".join([*said, str(_NEXT[action])])


def told(alias: str, record: Record) -> str:
    """Return what a duplicate sent now would be told; `record` comes with its result."""
    if record.expired:
        return _("It would run: the record has expired.")
    if record.state is State.RELEASED:
        return _("It would run, whatever it asks for: the key was released.")
    said = _told_the_same(alias, record)
    if record.fingerprint is None:
        return said
    return f"{said} {_('Another request is refused: mismatch (422).')}"


def _told_the_same(alias: str, record: Record) -> str:
    """Return what the same request would be told."""
    if record.state is State.COMPLETED:
        if record.result is None or is_unavailable(record.result):
            return _("It would be refused: result unavailable (409), it was not kept.")
        if error := answer_of(alias, record).error:
            said = _("It would be refused: store unavailable (503), the result cannot be read.")
            return f"{said} {error}"
        return _("It would get the stored result.")
    if record.state is State.FAILED:
        return _("It would run again: the last attempt failed.")
    if record.live:
        said = _("It would be refused: in progress (409).")
        if (left := record.lease_left) is None:
            return said
        lasts = _("The lease lasts for %(seconds).0f s unless it is renewed.")
        return f"{said} {lasts % {'seconds': left}}"
    if record.expires_at is None:
        return _("It would be refused: stale (409), until an operator decides.")
    return _("It would take over and run: the lease has lapsed.")


def _why_not(store: BaseStore, seen: Record, action: str, force: bool) -> str:
    """Return why the store has not carried out a decision, by the record as it is now."""
    record = store.get(seen.record_id)
    if record is None:
        return _("It is gone from the store.")
    if (record.epoch, record.state) != (seen.epoch, seen.state):
        said = _("It has changed since you saw it: it is %(state)s now. Look at it again.")
        return said % {"state": record.state}
    if (why := obstacle(record, action, force=force)) is not None:
        return why
    return _("Another session is using it. Try again.")
