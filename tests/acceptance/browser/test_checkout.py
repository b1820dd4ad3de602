"""R89: the checkout's button clicked twice, and the back button; with and without scripts."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

pytestmark = pytest.mark.leg("browser")

ORDER = re.compile(r"/orders/[0-9a-f-]{36}/$")
USED = "This form was already sent"
#: Where a server or a script may make a difference.
both = pytest.mark.parametrize(
    ("shop", "context"),
    [
        pytest.param("gunicorn", True, id="gunicorn-javascript"),
        pytest.param("uvicorn", False, id="uvicorn-no-javascript"),
    ],
    indirect=True,
)


def order(page):
    page.get_by_role("button", name="Place order").click()


def button(page):
    """Where the button is: a second click comes when the page already waits for the next one."""
    box = page.get_by_role("button", name="Place order").bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def shows_an_order(page):
    expect(page).to_have_url(ORDER)
    expect(page.get_by_role("heading")).to_have_text("Thank you for your order")


def posts(page):
    """What this page is going to POST, and the answers to it, as they come."""
    sent, answers = [], []
    page.on("request", lambda one: sent.append(one) if one.method == "POST" else None)
    page.on("response", lambda one: answers.append(one) if one.request.method == "POST" else None)
    return sent, answers


def replayed(answer):
    return answer.headers.get("idempotency-replayed") == "true"


@both
def test_R89_the_second_click_of_two_waits_for_the_order_and_shows_it(shop, page):
    """The browser gives up the first submission, whose order is being placed, for the second."""
    before, (sent, answers) = shop.orders, posts(page)
    page.goto("/checkout/")
    place = button(page)

    with shop.closed():
        with shop.first_click():
            page.mouse.click(*place)
        with shop.second_click():
            page.mouse.click(*place)
    shows_an_order(page)

    assert len(sent) == 2
    assert sent[0].post_data == sent[1].post_data
    assert [replayed(answer) for answer in answers] == [True]
    assert shop.orders == before + 1


def test_R89_a_double_click_places_one_order(shop, page):
    for _ in range(5):
        before = shop.orders
        page.goto("/checkout/")
        page.get_by_role("button", name="Place order").dblclick()
        shows_an_order(page)
        assert shop.orders == before + 1


@both
def test_R89_sent_again_after_going_back_it_is_the_same_order_and_something_else_is_refused(
    shop, page
):
    before, (_, answers) = shop.orders, posts(page)
    page.goto("/checkout/")
    page.get_by_label("Note").fill("no sugar")
    order(page)
    shows_an_order(page)
    first = page.url

    page.go_back(wait_until="commit")
    order(page)
    shows_an_order(page)
    assert page.url == first
    assert [replayed(answer) for answer in answers] == [False, True]

    page.go_back(wait_until="commit")
    page.get_by_label("Quantity").fill("2")
    order(page)
    expect(page.get_by_role("heading")).to_have_text(USED)
    page.reload()  # sends it again
    expect(page.get_by_role("heading")).to_have_text(USED)

    assert page.title() == USED
    assert [answer.status for answer in answers] == [302, 302, 422, 422]
    assert answers[-1].headers["content-type"] == "text/html; charset=utf-8"
    assert shop.orders == before + 1

    page.get_by_role("link", name="Open the form again").click()
    order(page)
    shows_an_order(page)
    assert shop.orders == before + 2
