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
from django_idempotency.leases import Lease
from django_idempotency.stores.dynamodb import DynamoDBStore
from django_idempotency.stores.dynamodb.client import Client
from tests.integration.dynamodb.claims import asked, found, won
from tests.integration.dynamodb.conftest import Options
from tests.services.processes import ROOT


def test_threads_that_need_it_at_the_same_moment_share_one(url: str, run_in_threads: Any) -> None:
    client = Client(region_name=None, endpoint_url=url, timeout=10)
    assert client._built is None

    natives = run_in_threads(8, lambda index: client.native)

    assert len({id(native) for native in natives}) == 1


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_forked_child_builds_its_own_and_leaves_the_parents_connections(
    store: DynamoDBStore,
) -> None:
    """With another thread of the parent in the middle of building one."""
    won(store.claim(asked("parent's")))
    parents = store.table.client.native
    with store.table.client._mutex:
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

    assert found(store, "child's").live
    assert found(store, "parent's").live


@pytest.mark.parametrize("callers", ["threads", "coroutines"])
def test_calls_of_a_process_do_not_wait_for_one_another(
    options: Options, run_in_threads: Any, callers: str
) -> None:
    """All claims are on the wire at the same moment, or none of them arrives."""
    store = DynamoDBStore(**options())
    number = 16 if callers == "threads" else 4
    together = threading.Barrier(number)

    def meet(**kwargs: Any) -> None:
        together.wait(20)

    store.table.client.native.meta.events.register("before-send.dynamodb.UpdateItem", meet)

    async def main() -> list[Any]:
        return await asyncio.gather(*(store.aclaim(asked(str(n))) for n in range(number)))

    if callers == "threads":
        claimed = run_in_threads(number, lambda index: store.claim(asked(str(index))))
    else:
        claimed = asyncio.run(main())

    assert all(isinstance(lease, Lease) for lease in claimed)


@pytest.mark.parametrize(
    ("lacks", "error"),
    [
        (["AWS_DEFAULT_REGION"], "NoRegionError"),
        (["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"], "NoCredentialsError"),
    ],
)
def test_what_is_not_configured_is_a_store_error(
    monkeypatch: pytest.MonkeyPatch, lacks: list[str], error: str
) -> None:
    for name in lacks:
        monkeypatch.delenv(name)

    with pytest.raises(StoreError, match=error):
        DynamoDBStore(table_name="t").claim(asked())


def test_R79_error_says_what_failed_and_quotes_nothing(url: str) -> None:
    store = DynamoDBStore(table_name="nonesuch", endpoint_url=url)

    with pytest.raises(StoreError) as raised:
        store.claim(asked("secret-key"))

    message = "The store could not send update_item to DynamoDB: ResourceNotFoundException."
    assert str(raised.value) == message


WITHOUT_BOTO3 = """
import sys
sys.modules["boto3"] = None
from django_idempotency.stores.dynamodb import DynamoDBStore
try:
    DynamoDBStore(table_name="t")
except ImportError as error:
    print(error)
"""


@pytest.mark.processes
def test_without_boto3_the_error_names_the_extra() -> None:
    command = [sys.executable, "-W", "error", "-c", WITHOUT_BOTO3]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)

    assert 'pip install "django-idempotency[dynamodb]"' in done.stdout, done.stderr
