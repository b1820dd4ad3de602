"""The contract on the DynamoDB store: dynalite, which is atomic, and moto, which knows ALL_OLD."""

from __future__ import annotations

import os
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from uuid import UUID, uuid4

import pytest
from botocore.exceptions import ConnectionClosedError
from django.conf import settings
from django.test import override_settings

from django_idempotency.stores.dynamodb import DynamoDBStore
from django_idempotency.stores.dynamodb.client import Client
from django_idempotency.stores.dynamodb.schema import definition
from django_idempotency.testing import FakeClock, StoreContract
from tests.integration.contracts import second_server
from tests.services.dynamodb import ENVIRONMENT

URL_OF_CHILDREN = "IDEMPOTENCY_CONTRACT_DYNAMODB_URL"
TABLE_OF_CHILDREN = "IDEMPOTENCY_CONTRACT_DYNAMODB_TABLE"
STORAGES = {
    **settings.STORAGES,
    "overflow": {"BACKEND": "django.core.files.storage.InMemoryStorage"},
}


@pytest.fixture(scope="class")
def server(request, servers):
    """A table on the server, for all rules of a class; and a storage for large results."""
    cls = request.cls
    with ExitStack() as stack:
        stack.enter_context(override_settings(STORAGES=STORAGES))
        environment = stack.enter_context(pytest.MonkeyPatch.context())
        for name, value in ENVIRONMENT.items():
            environment.setenv(name, value)
        cls.url = servers(cls.kind).table.client.ready().meta.endpoint_url
        cls.client, cls.table = None, f"contract-{uuid4()}"
        table = cls().make_store().table
        table.client.send("create_table", definition(table.name, table.names))
        yield
        table.client.send("delete_table", {"TableName": table.name})


@pytest.mark.usefixtures("server")
class DynamoDBContract(StoreContract):
    backend = "django_idempotency.stores.dynamodb.DynamoDBStore"
    newest_first = False
    precision = timedelta(seconds=1)  # of an expiry, which TTL wants in whole seconds
    # Each process imports boto3 and builds a client, which takes seconds on a busy machine.
    patience = 60
    racers, process_keys, threads, thread_keys = 3, 20, 4, 10
    url = table = ""
    client = None

    def make_store(self):
        store = DynamoDBStore(
            table_name=self.table or os.environ[TABLE_OF_CHILDREN],
            endpoint_url=self.url or os.environ[URL_OF_CHILDREN],
            clock_skew=0,
            timeout=30,
            overflow_storage="overflow",
            **self.options,
        )
        # Building boto3's client takes longer than most tests.
        type(self).client = store.table.client = self.client or store.table.client
        return store

    def child_environment(self):
        names = {URL_OF_CHILDREN: self.url, TABLE_OF_CHILDREN: self.table}
        return {**super().child_environment(), **ENVIRONMENT, **names}

    def corrupt(self, store, record_id):
        parameters = {
            "TableName": self.table,
            "Key": store.names.key(record_id),
            "UpdateExpression": "REMOVE #status",
            "ExpressionAttributeNames": {"#status": store.names.of["status"]},
        }
        store.table.client.send("update_item", parameters)

    def forget(self, store, record_id):
        parameters = {"TableName": self.table, "Key": store.names.key(record_id)}
        store.table.client.send("delete_item", parameters)

    @contextmanager
    def lose_answer(self, store):
        """Of the first update and of the first put: an expired record is claimed by both."""
        native = store.table.client.ready()
        lost = set()

        def lose(event_name, request, **kwargs):
            if event_name not in lost:
                lost.add(event_name)
                native._endpoint.http_session.send(request)
                raise ConnectionClosedError(endpoint_url=request.url)

        names = [f"before-send.dynamodb.{name}" for name in ("UpdateItem", "PutItem")]
        for name in names:
            native.meta.events.register(name, lose)
        try:
            yield
            assert lost, "no answer was lost"
        finally:
            for name in names:
                native.meta.events.unregister(name, lose)

    @contextmanager
    def between_read_and_write(self, store, callback):
        """Before a put or a delete, or an update; but that of an expired record only reads it."""
        client, called = store.table.client, False

        def send(operation, parameters):
            nonlocal called
            reads = operation not in ("update_item", "put_item", "delete_item") or (
                operation == "update_item" and expired(UUID(parameters["Key"][store.names.id]["S"]))
            )
            if not called and not reads:
                called = True
                callback()
            return Client.send(client, operation, parameters)

        def expired(record_id):
            item = store.table.item(record_id)
            return item is not None and store.names.record(item, store._now(), store._skew).expired

        client.send = send
        try:
            yield
            assert called, "nothing was written"
        finally:
            del client.send


class TestDynalite(DynamoDBContract):
    """With a GetItem where a condition failed, and swept; or the server that a variable names."""

    kind = "dynalite"
    options = {"clock": FakeClock(), "ttl": False}


class MotoContract(DynamoDBContract):
    """With ALL_OLD, in a table with a sort key and names of its own."""

    kind = "moto"
    native_expiry = True
    # One request at a time because of a lock of ours: its races say nothing of a real server's.
    racers, process_keys, threads, thread_keys = 2, 5, 4, 5
    options = {
        "clock": FakeClock(),
        "partition_key": "PK",
        "sort_key": "SK",
        "attributes": {"status": "state", "expiry": "ttl", "key": "name"},
    }


@second_server
class TestMoto(MotoContract):
    pass
