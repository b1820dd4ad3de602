"""The statements of the database store on MariaDB (10.6 or newer), whole, one per operation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from typing import Any
from uuid import UUID

from django_idempotency.exceptions import StoreError
from django_idempotency.leases import Lease
from django_idempotency.records import NAMED
from django_idempotency.stores.database.dialect import (
    READ_COMMITTED,
    Dialect,
    Execute,
    Row,
    bounded,
    browsed,
    columns_of,
    held,
    listed,
    narrowed,
)
from django_idempotency.transactions.errors import is_held

_OLDEST = (10, 6)
#: The isolation levels at which each statement sees what is committed.
_LOW_LEVELS = (READ_COMMITTED, "read uncommitted")

# Parts of statements: the columns that they read, and those that a claim names.
RECORD = columns_of("record", name="`{}`")
SHOWN = browsed(RECORD)
NAMES, GIVEN = listed(NAMED, "`{}`"), listed(NAMED, "%({})s")
EACH_GIVEN = listed(NAMED, "`{0}` = %({0})s")


class MariaDB(Dialect):
    """
    The statements of the database store on MariaDB (10.6 or newer), whole, one per operation.

    Three things recur in them. ``SET STATEMENT innodb_lock_wait_timeout = 0 FOR``: a row that
    somebody holds is an error at once, which means "in progress", and is never waited for. An
    UPDATE gives no rows back, so ``LAST_INSERT_ID(…)`` hands the clock that it went by to the
    driver, and nothing where no row matched. And assignments take effect from left to right, so
    what looks at ``expires_at`` stands before it. ``UTC_TIMESTAMP(6)`` is one moment for a whole
    statement.
    """

    looks_first = True
    answer_timeouts = ("read_timeout", "write_timeout")

    CLAIM = f"""
SET STATEMENT innodb_lock_wait_timeout = 0 FOR
INSERT INTO idempotency_record (
       id, {NAMES}, fingerprint, state, epoch, token,
       lease_until, created_at, updated_at, expires_at, attempts, result, error, steps)
VALUES (%(id)s, {GIVEN}, %(fingerprint)s, 'IN_PROGRESS',
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), %(token)s,
       UTC_TIMESTAMP(6) + INTERVAL %(lease)s MICROSECOND, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6),
       UTC_TIMESTAMP(6) + INTERVAL %(lifetime)s MICROSECOND, 1, NULL, '', NULL)
RETURNING epoch, lease_until, updated_at, 'read committed', NULL
"""

    # One row in any case: without a record all but the clock is NULL.
    LOOK = f"""
SELECT {RECORD}, UTC_TIMESTAMP(6), NULL
  FROM (SELECT 1) AS one
  LEFT JOIN idempotency_record AS record ON record.id = %(id)s
"""

    # After a lost race: the newest version of the row, which an older snapshot would not show.
    LOOK_AGAIN = f"""
SET STATEMENT innodb_lock_wait_timeout = 0 FOR
SELECT {RECORD}, UTC_TIMESTAMP(6), NULL
  FROM (SELECT 1) AS one
  LEFT JOIN idempotency_record AS record ON record.id = %(id)s
   FOR UPDATE
"""

    # A `single` attempt, whose row is not committed, is not seen.
    PEEK = f"""
SELECT {RECORD}, UTC_TIMESTAMP(6), record.id, 0
  FROM idempotency_record AS record
 WHERE record.id IN %(ids)s
"""

    # The token alone would do to tell that the record is the one that was seen; the epoch is
    # compared because `rows` takes the new one from it.
    RECLAIM = f"""
