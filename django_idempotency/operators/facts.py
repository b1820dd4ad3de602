"""What a record says, as facts for programs and as lines for people."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any

from django.utils import timezone as zones

from django_idempotency.operators.answers import Answer, answer_of, codec_in
from django_idempotency.operators.resolving import told
from django_idempotency.operators.results import kind_of
from django_idempotency.records import Record, State

__all__ = ["KINDS", "answer_facts", "answer_lines", "facts", "line", "lines"]

_UNITS = ((86400, "d"), (3600, "h"), (60, "min"))
_ENDED = {State.COMPLETED: "completed", State.FAILED: "failed", State.RELEASED: "released"}
#: What made a record, by its kind; the scope of one without a kind is not stored whole.
KINDS = {"http": "a view", "task": "a task", "call": "a call", None: "unknown"}


def facts(alias: str, record: Record) -> dict[str, Any]:
    """Return all that a record says, as JSON values; times are in UTC."""
    return {
        "record_id": str(record.record_id),
        "store": alias,
        "state": record.state.value,
        "stale": record.stale,
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
        "told": told(alias, record),
    }


def lines(alias: str, record: Record) -> Iterator[str]:
    """Yield all that a record says, a line each."""
    yield f"Record {record.record_id} (store {alias})"
    for name, value in _rows(record):
        yield f"  {name:<12} {value}"
    yield f"A duplicate sent now: {told(alias, record)}"


def line(alias: str, record: Record) -> str:
    """Return what tells a record from others, as one line."""
    age = _span((record.now - record.created_at).total_seconds())
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
    answer = answer_of(alias, record)
    return {
        "codec": answer.codec,
        "bytes": len(record.result),
        "status": answer.status,
        "headers": [list(pair) for pair in answer.headers],
        "body": answer.text,
        "body_bytes": len(answer.body),
        "note": answer.note,
    }


def answer_lines(alias: str, record: Record) -> Iterator[str]:
    """Yield the stored result, a line each; of a body that is no text its size."""
    if record.result is None:
        return
    answer: Answer = answer_of(alias, record)
    if answer.status is not None:
        yield str(answer.status)
        yield from (f"{name}: {value}" for name, value in answer.headers)
        yield ""
    if answer.note:
        yield answer.note
    elif answer.text is None:
        yield f"{len(answer.body)} bytes that are no text"
    else:
        yield answer.text


def _rows(record: Record) -> Iterator[tuple[str, str]]:
    yield "state", "IN_PROGRESS, stale" if record.stale else record.state.value
    yield "scope", record.scope
    yield "key", record.key
    yield "operation", record.operation or "-"
    yield "made by", KINDS[kind_of(record)]
    yield "attempts", str(record.attempts)
    yield "epoch", str(record.epoch)
    yield "fingerprint", "-" if record.fingerprint is None else record.fingerprint.hex()
    yield "claimed", _moment(record.created_at, record.now)
    if record.state is not State.IN_PROGRESS:
        yield _ENDED[record.state], _moment(record.updated_at, record.now)
    elif record.attempts > 1:
        yield "claimed last", _moment(record.updated_at, record.now)
    if record.state is State.IN_PROGRESS and record.lease_until is not None:
        yield "lease until", _moment(record.lease_until, record.now)
    yield (
        "expires",
        "never" if record.expires_at is None else _moment(record.expires_at, record.now),
    )
    if record.error:
        yield "error", record.error
    if record.result is not None:
        yield "result", f"{codec_in(record.result)}, {len(record.result)} bytes"


def _moment(moment: datetime, now: datetime) -> str:
    """Return a time to the second in the project's time zone, and how long ago or ahead it is."""
    apart = (moment - now).total_seconds()
    span = _span(abs(apart))
    where = f"in {span}" if apart > 0 else f"{span} ago"
    return f"{zones.localtime(moment).isoformat(' ', 'seconds')} ({where})"


def _span(seconds: float) -> str:
    """Return a duration in its two largest units: 3 d 4 h, 5 min 6 s."""
    left = int(seconds)
    parts: list[str] = []
    for size, unit in _UNITS:
        if left >= size or parts:
            parts.append(f"{left // size} {unit}")
            left %= size
    return " ".join([*parts, f"{left} s"][:2])


def _utc(moment: datetime | None) -> str | None:
    return None if moment is None else moment.astimezone(timezone.utc).isoformat()
