"""Idempotent functions below the `@task` of Django 6, where there is one."""

from __future__ import annotations

import django
import pytest

import django_idempotency as idempotency
from tests.app.models import Effect

if django.VERSION >= (6, 0):  # before it there is nothing to test
    from django.tasks import TaskContext, task

    @task
    @idempotency.idempotent_function(key="order_id", scope="tests.ship")
    def ship(order_id: str) -> int:
        return int(Effect.objects.create(name=order_id).pk)

    @pytest.mark.django_db(transaction=True)
    def test_C4_task_that_is_enqueued_twice_has_one_effect() -> None:
        first, again = ship.enqueue("order-1"), ship.enqueue(order_id="order-1")

        assert first.return_value == again.return_value
        assert Effect.objects.count() == 1

    @task(takes_context=True)
    @idempotency.idempotent_function(key=lambda order_id: order_id, scope="tests.ship")
    def ship_in_context(context: TaskContext, order_id: str) -> int:
        assert context.attempt == 1
        return int(Effect.objects.create(name=order_id).pk)

    @pytest.mark.django_db(transaction=True)
    def test_C3_context_of_a_task_is_not_compared() -> None:
        first, again = ship_in_context.enqueue("order-1"), ship_in_context.enqueue("order-1")

        assert (first.status, first.return_value) == (again.status, again.return_value)
        assert Effect.objects.count() == 1

    @pytest.mark.django_db(transaction=True)
    def test_C1_other_arguments_are_another_task() -> None:
        ship.enqueue("order-1")
        ship.enqueue("order-2")

        assert Effect.objects.count() == 2