SET STATEMENT innodb_lock_wait_timeout = 0 FOR
UPDATE idempotency_record
   SET {EACH_GIVEN},
       fingerprint = CASE WHEN expires_at <= UTC_TIMESTAMP(6) OR fingerprint IS NULL
                          THEN %(fingerprint)s ELSE fingerprint END,
       epoch = GREATEST(epoch + 1, LAST_INSERT_ID(
                   TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)))),
       created_at = CASE WHEN expires_at <= UTC_TIMESTAMP(6)
                         THEN UTC_TIMESTAMP(6) ELSE created_at END,
       attempts = CASE WHEN expires_at <= UTC_TIMESTAMP(6) THEN 1 ELSE attempts + 1 END,
       steps = CASE WHEN expires_at <= UTC_TIMESTAMP(6) THEN NULL ELSE steps END,
       state = 'IN_PROGRESS',
       token = %(token)s,
       lease_until = UTC_TIMESTAMP(6) + INTERVAL %(lease)s MICROSECOND,
       updated_at = UTC_TIMESTAMP(6),
       expires_at = CASE WHEN steps IS NOT NULL AND expires_at IS NULL THEN NULL
                         ELSE UTC_TIMESTAMP(6) + INTERVAL %(lifetime)s MICROSECOND END,
       result = NULL,
       error = ''
 WHERE id = %(id)s
   AND epoch = %(seen_epoch)s
   AND token = %(seen_token)s
   AND (-- expired
           (expires_at <= UTC_TIMESTAMP(6)
            AND NOT (state = 'IN_PROGRESS' AND lease_until > UTC_TIMESTAMP(6)))
        OR state = 'RELEASED'
        OR (-- the same request, and no attempt is at work
            (fingerprint IS NULL OR fingerprint IN %(fingerprints)s)
            AND (steps IS NULL OR %(resumes)s)
            AND (state = 'FAILED'
                 OR (state = 'IN_PROGRESS' AND lease_until <= UTC_TIMESTAMP(6)
                     AND %(take_over)s))))
"""

    # After a RECLAIM, which gives no rows, for a request with steps: until another claim nobody but
    # its owner writes it.
    JOURNAL = """
SELECT steps FROM idempotency_record
 WHERE id = %(id)s AND epoch = %(epoch)s AND token = %(token)s
"""

    #: How often a claim goes around an expired row that a sweep holds, or another claimant: nobody
    #: can tell which.
    ROUNDS = 10

    COMPLETE = """
UPDATE idempotency_record
   SET state = 'COMPLETED', result = %(result)s, steps = NULL, lease_until = NULL,
       updated_at = UTC_TIMESTAMP(6),
       attempts = attempts + 0 * LAST_INSERT_ID(
                      TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))),
       expires_at = UTC_TIMESTAMP(6) + INTERVAL %(retention)s MICROSECOND
 WHERE id = %(id)s AND epoch = %(epoch)s AND token = %(token)s AND state = 'IN_PROGRESS'
"""

    # The wait for a COMMIT of our own that is still on its way is bounded.
    FAIL = """
SET STATEMENT innodb_lock_wait_timeout = 5 FOR
UPDATE idempotency_record
   SET state = 'FAILED', error = %(error)s, lease_until = NULL, updated_at = UTC_TIMESTAMP(6),
       expires_at = CASE WHEN %(held)s THEN NULL
                         ELSE COALESCE(expires_at,
                                       UTC_TIMESTAMP(6) + INTERVAL %(retention)s MICROSECOND) END
 WHERE id = %(id)s AND epoch = %(epoch)s AND token = %(token)s AND state = 'IN_PROGRESS'
"""

    RELEASE = """
SET STATEMENT innodb_lock_wait_timeout = 5 FOR
UPDATE idempotency_record
   SET state = 'RELEASED', fingerprint = NULL, steps = NULL, lease_until = NULL,
       updated_at = UTC_TIMESTAMP(6),
       expires_at = COALESCE(expires_at, UTC_TIMESTAMP(6) + INTERVAL %(retention)s MICROSECOND)
 WHERE id = %(id)s AND epoch = %(epoch)s AND token = %(token)s AND state = 'IN_PROGRESS'
"""

    # Fence and recovery point of a step: its row lock keeps claims out until the COMMIT.
    NOTE = """
