"""The servers that the other tests rely on: what they have, and what they have not."""

from __future__ import annotations

import json
import re
import socket
import struct
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
from botocore.exceptions import ClientError

from django_idempotency.stores.dynamodb import DynamoDBStore
from tests.integration.dynamodb.claims import record_id
from tests.integration.dynamodb.conftest import Options
from tests.services import MissingService
from tests.services.dynamodb import FOLDER, NODE_VARIABLE, LockedMoto, find_node
from tests.services.processes import children


def test_lock_file_names_no_host() -> None:
    text = (FOLDER / "package-lock.json").read_text()

    assert re.findall(r"\w+://", text) == []
    packages = json.loads(text)["packages"]
    assert all("integrity" in package for name, package in packages.items() if name)


def test_what_is_installed_stays_out_of_the_repository() -> None:
    assert "node_modules/" in (FOLDER / ".gitignore").read_text().split()


def test_node_that_is_named_must_be_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NODE_VARIABLE, "/bin/true")

    with pytest.raises(MissingService, match=NODE_VARIABLE):
        find_node()


@pytest.mark.processes
def test_server_ends_with_its_block_and_frees_its_port() -> None:
    with LockedMoto() as server:
        pid, port = server.pid, server.port
        assert server.process is not None
    assert children(pid) == []
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)


class TestMoto:
    def test_counts_of_threads_are_not_lost(
        self, store: DynamoDBStore, run_in_threads: Any
    ) -> None:
        """Without its lock moto loses about one in 60 of these."""
        native = store.table.client.native

        def add(index: int) -> None:
            for _ in range(25):
                native.update_item(
                    TableName=store.table.name,
                    Key={"idempotencyKey": {"S": "counter"}},
                    UpdateExpression="ADD n :one",
                    ExpressionAttributeValues={":one": {"N": "1"}},
                )

        run_in_threads(8, add)

        item = native.get_item(
            TableName=store.table.name, Key={"idempotencyKey": {"S": "counter"}}
        )["Item"]
        assert item["n"] == {"N": "200"}


class TestWhatAFailedConditionBrings:
    def refused(self, store: DynamoDBStore) -> dict[str, Any]:
        native, key = store.table.client.native, {"idempotencyKey": {"S": str(uuid4())}}
        native.put_item(TableName=store.table.name, Item=key)
        with pytest.raises(ClientError) as raised:
            native.put_item(
                TableName=store.table.name,
                Item=key,
                ConditionExpression="attribute_not_exists(idempotencyKey)",
                ReturnValuesOnConditionCheckFailure="ALL_OLD",
            )
        response: dict[str, Any] = raised.value.response
        return response

    def test_moto_gives_the_item(self, store: DynamoDBStore) -> None:
        assert "Item" in self.refused(store)

    class TestDynalite:
        @pytest.fixture
        def kind(self) -> str:
            return "dynalite"

        def test_dynalite_does_not(self, options: Options) -> None:
            """So the store's own read is tested there."""
            store = DynamoDBStore(**options())

            assert "Item" not in TestWhatAFailedConditionBrings().refused(store)


class TestDynalite:
    @pytest.fixture
    def kind(self) -> str:
        return "dynalite"

    def test_outlives_a_client_that_goes_away_in_the_middle_of_a_request(
        self, url: str, store: DynamoDBStore
    ) -> None:
        parts = urlsplit(url)
        with socket.create_connection((parts.hostname, parts.port), timeout=5) as client:
            client.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{")
            # A reset, not an orderly end.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

        assert store.get(record_id()) is None
