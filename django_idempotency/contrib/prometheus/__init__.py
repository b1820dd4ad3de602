"""Metrics for Prometheus: put ``django_idempotency.contrib.prometheus`` into INSTALLED_APPS."""