UPDATE idempotency_record
   SET steps = CONCAT(COALESCE(steps, ''), %(entry)s),
       lease_until = UTC_TIMESTAMP(6) + INTERVAL %(duration)s MICROSECOND,
       expires_at = CASE WHEN %(held)s THEN NULL
                         WHEN expires_at >= UTC_TIMESTAMP(6) + INTERVAL %(half)s MICROSECOND
                         THEN expires_at
                         ELSE UTC_TIMESTAMP(6) + INTERVAL %(lifetime)s MICROSECOND END
 WHERE id = %(id)s AND epoch = %(epoch)s AND token = %(token)s AND state = 'IN_PROGRESS'
"""

    # If another session holds one of the rows, they are renewed one by one, and that one counts as
    # held. FORCE INDEX: a scan of a small table would meet the locks of other rows.
    RENEW = """
SET STATEMENT innodb_lock_wait_timeout = 0 FOR
UPDATE idempotency_record FORCE INDEX (PRIMARY)
   SET lease_until = UTC_TIMESTAMP(6) + INTERVAL %(duration)s MICROSECOND
 WHERE id IN %(ids)s AND (id, epoch, token) IN %(leases)s AND state = 'IN_PROGRESS'
"""

    HELD = """
SELECT token FROM idempotency_record
 WHERE id IN %(ids)s AND (id, epoch, token) IN %(leases)s AND state = 'IN_PROGRESS'
"""

    # An operator's decision, if the record is still as it was seen. Whoever holds the row is at
    # work.
    RESOLVE = """
SET STATEMENT innodb_lock_wait_timeout = 0 FOR
UPDATE idempotency_record
   SET fingerprint = CASE WHEN %(action)s = 'release'
                            OR (%(action)s = 'expire' AND state = 'IN_PROGRESS')
                          THEN NULL ELSE fingerprint END,
       state = CASE WHEN %(action)s = 'complete' THEN 'COMPLETED'
                    WHEN %(action)s = 'resume' THEN 'FAILED'
                    WHEN %(action)s = 'release' OR state = 'IN_PROGRESS' THEN 'RELEASED'
                    ELSE state END,
       result = CASE WHEN %(action)s = 'complete' THEN %(result)s ELSE result END,
       error = CASE WHEN %(action)s = 'complete' THEN '' ELSE error END,
       steps = CASE WHEN %(action)s = 'resume' THEN CONCAT(steps, %(entry)s) END,
       epoch = epoch + 1, token = %(token)s,
       lease_until = NULL, updated_at = UTC_TIMESTAMP(6),
       expires_at = CASE WHEN %(held)s THEN NULL
                         WHEN %(action)s = 'expire' THEN UTC_TIMESTAMP(6)
                         WHEN %(action)s = 'release'
                         THEN COALESCE(expires_at,
                                       UTC_TIMESTAMP(6) + INTERVAL %(retention)s MICROSECOND)
                         ELSE UTC_TIMESTAMP(6) + INTERVAL %(retention)s MICROSECOND END
 WHERE id = %(id)s
   AND epoch = %(seen_epoch)s
   AND state = %(seen_state)s
   AND (%(seen_size)s IS NULL OR COALESCE(OCTET_LENGTH(steps), 0) = %(seen_size)s)
   AND (-- not expired
           expires_at IS NULL OR expires_at > UTC_TIMESTAMP(6)
        OR (state = 'IN_PROGRESS' AND lease_until > UTC_TIMESTAMP(6)))
   AND (-- no attempt is at work
           state <> 'IN_PROGRESS' OR lease_until <= UTC_TIMESTAMP(6) OR %(force)s)
   AND (%(action)s = 'expire' OR state IN ('IN_PROGRESS', 'FAILED'))
"""

    ERASE = """
SET STATEMENT innodb_lock_wait_timeout = 0 FOR
DELETE FROM idempotency_record
 WHERE id = %(id)s
   AND (-- no attempt is at work
           state <> 'IN_PROGRESS' OR lease_until <= UTC_TIMESTAMP(6) OR %(force)s)
