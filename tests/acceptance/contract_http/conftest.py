"""The example project and the tests' views, each under gunicorn and under uvicorn."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from tests.acceptance.contract_http.served import SERVERS, Served, runs_under
from tests.acceptance.databases import FILL_SHOP, commands, own_database
from tests.app.contract import DIRECTORY_VARIABLE
from tests.services import DATABASES_VARIABLE, MISSING_VARIABLE
from tests.services.gunicorn import Gunicorn
from tests.services.servers import Server
from tests.services.uvicorn import Uvicorn


@dataclass(frozen=True)
class Project:
    """A Django project with a database of its own, ready to be served."""

    #: Has the modules `wsgi` and `asgi`.
    package: str
    env: dict[str, str]
    database_url: str

    def start(self, name: str) -> Server:
        """Start a server; nothing of a long request is refused by the server itself."""
        if name == "uvicorn":
            return Uvicorn(f"{self.package}.asgi:application", env=self.env).start()
        options = ["--limit-request-line", "0"]
        # gunicorn's threads live on, and so may their connections.
        env = {**self.env, "IDEMPOTENCY_TEST_CONN_MAX_AGE": "60"}
        wsgi = f"{self.package}.wsgi:application"
        return Gunicorn(wsgi, env=env, workers=2, options=options).start()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each rule of a contract against each server that can show it."""
    if "server_name" in metafunc.fixturenames:
        names: list[str] = list(SERVERS)
        if metafunc.cls is not None and issubclass(metafunc.cls, Served):
            names = runs_under(metafunc.cls, metafunc.function.__name__)
        metafunc.parametrize("server_name", names, scope="session")


@pytest.fixture(scope="session")
def contract_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("contract")


@pytest.fixture(scope="session")
def projects(contract_directory: Path) -> Iterator[dict[str, Project]]:
    """Both projects, by name; their databases are created, migrated and dropped again."""
    if missing := os.environ.get(MISSING_VARIABLE):
        pytest.skip(missing)
    with own_database() as shop_url, own_database() as work_url:
        shop = {
            "DJANGO_SETTINGS_MODULE": "example_project.settings",
            "EXAMPLE_DATABASE_URL": shop_url,
            "EXAMPLE_ATOMIC_REQUESTS": "1",
            "EXAMPLE_SECRET_KEY": "contract",
        }
        work = {
            "DJANGO_SETTINGS_MODULE": "tests.app.contract.settings",
            DATABASES_VARIABLE: json.dumps({"default": urlsplit(work_url).path[1:]}),
            DIRECTORY_VARIABLE: str(contract_directory),
        }
        commands(FILL_SHOP, shop)
        # With settings that pass the system checks, which want AuthenticationMiddleware.
        migrate = 'call("migrate", verbosity=0, run_syncdb=True)'
        commands(migrate, {**work, "DJANGO_SETTINGS_MODULE": "tests.settings"})
        yield {
            "shop": Project("example_project", {**shop, "EXAMPLE_DEBUG": "0"}, shop_url),
            "work": Project("tests.services", work, work_url),
        }


@pytest.fixture(scope="session")
def serve(projects: dict[str, Project]) -> Iterator[Callable[[str, str], Server]]:
    """`serve(project, server)`: start it the first time, and leave it running for the others."""
    running: dict[tuple[str, str], Server] = {}
    with ExitStack() as stack:

        def start(project: str, name: str) -> Server:
            if (project, name) not in running:
                running[project, name] = server = projects[project].start(name)
                stack.callback(server.close)
            return running[project, name]

        yield start


@pytest.fixture(scope="session")
def shop_database(projects: dict[str, Project]) -> Iterator[psycopg.Connection]:
    with psycopg.connect(projects["shop"].database_url, autocommit=True) as session:
        yield session


@pytest.fixture(scope="session")
def other_session(projects: dict[str, Project]) -> Iterator[psycopg.Connection]:
    with psycopg.connect(projects["shop"].database_url) as session:
        yield session
