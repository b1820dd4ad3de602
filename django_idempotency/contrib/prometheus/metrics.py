"""The metrics of this process in the default registry."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import Counter, Gauge, Histogram

from django_idempotency.contrib.metrics import BUCKETS, Instrument, Metrics


class PrometheusMetrics(Metrics):
    """The instruments in prometheus_client."""

    def counter(self, name: str, text: str, labels: Sequence[str]) -> Instrument:
        """See `Metrics`."""
        counter = Counter(name, text, labels)
        return lambda amount, *values: counter.labels(*values).inc(amount)

    def gauge(self, name: str, text: str, labels: Sequence[str]) -> Instrument:
        """See `Metrics`."""
        gauge = Gauge(name, text, labels, multiprocess_mode="livesum")
        return lambda amount, *values: gauge.labels(*values).inc(amount)

    def histogram(self, name: str, text: str, labels: Sequence[str]) -> Instrument:
        """See `Metrics`."""
        histogram = Histogram(name, text, labels, buckets=BUCKETS)
        return lambda seconds, *values: histogram.labels(*values).observe(seconds)


#: The metrics of this process: the registry refuses a second one of the same names.
metrics = PrometheusMetrics()
