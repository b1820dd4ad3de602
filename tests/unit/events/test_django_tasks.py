"""Idempotent functions below the `@task` of Django 6, where there is one."""

from __future__ import annotations

from itertools import count

import django
import pytest

import django_idempotency as idempotency

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("memory")]
runs = count()

if django.VERSION >= (6, 0):  # before it there is nothing to test
    from django.tasks import TaskContext, task

    @task
    @idempotency.idempotent_function(key="order_id", scope="tests.ship")
    def ship(order_id: str) -> int:
        return next(runs)

    @task(takes_context=True)
    @idempotency.idempotent_function(key=lambda order_id: order_id, scope="tests.ship")
    def ship_in_context(context: TaskContext, order_id: str) -> int:
        assert context.attempt == 1
        return next(runs)

    def test_C4_task_that_is_enqueued_twice_runs_once() -> None:
        first, again = ship.enqueue("order-1"), ship.enqueue(order_id="order-1")
        assert (first.status, first.return_value) == (again.status, again.return_value)

    def test_C3_context_of_a_task_is_not_compared() -> None:
        first, again = ship_in_context.enqueue("order-1"), ship_in_context.enqueue("order-1")
        assert (first.status, first.return_value) == (again.status, again.return_value)

    def test_C1_other_arguments_are_another_task() -> None:
        first, other = ship.enqueue("order-1"), ship.enqueue("order-2")
        assert first.return_value != other.return_value
