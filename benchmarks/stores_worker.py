"""The worker of a store: claim + complete, and the claim of a duplicate; ours or by hand."""

from __future__ import annotations

import json
import os
import sqlite3
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from benchmarks.worker import first_and_replay, race

RESULT = b"x" * 200
FINGERPRINT = b"f" * 32
RETENTION = timedelta(hours=24)

Pair = tuple[Callable[[uuid.UUID], Any], Callable[[uuid.UUID], Any]]


def prepare(variant: str) -> dict[str, Callable[..., Any]]:
    """Make the store, and return the commands."""
    kind, _, name = variant.partition(" ")
    run, duplicate = (OURS if kind == "ours" else FLOORS)[name]()

    def race_on_one_key(times: int) -> list[int]:
        """Race 8 threads on one key, so often; how many of them got to complete it each time."""
        owners = []
        for key in [uuid.uuid4() for _ in range(times)]:
            won: list[uuid.UUID] = []
            race(lambda key=key, won=won: (run(key), won.append(key)))  # type: ignore[misc]
            owners.append(len(won))
        return owners

    commands = first_and_replay(
        lambda key: run(uuid.UUID(key)), lambda key: duplicate(uuid.UUID(key))
    )
    return {**commands, "race": race_on_one_key}


# Ours.


def _ours(alias: str) -> Pair:
    import django
    from django.conf import settings

    redis = {
        "BACKEND": "django_idempotency.stores.redis.RedisStore",
        "OPTIONS": {"url": os.environ["BENCHMARK_REDIS"]},
    }
    memory = {"BACKEND": "django_idempotency.stores.memory.MemoryStore"}
    settings.configure(
        DATABASES={"default": json.loads(os.environ["BENCHMARK_DATABASE"])},
        INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "django_idempotency"],
        IDEMPOTENCY={"default": {}, "redis": redis, "memory": memory},
        SECRET_KEY="of a benchmark",  # noqa: S106
        USE_TZ=True,
    )
    django.setup()
    if alias == "default":
        from django.core.management import call_command

        call_command("migrate", verbosity=0)
    from django_idempotency.claims import ClaimRequest
    from django_idempotency.conf import store_for
    from django_idempotency.leases import Lease

    store = store_for(alias)

    def request(key: uuid.UUID) -> ClaimRequest:
        return ClaimRequest(key, "scope", str(key), fingerprints=(FINGERPRINT,))

    def run(key: uuid.UUID) -> None:
        lease = store.claim(request(key))
        assert isinstance(lease, Lease)
        store.complete(lease, RESULT, retention=RETENTION)

    def duplicate(key: uuid.UUID) -> None:
        record = store.claim(request(key))
        assert not isinstance(record, Lease)
        assert record.result == RESULT

    return run, duplicate


OURS: dict[str, Callable[[], Pair]] = {
    "PostgreSQL": lambda: _ours("default"),
    "SQLite": lambda: _ours("default"),
    "Redis": lambda: _ours("redis"),
    "memory": lambda: _ours("memory"),
}

# By hand: the same columns, the bare driver, statements prepared.

TABLE = """
CREATE TABLE floor (
    id {uuid} PRIMARY KEY, scope text, key text, operation text, fingerprint {bytes}, state text,
    epoch bigint, token {uuid}, lease_until {time}, created_at {time}, updated_at {time},
    expires_at {time}, attempts int, result {bytes}, error text
)
"""


