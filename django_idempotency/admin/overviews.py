"""The overview of a store: counts, leases and sweep backlog, of its newest records."""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import datetime, timezone
from typing import Any

from django.core.cache import cache

from django_idempotency.admin import lists
from django_idempotency.operators import search
from django_idempotency.operators.facts import STATES
from django_idempotency.records import Filters, Record, State
from django_idempotency.stores.base import BaseStore
from django_idempotency.stores.database import DatabaseStore

#: Records that the overview looks at: twice as many take twice as long.
_NEWEST = 5_000
#: Operations that have a line of their own.
_OPERATIONS = 20
#: Seconds for which the numbers of all records are kept: to count reads them.
_KEPT = 60


def overview_of(store: BaseStore, *, count: bool = False) -> dict[str, Any]:
    """
    Return what the newest records of a store tell; raise StoreError.

    With `count` its stale leases and held records are counted, of all its records.
    """
    page = lists.look(store, Filters(), None, _NEWEST)
    records, more = page.records, page.cursor is not None
    is_table = isinstance(store, DatabaseStore)
    by_operation: defaultdict[str, Counter[State]] = defaultdict(Counter)
    for record in records:
        by_operation[record.operation][record.state] += 1
    largest = sorted(by_operation.items(), key=lambda it: (-it[1].total(), it[0]))
    lines = [(name, [count[state] for state in State]) for name, count in largest]
    others = [numbers for _, numbers in lines[_OPERATIONS:]]
    totals = Counter(record.state for record in records)
    in_progress = (record for record in records if record.state is State.IN_PROGRESS)
    longest = sorted(in_progress, key=lambda it: it.updated_at)
    stale, held = [record for record in longest if record.stale], search.held_in(records)
    backlog, backlog_is_more = _backlog(store, records, more)
    overview = {
        "is_table": is_table,
        "looked": len(records),
        # There are more records than were looked at.
        "more": more,
        # Name, value of the list's filter, and number of each state.
        "states": [(name, state.value, totals[state]) for state, name in STATES.items()],
        # Operation, and the numbers in the order of the states.
        "operations": lines[:_OPERATIONS],
        "others": [sum(column) for column in zip(*others, strict=True)],
        # How many, and when they were counted: None if that is not known.
        "stale": len(stale),
        "held": len(held),
        "counted": None,
        # The attempt that has held its lease for the longest time.
        "oldest": next((record for record in longest if record.live), None),
        # The stale one that was claimed first; None if there is none, or it is not known.
        "oldest_stale": next(iter(stale), None),
        # The one that was created first, likewise.
        "oldest_held": next(iter(held), None),
        "backlog": backlog,
        "backlog_is_more": backlog_is_more,
    }
    if more:  # nothing of a window is shown
        known = _counted(store, count=count)
        overview |= {"oldest_stale": None, "stale": known.get("stale")}
        overview["counted"] = known.get("counted")
        if not (is_table and records) or records[-1].held:  # a table gives all held ones first
            first = known.get("first") and store.get(known["first"])
            overview["held"] = known.get("held")
            overview["oldest_held"] = next(iter(search.held_in([first] if first else [])), None)
    return overview


def _counted(store: BaseStore, *, count: bool) -> dict[str, Any]:
    """Return the numbers of all records, and when they were counted; {} if they are not known."""
    name = f"django_idempotency:waiting:{store.alias}"
    known: dict[str, Any] = cache.get(name, {})
    if not known and count:
        with store.limited(lists.SECONDS):
            held, stale = search.waiting(store, lists.SECONDS)
        first = held[0].record_id if held else None  # a record has what is not for every cache
        known = {"held": len(held), "first": first, "stale": stale}
        known["counted"] = datetime.now(timezone.utc)
        cache.set(name, known, _KEPT)
    return known


def _backlog(store: BaseStore, newest: tuple[Record, ...], more: bool) -> tuple[int | None, bool]:
    """
    Return how many expired records a sweep would delete, and whether there are more.

    None for a store that deletes them by itself. A database counts up to `NEWEST` of them by its
    index; of another store they are those among the `newest`.
    """
    if store.native_expiry:
        return None, False
    if not isinstance(store, DatabaseStore):
        return sum(record.expired for record in newest), more
    number = store.count_expired(limit=search.NEWEST + 1)
    return min(number, search.NEWEST), number > search.NEWEST
