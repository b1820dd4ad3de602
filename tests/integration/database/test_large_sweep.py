"""The sweep of a large table beside claims; make proof has one of a million records."""

from __future__ import annotations

import threading
import tracemalloc
from datetime import timedelta

import pytest
from django.db import connection, connections

from django_idempotency.leases import Lease
from django_idempotency.models import IdempotencyRecord
from django_idempotency.records import State
from django_idempotency.stores.database.postgresql import PostgreSQL
from django_idempotency.sweep import sweep
from tests.integration.database.claims import claim_request

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.leg("postgres18")]

TOGETHER = 1000
HOUR = timedelta(hours=1)

# Half of them completed long ago, the others failed, or left in progress by a process that died.
FILL = """
INSERT INTO idempotency_record (
       id, scope, key, operation, fingerprint, state, epoch, token,
       lease_until, created_at, updated_at, expires_at, attempts, result, error)
SELECT gen_random_uuid(), 'scope', 'key', '', '\\x00',
       (ARRAY['COMPLETED', 'COMPLETED', 'FAILED', 'IN_PROGRESS'])[n %% 4 + 1],
       n, gen_random_uuid(), now() - interval '2 days', now() - interval '3 days',
       now() - interval '3 days', now() - n %% 100000 * interval '1 second', 1, '\\x00', ''
  FROM generate_series(1, %s) AS n
"""


def sweep_beside_claims(store, expired, live):
    """Sweep so many while others are claimed; return how PostgreSQL plans it, and the memory."""
    with connection.cursor() as cursor:
        cursor.execute(FILL, [expired])
        cursor.execute("ANALYZE idempotency_record")
        cursor.execute(f"EXPLAIN {PostgreSQL.SWEEP}", {"limit": 5000})
        plan = "\n".join(line for (line,) in cursor.fetchall())
    leases, stop = [], threading.Event()

    def claim_meanwhile():
        try:
            for number in range(live):
                lease = store.claim(claim_request(f"live {number}", lease=HOUR))
                assert isinstance(lease, Lease)
                leases.append(lease)
                if stop.is_set() and number > live / 2:
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

    assert swept == {"default": expired}
    for start in range(0, len(leases), TOGETHER):  # a renewal has seconds to be answered
        some = leases[start : start + TOGETHER]
        assert store.renew(some, HOUR) == set(some)
    assert set(IdempotencyRecord.objects.values_list("state", flat=True)) == {State.IN_PROGRESS}
    assert IdempotencyRecord.objects.count() == len(leases) > live / 2
    return plan, peak


def test_I9_R75_expired_records_go_and_no_lease_is_lost(store):
    sweep_beside_claims(store, expired=12_000, live=300)
