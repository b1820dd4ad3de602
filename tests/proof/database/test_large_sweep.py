"""The sweep of a million records, beside leases that are being claimed and completed."""

from __future__ import annotations

import pytest

from tests.integration.database.test_large_sweep import sweep_beside_claims

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.leg("postgres18"),
    pytest.mark.processes,  # it wants the machine, as those do
]


def test_I9_R75_a_million_expired_records_go_and_no_lease_is_lost(store):
    plan, peak = sweep_beside_claims(store, expired=1_000_000, live=10_000)

    # Each batch is found by the index and deleted by the primary key, whatever the table's size.
    assert "Index Scan using idempotency_expires_at" in plan, plan
    assert "Index Scan using idempotency_record_pkey" in plan, plan
    assert "Seq Scan" not in plan, plan
    assert peak < 16_000_000  # the leases of this test; a million ids alone would be 40 MB
