"""An operator's decision about a record: what it will do, whether it can be done, and doing it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import timedelta
from uuid import UUID

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_idempotency import keys
from django_idempotency.claims import Resolution
from django_idempotency.codecs.encryption import sealed
from django_idempotency.conf import policy_for
from django_idempotency.exceptions import IdempotencyError, StoreError
from django_idempotency.observers import logger
from django_idempotency.operators.facts import STATES, Reading, listed
from django_idempotency.records import Record, State
from django_idempotency.stores.base import BaseStore

#: The states of which an operator can make RELEASED or COMPLETED.
_OPEN = (State.IN_PROGRESS, State.FAILED)
_NEXT = {
    "release": gettext_lazy("The next request with this key runs, whatever it asks for."),
    "complete": gettext_lazy("Each duplicate gets the given result, until the record expires."),
    "expire": gettext_lazy("The next request with this key runs as if it were the first one."),
    "resume": gettext_lazy("The same request runs, and skips the steps that are done."),
}


class NotResolved(IdempotencyError):
    """The record was not changed."""


@dataclass(frozen=True)
class Seen:
    """What the operator saw of a record: the decision is conditional on it."""

    record_id: UUID
    epoch: int
    state: State
    #: The size of the journal of its steps, in bytes: within an epoch it grows. None for any.
    noted: int | None = 0

    @classmethod
    def of(cls, record: Record) -> Seen:
        """Return what is seen of this record."""
        return cls(record.record_id, record.epoch, record.state, len(record.steps or b""))

    def to_end(self, record: Record, action: str) -> Seen:
        """
        Return what of it counts for an action on the record as it is now.

        A running attempt notes on while an operator decides to end it. To resume its record says
        something of its calls, so there the journal counts all the same.
        """
        return replace(self, noted=None) if record.live and action != "resume" else self


@dataclass(frozen=True)
class Decision:
    """To release, complete, expire or resume a record of a store."""

    store: BaseStore
    action: str
    seen: Seen
    #: The record as it was read last, to tell what the decision will do; None if it is gone.
    found: Reading | None
    #: End a live lease, too.
    force: bool = False
    #: "resume": the call of which it says that it was made, with a result, or that it was not.
    step: str | None = None
    not_done: bool = False
    #: For "complete", and for the call of "resume": see `django_idempotency.operators.results`.
    result: bytes | None = field(default=None, repr=False)
    #: How long the record is kept; None for as long as the alias says.
    retention: timedelta | None = None

    @classmethod
    def of(cls, found: Reading, action: str, *, force: bool = False) -> Decision:
        """Return a decision about a record that is seen as it was read."""
        return cls(found.store, action, Seen.of(found.record), found, force)

    @property
    def record(self) -> Record | None:
        """See `found`."""
        return None if self.found is None else self.found.record

    @property
    def obstacle(self) -> str | None:
        """Why it cannot be carried out, as a sentence; None if it can be tried."""
        if self.found is None:
            return _("It is gone from the store.")
        record = self.found.record
        now = Seen.of(record)
        if self.seen not in (now, replace(now, noted=None)):
            said = _("It has changed since you saw it: it is %(state)s now. Look at it again.")
            return said % {"state": STATES[record.state]}
        if record.expired:
            return _("It has expired: the next request with this key runs.")
        if self.action != "expire" and record.state not in _OPEN:
            said = _("It is %(state)s, and such a record can only be expired.")
            return said % {"state": STATES[record.state]}
        if self.action == "complete" and self.found.kind is None:
            return _(
                "Its scope is not stored whole, so nothing tells what made it: complete it in "
                "code, by resolve()."
            )
        if self.action == "resume" and (why := self._why_not_resumed()) is not None:
            return why
        if record.live and not self.force:
            said = _("An attempt is running. Wait for its end, or force the decision.")
            if (left := record.lease_left) is not None:
                said = _(
                    "An attempt is running, and its lease lasts for %(seconds).0f s unless "
                    "renewed. Wait for its end, or force the decision."
                ) % {"seconds": left}
            return said
        return None

    def _why_not_resumed(self) -> str | None:
        steps = None if self.found is None else self.found.steps
        if steps is not None and (why := steps.unreadable):
            return f"{_('Its steps cannot be read.')} {why}"
        uncertain = () if steps is None else steps.uncertain
        if self.step is None or self.step in uncertain:
            return None
        if not uncertain:
            return _("None of its calls is uncertain. Resume it without a word about a call.")
        said = _("It has no uncertain call %(step)s. Uncertain are: %(names)s.")
        return said % {"step": self.step, "names": listed(uncertain)}

    @property
    def ends_attempt(self) -> bool:
        """Whether an attempt is running, which only `force` ends."""
        return self.record is not None and self.record.live and self.obstacle is None

    @property
    def consequence(self) -> str:
        """What it will do to a running owner and to the next duplicate."""
        said = []
        record = self.record
        if record is not None and record.state is State.IN_PROGRESS:
            if record.live:
                said.append(_("The running attempt loses its lease and cannot write its result."))
                if record.steps is not None and self.action in ("release", "expire"):
                    said.append(_("What its steps do until then is forgotten, too."))
            else:
                said.append(
                    _(
                        "The former attempt, should it still run, loses its lease and cannot "
                        "write its result."
                    )
                )
            said.append(_("The database rolls joined work back, other work stays done."))
        if record is not None and record.state is State.COMPLETED:
            said.append(
                _("The stored result is replayed no more, and the work runs a second time.")
            )
        return " ".join(filter(None, [*said, self.of_steps, str(_NEXT[self.action])]))

    @property
    def of_steps(self) -> str:
        """What it will do to the steps of the record, and to its calls that are uncertain."""
        steps = None if self.found is None else self.found.steps
        if self.action == "resume":
            said = []
            if self.step is not None:
                told = _("The call %(step)s counts as made, and has the result that you give.")
                if self.not_done:
                    told = _("The call %(step)s counts as not made: the next attempt makes it.")
                said.append(told % {"step": self.step})
            if left := [it for it in (steps.uncertain if steps else ()) if it != self.step]:
                told = _("These calls stay uncertain, and the record does not expire: %(names)s.")
                said.append(told % {"names": listed(left)})
            return " ".join(said)
        completes = self.action == "complete"
        if steps is None or (completes and steps.damage):
            return ""
        if steps.damage:
            return _(
                "The journal of its steps cannot be read, and is forgotten: each step runs again."
            )
        done = _("These steps were done, are forgotten, and run again: %(names)s.")
        unknown = _(
            "Nobody knows whether these calls were made, and they are made again: %(names)s."
        )
        if completes:
            done = _("These steps were done, and what comes after them never runs: %(names)s.")
            unknown = _(
                "Nobody knows whether these calls were made, and no attempt asks again: %(names)s."
            )
        both = ((done, [*steps.noted]), (unknown, steps.uncertain))
        return " ".join(text % {"names": listed(names)} for text, names in both if names)

    def carry_out(self, *, who: str = "", reason: str = "") -> None:
        """
        Do it if the record is as the operator saw it, and write a line of the log.

        The result is encrypted here if the alias has keys. Raises NotResolved, with the reason, if
        the record was not changed, and StoreError if that is not known: to decide again is safe,
        because the epoch that the operator saw is part of the condition.
        """
        store, seen, action, result = self.store, self.seen, self.action, self.result
        policy = policy_for(store.alias)
        if result is not None:
            owner = seen.record_id if self.step is None else keys.of_step(seen.record_id, self.step)
            result = sealed(result, owner, policy.encryption_keys)
        retention = policy.retention if self.retention is None else self.retention
        resolution = Resolution(
            *(action, seen.epoch, seen.state, self.force, result, retention),
            *(self.step, self.not_done, seen.noted),
        )
        short = keys.short(seen.record_id)
        if self.step is not None:
            action += f" ({self.step!r} was {'not done' if self.not_done else 'done'})"
        words = [short, action, keys.bounded(who) or "an operator"]
        words += [keys.bounded(reason) or "none given", store.alias]
        try:
            is_done = store.resolve(seen.record_id, resolution)
        except (StoreError, KeyboardInterrupt, SystemExit):  # the log must not lack what was done
            logger.warning("Record %s: %s by %s may have been done. Reason: %s (store %s)", *words)
            raise
        if not is_done:
            said = _("Record %(record)s was not changed.") % {"record": short}
            record = store.get(seen.record_id)
            now = replace(self, found=None if record is None else Reading(store, record))
            why = now.obstacle or _("Another session is using it. Try again.")
            raise NotResolved(f"{said} {why}")
        logger.warning("Record %s: %s by %s. Reason: %s (store %s)", *words)
