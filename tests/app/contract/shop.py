"""What only a project shows: its users' sessions, ATOMIC_REQUESTS, and the pages of a checkout."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from http.cookies import SimpleCookie
from typing import ClassVar

import psycopg
import pytest
from psycopg.pq import TransactionStatus

from django_idempotency.testing.http_contract import Answer, Call, HTTPContract, Page
from django_idempotency.testing.http_contract.j_django import hidden_fields

#: Stands for the header fields of a session, which are not known before somebody has logged in.
LOGGED_IN: Mapping[str, str] = {}


def cookies_of(answer: Answer) -> str:
    cookies: SimpleCookie = SimpleCookie()
    for line in answer.headers.get_all("Set-Cookie", []):
        cookies.load(line)
    return "; ".join(f"{cookie.key}={cookie.value}" for cookie in cookies.values())


class Shop(HTTPContract):
    """The API, and the checkout for visitors, with ATOMIC_REQUESTS."""

    #: Header fields of a session of each user; logging in costs time, so once is enough.
    sessions: ClassVar[dict[str, dict[str, str]]] = {}
    alice: Mapping[str, str] | None = LOGGED_IN
    bob: Mapping[str, str] | None = LOGGED_IN
    alice_refreshed = {
        "Authorization": f"Basic {base64.b64encode(b'alice:alice-demo').decode()}",
    }
    rolls_back = True
    atomic_requests = True
    other_media_type = "text/html"
    timeout = patience = 60

    @pytest.fixture(autouse=True)
    def _database(
        self, shop_database: psycopg.Connection, other_session: psycopg.Connection
    ) -> Iterator[None]:
        self.database, self.other_session = shop_database, other_session
        rows = self.database.execute(
            "SELECT owner.username || '/' || account.name, account.id FROM shop_account account"
            " JOIN auth_user owner ON owner.id = account.owner_id"
        )
        self.accounts: dict[str, int] = dict(rows.fetchall())
        self.let_gone: set[str] = set()
        yield
        other_session.rollback()

    def session_of(self, user: str) -> dict[str, str]:
        """Log in as a browser does, if that has not been done."""
        if user not in self.sessions:
            login = Call("/api-auth/login/", method="GET")
            page = self.ask(login, None, user="nobody")
            fields = [*hidden_fields(page.body.decode()).items()]
            fields += [("username", user), ("password", f"{user}-demo")]
            post = login.but(method="POST", body=fields, headers=[("Cookie", cookies_of(page))])
            answer = self.ask(post, None, user="nobody")
            assert answer.status == 302, answer
            token = SimpleCookie(cookies_of(answer))["csrftoken"].value
            self.sessions[user] = {"Cookie": cookies_of(answer), "X-CSRFToken": token}
        return self.sessions[user]

    def sign(self, user: str, field: str | None, payload: bytes) -> Mapping[str, str]:
        known = user in ("alice", "bob")
        return self.session_of(user) if known else super().sign(user, field, payload)

    def create(self, tag: str, account: str = "alice/everyday") -> Call:
        body = {"account": self.accounts[account], "amount": 1, "reference": tag}
        return Call("/api/payments/", body)

    def create_as_bob(self, tag: str) -> Call:
        return self.create(tag, "bob/everyday")

    def effects(self, tag: str) -> int:
        payments = "SELECT count(*) FROM shop_payment WHERE reference = %s"
        orders = "SELECT count(*) FROM shop_order WHERE note = %s"
        row = self.database.execute(f"SELECT ({payments}) + ({orders})", [tag, tag]).fetchone()
        return int(row[0]) if row else 0

    def change(self, first: Answer) -> None:
        refund = Call(f"/api/payments/{first.json['id']}/refund/", {})
        self.created(refund, self.new())

    def held(self, tag: str) -> Call:
        """Return a payment from an account whose row another session holds."""
        self.hold("SELECT * FROM shop_account WHERE name = 'savings' FOR UPDATE")
        return self.create(tag, "alice/savings")

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
