"""The app that counts for Prometheus."""

from __future__ import annotations

from django.apps import AppConfig
from django.core.exceptions import ImproperlyConfigured

from django_idempotency.exceptions.base import missing


class PrometheusConfig(AppConfig):
    """Counts attempts and times stores in the default registry of prometheus_client."""

    name = "django_idempotency.contrib.prometheus"
    label = "idempotency_prometheus"

    #: How many names of operations have a label of their own; the others count as "other".
    max_operations = 200

    def ready(self) -> None:
        """Connect the metrics; raise ImproperlyConfigured without the extra."""
        try:
            from django_idempotency.contrib.prometheus.metrics import metrics
        except ImportError as error:
            text = str(missing("Metrics need", "prometheus_client", "prometheus"))
            raise ImproperlyConfigured(text) from error
        metrics.connect(self.max_operations)
