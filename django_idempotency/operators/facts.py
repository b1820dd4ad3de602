"""A record as an operator reads it: its result and its steps, what it means, and how that reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta, timezone
from functools import cached_property
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

from django.utils import timezone as zones
from django.utils.translation import gettext as _
from django.utils.translation import ngettext, pgettext

from django_idempotency import journal, keys
from django_idempotency.codecs import Codec, is_unavailable, unpack
from django_idempotency.codecs.encryption import opened
from django_idempotency.conf import policy_for
from django_idempotency.exceptions import ResultUnavailable, StoreError
from django_idempotency.http.snapshot import SnapshotCodec
from django_idempotency.models import IdempotencyRecord
from django_idempotency.records import NAMED, Record, State
from django_idempotency.stores.base import BaseStore

#: The names of the states.
STATES = {State(value): name for value, name in IdempotencyRecord.State.choices}
_UNITS = ((86400, "d"), (3600, "h"), (60, "min"))
#: What made a record, by its kind; the scope of one without a kind is not stored whole.
KINDS = {"http": "a view", "task": "a task", "call": "a call", None: "unknown"}
#: What is no plain fact of a record: payloads, the owner's secret, and what a claim alone knows.
_APART = {"result", "steps", "token", "place"}
#: How many steps a sentence names.
_NAMED = 10


@dataclass(frozen=True)
class Answer:
    """A stored result; that of a view has a status and header fields."""

    #: The id of the codec that wrote it.
    codec: str
    #: How many bytes it has in the store.
    size: int
    status: int | None = None
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    #: Why there is no body to read, as a sentence; empty if there is one.
    note: str = ""
    #: The same, if that is an error: the result is lost, or its key is.
    error: str = ""

    @property
    def text(self) -> str | None:
        """The body as text; None for one that is no text."""
        try:
            return self.body.decode()
        except UnicodeDecodeError:
            return None

    @property
    def content_type(self) -> str:
        """The Content-Type of a view's answer; the codec of another result."""
        kinds = (value for name, value in self.headers if name.lower() == "content-type")
        return next(kinds, self.codec)

    @property
    def facts(self) -> dict[str, Any]:
        """What it says, as JSON values."""
        return {
            "codec": self.codec,
            "bytes": self.size,
            "status": self.status,
            "headers": [list(pair) for pair in self.headers],
            "body": self.text,
            "body_bytes": len(self.body),
            "note": self.note,
        }

    def __str__(self) -> str:
        """The body, or why there is none to read."""
        if self.note:
            return self.note
        text = self.text
        return f"{len(self.body)} bytes that are no text" if text is None else text


@dataclass(frozen=True)
class NotedSteps:
    """What the journal of a record says."""

    #: How many bytes the journal has.
    size: int
    #: The stored results by the names of their steps, in the order of the notes.
    noted: dict[str, Answer]
    #: The calls of which nobody knows whether they were made.
    uncertain: tuple[str, ...] = ()
    #: Why the journal cannot be read, as a sentence; empty if it can be.
    damage: str = ""

    @property
    def unreadable(self) -> str:
        """Why the journal cannot be read, or a result that it has; empty if all can be."""
        return self.damage or next((it.error for it in self.noted.values() if it.error), "")

    def facts(self, *, results: bool) -> dict[str, Any]:
        """Return what the steps say, as JSON values; their `results` too if these are asked for."""
        noted = [
            {"name": name, **(it.facts if results else {"bytes": it.size})}
            for name, it in self.noted.items()
        ]
        facts = {"bytes": self.size, "damage": self.damage, "noted": noted}
        return {**facts, "uncertain": [*self.uncertain]}

    @property
    def lines(self) -> Iterator[str]:
        """What the steps say but their results, a line each."""
        uncertain = f", {len(self.uncertain)} uncertain" if self.uncertain else ""
        counted = f"{len(self.noted)} noted{uncertain}, {self.size} bytes"
        yield f"  {'steps':<12} {self.damage or counted}"
        width = max(map(len, [*self.noted, *self.uncertain]), default=0)
        for name, it in self.noted.items():
            yield f"    {name:<{width}}  {it.size} bytes"
        for name in self.uncertain:
            yield f"    {name:<{width}}  uncertain"


