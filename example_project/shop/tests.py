"""
The shop's own tests: ``python -m example_project.manage test example_project``.

An API with idempotency keys is tested like any other: send, send again, look at the rows.
"""

# Django's own runner, without pytest.
# ruff: noqa: PT009, PT027
from __future__ import annotations

import json
import re
import time
import uuid
from typing import Any
from unittest.mock import patch

from celery.result import EagerResult
from django.contrib.auth.models import User
from django.core import mail
from django.core.management import call_command
from django.db import IntegrityError, transaction
from django.test import Client, TestCase, TransactionTestCase, override_settings
from drf_spectacular.drainage import GENERATOR_STATS
from drf_spectacular.generators import SchemaGenerator
from rest_framework.test import APITestCase

from django_idempotency import TaskFailed
from django_idempotency.models import IdempotencyRecord
from example_project.shop import carrier, gateway, purchases
from example_project.shop.exceptions import InsufficientFunds
from example_project.shop.models import Account, Order, Payment, Quote, Refund, Transfer
from example_project.shop.tasks import capture_payment
from example_project.shop.webhooks import MAX_AGE, signature

PAYMENTS = "/api/payments/"
PURCHASES = "/api/purchases/"
TRANSFERS = "/api/transfers/"
MODELS = ("account", "order", "payment", "quote", "refund", "transfer")


class ShopTestCase(APITestCase):
    """Alice and Bob, 100.00 each; Alice is logged in."""

    def setUp(self) -> None:
        self.alice = User.objects.create_user("alice")
        self.bob = User.objects.create_user("bob")
        self.hers = Account.objects.create(
            owner=self.alice, name="everyday", currency="EUR", balance=100_00
        )
        self.his = Account.objects.create(
            owner=self.bob, name="everyday", currency="EUR", balance=100_00
        )
        self.client.force_authenticate(self.alice)

    def send(self, path: str, payload: dict[str, Any], key: str) -> Any:
        return self.client.post(path, payload, headers={"Idempotency-Key": f'"{key}"'})

    def payment(self, amount: int = 30_00) -> dict[str, Any]:
        return {"account": self.hers.pk, "amount": amount, "reference": "order 1"}

    def assert_balances(self, hers: int, his: int = 100_00) -> None:
        self.hers.refresh_from_db()
        self.his.refresh_from_db()
        self.assertEqual((self.hers.balance, self.his.balance), (hers, his))


class SentTwiceTests(ShopTestCase):
    """Whatever moves money does so once per key."""

    def assert_same_answer_twice(
        self, path: str, payload: dict[str, Any], status: int = 201
    ) -> None:
        key = str(uuid.uuid4())
        first = self.send(path, payload, key)
        again = self.send(path, payload, key)
        self.assertEqual((first.status_code, again.status_code), (status, status))
        self.assertEqual(first.content, again.content)
        self.assertNotIn("Idempotency-Replayed", first)
        self.assertEqual(again["Idempotency-Replayed"], "true")

    def test_payment(self) -> None:
        self.assert_same_answer_twice(PAYMENTS, self.payment())
        self.assertEqual(Payment.objects.count(), 1)
        self.assert_balances(70_00)

    def test_transfer(self) -> None:
        transfer = {"from_account": self.hers.pk, "to_account": self.his.pk, "amount": 40_00}
        self.assert_same_answer_twice(TRANSFERS, transfer)
        self.assertEqual(Transfer.objects.count(), 1)
        self.assert_balances(60_00, 140_00)

    def test_refund(self) -> None:
        paid = self.send(PAYMENTS, self.payment(), "pay").json()
        self.assert_same_answer_twice(f"{PAYMENTS}{paid['id']}/refund/", {"amount": 10_00})
        self.assertEqual(Refund.objects.count(), 1)
        self.assert_balances(80_00)

    def test_refusal(self) -> None:
        self.assert_same_answer_twice(PAYMENTS, self.payment(500_00), status=402)
        self.assertEqual(Payment.objects.count(), 0)
        self.assert_balances(100_00)

    def test_refusal_stays_when_the_balance_has_grown(self) -> None:
        self.send(PAYMENTS, self.payment(500_00), "k")
        Account.objects.filter(pk=self.hers.pk).update(balance=900_00)
        self.assertEqual(self.send(PAYMENTS, self.payment(500_00), "k").status_code, 402)
        self.assertEqual(self.send(PAYMENTS, self.payment(500_00), "new").status_code, 201)


