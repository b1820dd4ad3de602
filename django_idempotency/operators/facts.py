"""What a record says, as facts for programs and as lines for people."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

from django.utils import timezone as zones
from django.utils.translation import gettext as _
from django.utils.translation import ngettext, pgettext

from django_idempotency.codecs import is_unavailable
from django_idempotency.models import IdempotencyRecord
from django_idempotency.operators.results import (
    Answer,
    answer_of,
    codec_in,
    kind_of,
    result_of_step,
)
from django_idempotency.operators.steps import NotedSteps, listed, steps_of
from django_idempotency.records import Record, State

#: The names of the states.
STATES = {State(value): name for value, name in IdempotencyRecord.State.choices}
_UNITS = ((86400, "d"), (3600, "h"), (60, "min"))
#: What made a record, by its kind; the scope of one without a kind is not stored whole.
KINDS = {"http": "a view", "task": "a task", "call": "a call", None: "unknown"}


def facts(alias: str, record: Record) -> dict[str, Any]:
    """Return all that a record says, as JSON values; times are in UTC."""
    return {
        "record_id": str(record.record_id),
        "store": alias,
        "state": record.state.value,
        "stale": record.stale,
        "held": record.held,
        "expired": record.expired,
        "scope": record.scope,
        "key": record.key,
        "operation": record.operation,
        "kind": kind_of(record),
        "epoch": record.epoch,
        "attempts": record.attempts,
        "fingerprint": None if record.fingerprint is None else record.fingerprint.hex(),
        "created_at": _utc(record.created_at),
        "updated_at": _utc(record.updated_at),
        "lease_until": _utc(record.lease_until),
        "expires_at": _utc(record.expires_at),
        "now": _utc(record.now),
        "error": record.error,
        "result": None
        if record.result is None
        else {"codec": codec_in(record.result), "bytes": len(record.result)},
        "steps": _facts_of_steps(steps_of(alias, record)),
        "told": told(alias, record),
    }


def _facts_of_steps(steps: NotedSteps | None) -> dict[str, Any] | None:
    if steps is None:
        return None
    noted = [{"name": name, "bytes": len(payload)} for name, payload in steps.noted.items()]
    facts = {"bytes": steps.size, "damage": steps.damage, "noted": noted}
    return {**facts, "uncertain": [*steps.uncertain]}


def lines(alias: str, record: Record) -> Iterator[str]:
    """Yield all that a record says, a line each."""
    yield f"Record {record.record_id} (store {alias})"
    for name, value in _rows(record):
        yield f"  {name:<12} {value}"
    yield from _lines_of_steps(steps_of(alias, record))
    yield f"A duplicate sent now: {told(alias, record)}"


def _lines_of_steps(steps: NotedSteps | None) -> Iterator[str]:
    if steps is None:
        return
    uncertain = f", {len(steps.uncertain)} uncertain" if steps.uncertain else ""
    counted = f"{len(steps.noted)} noted{uncertain}, {steps.size} bytes"
    yield f"  {'steps':<12} {steps.damage or counted}"
    width = max(map(len, [*steps.noted, *steps.uncertain]), default=0)
    for name, payload in steps.noted.items():
        yield f"    {name:<{width}}  {len(payload)} bytes"
    for name in steps.uncertain:
        yield f"    {name:<{width}}  uncertain"


def line(alias: str, record: Record) -> str:
    """Return what tells a record from others, as one line."""
    age = span(record.now - record.created_at)
    parts = (
        str(record.record_id),
        "stale" if record.stale else record.state.value,
        record.operation or "-",
        f"scope {record.scope}",
        f"key {record.key}",
        f"{age} old",
        f"store {alias}",
    )
    return "  ".join(parts)


def answer_facts(alias: str, record: Record) -> dict[str, Any] | None:
    """Return the stored result, as JSON values; None if there is none."""
    if record.result is None:
        return None
    return _facts_of_answer(answer_of(alias, record), len(record.result))


def noted_facts(alias: str, record: Record) -> list[dict[str, Any]]:
    """Return the results of the steps that were noted, as JSON values, in their order."""
    steps = steps_of(alias, record)
    return [
        {
            "name": name,
            **_facts_of_answer(result_of_step(alias, record, name, payload), len(payload)),
        }
        for name, payload in (steps.noted.items() if steps else ())
    ]


def noted_lines(alias: str, record: Record) -> Iterator[str]:
    """Yield the results of the steps that were noted, a line each."""
    steps = steps_of(alias, record)
    for name, payload in steps.noted.items() if steps else ():
        yield f"{name}: {_text_of(result_of_step(alias, record, name, payload))}"


def _facts_of_answer(answer: Answer, size: int) -> dict[str, Any]:
    return {
        "codec": answer.codec,
        "bytes": size,
        "status": answer.status,
        "headers": [list(pair) for pair in answer.headers],
        "body": answer.text,
        "body_bytes": len(answer.body),
        "note": answer.note,
    }


def answer_lines(alias: str, record: Record) -> Iterator[str]:
    """Yield the stored result, which there must be, a line each; of no text its size."""
    answer = answer_of(alias, record)
    if answer.status is not None:
        yield str(answer.status)
        yield from (f"{name}: {value}" for name, value in answer.headers)
        yield ""
    yield _text_of(answer)


def _text_of(answer: Answer) -> str:
    """Return the body of a result, or why there is none to read."""
    if answer.note:
        return answer.note
    text = answer.text
    return f"{len(answer.body)} bytes that are no text" if text is None else text


def _rows(record: Record) -> Iterator[tuple[str, str]]:
    yield "state", "IN_PROGRESS, stale" if record.stale else record.state.value
    yield "scope", record.scope
    yield "key", record.key
    yield "operation", record.operation or "-"
    yield "made by", KINDS[kind_of(record)]
    yield "attempts", str(record.attempts)
    yield "epoch", str(record.epoch)
    yield "fingerprint", "-" if record.fingerprint is None else record.fingerprint.hex()
    yield "claimed", _moment(record, record.created_at)
    if record.state is not State.IN_PROGRESS:
        yield record.state.value.lower(), _moment(record, record.updated_at)
    elif record.attempts > 1:
        yield "claimed last", _moment(record, record.updated_at)
    if record.state is State.IN_PROGRESS and record.lease_until is not None:
        yield "lease until", _moment(record, record.lease_until)
    expires_at = record.expires_at
    yield "expires", "never" if expires_at is None else _moment(record, expires_at)
    if record.error:
        yield "error", record.error
    if record.result is not None:
        yield "result", f"{codec_in(record.result)}, {len(record.result)} bytes"


def _moment(record: Record, when: datetime) -> str:
    """Return a time to the second in the project's time zone, and how far from now it is."""
    return f"{zones.localtime(when).isoformat(' ', 'seconds')} ({ago(record, when)})"


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
    steps = steps_of(alias, record)
    if steps is not None and not record.live:
        return _told_of_steps(record, steps)
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


def _told_of_steps(record: Record, steps: NotedSteps) -> str:
    """Return what the same request would be told of a record whose attempt has ended halfway."""
    if why := steps.damage or steps.unreadable:
        said = _("It would be refused: store unavailable (503), the steps cannot be read.")
        return f"{said} {why}"
    if record.state is State.IN_PROGRESS and record.held and not steps.uncertain:
        return _("It would be refused: stale (409), until an operator decides.")
    number = len(steps.noted)
    said = ngettext(
        "It would go on after %d step: the work of an attempt is half done. Code without steps is "
        "refused: stale (409).",
        "It would go on after %d steps: the work of an attempt is half done. Code without steps is "
        "refused: stale (409).",
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


def _utc(moment: datetime | None) -> str | None:
    return None if moment is None else moment.astimezone(timezone.utc).isoformat()
