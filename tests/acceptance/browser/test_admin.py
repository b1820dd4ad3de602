"""
Three in the morning: an operator finds, reads and decides about records, whichever store has them.

IDEMPOTENCY_TEST_SCREENSHOTS=docs/_static takes the pictures of the tour (docs/howto/admin.md) anew.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from uuid import UUID

import psycopg
import pytest
from playwright.sync_api import expect

from tests.acceptance.browser import owners
from tests.acceptance.browser.test_pages import judged
from tests.acceptance.databases import commands
from tests.services import or_skip
from tests.services.dynamodb import ENVIRONMENT, dynamodb_url
from tests.services.gunicorn import Gunicorn
from tests.services.redis import RedisServer

pytestmark = pytest.mark.leg("browser")

LIST = "/admin/django_idempotency/idempotencyrecord/"
LISTS = {"default": LIST, "redis": f"{LIST}store/redis/", "dynamodb": f"{LIST}store/dynamodb/"}
#: A record of work in steps.
STEPS = f"alice+{UUID(int=0)}"
#: One with calls of which nobody knows whether they were made.
UNCERTAIN = f"bob+{UUID(int=5 * 7**40)}"
PICTURES = os.environ.get("IDEMPOTENCY_TEST_SCREENSHOTS")
#: The pages of the tour, and their colours.
TOUR = {"list": "light", "record": "dark", "decision": "light", "overview": "light"}


@pytest.fixture(scope="module")
def office(database):
    """The address of the shop with a store of each kind, and the environment of its processes."""
    with ExitStack() as stack:
        redis = or_skip(lambda: stack.enter_context(RedisServer()))
        env = {**database[0], **ENVIRONMENT, "EXAMPLE_REDIS_URL": redis.url}
        env["EXAMPLE_DYNAMODB_URL"] = or_skip(lambda: stack.enter_context(dynamodb_url()))
        env["DJANGO_SETTINGS_MODULE"] = "tests.acceptance.browser.settings"
        run(env, "fill()")
        yield stack.enter_context(Gunicorn(env=env, workers=2)).url, env


def run(env, call):
    """Call a function of `owners` in a process of the shop."""
    commands(f"from tests.acceptance.browser import owners; owners.{call}", env)


@pytest.fixture(params=["light", "dark"])
def scheme(request):
    return request.param


@pytest.fixture
def context(browser, office, request):
    """A window of 1 280 pixels; a test's parameters say which colours, and whether scripts run."""
    known = request.fixturenames
    scheme = request.getfixturevalue("scheme") if "scheme" in known else "light"
    scripts = request.getfixturevalue("scripts") if "scripts" in known else True
    context = browser.new_context(
        base_url=office[0],
        color_scheme=scheme,
        java_script_enabled=scripts,
        viewport={"width": 1280, "height": 800},
    )
    context.set_default_timeout(60_000)
    yield context
    context.close()


@pytest.fixture(params=owners.ALIASES)
def alias(request):
    return request.param


def row_of(page, key):
    return page.locator("#result_list tbody tr").filter(has_text=key)


@pytest.mark.parametrize("scripts", [False])
def test_find_by_a_users_key_filter_stale_read_release_and_refuse_the_owner(
    page, log_in, office, alias, scripts
):
    """By keyboard and form alone: the page has no scripts here."""
    log_in(f"/admin/login/?next={LISTS[alias]}", "operator")
    page.get_by_label("Search").fill("alice order-17")
    page.get_by_label("Search").press("Enter")
    expect(page.locator("#result_list tbody tr")).to_have_count(1)
    page.locator("#result_list tbody a").click()
    expect(page.locator(".field-status")).to_have_text("201")
    expect(page.locator(".field-answer pre")).to_contain_text('"status": "captured"')
    expect(page.get_by_text("It would get the stored result.")).to_be_visible()

    page.goto(LISTS[alias])
    page.get_by_label("State").select_option("in progress, stale")
    page.get_by_role("button", name="Search").click()
    expect(page.locator("#result_list tbody tr")).to_have_count(1)
    expect(row_of(page, "order-stale").locator(".field-lease")).to_have_text("stale")

    page.goto(f"{LISTS[alias]}?q=alice+order-running")
    page.locator("#result_list tbody a").click()
    page.get_by_role("button", name="Release").click()
    expect(page.get_by_text("The running attempt loses its lease")).to_be_visible()
    page.get_by_label("Reason").fill("checked with the bank: not charged")
    page.get_by_label("End the running attempt").check()
    page.get_by_role("button", name="Release").click()
    expect(page.get_by_text("Released: 1 record.")).to_be_visible()
    expect(page.locator(".idempotency-told .idempotency-state")).to_have_text("released")
    entry = page.get_by_role("row").filter(has_text=f"in the store {alias}")
    expect(entry).to_contain_text("operator")
    expect(entry).to_contain_text("with a running attempt: checked with the bank: not charged")
    run(office[1], f"come_late({alias!r})")


#: All of them, as if they had been written that long ago.
AGED = """
UPDATE idempotency_record
   SET created_at = created_at - interval '25 hours', updated_at = updated_at - interval '25 hours',
       expires_at = expires_at - interval '25 hours'
 WHERE operation = 'POST label'
"""