class KeyTests(ShopTestCase):
    """What a key is tied to."""

    def test_missing(self) -> None:
        response = self.client.post(PAYMENTS, self.payment())
        self.assertEqual(response.status_code, 400)
        self.assertEqual(response["Content-Type"], "application/problem+json")
        self.assert_balances(100_00)

    def test_reading_needs_none(self) -> None:
        self.assertEqual(self.client.get(PAYMENTS).status_code, 200)

    def test_other_amount(self) -> None:
        self.send(PAYMENTS, self.payment(30_00), "k")
        response = self.send(PAYMENTS, self.payment(40_00), "k")
        self.assertEqual(response.status_code, 422)
        self.assertEqual(response.json()["code"], "idempotency_key_reused")
        self.assert_balances(70_00)

    def test_invalid_request_leaves_the_key_free(self) -> None:
        self.assertEqual(self.send(PAYMENTS, self.payment(-1), "k").status_code, 400)
        self.assertEqual(self.send(PAYMENTS, self.payment(1), "k").status_code, 201)

    def test_other_user(self) -> None:
        hers = self.send(PAYMENTS, self.payment(), "k")
        self.client.force_authenticate(self.bob)
        self.assertEqual(self.send(PAYMENTS, self.payment(), "k").status_code, 400)
        his = self.send(PAYMENTS, {**self.payment(), "account": self.his.pk}, "k")
        self.assertEqual(his.status_code, 201)
        self.assertNotEqual(hers.json()["id"], his.json()["id"])
        self.assert_balances(70_00, 70_00)


class RuleTests(ShopTestCase):
    """The shop's own rules."""

    def test_refund_of_what_is_left(self) -> None:
        paid = self.send(PAYMENTS, self.payment(30_00), "pay").json()
        url = f"{PAYMENTS}{paid['id']}/refund/"
        self.assertEqual(self.send(url, {"amount": 10_00}, "part").status_code, 201)
        self.assertEqual(self.client.get(paid["url"]).json()["status"], "partly_refunded")
        self.assertEqual(self.send(url, {"amount": 25_00}, "too much").status_code, 409)
        self.assertEqual(self.send(url, {}, "rest").json()["amount"], 20_00)
        self.assertEqual(self.client.get(paid["url"]).json()["status"], "refunded")
        self.assert_balances(100_00)

    def test_transfer_between_currencies(self) -> None:
        dollars = Account.objects.create(owner=self.bob, name="travel", currency="USD")
        transfer = {"from_account": self.hers.pk, "to_account": dollars.pk, "amount": 1_00}
        self.assertEqual(self.send(TRANSFERS, transfer, "k").status_code, 409)
        self.assert_balances(100_00)

    def test_transfer_to_itself(self) -> None:
        transfer = {"from_account": self.hers.pk, "to_account": self.hers.pk, "amount": 1_00}
        self.assertEqual(self.send(TRANSFERS, transfer, "k").status_code, 400)

    def test_transfer_from_another_users_account(self) -> None:
        transfer = {"from_account": self.his.pk, "to_account": self.hers.pk, "amount": 1_00}
        self.assertEqual(self.send(TRANSFERS, transfer, "k").status_code, 400)
        self.assert_balances(100_00)

    def test_own_accounts_only(self) -> None:
        rows = self.client.get("/api/accounts/").json()["results"]
        self.assertEqual([row["id"] for row in rows], [self.hers.pk])

    def test_database_refuses_an_overdraft(self) -> None:
        with self.assertRaises(IntegrityError), transaction.atomic():
            Account.objects.filter(pk=self.hers.pk).update(balance=-1)


