"""The example project and the tests' views, each under gunicorn and under uvicorn."""

from __future__ import annotations

import json
import os
import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from tests.acceptance.contract_http.served import SERVERS, Served, runs_under
from tests.app.contract import DIRECTORY_VARIABLE
from tests.services import DATABASES_VARIABLE, MISSING_VARIABLE
from tests.services.gunicorn import Gunicorn
from tests.services.postgres import URL_VARIABLE
from tests.services.processes import spawn
from tests.services.servers import Server
from tests.services.uvicorn import Uvicorn

MIGRATE_SECONDS = 120


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
    suffix = secrets.token_hex(4)
    names = {"shop": f"contract_shop_{suffix}", "work": f"contract_work_{suffix}"}
    urls = {name: _url_of(database) for name, database in names.items()}
    env = {
        "shop": {
            "DJANGO_SETTINGS_MODULE": "example_project.settings",
            "EXAMPLE_DATABASE_URL": urls["shop"],
            "EXAMPLE_ATOMIC_REQUESTS": "1",
            "EXAMPLE_SECRET_KEY": "contract",
        },
        "work": {
            "DJANGO_SETTINGS_MODULE": "tests.app.contract.settings",
            DATABASES_VARIABLE: json.dumps({"default": names["work"]}),
            DIRECTORY_VARIABLE: str(contract_directory),
        },
    }
    with psycopg.connect(os.environ[URL_VARIABLE], autocommit=True) as server:
        for database in names.values():
            server.execute(f"CREATE DATABASE {database}")
        try:
            _fill(env, contract_directory)
            shop = {**env["shop"], "EXAMPLE_DEBUG": "0"}
            yield {
                "shop": Project("example_project", shop, urls["shop"]),
                "work": Project("tests.services", env["work"], urls["work"]),
            }
        finally:
            for database in names.values():
                server.execute(f"DROP DATABASE {database} WITH (FORCE)")


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


def _url_of(database: str) -> str:
    return urlsplit(os.environ[URL_VARIABLE])._replace(path=f"/{database}").geturl()


def _fill(env: dict[str, dict[str, str]], directory: Path) -> None:
    """Migrate both databases at the same time, and add the shop's users and accounts."""
    manage = [sys.executable, "-m", "example_project.manage"]
    django = [sys.executable, "-m", "django"]
    logs = [directory / "shop.log", directory / "work.log"]
    # With settings that pass the system checks, which want Django's own AuthenticationMiddleware.
    tests = {**env["work"], "DJANGO_SETTINGS_MODULE": "tests.settings"}
    migrate = ["migrate", "--verbosity", "0"]
    with logs[0].open("wb") as shop, logs[1].open("wb") as work:
        migrations = [
            spawn([*manage, *migrate], env=env["shop"], output=shop),
            spawn([*django, *migrate, "--run-syncdb"], env=tests, output=work),
        ]
        codes = [process.wait(MIGRATE_SECONDS) for process in migrations]
        codes.append(spawn([*manage, "seed"], env=env["shop"], output=shop).wait(MIGRATE_SECONDS))
    assert codes == [0, 0, 0], [log.read_text() for log in logs]
