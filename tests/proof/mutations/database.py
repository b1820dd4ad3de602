"""Changes of the database store, its statements and the transaction around its work."""

from __future__ import annotations

from tests.proof.mutations import Mutation

POSTGRESQL = "stores/sql_postgresql.py"
SQLITE = "stores/sql_sqlite.py"
MARIADB = "stores/sql_mariadb.py"
STATEMENTS = "stores/statements.py"

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
        "stores/database.py",
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
]