class CheckoutTests(TestCase):
    """Each form that is shown makes one order."""

    def shown(self, client: Client) -> dict[str, str]:
        """Return what a visitor who opens the page and fills it in will send."""
        page = client.get("/checkout/").content.decode()
        return {"product": "coffee", "quantity": "2", "note": "", "idempotency_key": key_in(page)}

    def test_pressed_twice(self) -> None:
        form = self.shown(self.client)
        first = self.client.post("/checkout/", form)
        again = self.client.post("/checkout/", form)
        order = Order.objects.get()
        self.assertEqual(order.total, 25_00)
        self.assertRedirects(first, order.get_absolute_url())
        self.assertRedirects(again, order.get_absolute_url())
        self.assertNotIn("Idempotency-Replayed", first)
        self.assertEqual(again["Idempotency-Replayed"], "true")

    def test_shown_twice(self) -> None:
        for _ in range(2):
            self.client.post("/checkout/", self.shown(self.client))
        self.assertEqual(Order.objects.count(), 2)

    def test_logged_in(self) -> None:
        self.client.force_login(User.objects.create_user("alice"))
        form = self.shown(self.client)
        first, again = (self.client.post("/checkout/", form) for _ in range(2))
        self.assertEqual(first["Location"], again["Location"])
        self.assertEqual(Order.objects.count(), 1)

    def test_key_of_another_visitor(self) -> None:
        form = self.shown(self.client)
        stranger = Client()
        self.shown(stranger)  # which begins a session of his own
        hers = self.client.post("/checkout/", form)
        his = stranger.post("/checkout/", form)
        self.assertNotEqual(hers["Location"], his["Location"])
        self.assertEqual(Order.objects.count(), 2)

    def test_mistake(self) -> None:
        form = self.shown(self.client)
        wrong = self.client.post("/checkout/", {**form, "quantity": "11"})
        self.assertContains(wrong, "less than or equal to 10", status_code=400)
        self.assertNotEqual(key_in(wrong.content.decode()), form["idempotency_key"])
        self.assertEqual(Order.objects.count(), 0)
        self.assertEqual(self.client.post("/checkout/", form).status_code, 302)

    def test_changed_after_it_was_sent(self) -> None:
        form = self.shown(self.client)
        self.client.post("/checkout/", form)
        changed = {**form, "quantity": "3"}
        response = self.client.post("/checkout/", changed, headers={"Accept": "text/html"})
        self.assertContains(response, "<h1>", status_code=422)
        self.assertEqual(Order.objects.get().quantity, 2)

    def test_without_a_key(self) -> None:
        response = self.client.post("/checkout/", {"product": "coffee", "quantity": "1"})
        self.assertEqual(response.status_code, 400)
        self.assertEqual(Order.objects.count(), 0)

    def test_pages_need_nothing_from_elsewhere(self) -> None:
        form = self.shown(self.client)
        order = self.client.post("/checkout/", form, follow=True).content.decode()
        for page in (self.client.get("/checkout/").content.decode(), order):
            self.assertIn('<html lang="en">', page)
            self.assertNotIn("src=", page)
            self.assertNotIn("<script", page)
            self.assertNotIn("http:", page)


def key_in(page: str) -> str:
    field = re.search(r'name="idempotency_key" value="([^"]+)"', page)
    assert field is not None, page
    return field[1]


SECRET = "known to acme and to us"


