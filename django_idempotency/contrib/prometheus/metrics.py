"""The metrics of this process in the default registry."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

from django_idempotency.contrib.metrics import BUCKETS, Metrics

__all__ = ["PrometheusMetrics", "metrics"]


class PrometheusMetrics(Metrics):
    """The instruments in prometheus_client; the gauge adds up over the processes of a server."""

    def __init__(self) -> None:
        super().__init__()
        self._attempts = Counter(
            "django_idempotency_attempts",
            "Attempts that have ended, by the name of their signal.",
            ["alias", "operation", "outcome"],
        )
        self._takeovers = Counter(
            "django_idempotency_takeovers",
            "Claims that took over a lapsed lease.",
            ["alias", "operation"],
        )
        self._in_flight = Gauge(
            "django_idempotency_in_flight",
            "Attempts that have claimed and not ended.",
            ["alias", "operation"],
            multiprocess_mode="livesum",
        )
        self._store_calls = Histogram(
            "django_idempotency_store_call_seconds",
            "How long a call of a store took.",
            ["alias", "call", "outcome"],
            buckets=BUCKETS,
        )
        self._swept = Counter(
            "django_idempotency_swept_records",
            "Expired records that sweeps have deleted.",
            ["alias"],
        )

    def ended(self, alias: str, operation: str, outcome: str) -> None:
        """See `Metrics`."""
        self._attempts.labels(alias, operation, outcome).inc()

    def took_over(self, alias: str, operation: str) -> None:
        """See `Metrics`."""
        self._takeovers.labels(alias, operation).inc()

    def in_flight(self, alias: str, operation: str, change: int) -> None:
        """See `Metrics`."""
        self._in_flight.labels(alias, operation).inc(change)

    def store_called(self, alias: str, call: str, outcome: str, seconds: float) -> None:
        """See `Metrics`."""
        self._store_calls.labels(alias, call, outcome).observe(seconds)

    def swept(self, alias: str, count: int) -> None:
        """See `Metrics`."""
        self._swept.labels(alias).inc(count)


#: The metrics of this process: the registry refuses a second one of the same names.
metrics = PrometheusMetrics()
