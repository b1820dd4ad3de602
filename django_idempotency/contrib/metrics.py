"""What the metrics of `contrib.prometheus` and `contrib.opentelemetry` count, in one place."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import Any, ClassVar

from django.apps import AppConfig
from django.core.exceptions import ImproperlyConfigured

from django_idempotency import conf, signals
from django_idempotency.exceptions import IdempotencyError, StoreError
from django_idempotency.exceptions.base import missing
from django_idempotency.observers import Signal, observe
from django_idempotency.stores.base import BaseStore

#: Seconds: a claim of the memory store takes microseconds, one that waits for a server seconds.
BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)

#: The calls of a store that are timed.
_CALLS = (
    *("claim", "complete", "fail", "release", "note", "renew", "get", "browse", "resolve"),
    *("erase", "sweep"),
)
#: The operation of a call without a name, and of all operations beyond `max_operations`.
_UNNAMED, _OTHER = "unnamed", "other"
#: Takes an amount, or a number of seconds, and the values of the labels in their order.
Instrument = Callable[..., None]
_NAMES = {signal: name for name, signal in signals.TERMINAL.items()}


class Metrics:
    """
    Counts what the signals tell, and times the calls of stores; a subclass makes the instruments.

    Names of operations come from routes and tasks; `max_operations` of them have a label of their
    own, so a name that is made of data cannot fill the memory.
    """

    def __init__(self) -> None:
        self._operations: set[str] = set()
        self.attempts = self.counter(
            "django_idempotency_attempts",
            "Attempts that have ended, by the name of their signal.",
            ["alias", "operation", "outcome"],
        )
        self.takeovers = self.counter(
            "django_idempotency_takeovers",
            "Claims that took over a lapsed lease.",
            ["alias", "operation"],
        )
        self.in_flight = self.gauge(
            "django_idempotency_in_flight",
            "Attempts that have claimed and not ended.",
            ["alias", "operation"],
        )
        self.store_calls = self.histogram(
            "django_idempotency_store_call_seconds",
            "How long a call of a store took.",
            ["alias", "call", "outcome"],
        )
        self.swept = self.counter(
            "django_idempotency_swept_records",
            "Expired records that sweeps have deleted.",
            ["alias"],
        )

    def connect(self, max_operations: int = 200) -> None:
        """Listen from now on; stores are made again, so that their calls are timed."""
        self._max_operations = max_operations
        for signal, receiver in self._receivers():
            signal.connect(receiver)
        if self.instrument not in conf.instruments:
            conf.instruments.append(self.instrument)
            conf.stores.reset()

    def disconnect(self) -> None:
        """End what `connect` began."""
        for signal, receiver in self._receivers():
            signal.disconnect(receiver)
        conf.instruments.remove(self.instrument)
        conf.stores.reset()

    def instrument(self, store: BaseStore) -> None:
        """Time the calls of a store."""
        for name in _CALLS:
            setattr(store, name, self._timed(store.alias, name, getattr(store, name)))

    # The instruments.

    def counter(self, name: str, text: str, labels: Sequence[str]) -> Instrument:
        """Make what counts up."""
        raise NotImplementedError

    def gauge(self, name: str, text: str, labels: Sequence[str]) -> Instrument:
        """Make what counts up and down; it adds up over the processes of a server."""
        raise NotImplementedError

    def histogram(self, name: str, text: str, labels: Sequence[str]) -> Instrument:
        """Make what sorts seconds into `BUCKETS`."""
        raise NotImplementedError

    def traced(self, event: str, facts: dict[str, Any]) -> None:
        """Note a claim or an end in the trace of the caller, if there is one."""

    # The receivers.

    def _receivers(self) -> Iterator[tuple[Signal, Callable[..., None]]]:
        yield from ((signal, self._on_end) for signal in signals.TERMINAL.values())
        yield signals.claimed, self._on_claim
        yield signals.left, self._on_left
        yield signals.swept, self._on_sweep

    def _on_claim(self, **facts: Any) -> None:
        alias, operation = facts["alias"], self._bounded(facts["operation"])
        self.in_flight(1, alias, operation)
        if facts["takeover"]:
            self.takeovers(1, alias, operation)
        self.traced("claimed", facts)

    def _on_left(self, alias: str, operation: str, **facts: Any) -> None:
        self.in_flight(-1, alias, self._bounded(operation))

    def _on_end(self, signal: Any, **facts: Any) -> None:
        name = _NAMES[signal]
        self.attempts(1, facts["alias"], self._bounded(facts["operation"]), name)
        self.traced(name, facts)

    def _on_sweep(self, alias: str, count: int, **facts: Any) -> None:
        self.swept(count, alias)

    def _bounded(self, operation: str) -> str:
        """Return the label of an operation: its name, while there are not too many."""
        name = operation or _UNNAMED
        if name in self._operations:
            return name
        if len(self._operations) >= self._max_operations:
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
                # An answer of the store, such as LeaseLost, is no error of its.
                answer = isinstance(error, IdempotencyError) and not isinstance(error, StoreError)
                outcome = "refused" if answer else "error"
                raise
            finally:
                observe(self.store_calls, time.perf_counter() - began, alias, name, outcome)

        return call


class MetricsConfig(AppConfig):
    """An app that counts: its module ``metrics`` has the instruments."""

    #: How many names of operations have a label of their own; the others count as "other".
    max_operations = 200
    #: What needs a package, the package, and the extra that installs it.
    needed: ClassVar[tuple[str, str, str]]

    def ready(self) -> None:
        """Connect the metrics; raise ImproperlyConfigured without the extra."""
        try:
            module = import_module(f"{self.name}.metrics")
        except ImportError as error:
            raise ImproperlyConfigured(str(missing(*self.needed))) from error
        module.metrics.connect(self.max_operations)