@override_settings(WEBHOOK_SECRETS={"acme": SECRET, "other": "another", "unset": ""})
class WebhookTests(TestCase):
    """An event of the provider counts once."""

    def setUp(self) -> None:
        self.order = Order.objects.create(product="tea", quantity=1, total=8_00)
        # As the provider does, without cookies or a CSRF token.
        self.client = Client(enforce_csrf_checks=True)

    def deliver(
        self,
        event_id: str,
        *,
        amount: Any = 5_00,
        age: float = 0,
        provider: str = "acme",
        secret: str = SECRET,
        **changed: str,
    ) -> Any:
        """Send an event; ``changed`` are header fields that somebody has tampered with."""
        body = json.dumps({"order": str(self.order.pk), "amount": amount}).encode()
        timestamp = str(time.time() - age)
        headers = {
            "webhook-id": event_id,
            "webhook-timestamp": timestamp,
            "webhook-signature": signature(secret, event_id, timestamp, body),
            **{name.replace("_", "-"): value for name, value in changed.items()},
        }
        return self.client.post(
            f"/webhooks/{provider}/", body, content_type="application/json", headers=headers
        )

    def assert_paid(self, paid: int) -> None:
        self.order.refresh_from_db()
        self.assertEqual(self.order.paid, paid)

    def assert_refused(self, response: Any) -> None:
        self.assertEqual(response.status_code, 403)
        self.assertEqual(IdempotencyRecord.objects.count(), 0)
        self.assert_paid(0)

    def test_delivered_twice(self) -> None:
        first = self.deliver("event-1", age=60)
        again = self.deliver("event-1")  # signed again, at another time
        self.assertEqual((first.status_code, again.status_code), (204, 204))
        self.assertEqual(again["Idempotency-Replayed"], "true")
        self.assert_paid(5_00)

    def test_two_events(self) -> None:
        self.deliver("event-1")
        self.deliver("event-2")
        self.assert_paid(10_00)

    def test_two_providers(self) -> None:
        self.deliver("event-1")
        self.deliver("event-1", provider="other", secret="another")
        self.assert_paid(10_00)

    def test_order_that_is_not_there_yet(self) -> None:
        Order.objects.all().delete()
        self.assertEqual(self.deliver("event-1").status_code, 404)
        self.order.save(force_insert=True)
        self.assertEqual(self.deliver("event-1").status_code, 204)
        self.assert_paid(5_00)

    def test_nonsense(self) -> None:
        self.assertEqual(self.deliver("event-1", amount="much").status_code, 400)
        self.assert_paid(0)

    def test_wrong_secret(self) -> None:
        self.assert_refused(self.deliver("event-1", secret="guessed"))

    def test_no_signature(self) -> None:
        self.assert_refused(self.deliver("event-1", webhook_signature=""))
        self.assert_refused(self.deliver("event-1", webhook_signature="ä"))

    def test_recorded_event_under_another_id(self) -> None:
        self.assert_refused(self.deliver("event-1", webhook_id="event-2"))

    def test_recorded_event_at_another_time(self) -> None:
        self.assert_refused(self.deliver("event-1", age=MAX_AGE + 1))
        now = str(time.time())
        self.assert_refused(self.deliver("event-1", age=MAX_AGE + 1, webhook_timestamp=now))
        self.assert_refused(self.deliver("event-1", webhook_timestamp="soon"))

    def test_provider_without_a_secret(self) -> None:
        self.assert_refused(self.deliver("event-1", provider="unset", secret=""))
        self.assert_refused(self.deliver("event-1", provider="unknown", secret=""))

    def test_replay_is_not_for_strangers(self) -> None:
        self.deliver("event-1")
        self.assertEqual(self.deliver("event-1", secret="guessed").status_code, 403)


