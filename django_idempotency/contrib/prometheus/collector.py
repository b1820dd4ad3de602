"""Gauges that ask the stores: stale leases, held records, and those that wait for a sweep."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from uuid import UUID

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from django_idempotency.conf import store_for, stores
from django_idempotency.exceptions import StoreError
from django_idempotency.logs import log_failure
from django_idempotency.operators.search import waiting
from django_idempotency.stores.base import BaseStore
from django_idempotency.stores.database import DatabaseStore
from django_idempotency.stores.exclusive import ExclusiveStore
from django_idempotency.stores.forks import in_each_child

__all__ = ["StoreCollector"]

#: Seconds between two looks, at least.
_LEAST = 60
#: Seconds that a scrape waits for a look: one that takes longer is for the next scrape.
_WAIT = 1
#: No record has this id: to read it asks whether the store answers.
_NOBODYS = UUID(int=0)
#: What the gauges tell of each store.
_GAUGES = {
    "store_up": "Whether the store has answered.",
    "stale_leases": "Records in progress under a lapsed lease.",
    "held_records": "Records that do not expire, and that no attempt works on.",
    "expired_records": "Expired records that the next sweep would delete.",
    "store_look_age_seconds": "How old the numbers of the store are.",
}


class StoreCollector(Collector):
    """
    Asks the stores, at most once in `every` seconds and in a minute, on a thread of its own.

    Register it in one process, in the registry that this process shows. The numbers are exact, or
    they are absent: where a statement of a database takes longer than `seconds`, and for Redis and
    DynamoDB. There `full_reads` asks for them: each look then reads every record with its result,
    which DynamoDB charges for, and may take `seconds`.
    """

    def __init__(
        self,
        aliases: Iterable[str] | None = None,
        *,
        every: float = 300,
        seconds: float = 5,
        full_reads: bool = False,
    ) -> None:
        if isinstance(aliases, str):
            raise TypeError(f"aliases are several names: write [{aliases!r}].")
        self._aliases = None if aliases is None else list(aliases)
        self._every = max(every, _LEAST)
        self._seconds = seconds
        self._full_reads = full_reads
        self._began = float("-inf")
        self._look: threading.Thread | None = None
        #: When each alias was looked at, and the numbers that it has; the others are not known.
        self._seen: dict[str, tuple[float, dict[str, float]]] = {}
        self._forked()
        in_each_child(self._forked)

    def _forked(self) -> None:
        """Take a mutex of this child's own: a thread of the parent may have held the other."""
        self._mutex = threading.Lock()

    def describe(self) -> list[Metric]:
        """Return nothing, so that no store is asked when this is registered."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield what the last look has found, and how old that is; a slow look is not awaited."""
        if (look := self._begun_look()) is not None:
            look.join(_WAIT)
        seen, now = {**self._seen}, time.monotonic()
        for name, text in _GAUGES.items():
            gauge = GaugeMetricFamily(f"django_idempotency_{name}", text, labels=["alias"])
            for alias, (at, found) in seen.items():
                numbers = {**found, "store_look_age_seconds": now - at}
                if name in numbers:
                    gauge.add_metric([alias], numbers[name])
            yield gauge

    def _begun_look(self) -> threading.Thread | None:
        """Begin a look if one is due and none runs; in a forked child none runs yet."""
        with self._mutex:
            runs = self._look is not None and self._look.is_alive()
            if runs or time.monotonic() - self._began < self._every:
                return None
            self._began = time.monotonic()
            name = "django-idempotency-collector"
            self._look = threading.Thread(target=self._look_at_all, name=name, daemon=True)
            self._look.start()
            return self._look

    def _look_at_all(self) -> None:
        for alias in stores if self._aliases is None else self._aliases:
            at, found = time.monotonic(), {"store_up": 0.0}
            try:
                store = store_for(alias)
                try:
                    found = self._ask(store)
                finally:
                    store.idle()
            except Exception as error:  # a setting, too: the other stores are asked all the same
                log_failure("The gauges of %s could not be read.", alias, error=error)
            self._seen[alias] = at, found

    def _ask(self, store: BaseStore) -> dict[str, float]:
        """Return the numbers of a store that can be had exactly; raise StoreError if it is down."""
        found: dict[str, float] = {"store_up": 1}
        store.get(_NOBODYS)
        if isinstance(store, (DatabaseStore, ExclusiveStore)) or self._full_reads:
            try:
                with store.fresh_connection(), store.limited(self._seconds):
                    if not store.native_expiry and (expired := store.count_expired()) is not None:
                        found["expired_records"] = expired
                    numbers = waiting(store, self._seconds)  # the first may be all
                    found["held_records"] = len(next(numbers))
                    found["stale_leases"] = next(numbers)
            except StoreError as error:
                log_failure("The gauges of %s could not be read.", store.alias, error=error)
        return found
