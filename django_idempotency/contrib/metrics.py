"""What the metrics of `contrib.prometheus` and `contrib.opentelemetry` count, in one place."""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from django_idempotency import conf, signals
from django_idempotency.exceptions import IdempotencyError, StoreError
from django_idempotency.observers import observe
from django_idempotency.stores.base import BaseStore

__all__ = ["BUCKETS", "Metrics", "OutcomeCounts"]

#: Seconds: a claim of the memory store takes microseconds, one that waits for a server seconds.
BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)

#: The calls of a store that are timed. A twin is timed where the store has one of its own: the
#: others call what is timed already.
_CALLS = (
    *("claim", "complete", "fail", "release", "renew", "get", "browse", "resolve", "erase"),
    "sweep",
)
_TWINS = ("aclaim", "acomplete", "afail", "arelease", "aget")
#: The operation of a call without a name, and of all operations beyond `max_operations`.
_UNNAMED, _OTHER = "unnamed", "other"
_NAMES = {signal: name for name, signal in signals.TERMINAL.items()}


class Metrics:
    """
    Counts what the signals tell, and times the calls of stores; a subclass has the instruments.

    Names of operations come from routes and tasks; `max_operations` of them have a label of their
    own, so a name that is made of data cannot fill the memory.
    """

    def __init__(self, max_operations: int = 200) -> None:
        self.max_operations = max_operations
        self._operations: set[str] = set()

    def connect(self) -> None:
        """Listen from now on; stores are made again, so that their calls are timed."""
        for signal in signals.TERMINAL.values():
            signal.connect(self._on_end)
        signals.claimed.connect(self._on_claim)
        signals.left.connect(self._on_left)
        signals.swept.connect(self._on_sweep)
        if self.instrument not in conf.instruments:
            conf.instruments.append(self.instrument)
            conf.stores.reset()

    def disconnect(self) -> None:
        """End what `connect` began."""
        for signal in signals.TERMINAL.values():
            signal.disconnect(self._on_end)
        signals.claimed.disconnect(self._on_claim)
        signals.left.disconnect(self._on_left)
        signals.swept.disconnect(self._on_sweep)
        conf.instruments.remove(self.instrument)
        conf.stores.reset()

    def instrument(self, store: BaseStore) -> None:
        """Time the calls of a store."""
        for name in _CALLS:
            setattr(store, name, self._timed(store.alias, name, getattr(store, name)))
        for name in _TWINS:
            if getattr(type(store), name) is not getattr(BaseStore, name):
                timed = self._atimed(store.alias, name[1:], getattr(store, name))
                setattr(store, name, timed)

    # The instruments.

    def ended(self, alias: str, operation: str, outcome: str) -> None:
        """Count an attempt that has ended; `outcome` is the name of its signal."""
        raise NotImplementedError

    def took_over(self, alias: str, operation: str) -> None:
        """Count a claim that took a lapsed lease over."""
        raise NotImplementedError

    def in_flight(self, alias: str, operation: str, change: int) -> None:
        """Add `change` to the number of attempts that have claimed and not left their block."""
        raise NotImplementedError

    def store_called(self, alias: str, call: str, outcome: str, seconds: float) -> None:
        """Note a call of a store, which ended as "ok", "refused" or "error"."""
        raise NotImplementedError

    def swept(self, alias: str, count: int) -> None:
        """Count records that a sweep has deleted."""
        raise NotImplementedError

    def traced(self, event: str, facts: dict[str, Any]) -> None:
        """Note a claim or an end in the trace of the caller, if there is one."""

    # The receivers.

    def _on_claim(self, **facts: Any) -> None:
        alias, operation = facts["alias"], self._bounded(facts["operation"])
        self.in_flight(alias, operation, 1)
        if facts["takeover"]:
            self.took_over(alias, operation)
        self.traced("claimed", facts)

    def _on_left(self, alias: str, operation: str, **facts: Any) -> None:
        self.in_flight(alias, self._bounded(operation), -1)

    def _on_end(self, signal: Any, **facts: Any) -> None:
        name = _NAMES[signal]
        self.ended(facts["alias"], self._bounded(facts["operation"]), name)
        self.traced(name, facts)

    def _on_sweep(self, alias: str, count: int, **facts: Any) -> None:
        self.swept(alias, count)

    def _bounded(self, operation: str) -> str:
        """Return the label of an operation: its name, while there are not too many."""
        name = operation or _UNNAMED
        if name in self._operations:
            return name
        if len(self._operations) >= self.max_operations:
            return _OTHER
        self._operations.add(name)
        return name

    # The calls of stores.

    def _timed(self, alias: str, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            began, outcome = time.perf_counter(), "ok"
            try:
                return function(*args, **kwargs)
            except BaseException as error:
                outcome = _outcome_of(error)
                raise
            finally:
                observe(self.store_called, alias, name, outcome, time.perf_counter() - began)

        return call

    def _atimed(self, alias: str, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        async def call(*args: Any, **kwargs: Any) -> Any:
            began, outcome = time.perf_counter(), "ok"
            try:
                return await function(*args, **kwargs)
            except BaseException as error:
                outcome = _outcome_of(error)
                raise
            finally:
                observe(self.store_called, alias, name, outcome, time.perf_counter() - began)

        return call


def _outcome_of(error: BaseException) -> str:
    """Return "refused" for an answer of the store, such as LeaseLost, and "error" for the rest."""
    answer = isinstance(error, IdempotencyError) and not isinstance(error, StoreError)
    return "refused" if answer else "error"


class OutcomeCounts:
    """
    How many attempts have ended in this process, by alias and name of the signal.

    Without a dependency, for a page about this process; it counts from `connect` on.
    """

    def __init__(self) -> None:
        self.since = 0.0
        self._counts: Counter[tuple[str, str]] = Counter()

    def connect(self) -> None:
        """Count from now on; a second call changes nothing."""
        if not self.since:
            self.since = time.time()
            for signal in signals.TERMINAL.values():
                signal.connect(self._on_end)

    def of(self, alias: str) -> dict[str, int]:
        """Return the counts of a store, each signal in its order."""
        return {name: self._counts[alias, name] for name in signals.TERMINAL}

    def _on_end(self, signal: Any, alias: str, **facts: Any) -> None:
        self._counts[alias, _NAMES[signal]] += 1
