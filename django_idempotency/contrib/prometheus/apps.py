"""The app that counts for Prometheus."""

from __future__ import annotations

from django_idempotency.contrib import metrics  # a name of its class here would be a second app


class PrometheusConfig(metrics.MetricsConfig):
    """Counts attempts and times stores in the default registry of prometheus_client."""

    name = "django_idempotency.contrib.prometheus"
    label = "idempotency_prometheus"
    needed = "Metrics need", "prometheus_client", "prometheus"
