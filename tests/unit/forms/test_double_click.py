"""R89: the hidden field, and an order form submitted twice, by users and by visitors."""

from __future__ import annotations

import re
import uuid

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.contrib.sessions.backends.db import SessionStore
from django.contrib.sessions.models import Session
from django.template import Context, Template

from django_idempotency.models import IdempotencyRecord
from tests.unit.forms.conftest import orders
from tests.unit.http.api import replayed

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls("tests.unit.forms.urls")]

FIELD = re.compile(r'<input type="hidden" name="([^"]*)" value="([^"]*)">')


def the_record() -> IdempotencyRecord:
    return IdempotencyRecord.objects.get()


@pytest.fixture
def double_click(visitor, gate, looked_twice, policy):
    """
    `double_click()` submits the form twice at once: the answers; the second click has waited.

    On SQLite the claim of `joined` work waits for the lock: tests/integration/views has it.
    """
    policy(TRANSACTION="separate")

    def submit(**more):
        fields = {**visitor.page(), "item": "slow", **more}
        clicked = visitor.click(fields)
        assert gate.reached.wait(60)
        second = visitor.click(fields).result(60)
        return clicked.result(60), second

    return submit


def test_R89_a_double_click_runs_once_and_shows_the_page_twice(double_click):
    first, second = double_click(then="redirect")

    assert (replayed(first), replayed(second)) == (False, True)
    assert (second.status_code, second.content) == (first.status_code, first.content)
    assert second.headers["Location"] == first.headers["Location"]
    assert orders() == ["slow"]


def test_R51_R89_a_double_click_that_logs_in_leaves_the_browser_logged_in(
    visitor, double_click, settings
):
    """The second click has waited with the session of before, whose key is gone."""
    settings.SESSION_SAVE_EVERY_REQUEST = True
    visitor.path = "/join/"

    first, second = double_click()

    assert (replayed(first), replayed(second), second.status_code) == (False, True, 200)
    assert "sessionid" not in second.cookies
    key = first.cookies["sessionid"].value
    assert [session.session_key for session in Session.objects.all()] == [key]
    assert SessionStore(key)["basket"] == []


def test_R89_the_csrf_token_is_not_fingerprinted_and_without_it_nothing_is_claimed(visitor):
    fields, opened_again = visitor.page(), visitor.page()
    token = fields.pop("csrfmiddlewaretoken")
    assert visitor.submit(fields).status_code == 403
    assert not IdempotencyRecord.objects.exists()

    tokens = (token, opened_again["csrfmiddlewaretoken"])
    answers = [visitor.submit({**fields, "csrfmiddlewaretoken": sent}) for sent in tokens]

    assert tokens[0] != tokens[1]
    assert [replayed(answer) for answer in answers] == [False, True]


# Which key it is.


def test_R21_a_header_of_a_visitor_has_no_scope(visitor):
    response = visitor.submit(visitor.page(), Idempotency_Key="k", Accept="*/*")

    assert (response.status_code, response.json()["code"]) == (400, "scope_missing")
    assert orders() == []


def test_R89_header_wins_over_the_field_and_does_not_make_a_form_wait(visitor, in_progress, waited):
    """How long others wait: test_R89_wait_of_a_form in tests/unit/views/test_waiting.py."""
    visitor.log_in()
    fields = visitor.page()
    visitor.submit(fields, Idempotency_Key="of-the-header")
    assert the_record().key == "of-the-header"
    in_progress()

    assert visitor.submit(fields, Idempotency_Key="of-the-header").status_code == 409
    assert waited.seconds == 0


def test_R89_a_field_that_is_no_key_is_400(visitor):
    fields = visitor.page()
    for key in ("", " ", "a\x7fb", "ä", "x" * 256):
        answer = visitor.submit({**fields, "idempotency_key": key}, Accept="application/json")

        assert (answer.status_code, answer.json()["code"]) == (400, "idempotency_key_invalid"), key
    assert orders() == []


def test_R89_a_field_is_the_key_as_it_stands_and_without_it_nothing_is_guarded(visitor):
    """It is no structured field: quotes and commas are part of it."""
    fields = visitor.page()
    del fields["idempotency_key"]
    assert not replayed(visitor.submit(fields))
    assert not IdempotencyRecord.objects.exists()

    visitor.submit({**fields, "idempotency_key": '"a",b'})

    assert the_record().key == '"a",b'
    assert orders() == ["tea", "tea"]


def test_R89_R10_name_and_form_of_the_key_are_a_choice_of_the_policy(visitor, policy):
    policy(HTTP={"FORM_FIELD": "once", "KEY_VALIDATOR": "uuid7"})
    fields = visitor.page()

    assert [replayed(visitor.submit(fields)) for _ in range(2)] == [False, True]
    assert the_record().key == str(uuid.UUID(fields["once"]))

    policy(HTTP={"KEY_VALIDATOR": None, "KEY_MAX_LENGTH": 20})
    assert visitor.submit(visitor.page()).status_code == 200


# The tag.


def rendered(source="{% idempotency_key %}", **context):
    return Template("{% load idempotency %}" + source).render(Context(context))


def test_R89_tag_is_a_hidden_field_with_a_new_uuid_each_time(settings):
    found = FIELD.findall(rendered("{% idempotency_key %}{% idempotency_key %}") + rendered())

    assert [name for name, _ in found] == ["idempotency_key"] * 3
    assert len({uuid.UUID(value) for _, value in found}) == 3

    fields = {"default": '"><script>', "other": "once"}
    settings.IDEMPOTENCY = {alias: {"HTTP": {"FORM_FIELD": fields[alias]}} for alias in fields}
    assert 'name="once"' in rendered("{% idempotency_key 'other' %}")
    assert 'name="&quot;&gt;&lt;script&gt;"' in rendered()


def test_R89_tag_begins_the_session_of_a_visitor_and_none_for_a_user(client, rf):
    session = client.get("/order/").cookies["sessionid"].value
    assert session
    assert client.session.session_key == session
    client.get("/order/")
    assert client.cookies["sessionid"].value == session

    request = rf.get("/")
    request.user = AnonymousUser()
    assert FIELD.fullmatch(rendered(request=request))
    request.user, request.session = User.objects.create(username="alice"), SessionStore()
    rendered(request=request)
    assert request.session.session_key is None
