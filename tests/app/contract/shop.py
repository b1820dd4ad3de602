"""What there is of the rules in the example project: payments, checkout, webhooks and quotes."""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from http.cookies import SimpleCookie
from typing import Any, ClassVar

import psycopg
import pytest
from psycopg.pq import TransactionStatus

from django_idempotency.testing.http_contract import Answer, Call, HTTPContract, Page
from django_idempotency.testing.http_contract.j_django import hidden_fields

WEBHOOK_SECRET = b"contract"
#: Stands for the header fields of a session, which are not known before somebody has logged in.
LOGGED_IN: Mapping[str, str] = {}


class OnShop(HTTPContract):
    """Speaks for the users of the shop, and looks into its database."""

    #: Header fields of a session of each user; logging in costs time, so once is enough.
    sessions: ClassVar[dict[str, dict[str, str]]] = {}

    @pytest.fixture(autouse=True)
    def _database(self, shop_database: psycopg.Connection) -> None:
        self.database = shop_database

    def number(self, query: str, *values: Any) -> int:
        """Return what a query counts or sums up."""
        row = self.database.execute(query, values).fetchone()
        return int(row[0]) if row else 0

    def session_of(self, user: str) -> dict[str, str]:
        """Log in as a browser does, if that has not been done."""
        if user not in self.sessions:
            login = Call("/api-auth/login/", method="GET")
            page = self.ask(login, None, user="nobody")
            fields = [*hidden_fields(page.body.decode()).items()]
            fields += [("username", user), ("password", f"{user}-demo")]
            answer = self.ask(
                login.but(method="POST", body=fields, headers=[("Cookie", cookies_of(page))]),
                None,
                user="nobody",
            )
            assert answer.status == 302, answer
            cookies = SimpleCookie(cookies_of(answer))
            self.sessions[user] = {
                "Cookie": cookies_of(answer),
                "X-CSRFToken": cookies["csrftoken"].value,
            }
        return self.sessions[user]

    def sign(self, user: str, field: str | None, payload: bytes) -> Mapping[str, str]:
        if user in ("alice", "bob"):
            return self.session_of(user)
        return super().sign(user, field, payload)


def cookies_of(answer: Answer) -> str:
    """Return what a browser sends back."""
    cookies: SimpleCookie = SimpleCookie()
    for line in answer.headers.get_all("Set-Cookie", []):
        cookies.load(line)
    return "; ".join(f"{cookie.key}={cookie.value}" for cookie in cookies.values())


class Shop(OnShop):
    """The API, and the checkout for visitors, with ATOMIC_REQUESTS."""

    alice: Mapping[str, str] | None = LOGGED_IN
    bob: Mapping[str, str] | None = LOGGED_IN
    alice_refreshed = {
        "Authorization": f"Basic {base64.b64encode(b'alice:alice-demo').decode()}",
    }
    rolls_back = True
    atomic_requests = True
    free_member = "memo"
    other_media_type = "text/html"

    @pytest.fixture(autouse=True)
    def _accounts(self, _database: None, other_session: psycopg.Connection) -> Iterator[None]:
        self.other_session = other_session
        rows = self.database.execute(
            "SELECT owner.username || '/' || account.name, account.id FROM shop_account account"
            " JOIN auth_user owner ON owner.id = account.owner_id"
        )
        self.accounts: dict[str, int] = dict(rows.fetchall())
        self.let_gone: set[str] = set()
        yield
        other_session.rollback()

    def payment(self, tag: str, account: str = "alice/everyday", amount: int = 1) -> Call:
        """Return a payment of some cents."""
        body = {"account": self.accounts[account], "amount": amount, "reference": tag}
        return Call("/api/payments/", body)

    def create(self, tag: str) -> Call:
        return self.payment(tag)

    def create_as_bob(self, tag: str) -> Call:
        return self.payment(tag, "bob/everyday")

    def effects(self, tag: str) -> int:
        return self.number(
            "SELECT (SELECT count(*) FROM shop_payment WHERE reference = %s)"
            " + (SELECT count(*) FROM shop_order WHERE note = %s)",
            tag,
            tag,
        )

    def unread(self, tag: str) -> Mapping[int, Call]:
        call = self.create(tag)
        return {
            405: call.but(method="PUT"),
            406: call.but(headers=[("Accept", "application/x-unknown")]),
            415: call.but(content_type="text/x-unknown"),
        }

    def kinds(self, tag: str) -> Mapping[str, Call]:
        return {
            "a ViewSet": self.create(tag),
            "another": self.elsewhere(tag),
            "an action": self.addressed(tag)[0],
            "a coroutine": quote(tag),
        }

    def elsewhere(self, tag: str) -> Call:
        body = {
            "from_account": self.accounts["alice/everyday"],
            "to_account": self.accounts["bob/everyday"],
            "amount": 1,
            "memo": tag,
        }
        return Call("/api/transfers/", body)

    def change(self, first: Answer) -> None:
        refund = Call(f"/api/payments/{first.json['id']}/refund/", {})
        self.created(refund, self.new())

    def addressed(self, tag: str) -> tuple[Call, Call]:
        payments = [self.created(self.create(tag), self.new()).json["id"] for _ in range(2)]
        one, other = (Call(f"/api/payments/{pk}/refund/", {"memo": tag}) for pk in payments)
        return one, other

    def kept_errors(self, tag: str) -> Mapping[int, Call]:
        return {402: self.payment(tag, amount=10**9)}

    def released_errors(self, tag: str) -> Mapping[int, Call]:
        return {
            400: self.payment(tag, amount=0),
            404: Call("/api/payments/0/refund/", {"memo": tag}),
        }

    def held(self, tag: str) -> Call:
        """Return a payment from an account whose row another session holds."""
        self.hold("SELECT * FROM shop_account WHERE name = 'savings' FOR UPDATE")
        return self.payment(tag, "alice/savings")

    def hold(self, statement: str) -> None:
        """Hold what others want to write, until `let_go` is called for the first time."""
        is_idle = self.other_session.info.transaction_status is TransactionStatus.IDLE
        if is_idle and not self.let_gone:
            self.other_session.execute(statement)

    def let_go(self, tag: str) -> None:
        self.let_gone.add(tag)
        self.other_session.rollback()

    def page(self, tag: str) -> Page:
        return Page("/checkout/", [("product", "coffee"), ("quantity", "1"), ("note", tag)])

    def held_page(self, tag: str) -> Page:
        """Return the checkout, while another session keeps orders from being written."""
        self.hold("LOCK TABLE shop_order IN SHARE MODE")
        return self.page(tag)


