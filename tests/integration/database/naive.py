"""
The statements that one would write first, each with the mistake that it stands for.

A mistake takes the place of a statement of the store, or of the code around one. It is told by what
it leaves out (the conditions of a WHERE clause, by a word in them), so the statement may be worded
anew: what then changes nothing is found out by no test, and `test_naive` says so.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from contextlib import nullcontext

import pytest
from django.db import connection

from django_idempotency.engine import Engine
from django_idempotency.stores.database import DatabaseStore
from django_idempotency.stores.database import store as database
from django_idempotency.stores.database.dialect import Dialect
from django_idempotency.stores.database.postgresql import PostgreSQL
from django_idempotency.stores.database.statements import DIALECTS

Mistake = Callable[[pytest.MonkeyPatch], None]


def _split(text: str, word: str) -> list[str]:
    """`text`, cut at each `word` that stands in no parentheses."""
    depth, start, parts = 0, 0, []
    for found in re.finditer(rf"[()]|\b{word}\b", text):
        if found[0] in "()":
            depth += 1 if found[0] == "(" else -1
        elif depth == 0:
            parts.append(text[start : found.start()])
            start = found.end()
    return [*parts, text[start:]]


def without_conditions(statement: str, *words: str, instead: str = "1 = 1") -> str:
    """`statement` without the conditions of its WHERE clause that have one of these words."""
    statement = re.sub(r"--.*", "", statement)
    *before, condition = _split(statement, "WHERE")
    end = min(len(_split(condition, word)[0]) for word in ("RETURNING", "ON CONFLICT"))
    kept = [
        part
        for part in _split(condition[:end], "AND")
        if not any(re.search(rf"\b{word}\b", part) for word in words)
    ]
    return f"{'WHERE'.join(before)} WHERE {' AND '.join([*kept, instead])} {condition[end:]}"


def _vendor() -> type[Dialect]:
    return type(DIALECTS[connection.vendor])


def forget(name: str, *words: str, instead: str = "1 = 1") -> Mistake:
    """Leave conditions out of a statement's WHERE clause."""

    def make(monkeypatch: pytest.MonkeyPatch) -> None:
        naive = without_conditions(getattr(_vendor(), name), *words, instead=instead)
        monkeypatch.setattr(_vendor(), name, naive)

    return make


def reword(name: str, *changes: tuple[str, str]) -> Mistake:
    """Put something else for what each pattern finds in a statement."""

    def make(monkeypatch: pytest.MonkeyPatch) -> None:
        naive = getattr(_vendor(), name)
        for pattern, instead in changes:
            naive = re.sub(pattern, instead, naive)
        monkeypatch.setattr(_vendor(), name, naive)

    return make


def say(name: str, statement: str) -> Mistake:
    """Put another statement in its place."""
    return lambda monkeypatch: monkeypatch.setattr(_vendor(), name, statement)


def _no_second_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the statement saw that took the lock counts."""
    execute = DatabaseStore._execute
    seen = threading.local()

    def execute_once(store: DatabaseStore, name: str, parameters: object) -> object:
        if name == "LOOK" and (row := getattr(seen, "row", None)) is not None:
            seen.row = None
            return [row]
        rows = execute(store, name, parameters)  # type: ignore[arg-type]
        if name == "SINGLE_LOCK":
            *columns, locked, _ = rows[0]
            seen.row = columns if locked else None
        return rows

    monkeypatch.setattr(DatabaseStore, "_execute", execute_once)


def _no_insert_after_update(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was seen is updated, or nothing is."""
    execute = DatabaseStore._execute
    seen = threading.local()

    def execute_one(store: DatabaseStore, name: str, parameters: object) -> object:
        updated, seen.updated = getattr(seen, "updated", False), name == "SINGLE_UPDATE"
        if name == "SINGLE_INSERT" and updated:
            return []
        return execute(store, name, parameters)  # type: ignore[arg-type]

    monkeypatch.setattr(DatabaseStore, "_execute", execute_one)


