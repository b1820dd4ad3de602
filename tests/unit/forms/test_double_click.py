"""R89: an order form submitted twice, by users and by visitors."""

from __future__ import annotations

import uuid

import pytest
from django.contrib.auth.models import User

from django_idempotency.models import IdempotencyRecord
from tests.unit.forms.conftest import orders, taken
from tests.unit.forms.urls import ANYONE
from tests.unit.http.api import replayed

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls("tests.unit.forms.urls")]


@pytest.fixture(params=["visitor", "user"])
def someone(request, visitor):
    if request.param == "user":
        visitor.log_in()
    return visitor


def the_record() -> IdempotencyRecord:
    return IdempotencyRecord.objects.get()


@pytest.mark.parametrize(
    ("someone", "then"), [("visitor", "page"), ("user", "redirect")], indirect=["someone"]
)
def test_R89_a_double_click_runs_once_and_shows_the_page_twice(
    someone, gate, looked_twice, policy, then
):
    """On SQLite the claim of `joined` work waits for the lock: tests/integration/views has it."""
    policy(TRANSACTION="separate")
    fields = {**someone.page(), "item": "slow", "then": then}

    clicked = someone.click(fields)
    assert gate.reached.wait(10)
    second = someone.click(fields).result(20)
    first = clicked.result(10)

    assert (replayed(first), replayed(second)) == (False, True)
    assert second.status_code == first.status_code == (302 if then == "redirect" else 200)
    assert second.content == first.content
    assert second.headers.get("Location") == first.headers.get("Location")
    assert orders() == ["slow"]


def test_R89_two_clicks_one_after_the_other(someone):
    """The page opened again is another order; another item under the same key is none."""
    fields, opened_again = someone.page(), someone.page()

    answers = [someone.submit(sent) for sent in (fields, fields, opened_again)]
    other = someone.submit({**fields, "item": "coffee"})

    assert [replayed(answer) for answer in answers] == [False, True, False]
    assert answers[1].content == answers[0].content
    assert other.status_code == 422
    assert orders() == ["tea", "tea"]


def test_R89_the_csrf_token_is_not_fingerprinted_and_without_it_nothing_is_claimed(visitor):
    fields, opened_again = visitor.page(), visitor.page()
    token = fields.pop("csrfmiddlewaretoken")
    assert visitor.submit(fields).status_code == 403
    assert not IdempotencyRecord.objects.exists()

    tokens = (token, opened_again["csrfmiddlewaretoken"])
    answers = [visitor.submit({**fields, "csrfmiddlewaretoken": sent}) for sent in tokens]

    assert tokens[0] != tokens[1]
    assert [replayed(answer) for answer in answers] == [False, True]


# Whose key it is.


def test_R89_two_visitors_with_one_key_are_two(visitor):
    fields = visitor.page()
    visitor.submit(fields)
    visitor.client.cookies.pop("sessionid")

    stranger = visitor.submit({**visitor.page(), **taken(fields)})

    assert not replayed(stranger)
    assert orders() == ["tea", "tea"]


def test_R89_the_scope_of_a_user_outlives_his_session(visitor):
    visitor.log_in()
    fields = visitor.page()
    visitor.submit(fields)
    visitor.client.logout()
    visitor.log_in()

    assert replayed(visitor.submit({**visitor.page(), **taken(fields)}))
    assert the_record().scope == f"user:auth.user:{User.objects.get().pk}"


def test_R89_the_scope_of_the_policy_replaces_both(someone, policy):
    policy(HTTP={"SCOPE": ANYONE})

    someone.submit(someone.page())

    assert the_record().scope == "anyone"


def test_R21_a_header_of_a_visitor_has_no_scope(visitor):
    fields = visitor.page()
    del fields["idempotency_key"]

    response = visitor.submit(fields, Idempotency_Key="k", Accept="*/*")

    assert (response.status_code, response.json()["code"]) == (400, "scope_missing")
    assert orders() == []


# Which key it is.


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


def test_R89_a_field_is_the_key_as_it_stands(visitor):
    """It is no structured field: quotes and commas are part of it."""
    visitor.submit({**visitor.page(), "idempotency_key": '"a",b'})

    assert the_record().key == '"a",b'


def test_R89_no_field_at_all_is_not_guarded(visitor):
    fields = visitor.page()
    del fields["idempotency_key"]

    for _ in range(2):
        assert visitor.submit(fields).status_code == 200

    assert orders() == ["tea", "tea"]
    assert not IdempotencyRecord.objects.exists()


def test_R89_the_fields_name_is_a_choice_of_the_policy(visitor, policy):
    policy(HTTP={"FORM_FIELD": "once"})
    fields = visitor.page()

    assert [replayed(visitor.submit(fields)) for _ in range(2)] == [False, True]
    assert the_record().key == str(uuid.UUID(fields["once"]))
