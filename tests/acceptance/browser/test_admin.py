"""R80: the admin's pages in a browser, with records whose keys are meant to do harm."""

from __future__ import annotations

import base64
import re

import pytest
from playwright.sync_api import BrowserContext, Dialog, Error, Page, Response, expect

from tests.acceptance.browser.conftest import Shop

pytestmark = [
    pytest.mark.leg("browser"),
    pytest.mark.parametrize("shop", ["gunicorn"], indirect=True),
]

LIST = "/admin/django_idempotency/idempotencyrecord/"
HOSTILE = [
    "<script>alert(1)</script>",
    "\"><img src=x onerror='alert(1)'>",
    "</title><svg onload=alert(1)>",
    "javascript:alert(1)",
    "{{7*7}}",
]


@pytest.fixture
def keys(context: BrowserContext) -> list[str]:
    """Keys of payments that somebody made."""
    alice = base64.b64encode(b"alice:alice-demo").decode()
    for key in HOSTILE:
        escaped = key.replace("\\", "\\\\").replace('"', '\\"')
        answer = context.request.post(
            "/api/payments/",
            headers={"Authorization": f"Basic {alice}", "Idempotency-Key": f'"{escaped}"'},
            data={"account": 1, "amount": 1, "reference": "x"},
        )
        assert answer.status == 201, answer.text()
    return HOSTILE


@pytest.fixture
def harm(page: Page) -> list[str]:
    """What must not happen: a dialog, an error of a script, a file that is not there."""
    found: list[str] = []

    def opened(dialog: Dialog) -> None:
        found.append(f"a dialog: {dialog.message}")
        dialog.dismiss()

    def failed(error: Error) -> None:
        found.append(f"an error: {error}")

    def answered(response: Response) -> None:
        if response.status >= 400:
            found.append(f"{response.status}: {response.url}")

    page.on("dialog", opened)
    page.on("pageerror", failed)
    page.on("response", answered)
    return found


@pytest.fixture
def admin(keys: list[str], harm: list[str], page: Page) -> Page:
    """The page of somebody who has logged in to the admin."""
    page.goto("/admin/login/")
    page.get_by_label("Username").fill("admin")
    page.get_by_label("Password").fill("admin-demo")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("heading", name="Site administration")).to_be_visible()
    return page


def injected(page: Page) -> int:
    """How many elements of the page came out of a key."""
    return page.locator("img[src=x], svg[onload], [href^=javascript]").count() + (
        page.locator("script", has_text="alert(1)").count()
    )


def test_R80_the_list_shows_hostile_keys_as_text(
    shop: Shop, admin: Page, keys: list[str], harm: list[str]
) -> None:
    admin.goto(LIST)
    admin.wait_for_load_state("networkidle")

    shown = admin.locator("td.field-short_key").all_inner_texts()
    assert set(keys) <= set(shown)
    assert injected(admin) == 0
    assert harm == []


def test_R80_the_page_of_a_record_shows_a_hostile_key_as_text(
    shop: Shop, admin: Page, keys: list[str], harm: list[str]
) -> None:
    for key in keys:
        admin.goto(LIST)
        row = admin.get_by_role("row").filter(has=admin.get_by_text(key, exact=True))
        row.first.get_by_role("link").first.click()
        expect(admin).to_have_url(re.compile(r"/change/"))
        admin.wait_for_load_state("networkidle")

        expect(admin.locator(".field-key .readonly")).to_have_text(key)
        assert injected(admin) == 0
    assert harm == []


def test_R80_a_search_for_a_hostile_key_finds_it_and_does_nothing_else(
    shop: Shop, admin: Page, keys: list[str], harm: list[str]
) -> None:
    admin.goto(LIST)
    for key in keys:
        admin.locator("#searchbar").fill(key)
        admin.get_by_role("button", name="Search").click()
        expect(admin.locator("#searchbar")).to_have_value(key)
        assert set(admin.locator("td.field-short_key").all_inner_texts()) == {key}
        assert injected(admin) == 0
    assert harm == []


def test_R79_a_search_for_the_beginning_of_an_id_finds_its_record(
    shop: Shop, admin: Page, harm: list[str]
) -> None:
    admin.goto(LIST)
    wanted = admin.locator("th.field-short_id").last.inner_text()

    admin.locator("#searchbar").fill(wanted[:12])
    admin.get_by_role("button", name="Search").click()

    expect(admin.locator("th.field-short_id")).to_have_text([wanted])
    assert harm == []