class QuoteTests(TestCase):
    """A coroutine is tested by coroutines."""

    QUOTE = {"sell": "EUR", "buy": "USD", "amount": "1000"}

    async def ask(self, key: str, **changed: str) -> Any:
        headers = {"Idempotency-Key": key}
        return await self.async_client.post("/quotes/", {**self.QUOTE, **changed}, headers=headers)

    async def log_in(self) -> None:
        await self.async_client.aforce_login(await User.objects.acreate_user("alice"))

    async def test_asked_twice(self) -> None:
        await self.log_in()
        first = await self.ask("k")
        again = await self.ask("k")
        self.assertEqual((first.status_code, again.status_code), (201, 201))
        self.assertEqual(first.content, again.content)
        self.assertEqual(again["Idempotency-Replayed"], "true")
        self.assertEqual(first.json()["receives"], 1084)
        self.assertEqual(await Quote.objects.acount(), 1)

    async def test_other_amount(self) -> None:
        await self.log_in()
        await self.ask("k")
        self.assertEqual((await self.ask("k", amount="2000")).status_code, 422)

    async def test_mistake_leaves_the_key_free(self) -> None:
        await self.log_in()
        self.assertEqual((await self.ask("k", buy="EUR")).status_code, 400)
        self.assertEqual((await self.ask("k", buy="USD")).status_code, 201)

    async def test_not_logged_in(self) -> None:
        response = await self.ask("k")
        self.assertEqual(response.status_code, 302)
        self.assertEqual(await IdempotencyRecord.objects.acount(), 0)


class PageTests(TestCase):
    """What is there to look at."""

    def test_schema_names_the_key(self) -> None:
        GENERATOR_STATS.reset()
        generator = SchemaGenerator()
        schema: dict[str, Any] = generator.get_schema(public=True)
        self.assertFalse(GENERATOR_STATS, "the schema has warnings")
        for path in (PAYMENTS, TRANSFERS, f"{PAYMENTS}{{id}}/refund/", PURCHASES):
            parameters = schema["paths"][path]["post"]["parameters"]
            keys = [p for p in parameters if p["name"] == "Idempotency-Key"]
            self.assertEqual([(p["in"], p["required"]) for p in keys], [("header", True)])

    def test_start_page_leads_to_each_page_and_names_the_users_that_are_seeded(self) -> None:
        with override_settings(SEED_KNOWN_PASSWORDS=False):
            self.assertNotContains(self.client.get("/"), "alice-demo")
        with override_settings(SEED_KNOWN_PASSWORDS=True):
            page = self.client.get("/")
        for password in ("alice-demo", "bob-demo", "admin-demo"):
            self.assertContains(page, password)
        links = re.findall(r'href="([^"]+)"', page.content.decode())
        self.assertGreaterEqual(set(links), {"/checkout/", PAYMENTS, "/api/docs/", "/admin/"})
        self.client.force_login(User.objects.create_superuser("root"))
        for link in links:
            self.assertIn(self.client.get(link).status_code, (200, 302), link)

    def test_reference_is_one_file(self) -> None:
        page = self.client.get("/api/docs/").content.decode()
        self.assertIn("Idempotency-Key", page)
        self.assertNotIn("src=", page)
        self.assertNotIn("http", page.lower().replace("http ", ""))

    @override_settings(SEED_KNOWN_PASSWORDS=True)
    def test_seed_twice_is_seed_once(self) -> None:
        call_command("seed", verbosity=0)
        Account.objects.filter(owner__username="alice").update(balance=1)
        rows = list(Account.objects.values_list("pk", "balance"))
        call_command("seed", verbosity=0)
        self.assertEqual(list(Account.objects.values_list("pk", "balance")), rows)
        self.assertEqual(User.objects.count(), 3)

    def test_admin(self) -> None:
        User.objects.create_superuser("root", password="root")
        self.client.login(username="root", password="root")
        for page in ("", *(f"shop/{name}/" for name in MODELS)):
            self.assertEqual(self.client.get(f"/admin/{page}").status_code, 200, page)


