"""
The statements that one would write first, each with the mistake that it stands for.

A mistake takes the place of a statement of the store, or of the code around one. `test_naive` shows
which test finds it out, and that the store does its work with it while nobody interferes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest

from django_idempotency.engine import Engine
from django_idempotency.stores import database, sql_postgresql, sql_sqlite
from django_idempotency.stores.database import DatabaseStore

#: The name of a statement and what stands in its place, or what changes the code around it.
Mistake = tuple[str, str] | Callable[[pytest.MonkeyPatch], None]

MODULES = {"postgresql": sql_postgresql, "sqlite": sql_sqlite}


def without(statement: str, *parts: str) -> str:
    """`statement` without these parts, each of which must be there."""
    for part in parts:
        assert part in statement, f"not there: {part!r}"
        statement = statement.replace(part, "")
    return statement


def between(statement: str, start: str, end: str) -> str:
    """The part of `statement` from the first `start` to the next `end`."""
    begins = statement.index(start)
    return statement[begins : statement.index(end, begins)]


def instead(statement: str, old: str, new: str) -> str:
    """`statement` with `new` for `old`, which must be there."""
    assert old in statement, f"not there: {old!r}"
    return statement.replace(old, new)


def _no_second_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the statement saw that took the lock counts."""
    execute = DatabaseStore._execute
    seen = threading.local()

    def execute_once(store: Any, name: str, parameters: Any) -> Any:
        if name == "LOOK" and (row := getattr(seen, "row", None)) is not None:
            seen.row = None
            return [row]
        rows = execute(store, name, parameters)
        if name == "SINGLE_LOCK":
            *columns, locked, _ = rows[0]
            seen.row = columns if locked else None
        return rows

    monkeypatch.setattr(DatabaseStore, "_execute", execute_once)


