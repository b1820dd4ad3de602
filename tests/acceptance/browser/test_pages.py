"""The browsable API and the accessibility of pages, in a browser."""

from __future__ import annotations

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

pytestmark = pytest.mark.leg("browser")

# R35: the forms of the browsable API, each of which carries a key.


def test_R35_both_forms_pay_and_a_double_click_pays_once(shop, page, log_in):
    answers, before = [], shop.payments
    log_in("/api-auth/login/?next=/api/payments/", "alice")
    page.on("response", lambda got: answers.append(got) if got.request.method == "POST" else None)

    page.get_by_text("HTML form").click()
    form = page.locator("#post-object-form")
    form.locator("[name=amount]").fill("100")
    form.locator("[name=reference]").fill("html form")
    form.get_by_role("button", name="POST").dblclick()
    expect(page.get_by_text("HTTP 201 Created")).to_be_visible()
    page.wait_for_load_state("networkidle")
    page.get_by_text("Raw data").click()
    payment = '{"account": 1, "amount": 100, "reference": "raw data"}'
    page.locator("#post-generic-content-form textarea").fill(payment)
    page.locator("#post-generic-content-form button").dblclick()
    expect(page.get_by_text('"raw data"')).to_be_visible()

    keys = [answer.request.headers["idempotency-key"] for answer in answers]
    assert [answer.status for answer in answers] == [201, 201]
    assert len(set(keys)) == 2
    assert shop.payments == before + 2


# Pages as axe judges them.

# What axe has against Django's own templates: links of the same colour as the text around them.
DJANGOS_OWN = [[".breadcrumbs"]]


def judged(page):
    """What axe has against the page: rule, element and reason."""
    found = Axe().run(page, context={"exclude": DJANGOS_OWN}).response["violations"]
    return [
        f"{rule['id']}: {node['html']}: {node['failureSummary']}"
        for rule in found
        for node in rule["nodes"]
    ]


def test_the_start_page_of_the_shop_is_accessible_and_leads_to_the_checkout(page):
    page.goto("/")
    assert judged(page) == []

    page.get_by_role("link", name="Checkout").click()
    expect(page).to_have_title("Checkout")


def test_R89_checkout_mistake_order_and_problem_are_accessible(page):
    button = page.get_by_role("button", name="Place order")
    page.goto("/checkout/")
    assert judged(page) == []

    page.locator("form").evaluate("form => form.noValidate = true")
    page.get_by_label("Quantity").fill("99")
    button.click()
    expect(page).to_have_title("Error: Checkout")
    assert judged(page) == []

    page.get_by_label("Quantity").fill("1")
    button.click()
    expect(page.get_by_role("heading")).to_have_text("Thank you for your order")
    assert judged(page) == []

    page.go_back(wait_until="commit")
    page.get_by_label("Quantity").fill("2")
    button.click()
    expect(page.get_by_role("heading")).to_have_text("This form was already sent")
    assert judged(page) == []
