"""The story, step by step; each step checks what it tells."""

from __future__ import annotations

import os
import signal
import threading
import time
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from typing import Any

from example_project.demo import apps, pauses
from example_project.demo.client import Answer, Browser, Client, hidden_fields
from example_project.demo.output import Printer, money
from example_project.demo.scenes import WentWrong
from example_project.demo.server import Server
from example_project.shop.management.commands.seed import PASSWORDS

CROWD = 20
PAYMENTS = "/api/payments/"
TRANSFERS = "/api/transfers/"
CHECKOUT = "/checkout/"
ORDERS = "/api/orders/?search="


class Story:
    """What was asked for, what came back, and what the books should say."""

    def __init__(self, server: Server, printer: Printer, *, lease: float, transaction: str) -> None:
        self.server = server
        self.out = printer
        self.lease = lease
        self.transaction = transaction
        self.alice = self._client("alice")
        self.bob = self._client("bob")
        self.staff = self._client("admin")
        # Names of things are new in each run: the database may have seen other stories.
        self.run = uuid.uuid4().hex[:8]
        self.ids = {name: row["id"] for name, row in self._accounts().items()}
        self.opening = self._balances()
        self.expected = dict(self.opening)
        self.everyday, self.savings = "alice / everyday (EUR)", "alice / savings (EUR)"
        self.bobs = "bob / everyday (EUR)"
        self.first: tuple[str, dict[str, Any], Answer] | None = None
        #: The key of the payment in whose middle a process was killed.
        self.killed = ""

    def play(self) -> None:
        for step in (
            self.first_request,
            self.retry,
            self.other_payload,
            self.no_key,
            self.crowd,
            self.process_killed,
            self.other_user,
            self.refusal,
            self.transfer_and_refund,
            self.double_click,
            self.server_killed,
            self.books,
        ):
            step()

    def first_request(self) -> None:
        self.out.headline("1  Alice pays 12.50 EUR")
        key, payload = self._key(), self._payment(12_50, "first")
        answer = self._tell(self.alice.post(PAYMENTS, payload, key), key)
        self._is("the payment is made", (answer.status, answer.replayed), (201, False))
        self.expected[self.everyday] -= 12_50
        self._is("payments in the books", self._payments("first"), 1)
        self.first = key, payload, answer

    def retry(self) -> None:
        self.out.headline("2  She did not see the answer, and sends the same again")
        key, payload, first = self._first()
        answer = self._tell(self.alice.post(PAYMENTS, payload, key), key)
        self._is("it says that it is a replay", (answer.status, answer.replayed), (201, True))
        self._is("the same bytes as the first time", answer.body, first.body)
        self._is("the same Location", answer.headers["Location"], first.headers["Location"])
        self._is("payments in the books", self._payments("first"), 1)

    def other_payload(self) -> None:
        self.out.headline("3  The same key, by mistake, for another amount")
        key, _, _ = self._first()
        answer = self._tell(self.alice.post(PAYMENTS, self._payment(99_00, "first"), key), key)
        self._is("refused", (answer.status, answer.code), (422, "idempotency_key_reused"))
        self._is("payments in the books", self._payments("first"), 1)

    def no_key(self) -> None:
        self.out.headline("4  A payment without a key")
        answer = self._tell(self.alice.post(PAYMENTS, self._payment(1_00, "keyless")))
        self._is("refused", answer.status, 400)
        self._is("as a problem", answer.headers.get_content_type(), "application/problem+json")
        self._is("payments in the books", self._payments("keyless"), 0)

    def crowd(self) -> None:
        self.out.headline(f"5  {CROWD} clients at once with one key")
        key, payload = self._key(), self._payment(7_00, "crowd")
        together = threading.Barrier(CROWD)

        def client(_: int) -> Answer:
            together.wait(timeout=pauses.SECONDS)
            return self.alice.post(PAYMENTS, payload, key)

        with ThreadPoolExecutor(CROWD) as pool:
            answers = list(pool.map(client, range(CROWD)))
        for line, count in Counter(map(str, answers)).most_common():
            self.out.says(f"{count:>2} x {line}")
        winners = [a for a in answers if a.status == 201 and not a.replayed]
        self._is("clients that made the payment", len(winners), 1)
        self.expected[self.everyday] -= 7_00
        replays = [a for a in answers if a.status == 201 and a.replayed]
        waiting = [a for a in answers if (a.status, a.code) == (409, "in_progress")]
        self._is("all others: 409 or a replay", len(replays) + len(waiting), CROWD - 1)
        same = all(a.body == winners[0].body for a in replays)
        self._is("every replay has the winner's bytes", same, True)
        self._is("payments in the books", self._payments("crowd"), 1)
        late = self._tell(self.alice.post(PAYMENTS, payload, key), key)
        self._is("who comes late gets a replay", late.replayed, True)
        self._is("the same bytes", late.body, winners[0].body)

    def process_killed(self) -> None:
        self.out.headline("6  A server process is killed in the middle of a payment")
        key, payload = self._key(), self._payment(20_00, "killed")
        self.killed = key
        began = time.monotonic()
        pid = self._kill_in_the_middle(PAYMENTS, payload, key, pauses.WRITTEN)
        self.out.says(f"process {pid} killed: the row is written, the transaction not committed")
        self._is("payments in the books", self._payments("killed"), 0)
        answer = self._tell(self.alice.post(PAYMENTS, payload, key), key)
        is_live = time.monotonic() - began < self.lease  # or this machine is a slow one
        # With `single` the key is free as soon as its owner is dead.
        if self.transaction != "single" and is_live:
            self._is(
                "the retry is told to wait", (answer.status, answer.code), (409, "in_progress")
            )
            self._is("for the lease at most", 1 <= answer.retry_after <= self.lease, True)
        deadline = time.monotonic() + self.lease + pauses.SECONDS
        while answer.status == 409 and time.monotonic() < deadline:
            time.sleep(answer.retry_after)
            answer = self._tell(self.alice.post(PAYMENTS, payload, key), key)
        self._is("the retry finishes it", (answer.status, answer.replayed), (201, False))
        self.expected[self.everyday] -= 20_00
        self._is("payments in the books", self._payments("killed"), 1)
        # No rollback calls back what happened outside of the database.
        keys = apps.card_company(payload["reference"])
        self._is("calls that the card company got", len(keys), 2)
        self._is("keys in them, derived from the client's: it charges once", len(set(keys)), 1)

    def other_user(self) -> None:
        self.out.headline("7  Bob happens to use the key of Alice's first payment")
        key, payload, first = self._first()
        answer = self._tell(self.bob.post(PAYMENTS, payload, key), key)
        self._is("her account is not his to pay from", answer.status, 400)
        self._is("nothing of her payment in it", first.json["url"].encode() in answer.body, False)
        payload = self._payment(5_00, "bob", account=self.bobs)
        answer = self._tell(self.bob.post(PAYMENTS, payload, key), key)
        self._is("he makes one of his own", (answer.status, answer.replayed), (201, False))
        self._is("from his own account", answer.json["account"], self.ids[self.bobs])
        self.expected[self.bobs] -= 5_00
        key, payload, first = self._first()
        answer = self._tell(self.alice.post(PAYMENTS, payload, key), key)
        self._is("her key still gives her answer", answer.replayed, True)
        self._is("the same bytes as the first time", answer.body, first.body)

    def refusal(self) -> None:
        self.out.headline("8  A no is an answer, too: more money than there is")
        key, payload = self._key(), self._payment(1_000_000_00, "too-much")
        answer = self._tell(self.alice.post(PAYMENTS, payload, key), key)
        self._is("refused", (answer.status, answer.replayed), (402, False))
        again = self._tell(self.alice.post(PAYMENTS, payload, key), key)
        self._is("the retry is told the same", (again.status, again.replayed), (402, True))
        self._is("the same bytes", again.body, answer.body)
        self._is("payments in the books", self._payments("too-much"), 0)

    def transfer_and_refund(self) -> None:
        self.out.headline("9  A transfer and a refund, each sent twice")
        transfer = {
            "from_account": self.ids[self.savings],
            "to_account": self.ids[self.bobs],
            "amount": 150_00,
        }
        self._twice(self.alice, TRANSFERS, transfer)
        self.expected[self.savings] -= 150_00
        self.expected[self.bobs] += 150_00
        _, _, first = self._first()
        self._twice(self.alice, f"{PAYMENTS}{first.json['id']}/refund/", {"amount": 2_50})
        self.expected[self.everyday] += 2_50

    def double_click(self) -> None:
        self.out.headline("10 A visitor clicks twice on the button of the checkout")
        visitor, note = Browser(self.server.port), f"double-click-{self.run}"
        hidden = hidden_fields(visitor.open(CHECKOUT))
        form = {**hidden, "product": "coffee", "quantity": "2", "note": note}
        together = threading.Barrier(2)

        def click(_: int) -> Answer:
            together.wait(timeout=pauses.SECONDS)
            return visitor.click(CHECKOUT, form)

        with ThreadPoolExecutor(2) as pool:
            clicks = list(pool.map(click, range(2)))
        for answer in clicks:
            self._tell(answer, hidden["idempotency_key"])
        self._is("both are redirected", [answer.status for answer in clicks], [302, 302])
        self._is("one has placed the order", [a.replayed for a in clicks].count(False), 1)
        pages = [visitor.open(answer.headers["Location"]) for answer in clicks]
        seen = [note.encode() in page.body for page in pages if page.status == 200]
        self._is("both land on its page", seen, [True, True])
        self._is("the same page", pages[0].body, pages[1].body)
        self._is("orders in the books", self.staff.get(ORDERS + note).json["count"], 1)

    def server_killed(self) -> None:
        self.out.headline("11 The whole server is killed, right after an answer")
        key, payload = self._key(), self._payment(3_00, "power-cut")
        first = self._tell(self.alice.post(PAYMENTS, payload, key), key)
        self._is("the payment is made", (first.status, first.replayed), (201, False))
        self.expected[self.everyday] -= 3_00
        self.server.crash()
        self.out.says("all server processes killed; starting again")
        self.server.start()
        answer = self._tell(self.alice.post(PAYMENTS, payload, key), key)
        self._is("the answer has survived", answer.replayed, True)
        self._is("the same bytes", answer.body, first.body)
        self._is("payments in the books", self._payments("power-cut"), 1)

    def books(self) -> None:
        self.out.headline("The books")
        actual = self._balances()
        self.out.table(
            ["account", "opening", "expected", "actual", ""],
            [
                [
                    name,
                    money(self.opening[name]),
                    money(self.expected[name]),
                    money(actual[name]),
                    "ok" if actual[name] == self.expected[name] else "WRONG",
                ]
                for name in self.opening
            ],
        )
        wrong = [name for name in self.opening if actual[name] != self.expected[name]]
        self._is("accounts with a wrong balance", len(wrong), 0)

    # What the steps are made of.

    def _twice(self, client: Client, path: str, payload: dict[str, Any]) -> None:
        key = self._key()
        first = self._tell(client.post(path, payload, key), key)
        again = self._tell(client.post(path, payload, key), key)
        self._is("done", (first.status, first.replayed), (201, False))
        self._is("done once", (again.status, again.replayed), (201, True))
        self._is("the same bytes", again.body, first.body)

    def _kill_in_the_middle(self, path: str, payload: dict[str, Any], key: str, point: str) -> int:
        """Send a request, and kill the process that gets to that point; return its id."""
        lost: list[Exception] = []

        def client() -> None:
            try:
                self.alice.post(path, payload, key)
            except (OSError, HTTPException) as error:
                lost.append(error)

        thread = threading.Thread(target=client, daemon=True)
        with pauses.pause(point) as stopped:
            thread.start()
            pid = stopped()
            os.kill(pid, signal.SIGKILL)
        thread.join(timeout=pauses.SECONDS)
        self._is("the client's connection breaks", len(lost), 1)
        return pid

    def _tell(self, answer: Answer, key: str | None = None) -> Answer:
        self.out.says(f"{f'key {key[:8]}' if key else 'no key'}  ->  {answer}")
        return answer

    def _is_so(self, what: str, actual: int, expected: int) -> None:
        """Show a number that is as it was foretold, right or wrong."""
        if actual != expected:
            raise WentWrong(f"{what}: expected {expected!r}, got {actual!r}")
        (self.out.right if actual == 1 else self.out.wrong)(f"{what}: {actual}")

    def _is(self, what: str, actual: object, expected: object) -> None:
        if actual != expected:
            raise WentWrong(f"{what}: expected {expected!r}, got {actual!r}")
        shown = f": {actual}" if isinstance(actual, int) and not isinstance(actual, bool) else ""
        self.out.right(f"{what}{shown}")

    def _client(self, user: str) -> Client:
        return Client(self.server.port, user, PASSWORDS[user])

    def _key(self) -> str:
        return str(uuid.uuid4())

    def _payment(self, amount: int, name: str, *, account: str | None = None) -> dict[str, Any]:
        return {
            "account": self.ids[account or self.everyday],
            "amount": amount,
            "reference": f"{name}-{self.run}",
        }

    def _payments(self, name: str) -> int:
        """Return how many payments of this run have that name, whoever made them."""
        query = f"?search={name}-{self.run}"
        return sum(c.get(PAYMENTS + query).json["count"] for c in (self.alice, self.bob))

    def _balances(self) -> dict[str, int]:
        return {name: row["balance"] for name, row in self._accounts().items()}

    def _accounts(self) -> dict[str, Any]:
        rows = self.staff.get("/api/accounts/").json["results"]
        return {f"{row['owner']} / {row['name']} ({row['currency']})": row for row in rows}

    def _first(self) -> tuple[str, dict[str, Any], Answer]:
        if self.first is None:
            raise WentWrong("The first step has not been played.")
        return self.first
