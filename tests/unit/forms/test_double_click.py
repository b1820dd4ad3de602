"""R89: an order form submitted twice, by users and by visitors."""

from __future__ import annotations

import uuid
from types import SimpleNamespace

import pytest
from django.contrib.auth.models import User

from django_idempotency.models import IdempotencyRecord
from tests.unit.forms.conftest import Visitor, orders, taken
from tests.unit.forms.urls import ANYONE
from tests.unit.http.api import replayed
from tests.unit.http.conftest import InProgress, SetPolicy
from tests.unit.views.work import Gate

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls("tests.unit.forms.urls")]


@pytest.fixture(params=["visitor", "user"])
def someone(request: pytest.FixtureRequest, visitor: Visitor) -> Visitor:
    if request.param == "user":
        visitor.client.force_login(User.objects.create(username="alice"))
    return visitor


@pytest.mark.parametrize(
    ("someone", "then"), [("visitor", "page"), ("user", "redirect")], indirect=["someone"]
)
def test_R89_a_double_click_runs_once_and_shows_the_page_twice(
    someone: Visitor, gate: Gate, looked_twice: None, policy: SetPolicy, then: str
) -> None:
    """On SQLite the claim of `joined` work waits for the lock: tests/integration/views has it."""
    policy(TRANSACTION="separate")
    fields = {**someone.page(), "item": "slow", "then": then}

    first = someone.click(fields)
    assert gate.reached.wait(10)
    second = someone.click(fields).result(20)

    assert not replayed(first.result(10))
    assert replayed(second)
    assert second.status_code == first.result().status_code == (302 if then == "redirect" else 200)
    assert second.content == first.result().content
    assert second.headers.get("Location") == first.result().headers.get("Location")
    assert orders() == ["slow"]


def test_R89_two_clicks_one_after_the_other(someone: Visitor) -> None:
    """The page opened again is another order; another item under the same key is none."""
    page, opened_again = someone.page(), someone.page()
    fields = {**page, "item": "tea"}

    first, again = someone.submit(fields), someone.submit(fields)
    another = someone.submit({**opened_again, "item": "tea"})
    other = someone.submit({**fields, "item": "coffee"})

    assert [replayed(answer) for answer in (first, again, another)] == [False, True, False]
    assert again.content == first.content
    assert other.status_code == 422
    assert orders() == ["tea", "tea"]


def test_R89_the_csrf_token_is_not_fingerprinted(visitor: Visitor) -> None:
    page, opened_again = visitor.page(), visitor.page()
    fields = {**page, "item": "tea"}
    other = {**fields, "csrfmiddlewaretoken": opened_again["csrfmiddlewaretoken"]}

    first, again = visitor.submit(fields), visitor.submit(other)

    assert fields["csrfmiddlewaretoken"] != other["csrfmiddlewaretoken"]
    assert first.status_code == 200
    assert replayed(again)


def test_R89_without_the_csrf_token_nothing_is_claimed(visitor: Visitor) -> None:
    fields = visitor.page()
    del fields["csrfmiddlewaretoken"]

    assert visitor.submit({**fields, "item": "tea"}).status_code == 403
    assert not IdempotencyRecord.objects.exists()


# Whose key it is.


def test_R89_two_visitors_with_one_key_are_two(visitor: Visitor) -> None:
    fields = {**visitor.page(), "item": "tea"}
    visitor.submit(fields)
    visitor.client.cookies.pop("sessionid")

    stranger = visitor.submit({**visitor.page(), **taken(fields)})

    assert not replayed(stranger)
    assert orders() == ["tea", "tea"]
    assert IdempotencyRecord.objects.values("scope").distinct().count() == 2


def test_R89_the_scope_of_a_user_outlives_his_session(visitor: Visitor) -> None:
    alice = User.objects.create(username="alice")
    visitor.client.force_login(alice)
    fields = {**visitor.page(), "item": "tea"}
    visitor.submit(fields)
    visitor.client.logout()
    visitor.client.force_login(alice)

    again = visitor.submit({**visitor.page(), **taken(fields)})

    assert replayed(again)
    assert IdempotencyRecord.objects.get().scope == f"user:auth.user:{alice.pk}"


def test_R89_the_scope_of_the_policy_replaces_both(someone: Visitor, policy: SetPolicy) -> None:
    policy(HTTP={"SCOPE": ANYONE})

    someone.submit({**someone.page(), "item": "tea"})

    assert IdempotencyRecord.objects.get().scope == "anyone"


def test_R21_a_header_of_a_visitor_has_no_scope(visitor: Visitor) -> None:
    fields = visitor.page()
    del fields["idempotency_key"]

    response = visitor.submit({**fields, "item": "tea"}, Idempotency_Key="k", Accept="*/*")

    assert (response.status_code, response.json()["code"]) == (400, "scope_missing")
    assert orders() == []


# Which key it is.


def test_R89_header_wins_over_the_field(visitor: Visitor) -> None:
    visitor.client.force_login(User.objects.create(username="alice"))
    fields = {**visitor.page(), "item": "tea"}

    visitor.submit(fields, Idempotency_Key="of-the-header")

    assert IdempotencyRecord.objects.get().key == "of-the-header"


def test_R89_a_field_that_is_no_key_is_400(visitor: Visitor) -> None:
    fields = {**visitor.page(), "item": "tea"}
    for key in ("", " ", "a\x7fb", "ä", "x" * 256):
        answer = visitor.submit({**fields, "idempotency_key": key}, Accept="application/json")

        assert (answer.status_code, answer.json()["code"]) == (400, "idempotency_key_invalid"), key
    assert orders() == []


def test_R89_a_field_is_the_key_as_it_stands(visitor: Visitor) -> None:
    """It is no structured field: quotes and commas are part of it."""
    visitor.submit({**visitor.page(), "idempotency_key": '"a",b', "item": "tea"})

    assert IdempotencyRecord.objects.get().key == '"a",b'


def test_R89_no_field_at_all_is_not_guarded(visitor: Visitor) -> None:
    fields = visitor.page()
    del fields["idempotency_key"]

    for _ in range(2):
        assert visitor.submit({**fields, "item": "tea"}).status_code == 200

    assert orders() == ["tea", "tea"]
    assert not IdempotencyRecord.objects.exists()


def test_R89_the_fields_name_is_a_choice_of_the_policy(visitor: Visitor, policy: SetPolicy) -> None:
    policy(HTTP={"FORM_FIELD": "once"})
    fields = {**visitor.page(), "item": "tea"}

    first, again = visitor.submit(fields), visitor.submit(fields)

    assert IdempotencyRecord.objects.get().key == str(uuid.UUID(fields["once"]))
    assert (replayed(first), replayed(again)) == (False, True)


def test_R89_a_key_in_the_header_does_not_make_a_form_wait(
    visitor: Visitor, in_progress: InProgress, waited: SimpleNamespace
) -> None:
    """How long others wait: test_R89_wait_of_a_form in tests/unit/views/test_waiting.py."""
    visitor.client.force_login(User.objects.create(username="alice"))
    fields = {**visitor.page(), "item": "tea"}
    visitor.submit(fields, Idempotency_Key="HEADER")
    in_progress()

    assert visitor.submit(fields, Idempotency_Key="HEADER").status_code == 409
    assert waited.seconds == 0
    assert orders() == ["tea"]