def quote(tag: str, *pairs: tuple[str, str]) -> Call:
    """Return the call to the asynchronous view."""
    return Call("/quotes/", [("sell", "EUR"), ("buy", "USD"), ("amount", amount(tag)), *pairs])


def amount(tag: str) -> str:
    """Return an amount that tells a quote from others."""
    return str(1 + int(tag[:9], 16))


class Quotes(OnShop):
    """An asynchronous view of plain Django that takes a form."""

    alice: Mapping[str, str] | None = LOGGED_IN
    bob: Mapping[str, str] | None = LOGGED_IN
    takes_json = False
    takes_chunks = True
    leaves_out = {
        "test_R14_a_stranger_claims_no_key_and_gets_no_stored_body": (
            "strangers are sent to a page where they can log in"
        )
    }

    def create(self, tag: str) -> Call:
        return quote(tag)

    def form(self, tag: str, pairs: Sequence[tuple[str, str]]) -> Call:
        return quote(tag, *pairs)

    def effects(self, tag: str) -> int:
        return self.number("SELECT count(*) FROM shop_quote WHERE amount = %s", int(amount(tag)))

    def released_errors(self, tag: str) -> Mapping[int, Call]:
        return {400: Call("/quotes/", [("amount", amount(tag))])}


class Webhooks(OnShop):
    """A plain view for programs, whose key is in another header field and whose answer is empty."""

    header = "Webhook-Id"
    #: The provider; whoever signs nothing is a stranger.
    alice: Mapping[str, str] | None = {}
    rolls_back = True
    takes_chunks = True
    free_member = "memo"
    leaves_out = {"test_R7_two_field_lines_are_400": "a delivery with two ids is not signed"}

    def sign(self, user: str, field: str | None, payload: bytes) -> Mapping[str, str]:
        """Sign as the provider does, over the id as the shop will read it."""
        if user == "nobody":
            return {}
        now = str(int(time.time()))
        text = b"\n".join([(field or "").strip(" \t").encode(), now.encode(), payload])
        signature = hmac.new(WEBHOOK_SECRET, text, hashlib.sha256).hexdigest()
        return {"Webhook-Timestamp": now, "Webhook-Signature": signature}

    def create(self, tag: str) -> Call:
        order = order_of(tag)
        self.database.execute(
            "INSERT INTO shop_order (id, product, quantity, note, total, paid, created)"
            " VALUES (%s, 'coffee', 1, '', 100, 0, now()) ON CONFLICT DO NOTHING",
            [order],
        )
        return Call("/webhooks/acme/", {"order": str(order), "amount": 100})

    def effects(self, tag: str) -> int:
        return self.number("SELECT paid / 100 FROM shop_order WHERE id = %s", order_of(tag))

    def released_errors(self, tag: str) -> Mapping[int, Call]:
        unknown = {"order": str(order_of(tag)), "amount": 100}
        return {400: Call("/webhooks/acme/", {}), 404: Call("/webhooks/acme/", unknown)}


def order_of(tag: str) -> uuid.UUID:
    """Return the order that belongs to a tag."""
    return uuid.uuid5(uuid.NAMESPACE_OID, tag)
