"""The sweep of a million records, beside leases that are being claimed and completed."""

from __future__ import annotations

import threading
import tracemalloc
from datetime import datetime, timedelta, timezone

import pytest
from django.db import connection, connections

from django_idempotency.leases import Lease
from django_idempotency.models import IdempotencyRecord
from django_idempotency.records import State
from django_idempotency.stores.database.postgresql import PostgreSQL
from django_idempotency.sweep import sweep
from tests.integration.database.claims import claim_request

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.leg("postgres18"),
    pytest.mark.processes,  # it wants the machine, as those do
]

TOGETHER = 1000
EXPIRED, LIVE = 1_000_000, 10_000
HOUR = timedelta(hours=1)
#: They expired within so many.
SECONDS = 100_000

# Half of them completed long ago, the others failed, or left in progress by a process that died.
FILL = f"""
INSERT INTO idempotency_record (
       id, scope, key, operation, fingerprint, state, epoch, token,
       lease_until, created_at, updated_at, expires_at, attempts, result, error)
SELECT gen_random_uuid(), 'scope', 'key', '', '\\x00',
       (ARRAY['COMPLETED', 'COMPLETED', 'FAILED', 'IN_PROGRESS'])[n %% 4 + 1],
       n, gen_random_uuid(), now() - interval '2 days', now() - interval '3 days',
       now() - interval '3 days', now() - n %% {SECONDS} * interval '1 second', 1, '\\x00', ''
  FROM generate_series(1, %s) AS n
"""


def explained(cursor, sweep):
    nearly_done = datetime.now(timezone.utc) - timedelta(seconds=SECONDS / 10)
    cursor.execute(f"EXPLAIN {sweep}", {"after": nearly_done, "limit": 1000})
    return "\n".join(line for (line,) in cursor.fetchall())


def test_I9_R75_a_million_expired_records_go_and_no_lease_is_lost(store):
    with connection.cursor() as cursor:
        cursor.execute(FILL, [EXPIRED])
        cursor.execute("ANALYZE idempotency_record")
        plans = [
            explained(cursor, PostgreSQL.SWEEP),
            explained(cursor, PostgreSQL.SWEEP_NEXT),
        ]
    leases, stop = [], threading.Event()

    def claim_meanwhile():
        try:
            for number in range(LIVE):
                lease = store.claim(claim_request(f"live {number}", lease=HOUR))
                assert isinstance(lease, Lease)
                leases.append(lease)
                if stop.is_set() and number > LIVE / 2:
                    break
        finally:
            connections.close_all()

    claimant = threading.Thread(target=claim_meanwhile)
    claimant.start()
    tracemalloc.start()
    swept = sweep("default")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    stop.set()
    claimant.join()

    assert swept == {"default": EXPIRED}
    for start in range(0, len(leases), TOGETHER):  # a renewal has seconds to be answered
        some = leases[start : start + TOGETHER]
        assert store.renew(some, HOUR) == set(some)
    assert set(IdempotencyRecord.objects.values_list("state", flat=True)) == {State.IN_PROGRESS}
    assert IdempotencyRecord.objects.count() == len(leases) > LIVE / 2

    # Each batch is found by the index and deleted where it is, whatever the table's size.
    for plan in plans:
        assert "Index Scan using idempotency_expires_at" in plan, plan
        assert "Tid Scan on idempotency_record" in plan, plan
        assert "Seq Scan" not in plan, plan
        assert "Sort" not in plan, plan
    assert peak < 16_000_000  # the leases of this test; a million ids alone would be 40 MB
