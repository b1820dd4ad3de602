"""
The shop's own tests: ``python -m example_project.manage test example_project``.

An API with idempotency keys is tested like any other: send, send again, look at the rows.
"""

# Django's own runner, without pytest.
# ruff: noqa: PT009, PT027
from __future__ import annotations

import uuid
from typing import Any

from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import IntegrityError, transaction
from django.test import TestCase, override_settings
from drf_spectacular.drainage import GENERATOR_STATS
from drf_spectacular.generators import SchemaGenerator
from rest_framework.test import APITestCase

from example_project.shop.models import Account, Payment, Refund, Transfer

PAYMENTS = "/api/payments/"
TRANSFERS = "/api/transfers/"


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


class PageTests(TestCase):
    """What is there to look at."""

    def test_schema_names_the_key(self) -> None:
        GENERATOR_STATS.reset()
        generator = SchemaGenerator()  # type: ignore[no-untyped-call]
        schema: dict[str, Any] = generator.get_schema(public=True)  # type: ignore[no-untyped-call]
        self.assertFalse(GENERATOR_STATS, "the schema has warnings")
        for path in (PAYMENTS, TRANSFERS, f"{PAYMENTS}{{id}}/refund/"):
            parameters = schema["paths"][path]["post"]["parameters"]
            keys = [p for p in parameters if p["name"] == "Idempotency-Key"]
            self.assertEqual([(p["in"], p["required"]) for p in keys], [("header", True)])

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
        for page in ("", "shop/account/", "shop/payment/", "shop/refund/", "shop/transfer/"):
            self.assertEqual(self.client.get(f"/admin/{page}").status_code, 200, page)
