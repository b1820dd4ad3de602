"""The statements of the database store on PostgreSQL, whole, one per operation."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from django.db import transaction

from django_idempotency.records import NAMED
from django_idempotency.stores.database.dialect import (
    READ_COMMITTED,
    Dialect,
    Execute,
    bounded,
    browsed,
    columns_of,
    listed,
    narrowed,
)

_PSYCOPG_READ_COMMITTED = 2
_MICROSECOND = timedelta(microseconds=1)
_ROLE = "current_setting('role')"
#: The table, by its name alone; in quotes where its oid is asked for.
_TABLE = re.compile(r"(')?\bidempotency_record\b(?(1)')")

# Parts of statements: the columns that they read, and those that a claim names.
RECORD = columns_of("record", time="{} AT TIME ZONE 'UTC'")
SEEN = columns_of("seen", time="{} AT TIME ZONE 'UTC'")
SHOWN = browsed(RECORD)
NAMES, GIVEN = listed(NAMED), listed(NAMED, "%({})s")
EACH_GIVEN = listed(NAMED, "{0} = %({0})s")


def _asynchronous(statement: str) -> str:
    """
    Return the statement with a commit that does not wait for the disk, if it is a transaction.

    The setting is a column of the clock, without whose row nothing is written: a subquery keeps a
    column that is volatile, and a CTE that nothing refers to would never run. It ends with the
    transaction.
    """
    clock = "(SELECT clock_timestamp() AS now OFFSET 0)"
    setting = "set_config('synchronous_commit', 'off', true)"
    return statement.replace(clock, f"(SELECT clock_timestamp() AS now, {setting} OFFSET 0)")


def _or_raise(statement: str) -> str:
    """Return a completion that is a division by zero (22012) where it writes nothing."""
    return f"""
