"""The statements of the database store on SQLite (3.35 or newer), whole, one per operation."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from sqlite3 import sqlite_version, sqlite_version_info
from typing import Any
from uuid import UUID

from django_idempotency.exceptions import StoreError
from django_idempotency.leases import Lease
from django_idempotency.records import NAMED
from django_idempotency.stores.database.dialect import (
    Dialect,
    Execute,
    bounded,
    browsed,
    columns_of,
    held,
    listed,
    narrowed,
)

_OLDEST = (3, 35)
#: Instructions of SQLite between two looks at the clock.
_STEPS = 10_000

# Parts of statements: the columns that they read, and those that a claim names.
RECORD = columns_of("record")
SHOWN = browsed(RECORD).replace("record.expires_at", "CAST(record.expires_at AS TEXT)")
NAMES, GIVEN = listed(NAMED), listed(NAMED, "%({})s")
EACH_GIVEN = listed(NAMED, "{0} = %({0})s")


class SQLite(Dialect):
    """
    The statements of the database store on SQLite (3.35 or newer), whole, one per operation.

    SQLite has one writer at a time, and that is its lock: the first statement of each of our
    transactions is a write, so that a look before it cannot turn into ``database is locked``. The
    clock is the host's, read while the statement runs. Times are UTC text as Django writes it.
    """

    has_server = False
    looks_first = True
    writers_queue = True

    CLAIM = f"""
INSERT INTO idempotency_record (
       id, {NAMES}, fingerprint, state, epoch, token,
       lease_until, created_at, updated_at, expires_at, attempts, result, error, steps)
VALUES (%(id)s, {GIVEN}, %(fingerprint)s, 'IN_PROGRESS',
       CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000, %(token)s,
       strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now', %(lease)s),
       strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now'),
       strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now'),
       strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now', %(lifetime)s),
       1, NULL, '', NULL)
    ON CONFLICT (id) DO NOTHING
RETURNING epoch, lease_until, updated_at, 'read committed', NULL
"""

    # One row in any case: without a record all but the clock is NULL.
    LOOK = f"""
SELECT {RECORD},
       strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now'), NULL
  FROM (SELECT 1) AS one
  LEFT JOIN idempotency_record AS record ON record.id = %(id)s
"""

    LOOK_AGAIN = LOOK

    # A `single` attempt, whose row is not committed, is not seen.
    PEEK = f"""
SELECT {RECORD},
       strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now'), record.id, 0
  FROM idempotency_record AS record
 WHERE record.id IN (SELECT value FROM json_each(%(ids)s))
"""

    RECLAIM = f"""
