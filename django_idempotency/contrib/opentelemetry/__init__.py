"""Metrics and span events: put ``django_idempotency.contrib.opentelemetry`` into INSTALLED_APPS."""
