"""
How many calls into our code a guarded request costs: ``python -m benchmarks.calls``.

A request to a plain view and to one of Django REST framework, and a Celery task, each the first
time and as a replay, in each mode, on SQLite in memory. Counted are the calls of Python functions
in django_idempotency (a generator counts each time it is resumed, a comprehension does not), the
functions, their modules, and the statements, once all that is made once per process has been made.
With ``--modules`` it also prints how often a path goes from one module to another, how often a
coroutine goes to a thread, the attributes of an attempt, and the lines of each folder. With
``--names`` the functions of each path are printed, those that are called most often first; with
``--json`` the figures alone, which a test compares with those that it knows.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch
from uuid import uuid4

if TYPE_CHECKING:
    from django_idempotency.options import Transaction

#: One database for all threads.
MEMORY = "file:calls?mode=memory&cache=shared"
MODES: tuple[Transaction, ...] = ("joined", "single", "separate")
#: Comprehensions are functions of their own before Python 3.12.
INLINED = ("<listcomp>", "<setcomp>", "<dictcomp>")
ROOT = Path(__file__).resolve().parent.parent / "django_idempotency"


class Trace(NamedTuple):
    """The calls of one path through our code."""

    kind: str
    mode: str
    path: str
    calls: Counter[CodeType]
    #: How often a call went from one module of ours to another.
    switches: int
    #: How many statements went through Django's cursors.
    statements: int

    @property
    def total(self) -> int:
        """How many calls were made."""
        return self.calls.total()

    @property
    def modules(self) -> set[str]:
        """The files whose functions were called."""
        return {code.co_filename for code in self.calls}


def traced(function: Callable[[], Any]) -> tuple[Counter[CodeType], int]:
    """
    Return how often `function` calls each function of ours, in this thread.

    And how often the module of a call is another one than that of the call before it.
    """
    calls: Counter[CodeType] = Counter()
    ours = f"{ROOT}{os.sep}"
    files: list[str] = []

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(ours) and code.co_name not in INLINED:
            calls[code] += 1
            files.append(code.co_filename)

    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(None)
    return calls, sum(one != other for one, other in pairwise(files))


def counted(function: Callable[[], Any]) -> int:
    """Return how many statements `function` runs."""
    from django.db import connection

    statements: list[str] = []

    def note(execute: Callable[..., Any], sql: str, *rest: Any) -> Any:
        statements.append(sql)
        return execute(sql, *rest)

    with connection.execute_wrapper(note):
        function()
    return len(statements)


def configure() -> None:
    """Set Django up with a database in memory, and with the views of this module."""
    import django
    from django.conf import settings

    settings.configure(
        ALLOWED_HOSTS=["testserver"],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": MEMORY}},
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        INSTALLED_APPS=[
            "django.contrib.auth",
            "django.contrib.contenttypes",
            "rest_framework",
            "django_idempotency",
        ],
        REST_FRAMEWORK={"DEFAULT_AUTHENTICATION_CLASSES": []},
        ROOT_URLCONF="benchmarks.calls_urls",
        SECRET_KEY="of a benchmark",  # noqa: S106
        USE_TZ=True,
    )
    django.setup()


def measure() -> Iterator[Trace]:
    """Yield the trace of each path; Django is set up, and the table there."""
    for mode in MODES:
        for kind in ("plain", "drf", "task"):
            call = task(mode) if kind == "task" else request(kind, mode)
            warm, key, other = str(uuid4()), str(uuid4()), str(uuid4())
            call(warm)
            call(warm)
            for path in ("first", "replay"):
                calls, switches = traced(
                    lambda call=call, key=key: call(key)  # type: ignore[misc]
                )
                statements = counted(lambda call=call, key=other: call(key))  # type: ignore[misc]
                yield Trace(kind, mode, path, calls, switches, statements)


def request(kind: str, mode: str) -> Callable[[str], None]:
    """Return what sends a request with a key to a view."""
    from django.test import Client

    client = Client()

    def send(key: str) -> None:
        response = client.post(
            f"/{kind}/{mode}/",
            {"amount": 1},
            content_type="application/json",
            headers={"Idempotency-Key": key},
        )
        if response.status_code != 201:
            raise RuntimeError(f"{response.status_code}: {response.content!r}")

    return send


def task(mode: Transaction) -> Callable[[str], None]:
    """Return what carries out a delivery of a task with a key."""
    from celery import Celery

    from django_idempotency.contrib.celery import idempotent_task

    app = Celery("calls", set_as_current=False)
    app.conf.task_always_eager = True
    app.conf.task_store_eager_result = False

    @app.task(name=f"calls.{mode}", bind=True)
    @idempotent_task(key="order", transaction=mode)
    def charge(self: Any, order: str) -> dict[str, int]:
        return {"amount": 1}

    return lambda key: charge.apply(args=[key], throw=True) and None


def hops(mode: Transaction) -> tuple[int, int]:
    """Return how often a coroutine goes to a thread in its first attempt, and in a replay."""
    from asgiref.sync import SyncToAsync

    import django_idempotency as idempotency

    went: list[int] = []
    call = SyncToAsync.__call__

    async def counting(self: Any, *args: Any, **kwargs: Any) -> Any:
        went[-1] += 1
        return await call(self, *args, **kwargs)

    async def work(lease: Any) -> str:
        return "done"

    async def attempts() -> None:
        key = str(uuid4())
        for _ in range(2):
            went.append(0)
            await idempotency.arun(work, key=key, scope="hops", transaction=mode)

    with patch.object(SyncToAsync, "__call__", counting):
        asyncio.run(attempts())
    first, replay = went
    return first, replay


def attributes() -> int:
    """Return how many attributes an attempt has."""
    from django_idempotency.conf import engine_for, stores
    from django_idempotency.http.plans import ViewPlan

    operation = ViewPlan.of(stores.configured("default")).unrecorded("", transaction="separate")
    with engine_for().attempt(operation) as attempt:
        attempt.complete()
        return len(vars(attempt))


def lines() -> dict[str, int]:
    """Return the lines of each folder of the package, testing/ left out."""
    found: Counter[str] = Counter()
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT).parts
        if parts[0] != "testing":
            found[parts[0] if parts[1:] else "."] += path.read_text().count("\n")
    return dict(sorted(found.items()))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.calls", description=__doc__)
    for name in ("modules", "names", "json"):
        parser.add_argument(f"--{name}", action="store_true")
    wanted = parser.parse_args()
    configure()
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
    if wanted.json:
        keys = [(trace, f"{trace.kind} {trace.mode} {trace.path}") for trace in measure()]
        print(json.dumps({key: [trace.total, trace.statements] for trace, key in keys}))
        return
    print(f"{'':24}{'calls':>8}{'functions':>11}{'modules':>9}{'switches':>10}{'statements':>12}")
    for trace in measure():
        title = f"{trace.kind} {trace.mode} {trace.path}"
        figures = f"{trace.total:8}{len(trace.calls):11}{len(trace.modules):9}{trace.switches:10}"
        print(f"{title:24}{figures}{trace.statements:12}")
        for code, count in trace.calls.most_common() if wanted.names else ():
            place = Path(code.co_filename).relative_to(ROOT)
            print(f"    {count:4}  {place}:{code.co_firstlineno} {code.co_qualname}")
    if wanted.modules:
        for mode in MODES:
            print("hops of a coroutine, {}: {} first, {} replay".format(mode, *hops(mode)))
        print(f"attributes of an attempt: {attributes()}")
        for folder, count in lines().items():
            print(f"lines of {folder}: {count}")
        print(f"lines together: {sum(lines().values())}")


if __name__ == "__main__":
    main()
