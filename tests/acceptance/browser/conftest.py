"""Fixtures for tests with a browser: the shop under a real server, and pages in Chromium."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect
from psycopg import sql

from tests.services import or_skip
from tests.services.chromium import chromium
from tests.services.gunicorn import Gunicorn
from tests.services.postgres import URL_VARIABLE
from tests.services.processes import ROOT, wait_until
from tests.services.uvicorn import Uvicorn

SERVERS: dict[str, Callable[..., Any]] = {"gunicorn": Gunicorn, "uvicorn": Uvicorn}
SECONDS = 20
expect.set_options(timeout=SECONDS * 1000)
WAITING = """
SELECT count(*) FROM pg_locks JOIN pg_database ON pg_database.oid = pg_locks.database
WHERE datname = %s AND NOT granted
"""
# A session that has looked at the record since a moment, and now does nothing.
LOOKED = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = %s AND state = 'idle' AND query LIKE '%%idempotency_record%%' AND query_start > %s
"""
FILL = """
import django
from django.core.management import call_command
django.setup()
call_command("migrate", verbosity=0)
call_command("seed", verbosity=0)
"""


@dataclass(frozen=True)
class Shop:
    """The example project: where it is served, and sessions on its database and beside it."""

    url: str
    database: psycopg.Connection[Any]
    beside: psycopg.Connection[Any]

    @property
    def orders(self) -> int:
        """How many orders there are."""
        return int(value(self.database, "SELECT count(*) FROM shop_order"))

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Let no order be placed in this block: who tries waits for its end."""
        with self.database.transaction():
            self.database.execute("LOCK TABLE shop_order IN SHARE MODE")
            yield

    @contextmanager
    def first_click(self) -> Iterator[None]:
        """Wait at the end of this block until the order of a click is about to be placed."""
        yield
        self._until(lambda: value(self.beside, WAITING, self._name) > 0, "the first click's order")

    @contextmanager
    def second_click(self) -> Iterator[None]:
        """Wait at the end of this block until another click has found the first one at work."""
        now = value(self.beside, "SELECT clock_timestamp()")
        yield
        self._until(lambda: value(self.beside, LOOKED, self._name, now) > 0, "the second click")

    @property
    def _name(self) -> str:
        return self.database.info.dbname

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        wait_until(condition, seconds=SECONDS, what=what)


def value(session: psycopg.Connection[Any], query: str, *parameters: object) -> Any:
    """Return what a query for one value finds."""
    row = session.execute(query, parameters).fetchone()
    assert row is not None
    return row[0]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with ExitStack() as stack:
        yield or_skip(lambda: stack.enter_context(chromium()))


@pytest.fixture(scope="session")
def shops() -> Iterator[Callable[[str], Shop]]:
    """`shops(server)`: the shop under it, started the first time and left for the others."""
    with ExitStack() as stack:
        yield cache(lambda server: stack.enter_context(served(server)))


@pytest.fixture
def shop(request: pytest.FixtureRequest, shops: Callable[[str], Shop]) -> Shop:
    """The shop under gunicorn, or uvicorn."""
    return shops(request.param)


@contextmanager
def served(server_name: str) -> Iterator[Shop]:
    """Serve the shop on a database of its own; the demo's settings serve the style sheets, too."""
    server_url = os.environ[URL_VARIABLE]
    name = f"shop_{server_name}_{os.environ.get('PYTEST_XDIST_WORKER', 'main')}"
    url = urlsplit(server_url)._replace(path=f"/{name}").geturl()
    env = {
        "DJANGO_SETTINGS_MODULE": "example_project.demo.settings",
        "EXAMPLE_SECRET_KEY": "tests",
        "EXAMPLE_DATABASE_URL": url,
    }
    with psycopg.connect(server_url, autocommit=True) as postgres:
        postgres.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        try:
            command = [sys.executable, "-c", FILL]
            subprocess.run(command, cwd=ROOT, env={**os.environ, **env}, check=True)
            with (
                SERVERS[server_name](env=env) as server,
                psycopg.connect(url, autocommit=True) as database,
            ):
                yield Shop(server.url, database, postgres)
        finally:
            drop = sql.SQL("DROP DATABASE {} WITH (FORCE)")
            postgres.execute(drop.format(sql.Identifier(name)))


@pytest.fixture
def context(
    browser: Browser, shop: Shop, request: pytest.FixtureRequest
) -> Iterator[BrowserContext]:
    """A visitor without cookies; an indirect parameter says whether JavaScript is on."""
    context = browser.new_context(
        base_url=shop.url, java_script_enabled=getattr(request, "param", True)
    )
    context.set_default_timeout(SECONDS * 1000)
    yield context
    context.close()


@pytest.fixture
def page(context: BrowserContext) -> Page:
    return context.new_page()
