"""The tasks that workers run in the tests; each in every way to commit."""

from __future__ import annotations

import time
import uuid
from typing import Any

from celery import Task, shared_task, signals
from celery.exceptions import SoftTimeLimitExceeded

from django_idempotency.contrib.celery import from_parent, idempotent_task
from tests.acceptance.celery.stage import MODES, stage_of_process
from tests.app.models import Effect


def tell(task: Task, what: str, **facts: Any) -> None:
    with stage_of_process() as stage:
        stage.tell(what, id=task.request.id, **facts)


def _held(mode: str) -> None:
    def held(self: Task, name: str) -> dict[str, str]:
        """Leave an effect, and wait for the test's word before it is committed."""
        Effect.objects.create(name=name)
        with stage_of_process() as stage:
            stage.tell("begun", id=self.request.id, name=name)
            stage.wait_for_word(name)
        return {"name": name, "made": str(uuid.uuid4())}

    def stalled(self: Task, name: str) -> str:
        """Leave an effect, and wait for the test's word; the first one alone."""
        Effect.objects.create(name=name)
        with stage_of_process() as stage:
            is_first = not stage.client.set(f"{stage.prefix}first:{self.request.id}", 1, get=True)
            stage.tell("begun", id=self.request.id, name=name)
            if is_first:
                stage.wait_for_word(name)
        return str(uuid.uuid4())

    renewed = idempotent_task(lease=1, **MODES[mode])
    shared_task(name=f"tests.held-{mode}", bind=True)(renewed(held))
    unrenewed = idempotent_task(lease=1, renew=False, **MODES[mode])
    shared_task(name=f"tests.stalled-{mode}", bind=True)(unrenewed(stalled))


def _quick(mode: str) -> None:
    @shared_task(name=f"tests.quick-{mode}", bind=True)
    @idempotent_task(lease=1, **MODES[mode])
    def quick(self: Task, name: str) -> str:
        Effect.objects.create(name=name)
        tell(self, "begun", name=name)
        time.sleep(0.1)
        return name


for _mode in MODES:
    _held(_mode)
    _quick(_mode)


@shared_task(name="tests.retries", bind=True, max_retries=5)
@idempotent_task
def retries(self: Task, name: str, failures: int) -> int:
    tell(self, "begun", name=name)
    Effect.objects.create(name=name)
    if self.request.retries < failures:
        raise self.retry(countdown=0.1)
    return int(self.request.retries)


@shared_task(
    name="tests.autoretries",
    bind=True,
    autoretry_for=(ConnectionError,),
    retry_backoff=False,
    default_retry_delay=0.1,
)
@idempotent_task
def autoretries(self: Task, name: str, failures: int) -> int:
    tell(self, "begun", name=name)
    Effect.objects.create(name=name)
    if self.request.retries < failures:
        raise ConnectionError
    return int(self.request.retries)


@shared_task(
    name="tests.refused",
    bind=True,
    autoretry_for=(ConnectionError,),
    default_retry_delay=0.1,
    max_retries=2,
)
@idempotent_task(key="name", on_failed="replay")
def refused(self: Task, name: str) -> None:
    tell(self, "begun", name=name)
    raise ConnectionError


@shared_task(name="tests.add")
@idempotent_task
def add(*numbers: Any) -> int:
    Effect.objects.create(name="add")
    return sum(sum(number) if isinstance(number, list) else number for number in numbers)


@shared_task(name="tests.count")
@idempotent_task
def count(results: list[Any]) -> int:
    return len(results)


@shared_task(name="tests.replaced", bind=True)
@idempotent_task
def replaced(self: Task, *numbers: int) -> Any:
    Effect.objects.create(name="replaced")
    return self.replace(add.s(*numbers))


@shared_task(name="tests.receipt")
@idempotent_task(key=from_parent("receipt"))
def receipt(name: str) -> str:
    Effect.objects.create(name=f"receipt {name}")
    return name


@shared_task(name="tests.capture", bind=True)
@idempotent_task(key="name", lease=1)
def capture(self: Task, name: str) -> str:
    """Start a child when it commits; die the first time before that."""
    Effect.objects.create(name=f"capture {name}")
    receipt.delay_on_commit(name)
    receipt.delay(name)
    with stage_of_process() as stage:
        stage.tell("begun", id=self.request.id, name=name)
        stage.wait_for_word(name)
    return name


@shared_task(name="tests.limited", bind=True)
@idempotent_task(lease=1)
def limited(self: Task, name: str, seconds: float) -> str:
    """Be ended by a time limit, unless there is little to do."""
    tell(self, "begun", name=name)
    Effect.objects.create(name=name)
    try:
        time.sleep(seconds)
    except SoftTimeLimitExceeded:
        tell(self, "soft limit", name=name)
        raise
    return name


@signals.task_retry.connect(weak=False)
def _retried(sender: Task, request: Any, **kwargs: Any) -> None:
    tell(sender, "retried", of=sender.name)


@signals.task_success.connect(weak=False)
def _succeeded(sender: Task, result: Any, **kwargs: Any) -> None:
    tell(sender, "succeeded", of=sender.name)


@signals.task_failure.connect(weak=False)
def _failed(sender: Task, exception: BaseException, **kwargs: Any) -> None:
    with stage_of_process() as stage:
        stage.tell("failed", id=kwargs["task_id"], error=type(exception).__name__)


@signals.task_revoked.connect(weak=False)
def _revoked(sender: Task, request: Any, **kwargs: Any) -> None:
    with stage_of_process() as stage:
        stage.tell("revoked", id=request.id)
