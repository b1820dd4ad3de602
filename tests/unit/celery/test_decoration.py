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


class Asynchronous:
    __qualname__ = "Asynchronous"

    async def __call__(self, order_id): ...


@pytest.mark.parametrize("decorator", [idempotent_task, idempotent_task(key="x")])
def test_above_the_tasks_decorator_is_an_error(app, decorator):
    instance = app.register_task(Charge())
    for task in (shared_task(charge), app.task(charge), app._task_from_fun(charge), instance):
        with pytest.raises(TypeError, match="belongs below @shared_task"):
            decorator(task)


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (Charge, r"the method run of .*Charge"),
        (coroutine, "async def"),
        (generator, "async def"),
        (Asynchronous(), "async def"),
        (5, "functions, not int"),
        (staticmethod(charge), "functions, not staticmethod"),
    ],
)
def test_what_is_no_function_is_an_error(other, text):
    with pytest.raises(TypeError, match=text):
        idempotent_task(key="order_id")(other)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"on_duplicate": "results"}, ValueError, "Did you mean 'result'"),
        ({"deadline": lambda context: 1}, TypeError, r"deadline must take \(\)"),
        ({"on_in_progress": "retri"}, ValueError, "Did you mean 'retry'"),
        ({"on_failed": "rerun"}, ValueError, "on_failed must be one of run, replay"),
        ({"scope": lambda: "x"}, TypeError, "scope"),
        ({"operation": None}, TypeError, "operation"),
        ({"codec": "jsn"}, ValueError, "jsn"),
        ({"codec": "pickle"}, ValueError, "pickle"),
        ({"on_duplicat": "raise"}, UnknownField, "Did you mean 'on_duplicate'"),
        ({"scpe": "x"}, UnknownField, "Did you mean 'scope'"),
        ({"key": from_parent("{nonesuch}")}, TypeError, "nonesuch"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_what_cannot_be_is_an_error_at_decoration(options, error, text):
    with pytest.raises(error, match=text):
        idempotent_task(**options)(charge)


@pytest.mark.parametrize("name", [None, "", 5], ids=repr)
def test_C15_from_parent_takes_the_name_of_a_child(name):
    with pytest.raises(TypeError, match="takes the name of a child"):
        from_parent(name)


def test_one_key_is_enough():
    with pytest.raises(TypeError, match="one key"):
        idempotent_task("order_id", key="amount")


def test_it_keeps_name_module_docstring_and_signature(app):
    guarded = idempotent_task(key="order_id")(charge)
    task = app.task(guarded)

    assert (task.name, task.__doc__) == (f"{__name__}.charge", "Take money.")
    assert inspect.signature(guarded) == inspect.signature(charge)
    assert inspect.signature(task.run) == inspect.signature(charge)


@pytest.mark.parametrize("args", [[], [1, 2, 3], {"order_id": 1, "amont": 2}], ids=repr)
@pytest.mark.parametrize("bind", [False, True], ids=["function", "bind"])
def test_wrong_arguments_are_a_type_error(app, bind, args):
    def bound(self, order_id, amount=1): ...

    task = app.task(idempotent_task(key="order_id")(bound if bind else charge), bind=bind)

    for call in (task.delay, task):
        with pytest.raises(TypeError):
            call(**args) if isinstance(args, dict) else call(*args)