"""

    # In the order of the index on expires_at, read backwards from the cursor on, behind the records
    # without an expiry, which it sorts last. So many places are looked at: the last of them comes
    # in any case, to tell where, and the one behind it. The index has the ids, too, and no row is
    # read before its place is known.
    BROWSE = f"""
SELECT {SHOWN}, UTC_TIMESTAMP(6), place.number
  FROM (SELECT id, row_number() OVER (ORDER BY expires_at IS NULL DESC, expires_at DESC, id DESC)
               AS number
          FROM ((SELECT id, expires_at FROM idempotency_record
                  WHERE TRUE
                    AND %(endless)s AND expires_at IS NULL
                    AND (%(after_id)s IS NULL OR id < %(after_id)s)
                  ORDER BY expires_at DESC, id DESC
                  LIMIT %(one_more)s)
                UNION ALL
                (SELECT id, expires_at FROM idempotency_record
                  WHERE TRUE
                    AND %(expiring)s
                    AND expires_at <= %(after)s AND (expires_at < %(after)s OR id < %(after_id)s)
                  ORDER BY expires_at DESC, id DESC
                  LIMIT %(one_more)s)) AS looked) AS place
  STRAIGHT_JOIN idempotency_record AS record ON record.id = place.id
 WHERE place.number IN (%(most)s, %(one_more)s)
    OR (place.number < %(most)s
        AND (%(state)s IS NULL OR record.state = %(state)s)
        AND (%(stale)s IS NULL
             OR %(stale)s = (record.state = 'IN_PROGRESS'
                             AND COALESCE(record.lease_until <= UTC_TIMESTAMP(6), 0)))
        AND (%(operation)s IS NULL OR BINARY record.operation = BINARY %(operation)s)
        AND (%(any_scope)s OR BINARY record.scope IN %(scopes)s)
        AND (%(key)s IS NULL OR BINARY record.`key` = BINARY %(key)s)
        AND (%(created_before)s IS NULL OR record.created_at < %(created_before)s)
        AND (%(created_after)s IS NULL OR record.created_at > %(created_after)s))
 ORDER BY place.number
 LIMIT %(limit)s
"""

    BROWSE_IDS = narrowed(BROWSE, "id IN %(ids)s")
    BROWSE_RANGE = narrowed(BROWSE, "id BETWEEN %(first_id)s AND %(last_id)s")
    BROWSE_KEY = narrowed(BROWSE, "`key` = %(key)s")
    BROWSE_OPERATION = narrowed(BROWSE, "operation = %(operation)s")

    HAS_INDEX = """
SELECT 1 FROM information_schema.statistics
 WHERE table_schema = DATABASE() AND table_name = 'idempotency_record' AND index_name = %(index)s
 LIMIT 1
"""

    # A DELETE cannot skip rows that are held, so this finds and holds what SWEEP then
    # deletes.
    SWEEPABLE = """
SELECT id FROM idempotency_record
 WHERE expires_at <= UTC_TIMESTAMP(6)
   AND NOT (state = 'IN_PROGRESS' AND lease_until > UTC_TIMESTAMP(6))
 ORDER BY expires_at
 LIMIT %(limit)s
   FOR UPDATE SKIP LOCKED
"""

    SWEEP = """
DELETE record FROM idempotency_record AS record FORCE INDEX (PRIMARY)
 WHERE id IN %(ids)s
"""

    # What an older server lacks is left out: the first one before 11.1, the third before 10.6.18.
    ISOLATION = """
SHOW SESSION VARIABLES
 WHERE Variable_name IN ('transaction_isolation', 'tx_isolation', 'innodb_snapshot_isolation')
"""

    COUNT_EXPIRED = """
SELECT count(*) FROM idempotency_record
 WHERE expires_at <= UTC_TIMESTAMP(6)
   AND NOT (state = 'IN_PROGRESS' AND lease_until > UTC_TIMESTAMP(6))
