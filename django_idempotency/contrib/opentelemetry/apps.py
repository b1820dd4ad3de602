"""The app that counts for OpenTelemetry."""

from __future__ import annotations

from django.apps import AppConfig
from django.core.exceptions import ImproperlyConfigured

from django_idempotency.exceptions.base import missing


class OpenTelemetryConfig(AppConfig):
    """Counts attempts and times stores in the project's MeterProvider, and marks its spans."""

    name = "django_idempotency.contrib.opentelemetry"
    label = "idempotency_opentelemetry"

    #: How many names of operations have a label of their own; the others count as "other".
    max_operations = 200

    def ready(self) -> None:
        """Connect the metrics; raise ImproperlyConfigured without the extra."""
        try:
            from django_idempotency.contrib.opentelemetry.metrics import metrics
        except ImportError as error:
            text = str(missing("Metrics and spans need", "opentelemetry-api", "opentelemetry"))
            raise ImproperlyConfigured(text) from error
        metrics.connect(self.max_operations)
