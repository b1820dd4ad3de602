"""Changes of the database store, its statements and the transaction around its work."""

from __future__ import annotations

from tests.proof.mutations import Mutation

POSTGRESQL = "stores/database/postgresql.py"
SQLITE = "stores/database/sqlite.py"
MARIADB = "stores/database/mariadb.py"
STATEMENTS = "stores/database/statements.py"

HELD = "tests/integration/database/test_held_rows.py"
CONTRACT = "tests/integration/database/test_contract.py"
CLAIM = "tests/integration/database/test_claim.py"
SINGLE = "tests/integration/database/test_single.py"

_CLOCK = "  FROM (SELECT clock_timestamp() AS now OFFSET 0) AS clock"
_NOW = "  FROM (SELECT now() AS now OFFSET 0) AS clock"
_BOUND = """
  FROM (SELECT clock_timestamp() AS now,
               set_config('lock_timeout', CASE WHEN %(alone)s THEN '5s'
                                               ELSE current_setting('lock_timeout') END, true)
        OFFSET 0) AS clock
"""
_EXPIRES = "\n       expires_at = coalesce(record.expires_at, clock.now + %(retention)s::interval)"
_ENDED = f"lease_until = NULL, updated_at = clock.now,{_EXPIRES}"
_FAIL = f"SET state = 'FAILED', error = %(error)s, {_ENDED}"
_RELEASE = f"fingerprint = NULL, {_ENDED}"

