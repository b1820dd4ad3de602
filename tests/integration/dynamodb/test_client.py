"""The client behind the store: built late, once per process, and without boto3 not at all."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from typing import Any

import pytest

from django_idempotency.exceptions import StoreError
from django_idempotency.records import Lease
from django_idempotency.stores.dynamodb import DynamoDBStore
from django_idempotency.stores.dynamodb_client import Client
from tests.integration.dynamodb.claims import asked, found, won
from tests.integration.dynamodb.conftest import Options
from tests.services.processes import ROOT


@pytest.fixture
def client(url: str) -> Client:
    return Client(region_name=None, endpoint_url=url, timeout=10)


def test_is_built_when_it_is_first_used(client: Client) -> None:
    assert client._built is None

    client.send("list_tables", {})

    assert client._built is not None


def test_threads_that_need_it_at_the_same_moment_share_one(
    client: Client, run_in_threads: Any
) -> None:
    natives = run_in_threads(8, lambda index: client.native)

    assert len({id(native) for native in natives}) == 1


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_forked_child_builds_its_own_and_leaves_the_parents_connections(
    options: Options,
) -> None:
    """With another thread of the parent in the middle of building one."""
    store = DynamoDBStore(**options())
    won(store.claim(asked("parent's")))
    parents = store.table.client.native
    store.table.client._mutex.acquire()
    try:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                signal.alarm(30)
                won(store.claim(asked("child's")))
                code = 0 if store.table.client.native is not parents else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        store.table.client._mutex.release()

    assert found(store, "child's").live
    assert found(store, "parent's").live


def test_its_threads_do_not_wait_for_a_connection(options: Options, run_in_threads: Any) -> None:
    store = DynamoDBStore(**options())
    together = threading.Barrier(16)
    original = store.table.client.native.meta.events

    def meet(**kwargs: Any) -> None:
        together.wait(20)

    original.register("before-send.dynamodb.UpdateItem", meet)

    claimed = run_in_threads(16, lambda index: store.claim(asked(str(index))))

    assert all(isinstance(lease, Lease) for lease in claimed)


def test_its_coroutines_do_not_wait_for_one_another(options: Options) -> None:
    store = DynamoDBStore(**options())
    together = threading.Barrier(4)

    def meet(**kwargs: Any) -> None:
        together.wait(20)

    store.table.client.native.meta.events.register("before-send.dynamodb.UpdateItem", meet)

    async def main() -> list[Any]:
        return await asyncio.gather(*(store.aclaim(asked(str(number))) for number in range(4)))

    assert all(isinstance(lease, Lease) for lease in asyncio.run(main()))


def test_region_that_is_not_configured_is_a_store_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_DEFAULT_REGION")

    with pytest.raises(StoreError, match="NoRegionError"):
        DynamoDBStore(table_name="t").claim(asked())


def test_credentials_that_are_not_there_are_a_store_error(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)

    with pytest.raises(StoreError, match="NoCredentialsError"):
        DynamoDBStore(table_name="t", endpoint_url=url).claim(asked())


def test_R79_error_says_what_failed_and_quotes_nothing(url: str) -> None:
    store = DynamoDBStore(table_name="nonesuch", endpoint_url=url)

    with pytest.raises(StoreError) as raised:
        store.claim(asked("secret-key"))

    message = "The store could not send update_item to DynamoDB: ResourceNotFoundException."
    assert str(raised.value) == message


@pytest.mark.processes
def test_without_boto3_the_error_names_the_extra() -> None:
    code = """
import sys
sys.modules["boto3"] = None
from django_idempotency.stores.dynamodb import DynamoDBStore
try:
    DynamoDBStore(table_name="t")
except ImportError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert 'pip install "django-idempotency[dynamodb]"' in done.stdout, done.stderr