WITH done (expires_at) AS ({statement})
SELECT (SELECT expires_at FROM done), 1 / (SELECT count(*) FROM done)
"""


class PostgreSQL(Dialect):
    """
    The statements of the database store on PostgreSQL, whole, one per operation.

    Three things recur in them. ``clock_timestamp()`` and not ``now()``: the time at which the
    statement runs, not the one at which a transaction began. The advisory lock on the record id
    (with the table's oid: locks are per database, tables per schema): whoever claims in whatever
    mode takes it, so that no claim waits for an uncommitted row. And the whole predicate in each
    write: what was read before may have been completed, renewed or taken over since.

    A claim and a look say where they were made (R98): the table with its schema, the search path,
    and the session's role. What follows names that table. An owner's write does nothing in a
    session of another role, which may see other rows: it is sent again in that of the claim.
    """

    takes_advisory_lock = True

    # A row that can be seen is not tried at all: ON CONFLICT would wait for an owner that has
    # completed it and not committed yet.
    CLAIM = f"""
INSERT INTO idempotency_record (
       id, {NAMES}, fingerprint, state, epoch, token,
       lease_until, created_at, updated_at, expires_at, attempts, result, error, steps)
SELECT %(id)s::uuid, {GIVEN}, %(fingerprint)s::bytea, 'IN_PROGRESS',
       (extract(epoch FROM clock.now) * 1000000)::bigint, %(token)s::uuid,
       clock.now + %(lease)s::interval, clock.now, clock.now, clock.now + %(lifetime)s::interval,
       1, NULL, '', NULL
  FROM (SELECT clock_timestamp() AS now OFFSET 0) AS clock
 WHERE NOT EXISTS (SELECT 1 FROM idempotency_record WHERE id = %(id)s::uuid)
   AND pg_try_advisory_xact_lock(hashtextextended(
           %(id)s::uuid::text, 'idempotency_record'::regclass::oid::bigint))
    ON CONFLICT (id) DO NOTHING
RETURNING epoch, lease_until AT TIME ZONE 'UTC', updated_at AT TIME ZONE 'UTC',
          current_setting('default_transaction_isolation'),
          json_build_array(
              (pg_identify_object('pg_class'::regclass, 'idempotency_record'::regclass, 0)
              ).identity, current_setting('search_path'), current_setting('role'))::text
"""

    # CLAIM and LOOK as one, where it is prepared: to plan it costs more than it saves. One row in
    # any case: the record, as LOOK gives it, and what CLAIM gives; NULL for what there is not.
    CLAIM_OR_LOOK = f"""
WITH seen AS MATERIALIZED (
     SELECT * FROM idempotency_record WHERE id = %(id)s::uuid),
     claimed AS (
     INSERT INTO idempotency_record (
            id, {NAMES}, fingerprint, state, epoch, token,
            lease_until, created_at, updated_at, expires_at, attempts, result, error, steps)
     SELECT %(id)s::uuid, {GIVEN}, %(fingerprint)s::bytea, 'IN_PROGRESS',
            (extract(epoch FROM clock.now) * 1000000)::bigint, %(token)s::uuid,
            clock.now + %(lease)s::interval, clock.now, clock.now,
            clock.now + %(lifetime)s::interval, 1, NULL, '', NULL
       FROM (SELECT clock_timestamp() AS now OFFSET 0) AS clock
      WHERE NOT EXISTS (SELECT 1 FROM seen)
        AND pg_try_advisory_xact_lock(hashtextextended(
                %(id)s::uuid::text, 'idempotency_record'::regclass::oid::bigint))
         ON CONFLICT (id) DO NOTHING
     RETURNING epoch, lease_until, updated_at)
SELECT {SEEN},
       clock.now AT TIME ZONE 'UTC',
       claimed.epoch, claimed.lease_until AT TIME ZONE 'UTC',
       claimed.updated_at AT TIME ZONE 'UTC', current_setting('default_transaction_isolation'),
       json_build_array(
           (pg_identify_object('pg_class'::regclass, 'idempotency_record'::regclass, 0)).identity,
           current_setting('search_path'), current_setting('role'))::text
  FROM (SELECT clock_timestamp() AS now OFFSET 0) AS clock
  LEFT JOIN seen ON true
  LEFT JOIN claimed ON true
"""

    # One row in any case: without a record all but the clock is NULL.
    LOOK = f"""
SELECT {RECORD},
       clock.now AT TIME ZONE 'UTC',
       json_build_array(
           (pg_identify_object('pg_class'::regclass, 'idempotency_record'::regclass, 0)).identity,
           current_setting('search_path'), current_setting('role'))::text
  FROM (SELECT clock_timestamp() AS now OFFSET 0) AS clock
  LEFT JOIN idempotency_record AS record ON record.id = %(id)s::uuid
"""

    LOOK_AGAIN = LOOK

    # The lock tells of an attempt that cannot be seen: a `single` one, or a claim that has not
    # committed. pg_locks, which is all locks of the server, is read only if a record neither
    # answers nor is held.
    PEEK = f"""
WITH seen AS MATERIALIZED (
     SELECT wanted.id AS wanted, clock.now, record.*,
            coalesce(record.state = 'IN_PROGRESS' AND record.lease_until > clock.now
                     OR record.state = 'COMPLETED' AND record.expires_at > clock.now, false)
            AS stands
       FROM (SELECT clock_timestamp() AS now OFFSET 0) AS clock
      CROSS JOIN unnest(%(ids)s::uuid[]) AS wanted (id)
       LEFT JOIN idempotency_record AS record ON record.id = wanted.id),
     locked AS MATERIALIZED (
     SELECT classid::bigint << 32 | objid::bigint AS key
       FROM pg_locks
      WHERE EXISTS (SELECT 1 FROM seen WHERE NOT stands)
        AND locktype = 'advisory' AND granted AND objsubid = 1
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))
SELECT {SEEN},
       seen.now AT TIME ZONE 'UTC', seen.wanted,
       NOT seen.stands AND hashtextextended(
           seen.wanted::text, 'idempotency_record'::regclass::oid::bigint) IN (TABLE locked)
  FROM seen
"""

    RECLAIM = f"""
