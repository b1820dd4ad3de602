"""
The alert of stale leases, by its runbook, in a browser: ``python -m benchmarks.runbook [rows]``.

PostgreSQL has five million records, of which 39 are stale and older than the newest million; Redis
has 2 000, of which 7 are. For each store: how long its pages take once they are warm; how long the
command of the runbook takes, then from the overview to a released record; the numbers that both
say. RUNBOOK_SCREENSHOTS names a folder for pictures of the way.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg

from tests.acceptance.databases import FILL_SHOP, commands
from tests.services.chromium import chromium
from tests.services.gunicorn import Gunicorn
from tests.services.postgres import PostgresServer
from tests.services.processes import ROOT
from tests.services.redis import RedisServer

ADMIN = "/admin/django_idempotency/idempotencyrecord/"
STALE = {"default": 39, "redis": 7}
KEYS_IN_REDIS = 2_000
#: Pages, what follows the address of a store's list, and how often each is timed.
PAGES = {"overview": "overview/", "key alone": "?q=order-77"}
TIMES = 9
PICTURES = os.environ.get("RUNBOOK_SCREENSHOTS")

#: Completed and failed records of a day; the stale ones are among the oldest.
FILL = """
INSERT INTO idempotency_record (
       id, scope, key, operation, fingerprint, state, epoch, token,
       lease_until, created_at, updated_at, expires_at, attempts, result, error)
SELECT md5(n::text)::uuid, 'user:auth.user:' || n %% 1000, 'key-' || n, 'POST shop:' || n %% 20,
       decode(repeat('ab', 32), 'hex'),
       CASE WHEN stale THEN 'IN_PROGRESS' WHEN n %% 100 = 1 THEN 'FAILED' ELSE 'COMPLETED' END,
       n, md5('token' || n)::uuid, CASE WHEN stale THEN made + interval '1 minute' END, made, made,
       now() + interval '30 hours' - n * interval '10 ms', 1,
       CASE WHEN NOT stale THEN decode(repeat('cd', 200), 'hex') END, ''
  FROM generate_series(1, %(rows)s) AS n,
       LATERAL (SELECT now() - n * interval '10 ms' AS made,
                       n > %(rows)s - %(stale)s AS stale) AS it
"""


def fill_redis(keys: int, stale: int) -> None:
    """Make completed records, and stale ones that are older; runs in a process of the shop."""
    from datetime import timedelta

    from django_idempotency.claims import ClaimRequest
    from django_idempotency.conf import stores
    from django_idempotency.keys import record_id

    store = stores["redis"]
    for number in range(keys):
        key, lease = f"order-{number}", timedelta(milliseconds=1 if number < stale else 60_000)
        name = record_id("call", "billing", key)
        lease_of = store.claim(ClaimRequest(name, "billing", key, "charge", lease=lease))
        if number >= stale:
            store.complete(lease_of, b"x" * 200, retention=timedelta(hours=24))  # type: ignore[arg-type]


def main(rows: int) -> None:
    with ExitStack() as stack:
        postgres = stack.enter_context(PostgresServer(18))
        redis = stack.enter_context(RedisServer())
        postgres.create_database("runbook")
        url = postgres.url.replace("/postgres?", "/runbook?")
        env = {
            "DJANGO_SETTINGS_MODULE": "benchmarks.site.runbook",
            "EXAMPLE_SECRET_KEY": "benchmark",
            "EXAMPLE_DATABASE_URL": url,
            "EXAMPLE_REDIS_URL": redis.url,
        }
        commands(FILL_SHOP, env)
        fill = f"from benchmarks.runbook import fill_redis; fill_redis({KEYS_IN_REDIS}, 7)"
        commands(f"from tests.acceptance.browser import owners; owners.users()\n{fill}", env)
        with psycopg.connect(url, autocommit=True) as session:
            session.execute("SET synchronous_commit = off")
            session.execute(FILL, {"rows": rows, "stale": STALE["default"]})
            session.execute("VACUUM ANALYZE idempotency_record")
        server = stack.enter_context(Gunicorn(env=env, workers=2, timeout=120))
        page = stack.enter_context(chromium()).new_context(base_url=server.url).new_page()
        page.goto(f"/admin/login/?next={ADMIN}")
        page.get_by_label("Username").fill("operator")
        page.get_by_label("Password").fill("operator-demo")
        page.get_by_role("button", name="Log in").click()
        page.wait_for_url(lambda where: "login" not in where)
        print(f"{rows:,} rows, {KEYS_IN_REDIS:,} keys in Redis")
        print("| page | " + " | ".join(f"{alias}, ms" for alias in STALE) + " |")
        print("|---" * (1 + len(STALE)) + "|")
        for name, after in PAGES.items():
            taken = [f"{warm(page, f'{ADMIN}store/{alias}/{after}'):.0f}" for alias in STALE]
            print(f"| {name} | {' | '.join(taken)} |", flush=True)
        print("| store | `idempotency_show --stale` says | s | overview to released, s |")
        print("|---|---|---|---|")
        for alias in STALE:
            began = time.monotonic()
            said = told(alias, env)
            listed, began = time.monotonic() - began, time.monotonic()
            release_one(page, alias)
            took = time.monotonic() - began
            print(f"| {alias} | {said} | {listed:.1f} | {took:.1f} |", flush=True)


def warm(page: Any, url: str) -> float:
    """Return the median of the milliseconds that a page takes after the first time."""
    times = []
    for _ in range(TIMES + 1):
        began = time.perf_counter()
        assert page.request.get(url).ok, url
        times.append((time.perf_counter() - began) * 1000)
    return statistics.median(times[1:])


def told(alias: str, env: dict[str, str]) -> str:
    """Return the last line of the runbook's command."""
    command = [sys.executable, "-m", "django", "idempotency_show", "--stale", "--store", alias]
    given = {**os.environ, **env}
    done = subprocess.run(
        command, cwd=ROOT, env=given, check=True, capture_output=True, text=True
    ).stdout
    last = done.splitlines()[-1]
    assert last.startswith(f"{STALE[alias]} leases are stale."), last
    return last


def release_one(page: Any, alias: str) -> None:
    """Count the stale leases, list them, read one and release it, as an operator does."""
    from playwright.sync_api import expect

    page.goto(f"{ADMIN}store/{alias}/overview/")
    if page.get_by_text("stale leases: count them in all records").count():
        page.get_by_text("stale leases: count them in all records").click()
    tile = page.locator(".idempotency-cards .alarm a").first
    expect(tile.locator("strong")).to_have_text(str(STALE[alias]), timeout=60_000)
    picture(page, f"{alias}-overview")
    tile.click()
    rows = page.locator("#result_list tbody tr")
    while not rows.count():  # a page ends after five seconds
        page.get_by_role("link", name="Look at older records").click()
    picture(page, f"{alias}-list")
    rows.first.locator("a").first.click()
    expect(page.get_by_text("Was the work done?")).to_be_visible()
    picture(page, f"{alias}-record")
    page.get_by_role("button", name="Release").click()
    page.get_by_label("Reason").fill("the gateway knows no such charge")
    page.get_by_role("button", name="Release").click()
    expect(page.get_by_text("Released: 1 record.")).to_be_visible()
    picture(page, f"{alias}-released")


def picture(page: Any, name: str) -> None:
    if PICTURES is not None:
        page.screenshot(path=Path(PICTURES) / f"{name}.png", full_page=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5_000_000)
