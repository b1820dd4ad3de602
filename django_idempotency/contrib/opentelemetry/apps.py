"""The app that counts for OpenTelemetry."""

from __future__ import annotations

from django_idempotency.contrib import metrics  # a name of its class here would be a second app


class OpenTelemetryConfig(metrics.MetricsConfig):
    """Counts attempts and times stores in the project's MeterProvider, and marks its spans."""

    name = "django_idempotency.contrib.opentelemetry"
    label = "idempotency_opentelemetry"
    needed = "Metrics and spans need", "opentelemetry-api", "opentelemetry"