UPDATE idempotency_record AS record
   SET {EACH_GIVEN},
       fingerprint = CASE WHEN record.expires_at <= clock.now OR record.fingerprint IS NULL
                          THEN %(fingerprint)s::bytea ELSE record.fingerprint END,
       state = 'IN_PROGRESS',
       epoch = greatest(record.epoch + 1, (extract(epoch FROM clock.now) * 1000000)::bigint),
       token = %(token)s::uuid,
       lease_until = clock.now + %(lease)s::interval,
       created_at = CASE WHEN record.expires_at <= clock.now
                         THEN clock.now ELSE record.created_at END,
       updated_at = clock.now,
       expires_at = CASE WHEN record.steps IS NOT NULL AND record.expires_at IS NULL THEN NULL
                         ELSE clock.now + %(lifetime)s::interval END,
       attempts = CASE WHEN record.expires_at <= clock.now THEN 1 ELSE record.attempts + 1 END,
       result = NULL,
       error = '',
       steps = CASE WHEN record.expires_at <= clock.now THEN NULL ELSE record.steps END
  FROM (SELECT clock_timestamp() AS now OFFSET 0) AS clock,
       (SELECT id FROM idempotency_record WHERE id = %(id)s::uuid
           FOR NO KEY UPDATE SKIP LOCKED) AS free
 WHERE record.id = free.id
   AND record.token = %(seen_token)s::uuid
   AND (-- expired
           (record.expires_at <= clock.now
            AND NOT (record.state = 'IN_PROGRESS' AND record.lease_until > clock.now))
        OR record.state = 'RELEASED'
        OR (-- the same request, and no attempt is at work
            (record.fingerprint IS NULL OR record.fingerprint = ANY (%(fingerprints)s::bytea[]))
            AND (record.steps IS NULL OR %(resumes)s)
            AND (record.state = 'FAILED'
                 OR (record.state = 'IN_PROGRESS' AND record.lease_until <= clock.now
                     AND %(take_over)s))))
   AND pg_try_advisory_xact_lock(hashtextextended(
           %(id)s::uuid::text, 'idempotency_record'::regclass::oid::bigint))
RETURNING record.steps, record.epoch, record.lease_until AT TIME ZONE 'UTC',
          record.updated_at AT TIME ZONE 'UTC', current_setting('default_transaction_isolation'),
          json_build_array(
              (pg_identify_object('pg_class'::regclass, 'idempotency_record'::regclass, 0)
              ).identity, current_setting('search_path'), current_setting('role'))::text
"""

    CLAIM_ASYNC = _asynchronous(CLAIM)
    CLAIM_OR_LOOK_ASYNC = _asynchronous(CLAIM_OR_LOOK)
    RECLAIM_ASYNC = _asynchronous(RECLAIM)

    #: How often a claim goes around an expired row that a sweep holds.
    ROUNDS = 50

    # Does a sweep hold an expired row? If another session does, the answer is "in progress".
    SWEEPING = """
SELECT EXISTS (
       SELECT 1 FROM pg_locks
        WHERE locktype = 'advisory' AND granted AND objsubid = 2
          AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
          AND classid = 'idempotency_record'::regclass::oid AND objid = 0)
"""

    # The indexed expires_at is left alone where it lies at most a tenth beyond the retention from
    # now: a HOT update.
    COMPLETE = """
UPDATE idempotency_record AS record
   SET state = 'COMPLETED', result = %(result)s::bytea, steps = NULL, lease_until = NULL,
       updated_at = clock.now,
       expires_at = CASE WHEN record.expires_at BETWEEN clock.now + %(retention)s::interval
                                                    AND clock.now + %(retention)s::interval * 1.1
                         THEN record.expires_at ELSE clock.now + %(retention)s::interval END
  FROM (SELECT clock_timestamp() AS now OFFSET 0) AS clock
 WHERE record.id = %(id)s::uuid
   AND record.epoch = %(epoch)s
   AND record.token = %(token)s::uuid
   AND record.state = 'IN_PROGRESS'
   AND coalesce(current_setting('role') = %(session)s::text, true)
RETURNING record.expires_at AT TIME ZONE 'UTC'
"""

    # Outside a transaction the wait for a COMMIT of our own that is still on its way is bounded.
    FAIL = """
