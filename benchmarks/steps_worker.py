"""The worker of work in steps: each inserts a row and commits; only ours knows the library."""

from __future__ import annotations

import gc
import itertools
import json
import os
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

#: How many steps an attempt has.
STEPS = (1, 5, 20, 100)
#: What a step returns: about 100 bytes of JSON.
RESULT = {"id": 1234567, "reference": "x" * 70}

#: As the store of the library does it, in a table with what is needed of a record.
CREATE = """
CREATE TABLE by_hand (
    id uuid PRIMARY KEY, epoch bigint, token uuid, state text, lease_until timestamptz,
    expires_at timestamptz, steps bytea)
"""
CLAIM = """
INSERT INTO by_hand VALUES (%s, 1, %s, 'IN_PROGRESS', now() + interval '60 s',
                            now() + interval '26 h', NULL)
"""
NOTE = """
UPDATE by_hand
   SET steps = coalesce(steps, ''::bytea) || %b::bytea,
       lease_until = clock_timestamp() + interval '60 s'
 WHERE id = %b AND epoch = 1 AND token = %b AND state = 'IN_PROGRESS'
"""


def prepare(variant: str) -> dict[str, Callable[..., Any]]:
    """Set up a database, and return a command for each number of steps."""
    steps_of = {"bare": _bare, "by hand": _by_hand, "steps": _ours, "DBOS": _dbos}[variant]()

    def run(count: int, n: int) -> dict[str, Any]:
        """Run so many attempts; each time is that of one step, without what is around the steps."""
        gc.collect()
        gc.disable()
        cpu = time.process_time_ns()
        taken = [*itertools.islice(steps_of(count), n)]
        cpu = time.process_time_ns() - cpu
        gc.enable()
        return {"us": taken, "cpu_us": cpu / 1000 / n / count}

    run(5, 5)  # what is prepared and planned is warm
    return {"flush": _flush, **{str(count): partial(run, count) for count in STEPS}}


def _flush() -> None:
    """Let the server's statistics have what this session has done."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_force_next_flush()")


def _insert() -> dict[str, Any]:
    from benchmarks.site.models import Payment

    Payment.objects.create(reference="order", amount=1, key="key")
    return RESULT


def _timed(count: int, step: Callable[[int], Any]) -> float:
    """Return the microseconds of one of so many steps."""
    began = time.perf_counter_ns()
    for number in range(count):
        step(number)
    return (time.perf_counter_ns() - began) / 1000 / count


def _django(*apps: str) -> None:
    import django
    from django.conf import settings

    database = json.loads(os.environ["BENCHMARK_DATABASE"])
    settings.configure(
        DATABASES={"default": {**database, "CONN_MAX_AGE": None}},
        INSTALLED_APPS=["benchmarks.site", *apps],
        LOGGING={"version": 1, "loggers": {"django_idempotency": {"level": "ERROR"}}},
        MIGRATION_MODULES={"site": None},
        SECRET_KEY="of a benchmark",  # noqa: S106
        USE_TZ=True,
    )
    django.setup()
    from django.core.management import call_command

    call_command("migrate", run_syncdb=True, verbosity=0)


def _bare() -> Callable[[int], Iterator[float]]:
    _django()
    from django.db import transaction

    step = transaction.atomic(_insert)

    def attempts(count: int) -> Iterator[float]:
        while True:
            yield _timed(count, lambda number: step())

    return attempts


def _by_hand() -> Callable[[int], Iterator[float]]:
    _django()
    from django.db import connection, transaction

    connection.ensure_connection()
    raw: Any = connection.connection
    raw.execute(CREATE)

    def attempts(count: int) -> Iterator[float]:
        while True:
            key, token = uuid.uuid4(), uuid.uuid4()
            raw.execute(CLAIM, [key, token])

            def step(number: int, key: uuid.UUID = key, token: uuid.UUID = token) -> None:
                with transaction.atomic():
                    note = b"step %d" % number + json.dumps(_insert()).encode()
                    noted = raw.execute(NOTE, [note, key, token], prepare=True)
                    assert noted.rowcount == 1

            yield _timed(count, step)

    return attempts


def _ours() -> Callable[[int], Iterator[float]]:
    _django("django_idempotency")
    import django_idempotency as idempotency

    def attempts(count: int) -> Iterator[float]:
        while True:

            def work(lease: Any) -> float:
                return _timed(count, lambda number: lease.step(f"step {number}", _insert))

            call: dict[str, Any] = {"scope": "benchmark", "transaction": "steps"}
            yield idempotency.run(work, key=str(uuid.uuid4()), **call).result

    return attempts


def _dbos() -> Callable[[int], Iterator[float]]:
    """Its step that commits with its work: a transaction, in the database of the work."""
    _django()
    import sqlalchemy
    from dbos import DBOS, SQLAlchemyDatasource
    from django.conf import settings

    found = settings.DATABASES["default"]
    parts = {"username": found["USER"], "password": found["PASSWORD"], "database": found["NAME"]}
    place = {"host": found["HOST"], "port": str(found["PORT"])}
    url = sqlalchemy.URL.create("postgresql", **parts, query=place)
    shown = url.render_as_string(hide_password=False)
    config: dict[str, Any] = {"name": "benchmark", "system_database_url": shown}
    DBOS(config={**config, "log_level": "ERROR", "run_admin_server": False})
    data = SQLAlchemyDatasource.create(shown)
    insert = sqlalchemy.text(
        "INSERT INTO site_payment (reference, amount, key) VALUES ('order', 1, 'key') RETURNING id"
    )

    @data.transaction(isolation_level="READ COMMITTED")
    def step() -> dict[str, Any]:
        data.sql_session().execute(insert).one()
        return RESULT

    @DBOS.workflow()
    def work(count: int) -> float:
        return _timed(count, lambda number: step())

    DBOS.launch()

    def attempts(count: int) -> Iterator[float]:
        while True:
            yield work(count)

    return attempts