def test_S13_S18_a_record_held_beyond_its_retention_is_resumed_and_the_retry_completes(
    page, log_in, office, database
):
    def send():
        key = {"Idempotency-Key": '"label-17"', "Content-Type": "application/json"}
        answer = page.request.post("/labels/", headers=key, data="{}")
        return answer.status, answer.json() if "json" in answer.headers["content-type"] else None

    assert send()[0] == 500
    assert send()[1]["code"] == "stale"
    with psycopg.connect(office[1]["EXAMPLE_DATABASE_URL"], autocommit=True) as session:
        assert session.execute(AGED).rowcount == 1
    commands('call("idempotency_sweep", verbosity=0)', office[1])
    assert send()[1]["code"] == "stale"

    log_in(f"/admin/login/?next={LIST}store/default/overview/", "operator")
    expect(page.get_by_role("link", name="held records")).to_contain_text("2")
    page.get_by_role("link", name="oldest held record").click()
    expect(page.get_by_text("Nobody knows whether these calls were made: label.")).to_be_visible()
    page.get_by_role("form", name="label").get_by_role("button", name="It was done").click()
    expect(page.get_by_text("The call label counts as made")).to_be_visible()
    page.get_by_label("Result, as JSON").fill('{"id": "L-17"}')
    page.get_by_label("Reason").fill("The carrier has printed it.")
    page.get_by_role("button", name="It was done").click()
    expect(page.get_by_text("Resumed (label was done): 1 record.")).to_be_visible()
    entry = page.get_by_role("row").filter(has_text="in the store default")
    expect(entry).to_contain_text("The carrier has printed it.")
    expect(page.get_by_text("It would go on after 2 steps")).to_be_visible()

    assert send() == (201, {"order": 17, "label": "L-17"})
    assert send() == (201, {"order": 17, "label": "L-17"})


def test_who_may_not_see_an_answer_sees_that_there_is_one(page, log_in, alias):
    log_in(f"/admin/login/?next={LISTS[alias]}%3Fq%3Dalice%2Border-17", "clerk")
    page.locator("#result_list tbody a").click()
    answer = page.locator(".field-answer")
    expect(answer).to_contain_text("It takes the permission")
    expect(answer).not_to_contain_text("captured")
    expect(page.get_by_role("button", name="Release")).to_have_count(0)


def test_R80_hostile_keys_and_bodies_stay_text(page, log_in, alias):
    log_in(f"/admin/login/?next={LISTS[alias]}", "operator")
    row = row_of(page, "<img src=x")
    expect(row).to_contain_text(owners.SCRIPT[:20])
    row.locator("a").click()
    expect(page.locator("#idempotency-key")).to_have_text(owners.IMAGE)
    expect(page.locator(".field-answer pre")).to_have_text(owners.SCRIPT + owners.IMAGE)
    page.goto(f"{LIST}store/{alias}/overview/")
    expect(page.get_by_role("link", name=owners.SCRIPT)).to_be_visible()
    assert page.locator("#content img, #content script").count() == 0
    assert "taken" not in page.title()


def test_all_of_a_page_are_selected_and_a_key_is_copied(page, log_in, context):
    """By scripts of a file: a Content-Security-Policy may forbid all others."""
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    log_in(f"/admin/login/?next={LIST}", "operator")
    every, boxes = page.get_by_label("Select all on this page"), page.locator("[name=seen]")
    every.check()
    expect(page.locator("[name=seen]:checked")).to_have_count(boxes.count())
    boxes.nth(1).uncheck()
    expect(every).not_to_be_checked()
    boxes.nth(1).check()
    expect(every).to_be_checked()
    every.uncheck()
    expect(page.locator("[name=seen]:checked")).to_have_count(0)
    row_of(page, "<img src=x").locator("a").click()
    page.locator(".field-key").get_by_role("button", name="Copy").click()
    expect(page.locator(".field-key").get_by_role("button")).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == owners.IMAGE


@pytest.mark.parametrize("scripts", [False])
def test_without_scripts_no_box_or_button_does_nothing(page, log_in, scripts):
    log_in(f"/admin/login/?next={LIST}", "operator")
    expect(page.locator("[name=seen]").first).to_be_visible()
    expect(page.locator("#idempotency-all")).to_be_hidden()
    page.locator("#result_list tbody a").first.click()
    expect(page.locator(".field-key")).to_be_visible()
    expect(page.locator(".idempotency-copy").first).to_be_hidden()


def pages(page):
    """Open each page in turn, and yield its name."""
    page.goto(LIST)
    yield "list"
    for query in ("alice+order-17", "k" * 255, STEPS, UNCERTAIN):
        page.goto(f"{LIST}?q={query}")
        page.locator("#result_list tbody a").click()
        expect(page.locator(".field-answer")).to_be_visible()
        yield "record"
    page.goto(f"{LIST}?state=stale")
    page.locator("#result_list tbody a").click()
    expect(page.locator(".field-answer")).to_be_visible()
    yield "stale record"
    page.locator("button[value=complete]").click()
    expect(page.locator("#id_reason")).to_be_visible()
    yield "decision"
    page.goto(f"{LIST}store/default/overview/")
    yield "overview"