def _postgresql() -> Pair:
    import psycopg

    database = json.loads(os.environ["BENCHMARK_DATABASE"])
    session = psycopg.connect(
        host=database["HOST"],
        port=database["PORT"],
        dbname=database["NAME"],
        user=database["USER"],
        autocommit=True,
        prepare_threshold=0,
    )
    session.execute(TABLE.format(uuid="uuid", bytes="bytea", time="timestamptz"))
    session.execute("CREATE INDEX ON floor (expires_at)")
    cursor = session.cursor(binary=True)
    claim = """
    INSERT INTO floor VALUES (%b, 'scope', %s, '', %b, 'IN_PROGRESS',
        extract(epoch FROM clock_timestamp()) * 1000000, %b,
        clock_timestamp() + interval '60 s', clock_timestamp(), clock_timestamp(),
        clock_timestamp() + interval '24 h', 1, NULL, '')
    ON CONFLICT (id) DO NOTHING RETURNING epoch
    """
    complete = """
    UPDATE floor SET state = 'COMPLETED', result = %b, lease_until = NULL,
           updated_at = clock_timestamp()
     WHERE id = %b AND token = %b AND epoch = %b AND state = 'IN_PROGRESS'
    """
    look = "SELECT * FROM floor WHERE id = %b"

    def run(key: uuid.UUID) -> None:
        token = uuid.uuid4()
        epoch = cursor.execute(claim, (key, str(key), FINGERPRINT, token)).fetchone()
        assert epoch is not None
        cursor.execute(complete, (RESULT, key, token, epoch[0]))
        assert cursor.rowcount == 1

    def duplicate(key: uuid.UUID) -> None:
        cursor.execute(claim, (key, str(key), FINGERPRINT, uuid.uuid4()))
        assert cursor.fetchone() is None
        found = cursor.execute(look, (key,)).fetchone()
        assert found is not None

    return run, duplicate


def _sqlite() -> Pair:
    database = json.loads(os.environ["BENCHMARK_DATABASE"])
    session = sqlite3.connect(database["NAME"], isolation_level=None)
    session.execute(TABLE.format(uuid="char(32)", bytes="blob", time="text"))
    session.execute("CREATE INDEX floor_expiry ON floor (expires_at)")
    claim = """
    INSERT INTO floor VALUES (?, 'scope', ?, '', ?, 'IN_PROGRESS', unixepoch() * 1000000, ?,
        datetime('now', '+60 seconds'), datetime('now'), datetime('now'),
        datetime('now', '+24 hours'), 1, NULL, '')
    ON CONFLICT (id) DO NOTHING RETURNING epoch
    """
    complete = """
    UPDATE floor SET state = 'COMPLETED', result = ?, lease_until = NULL,
           updated_at = datetime('now')
     WHERE id = ? AND token = ? AND epoch = ? AND state = 'IN_PROGRESS'
    """
    look = "SELECT * FROM floor WHERE id = ?"

    def run(key: uuid.UUID) -> None:
        token = uuid.uuid4().hex
        row = (key.hex, str(key), FINGERPRINT, token)
        [(epoch,)] = session.execute(claim, row).fetchall()
        assert session.execute(complete, (RESULT, key.hex, token, epoch)).rowcount == 1

    def duplicate(key: uuid.UUID) -> None:
        row = (key.hex, str(key), FINGERPRINT, uuid.uuid4().hex)
        assert session.execute(claim, row).fetchall() == []
        assert session.execute(look, (key.hex,)).fetchone() is not None

    return run, duplicate


CLAIM_SCRIPT = """
local found = redis.call('HGETALL', KEYS[1])
if #found > 0 then return found end
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
redis.call('HSET', KEYS[1], 'scope', 'scope', 'key', ARGV[1], 'fingerprint', ARGV[2],
    'token', ARGV[3], 'state', 'IN_PROGRESS', 'epoch', now, 'created', now,
    'lease', now + 60000000)
redis.call('PEXPIRE', KEYS[1], 86400000)
return now
"""
COMPLETE_SCRIPT = """
local found = redis.call('HMGET', KEYS[1], 'token', 'epoch', 'state')
if found[1] ~= ARGV[1] or found[2] ~= ARGV[2] or found[3] ~= 'IN_PROGRESS' then return 0 end
redis.call('HSET', KEYS[1], 'state', 'COMPLETED', 'result', ARGV[3])
redis.call('PEXPIRE', KEYS[1], 86400000)
return 1
"""


def _redis() -> Pair:
    import redis

    client = redis.Redis.from_url(os.environ["BENCHMARK_REDIS"])
    claim = client.register_script(CLAIM_SCRIPT)
    complete = client.register_script(COMPLETE_SCRIPT)

    def run(key: uuid.UUID) -> None:
        token = uuid.uuid4().bytes
        epoch = claim([key.bytes], [str(key), FINGERPRINT, token])
        assert complete([key.bytes], [token, epoch, RESULT]) == 1

    def duplicate(key: uuid.UUID) -> None:
        assert isinstance(claim([key.bytes], [str(key), FINGERPRINT, b"t"]), list)

    return run, duplicate


FLOORS = {"PostgreSQL": _postgresql, "SQLite": _sqlite, "Redis": _redis}