"""

    COUNT_SOME_EXPIRED = bounded(COUNT_EXPIRED)

    COUNT_STALE = """
SELECT count(*) FROM idempotency_record
 WHERE state = 'IN_PROGRESS' AND lease_until <= UTC_TIMESTAMP(6)
"""

    def adapted(self, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        """See `Dialect.adapted`."""
        return {name: self.adapt(value) for name, value in parameters.items()}

    def adapt(self, value: Any) -> Any:
        """Return one parameter as the statements take it."""
        if isinstance(value, UUID):
            return value.hex
        if isinstance(value, timedelta):
            return value // timedelta(microseconds=1)
        if isinstance(value, datetime):
            return value.astimezone(timezone.utc).replace(tzinfo=None)
        if isinstance(value, (list, tuple)):
            # No row has the empty value, and an empty list is none that SQL knows.
            return tuple(self.adapt(item) for item in value) or ("",)
        return value

    def written(self, cursor: Any, name: str, parameters: Mapping[str, Any]) -> list[Row]:
        """See `Dialect.written`; of an UPDATE they are made of the clock that it has given."""
        if not cursor.lastrowid:
            return []
        now = datetime(1970, 1, 1) + timedelta(microseconds=cursor.lastrowid)
        if name == "RECLAIM":
            epoch = max(parameters["seen_epoch"] + 1, cursor.lastrowid)
            row = (epoch, now + parameters["lease"], now, READ_COMMITTED, None)
            if not parameters["resumes"]:
                return [(None, *row)]
            claimed = {"id": parameters["id"], "epoch": epoch, "token": parameters["token"]}
            cursor.execute(self.JOURNAL, self.adapted(claimed))
            return [(journal, *row) for (journal,) in cursor.fetchall()]
        return [(now + parameters["retention"],)]

    @contextmanager
    def limited(self, connection: Any, seconds: float) -> Iterator[None]:
        """See `Dialect.limited`."""
        limit = "SET SESSION max_statement_time = %s"
        with connection.cursor() as cursor:
            cursor.execute("SELECT @@SESSION.max_statement_time")
            [before] = cursor.fetchone()
            cursor.execute(limit, [max(seconds, 0.001)])
            try:
                yield
            finally:
                cursor.execute(limit, [before])

    def unsupported(self, connection: Any) -> str | None:
        """See `Dialect.unsupported`; asks the server."""
        if not connection.mysql_is_mariadb:
            return "MySQL"
        version: tuple[int, ...] = connection.mysql_version
        return None if version >= _OLDEST else "MariaDB " + ".".join(map(str, version))

    def may_renew_joined(
        self, options: Mapping[str, Any], execute: Execute, default: str | None = None
    ) -> bool:
        """See `Dialect.may_renew_joined`: also wherever snapshots do not count for writes."""
        level = options.get("isolation_level", READ_COMMITTED) or "of the server"
        if level.lower() in _LOW_LEVELS:
            return True
        found: dict[str, str] = dict(execute("ISOLATION", {}))
        level = found.get("transaction_isolation") or found["tx_isolation"]
        level = level.replace("-", " ").lower()
        return level in _LOW_LEVELS or found.get("innodb_snapshot_isolation", "OFF") == "OFF"

    def renew(self, execute: Execute, leases: list[Lease], duration: timedelta) -> set[Lease]:
        """See `Dialect.renew`: an UPDATE says nothing of its rows, so a second statement does."""
        proofs = {
            "ids": [lease.record_id for lease in leases],
            "leases": [(lease.record_id, lease.fencing_token, lease.token) for lease in leases],
        }
        try:
            execute("RENEW", {**proofs, "duration": duration})
        except StoreError as error:
            if not is_held(error):
                raise
            if len(leases) == 1:
                return set(leases)
            return {kept for lease in leases for kept in self.renew(execute, [lease], duration)}
        return held(leases, execute("HELD", proofs))
