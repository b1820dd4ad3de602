"""Changes that processes, pools and the testing kit's crashes show."""

from __future__ import annotations

from tests.proof.mutations import Mutation

MUTATIONS = [
    Mutation(
        "crash_at passes no point right before the completion",
        "testing/crash.py",
        '    "complete": ("after_work", "before_complete"),\n',
        '    "complete": ("after_work",),\n',
        "tests/unit/contract/test_crash_at.py -k R65",
    ),
    Mutation(
        "the claim's lock belongs to the session, and outlives its transaction behind PgBouncer",
        "stores/database/postgresql.py",
        "WHERE NOT EXISTS (SELECT 1 FROM idempotency_record WHERE id = %(id)s::uuid)\n"
        "   AND pg_try_advisory_xact_lock(",
        "WHERE NOT EXISTS (SELECT 1 FROM idempotency_record WHERE id = %(id)s::uuid)\n"
        "   AND pg_try_advisory_lock(",
        "tests/acceptance/processes/test_pgbouncer.py -k work_that_fails",
        leg="postgres18",
    ),
]
