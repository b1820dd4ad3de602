"""The pages of the admin over a large table: few statements, none reads more than a look does."""

from __future__ import annotations

import json
from urllib.parse import quote

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_idempotency.admin import overviews
from django_idempotency.operators import search
from django_idempotency.stores import base

pytestmark = [pytest.mark.leg("postgres18", "postgres16"), pytest.mark.django_db(transaction=True)]

LIST = "/admin/django_idempotency/idempotencyrecord/"
#: As in production: most are completed, some have expired, and few are failed or in progress.
FILL = """
INSERT INTO idempotency_record (
       id, scope, key, operation, fingerprint, state, epoch, token,
       lease_until, created_at, updated_at, expires_at, attempts, result, error)
SELECT md5(n::text)::uuid, 'user:auth.user:' || n %% 1000, 'key-' || n, 'POST shop:' || n %% 20,
       decode(repeat('ab', 32), 'hex'),
       CASE WHEN n %% 500 = 0 THEN 'IN_PROGRESS' WHEN n %% 100 = 1 THEN 'FAILED'
            ELSE 'COMPLETED' END,
       n, md5('token' || n)::uuid,
       CASE WHEN n %% 500 = 0 THEN now() - interval '1 minute' END,
       now() - n * interval '20 ms', now() - n * interval '20 ms',
       CASE WHEN n %% 5000 <> 0 THEN now() + interval '22 hours' - n * interval '20 ms' END, 1,
       CASE WHEN n %% 500 <> 0 THEN decode(repeat('cd', 200), 'hex') END, ''
  FROM generate_series(1, %s) AS n
"""
PAGES = {
    "list": "",
    "next page": "?cursor={cursor}",
    "filter: stale": "?state=stale",
    "filter: held": "?state=held",
    "filter: none found": "?state=RELEASED",
    "filter: operation": "?operation=POST+shop%3A7",
    "filter: user": "?scope=admin",
    "filter: age": "?age=over-1d",
    "search: user and key": "?q=admin+key-1",
    "search: tenant, user, key": "?q=acme+admin+key-1",
    "search: record id": "?q={id}",
    "search: short id": "?q={short}",
    "search: key": "?q=key-77",
    "search: nothing found": "?q=nothing",
    "record": "{id}/change/",
    "overview": "store/default/overview/",
}


#: Rows that an incremental sort takes in beyond those that it is asked for.
SORTED_AT_ONCE = 32


class Page:
    """What a page has asked the database: its statements, and how each of them runs."""

    def __init__(self, client, url):
        with CaptureQueriesContext(connection) as captured:
            response = client.get(LIST + url)
        assert response.status_code == 200, url
        assert "errornote" not in response.content.decode(), url
        self.statements = [each["sql"] for each in captured]
        of_table = [
            sql
            for sql in self.statements
            if "idempotency_record" in sql and "pg_index" not in sql  # that reads the catalogue
        ]
        self.plans = [explained(sql) for sql in of_table if sql.startswith(("SELECT", "\nSELECT"))]
        self.milliseconds = [plan["Execution Time"] for plan in self.plans]
        self.nodes = [node for plan in self.plans for node in nodes_of(plan["Plan"])]

    @property
    def read(self):
        """How many rows the scan that reads most has read."""
        return max((rows_of(node) for node in self.nodes if "Scan" in node["Node Type"]), default=0)


def explained(sql):
    with connection.cursor() as cursor:
        cursor.execute("EXPLAIN (ANALYZE, FORMAT JSON) " + sql.replace("%", "%%"), ())
        [plan] = cursor.fetchone()
    return (json.loads(plan) if isinstance(plan, str) else plan)[0]


def nodes_of(plan):
    yield plan
    for inner in plan.get("Plans", ()):
        yield from nodes_of(inner)


def rows_of(node):
    removed = sum(value for name, value in node.items() if name.startswith("Rows Removed"))
    return (node["Actual Rows"] + removed) * node["Actual Loops"]


def pages(rows):
    """Fill the table; the URLs of pages over it by their names."""
    with connection.cursor() as cursor:
        cursor.execute(FILL, [rows])
        cursor.execute("VACUUM ANALYZE idempotency_record")
        key = f"key-{rows // 2 + 2}"  # not one of those without an expiry
        cursor.execute("SELECT id, expires_at FROM idempotency_record WHERE key = %s", [key])
        [(record_id, expires_at)] = cursor.fetchall()
    cursor = quote(json.dumps([expires_at.isoformat(), str(record_id)]))
    given = {"id": record_id, "short": str(record_id)[:12], "cursor": cursor}
    return {name: url.format(**given) for name, url in PAGES.items()}


def test_no_statement_of_a_page_reads_more_than_a_look(admin_client, monkeypatch):
    monkeypatch.setattr(search, "NEWEST", 500)
    monkeypatch.setattr(overviews, "_NEWEST", 500)
    monkeypatch.setattr(base, "LOOKED_AT", 500)  # of all records, for stale leases
    for name, url in pages(30_000).items():
        page = Page(admin_client, url)
        assert len(page.statements) < (90 if name == "filter: stale" else 24), name
        assert page.plans, name
        assert page.read <= 501 + SORTED_AT_ONCE, (name, page.nodes)
        assert {node["Node Type"] for node in page.nodes}.isdisjoint({"Seq Scan"}), name