UPDATE idempotency_record
   SET {EACH_GIVEN},
       fingerprint = CASE WHEN expires_at <= strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now')
                            OR fingerprint IS NULL
                          THEN %(fingerprint)s ELSE fingerprint END,
       state = 'IN_PROGRESS',
       epoch = max(epoch + 1,
                   CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000),
       token = %(token)s,
       lease_until = strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now', %(lease)s),
       created_at = CASE WHEN expires_at <= strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now')
                         THEN strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now') ELSE created_at END,
       updated_at = strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now'),
       expires_at = CASE WHEN steps IS NOT NULL AND expires_at IS NULL THEN NULL
                         ELSE strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now', %(lifetime)s) END,
       attempts = CASE WHEN expires_at <= strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now')
                       THEN 1 ELSE attempts + 1 END,
       result = NULL,
       error = '',
       steps = CASE WHEN expires_at <= strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now')
                    THEN NULL ELSE steps END
 WHERE id = %(id)s
   AND token = %(seen_token)s
   AND (-- expired
           (expires_at <= strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now')
            AND NOT (state = 'IN_PROGRESS'
                     AND lease_until > strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now')))
        OR state = 'RELEASED'
        OR (-- the same request, and no attempt is at work
            (fingerprint IS NULL
             OR hex(fingerprint) IN (SELECT value FROM json_each(%(fingerprints)s)))
            AND (steps IS NULL OR %(resumes)s)
            AND (state = 'FAILED'
                 OR (state = 'IN_PROGRESS'
                     AND lease_until <= strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now')
                     AND %(take_over)s))))
RETURNING steps, epoch, lease_until, updated_at, 'read committed', NULL
"""

    # The first statement of the work's transaction: it takes the write lock under the busy timeout.
    FENCE = """
UPDATE idempotency_record SET updated_at = updated_at
 WHERE id = %(id)s AND epoch = %(epoch)s AND token = %(token)s AND state = 'IN_PROGRESS'
"""

    COMPLETE = """
UPDATE idempotency_record
   SET state = 'COMPLETED', result = %(result)s, steps = NULL, lease_until = NULL,
       updated_at = strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now'),
       expires_at = strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now', %(retention)s)
 WHERE id = %(id)s AND epoch = %(epoch)s AND token = %(token)s AND state = 'IN_PROGRESS'
RETURNING expires_at
"""

    FAIL = """
UPDATE idempotency_record
   SET state = 'FAILED', error = %(error)s, lease_until = NULL,
       updated_at = strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now'),
       expires_at = CASE WHEN %(held)s THEN NULL
                         ELSE coalesce(
                              expires_at,
                              strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now', %(retention)s)) END
 WHERE id = %(id)s AND epoch = %(epoch)s AND token = %(token)s AND state = 'IN_PROGRESS'
"""

    RELEASE = """
UPDATE idempotency_record
   SET state = 'RELEASED', fingerprint = NULL, steps = NULL, lease_until = NULL,
       updated_at = strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now'),
       expires_at = coalesce(expires_at,
                             strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now', %(retention)s))
 WHERE id = %(id)s AND epoch = %(epoch)s AND token = %(token)s AND state = 'IN_PROGRESS'
"""

    # Fence and recovery point of a step. Without the CAST the journal is text, and ends at a NUL.
    NOTE = """
UPDATE idempotency_record
   SET steps = CAST(coalesce(steps, x'') || %(entry)s AS BLOB),
       lease_until = strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now', %(duration)s),
       expires_at = CASE WHEN %(held)s THEN NULL
                         WHEN expires_at >= strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now', %(half)s)
                         THEN expires_at
                         ELSE strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now', %(lifetime)s) END
 WHERE id = %(id)s AND epoch = %(epoch)s AND token = %(token)s AND state = 'IN_PROGRESS'
"""

    RENEW = """
UPDATE idempotency_record
   SET lease_until = strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now', %(duration)s)
 WHERE state = 'IN_PROGRESS'
   AND EXISTS (SELECT 1 FROM json_each(%(leases)s) AS lease
                WHERE json_extract(lease.value, '$[0]') = idempotency_record.id
                  AND json_extract(lease.value, '$[1]') = idempotency_record.epoch
                  AND json_extract(lease.value, '$[2]') = idempotency_record.token)
RETURNING token
"""

    # An operator's decision, if the record is still as it was seen.
    RESOLVE = """
UPDATE idempotency_record
   SET state = CASE WHEN %(action)s = 'complete' THEN 'COMPLETED'
                    WHEN %(action)s = 'resume' THEN 'FAILED'
                    WHEN %(action)s = 'release' OR state = 'IN_PROGRESS' THEN 'RELEASED'
                    ELSE state END,
       fingerprint = CASE WHEN %(action)s = 'release'
                            OR (%(action)s = 'expire' AND state = 'IN_PROGRESS')
                          THEN NULL ELSE fingerprint END,
       result = CASE WHEN %(action)s = 'complete' THEN %(result)s ELSE result END,
       error = CASE WHEN %(action)s = 'complete' THEN '' ELSE error END,
       steps = CASE WHEN %(action)s = 'resume' THEN CAST(steps || %(entry)s AS BLOB) END,
       epoch = epoch + 1, token = %(token)s,
       lease_until = NULL, updated_at = strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now'),
       expires_at = CASE WHEN %(held)s THEN NULL
                         WHEN %(action)s = 'expire'
                         THEN strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now')
                         WHEN %(action)s = 'release'
                         THEN coalesce(
                              expires_at,
                              strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now', %(retention)s))
                         ELSE strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now', %(retention)s) END
 WHERE id = %(id)s
   AND epoch = %(seen_epoch)s
   AND state = %(seen_state)s
   AND (%(seen_size)s IS NULL OR coalesce(length(steps), 0) = %(seen_size)s)
   AND (-- not expired
           expires_at IS NULL OR expires_at > strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now')
        OR (state = 'IN_PROGRESS'
            AND lease_until > strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now')))
   AND (-- no attempt is at work
           state <> 'IN_PROGRESS'
        OR lease_until <= strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now') OR %(force)s)
   AND (%(action)s = 'expire' OR state IN ('IN_PROGRESS', 'FAILED'))
"""

    ERASE = """
DELETE FROM idempotency_record
 WHERE id = %(id)s
   AND (-- no attempt is at work
           state <> 'IN_PROGRESS'
        OR lease_until <= strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now') OR %(force)s)
"""

    # In the order of the index on expires_at, read backwards from the cursor on, behind the records
    # without an expiry, which it sorts last. So many places are looked at: the last of them comes
    # in any case, to tell where, and the one behind it. The expiry is the text of the column, which
    # Django writes with more digits: a cursor has it.
    BROWSE = f"""
SELECT {SHOWN},
       strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now'), place.number
  FROM (SELECT id, row_number() OVER (ORDER BY expires_at DESC NULLS FIRST, id DESC) AS number
          FROM (SELECT * FROM (
                SELECT id, expires_at FROM idempotency_record
                 WHERE TRUE
                   AND %(endless)s AND expires_at IS NULL
                   AND (%(after_id)s IS NULL OR id < %(after_id)s)
                 ORDER BY expires_at DESC, id DESC
                 LIMIT %(one_more)s)
                UNION ALL
                SELECT * FROM (
                SELECT id, expires_at FROM idempotency_record
                 WHERE TRUE
                   AND %(expiring)s
                   AND expires_at <= %(after)s AND (expires_at < %(after)s OR id < %(after_id)s)
                 ORDER BY expires_at DESC, id DESC
                 LIMIT %(one_more)s))) AS place
 CROSS JOIN idempotency_record AS record ON record.id = place.id
 WHERE place.number IN (%(most)s, %(one_more)s)
    OR (place.number < %(most)s
        AND (%(state)s IS NULL OR record.state = %(state)s)
        AND (%(stale)s IS NULL
             OR %(stale)s = (record.state = 'IN_PROGRESS'
                             AND coalesce(record.lease_until
                                          <= strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now'), 0)))
        AND (%(operation)s IS NULL OR record.operation = %(operation)s)
        AND (%(any_scope)s OR record.scope IN (SELECT value FROM json_each(%(scopes)s)))
        AND (%(key)s IS NULL OR record.key = %(key)s)
        AND (%(created_before)s IS NULL OR record.created_at < %(created_before)s)
        AND (%(created_after)s IS NULL OR record.created_at > %(created_after)s))
 ORDER BY place.number
 LIMIT %(limit)s
"""

    BROWSE_IDS = narrowed(BROWSE, "id IN (SELECT value FROM json_each(%(ids)s))")
    BROWSE_RANGE = narrowed(BROWSE, "id BETWEEN %(first_id)s AND %(last_id)s")
    BROWSE_KEY = narrowed(BROWSE, "key = %(key)s")
    BROWSE_OPERATION = narrowed(BROWSE, "operation = %(operation)s")

    HAS_INDEX = """
SELECT 1 FROM sqlite_master WHERE tbl_name = 'idempotency_record' AND name = %(index)s
"""

    SWEEP = """
DELETE FROM idempotency_record
 WHERE id IN (SELECT id FROM idempotency_record
               WHERE expires_at <= strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now')
                 AND NOT (state = 'IN_PROGRESS'
                          AND lease_until > strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now'))
               ORDER BY expires_at
               LIMIT %(limit)s)
"""

    COUNT_EXPIRED = """
SELECT count(*) FROM idempotency_record
 WHERE expires_at <= strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now')
   AND NOT (state = 'IN_PROGRESS'
            AND lease_until > strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now'))
"""

    COUNT_SOME_EXPIRED = bounded(COUNT_EXPIRED)

    COUNT_STALE = """
SELECT count(*) FROM idempotency_record
 WHERE state = 'IN_PROGRESS' AND lease_until <= strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now')
"""

    def adapted(self, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        """See `Dialect.adapted`."""
        adapted = dict(parameters)
        for name, value in parameters.items():
            if isinstance(value, datetime):
                adapted[name] = f"{value.astimezone(timezone.utc):%Y-%m-%d %H:%M:%S.%f}"[:-3]
            elif isinstance(value, UUID):
                adapted[name] = value.hex
            elif isinstance(value, timedelta):
                adapted[name] = f"{value.total_seconds():+.6f} seconds"
            elif isinstance(value, list):
                adapted[name] = json.dumps([_text(item) for item in value])
        return adapted

    def time_of(self, text: str) -> Any:
        """See `Dialect.time_of`: the text of the column."""
        super().time_of(text)
        return text

    @contextmanager
    def limited(self, connection: Any, seconds: float) -> Iterator[None]:
        """See `Dialect.limited`; the time is that of the whole block."""
        connection.ensure_connection()
        ends = time.monotonic() + seconds
        driver = connection.connection
        driver.set_progress_handler(lambda: time.monotonic() > ends, _STEPS)
        try:
            yield
        finally:
            driver.set_progress_handler(None, _STEPS)

    def unsupported(self, connection: Any) -> str | None:
        """See `Dialect.unsupported`."""
        return None if sqlite_version_info >= _OLDEST else f"SQLite {sqlite_version}"

    def renew(self, execute: Execute, leases: list[Lease], duration: timedelta) -> set[Lease]:
        """See `Dialect.renew`; all count as held while another connection writes."""
        proofs = [[x.record_id.hex, x.fencing_token, x.token.hex] for x in leases]
        try:
            rows = execute("RENEW", {"leases": json.dumps(proofs), "duration": duration})
        except StoreError as error:
            if "locked" in str(error.__cause__):
                return set(leases)
            raise
        return held(leases, rows)


def _text(value: UUID | bytes | str) -> str:
    """Return an id as its column has it, and bytes as hex() of SQL gives them."""
    if isinstance(value, bytes):
        return value.hex().upper()
    return value.hex if isinstance(value, UUID) else value