class Reading:
    """A record of a store; its result and its journal are opened once, when they are asked for."""

    def __init__(self, store: BaseStore, record: Record) -> None:
        self.store, self.record = store, record

    @cached_property
    def kind(self) -> str | None:
        """
        Which adapter made the record: "http", "task" or "call".

        Its id tells, which is computed from the kind, too. None for a scope that is not stored
        whole.
        """
        ids = keys.record_ids(self.record.scope, self.record.key)
        return dict(zip(ids, keys.KINDS, strict=True)).get(self.record.record_id)

    @cached_property
    def answer(self) -> Answer | None:
        """The stored result; None if there is none."""
        result = self.record.result
        return None if result is None else self._opened(result, self.record.record_id)

    @cached_property
    def steps(self) -> NotedSteps | None:
        """The steps; None if the record has no journal."""
        record = self.record
        if record.steps is None:
            return None
        try:
            results, uncertain = journal.read(record.steps)
        except StoreError as error:
            return NotedSteps(len(record.steps), {}, damage=str(error))
        noted = {
            name: self._opened(payload, keys.of_step(record.record_id, name), of_step=True)
            for name, payload in results.items()
        }
        return NotedSteps(len(record.steps), noted, uncertain)

    def _opened(self, envelope: bytes, sealed_for: UUID, *, of_step: bool = False) -> Answer:
        """Return what an envelope has, which is sealed for this id if it is encrypted."""
        policy, size = policy_for(self.store.alias), len(envelope)
        name = envelope[3 : 3 + envelope[2]].decode(errors="replace") if size > 2 else ""
        if not (name and name.isascii() and name.isprintable()):
            name = "damaged"
        codec: Any = SnapshotCodec()
        if name != SnapshotCodec.id:
            codec = cast("Codec", SimpleNamespace(id=name, decode=bytes))
        try:
            envelope = opened(envelope, sealed_for, policy.encryption_keys) or b""
            most = policy.max_steps_bytes if of_step else policy.max_result_bytes
            result = unpack(codec, envelope, max_bytes=most)
        except ResultUnavailable:
            return Answer(name, size, note=_("It was not kept."))
        except StoreError as error:
            return Answer(name, size, note=str(error), error=str(error))
        if name == SnapshotCodec.id:
            return Answer(name, size, result.status, result.headers, result.body)
        return Answer(name, size, body=result)

    # What it means.

    @cached_property
    def told(self) -> str:
        """What a duplicate sent now would be told."""
        if self.record.expired:
            return _("It would run: the record has expired.")
        if self.record.state is State.RELEASED:
            return _("It would run, whatever it asks for: the key was released.")
        if self.record.fingerprint is None:
            return self._told_the_same
        return f"{self._told_the_same} {_('Another request is refused: mismatch (422).')}"

    @property
    def _told_the_same(self) -> str:
        """What the same request would be told."""
        record, answer = self.record, self.answer
        if record.state is State.COMPLETED:
            if answer is None or is_unavailable(record.result or b""):
                return _("It would be refused: result unavailable (409), it was not kept.")
            if answer.error:
                said = _("It would be refused: store unavailable (503), the result cannot be read.")
                return f"{said} {answer.error}"
            return _("It would get the stored result.")
        if self.steps is not None and not record.live:
            return self._told_of_steps(self.steps)
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

    def _told_of_steps(self, steps: NotedSteps) -> str:
        """Return what the same request would be told of an attempt that has ended halfway."""
        record = self.record
        if why := steps.unreadable:
            said = _("It would be refused: store unavailable (503), the steps cannot be read.")
            return f"{said} {why}"
        if record.state is State.IN_PROGRESS and record.held and not steps.uncertain:
            return _("It would be refused: stale (409), until an operator decides.")
        number = len(steps.noted)
        said = ngettext(
            "It would go on after %d step: the work of an attempt is half done. Code without steps "
            "is refused: stale (409).",
            "It would go on after %d steps: the work of an attempt is half done. Code without "
            "steps is refused: stale (409).",
            number,
        )
        if record.held and not steps.uncertain:
            held = _("No call is uncertain: the record is held until then, or until it is resumed.")
            return f"{said % number} {held}"
        if not steps.uncertain:
            return said % number
        asked = _(
            'Nobody knows whether these calls were made: %(names)s. One with uncertain="refuse" is '
            "refused: stale (409), until an operator decides."
        )
        return f"{said % number} {asked % {'names': listed(steps.uncertain)}}"

    # How it reads.

    def facts(self, *, results: bool = False) -> dict[str, Any]:
        """Return all that the record says, as JSON values; times are in UTC."""
        record, answer, steps = self.record, self.answer, self.steps
        columns = (it.name for it in fields(record) if it.name not in _APART)
        facts = {name: _as_json(getattr(record, name)) for name in columns}
        facts |= {
            "store": self.store.alias,
            "stale": record.stale,
            "held": record.held,
            "expired": record.expired,
            "kind": self.kind,
            "result": None if answer is None else {"codec": answer.codec, "bytes": answer.size},
            "steps": None if steps is None else steps.facts(results=results),
            "told": self.told,
        }
        if results:
            facts["answer"] = None if answer is None else answer.facts
        return facts

    def lines(self, *, results: bool = False) -> Iterator[str]:
        """Yield all that the record says, a line each."""
        yield f"Record {self.record.record_id} (store {self.store.alias})"
        for name, value in self._rows():
            yield f"  {name:<12} {value}"
        if self.steps is not None:
            yield from self.steps.lines
        yield f"A duplicate sent now: {self.told}"
        if results and self.answer is not None:
            yield ""
            if self.answer.status is not None:
                yield str(self.answer.status)
                yield from (f"{name}: {value}" for name, value in self.answer.headers)
                yield ""
            yield str(self.answer)
        if results and self.steps is not None:
            yield ""
            yield from (f"{name}: {it}" for name, it in self.steps.noted.items())

    def _rows(self) -> Iterator[tuple[str, str]]:
        record = self.record
        yield "state", "IN_PROGRESS, stale" if record.stale else record.state.value
        yield from ((name, getattr(record, name) or "-") for name in NAMED)
        yield "made by", KINDS[self.kind]
        yield "attempts", str(record.attempts)
        yield "epoch", str(record.epoch)
        yield "fingerprint", "-" if record.fingerprint is None else record.fingerprint.hex()
        yield "claimed", self._moment(record.created_at)
        if record.state is not State.IN_PROGRESS:
            yield record.state.value.lower(), self._moment(record.updated_at)
        elif record.attempts > 1:
            yield "claimed last", self._moment(record.updated_at)
        if record.state is State.IN_PROGRESS and record.lease_until is not None:
            yield "lease until", self._moment(record.lease_until)
        expires_at = record.expires_at
        yield "expires", "never" if expires_at is None else self._moment(expires_at)
        if record.error:
            yield "error", record.error
        if self.answer is not None:
            yield "result", f"{self.answer.codec}, {self.answer.size} bytes"

    def _moment(self, when: datetime) -> str:
        """Return a time to the second in the project's time zone, and how far from now it is."""
        return f"{zones.localtime(when).isoformat(' ', 'seconds')} ({ago(self.record, when)})"

    @property
    def line(self) -> str:
        """What tells the record from others, as one line."""
        record = self.record
        parts = (
            str(record.record_id),
            "stale" if record.stale else record.state.value,
            record.operation or "-",
            f"scope {record.scope}",
            f"key {record.key}",
            f"{span(record.now - record.created_at)} old",
            f"store {self.store.alias}",
        )
        return "  ".join(parts)


def listed(names: Sequence[str]) -> str:
    """Return names with commas, the first ones of many."""
    listed, more = ", ".join(names[:_NAMED]), len(names) - _NAMED
    if more > 0:
        listed += " " + ngettext("and %d more", "and %d more", more) % more
    return listed


def ago(record: Record, when: datetime) -> str:
    """Return how long ago a time was, or in how long it will be, by the record's clock."""
    since = record.now - when
    if since < timedelta():
        return pgettext("idempotency", "in %s") % span(-since)
    return pgettext("idempotency", "%s ago") % span(since)


def span(value: timedelta) -> str:
    """Return a duration in its two largest units: 3 d 4 h, 5 min 6 s."""
    left = max(int(value.total_seconds()), 0)
    parts: list[str] = []
    for size, unit in _UNITS:
        if left >= size or parts:
            parts.append(f"{left // size} {unit}")
            left %= size
    return " ".join([*parts, f"{left} s"][:2])


def _as_json(value: Any) -> Any:
    """Return the value of a column as JSON can have it."""
    if isinstance(value, datetime):
        return value.astimezone(timezone.utc).isoformat()
    if isinstance(value, bytes):
        return value.hex()
    return str(value) if isinstance(value, (UUID, State)) else value