class PurchaseTests(ShopTestCase):
    """A checkout in steps goes on where an attempt has ended."""

    CARD = "4242424242424242"

    def setUp(self) -> None:
        super().setUp()
        self.keys: list[str] = []
        gateway.called.connect(self.remember)
        self.addCleanup(gateway.called.disconnect, self.remember)

    def remember(self, key: str, **kwargs: Any) -> None:
        self.keys.append(key)

    def buy(self, key: str = "k", *, card: str = CARD, quantity: int = 2) -> Any:
        asked = {"product": "tea", "quantity": quantity, "card": card}
        return self.send(PURCHASES, asked, key)

    def assert_bought_once(self) -> None:
        order = Order.objects.get()
        self.assertEqual((order.total, order.paid), (16_00, 16_00))
        self.assertEqual(len(set(self.keys)), 1)
        self.assertEqual([message.subject for message in mail.outbox], [f"Your order {order.pk}"])

    def test_bought_twice(self) -> None:
        first, again = self.buy(), self.buy()
        self.assertEqual((first.status_code, again.status_code), (201, 201))
        self.assertEqual(first.content, again.content)
        self.assertEqual(again["Idempotency-Replayed"], "true")
        self.assertEqual(len(self.keys), 1)
        self.assert_bought_once()

    def test_an_attempt_that_ends_anywhere(self) -> None:
        for name, calls in (("place", 1), ("charge", 2), ("mark_paid", 1)):
            with self.subTest(name):
                Order.objects.all().delete()
                self.keys.clear()
                mail.outbox.clear()
                owner = gateway if name == "charge" else purchases
                real = getattr(owner, name)

                def ends(*args: Any, real: Any = real, **kwargs: Any) -> Any:
                    real(*args, **kwargs)
                    raise ConnectionError

                with patch.object(owner, name, ends), self.assertRaises(ConnectionError):
                    self.buy(name)
                self.assertEqual(self.buy(name).status_code, 201)
                self.assertEqual(len(self.keys), calls)
                self.assert_bought_once()

    def test_a_card_that_is_declined(self) -> None:
        answers = [self.buy(card=gateway.DECLINED) for _ in range(2)]
        self.assertEqual([answer.status_code for answer in answers], [402, 402])
        self.assertEqual(answers[1]["Idempotency-Replayed"], "true")
        self.assertFalse(Order.objects.exists())

    def test_a_parcel_that_may_be_booked(self) -> None:
        with (
            patch.object(carrier, "book", side_effect=TimeoutError),
            self.assertRaises(TimeoutError),
        ):
            self.buy()
        with patch.object(carrier, "book") as book:
            self.assertEqual(self.buy().json()["code"], "stale")
            decision = ("--step", "parcel", "--done", '"par_1"', "--yes")
            call_command("idempotency_resume", "k", *decision, verbosity=0)
            self.assertEqual(self.buy().status_code, 201)
        book.assert_not_called()
        self.assert_bought_once()
        self.assertIn("par_1", mail.outbox[0].body)

    def test_mistake_leaves_the_key_free(self) -> None:
        self.assertEqual(self.buy(quantity=11).status_code, 400)
        self.assertEqual(self.buy().status_code, 201)

    def test_without_a_key(self) -> None:
        self.assertEqual(self.client.post(PURCHASES, {}).status_code, 400)
        self.assertFalse(Order.objects.exists())


class TaskTests(TransactionTestCase):
    """The shop's tasks, in place. Receipts are sent on commit, which a TestCase has none of."""

    def setUp(self) -> None:
        owner = User.objects.create(username="alice", email="alice@example.com")
        self.account = Account.objects.create(
            owner=owner, name="everyday", currency="EUR", balance=100_00
        )

    def capture(self, amount: int = 40_00) -> EagerResult:
        return capture_payment.delay(self.account.pk, amount, "order-1")

    def test_one_payment_and_one_receipt(self) -> None:
        first, again = self.capture(), self.capture()

        self.assertEqual(first.get(), again.get())
        self.assertEqual(Payment.objects.count(), 1)
        self.assertEqual([message.subject for message in mail.outbox], ["Your payment order-1"])

    def test_a_refusal_stays_one(self) -> None:
        first = self.capture(amount=100_01)
        Account.objects.update(balance=200_00)
        again = self.capture(amount=100_01)

        self.assertEqual((first.state, again.state), ("FAILURE", "FAILURE"))
        self.assertIsInstance(first.result, InsufficientFunds)
        self.assertIsInstance(again.result, TaskFailed)
        self.assertEqual(again.result.kind, "example_project.shop.exceptions.InsufficientFunds")
        self.assertFalse(Payment.objects.exists())
