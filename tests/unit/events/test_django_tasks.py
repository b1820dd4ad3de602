"""Idempotent functions below the `@task` of Django 6, where there is one."""

from __future__ import annotations

from itertools import count

import django
import pytest

import django_idempotency as idempotency

runs = count()

if django.VERSION >= (6, 0):  # before it there is nothing to test
    from django.tasks import TaskContext, task

    @task(takes_context=True)
    @idempotency.idempotent_function(key=lambda order_id: order_id, scope="tests.ship")
    def ship(context: TaskContext, order_id: str) -> int:
        assert context.attempt == 1
        return next(runs)

    @pytest.mark.django_db(transaction=True)
    @pytest.mark.usefixtures("idempotency_store")
    def test_C3_C4_task_that_is_enqueued_twice_runs_once_and_its_context_is_not_compared() -> None:
        first, again = ship.enqueue("order-1"), ship.enqueue(order_id="order-1")
        other = ship.enqueue("order-2")
        assert (first.status, first.return_value) == (again.status, again.return_value)
        assert first.return_value != other.return_value
