"""R35: the forms of the browsable API in a browser, each of which carries a key."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, Response, expect

from tests.acceptance.browser.conftest import Shop, value

pytestmark = [
    pytest.mark.leg("browser"),
    pytest.mark.parametrize("shop", ["gunicorn"], indirect=True),
]

PAYMENT = '{"account": 1, "amount": 100, "reference": "raw data"}'


@pytest.fixture
def payments(page: Page) -> Page:
    """The page of alice's payments, in the browsable API."""
    page.goto("/api-auth/login/?next=/api/payments/")
    page.get_by_label("Username").fill("alice")
    page.get_by_label("Password").fill("alice-demo")
    page.get_by_role("button", name="Log in").click()
    page.wait_for_url("**/api/payments/")
    return page


def test_R35_both_forms_pay_and_a_double_click_pays_once(shop: Shop, payments: Page) -> None:
    count = "SELECT count(*) FROM shop_payment"
    before, page = value(shop.database, count), payments
    answers: list[Response] = []
    page.on("response", lambda got: answers.append(got) if got.request.method == "POST" else None)

    page.get_by_text("HTML form").click()
    form = page.locator("#post-object-form")
    form.locator("[name=amount]").fill("100")
    form.locator("[name=reference]").fill("html form")
    form.get_by_role("button", name="POST").dblclick()
    expect(page.get_by_text("HTTP 201 Created")).to_be_visible()
    page.wait_for_load_state("networkidle")
    page.get_by_text("Raw data").click()
    page.locator("#post-generic-content-form textarea").fill(PAYMENT)
    page.locator("#post-generic-content-form button").dblclick()
    expect(page.get_by_text('"raw data"')).to_be_visible()

    keys = [answer.request.headers["idempotency-key"] for answer in answers]
    assert [answer.status for answer in answers] == [201, 201]
    assert len(set(keys)) == 2
    assert value(shop.database, count) == before + 2
