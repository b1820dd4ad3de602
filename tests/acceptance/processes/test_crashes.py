"""A database server that crashes in the middle of the work, and the retry once it is back."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from functools import partial

import psycopg
import pytest

from tests.acceptance.processes.clients import Answer, Work
from tests.acceptance.processes.conftest import Serve
from tests.services import DATABASES_VARIABLE, or_skip
from tests.services.gunicorn import Gunicorn
from tests.services.postgres import URL_VARIABLE, PostgresServer
from tests.services.processes import spawn, wait_until

pytestmark = [pytest.mark.processes, pytest.mark.leg("postgres18")]

DATABASE = "shop"


def environment(database: PostgresServer) -> dict[str, str]:
    """Variables with which `tests.settings` means this server."""
    return {
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        URL_VARIABLE: database.url,
        DATABASES_VARIABLE: json.dumps({"default": DATABASE}),
    }


@pytest.fixture(scope="module")
def migrated() -> Iterator[PostgresServer]:
    """A server of these tests' own, on which Django has its tables."""
    with or_skip(lambda: PostgresServer(18, durable=True)) as server:
        server.create_database(DATABASE)
        command = [sys.executable, "-m", "django", "migrate", "--verbosity", "0", "--run-syncdb"]
        assert spawn(command, env=environment(server)).wait(60) == 0
        yield server


@pytest.fixture
def database(migrated: PostgresServer) -> PostgresServer:
    """That server, running and empty."""
    if migrated.process is None:
        migrated.restart()
    with session(migrated) as connection:
        connection.execute("TRUNCATE idempotency_record, app_effect")
    return migrated


@pytest.fixture
def serve_on(serve: Serve, database: PostgresServer) -> Serve:
    """Like `serve`, on that server."""
    return partial(serve, kind="elsewhere", env=environment(database))


def session(server: PostgresServer) -> psycopg.Connection:
    url = server.url.replace("/postgres?", f"/{DATABASE}?")
    return psycopg.connect(url, autocommit=True)


def effects(server: PostgresServer) -> int:
    with session(server) as connection:
        return len(connection.execute("SELECT id FROM app_effect").fetchall())


def lapsed(server: PostgresServer) -> None:
    """Wait until the one lease has lapsed by the server's clock."""

    def over() -> bool:
        with session(server) as connection:
            query = "SELECT lease_until <= clock_timestamp() FROM idempotency_record"
            [[is_over]] = connection.execute(query)
        return bool(is_over)

    wait_until(over, seconds=5, what="the lease to lapse")


def retried(server: Gunicorn, work: Work) -> None:
    """Retry; the work must run once more, and from then on its answer is replayed."""
    retry = work.run(server, 2)
    again = work.post(server)
    assert (retry.status, retry.replayed) == (201, False)
    assert (again.status, again.replayed, again.body) == (201, True, retry.body)


def crash(
    server: Gunicorn,
    database: PostgresServer,
    work: Work,
    then: str = "created",
    *,
    restarted: bool = False,
) -> Answer:
    """Let the database server crash in the middle of the work, which goes on; its answer."""
    waiting = work.send(server)
    attempt = work.begun()
    database.crash()
    if restarted:
        database.restart()
    attempt.go_on(then)
    answer = waiting.result(10)
    if not restarted:
        database.restart()
    return answer


@pytest.mark.parametrize("mode", ["single", "joined"])
def test_R60_a_completion_that_finds_no_server_is_503_and_a_retry_runs_once(
    serve_on, database, work, mode
):
    server, work = serve_on(mode, lease=1), work()
    failed = crash(server, database, work)
    if mode == "joined":
        lapsed(database)
    retried(server, work)
    assert (failed.status, failed.code, effects(database)) == (503, "store_unavailable", 1)


@pytest.mark.parametrize(
    ("mode", "then", "told"),
    [
        *((mode, "created", (503, "store_unavailable")) for mode in ("single", "joined")),
        pytest.param("joined", "deferred", (500, None), id="R58 work that writes again"),
    ],
)
def test_R60_a_completion_after_a_restart_is_503_and_leaves_the_key_free_at_once(
    serve_on, database, work, mode, then, told
):
    server, work = serve_on(mode, lease=600), work()
    failed = crash(server, database, work, then, restarted=True)
    retried(server, work)
    assert (failed.status, failed.code) == told
    assert effects(database) == 1


def test_R60_separate_work_that_cannot_be_completed_is_answered_and_says_so(
    serve_on, database, work
):
    server, work = serve_on("separate", lease=1), work()
    first = crash(server, database, work)
    lapsed(database)
    retried(server, work)
    assert (first.status, first.headers["Idempotency-Stored"]) == (201, "false")
    # The work of both stands: what `separate` promises is one owner at a time.
    assert effects(database) == 2
