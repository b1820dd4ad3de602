"""Numbers of a whole table: exact, within a time, and without results."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from prometheus_client import CollectorRegistry

from django_idempotency.conf import store_for
from django_idempotency.contrib.prometheus import collector as collecting
from django_idempotency.contrib.prometheus.collector import StoreCollector
from django_idempotency.exceptions import StoreError
from django_idempotency.models import IdempotencyRecord
from django_idempotency.operators.search import waiting
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
    with store.limited(60), CaptureQueriesContext(connection) as asked:
        assert store.count_stale() == stale
    [statement] = [query["sql"] for query in asked.captured_queries]
    assert "result" not in statement


def test_a_statement_that_takes_too_long_ends_and_the_next_may_take_its_time(
    store, stale, monkeypatch
):
    with monkeypatch.context() as patch:
        patch.setitem(store._texts, ("COUNT_STALE", None), ENDLESS)
        with pytest.raises(StoreError, match="COUNT_STALE"), store.limited(0.2):
            assert [*waiting(store, 60)][1]
    with connection.cursor() as cursor:  # the project's own, which has no limit
        cursor.execute(ENDLESS.replace("1000000000", "40"))
        assert cursor.fetchone()[0] > 2_000_000
    with store.limited(60):
        assert [*waiting(store, 60)][1] == stale


def test_S13_held_records_are_found_in_one_statement_but_those_of_running_attempts(store, stale):
    for row in IdempotencyRecord.objects.filter(key__in=["stale 7", "stale 8", "held"]):
        row.expires_at, row.created_at = None, row.created_at - timedelta(hours=int(row.pk) % 7)
        row.save()
    oldest = IdempotencyRecord.objects.filter(expires_at=None).exclude(key="held")
    with store.limited(60), CaptureQueriesContext(connection) as asked:
        held = next(waiting(store, 60))
    assert [record.key for record in held] == [row.key for row in oldest.order_by("created_at")]
    statements = [query["sql"] for query in asked.captured_queries]
    assert sum("FROM idempotency_record" in each for each in statements) == 1


@pytest.mark.leg("postgres18", "mariadb")
def test_a_limit_ends_with_its_block_though_the_transaction_goes_on(store):
    asked = "SELECT @@SESSION.max_statement_time"
    if connection.vendor == "postgresql":
        asked = "SELECT current_setting('statement_timeout')"

    def limit():
        with connection.cursor() as cursor:
            cursor.execute(asked)
            return cursor.fetchone()[0]

    with transaction.atomic():
        before = limit()
        with store.limited(7):
            assert limit() in (7, "7s")
        assert limit() == before


def test_numbers_are_absent_where_they_take_too_long_and_the_store_is_up(
    store, stale, monkeypatch, caplog
):
    monkeypatch.setattr(collecting, "_WAIT", 60)

    def gauges():
        registry = CollectorRegistry()
        registry.register(StoreCollector(["default"], seconds=1))
        names = ("store_up", "stale_leases", "held_records", "expired_records")
        labels = {"alias": "default"}
        return [registry.get_sample_value(f"django_idempotency_{it}", labels) for it in names]

    assert gauges() == [1, stale, 0, 0]
    monkeypatch.setitem(store_for()._texts, ("COUNT_STALE", None), ENDLESS)
    assert gauges() == [1, None, 0, 0]
    assert "The gauges of default could not be read." in caplog.text


def test_two_scrapes_at_once_ask_once(store, monkeypatch):
    monkeypatch.setattr(collecting, "_WAIT", 60)
    looks = []
    collector = StoreCollector(["default"])
    ask = collector._ask
    monkeypatch.setattr(collector, "_ask", lambda store: looks.append(store) or ask(store))

    run_in_threads(8, lambda index: [*collector.collect()])
    assert len(looks) == 1