UPDATE idempotency_record AS record
   SET state = 'FAILED', error = %(error)s, lease_until = NULL, updated_at = clock.now,
       expires_at = CASE WHEN %(held)s THEN NULL
                         ELSE coalesce(record.expires_at, clock.now + %(retention)s::interval) END
  FROM (SELECT clock_timestamp() AS now,
               set_config('lock_timeout', CASE WHEN %(alone)s THEN '5s'
                                               ELSE current_setting('lock_timeout') END, true)
        OFFSET 0) AS clock
 WHERE record.id = %(id)s::uuid
   AND record.epoch = %(epoch)s
   AND record.token = %(token)s::uuid
   AND record.state = 'IN_PROGRESS'
   AND coalesce(current_setting('role') = %(session)s::text, true)
"""

    RELEASE = """
UPDATE idempotency_record AS record
   SET state = 'RELEASED', fingerprint = NULL, steps = NULL, lease_until = NULL,
       updated_at = clock.now,
       expires_at = coalesce(record.expires_at, clock.now + %(retention)s::interval)
  FROM (SELECT clock_timestamp() AS now,
               set_config('lock_timeout', CASE WHEN %(alone)s THEN '5s'
                                               ELSE current_setting('lock_timeout') END, true)
        OFFSET 0) AS clock
 WHERE record.id = %(id)s::uuid
   AND record.epoch = %(epoch)s
   AND record.token = %(token)s::uuid
   AND record.state = 'IN_PROGRESS'
   AND coalesce(current_setting('role') = %(session)s::text, true)
"""

    # Fence and recovery point of a step: its row lock keeps claims out until the COMMIT. The
    # indexed expires_at is left alone for half of the lifetime: a HOT update. There is no clock in
    # FROM: it would take longer to plan than all the rest.
    NOTE = """
UPDATE idempotency_record
   SET steps = coalesce(steps, ''::bytea) || %(entry)s::bytea,
       lease_until = clock_timestamp() + %(duration)s::interval,
       expires_at = CASE WHEN %(held)s THEN NULL
                         WHEN expires_at >= clock_timestamp() + %(half)s::interval THEN expires_at
                         ELSE clock_timestamp() + %(lifetime)s::interval END
 WHERE id = %(id)s::uuid
   AND epoch = %(epoch)s
   AND token = %(token)s::uuid
   AND state = 'IN_PROGRESS'
   AND coalesce(current_setting('role') = %(session)s::text, true)
RETURNING epoch
"""

    # A row that another session holds is not waited for, and counts as held.
    RENEW = """
WITH held AS MATERIALIZED (
     SELECT record.id, record.epoch, record.token
       FROM idempotency_record AS record
       JOIN unnest(%(ids)s::uuid[], %(epochs)s::bigint[], %(tokens)s::uuid[])
            AS lease (id, epoch, token)
         ON record.id = lease.id AND record.epoch = lease.epoch AND record.token = lease.token
      WHERE record.state = 'IN_PROGRESS'),
     free AS MATERIALIZED (
     SELECT id FROM idempotency_record WHERE id IN (SELECT id FROM held)
        FOR NO KEY UPDATE SKIP LOCKED),
     renewed AS (
     UPDATE idempotency_record AS record
        SET lease_until = clock_timestamp() + %(duration)s::interval
       FROM held, free
      WHERE record.id = held.id AND record.id = free.id
        AND record.epoch = held.epoch AND record.token = held.token
        AND record.state = 'IN_PROGRESS')
SELECT token FROM held
"""

    # `single`, first statement: two replays must not call each other in progress, so a record that
    # answers takes no lock.
    SINGLE_LOCK = f"""
SELECT {RECORD},
       clock.now AT TIME ZONE 'UTC',
       json_build_array(
           (pg_identify_object('pg_class'::regclass, 'idempotency_record'::regclass, 0)).identity,
           current_setting('search_path'), current_setting('role'))::text,
       CASE WHEN record.state = 'COMPLETED' AND record.expires_at > clock.now THEN NULL
            ELSE pg_try_advisory_xact_lock(hashtextextended(
                     %(id)s::uuid::text, 'idempotency_record'::regclass::oid::bigint)) END,
       current_setting('transaction_isolation')
  FROM (SELECT clock_timestamp() AS now OFFSET 0) AS clock
  LEFT JOIN idempotency_record AS record ON record.id = %(id)s::uuid