def _one_lock_for_all_schemas(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CLAIM", "RECLAIM", "SINGLE_LOCK"):
        reword(name, (r"'idempotency_record'::regclass::oid::bigint", "0"))(monkeypatch)


def put(target: object, name: str, value: object) -> Mistake:
    """Put something else in the place of code."""
    return lambda monkeypatch: monkeypatch.setattr(target, name, value)


_LOCK = "pg_try_advisory_xact_lock"
_WAITING = (" SKIP LOCKED", "")

#: On every database that the store is for.
EVERYWHERE: dict[str, Mistake] = {
    "reclaim by token": forget("RECLAIM", "RELEASED"),
    "reclaim by state": forget(
        "RECLAIM", "RELEASED", "seen_token", "seen_epoch", instead="state <> 'COMPLETED'"
    ),
    "reclaim of what has expired, owner or not": reword(
        "RECLAIM", (r"\s+AND NOT \((record\.)?state = 'IN_PROGRESS'[^)]*('now'\)|\(6\)|now)\)", "")
    ),
    "reclaim that leaves the error": reword("RECLAIM", (r",\s+error = ''", "")),
    "reclaim that leaves no fingerprint": reword(
        "RECLAIM", (r"OR (record\.)?fingerprint IS NULL\s+THEN", "THEN")
    ),
    "complete without the fence": forget("COMPLETE", "epoch", "token", "state"),
    "complete by the epoch": forget("COMPLETE", "token"),
    "complete by the token": forget("COMPLETE", "epoch"),
    "complete in any state": forget("COMPLETE", "state"),
    "fail without the fence": forget("FAIL", "epoch", "token", "state"),
    "fail in any state": forget("FAIL", "state"),
    "release without the fence": forget("RELEASE", "epoch", "token", "state"),
    "release in any state": forget("RELEASE", "state"),
}

_RENEW = """
UPDATE idempotency_record AS record
   SET lease_until = clock_timestamp() + %%(duration)s::interval
  FROM unnest(%%(ids)s::uuid[], %%(epochs)s::bigint[], %%(tokens)s::uuid[])
       AS lease (id, epoch, token)
 WHERE record.id = lease.id AND %s
RETURNING lease.token
"""

POSTGRESQL: dict[str, Mistake] = {
    "one try": put(database, "TRIES", 1),
    "one round": put(PostgreSQL, "ROUNDS", 1),
    "claim without the lock": forget("CLAIM", _LOCK),
    "claim that lets the index find the row": forget("CLAIM", "EXISTS"),
    "reclaim without the lock": forget("RECLAIM", _LOCK),
    "reclaim that waits": reword("RECLAIM", _WAITING),
    "renew without the fence": say("RENEW", _RENEW % "record.state = 'IN_PROGRESS'"),
    "renew in any state": say(
        "RENEW", _RENEW % "record.epoch = lease.epoch AND record.token = lease.token"
    ),
    "renew that waits": reword("RENEW", _WAITING),
    "resolve that waits": reword("RESOLVE", _WAITING),
    "resolve without the lock": forget("RESOLVE", _LOCK),
    "sweep that waits": reword("SWEEP", _WAITING),
    "sweep by ids": say(
        "SWEEP",
        """
DELETE FROM idempotency_record
 WHERE id IN (SELECT id FROM idempotency_record
               WHERE expires_at <= now()
                 AND NOT (state = 'IN_PROGRESS' AND lease_until > now())
               LIMIT %(limit)s)
""",
    ),
    "sweep by expiry alone": say(
        "SWEEP",
        """
DELETE FROM idempotency_record
 WHERE id IN (SELECT id FROM idempotency_record WHERE expires_at <= now() LIMIT %(limit)s)
""",
    ),
    "sweep that looks anew for each record": say(
        "SWEEP",
        """
DELETE FROM idempotency_record AS record
 WHERE record.expires_at <= now()
   AND NOT (record.state = 'IN_PROGRESS' AND record.lease_until > now())
   AND record.id IN (SELECT expired.id FROM idempotency_record AS expired
                      WHERE expired.expires_at <= now() AND record.expires_at <= now()
                        AND NOT (expired.state = 'IN_PROGRESS' AND expired.lease_until > now())
                      ORDER BY expired.expires_at
                      LIMIT %(limit)s
                        FOR UPDATE SKIP LOCKED)
""",
    ),
    "sweep that joins what it limits": say(
        "SWEEP",
        """
DELETE FROM idempotency_record AS record
 USING (SELECT id FROM idempotency_record
         WHERE expires_at <= now()
           AND NOT (state = 'IN_PROGRESS' AND lease_until > now())
         ORDER BY expires_at
         LIMIT %(limit)s
           FOR UPDATE SKIP LOCKED) AS expired
 WHERE record.id = expired.id
""",
    ),
    "single asks for the lock alone": say(
        "SINGLE_LOCK",
        f"""
SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
       clock_timestamp() AT TIME ZONE 'UTC',
       {_LOCK}(hashtextextended(%(id)s::uuid::text, 'idempotency_record'::regclass::oid::bigint)),
       current_setting('transaction_isolation')
""",
    ),
    "single always takes the lock": reword(
        "SINGLE_LOCK", (r"WHEN record\.state = 'COMPLETED'", "WHEN false")
    ),
    "single completes by token": forget("SINGLE_UPDATE", "seen_state", "RELEASED"),
    "single completes by token and state": forget("SINGLE_UPDATE", "RELEASED"),
    "single completes by an insert alone": say("SINGLE_UPDATE", "SELECT WHERE false"),
    "a lock on the record id alone": _one_lock_for_all_schemas,
    "single without a second look": _no_second_look,
    "single without an insert after the update": _no_insert_after_update,
    "single whose own session passes the lock": put(
        database.Block, "holds", lambda block, record_id: False
    ),
    "single without a savepoint": put(Engine, "_work", lambda engine, attempt: nullcontext()),
}

SQLITE: dict[str, Mistake] = {
    "renew in any state": forget("RENEW", "state"),
    "sweep by expiry alone": say(
        "SWEEP",
        """
DELETE FROM idempotency_record
 WHERE id IN (SELECT id FROM idempotency_record
               WHERE expires_at <= strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now') LIMIT %(limit)s)
""",
    ),
    "work that does not begin with a write": put(DatabaseStore, "fence", lambda store, lease: None),
}

_AT_ONCE = (r"SET STATEMENT innodb_lock_wait_timeout = 0 FOR", "")

MARIADB: dict[str, Mistake] = {
    "reclaim that waits": reword("RECLAIM", _AT_ONCE),
    "renew that waits": reword("RENEW", _AT_ONCE),
    "resolve that waits": reword("RESOLVE", _AT_ONCE),
    "sweep that waits": reword("SWEEPABLE", _WAITING),
    "sweep by expiry alone": reword("SWEEPABLE", (r"AND NOT \(.*\)", "")),
}

#: By the vendor of the database.
MISTAKES = {
    "postgresql": {**EVERYWHERE, **POSTGRESQL},
    "sqlite": {**EVERYWHERE, **SQLITE},
    "mysql": {**EVERYWHERE, **MARIADB},
}
