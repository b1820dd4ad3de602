"""The metrics of this process in the project's MeterProvider, and the events of its spans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opentelemetry import trace
from opentelemetry.metrics import Meter, get_meter

from django_idempotency.contrib.metrics import BUCKETS, Instrument, Metrics


class OpenTelemetryMetrics(Metrics):
    """The instruments of OpenTelemetry; an exporter to Prometheus gives them that app's names."""

    def __init__(self, meter: Meter | None = None) -> None:
        self._meter = get_meter("django_idempotency") if meter is None else meter
        super().__init__()

    def counter(self, name: str, text: str, labels: Sequence[str]) -> Instrument:
        """See `Metrics`."""
        counter = self._meter.create_counter(name, description=text)
        return lambda amount, *values: counter.add(amount, dict(zip(labels, values, strict=True)))

    def gauge(self, name: str, text: str, labels: Sequence[str]) -> Instrument:
        """See `Metrics`."""
        gauge = self._meter.create_up_down_counter(name, description=text)
        return lambda amount, *values: gauge.add(amount, dict(zip(labels, values, strict=True)))

    def histogram(self, name: str, text: str, labels: Sequence[str]) -> Instrument:
        """See `Metrics`."""
        histogram = self._meter.create_histogram(
            name,
            unit="s",
            description=text,
            # Its own bounds are for milliseconds: each call would be one of less than 5 seconds.
            explicit_bucket_boundaries_advisory=BUCKETS,
        )
        return lambda value, *values: histogram.record(
            value, dict(zip(labels, values, strict=True))
        )

    def traced(self, event: str, facts: dict[str, Any]) -> None:
        """Add an event, such as ``idempotency.replayed``, to the current span."""
        span = trace.get_current_span()
        if not span.is_recording():
            return
        attributes = {
            "idempotency.alias": facts["alias"],
            "idempotency.operation": facts["operation"],
            "idempotency.record_id": str(facts["record_id"]),
            "idempotency.outcome": facts["outcome"],
        }
        if facts["error"] is not None:
            attributes["idempotency.error"] = facts["error"]
        span.add_event(f"idempotency.{event}", attributes)


#: The metrics of this process; the project may set its MeterProvider later.
metrics = OpenTelemetryMetrics()