"""

    # `single`, at the end: the look under the lock saw no record. A transaction that began after
    # the claim is another one: the work has sent a ROLLBACK or COMMIT, and the lock is gone.
    SINGLE_INSERT = f"""
INSERT INTO idempotency_record (
       id, {NAMES}, fingerprint, state, epoch, token,
       lease_until, created_at, updated_at, expires_at, attempts, result, error, steps)
SELECT %(id)s::uuid, {GIVEN}, %(fingerprint)s::bytea, %(state)s,
       %(epoch)s, %(token)s::uuid,
       NULL, %(claimed_at)s::timestamptz, clock.now, clock.now + %(retention)s::interval,
       1, %(result)s::bytea, %(error)s, NULL
  FROM (SELECT clock_timestamp() AS now OFFSET 0) AS clock
 WHERE transaction_timestamp() <= %(claimed_at)s::timestamptz
   AND coalesce(current_setting('role') = %(session)s::text, true)
    ON CONFLICT (id) DO NOTHING
RETURNING expires_at AT TIME ZONE 'UTC'
"""

    # `single`, at the end: the look under the lock saw a record that could be claimed. The wait for
    # an owner that was stopped between completion and COMMIT is bounded, unless the project bounds
    # it.
    SINGLE_UPDATE = f"""
UPDATE idempotency_record AS record
   SET {EACH_GIVEN},
       fingerprint = %(fingerprint)s::bytea,
       state = %(state)s, epoch = %(epoch)s, token = %(token)s::uuid,
       lease_until = NULL,
       created_at = CASE WHEN record.expires_at <= clock.now
                         THEN %(claimed_at)s::timestamptz ELSE record.created_at END,
       updated_at = clock.now,
       expires_at = clock.now + %(retention)s::interval,
       attempts = CASE WHEN record.expires_at <= clock.now THEN 1 ELSE record.attempts + 1 END,
       result = %(result)s::bytea,
       error = %(error)s,
       steps = NULL
  FROM (SELECT clock_timestamp() AS now, current_setting('lock_timeout') AS bound,
               set_config('lock_timeout', CASE current_setting('lock_timeout')
                                               WHEN '0' THEN '5s'
                                               ELSE current_setting('lock_timeout') END, true)
        OFFSET 0) AS clock
 WHERE record.id = %(id)s::uuid
   AND transaction_timestamp() <= %(claimed_at)s::timestamptz
   AND coalesce(current_setting('role') = %(session)s::text, true)
   AND record.token = %(seen_token)s::uuid
   AND record.state = %(seen_state)s
   AND (-- expired
           (record.expires_at <= clock.now
            AND NOT (record.state = 'IN_PROGRESS' AND record.lease_until > clock.now))
        OR record.state = 'RELEASED'
        OR (-- the same request, and no attempt is at work
            (record.fingerprint IS NULL OR record.fingerprint = ANY (%(fingerprints)s::bytea[]))
            AND record.steps IS NULL
            AND (record.state = 'FAILED'
                 OR (record.state = 'IN_PROGRESS' AND record.lease_until <= clock.now))))
RETURNING record.expires_at AT TIME ZONE 'UTC', set_config('lock_timeout', clock.bound, true)
"""

    # In one round trip with the COMMIT of their transaction, which must not follow if they write
    # nothing.
    COMPLETE_OR_RAISE = _or_raise(COMPLETE)
    SINGLE_INSERT_OR_RAISE = _or_raise(SINGLE_INSERT)
    SINGLE_UPDATE_OR_RAISE = _or_raise(SINGLE_UPDATE)

    # An operator's decision, if the record is still as it was seen. Whoever holds the row or the
    # lock is at work.
    RESOLVE = """
