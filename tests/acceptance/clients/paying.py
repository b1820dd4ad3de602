"""Payments in the shop, behind a proxy that drops every third answer, by a server that dies."""

from __future__ import annotations

import subprocess
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psycopg
import requests

from django_idempotency.client import RetryPolicy
from django_idempotency.client.httpx import IdempotencyTransport
from django_idempotency.client.requests import IdempotencyAdapter
from tests.services.dynamodb import find_node
from tests.services.gunicorn import Gunicorn
from tests.services.proxy import Proxy
from tests.services.servers import HOST, Server

USER = ("alice", "alice-demo")  # as `seed` makes her
THREADS = 8
#: On a busy machine a server takes its time to start. pay.ts has the same.
POLICY = RetryPolicy(attempts=1000, seconds=600, max_backoff=2)
ACCOUNT = "SELECT id, balance FROM shop_account ORDER BY id LIMIT 1"
CHARGED = "SELECT reference FROM shop_payment"

#: Gives the number and the status of each payment, as soon as it is made.
Pay = Callable[[str, int, range], Iterator[tuple[int, int]]]


def by_httpx(url: str, account: int, numbers: range) -> Iterator[tuple[int, int]]:
    with httpx.Client(transport=IdempotencyTransport(policy=POLICY), auth=USER) as client:
        yield from _by_threads(client.post, url, account, numbers)


def by_requests(url: str, account: int, numbers: range) -> Iterator[tuple[int, int]]:
    with requests.Session() as session:
        session.auth = USER
        session.mount("http://", IdempotencyAdapter(policy=POLICY))
        yield from _by_threads(session.post, url, account, numbers)


def _by_threads(
    post: Callable[..., Any], url: str, account: int, numbers: range
) -> Iterator[tuple[int, int]]:
    def pay(number: int) -> tuple[int, int]:
        body = {"account": account, "amount": 1, "reference": f"payment {number}"}
        return number, post(url, json=body).status_code

    with ThreadPoolExecutor(THREADS) as threads:
        yield from threads.map(pay, numbers)


def by_fetch(url: str, account: int, numbers: range) -> Iterator[tuple[int, int]]:
    node = [find_node(), "--no-warnings", "--experimental-strip-types"]
    basic = f"Basic {b64encode(':'.join(USER).encode()).decode()}"
    words = [url, basic, str(account), str(numbers.start), str(numbers.stop)]
    command = [*node, Path(__file__).with_name("pay.ts"), *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            number, status = map(int, line.split())
            yield number, status


CLIENTS: dict[str, Pay] = {"httpx": by_httpx, "requests": by_requests, "fetch": by_fetch}


def kill_workers(server: Server) -> None:
    """Kill what works at requests, and wait: else the next death could be of the same."""
    assert isinstance(server, Gunicorn)
    server.kill_workers()


def kill_all(server: Server) -> None:
    """Kill the server, and start it again."""
    server.kill()
    server.start()


def each_is_charged_once(
    server: Server, database: str, pay: Pay, numbers: range, *, kill: Callable[[Server], None]
) -> None:
    """Pay that often; meanwhile every third answer is lost, and the server dies twice."""
    statuses: Counter[int] = Counter()
    deaths = [numbers[len(numbers) // 3], numbers[2 * len(numbers) // 3]]
    with Proxy(HOST, server.port) as proxy, psycopg.connect(database, autocommit=True) as session:
        [(account, before)] = session.execute(ACCOUNT).fetchall()
        proxy.drop_every(3, b'"reference"')  # in the body, which may come after the head
        for number, status in pay(f"http://{HOST}:{proxy.port}/api/payments/", account, numbers):
            statuses[status] += 1
            if number in deaths:
                kill(server)
                proxy.lead_to(server.port)
        charged = Counter(session.execute(CHARGED).fetchall())
        [(_, after)] = session.execute(ACCOUNT).fetchall()

    assert statuses == {201: len(numbers)}
    assert {(f"payment {number}",): 1 for number in numbers}.items() <= charged.items()
    assert before - after == len(numbers) <= 3 * proxy.dropped
