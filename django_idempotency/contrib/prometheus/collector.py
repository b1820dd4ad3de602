"""Gauges that ask the stores: stale leases and records that wait for a sweep."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from django_idempotency.conf import store_for, stores
from django_idempotency.exceptions import StoreError
from django_idempotency.observers import logger
from django_idempotency.records import Filters, State
from django_idempotency.stores.base import BaseStore

__all__ = ["StoreCollector"]


class StoreCollector(Collector):
    """
    Asks the stores at a scrape, at most once in `every` seconds.

    Register it in one process, in the registry that this process shows. It counts up to `most`
    stale leases. For that a database reads its table once, and of another store it reads `most`
    pages.
    """

    def __init__(
        self, aliases: Iterable[str] | None = None, *, every: float = 300, most: int = 100
    ) -> None:
        self._aliases = None if aliases is None else list(aliases)
        self._every = every
        self._most = most
        self._mutex = threading.Lock()
        self._asked = float("-inf")
        self._found: list[Metric] = []

    def describe(self) -> list[Metric]:
        """Return nothing, so that no store is asked when this is registered."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges of each store; that of a store that does not answer is 0 for ``up``."""
        with self._mutex:
            if time.monotonic() - self._asked >= self._every:
                self._found = list(self._ask())
                self._asked = time.monotonic()
            found = self._found
        yield from found

    def _ask(self) -> Iterator[Metric]:
        up = GaugeMetricFamily(
            "django_idempotency_store_up", "Whether the store has answered.", labels=["alias"]
        )
        stale = GaugeMetricFamily(
            "django_idempotency_stale_leases",
            "Records in progress under a lapsed lease.",
            labels=["alias"],
        )
        expired = GaugeMetricFamily(
            "django_idempotency_expired_records",
            "Expired records that the next sweep would delete.",
            labels=["alias"],
        )
        for alias in stores if self._aliases is None else self._aliases:
            store = store_for(alias)
            try:
                stale.add_metric([alias], self._stale(store))
                count = None if store.native_expiry else store.count_expired()
                if count is not None:
                    expired.add_metric([alias], count)
            except StoreError:
                logger.exception("The gauges of %s could not be read.", alias)
                up.add_metric([alias], 0)
            else:
                up.add_metric([alias], 1)
        yield from (up, stale, expired)

    def _stale(self, store: BaseStore) -> int:
        """Return how many leases are stale, up to `most`."""
        wanted = Filters(state=State.IN_PROGRESS, stale=True)
        count, cursor = 0, None
        for _ in range(self._most):
            page = store.browse(filters=wanted, cursor=cursor, limit=self._most - count)
            count, cursor = count + len(page.records), page.cursor
            if cursor is None or count >= self._most:
                break
        return count
