"""System checks of guarded Celery tasks, and of the sweep in beat's schedule."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from celery import Celery, Task
from django.core.checks import CheckMessage, Error, Warning
from django.core.exceptions import ImproperlyConfigured

from django_idempotency.conf import store_for, stores
from django_idempotency.contrib.celery.codec import serializer_problem
from django_idempotency.contrib.celery.guard import TaskGuard
from django_idempotency.contrib.celery.guarded import guarded_tasks, project_app
from django_idempotency.engine.operation import check_mode
from django_idempotency.policy import Policy

SWEEP = "django_idempotency.tasks.sweep_expired"
#: Seconds above which work should not be one transaction.
LONG = 600
#: Seconds after which a broker delivers an unacknowledged message again.
VISIBILITY = {"redis": 3600, "rediss": 3600, "sentinel": 3600, "sqs": 1800}


def check_tasks() -> Iterator[CheckMessage]:
    """The serializer of a guarded task can be used, and its times fit together."""
    app = project_app()
    if app is None:
        return
    try:
        aliases = list(stores)
    except ImproperlyConfigured:
        return  # the check of the aliases tells
    for task, guard in guarded_tasks():
        yield from _serializer(task, guard)
        try:
            policy = guard.plan().policy
            store = store_for(guard.store)
            check_mode(policy, store)
        except (ImproperlyConfigured, ValueError) as error:
            if isinstance(error, ImproperlyConfigured) and guard.store in aliases:
                continue  # the check of the aliases tells
            hint = "Correct IDEMPOTENCY, or the arguments of @idempotent_task."
            id_ = "django_idempotency.E031"
            yield Error(f"The task {task.name} cannot run: {error}", hint=hint, id=id_)
            continue
        yield from _lost_with_worker(task)
        yield from _time_limit(task, policy, app)
        yield from _visibility(task, policy, app)
        if store.supports_join and policy.transaction not in ("separate", "steps"):
            yield from _long_work(task, app)


def check_sweep() -> list[CheckMessage]:
    """If beat has a schedule that can be read, the sweep is part of it."""
    app = project_app()
    if (
        app is None
        or not app.conf.beat_schedule
        or "PersistentScheduler" not in str(app.conf.beat_scheduler)
    ):
        return []  # cron may do it, or a schedule that is elsewhere
    try:
        kept = [alias for alias in stores if stores[alias].using is not None]
    except ImproperlyConfigured:
        return []  # the check of the aliases tells
    swept = [_swept(entry) for entry in app.conf.beat_schedule.values()]
    unswept = [] if "" in swept else [alias for alias in kept if alias not in swept]
    if not unswept:
        return []
    return [
        Warning(
            f"Beat has a schedule, and nothing in it deletes the expired records of "
            f"{', '.join(repr(alias) for alias in unswept)}.",
            hint=f"Schedule {SWEEP} every few minutes, or run manage.py idempotency_sweep.",
            id="django_idempotency.W034",
        )
    ]


def _swept(entry: Any) -> str | None:
    """Return the alias that an entry of beat's schedule sweeps, "" for all, None for no sweep."""
    described = entry if isinstance(entry, dict) else vars(entry)
    if described.get("task") != SWEEP:
        return None
    given = [*(described.get("args") or ()), (described.get("kwargs") or {}).get("store")]
    return given[0] or ""


def _serializer(task: Task, guard: TaskGuard) -> Iterator[CheckMessage]:
    name = guard.serializer(task)
    if name is not None and (problem := serializer_problem(name)):
        yield Error(
            f"Results of the task {task.name} cannot be kept. {problem}",
            hint='Set serializer="json" on the task, or codec="json" in @idempotent_task.',
            id="django_idempotency.E030",
        )


def _lost_with_worker(task: Task) -> Iterator[CheckMessage]:
    missing = [name for name in ("acks_late", "reject_on_worker_lost") if not getattr(task, name)]
    if missing:
        yield Warning(
            f"The message of the task {task.name} is lost with a worker that dies: it has no "
            f"{' and no '.join(missing)}.",
            hint=f"Write @shared_task({', '.join(f'{name}=True' for name in missing)}), or set "
            f"{' and '.join(f'task_{name}' for name in missing)} for all tasks: the guard makes "
            f"it safe that a message comes twice.",
            id="django_idempotency.W036",
        )


def _time_limit(task: Task, policy: Policy, app: Celery) -> Iterator[CheckMessage]:
    limit = _limit(task, app)
    # No lease is involved in "single", and each step prolongs that of "steps".
    if limit is None or policy.transaction in ("single", "steps"):
        return
    if policy.renew and limit > policy.max_duration.total_seconds():
        yield Warning(
            f"The task {task.name} may run for {limit:g} s, and its lease is renewed for "
            f"{policy.max_duration.total_seconds():g} s: then another delivery takes over.",
            hint="Make max_duration longer than the task's time limit.",
            id="django_idempotency.W030",
        )
    if not policy.renew and limit > policy.lease.total_seconds():
        yield Warning(
            f"The task {task.name} may run for {limit:g} s, and its lease of "
            f"{policy.lease.total_seconds():g} s is not renewed: another delivery takes over.",
            hint="Leave renew on, or make the lease longer than the task's time limit.",
            id="django_idempotency.W031",
        )


def _limit(task: Task, app: Celery) -> float | None:
    limit: float | None = task.time_limit or app.conf.task_time_limit
    return limit or task.soft_time_limit or app.conf.task_soft_time_limit


def _visibility(task: Task, policy: Policy, app: Celery) -> Iterator[CheckMessage]:
    timeout = _visibility_timeout(app)
    if timeout is None:
        return
    if policy.retention.total_seconds() <= timeout:
        yield Warning(
            f"The broker delivers a message of {task.name} again after {timeout:g} s, when its "
            f"record, kept for {policy.retention.total_seconds():g} s, has expired.",
            hint="Make retention longer than the broker's visibility_timeout.",
            id="django_idempotency.W032",
        )
    lease, limit = policy.lease.total_seconds(), _limit(task, app) or 0
    if lease + limit >= timeout and policy.transaction != "single":
        runs = f", and then run for {limit:g} s" if limit else ""
        yield Warning(
            f"A message of {task.name} may wait in a worker for the rest of a lease of {lease:g} s"
            f"{runs}. The broker delivers it again after {timeout:g} s.",
            hint="Make visibility_timeout longer than the lease and the time limit together, or "
            "make the lease shorter: it is renewed while work lasts.",
            id="django_idempotency.W033",
        )


def _visibility_timeout(app: Celery) -> float | None:
    """Return the seconds after which the broker delivers again; None without such a timeout."""
    url = app.conf.broker_url
    first = str(url[0] if isinstance(url, (list, tuple)) and url else url)
    default = VISIBILITY.get(first.partition("://")[0])
    if default is None:
        return None
    return float((app.conf.broker_transport_options or {}).get("visibility_timeout", default))


def _long_work(task: Task, app: Celery) -> Iterator[CheckMessage]:
    limits = (task.soft_time_limit, task.time_limit)
    if limits == (app.conf.task_soft_time_limit, app.conf.task_time_limit):
        return  # this task has no time limit of its own
    limit = limits[0] or limits[1]
    if limit is not None and limit > LONG:
        yield Warning(
            f"The task {task.name} may run for {limit:g} s, all of it one transaction with its "
            f"record.",
            hint='Split it into smaller tasks, or give it transaction="separate".',
            id="django_idempotency.W035",
        )