UPDATE idempotency_record AS record
   SET state = CASE WHEN %(action)s = 'complete' THEN 'COMPLETED'
                    WHEN %(action)s = 'resume' THEN 'FAILED'
                    WHEN %(action)s = 'release' OR record.state = 'IN_PROGRESS' THEN 'RELEASED'
                    ELSE record.state END,
       fingerprint = CASE WHEN %(action)s = 'release'
                            OR (%(action)s = 'expire' AND record.state = 'IN_PROGRESS')
                          THEN NULL ELSE record.fingerprint END,
       result = CASE WHEN %(action)s = 'complete' THEN %(result)s::bytea ELSE record.result END,
       error = CASE WHEN %(action)s = 'complete' THEN '' ELSE record.error END,
       steps = CASE WHEN %(action)s = 'resume' THEN record.steps || %(entry)s::bytea END,
       epoch = record.epoch + 1, token = %(token)s::uuid,
       lease_until = NULL, updated_at = clock.now,
       expires_at = CASE WHEN %(held)s THEN NULL
                         WHEN %(action)s = 'expire' THEN clock.now
                         WHEN %(action)s = 'release'
                         THEN coalesce(record.expires_at, clock.now + %(retention)s::interval)
                         ELSE clock.now + %(retention)s::interval END
  FROM (SELECT clock_timestamp() AS now OFFSET 0) AS clock,
       (SELECT id FROM idempotency_record WHERE id = %(id)s::uuid
           FOR NO KEY UPDATE SKIP LOCKED) AS free
 WHERE record.id = free.id
   AND record.epoch = %(seen_epoch)s
   AND record.state = %(seen_state)s
   AND (%(seen_size)s::integer IS NULL
        OR coalesce(octet_length(record.steps), 0) = %(seen_size)s)
   AND (-- not expired
           record.expires_at IS NULL OR record.expires_at > clock.now
        OR (record.state = 'IN_PROGRESS' AND record.lease_until > clock.now))
   AND (-- no attempt is at work
           record.state <> 'IN_PROGRESS' OR record.lease_until <= clock.now OR %(force)s)
   AND (%(action)s = 'expire' OR record.state IN ('IN_PROGRESS', 'FAILED'))
   AND pg_try_advisory_xact_lock(hashtextextended(
           %(id)s::uuid::text, 'idempotency_record'::regclass::oid::bigint))
"""

    ERASE = """
DELETE FROM idempotency_record AS record
 USING (SELECT clock_timestamp() AS now OFFSET 0) AS clock,
       (SELECT id FROM idempotency_record WHERE id = %(id)s::uuid FOR UPDATE SKIP LOCKED) AS free
 WHERE record.id = free.id
   AND (-- no attempt is at work
           record.state <> 'IN_PROGRESS' OR record.lease_until <= clock.now OR %(force)s)
   AND pg_try_advisory_xact_lock(hashtextextended(
           %(id)s::uuid::text, 'idempotency_record'::regclass::oid::bigint))
"""

    # In the order of the index on expires_at, read backwards from the cursor on. So many rows are
    # looked at: the last of them comes in any case, to tell where, and the one behind it.
    BROWSE = f"""
SELECT {SHOWN},
       clock.now AT TIME ZONE 'UTC', record.number
  FROM (SELECT clock_timestamp() AS now OFFSET 0) AS clock,
       (SELECT *, row_number() OVER (ORDER BY expires_at DESC NULLS FIRST, id DESC) AS number
          FROM idempotency_record
         WHERE TRUE
           AND ((%(endless)s AND expires_at IS NULL
                 AND (%(after_id)s::uuid IS NULL OR id < %(after_id)s))
                OR (%(expiring)s AND expires_at <= %(after)s
                    AND (expires_at < %(after)s OR id < %(after_id)s)))
         LIMIT %(one_more)s) AS record
 WHERE record.number >= %(most)s
    OR ((%(state)s::text IS NULL OR record.state = %(state)s)
        AND (%(stale)s::boolean IS NULL
             OR %(stale)s = (record.state = 'IN_PROGRESS'
                             AND coalesce(record.lease_until <= clock.now, false)))
        AND (%(operation)s::text IS NULL OR record.operation = %(operation)s)
        AND (%(any_scope)s OR record.scope = ANY (%(scopes)s::text[]))
        AND (%(key)s::text IS NULL OR record.key = %(key)s)
        AND (%(created_before)s::timestamptz IS NULL OR record.created_at < %(created_before)s)
        AND (%(created_after)s::timestamptz IS NULL OR record.created_at > %(created_after)s))
 ORDER BY record.number
 LIMIT %(limit)s