def _no_insert_after_update(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was seen is updated, or nothing is."""
    execute = DatabaseStore._execute
    seen = threading.local()

    def execute_one(store: Any, name: str, parameters: Any) -> Any:
        updated, seen.updated = getattr(seen, "updated", False), name == "SINGLE_UPDATE"
        if name == "SINGLE_INSERT" and updated:
            return []
        return execute(store, name, parameters)

    monkeypatch.setattr(DatabaseStore, "_execute", execute_one)


def _reentrant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database.Block, "holds", lambda block, record_id: False)


def _no_savepoint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Engine, "_work", lambda engine, attempt: nullcontext())


def _one_try(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "TRIES", 1)


def _one_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql_postgresql, "ROUNDS", 1)


def _one_lock_for_all_schemas(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CLAIM", "RECLAIM", "SINGLE_LOCK"):
        statement = getattr(sql_postgresql, name)
        monkeypatch.setattr(
            sql_postgresql,
            name,
            instead(statement, "'idempotency_record'::regclass::oid::bigint", "0"),
        )


def _no_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DatabaseStore, "fence", lambda store, lease: None)


# The statements.

_PG_CLAIM, _PG_RECLAIM = sql_postgresql.CLAIM, sql_postgresql.RECLAIM
_PG_LOCK = between(_PG_RECLAIM, "pg_try_advisory_xact_lock", "\nRETURNING")
_PG_SINGLE_LOCK, _PG_SINGLE_UPDATE = sql_postgresql.SINGLE_LOCK, sql_postgresql.SINGLE_UPDATE
_PG_EPOCH = "   AND record.epoch = %(epoch)s\n"
_PG_TOKEN = "   AND record.token = %(token)s::uuid\n"
_PG_STATE = "   AND record.state = 'IN_PROGRESS'\n"
_PG_BY_EPOCH_AND_TOKEN = without(
    _PG_RECLAIM, between(_PG_RECLAIM, "   AND (-- expired", "   AND pg_try_advisory")
)

POSTGRESQL: dict[str, Mistake] = {
    "one try": _one_try,
    "one round": _one_round,
    "claim without the lock": ("CLAIM", instead(_PG_CLAIM, _PG_LOCK, "true")),
    "claim that lets the index find the row": (
        "CLAIM",
        instead(_PG_CLAIM, between(_PG_CLAIM, "NOT EXISTS", "\n"), "true"),
    ),
    "reclaim without the lock": ("RECLAIM", instead(_PG_RECLAIM, _PG_LOCK, "true")),
    "reclaim that waits": ("RECLAIM", without(_PG_RECLAIM, " SKIP LOCKED")),
    "reclaim by epoch and token": ("RECLAIM", _PG_BY_EPOCH_AND_TOKEN),
    "reclaim by state": (
        "RECLAIM",
        instead(
            without(
                _PG_BY_EPOCH_AND_TOKEN,
                "   AND record.epoch = %(seen_epoch)s\n",
                "   AND record.token = %(seen_token)s::uuid\n",
            ),
            "WHERE record.id = free.id",
            "WHERE record.id = free.id AND record.state <> 'COMPLETED'",
        ),
    ),
    "reclaim that leaves what it did not read": (
        "RECLAIM",
        without(_PG_RECLAIM, ",\n       error = ''", "OR record.fingerprint IS NULL\n"),
    ),
    "complete without the fence": (
        "COMPLETE",
        without(sql_postgresql.COMPLETE, _PG_EPOCH, _PG_TOKEN, _PG_STATE),
    ),
    "complete in any state": ("COMPLETE", without(sql_postgresql.COMPLETE, _PG_STATE)),
    "fail without the fence": (
        "FAIL",
        without(sql_postgresql.FAIL, _PG_EPOCH, _PG_TOKEN, _PG_STATE),
    ),
    "fail in any state": ("FAIL", without(sql_postgresql.FAIL, _PG_STATE)),
    "release without the fence": (
        "RELEASE",
        without(sql_postgresql.RELEASE, _PG_EPOCH, _PG_TOKEN, _PG_STATE),
    ),
    "release in any state": ("RELEASE", without(sql_postgresql.RELEASE, _PG_STATE)),
    "complete by the epoch": ("COMPLETE", without(sql_postgresql.COMPLETE, _PG_TOKEN)),
    "complete by the token": ("COMPLETE", without(sql_postgresql.COMPLETE, _PG_EPOCH)),
    "renew without the fence": (
        "RENEW",
        """
UPDATE idempotency_record AS record
   SET lease_until = clock_timestamp() + %(duration)s::interval
  FROM unnest(%(ids)s::uuid[], %(epochs)s::bigint[], %(tokens)s::uuid[])
       AS lease (id, epoch, token)
 WHERE record.id = lease.id AND record.state = 'IN_PROGRESS'
RETURNING lease.token
""",
    ),
    "renew in any state": (
        "RENEW",
        """
UPDATE idempotency_record AS record
   SET lease_until = clock_timestamp() + %(duration)s::interval
  FROM unnest(%(ids)s::uuid[], %(epochs)s::bigint[], %(tokens)s::uuid[])
       AS lease (id, epoch, token)
 WHERE record.id = lease.id AND record.epoch = lease.epoch AND record.token = lease.token
RETURNING lease.token
""",
    ),
    "renew that waits": ("RENEW", without(sql_postgresql.RENEW, " SKIP LOCKED")),
    "sweep by ids": (
        "SWEEP",
        """
DELETE FROM idempotency_record
 WHERE id IN (SELECT id FROM idempotency_record
               WHERE expires_at <= now()
                 AND NOT (state = 'IN_PROGRESS' AND lease_until > now())
               LIMIT %(limit)s)
""",
    ),
    "sweep by expiry alone": (
        "SWEEP",
        """
DELETE FROM idempotency_record
 WHERE id IN (SELECT id FROM idempotency_record WHERE expires_at <= now() LIMIT %(limit)s)
""",
    ),
    "sweep that looks anew for each record": (
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
    "sweep that joins what it limits": (
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
   AND record.expires_at <= now()
   AND NOT (record.state = 'IN_PROGRESS' AND record.lease_until > now())
""",
    ),
    "single asks for the lock alone": (
        "SINGLE_LOCK",
        f"""
SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
       clock_timestamp() AT TIME ZONE 'UTC', {_PG_LOCK}, current_setting('transaction_isolation')
""",
    ),
    "single always takes the lock": (
        "SINGLE_LOCK",
        instead(_PG_SINGLE_LOCK, "WHEN record.state = 'COMPLETED'", "WHEN false"),
    ),
    "single completes by epoch and token": (
        "SINGLE_UPDATE",
        without(
            _PG_SINGLE_UPDATE,
            between(_PG_SINGLE_UPDATE, "   AND record.state = %(seen_state)s", "RETURNING"),
        ),
    ),
    "single completes by epoch, token and state": (
        "SINGLE_UPDATE",
        without(_PG_SINGLE_UPDATE, between(_PG_SINGLE_UPDATE, "   AND (-- expired", "RETURNING")),
    ),
    "single completes by an insert alone": ("SINGLE_UPDATE", "SELECT WHERE false"),
    "a lock on the record id alone": _one_lock_for_all_schemas,
    "single without a second look": _no_second_look,
    "single without an insert after the update": _no_insert_after_update,
    "single whose own session passes the lock": _reentrant,
    "single without a savepoint": _no_savepoint,
}

