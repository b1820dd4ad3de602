"""The guarded tasks of the project, for checks and operators."""

from __future__ import annotations

from collections.abc import Iterator

from celery import Celery, Task, _state
from celery.utils.functional import maybe_list
from django.utils.module_loading import autodiscover_modules

from django_idempotency.contrib.celery.codec import TaskCodec
from django_idempotency.contrib.celery.guard import TaskGuard
from django_idempotency.contrib.celery.task import guard_of


def guarded_tasks() -> Iterator[tuple[Task, TaskGuard]]:
    """Yield each guarded task, by name, and its guard; imports the modules of tasks."""
    app = project_app()
    if app is None:
        return
    _import_tasks(app)
    for name in sorted(app.tasks):
        if (guard := guard_of(app.tasks[name])) is not None:
            yield app.tasks[name], guard


def codec_of(operation: str) -> TaskCodec | None:
    """Return the codec of the guarded task with this operation; None if there is no such task."""
    for task, guard in guarded_tasks():
        if (guard.operation or task.name) == operation:
            return guard.codec_for(task)
    return None


def project_app() -> Celery | None:
    """Return the project's app; None if there is none, so that nothing creates one."""
    return _state._tls.current_app or _state.default_app


def _import_tasks(app: Celery) -> None:
    """
    Import the modules that a worker takes its tasks from.

    Not by ``import_default_modules``: it runs the checks, which call this function.
    """
    autodiscover_modules("tasks")
    for name in (*maybe_list(app.conf.imports), *maybe_list(app.conf.include)):
        app.loader.import_task_module(name)