"""

    BROWSE_IDS = narrowed(BROWSE, "id = ANY (%(ids)s::uuid[])")
    BROWSE_RANGE = narrowed(BROWSE, "id BETWEEN %(first_id)s AND %(last_id)s")
    BROWSE_KEY = narrowed(BROWSE, "key = %(key)s")
    BROWSE_OPERATION = narrowed(BROWSE, "operation = %(operation)s")

    # By the table: another schema of the search path may have an index of this name.
    HAS_INDEX = """
SELECT 1 FROM pg_index JOIN pg_class AS named ON named.oid = indexrelid
 WHERE indrelid = to_regclass('idempotency_record') AND named.relname = %(index)s AND indisvalid
"""

    # now() of this short transaction is stable, so the index on expires_at serves the inner SELECT,
    # which is no join, so that it runs once and its LIMIT counts once. It gives rows that are
    # locked, and that were compared under the lock. Locked rows stay where they are, so the DELETE
    # finds them by their place: to find ids, PostgreSQL may read the whole table for each batch. A
    # row that changed before it was locked is at a place that this statement does not see yet: it
    # is left to the next sweep. The advisory lock keeps nobody out: it tells a claim that a sweep
    # holds the rows. The DELETE compares again: in a partitioned table rows of several partitions
    # have the same place. It asks for clock_timestamp(), with which no index can be read:
    # statistics from before the rows expired would have it look for each row of the index in the
    # array.
    SWEEP = """
DELETE FROM idempotency_record AS record
 WHERE record.ctid = ANY (ARRAY(
       SELECT ctid FROM idempotency_record
        WHERE (SELECT pg_try_advisory_xact_lock_shared('idempotency_record'::regclass::oid::int, 0))
          AND expires_at <= now()
          AND NOT (state = 'IN_PROGRESS' AND lease_until > now())
        ORDER BY expires_at
        LIMIT %(limit)s
          FOR UPDATE SKIP LOCKED))
   AND record.expires_at <= clock_timestamp()
   AND NOT (record.state = 'IN_PROGRESS' AND record.lease_until > clock_timestamp())
"""

    # The same without the lock, for a step of a walk. A row that somebody holds or has held has an
    # xmax. For one that somebody takes while this runs, a DELETE waits as long as his transaction
    # takes: hence the timeout. The DELETE compares again, here also because a server before 18.1,
    # 17.7, 16.11, 15.15 or 14.20 does not see of a row that has changed meanwhile that it has left
    # its place. A DELETE that a crash of
    # the server loses is done again: its commit does not wait for the disk. Both settings end with
    # this transaction. Two sweeps delete in the same order, that of places, and so without a
    # deadlock. The LIMIT on the rows that are looked at: a large DELETE that was rolled back leaves
    # an xmax on each row, and no step is to read them all. Python has no '-infinity'.
    SWEEP_NEXT = """
WITH swept AS (
     DELETE FROM idempotency_record AS record
      WHERE record.ctid = ANY (ARRAY(
            SELECT place
              FROM (SELECT ctid AS place, xmax AS holder FROM idempotency_record
                     WHERE (SELECT pg_try_advisory_xact_lock_shared(
                                       'idempotency_record'::regclass::oid::int, 0)
                              FROM (SELECT set_config('lock_timeout', '10ms', true),
                                           set_config('synchronous_commit', 'off', true) OFFSET 0)
                                   AS settings)
                       AND expires_at >= coalesce(%(after)s::timestamptz, '-infinity')
                       AND expires_at <= now()
                       AND NOT (state = 'IN_PROGRESS' AND lease_until > now())
                     ORDER BY expires_at
                     LIMIT 2000) AS seen
             WHERE holder = 0
             LIMIT %(limit)s))
        AND record.expires_at <= clock_timestamp()
        AND NOT (record.state = 'IN_PROGRESS' AND record.lease_until > clock_timestamp())
     RETURNING record.expires_at)
