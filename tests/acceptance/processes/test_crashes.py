"""A database server that crashes in the middle of the work, and the retry once it is back."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from tests.acceptance.processes.clients import SECONDS, Answer, Work
from tests.acceptance.processes.conftest import Serve
from tests.services import DATABASES_VARIABLE, or_skip
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
        assert spawn(command, env=environment(server)).wait(2 * SECONDS) == 0
        yield server


def asked(server: PostgresServer, query: str) -> Any:
    """Return what one value a query finds, or a command's number of rows."""
    url = server.url.replace("/postgres?", f"/{DATABASE}?")
    with psycopg.connect(url, autocommit=True) as session:
        done = session.execute(query)
        return done.fetchone()[0] if done.description else done.rowcount


@pytest.fixture
def database(migrated: PostgresServer) -> PostgresServer:
    """That server, running and empty."""
    if migrated.process is None:
        migrated.restart()
    asked(migrated, "TRUNCATE idempotency_record, app_effect")
    return migrated


@pytest.fixture
def crash(serve: Serve, database: PostgresServer, work: Callable[[], Work]) -> Callable[..., Any]:
    """`crash(mode, …)`: crash in the middle of the work; its answer, and the effects of a retry."""

    def crash(mode: str, then: str = "created", *, restarted: bool) -> tuple[Answer, int]:
        lease = 600 if restarted else 1
        server = serve(mode, kind="elsewhere", env=environment(database), lease=lease)
        paid = work()
        waiting = paid.send(server)
        attempt = paid.begun()
        database.crash()
        if restarted:
            database.restart()
        attempt.go_on(then)
        answer = waiting.result(SECONDS)
        if not restarted:
            database.restart()
        if not restarted and mode != "single":
            over = "SELECT lease_until <= clock_timestamp() FROM idempotency_record"
            wait_until(lambda: asked(database, over), seconds=SECONDS, what="the lease to lapse")
        retry, again = paid.run(server, 2), paid.post(server)
        assert (retry.status, retry.replayed) == (201, False)
        assert (again.status, again.replayed, again.body) == (201, True, retry.body)
        return answer, asked(database, "SELECT count(*) FROM app_effect")

    return crash


UNAVAILABLE = (503, "store_unavailable")


@pytest.mark.parametrize(
    ("mode", "restarted", "then", "told"),
    [
        *((mode, False, "created", UNAVAILABLE) for mode in ("single", "joined")),
        *((mode, True, "created", UNAVAILABLE) for mode in ("single", "joined")),
        pytest.param("joined", True, "deferred", (500, None), id="R58 work that writes again"),
    ],
)
def test_R60_a_completion_that_finds_no_session_is_503_and_a_retry_runs_once(
    crash, mode, restarted, then, told
):
    """After a restart the key is free at once."""
    failed, effects = crash(mode, then, restarted=restarted)
    assert (failed.status, failed.code, effects) == (*told, 1)


def test_R60_separate_work_that_cannot_be_completed_is_answered_and_says_so(crash):
    first, effects = crash("separate", restarted=False)
    assert (first.status, first.headers["Idempotency-Stored"]) == (201, "false")
    # The work of both stands: what `separate` promises is one owner at a time.
    assert effects == 2