_LITE_RECLAIM, _LITE_RENEW = sql_sqlite.RECLAIM, sql_sqlite.RENEW
_LITE_FENCE = " AND epoch = %(epoch)s AND token = %(token)s AND state = 'IN_PROGRESS'"
_LITE_STATE = " AND state = 'IN_PROGRESS'"
_LITE_BY_EPOCH_AND_TOKEN = without(
    _LITE_RECLAIM, between(_LITE_RECLAIM, "   AND (-- expired", "RETURNING")
)

# Its writers queue, so there are fewer mistakes to make.
SQLITE: dict[str, Mistake] = {
    "reclaim by epoch and token": ("RECLAIM", _LITE_BY_EPOCH_AND_TOKEN),
    "reclaim by state": (
        "RECLAIM",
        instead(
            without(
                _LITE_BY_EPOCH_AND_TOKEN,
                "   AND epoch = %(seen_epoch)s\n",
                "   AND token = %(seen_token)s\n",
            ),
            "WHERE id = %(id)s",
            "WHERE id = %(id)s AND state <> 'COMPLETED'",
        ),
    ),
    "reclaim that leaves what it did not read": (
        "RECLAIM",
        without(_LITE_RECLAIM, ",\n       error = ''", "OR fingerprint IS NULL\n"),
    ),
    "complete without the fence": ("COMPLETE", without(sql_sqlite.COMPLETE, _LITE_FENCE)),
    "complete in any state": ("COMPLETE", without(sql_sqlite.COMPLETE, _LITE_STATE)),
    "complete by the epoch": (
        "COMPLETE",
        without(sql_sqlite.COMPLETE, " AND token = %(token)s"),
    ),
    "complete by the token": (
        "COMPLETE",
        without(sql_sqlite.COMPLETE, " AND epoch = %(epoch)s"),
    ),
    "fail without the fence": ("FAIL", without(sql_sqlite.FAIL, _LITE_FENCE)),
    "fail in any state": ("FAIL", without(sql_sqlite.FAIL, _LITE_STATE)),
    "release without the fence": ("RELEASE", without(sql_sqlite.RELEASE, _LITE_FENCE)),
    "release in any state": ("RELEASE", without(sql_sqlite.RELEASE, _LITE_STATE)),
    "renew without the fence": (
        "RENEW",
        """
UPDATE idempotency_record
   SET lease_until = strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now', %(duration)s)
 WHERE state = 'IN_PROGRESS'
   AND id IN (SELECT json_extract(value, '$[0]') FROM json_each(%(leases)s))
RETURNING (SELECT json_extract(value, '$[2]') FROM json_each(%(leases)s)
            WHERE json_extract(value, '$[0]') = idempotency_record.id)
""",
    ),
    "renew in any state": (
        "RENEW",
        instead(_LITE_RENEW, "WHERE state = 'IN_PROGRESS'\n   AND EXISTS", "WHERE EXISTS"),
    ),
    "sweep by expiry alone": (
        "SWEEP",
        """
DELETE FROM idempotency_record
 WHERE id IN (SELECT id FROM idempotency_record
               WHERE expires_at <= strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now') LIMIT %(limit)s)
""",
    ),
    "work that does not begin with a write": _no_fence,
}


def make(mistake: str, vendor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the store make a mistake for as long as `monkeypatch` lasts."""
    made = {"postgresql": POSTGRESQL, "sqlite": SQLITE}[vendor][mistake]
    if callable(made):
        made(monkeypatch)
    else:
        monkeypatch.setattr(MODULES[vendor], *made)
