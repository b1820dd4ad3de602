"""The worker of the comparison of functions and tasks: what a variant does with an order."""

from __future__ import annotations

import json
import os
import random
import signal
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.compare_worker import LEASE, PATIENCE, RACES, WORK_SECONDS
from benchmarks.worker import race


@dataclass
class Guarded:
    """A guarded function or task, whose work is the same."""

    #: Call the function, or send the task.
    call: Callable[..., Any]
    #: Deliver the message of a task again; None for a function.
    deliver: Callable[..., Any] | None = None
    #: The same function with the option that compares the amount.
    strict: Callable[..., Any] | None = None


def prepare(variant: str) -> dict[str, Callable[..., Any]]:
    """Set the variant's project up, and return the commands."""
    _set_up(variant)
    from django.core.management import call_command
    from django.db import connections
    from django.db.models.signals import post_save, pre_save

    from benchmarks.site.models import Payment

    call_command("migrate", run_syncdb=True, verbosity=0)

    def work(order: str, amount: int) -> dict[str, Any]:
        payment = Payment.objects.create(key=order, reference="order", amount=amount)
        return {"payment": payment.pk}

    guarded = _VARIANTS[variant](work)
    call = guarded.call
    again = guarded.deliver or call

    def effects(order: str) -> int:
        return Payment.objects.filter(key=order).count()

    def raced() -> int:
        """Return how often the work took effect for 8 while it runs, at most."""

        def take_time(**kwargs: Any) -> None:
            time.sleep(WORK_SECONDS)

        def soon(order: str) -> None:
            time.sleep(random.uniform(0, WORK_SECONDS / 2))  # noqa: S311
            try:
                call(order)
            finally:
                connections.close_all()

        pre_save.connect(take_time, sender=Payment)
        found = []
        for order in [new_order() for _ in range(RACES)]:
            race(lambda order=order: soon(order))  # type: ignore[misc]
            found.append(effects(order))
        pre_save.disconnect(take_time, sender=Payment)
        return max(found)

    def repeated(first: Callable[..., Any], second: Callable[..., Any], amount: int = 1250) -> str:
        """Return what a second call gets."""
        order = new_order()
        done = _answer(first, order)
        return _said(_answer(second, order, amount), done, effects(order))

    def failed() -> str:
        """Let the work raise once, and return what the next attempt gets."""
        order = new_order()

        def fail(**kwargs: Any) -> None:
            pre_save.disconnect(fail, sender=Payment)
            raise ConnectionError("the gateway is down")

        pre_save.connect(fail, sender=Payment)
        _answer(call, order)
        return _said(_answer(again, order), None, effects(order))

    def in_child(order: str, hook: Callable[[], None], hooked: Any) -> int:
        """Start the call in a process that meets `hook`, and return its id."""
        connections.close_all()
        if (child := os.fork()) == 0:
            hooked.connect(lambda **kwargs: hook(), sender=Payment, weak=False)
            _answer(call, order)
            os._exit(0)
        return child

    def killed(*, committed: bool) -> dict[str, Any]:
        """Kill a process before its work commits, or after; return what the next attempts get."""
        from django.db import transaction

        order = new_order()

        def die() -> None:
            if committed:
                transaction.on_commit(lambda: os._exit(9))
            else:
                os._exit(9)

        child = in_child(order, die, post_save if committed else pre_save)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 9, "it was not killed"
        return until_answered(order)

    def until_answered(order: str) -> dict[str, Any]:
        began = time.monotonic()
        at_first = last = _answer(again, order)
        while isinstance(last, Exception) and time.monotonic() - began < PATIENCE:
            time.sleep(0.5)
            last = _answer(again, order)
        return {
            "at first": type(at_first).__name__ if isinstance(at_first, Exception) else None,
            "last": type(last).__name__ if isinstance(last, Exception) else last,
            "effects": effects(order),
        }

    def stalled() -> dict[str, Any]:
        """Stop a process in its work until another is done, and return whose result stays."""
        order = new_order()
        child = in_child(order, lambda: os.kill(os.getpid(), signal.SIGSTOP), pre_save)
        os.waitpid(child, os.WUNTRACED)
        second = until_answered(order)["last"]
        os.kill(child, signal.SIGCONT)
        os.waitpid(child, 0)
        took_effect = effects(order)
        return {"effects": took_effect, "stays": _answer(again, order) == second}

    def facts() -> dict[str, Any]:
        return {
            "race": raced(),
            "called again": repeated(call, call),
            "delivered again": guarded.deliver and repeated(call, guarded.deliver),
            "another amount": repeated(call, call, 9900),
            "another amount, strict": guarded.strict
            and repeated(guarded.strict, guarded.strict, 9900),
            "raised": failed(),
            "killed in the work": killed(committed=False),
            "killed after the commit": killed(committed=True),
            "stalled": stalled(),
        }

    return {"facts": facts}


