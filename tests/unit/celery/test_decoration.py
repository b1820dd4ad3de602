"""Where the decorator may stand, what it takes, and what it leaves as it was."""

from __future__ import annotations

import inspect

import pytest
from celery import Task, shared_task

from django_idempotency.contrib.celery import from_parent, idempotent_task
from django_idempotency.policy import UnknownField

pytestmark = pytest.mark.usefixtures("memory")


def charge(order_id: int, amount: int = 1) -> None:
    """Take money."""


async def coroutine(order_id): ...


async def generator(order_id):
    yield 1


class Charge(Task):
    name = "class"


def test_above_the_tasks_decorator_is_an_error(app):
    instance = app.register_task(Charge())
    for task in (shared_task(charge), app.task(charge), app._task_from_fun(charge), instance):
        for decorator in (idempotent_task, idempotent_task(key="x")):
            with pytest.raises(TypeError, match="belongs below @shared_task"):
                decorator(task)


WRONG_BODIES = [
    (Charge, r"the method run of .*Charge"),
    (coroutine, "coroutine is async def"),
    (generator, "generator is async def"),
    (5, "functions, not int"),
    (staticmethod(charge), "functions, not staticmethod"),
]
WRONG_OPTIONS = [
    ({"on_duplicate": "results"}, ValueError, "Did you mean 'result'"),
    ({"on_failed": "rerun"}, ValueError, "on_failed must be one of run, replay"),
    ({"deadline": lambda context: 1}, TypeError, r"deadline must take \(\)"),
    ({"scope": lambda: "x"}, TypeError, "scope"),
    ({"operation": None}, TypeError, "operation"),
    ({"payload": "amount"}, TypeError, "payload must be a callable"),
    ({"codec": "pickle"}, ValueError, "pickle"),
    ({"on_duplicat": "raise"}, UnknownField, "Did you mean 'on_duplicate'"),
    ({"key": from_parent("{nonesuch}")}, TypeError, "nonesuch"),
]


def test_C15_what_cannot_be_is_an_error_at_decoration():
    for body, text in WRONG_BODIES:
        with pytest.raises(TypeError, match=text):
            idempotent_task(key="order_id")(body)
    for options, error, text in WRONG_OPTIONS:
        with pytest.raises(error, match=text):
            idempotent_task(**options)(charge)
    with pytest.raises(TypeError, match="one key"):
        idempotent_task("order_id", key="amount")
    for name in (None, "", 5):
        with pytest.raises(TypeError, match="takes the name of a child"):
            from_parent(name)


def test_it_keeps_name_module_docstring_and_signature(app):
    guarded = idempotent_task(key="order_id")(charge)
    task = app.task(guarded)

    assert (task.name, task.__doc__) == (f"{__name__}.charge", "Take money.")
    assert inspect.signature(guarded) == inspect.signature(charge)
    assert inspect.signature(task.run) == inspect.signature(charge)


@pytest.mark.parametrize("bind", [False, True], ids=["function", "bind"])
def test_wrong_arguments_are_a_type_error(app, bind):
    def bound(self, order_id, amount=1): ...

    task = app.task(idempotent_task(key="order_id")(bound if bind else charge), bind=bind)

    for args in [], [1, 2, 3]:
        for call in (task.delay, task):
            with pytest.raises(TypeError):
                call(*args)
    with pytest.raises(TypeError, match="amont"):
        task(order_id=1, amont=2)
