"""uvicorn and gunicorn on the views of this package, and their clients."""

from __future__ import annotations

import pytest

from tests.acceptance.processes.clients import answer_on, opened
from tests.services.databases import environment_for_children
from tests.services.gunicorn import Gunicorn
from tests.services.uvicorn import Uvicorn


class Peer:
    """One client of a server, who sends each request on a connection of its own."""

    def __init__(self, server):
        self.server = server

    def open(self, path, key, body, *, headers=None, **more):
        fields = {**(headers or {}), **({} if key is None else {"Idempotency-Key": key})}
        return opened(self.server, path, body, **fields, **more)

    def send(self, *arguments, **more):
        return answer_on(self.open(*arguments, **more))


def environment():
    return {**environment_for_children(), "IDEMPOTENCY_TEST_URLCONF": "tests.acceptance.asgi.urls"}


@pytest.fixture(scope="session")
def uvicorn(django_db_setup):
    with Uvicorn("tests.services.asgi:application", env=environment()) as server:
        yield server


@pytest.fixture(scope="session")
def gunicorn(django_db_setup):
    app, one = "tests.services.wsgi:application", {"workers": 1, "threads": 1}
    with Gunicorn(app, env=environment(), **one) as server:
        yield server


@pytest.fixture
def peer(uvicorn, transactional_db):
    return Peer(uvicorn)


@pytest.fixture
def wsgi_peer(gunicorn, transactional_db):
    return Peer(gunicorn)
