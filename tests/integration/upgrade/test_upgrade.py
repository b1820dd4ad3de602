"""A table and records that the first build wrote answer the newest release as they did its own."""

from __future__ import annotations

import base64
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import boto3
import psycopg
import pytest

from tests.services.dynamodb import ENVIRONMENT, dynamodb_url
from tests.services.postgres import URL_VARIABLE, django_settings
from tests.services.processes import ROOT
from tests.services.redis import redis_url

HERE = Path(__file__).parent
STORES = "django_idempotency.stores."
NO_DATABASE = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}


@contextmanager
def sqlite(folder: Path) -> Iterator[tuple[Any, Any]]:
    """Yield DATABASE and STORE of a file with the old table."""
    name = str(folder / "old.sqlite3")
    connection = sqlite3.connect(name)
    connection.executescript((HERE / "sqlite.sql").read_text())
    connection.close()
    yield {**NO_DATABASE, "NAME": name}, {}


@contextmanager
def postgresql(folder: Path) -> Iterator[tuple[Any, Any]]:
    """Yield DATABASE and STORE of a database with the old table."""
    url, name = os.environ[URL_VARIABLE], f"old_{uuid4().hex[:8]}"
    with psycopg.connect(url, autocommit=True) as server:
        server.execute(f'CREATE DATABASE "{name}"')
        try:
            database = django_settings(url, name)
            with psycopg.connect(url, dbname=name) as connection:
                connection.execute((HERE / "postgresql.sql").read_text())
            yield database, {}
        finally:
            server.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


@contextmanager
def redis(folder: Path) -> Iterator[tuple[Any, Any]]:
    """Yield DATABASE and STORE of a server with the old hashes."""
    import redis

    with redis_url() as url, redis.Redis.from_url(url) as client:
        for key, (expires, row) in json.loads((HERE / "redis.json").read_text()).items():
            client.hset(key, mapping={name: text.encode("latin-1") for name, text in row.items()})
            client.pexpireat(key, expires)
        options = {"url": url, "prefix": "upgrade:"}
        yield NO_DATABASE, {"BACKEND": f"{STORES}redis.RedisStore", "OPTIONS": options}


@contextmanager
def dynamodb(folder: Path) -> Iterator[tuple[Any, Any]]:
    """Yield DATABASE and STORE of a table with the old items."""
    with dynamodb_url() as url:
        region = "eu-west-1"
        client = boto3.client("dynamodb", endpoint_url=url, region_name=region)
        client.create_table(
            TableName="upgrade",
            KeySchema=[{"AttributeName": "idempotencyKey", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "idempotencyKey", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
        )
        client.get_waiter("table_exists").wait(TableName="upgrade", WaiterConfig={"Delay": 1})
        for item in json.loads((HERE / "dynamodb.json").read_text()):
            for value in item.values():
                if "B" in value:
                    value["B"] = base64.b64decode(value["B"])
            client.put_item(TableName="upgrade", Item=item)
        options = {"table_name": "upgrade", "region_name": region, "endpoint_url": url}
        yield NO_DATABASE, {"BACKEND": f"{STORES}dynamodb.DynamoDBStore", "OPTIONS": options}


@pytest.mark.parametrize("written", [sqlite, postgresql, redis, dynamodb])
def test_I4_records_of_the_first_build_answer_the_newest(
    written: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    with written(tmp_path) as (database, store):
        for name, value in {"DATABASE": database, "STORE": store}.items():
            monkeypatch.setenv(name, json.dumps(value))
        monkeypatch.setenv("MIGRATE", "yes")
        monkeypatch.setenv("PYTHONPATH", str(ROOT))

        command = [sys.executable, "-W", "error", str(HERE / "project.py"), "again"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", "")