SELECT count(*), greatest(max(expires_at), 'epoch') AT TIME ZONE 'UTC' FROM swept
"""

    COUNT_EXPIRED = """
SELECT count(*) FROM idempotency_record
 WHERE expires_at <= now()
   AND NOT (state = 'IN_PROGRESS' AND lease_until > now())
"""

    COUNT_SOME_EXPIRED = bounded(COUNT_EXPIRED)

    COUNT_STALE = """
SELECT count(*) FROM idempotency_record
 WHERE state = 'IN_PROGRESS' AND lease_until <= now()
"""

    ISOLATION = "SELECT current_setting('default_transaction_isolation')"

    #: The session as a place has it: see `text` for its variables.
    SESSION = "SELECT current_setting('role')"

    # Until the transaction ends.
    TAKE_ON = """
SELECT set_config(name, value, true)
  FROM unnest(%(names)s::text[], %(values)s::text[]) AS setting (name, value)
"""

    # Until the transaction ends; gives the limit that was there before.
    LIMIT = """
WITH before AS MATERIALIZED (SELECT current_setting('statement_timeout') AS value)
SELECT value, set_config('statement_timeout', %s, true) FROM before
"""

    # For the rest of the session. A new one often has these values, and nothing is set.
    RESTORE = """
SELECT set_config(name, value, false)
  FROM unnest(%(names)s::text[], %(values)s::text[]) AS setting (name, value)
 WHERE coalesce(current_setting(name, true), '') <> value
"""

    #: What policies of row level security, and defaults of columns, read of the session.
    VARIABLES = """
SELECT DISTINCT found[1]
  FROM (SELECT unnest(ARRAY[pg_get_expr(polqual, polrelid), pg_get_expr(polwithcheck, polrelid)])
          FROM pg_policy WHERE polrelid = to_regclass('idempotency_record')
         UNION ALL
        SELECT pg_get_expr(adbin, adrelid)
          FROM pg_attrdef WHERE adrelid = to_regclass('idempotency_record')) AS read (expression),
       regexp_matches(expression, $$current_setting[(]'([^']+)'$$, 'g') AS found
"""

    def text(self, name: str, table: str | None, variables: tuple[str, ...]) -> str:
        """See `Dialect.text`; a variable that was never set is one that is empty."""
        text: str = getattr(self, name)
        if variables:
            values = [f"nullif(current_setting('{variable}', true), '')" for variable in variables]
            session = ", ".join([_ROLE, *values])
            text = text.replace(_ROLE, f"json_build_array({session})::text")
        if table is not None:
            named = table.replace("%", "%%")
            literal = "'" + named.replace("'", "''") + "'"
            text = _TABLE.sub(lambda found: literal if found[1] else named, text)
        return text

    def adapted(self, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        """See `Dialect.adapted`: a day of an interval can be of 23 hours in the session's zone."""
        return {
            name: f"{value // _MICROSECOND} us" if isinstance(value, timedelta) else value
            for name, value in parameters.items()
        }

    @contextmanager
    def limited(self, connection: Any, seconds: float) -> Iterator[None]:
        """See `Dialect.limited`; in a transaction: behind PgBouncer the session is others', too."""
        with transaction.atomic(connection.alias), connection.cursor() as cursor:
            cursor.execute(self.LIMIT, [f"{max(int(seconds * 1000), 1)}ms"])
            [(before, _)] = cursor.fetchall()
            yield
            cursor.execute(self.LIMIT, [before])  # the caller's transaction may go on

    def may_renew_joined(
        self, options: Mapping[str, Any], execute: Execute, default: str | None = None
    ) -> bool:
        """See `Dialect.may_renew_joined`; asks the server unless its `default` is known."""
        if (option := options.get("isolation_level")) is not None:
            return bool(getattr(option, "value", option) == _PSYCOPG_READ_COMMITTED)
        if default is None:
            [(default,)] = execute("ISOLATION", {})
        return default == READ_COMMITTED
