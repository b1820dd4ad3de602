"""
Records in DynamoDB: dynalite, a server of the demo's own, or the service itself.

The service where boto3 finds credentials and a Region; the table is the demo's, and deleted again.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import boto3

from django_idempotency.exceptions import StoreError
from django_idempotency.stores.dynamodb import DynamoDBStore
from django_idempotency.stores.dynamodb.schema import create
from example_project.demo import children
from example_project.demo.stores import NoSuchStore, Started
from tests.services import MissingService
from tests.services.dynamodb import ENVIRONMENT, FOLDER, build, find_node

START_SECONDS = 10.0
TRIES = 5


@contextmanager
def started(directory: Path) -> Iterator[Started]:
    """Create a table, on a server of our own unless there are credentials and a Region."""
    session = boto3.session.Session()
    if session.region_name is not None and session.get_credentials() is not None:
        table = f"idempotency-demo-{uuid.uuid4().hex[:8]}"
        print(f"==> creating the table {table} in {session.region_name}, until the demo ends")
        store = DynamoDBStore(table_name=table, timeout=10)
        create(store, lambda step: print(f"==> {step}", flush=True))
        try:
            name = f"DynamoDB in {session.region_name}"
            yield Started({"EXAMPLE_DYNAMODB_TABLE": table}, name)
        finally:
            store.table.client.send("delete_table", {"TableName": table})
        return
    with dynalite(directory) as url:
        environ = {**ENVIRONMENT, "EXAMPLE_DYNAMODB_URL": url, "EXAMPLE_CLOCK_SKEW": "0"}
        yield Started({**environ, "EXAMPLE_DYNAMODB_TABLE": "idempotency"}, "dynalite")


@contextmanager
def dynalite(directory: Path) -> Iterator[str]:
    """Run dynalite on a free port, with a table."""
    try:
        node = find_node()
        build(node)
    except MissingService as error:
        raise NoSuchStore(str(error)) from error
    for _ in range(TRIES):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        command: list[str | Path] = [node, FOLDER / "server.js", "--port", str(port)]
        process = children.start(command, directory=directory, log=directory / "dynalite.log")
        try:
            url = f"http://127.0.0.1:{port}"
            deadline = time.monotonic() + START_SECONDS
            while process.poll() is None and time.monotonic() < deadline:
                if has_table(url):
                    yield url
                    return
                time.sleep(0.02)
        finally:
            children.end(process)
    raise NoSuchStore(f"dynalite did not start:\n{(directory / 'dynalite.log').read_text()}")


def has_table(url: str) -> bool:
    """Create the table, unless nobody answers yet."""
    with environment(ENVIRONMENT):
        store = DynamoDBStore(table_name="idempotency", endpoint_url=url, timeout=1)
        try:
            create(store)
        except StoreError:
            return False
    return True


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables for a while."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
