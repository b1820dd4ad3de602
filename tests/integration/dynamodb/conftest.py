"""Servers, stores and requests that the tests of the DynamoDB store begin with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
from botocore.loaders import create_loader
from django.conf import settings as django_settings

from django_idempotency.stores.dynamodb import DynamoDBStore
from django_idempotency.stores.dynamodb.items import Names
from django_idempotency.stores.dynamodb.schema import definition
from tests.integration.dynamodb.wire import Wire
from tests.services import MissingService, may_be_missing
from tests.services.dynamodb import ENVIRONMENT, Dynalite, LockedMoto
from tests.services.proxy import Proxy

BACKEND = "django_idempotency.stores.dynamodb.DynamoDBStore"
LOADER = create_loader()

#: `options(**more)`: OPTIONS of a store on a table of its own.
Options = Callable[..., dict[str, Any]]
#: `make_store(**options)`: a store on a table of its own.
MakeStore = Callable[..., DynamoDBStore]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No account but that of the tests' own servers is looked at."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    # Each client would read the descriptions of the service again: longer than most tests take.
    monkeypatch.setattr("botocore.session.create_loader", lambda *arguments: LOADER)


@pytest.fixture(scope="session")
def urls() -> Iterator[Callable[[str], str]]:
    """The URL of a server by its kind: "dynalite" or "moto"."""
    kinds = {"dynalite": Dynalite, "moto": LockedMoto}
    with ExitStack() as stack:
        started: dict[str, str] = {}

        def url(kind: str) -> str:
            if kind not in started:
                try:
                    server = kinds[kind]()
                    started[kind] = stack.enter_context(server).url
                except MissingService as error:
                    if may_be_missing():
                        pytest.skip(str(error))
                    raise
            return started[kind]

        yield url


@pytest.fixture
def kind() -> str:
    """The server of a test: moto, which tells a failed condition's item and has transactions."""
    return "moto"


@pytest.fixture
def url(urls: Callable[[str], str], kind: str) -> str:
    return urls(kind)


@pytest.fixture(scope="session")
def tables(urls: Callable[[str], str]) -> Callable[[str], DynamoDBStore]:
    """A store by the kind of its server, to create tables with."""
    stores: dict[str, DynamoDBStore] = {}

    def store(kind: str) -> DynamoDBStore:
        if kind not in stores:
            stores[kind] = DynamoDBStore(table_name="none", endpoint_url=urls(kind), timeout=30)
        return stores[kind]

    return store


@pytest.fixture
def options(url: str, kind: str, tables: Callable[[str], DynamoDBStore]) -> Options:
    def make(**more: Any) -> dict[str, Any]:
        given = {"table_name": f"test-{uuid4()}", "endpoint_url": url, "timeout": 10, **more}
        partition, sort = given.get("partition_key", "idempotencyKey"), given.get("sort_key")
        names = Names(partition, sort, "", {})
        tables(kind).table.client.send("create_table", definition(given["table_name"], names))
        return given

    return make


@pytest.fixture
def make_store(options: Options) -> MakeStore:
    return lambda **more: DynamoDBStore(**options(**more))


@pytest.fixture
def store(make_store: MakeStore) -> DynamoDBStore:
    return make_store()


@pytest.fixture
def wire(store: DynamoDBStore) -> Wire:
    """What `store` sends."""
    return Wire(store)


@pytest.fixture
def proxied(url: str, proxy: Callable[[str, int], Proxy]) -> tuple[Proxy, str]:
    """A proxy in front of the server, and the URL that leads through it."""
    parts = urlsplit(url)
    started = proxy(parts.hostname or "", parts.port or 0)
    return started, f"http://{started.host}:{started.port}"


@pytest.fixture
def storage(settings: Any) -> Any:
    """A storage in memory, under the alias "overflow"."""
    from django.core.files.storage import storages

    backend = {"BACKEND": "django.core.files.storage.InMemoryStorage"}
    settings.STORAGES = {**django_settings.STORAGES, "overflow": backend}
    return storages["overflow"]
