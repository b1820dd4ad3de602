"""
B12: what records take in each store, and in a table that lives: claimed, completed and swept.

Two seconds stand for an hour there: a retention of 48 seconds, a sweep each 2 seconds, and an
autovacuum that looks each second. The size of the table is that after four retentions.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import boto3
import redis

from benchmarks.environments import OURS
from benchmarks.figures import save, table
from benchmarks.servers import SOCKETS, durable_postgres, session, written
from benchmarks.workers import Worker
from tests.services.dynamodb import ENVIRONMENT, Dynalite
from tests.services.postgres import PostgresServer
from tests.services.redis import RedisServer

SIZES = (0, 100, 700, 3000)
RECORDS = 5000
RETENTION = 48.0
#: What a project may set on the table.
STORAGE = {
    "default": "",
    "fillfactor 80": "fillfactor = 80",
    "vacuum at 2 %": "autovacuum_vacuum_scale_factor = 0.02",
}
#: Redis keeps a hash in one piece if none of its values is longer than this; 64 by default.
WHOLE = "2048"


def run(count: int) -> str:
    """Measure each store, save the figures, and return the tables."""
    with durable_postgres({"autovacuum_naptime": "1s"}) as postgres:
        at_rest = {"PostgreSQL": _postgresql(postgres)}
        lives = {
            f"{name}, {size} bytes": _lives(postgres, storage, size)
            for name, storage in STORAGE.items()
            for size in ((100, 700) if not storage else (700,))
        }
    at_rest |= {"Redis": _redis(), "DynamoDB": _dynamodb()}
    at_rest |= {"Redis, listpacks": _redis(hash_max_listpack_value=WHOLE)}
    save("sizing", {"at_rest": at_rest, "lives": lives})
    rest = [
        (store, size, *(found.get(name, "") for name in ("bytes", "index", "wal", "hot")))
        for store, sizes in at_rest.items()
        for size, found in sizes.items()
    ]
    heads = ("store", "result", "bytes a record beside it", "of them index", "WAL", "HOT %")
    alive = [(name, *found.values()) for name, found in lives.items()]
    columns = ("a table that lives", *next(iter(lives.values())))
    return "\n".join(
        (
            table(f"B12: {RECORDS} records at rest", heads, rest),
            table("B12: a table after four retentions", columns, alive),
        )
    )


@contextmanager
def _worker(store: str, env: Mapping[str, str]) -> Iterator[Worker]:
    database = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
    given = {"BENCHMARK_DATABASE": json.dumps(database), "BENCHMARK_REDIS": ""}
    given |= {"BENCHMARK_DYNAMODB": "", **env}
    with Worker("benchmarks.sizing_worker", store, OURS, given) as worker:
        yield worker


@contextmanager
def _table(postgres: PostgresServer, name: str, storage: str = "") -> Iterator[Any]:
    postgres.create_database(name)
    database = postgres.django_settings(name) | {"HOST": SOCKETS, "OPTIONS": {}}
    env = {"BENCHMARK_DATABASE": json.dumps(database)}
    with _worker("PostgreSQL", env) as worker, session(postgres, name) as watching:
        worker.ask("records", n=0, size=0)  # the table is there
        if storage:
            watching.execute(f"ALTER TABLE idempotency_record SET ({storage})")
        yield worker, watching


def _sizes(watching: Any) -> dict[str, float]:
    watching.execute("SELECT pg_stat_force_next_flush()")
    row = watching.execute(
        "SELECT pg_total_relation_size(relid), pg_indexes_size(relid), n_tup_upd, n_tup_hot_upd "
        "FROM pg_stat_user_tables WHERE relname = 'idempotency_record'"
    ).fetchone()
    return dict(zip(("total", "index", "updates", "hot"), map(float, row), strict=True))


def _postgresql(postgres: PostgresServer) -> dict[str, dict[str, float]]:
    found = {}
    for size in SIZES:
        with _table(postgres, f"rest{size}") as (worker, watching):
            began = written(watching)
            worker.ask("records", n=RECORDS, size=size)
            wal = written(watching) - began
            worker.__exit__(None, None, None)
            sizes = _sizes(watching)
            found[str(size)] = {
                "bytes": sizes["total"] / RECORDS - size,
                "index": sizes["index"] / RECORDS,
                "wal": wal / RECORDS,
                "hot": 100 * sizes["hot"] / sizes["updates"],
            }
    return found


def _lives(postgres: PostgresServer, storage: str, size: int) -> dict[str, float]:
    name = f"{storage.partition(' ')[0]}{size}"
    with _table(postgres, name, storage) as (worker, watching):
        times = {"seconds": 4 * RETENTION, "retention": RETENTION, "sweep": RETENTION / 24}
        kept = worker.ask("live", size=size, **times)
        worker.__exit__(None, None, None)
        sizes = _sizes(watching)
        live = kept["kept"] - kept["swept"]
        return {
            "records": live,
            "bytes beside its result": sizes["total"] / live - size,
            "of them index": sizes["index"] / live,
            "HOT %": 100 * sizes["hot"] / sizes["updates"],
        }


def _redis(**options: str) -> dict[str, dict[str, float]]:
    found = {}
    for size in SIZES:
        with RedisServer(**options) as server, redis.Redis.from_url(server.url) as client:
            with _worker("Redis", {"BENCHMARK_REDIS": server.url}) as worker:
                worker.ask("records", n=10, size=size)
                before = client.info("memory")["used_memory"]
                worker.ask("records", n=RECORDS, size=size)
                after = client.info("memory")["used_memory"]
            found[str(size)] = {"bytes": (after - before) / RECORDS - size}
    return found


def _dynamodb() -> dict[str, dict[str, float]]:
    found = {}
    with Dynalite() as server, ExitStack() as stack:
        env = {**ENVIRONMENT, "BENCHMARK_DYNAMODB": server.url}
        worker = stack.enter_context(_worker("DynamoDB", env))
        client = boto3.client(
            "dynamodb",
            endpoint_url=server.url,
            region_name="eu-west-1",
            aws_access_key_id="testing",
            aws_secret_access_key="testing",  # noqa: S106
        )
        for size in SIZES:
            [key] = worker.ask("records", n=1, size=size)
            items = client.scan(TableName="sizing", ConsistentRead=True)["Items"]
            [item] = [item for item in items if key in item["idempotencyKey"].values()]
            found[str(size)] = {"bytes": float(_bytes_of(item) - size)}
    return found


def _bytes_of(item: Mapping[str, Mapping[str, Any]]) -> int:
    """Return the bytes of an item, as AWS counts them: names and values."""
    total = 0
    for name, typed in item.items():
        [(kind, value)] = typed.items()
        digits = len(str(value).strip("0.-"))
        total += len(name) + (
            (digits + 1) // 2 + 1 if kind == "N" else 1 if kind == "NULL" else len(value)
        )
    return total