SIDEWAYS = "document.scrollingElement.scrollWidth - document.scrollingElement.clientWidth"
CUT = "[...document.querySelectorAll('.results')].some(it => it.scrollWidth > it.clientWidth)"
#: Words of the page that stand on two lines; keys and ids are none.
BROKEN = r"""() => {
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const range = new Range(), broken = [];
  while (texts.nextNode()) {
    const text = texts.currentNode;
    if (text.parentElement.closest("pre, code, script, .field-key")) continue;
    for (const word of text.data.matchAll(/[\p{L}\d]+/gu)) {
      range.setStart(text, word.index);
      range.setEnd(text, word.index + word[0].length);
      const lines = new Set([...range.getClientRects()].map((line) => line.top));
      if (lines.size > 1) broken.push(word[0]);
    }
  }
  return broken;
}"""
#: Texts of which the last character, a full stop say, stands left of the one before it.
TURNED = r"""() => {
  const texts = document.createTreeWalker(
    document.querySelector("#content-main"), NodeFilter.SHOW_TEXT
  );
  const range = new Range(), turned = [];
  const left = (text, at) => {
    range.setStart(text, at);
    range.setEnd(text, at + 1);
    return range.getBoundingClientRect().left;
  };
  while (texts.nextNode()) {
    const text = texts.currentNode, end = text.data.trimEnd().length;
    if (!/[a-z0-9)][.:?)\u2026]$/.test(text.data.trimEnd())) continue;
    if (left(text, end - 1) < left(text, end - 2)) turned.push(text.data.trim());
  }
  return turned;
}"""


@pytest.mark.parametrize("language", ["en", "de", "he"])
def test_no_page_scrolls_sideways_and_no_word_breaks(page, log_in, context, language):
    log_in(f"/admin/login/?next={LIST}", "operator")
    context.set_extra_http_headers({"Accept-Language": language})
    for width in (1280, 800, 390):
        page.set_viewport_size({"width": width, "height": 800})
        for name in pages(page):
            assert page.locator("html").get_attribute("lang") == language
            assert page.evaluate(SIDEWAYS) <= 0, (name, width)
            assert page.evaluate(BROKEN) == [], (name, width)
            assert width < 1280 or not page.evaluate(CUT), name
            assert width > 390 or judged(page) == [], name
            if name != "overview":
                heads = page.locator(".stacks thead th:visible").count()
                assert (heads > 1) is (width == 1280), "its rows are cards"


def test_what_is_not_translated_reads_from_left_to_right_in_a_page_from_right_to_left(
    page, log_in, context
):
    log_in(f"/admin/login/?next={LIST}", "operator")
    context.set_extra_http_headers({"Accept-Language": "he"})
    for name in pages(page):
        assert page.locator("html").get_attribute("dir") == "rtl"
        for each in page.locator("#content-main :is(code, pre)").all():
            assert each.evaluate("it => getComputedStyle(it).direction") == "ltr"
        assert page.evaluate(TURNED) == [], name


def shown(page, name, scheme):
    """Judge the page as it is, and take its picture for the tour."""
    expect(page.locator("#content-main")).to_be_visible()
    assert judged(page) == []
    wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.evaluate(wide) <= 0, "something falls off at 1 280 pixels"
    assert not page.evaluate(CUT), "a column falls off the list"
    if PICTURES and TOUR.get(name) == scheme:
        Path(PICTURES).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=f"{PICTURES}/admin-{name}.png")


def test_the_pages_in_light_and_dark_are_accessible_and_nothing_falls_off(page, log_in, scheme):
    log_in(f"/admin/login/?next={LIST}", "operator")
    expect(page.locator("#result_list")).to_be_visible()
    shown(page, "list", scheme)
    page.goto(f"{LIST}store/dynamodb/?state=stale")
    shown(page, "filter", scheme)
    page.goto(f"{LIST}?q=alice+order-17")
    page.locator("#result_list tbody a").click()
    shown(page, "record", scheme)
    page.goto(f"{LIST}?q={STEPS}")
    page.locator("#result_list tbody a").click()
    expect(page.locator(".field-steps tbody tr")).to_have_count(2)
    shown(page, "steps", scheme)
    page.goto(f"{LIST}?q={UNCERTAIN}")
    page.locator("#result_list tbody a").click()
    expect(page.locator(".field-steps form")).to_have_count(2)
    shown(page, "uncertain", scheme)
    page.get_by_role("form", name="label").get_by_role("button", name="It was done").click()
    expect(page.get_by_label("Result, as JSON")).to_be_visible()
    shown(page, "call", scheme)
    page.goto(f"{LIST}?state=stale")
    page.locator("#result_list tbody a").click()
    page.get_by_role("button", name="Complete").click()
    shown(page, "decision", scheme)
    page.goto(f"{LIST}store/redis/overview/")
    shown(page, "overview", scheme)
    page.goto(f"{LIST}store/events/")
    expect(page.locator(".errornote")).to_contain_text("ConnectionError")
    shown(page, "down", scheme)
