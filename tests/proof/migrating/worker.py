"""
A process of one deployment: it runs the code of a guide, and what is delivered to it.

``python -m benchmarks.worker`` starts it in the environment of another package.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.pages import ROOT, Block, blocks_of

#: JSON: the settings of the project, its database and its servers.
SETTINGS = "MIGRATING_SETTINGS"
#: What marks the blocks of a guide: their deployments, and their module if they are not settings.
DEPLOYED = re.compile(r"deployment=([\w,]+)(?: module=([\w.]+)| settings)")
#: For how long a process waits for another one.
PATIENCE = 30


def prepare(variant: str) -> dict[str, Callable[..., Any]]:
    """Start a deployment of a guide, ``docs/howto/….md before``, and return its commands."""
    page, deployment = variant.split()
    blocks = [
        (block, match[2])
        for block in blocks_of(ROOT / page)
        if (match := DEPLOYED.fullmatch(block.marker)) and deployment in match[1].split(",")
    ]
    given: dict[str, Any] = json.loads(os.environ[SETTINGS])
    for block, module in blocks:
        if module is None:
            exec(block.compiled(), given)
    _set_up({name: value for name, value in given.items() if name.isupper()})
    for block, module in blocks:
        if module is not None:
            _run(block, module)
    return {
        "ready": lambda: True,
        **(_of_events() if "shop.handlers" in sys.modules else {}),
        **(_of_tasks() if "shop.tasks" in sys.modules else {}),
    }


def _set_up(own: dict[str, Any]) -> None:
    import django
    from django.conf import settings

    settings.configure(
        INSTALLED_APPS=["tests.app", "django_idempotency"],
        SECRET_KEY="of a test",
        USE_TZ=True,
        **own,
    )
    django.setup()
    from django.core.management import call_command

    from tests.app import models

    call_command("migrate", run_syncdb=True, verbosity=0)
    sys.modules["shop"] = ModuleType("shop")
    sys.modules["shop.models"] = models
    if hasattr(settings, "CELERY_BROKER_URL"):
        from celery import Celery

        Celery("shop", set_as_current=True).config_from_object(settings, namespace="CELERY")


def _run(block: Block, name: str) -> None:
    module = sys.modules.setdefault(name, ModuleType(name))
    exec(block.compiled(), vars(module))


def _said(call: Callable[[], Any]) -> Any:
    """Return the answer of `call`, or the name of its error."""
    try:
        return call()
    except Exception as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return type(error).__name__


class Context:
    """What Lambda tells a handler."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def get_remaining_time_in_millis(self) -> int:
        return int(self.seconds * 1000)


def _of_events() -> dict[str, Callable[..., Any]]:
    from django.db.models.signals import pre_save

    handlers: Any = sys.modules["shop.handlers"]

    def deliver(event: dict[str, Any], hold: str = "", seconds: float = 60) -> Any:
        """Give an event to the handler, whose work waits in the folder `hold` for the test."""

        def wait(**kwargs: Any) -> None:
            (Path(hold) / "begun").touch()
            deadline = time.monotonic() + PATIENCE
            while not (Path(hold) / "go on").exists():
                assert time.monotonic() < deadline, "nobody lets the work go on"
                time.sleep(0.01)

        if hold:
            pre_save.connect(wait)
        try:
            return _said(lambda: handlers.lambda_handler(event, Context(seconds)))
        finally:
            pre_save.disconnect(wait)

    def die(event: dict[str, Any], seconds: float) -> None:
        """Handle an event, and be killed before Powertools has recorded it."""
        handlers.layer._update_record = lambda **words: os._exit(9)
        handlers.lambda_handler(event, Context(seconds))

    def moved(event: dict[str, Any], key_prefix: str) -> Any:
        """Handle an event under the name that the handler had."""
        named = handlers.idempotent(
            config=handlers.config, persistence_store=handlers.layer, key_prefix=key_prefix
        )
        return _said(lambda: named(handlers.lambda_handler.__wrapped__)(event, Context(60)))

    return {"deliver": deliver, "die": die, "moved": moved}


def _of_tasks() -> dict[str, Callable[..., Any]]:
    from celery import Task, current_app
    from celery.contrib.testing.worker import start_worker
    from celery.result import AsyncResult
    from celery.signals import task_postrun

    app = current_app._get_current_object()
    charge: Any = sys.modules["shop.tasks"].charge  # type: ignore[attr-defined]

    def send(args: list[Any]) -> Any:
        """Send the task, and return its id."""
        return _said(lambda: charge.delay(*args).id)

    def send_again(task_id: str, args: list[Any]) -> None:
        """Send the message as a broker delivers it again: past the task's own `apply_async`."""
        Task.apply_async(charge, args, task_id=task_id)

    def work(messages: int = 1) -> None:
        """Be a worker until so many messages are done with."""
        done: list[str] = []

        def note(task_id: str, **kwargs: Any) -> None:
            done.append(task_id)

        task_postrun.connect(note)
        with start_worker(app, pool="solo", perform_ping_check=False):
            deadline = time.monotonic() + PATIENCE
            while len(done) < messages:
                assert time.monotonic() < deadline, f"only {done} are done"
                time.sleep(0.01)
        task_postrun.disconnect(note)

    def end(task_id: str) -> list[Any]:
        """Return the state of a task and its result."""
        result = AsyncResult(task_id)
        return [result.state, result.result]

    return {"send": send, "send_again": send_again, "work": work, "end": end}
