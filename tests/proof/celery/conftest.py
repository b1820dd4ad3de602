"""The workers of the acceptance tests."""

from __future__ import annotations

from tests.acceptance.celery.conftest import (  # noqa: F401
    amqp_url,
    broker_url,
    sqs_url,
    stage,
    stage_on,
    start_workers,
    tasks_table,
    worker_environment,
)
