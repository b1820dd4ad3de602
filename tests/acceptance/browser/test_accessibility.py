"""The pages that people see, as axe judges them."""

from __future__ import annotations

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from tests.acceptance.browser.conftest import Shop

pytestmark = [
    pytest.mark.leg("browser"),
    pytest.mark.parametrize("shop", ["gunicorn"], indirect=True),
]

# What axe has against Django's own templates: links of the same colour as the text around them,
# and a search field whose help text takes the place of its label.
DJANGOS_OWN = [[".breadcrumbs"], ["#searchbar"]]
RECORDS = "/admin/django_idempotency/idempotencyrecord/"


def judged(page: Page) -> list[str]:
    """What axe has against the page: rule, element and reason."""
    found = Axe().run(page, context={"exclude": DJANGOS_OWN}).response["violations"]
    return [
        f"{rule['id']}: {node['html']}: {node['failureSummary']}"
        for rule in found
        for node in rule["nodes"]
    ]


@pytest.fixture
def checkout(shop: Shop, page: Page) -> Page:
    page.goto("/checkout/")
    return page


@pytest.fixture
def ordered(checkout: Page) -> Page:
    """The page of an order, so there is a record, too."""
    checkout.get_by_role("button", name="Place order").click()
    expect(checkout.get_by_role("heading")).to_have_text("Thank you for your order")
    return checkout


@pytest.fixture
def records(ordered: Page) -> Page:
    """The list of records, as somebody sees it who has logged in."""
    ordered.goto(f"/admin/login/?next={RECORDS}")
    ordered.get_by_label("Username").fill("admin")
    ordered.get_by_label("Password").fill("admin-demo")
    ordered.get_by_role("button", name="Log in").click()
    expect(ordered.locator("#result_list")).to_be_visible()
    return ordered


def test_R89_the_checkout(checkout: Page) -> None:
    assert judged(checkout) == []


def test_R89_the_checkout_with_a_mistake(checkout: Page) -> None:
    checkout.locator("form").evaluate("form => form.noValidate = true")
    checkout.get_by_label("Quantity").fill("99")
    checkout.get_by_role("button", name="Place order").click()
    expect(checkout).to_have_title("Error: Checkout")
    assert judged(checkout) == []


def test_R89_the_order(ordered: Page) -> None:
    assert judged(ordered) == []


def test_R89_a_problem(ordered: Page) -> None:
    ordered.go_back(wait_until="commit")
    ordered.get_by_label("Quantity").fill("2")
    ordered.get_by_role("button", name="Place order").click()
    expect(ordered.get_by_role("heading")).to_have_text("This form was already sent")
    assert judged(ordered) == []


def test_the_list_of_records(records: Page) -> None:
    assert judged(records) == []


def test_a_record(records: Page) -> None:
    records.locator("th.field-short_id a").first.click()
    expect(records.locator(".field-key .readonly")).to_be_visible()
    assert judged(records) == []
