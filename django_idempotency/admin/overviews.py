"""The overview of a store: counts, leases, sweep backlog and ages, of its newest records."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from django.utils.translation import pgettext

from django_idempotency.admin.shown import moment, state_name
from django_idempotency.contrib.metrics import OutcomeCounts
from django_idempotency.operators import looks
from django_idempotency.records import Filters, Record, State
from django_idempotency.stores.base import BaseStore

__all__ = ["Bar", "Overview", "Rates", "counts", "overview_of", "rates_of"]

#: Counts from the moment in which an admin asks for it.
counts = OutcomeCounts()

#: Operations that have a line of their own.
_OPERATIONS = 20
#: The upper ends of the plot's bars, and what stands below them.
_AGES = (
    (timedelta(minutes=1), "1 min"),
    (timedelta(minutes=10), "10 min"),
    (timedelta(hours=1), "1 h"),
    (timedelta(hours=6), "6 h"),
    (timedelta(days=1), "1 d"),
    (timedelta(days=7), "7 d"),
)
#: Of the plot, in its own units.
_WIDTH, _HEIGHT, _STEP = 74, 120, 90


@dataclass(frozen=True)
class Bar:
    """A bar of the plot: how many records are of this age, and where it stands."""

    label: str
    count: int
    x: int
    y: int
    height: int

    @property
    def middle(self) -> int:
        """Where the text below it and above it stands."""
        return self.x + _WIDTH // 2

    @property
    def above(self) -> int:
        """Where its number stands."""
        return self.y - 6


@dataclass(frozen=True)
class Overview:
    """What the newest records of a store tell."""

    looked: int
    #: There are more records than were looked at.
    more: bool
    #: Name, value of the list's filter, and number of each state.
    states: list[tuple[str, str, int]]
    #: Operation, and the numbers in the order of the states.
    operations: list[tuple[str, list[int]]]
    others: list[int] | None
    held: int
    stale: int
    #: The attempt that has held its lease for the longest time.
    oldest: Record | None
    bars: list[Bar]
    #: Expired records that a sweep would delete; None where the store deletes them by itself.
    backlog: int | None
    #: The backlog is at least so large.
    backlog_is_more: bool


def overview_of(store: BaseStore) -> Overview:
    """Return the overview of the newest records; raise StoreError."""
    look = looks.look(store, Filters(), limit=looks.MOST)
    records = look.records
    by_operation: dict[str, Counter[State]] = {}
    for record in records:
        by_operation.setdefault(record.operation, Counter())[record.state] += 1
    largest = sorted(by_operation.items(), key=lambda it: (-it[1].total(), it[0]))
    lines = [(name, [count[state] for state in State]) for name, count in largest]
    rest = [sum(column) for column in zip(*(it[1] for it in lines[_OPERATIONS:]), strict=True)]
    totals = Counter(record.state for record in records)
    held = [record for record in records if record.live]
    backlog, backlog_is_more = looks.backlog(store, look)
    return Overview(
        looked=len(records),
        more=look.cursor is not None,
        states=[(state_name(state), state.value, totals[state]) for state in State],
        operations=lines[:_OPERATIONS],
        others=rest or None,
        held=len(held),
        stale=sum(record.stale for record in records),
        oldest=min(held, key=lambda it: it.updated_at, default=None),
        bars=_bars(records),
        backlog=backlog,
        backlog_is_more=backlog_is_more,
    )


@dataclass(frozen=True)
class Rates:
    """What the attempts of this process have ended with, since it began to count."""

    since: str
    #: Name of the signal, number, and number in a minute.
    counts: list[tuple[str, int, str]]


def rates_of(alias: str) -> Rates:
    """Return the rates of a store in this process."""
    minutes = max(time.time() - counts.since, 1) / 60
    rows = [(name, number, f"{number / minutes:.1f}") for name, number in counts.of(alias).items()]
    return Rates(moment(datetime.fromtimestamp(counts.since, timezone.utc)), rows)


def _bars(records: Sequence[Record]) -> list[Bar]:
    """Return how many records are of which age, as bars."""
    labels = [pgettext("idempotency", "up to %s") % text for _, text in _AGES]
    labels.append(pgettext("idempotency", "older"))
    counts = [0] * len(labels)
    for record in records:
        age = record.now - record.created_at
        counts[next((n for n, (end, _) in enumerate(_AGES) if age <= end), len(_AGES))] += 1
    most = max(*counts, 1)
    bars = []
    for number, (label, count) in enumerate(zip(labels, counts, strict=True)):
        height = max(round(_HEIGHT * count / most), 1 if count else 0)
        bars.append(Bar(label, count, number * _STEP + 8, 20 + _HEIGHT - height, height))
    return bars
