"""Servers, stores and requests that the tests of the DynamoDB store begin with."""

from __future__ import annotations

import functools
from contextlib import ExitStack
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
from botocore.loaders import create_loader
from django.conf import settings as django_settings
from django.core.files.storage import storages

from django_idempotency.stores.dynamodb import DynamoDBStore
from django_idempotency.stores.dynamodb.items import Names
from django_idempotency.stores.dynamodb.schema import definition
from django_idempotency.testing import FakeClock
from tests.claims import OTHER_FINGERPRINT, asked
from tests.integration.dynamodb.wire import Wire
from tests.services import or_skip
from tests.services.dynamodb import ENVIRONMENT, dynamodb_url, moto_url

BACKEND = "django_idempotency.stores.dynamodb.DynamoDBStore"
LOADER = create_loader()
#: A request under another fingerprint.
OTHERS = asked(fingerprints=(OTHER_FINGERPRINT,))


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """No account but that of the tests' own servers is looked at."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    # Each client would read the descriptions of the service again: longer than most tests take.
    monkeypatch.setattr("botocore.session.create_loader", lambda *arguments: LOADER)


@pytest.fixture(scope="session")
def servers():
    """`servers(kind)`: a store, to create tables with, on a "dynalite" or a "moto"."""
    kinds = {"dynalite": dynamodb_url, "moto": moto_url}
    with ExitStack() as stack:

        @functools.cache
        def start(kind):
            url = or_skip(lambda: stack.enter_context(kinds[kind]()))
            return DynamoDBStore(table_name="none", endpoint_url=url, timeout=30)

        yield start


@pytest.fixture
def kind():
    """The server of a test: moto, which tells a failed condition's item and has transactions."""
    return "moto"


@pytest.fixture
def url(servers, kind):
    return servers(kind).table.client.ready().meta.endpoint_url


@pytest.fixture
def options(url, servers, kind):
    """`options(**more)`: OPTIONS of a store on a table of its own."""

    def make(**more):
        given = {"table_name": f"test-{uuid4()}", "endpoint_url": url, "timeout": 30, **more}
        partition, sort = given.get("partition_key", "idempotencyKey"), given.get("sort_key")
        table = definition(given["table_name"], Names(partition, sort, "idempotency", {}))
        servers(kind).table.client.send("create_table", table)
        return given

    return make


@pytest.fixture
def make_store(options):
    """`make_store(**options)`: a store on a table of its own."""
    return lambda **more: DynamoDBStore(**options(**more))


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def store(make_store):
    return make_store()


@pytest.fixture
def wire(store):
    """What `store` sends."""
    return Wire(store)


@pytest.fixture
def link(url, proxy):
    """A proxy in front of the server."""
    parts = urlsplit(url)
    return proxy(parts.hostname, parts.port)


@pytest.fixture
def link_url(link):
    return f"http://{link.host}:{link.port}"


@pytest.fixture
def storage(settings):
    """A storage in memory, under the alias "overflow"."""
    backend = {"BACKEND": "django.core.files.storage.InMemoryStorage"}
    settings.STORAGES = {**django_settings.STORAGES, "overflow": backend}
    return storages["overflow"]


def once(store, method, meanwhile):
    """Let `meanwhile` happen before the next call of a method of the store's table, once."""
    original = getattr(store.table, method)

    def called(*args, **kwargs):
        delattr(store.table, method)
        meanwhile()
        return original(*args, **kwargs)

    setattr(store.table, method, called)
