"""The metrics of this process in the project's MeterProvider, and the events of its spans."""

from __future__ import annotations

from typing import Any

from opentelemetry import trace
from opentelemetry.metrics import Meter, get_meter

from django_idempotency.contrib.metrics import BUCKETS, Metrics

__all__ = ["OpenTelemetryMetrics", "metrics"]


class OpenTelemetryMetrics(Metrics):
    """The instruments of OpenTelemetry; an exporter to Prometheus gives them that app's names."""

    def __init__(self, meter: Meter | None = None) -> None:
        super().__init__()
        meter = get_meter("django_idempotency") if meter is None else meter
        self._attempts = meter.create_counter(
            "django_idempotency_attempts",
            description="Attempts that have ended, by the name of their signal.",
        )
        self._takeovers = meter.create_counter(
            "django_idempotency_takeovers", description="Claims that took over a lapsed lease."
        )
        self._in_flight = meter.create_up_down_counter(
            "django_idempotency_in_flight", description="Attempts that have claimed and not ended."
        )
        self._store_calls = meter.create_histogram(
            "django_idempotency_store_call_seconds",
            unit="s",
            description="How long a call of a store took.",
            # Its own bounds are for milliseconds: each call would be one of less than 5 seconds.
            explicit_bucket_boundaries_advisory=BUCKETS,
        )
        self._swept = meter.create_counter(
            "django_idempotency_swept_records",
            description="Expired records that sweeps have deleted.",
        )

    def ended(self, alias: str, operation: str, outcome: str) -> None:
        """See `Metrics`."""
        self._attempts.add(1, {"alias": alias, "operation": operation, "outcome": outcome})

    def took_over(self, alias: str, operation: str) -> None:
        """See `Metrics`."""
        self._takeovers.add(1, {"alias": alias, "operation": operation})

    def in_flight(self, alias: str, operation: str, change: int) -> None:
        """See `Metrics`."""
        self._in_flight.add(change, {"alias": alias, "operation": operation})

    def store_called(self, alias: str, call: str, outcome: str, seconds: float) -> None:
        """See `Metrics`."""
        self._store_calls.record(seconds, {"alias": alias, "call": call, "outcome": outcome})

    def swept(self, alias: str, count: int) -> None:
        """See `Metrics`."""
        self._swept.add(count, {"alias": alias})

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
