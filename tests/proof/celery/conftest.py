"""The workers of the acceptance tests."""

from __future__ import annotations

from tests.acceptance.celery.conftest import (  # noqa: F401
    broker_url,
    stage,
    start_workers,
    tasks_table,
    worker_environment,
)
