"""The shop under gunicorn and under uvicorn, with a database of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pytest

from tests.acceptance.databases import FILL_SHOP, commands, own_database
from tests.services.gunicorn import Gunicorn
from tests.services.uvicorn import Uvicorn


@dataclass(frozen=True)
class Shop:
    """The shop's database, and the environment of a server."""

    database: str
    env: Mapping[str, str]

    def gunicorn(self) -> Gunicorn:
        options = ["--preload"]  # a new worker is there at once
        return Gunicorn(
            "example_project.wsgi:application", env=self.env, workers=2, options=options
        )

    def uvicorn(self) -> Uvicorn:
        return Uvicorn("example_project.asgi:application", env=self.env)


@pytest.fixture(scope="session")
def shop() -> Iterator[Shop]:
    with own_database() as url:
        settings = {
            "DJANGO_SETTINGS_MODULE": "tests.acceptance.clients.settings",
            "EXAMPLE_DATABASE_URL": url,
            # A payment that died with its worker is taken over after a second.
            "EXAMPLE_LEASE": "1",
        }
        commands(FILL_SHOP, settings)
        yield Shop(url, settings)


@pytest.fixture(scope="session")
def gunicorn(shop: Shop) -> Iterator[Gunicorn]:
    with shop.gunicorn() as server:
        yield server