def new_order() -> str:
    return str(uuid.uuid4())


def _answer(call: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of a call, or its exception."""
    try:
        return call(*arguments)
    except Exception as error:
        return error


def _said(answer: Any, done: Any, effects: int) -> str:
    """Return in words what a second call got."""
    if isinstance(answer, Exception):
        return type(answer).__name__
    if effects > 1 or done is None:
        return "runs again"
    return "first result" if answer == done else "another result"


def _set_up(variant: str) -> None:
    import django
    from django.conf import settings

    dynamodb = "django_idempotency.stores.dynamodb.DynamoDBStore"
    stores: dict[str, dict[str, Any]] = {
        "function, DynamoDB": {
            "BACKEND": dynamodb,
            "OPTIONS": {"table_name": "idempotency", "timeout": 30, "clock_skew": 1},
        }
    }
    ours = variant.startswith(("function", "task"))
    settings.configure(
        DATABASES={"default": json.loads(os.environ["BENCHMARK_DATABASE"])},
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        INSTALLED_APPS=["benchmarks.site", *(["django_idempotency"] if ours else [])],
        MIGRATION_MODULES={"site": None},
        IDEMPOTENCY={"default": {**stores.get(variant, {}), "LEASE": LEASE}},
        LOGGING_CONFIG=None,
        SECRET_KEY="of a benchmark",  # noqa: S106
        USE_TZ=True,
    )
    django.setup()


Work = Callable[[str, int], dict[str, Any]]


def _function(work: Work) -> Guarded:
    import django_idempotency as idempotency

    charge = idempotency.idempotent_function(key="order", scope="charges")(work)
    return Guarded(lambda order, amount=1250: charge(order, amount))


def _powertools(work: Work) -> Guarded:
    from aws_lambda_powertools.utilities.idempotency import (
        DynamoDBPersistenceLayer,
        IdempotencyConfig,
        idempotent_function,
    )

    class Context:
        def get_remaining_time_in_millis(self) -> int:
            return LEASE * 1000

    def charge(event: dict[str, Any]) -> dict[str, Any]:
        return work(event["order"], event["amount"])

    def guard(prefix: str, **options: Any) -> Callable[..., Any]:
        config = IdempotencyConfig(event_key_jmespath="order", **options)
        config.register_lambda_context(Context())
        guarded = idempotent_function(
            charge,
            data_keyword_argument="event",
            persistence_store=DynamoDBPersistenceLayer(table_name="powertools"),
            config=config,
            key_prefix=prefix,
        )
        return lambda order, amount=1250: guarded(event={"order": order, "amount": amount})

    return Guarded(guard("charge"), strict=guard("strict", payload_validation_jmespath="amount"))


def _task(work: Work) -> Guarded:
    from django_idempotency.contrib.celery import idempotent_task

    return _eager(idempotent_task(key="order")(work))


def _celery_once(work: Work) -> Guarded:
    from celery_once import QueueOnce

    once = {"keys": ["order"], "timeout": LEASE}
    backend = {
        "backend": "celery_once.backends.Redis",
        "settings": {"url": os.environ["BENCHMARK_REDIS"]},
    }
    return _eager(work, {"ONCE": backend}, base=QueueOnce, once=once)


def _celery_singleton(work: Work) -> Guarded:
    from celery_singleton import Singleton

    url = {"singleton_backend_url": os.environ["BENCHMARK_REDIS"]}
    options = {"unique_on": ["order"], "lock_expiry": LEASE, "raise_on_duplicate": True}
    return _eager(work, url, base=Singleton, **options)


def _eager(work: Work, conf: dict[str, Any] | None = None, **options: Any) -> Guarded:
    """Return a task that runs where it is sent, and where its message is delivered."""
    from celery import Celery

    app = Celery("compare", set_as_current=True)
    app.conf.update(task_always_eager=True, **(conf or {}))
    charge = app.task(name="charge", **options)(work)
    ids: dict[str, str] = {}

    def result(ended: Any) -> Any:
        # Threads leave Celery's flag behind that says that this is a task.
        return ended.get(disable_sync_subtasks=False)

    def send(order: str, amount: int = 1250) -> Any:
        task_id = str(uuid.uuid4())
        ids.setdefault(order, task_id)
        return result(charge.apply_async([order, amount], task_id=task_id))

    def deliver(order: str, amount: int = 1250) -> Any:
        return result(charge.apply([order, amount], task_id=ids.get(order)))

    return Guarded(send, deliver)


_VARIANTS: dict[str, Callable[[Work], Guarded]] = {
    "function, PostgreSQL": _function,
    "function, DynamoDB": _function,
    "powertools": _powertools,
    "task, PostgreSQL": _task,
    "celery-once": _celery_once,
    "celery-singleton": _celery_singleton,
}
