"""Numbers of a whole table: exact, within a time, and without results."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from prometheus_client import CollectorRegistry

from django_idempotency.contrib.prometheus import collector as collecting
from django_idempotency.contrib.prometheus.collector import StoreCollector
from django_idempotency.exceptions import StoreError
from django_idempotency.models import IdempotencyRecord
from django_idempotency.operators.counting import stale_leases, within
from tests.integration.database import claims
from tests.integration.database.claims import claim_request
from tests.services.threads import run_in_threads

pytestmark = pytest.mark.django_db(transaction=True)

#: Runs for minutes unless it is stopped.
ENDLESS = """
WITH RECURSIVE numbers (number) AS (
    SELECT 1 UNION ALL SELECT number + 1 FROM numbers WHERE number < 1000000000
)
SELECT count(*) FROM numbers AS a, numbers AS b, numbers AS c, numbers AS d
 WHERE a.number <> b.number + c.number + d.number
"""


@pytest.fixture
def stale(store):
    """A completed record, one that is held, and 120 under lapsed leases."""
    claims.completed(store, claim_request("done"))
    for number in range(120):
        claims.live(store, claim_request(f"stale {number}"))
    rows = IdempotencyRecord.objects.filter(state="IN_PROGRESS")
    claims.live(store, claim_request("held"))
    lapsed = rows.exclude(key="held")
    for row in lapsed:
        row.lease_until -= timedelta(hours=1)
    IdempotencyRecord.objects.bulk_update(lapsed, ["lease_until"])
    return 120


def test_stale_leases_are_counted_in_one_statement_that_reads_no_result(store, stale):
    with within(store, 60):  # which may open a connection anew
        connection.ensure_connection()
        with CaptureQueriesContext(connection) as asked:
            assert stale_leases(store, 60) == stale
    [statement] = [query["sql"] for query in asked.captured_queries]
    assert "result" not in statement


def test_a_statement_that_takes_too_long_ends_and_the_next_may_take_its_time(store, stale):
    with (
        pytest.raises(StoreError, match="could not be read"),
        within(store, 0.2),
        connection.cursor() as cursor,
    ):
        cursor.execute(ENDLESS)
    with connection.cursor() as cursor:  # the project's own, which has no limit
        cursor.execute(ENDLESS.replace("1000000000", "40"))
        assert cursor.fetchone()[0] > 2_000_000
    with within(store, 60):
        assert stale_leases(store, 60) == stale


def test_numbers_are_absent_where_they_take_too_long_and_the_store_is_up(
    store, stale, monkeypatch, caplog
):
    monkeypatch.setattr(collecting, "_WAIT", 60)

    def gauges():
        registry = CollectorRegistry()
        registry.register(StoreCollector(["default"], seconds=1))
        names = ("store_up", "stale_leases", "expired_records")
        labels = {"alias": "default"}
        return [registry.get_sample_value(f"django_idempotency_{it}", labels) for it in names]

    assert gauges() == [1, stale, 0]
    vendor = connection.vendor
    monkeypatch.setitem(collecting.stale_leases.__globals__["_STALE"], vendor, ENDLESS)
    assert gauges() == [1, None, 0]
    assert "The gauges of default could not be read." in caplog.text


def test_two_scrapes_at_once_ask_once(store, monkeypatch):
    monkeypatch.setattr(collecting, "_WAIT", 60)
    looks = []
    collector = StoreCollector(["default"])
    ask = collector._ask
    monkeypatch.setattr(collector, "_ask", lambda store: looks.append(store) or ask(store))

    run_in_threads(8, lambda index: [*collector.collect()])
    assert len(looks) == 1