MUTATIONS = [
    # What may change between a look and a write.
    Mutation(
        "PostgreSQL: an expired record is claimed again whose owner has just renewed it",
        POSTGRESQL,
        """   AND record.token = %(seen_token)s::uuid
   AND (-- expired
           (record.expires_at <= clock.now
            AND NOT (record.state = 'IN_PROGRESS' AND record.lease_until > clock.now))
""",
        """   AND record.token = %(seen_token)s::uuid
   AND (-- expired
           record.expires_at <= clock.now
""",
        f"{CONTRACT} -k claim_repeats",
        leg="postgres18",
    ),
    Mutation(
        "SQLite: an expired record is claimed again whose owner has just renewed it",
        SQLITE,
        """           (expires_at <= strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now')
            AND NOT (state = 'IN_PROGRESS'
                     AND lease_until > strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now')))
        OR state = 'RELEASED'
""",
        """           expires_at <= strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now')
        OR state = 'RELEASED'
""",
        f"{CONTRACT} -k claim_repeats",
        leg="sqlite",
    ),
    Mutation(
        "MariaDB: an expired record is claimed again whose owner has just renewed it",
        MARIADB,
        """           (expires_at <= UTC_TIMESTAMP(6)
            AND NOT (state = 'IN_PROGRESS' AND lease_until > UTC_TIMESTAMP(6)))
        OR state = 'RELEASED'
""",
        """           expires_at <= UTC_TIMESTAMP(6)
        OR state = 'RELEASED'
""",
        f"{CONTRACT} -k claim_repeats",
        leg="mariadb",
    ),
    Mutation(
        "single: an expired record is written over whose owner has just renewed it",
        POSTGRESQL,
        """   AND record.state = %(seen_state)s
   AND (-- expired
           (record.expires_at <= clock.now
            AND NOT (record.state = 'IN_PROGRESS' AND record.lease_until > clock.now))
""",
        """   AND record.state = %(seen_state)s
   AND (-- expired
           record.expires_at <= clock.now
""",
        f"{SINGLE} -k owner_renews",
        leg="postgres18",
    ),
    # The time of a statement, not of its transaction.
    Mutation(
        "a claim goes by the time at which its transaction began",
        POSTGRESQL,
        f"{_CLOCK}\n WHERE NOT EXISTS",
        f"{_NOW}\n WHERE NOT EXISTS",
        f"{CLAIM} -k R72",
        leg="postgres18",
    ),
    Mutation(
        "another claim goes by the time at which its transaction began",
        POSTGRESQL,
        f"""{_CLOCK},
       (SELECT id FROM idempotency_record WHERE id = %(id)s::uuid
           FOR NO KEY UPDATE SKIP LOCKED) AS free
 WHERE record.id = free.id
   AND record.token""",
        f"""{_NOW},
       (SELECT id FROM idempotency_record WHERE id = %(id)s::uuid
           FOR NO KEY UPDATE SKIP LOCKED) AS free
 WHERE record.id = free.id
   AND record.token""",
        f"{CLAIM} -k R72",
        leg="postgres18",
    ),
    Mutation(
        "a completion goes by the time at which its transaction began",
        POSTGRESQL,
        f"THEN record.expires_at ELSE clock.now + %(retention)s::interval END\n{_CLOCK}",
        f"THEN record.expires_at ELSE clock.now + %(retention)s::interval END\n{_NOW}",
        f"{CLAIM} -k R72",
        leg="postgres18",
    ),
    Mutation(
        "single completes by the time at which its transaction began",
        POSTGRESQL,
        f"       1, %(result)s::bytea, %(error)s\n{_CLOCK}",
        f"       1, %(result)s::bytea, %(error)s\n{_NOW}",
        f"{CLAIM} -k R72",
        leg="postgres18",
    ),
    # Coroutines that share a connection.
    Mutation(
        "an owner's write goes into the open transaction of another attempt",
        STATEMENTS,
        "                if foreign:  # an owner's write",
        "                if False:  # an owner's write",
        f"{HELD} -k anothers_transaction",
        leg="postgres18",
    ),
    Mutation(
        "a claim goes into the open transaction of another attempt",
        STATEMENTS,
        "        if foreign and name in _CLAIMS:\n            raise Block.open_error()\n",
        "",
        f"{HELD} -k anothers_transaction",
        leg="sqlite",
    ),
    Mutation(
        "a write beside the transaction of another attempt waits without bound",
        "stores/database/store.py",
        "alone = not self.connection.in_atomic_block or Block.is_foreign(self.connection)",
        "alone = not self.connection.in_atomic_block",
        f"{HELD} -k foreign",
        leg="postgres18",
    ),
    # Rows that somebody holds.
    Mutation(
        "PostgreSQL: a failure waits for its row without bound",
        POSTGRESQL,
        f"{_FAIL}{_BOUND}",
        f"{_FAIL}\n{_CLOCK}\n",
        f"{HELD} -k bound",
        leg="postgres18",
    ),
    Mutation(
        "PostgreSQL: a release waits for its row without bound",
        POSTGRESQL,
        f"{_RELEASE}{_BOUND}",
        f"{_RELEASE}\n{_CLOCK}\n",
        f"{HELD} -k bound",
        leg="postgres18",
    ),
    Mutation(
        "MariaDB: a failure waits for its row for as long as the session does",
        MARIADB,
        "SET STATEMENT innodb_lock_wait_timeout = 5 FOR\nUPDATE idempotency_record\n"
        "   SET state = 'FAILED'",
        "UPDATE idempotency_record\n   SET state = 'FAILED'",
        f"{HELD} -k bound",
        leg="mariadb",
    ),
    Mutation(
        "PostgreSQL: a sweep waits for rows that others hold",
        POSTGRESQL,
        "        FOR UPDATE SKIP LOCKED)\nDELETE",
        "        FOR UPDATE)\nDELETE",
        f"{HELD} -k sweep",
        leg="postgres18",
    ),
    Mutation(
        "PostgreSQL: an operator waits for a row that somebody holds",
        POSTGRESQL,
        """           FOR NO KEY UPDATE SKIP LOCKED) AS free
 WHERE record.id = free.id
   AND record.epoch""",
        """           FOR NO KEY UPDATE) AS free
 WHERE record.id = free.id
   AND record.epoch""",
        f"{HELD} -k operator_finds_it_busy",
        leg="postgres18",
    ),
    Mutation(
        "PostgreSQL: an operator decides on what a single attempt has claimed",
        POSTGRESQL,
        """   AND (%(action)s = 'expire' OR record.state IN ('IN_PROGRESS', 'FAILED'))
   AND pg_try_advisory_xact_lock(hashtextextended(
           %(id)s::uuid::text, 'idempotency_record'::regclass::oid::bigint))
""",
        """   AND (%(action)s = 'expire' OR record.state IN ('IN_PROGRESS', 'FAILED'))
""",
        f"{HELD} -k single_has_claimed",
        leg="postgres18",
    ),
    Mutation(
        "MariaDB: a sweep takes a record whose owner is still at it",
        MARIADB,
        """   AND NOT (state = 'IN_PROGRESS' AND lease_until > UTC_TIMESTAMP(6))
 ORDER BY""",
        " ORDER BY",
        f"{CONTRACT} -k sweep_leaves",
        leg="mariadb",
    ),
    Mutation(
        "MariaDB: a sweep takes a record that has not expired",
        MARIADB,
        """ WHERE expires_at <= UTC_TIMESTAMP(6)
   AND NOT (state = 'IN_PROGRESS' AND lease_until > UTC_TIMESTAMP(6))
 ORDER BY""",
        " ORDER BY",
        f"{CONTRACT} -k sweep_leaves",
        leg="mariadb",
    ),
    # Rows: the store contract on a database.
    Mutation(
        "the epoch of another claim is the clock, though the record's is ahead of it",
        POSTGRESQL,
        "greatest(record.epoch + 1, (extract(epoch FROM clock.now) * 1000000)::bigint)",
        "(extract(epoch FROM clock.now) * 1000000)::bigint",
        f"{CLAIM} -k epoch_grows",
        leg="postgres18",
    ),
    Mutation(
        "the epoch of single is the clock, though the record's is ahead of it",
        "stores/database/store.py",
        "max(int(now.timestamp() * 1_000_000), record.epoch + 1 if record else 0)",
        "int(now.timestamp() * 1_000_000)",
        f"{CLAIM} -k epoch_grows",
        leg="postgres18",
    ),
    Mutation(
        "a record that was claimed afresh keeps the fingerprint of the expired one",
        POSTGRESQL,
        "CASE WHEN record.expires_at <= clock.now OR record.fingerprint IS NULL",
        "CASE WHEN record.fingerprint IS NULL",
        f"{CONTRACT} -k R74_expired_record_is_claimed",
        leg="postgres18",
    ),
    Mutation(
        "a take-over is not told as one",
        "stores/database/store.py",
        "            takeover=is_takeover(seen),\n",
        "            takeover=False,\n",
        f"{CONTRACT} -k R66_lapsed_lease_is_taken_over",
        leg="sqlite",
    ),
    Mutation(
        "a claim that is sent again is refused by what it has won",
        "stores/database/store.py",
        "                if record.token == request.token and record.state is State.IN_PROGRESS:\n"
        "                    return lease_of_resent(request, record)\n",
        "",
        f"{CONTRACT} -k claim_whose_answer",
        leg="sqlite",
    ),
    Mutation(
        "a completion that is sent again is refused",
        "stores/database/store.py",
        "            raise\n        return utc(row[0]) if row else "
        "self._written_before(lease, State.COMPLETED)\n",
        "            raise\n        if not row:\n            raise LeaseLost\n"
        "        return utc(row[0])\n",
        f"{CONTRACT} -k completion_whose_answer",
        leg="sqlite",
    ),
    Mutation(
        "a late completion counts as made where another attempt has completed",
        "stores/database/store.py",
        "        if (record.epoch, record.token) != (lease.fencing_token, lease.token):\n"
        "            raise LeaseLost\n        return record.expires_at",
        "        return record.expires_at",
        f"{CONTRACT} -k R66_I7_late_completion",
        leg="sqlite",
    ),
    Mutation(
        "a release keeps the fingerprint",
        POSTGRESQL,
        "SET state = 'RELEASED', fingerprint = NULL, lease_until",
        "SET state = 'RELEASED', lease_until",
        f"{CONTRACT} -k release_keeps",
        leg="postgres18",
    ),
    Mutation(
        "a record whose take-over is refused lasts for ever, failed or not",
        SQLITE,
        """   SET state = 'FAILED', error = %(error)s, lease_until = NULL,
       updated_at = strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now'),
       expires_at = coalesce(expires_at,
                             strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now', %(retention)s))
""",
        """   SET state = 'FAILED', error = %(error)s, lease_until = NULL,
       updated_at = strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now')
""",
        f"{CONTRACT} -k ended_record_lasts",
        leg="sqlite",
    ),
    Mutation(
        "an answer is kept for half of its retention",
        POSTGRESQL,
        "%(retention)s::interval * 0.9",
        "%(retention)s::interval * 0.5",
        f"{CLAIM} -k nine_tenths",
        leg="postgres18",
    ),
    Mutation(
        "a sweep takes any of the expired",
        POSTGRESQL,
        "      ORDER BY expires_at\n      LIMIT %(limit)s\n        FOR UPDATE",
        "      LIMIT %(limit)s\n        FOR UPDATE",
        f"{CLAIM} -k batch",
        leg="postgres18",
    ),
    Mutation(
        "each lease is renewed in a statement of its own",
        "stores/database/store.py",
        "            return self._renew(leases, duration)\n\n    def _renew(",
        "            return {x for lease in leases for x in self._renew([lease], duration)}\n\n"
        "    def _renew(",
        f"{CLAIM} -k round_trip",
        leg="sqlite",
    ),
    Mutation(
        "a renewal that meets SQLite's write lock raises",
        "stores/database/store.py",
        """            if self.connection.vendor == "sqlite" and "locked" in str(error.__cause__):
                return set(leases)
""",
        "",
        "tests/integration/database/test_sqlite.py -k renewal",
        leg="sqlite",
    ),
    Mutation(
        "single claims by the lock alone, whatever its isolation level",
        "stores/database/store.py",
        "        if isolation != READ_COMMITTED:\n",
        "        if False:\n",
        "tests/integration/database/test_isolation.py -k begins_again",
        leg="postgres18",
    ),
    Mutation(
        "joined is renewed at every isolation level",
        "stores/database/store.py",
        'return self.connection.vendor != "sqlite" and self.may_renew_joined(isolation)',
        'return self.connection.vendor != "sqlite"',
        "tests/integration/database/test_isolation.py -k joined_is_not_renewed",
        leg="postgres18",
    ),
    Mutation(
        "a statement that met a concurrent change is not sent again",
        STATEMENTS,
        "                elif not tries or not is_serialization_failure(error):\n",
        "                else:\n",
        "tests/integration/database/test_isolation.py -k owner_writes_again",
        leg="postgres18",
    ),
    # Connections, transactions and what they cost.
    Mutation(
        "an owner's write is not sent again on another connection",
        STATEMENTS,
        '_OWNERS_WRITES = ("COMPLETE", "FAIL", "RELEASE")',
        "_OWNERS_WRITES = ()",
        "tests/integration/database/test_lost_answers.py -k end_of_separate",
        leg="postgres18",
    ),
    Mutation(
        "a claim that is newer than the caller's snapshot is an error of the store",
        "stores/database/store.py",
        "                elif self.connection.in_atomic_block:\n"
        "                    raise ClaimAgain from error\n",
        "                elif self.connection.in_atomic_block:\n                    raise\n",
        "tests/integration/database/test_isolation.py -k newer_record",
        leg="postgres18",
    ),
    Mutation(
        "the renewer waits for a connection of the pool",
        "stores/database/fresh.py",
        '    options.pop("pool", None)\n',
        "",
        "tests/integration/database/test_pools.py -k keeper",
        leg="postgres18",
    ),
    Mutation(
        "PostgreSQL: a claim of a new key looks first",
        POSTGRESQL,
        "LOOK_FIRST = False",
        "LOOK_FIRST = True",
        "tests/integration/database/test_statement_counts.py -k R24",
        leg="postgres18",
    ),
    Mutation(
        "single believes what it saw before it had the lock",
        "stores/database/store.py",
        "        record, now = self._look(request.record_id)\n"
        "        if record is not None and decide(",
        "        if record is not None and decide(",
        "tests/integration/database/test_statement_counts.py -k single",
        leg="postgres18",
    ),
    Mutation(
        "MariaDB: the claim of a new key waits for another's",
        MARIADB,
        "SET STATEMENT innodb_lock_wait_timeout = 0 FOR\nINSERT INTO",
        "INSERT INTO",
        "tests/integration/database/test_mariadb.py -k told_at_once",
        leg="mariadb",
    ),
    Mutation(
        "the work of SQLite's joined begins without a write",
        "stores/database/store.py",
        "        if self._sql.FENCE is None:\n            return\n",
        "        return\n",
        "tests/integration/database/test_fence.py",
        leg="sqlite",
    ),
    Mutation(
        "each batch of a sweep reads the whole table",
        POSTGRESQL,
        """ WHERE record.id = expired.id
   AND record.expires_at <= now()
   AND NOT (record.state = 'IN_PROGRESS' AND record.lease_until > now())
""",
        " WHERE record.id = expired.id\n",
        "tests/proof/database/test_large_sweep.py",
        leg="postgres18",
    ),
]
