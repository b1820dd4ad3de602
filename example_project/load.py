"""
Put load on a shop that runs: ``python -m example_project.load --seconds 10``.

One to three clients send each order at once, under one key, hang up early, and send it again until
there is an answer. Then the books say how often each order was charged.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
import time
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.client import HTTPException
from http.cookiejar import CookieJar
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode, urljoin
from urllib.request import HTTPCookieProcessor, ProxyHandler, Request, build_opener

USER = {"username": "alice", "password": "alice-demo"}
PAYMENTS = "/api/payments/"
#: Answers after which a client is to send the same again.
AGAIN = {409: "in progress", 503: "unavailable"}
Answer = tuple[int, bool, Any]


class Shop:
    """A shop, and a session in it that all clients share."""

    def __init__(self, url: str) -> None:
        self._url, self._jar = url, CookieJar()
        self._opener = build_opener(ProxyHandler({}), HTTPCookieProcessor(self._jar))
        self._opener.open(f"{url}/api-auth/login/", timeout=30).close()
        form = {**USER, "csrfmiddlewaretoken": self._token(), "next": "/api/docs/"}
        self._opener.open(f"{url}/api-auth/login/", urlencode(form).encode(), 30).close()

    def _token(self) -> str:
        return next(str(cookie.value) for cookie in self._jar if cookie.name == "csrftoken")

    def send(self, path: str, body: Any = None, key: str = "", timeout: float = 30) -> Answer:
        """GET, or POST a body; return the status, whether it is a replay, and the JSON."""
        headers = {"Content-Type": "application/json", "X-CSRFToken": self._token()}
        headers.update({"Idempotency-Key": key} if key else {})
        content = json.dumps(body).encode() if body else None
        request = Request(urljoin(self._url, path), content, headers)  # noqa: S310
        try:
            answer = self._opener.open(request, timeout=timeout)
        except HTTPError as error:  # any answer above 399
            answer = error
        with answer:
            return answer.status, "Idempotency-Replayed" in answer.headers, json.load(answer)

    def charged(self, run: str) -> Counter[str]:
        """Count the payments of each order of a run; the newest are on the first pages."""
        found, path = Counter[str](), PAYMENTS
        while path:
            page = self.send(path)[2]
            names = [payment["reference"] for payment in page["results"]]
            found.update(ours := [name for name in names if name.startswith(run)])
            path = page["next"] if ours else ""
        return found


def pay(shop: Shop, seen: list[str], order: dict[str, Any]) -> str:
    """Send an order under its reference until there is an answer, and return it."""
    timeout = random.choice([0.005, 0.02, 0.1, 30])  # noqa: S311
    while True:
        try:
            status, replayed, answer = shop.send(PAYMENTS, order, order["reference"], timeout)
        except (OSError, HTTPException):
            seen.append("no answer in time, sent again")
            timeout = min(timeout * 4, 30)
        else:
            seen.append(f"{status} {'replay' if replayed else AGAIN.get(status, 'first')}")
            if status not in AGAIN:
                return f"{status} {answer}"
        time.sleep(0.05)  # Retry-After counts in seconds, and this load in milliseconds


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--seconds", type=float, default=10)
    given = parser.parse_args()
    shop = Shop(given.url)
    accounts = shop.send("/api/accounts/")[2]["results"]
    account = max(accounts, key=lambda row: row["balance"])["id"]
    run, numbers, end = uuid.uuid4().hex[:8], itertools.count(), time.monotonic() + given.seconds
    seen, answers = list[str](), dict[str, set[str]]()

    def customer(_: int) -> None:
        while time.monotonic() < end:
            reference = f"{run}-{next(numbers)}"
            order = {"account": account, "amount": 1, "reference": reference}
            copies = [order] * random.choice([1, 1, 2, 3])  # noqa: S311
            with ThreadPoolExecutor(len(copies)) as pool:
                answers[reference] = set(pool.map(partial(pay, shop, seen), copies))

    with ThreadPoolExecutor(8) as customers:
        list(customers.map(customer, range(8)))
    charged = shop.charged(run)
    wrong = [name for name in answers.keys() | charged.keys() if charged[name] != 1]
    unlike = [name for name, different in answers.items() if len(different) != 1]
    for name, count in sorted(Counter(seen).items()):
        print(f"{count:>8}  {name}")
    print(f"{len(answers):>8}  orders, and {charged.total()} payments in the books")
    print(f"{len(wrong):>8}  orders not charged exactly once {wrong[:3] or ''}")
    print(f"{len(unlike):>8}  orders whose clients got different answers {unlike[:3] or ''}")
    return 1 if wrong or unlike or not answers else 0


if __name__ == "__main__":
    sys.exit(main())
