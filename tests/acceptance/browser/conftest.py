"""Fixtures for tests with a browser: the shop under a real server, and pages in Chromium."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from functools import cache

import psycopg
import pytest
from playwright.sync_api import expect

from tests.acceptance.databases import FILL_SHOP, commands, own_database
from tests.services import or_skip
from tests.services.chromium import chromium
from tests.services.gunicorn import Gunicorn
from tests.services.processes import wait_until
from tests.services.uvicorn import Uvicorn

SECONDS = 60
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


class Shop:
    """The example project: where it is served, and sessions on its database and beside it."""

    def __init__(self, url, database, beside):
        self.url, self.database, self.beside = url, database, beside

    @property
    def orders(self):
        return value(self.database, "SELECT count(*) FROM shop_order")

    @property
    def payments(self):
        return value(self.database, "SELECT count(*) FROM shop_payment")

    @contextmanager
    def closed(self):
        """Let no order be placed in this block: who tries waits for its end."""
        with self.database.transaction():
            self.database.execute("LOCK TABLE shop_order IN SHARE MODE")
            yield

    @contextmanager
    def first_click(self):
        """Wait at the end of this block until the order of a click is about to be placed."""
        yield
        self._until("the first click's order", WAITING)

    @contextmanager
    def second_click(self):
        """Wait at the end of this block until another click has found the first one at work."""
        now = value(self.beside, "SELECT clock_timestamp()")
        yield
        self._until("the second click", LOOKED, now)

    def _until(self, what, query, *parameters):
        name = self.database.info.dbname
        found = lambda: value(self.beside, query, name, *parameters) > 0  # noqa: E731
        wait_until(found, seconds=SECONDS, what=what)


def value(session, query, *parameters):
    return session.execute(query, parameters).fetchone()[0]


@pytest.fixture(scope="session")
def browser():
    with ExitStack() as stack:
        yield or_skip(lambda: stack.enter_context(chromium()))


@pytest.fixture(scope="session")
def database():
    """The environment of the shop, on a filled database of its own, and a session beside it."""
    with own_database() as url, psycopg.connect(url, autocommit=True) as beside:
        # The demo's settings serve the style sheets, too.
        env = {"DJANGO_SETTINGS_MODULE": "example_project.demo.settings"}
        env |= {"EXAMPLE_SECRET_KEY": "tests", "EXAMPLE_DATABASE_URL": url}
        commands(FILL_SHOP, env)
        yield env, beside


@pytest.fixture(scope="session")
def shops(database):
    """`shops(server)`: the shop under it, started the first time and left for the others."""
    env, beside = database
    with ExitStack() as stack:

        @cache
        def serve(server):
            start = {
                "gunicorn": lambda: Gunicorn(env=env, workers=2),
                "uvicorn": lambda: Uvicorn("example_project.asgi:application", env=env),
            }
            url = stack.enter_context(start[server]()).url
            session = psycopg.connect(env["EXAMPLE_DATABASE_URL"], autocommit=True)
            return Shop(url, stack.enter_context(session), beside)

        yield serve


@pytest.fixture
def shop(request, shops):
    """The shop under gunicorn, unless a parameter says uvicorn."""
    return shops(getattr(request, "param", "gunicorn"))


@pytest.fixture
def context(browser, shop, request):
    """A visitor without cookies; an indirect parameter says whether JavaScript is on."""
    scripts = getattr(request, "param", True)
    context = browser.new_context(base_url=shop.url, java_script_enabled=scripts)
    context.set_default_timeout(SECONDS * 1000)
    yield context
    context.close()


@pytest.fixture
def page(context):
    return context.new_page()


@pytest.fixture
def log_in(page):
    """`log_in(path, name)`: open a page that asks who it is, and the page that it leads to."""

    def submit(path, name):
        page.goto(path)
        page.get_by_label("Username").fill(name)
        page.get_by_label("Password").fill(f"{name}-demo")
        page.get_by_role("button", name="Log in").click()
        page.wait_for_url(lambda url: "login" not in url)

    return submit
