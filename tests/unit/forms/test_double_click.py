"""R89: an order form submitted twice, by users and by visitors."""

from __future__ import annotations

import uuid
from types import SimpleNamespace

import pytest
from django.contrib.auth.models import User

from django_idempotency.models import IdempotencyRecord
from tests.unit.forms.conftest import Visitor, orders, taken
from tests.unit.http.api import replayed
from tests.unit.http.conftest import InProgress, SetPolicy
from tests.unit.views.work import Gate

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls("tests.unit.forms.urls")]


@pytest.fixture(params=["visitor", "user"])
def someone(request: pytest.FixtureRequest, visitor: Visitor) -> Visitor:
    if request.param == "user":
        visitor.client.force_login(User.objects.create(username="alice"))
    return visitor


@pytest.mark.parametrize("then", ["page", "redirect"])
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
    fields = {**someone.page(), "item": "tea"}

    first, again = someone.submit(fields), someone.submit(fields)

    assert not replayed(first)
    assert replayed(again)
    assert again.content == first.content
    assert orders() == ["tea"]


def test_R89_the_page_opened_again_is_another_order(someone: Visitor) -> None:
    for _ in range(2):
        assert not replayed(someone.submit({**someone.page(), "item": "tea"}))

    assert orders() == ["tea", "tea"]


def test_R89_another_item_under_the_same_key_is_422(someone: Visitor) -> None:
    fields = someone.page()
    someone.submit({**fields, "item": "tea"})

    other = someone.submit({**fields, "item": "coffee"})

    assert other.status_code == 422
    assert orders() == ["tea"]


def test_R89_the_csrf_token_is_not_fingerprinted(someone: Visitor) -> None:
    page, opened_again = someone.page(), someone.page()
    fields = {**page, "item": "tea"}
    other = {**fields, "csrfmiddlewaretoken": opened_again["csrfmiddlewaretoken"]}

    first, again = someone.submit(fields), someone.submit(other)

    assert fields["csrfmiddlewaretoken"] != other["csrfmiddlewaretoken"]
    assert first.status_code == 200
    assert replayed(again)


def test_R89_without_the_csrf_token_nothing_is_claimed(someone: Visitor) -> None:
    fields = someone.page()
    del fields["csrfmiddlewaretoken"]

    assert someone.submit({**fields, "item": "tea"}).status_code == 403
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
    policy(HTTP={"SCOPE": "django_idempotency.http.scopes.anyone"})

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


@pytest.mark.parametrize("key", ["", " ", "a\x7fb", "ä", "x" * 256])
def test_R89_a_field_that_is_no_key_is_400(someone: Visitor, key: str) -> None:
    response = someone.submit(
        {**someone.page(), "idempotency_key": key, "item": "tea"}, Accept="application/json"
    )

    assert (response.status_code, response.json()["code"]) == (400, "idempotency_key_invalid")
    assert orders() == []


def test_R89_a_field_is_the_key_as_it_stands(someone: Visitor) -> None:
    """It is no structured field: quotes and commas are part of it."""
    someone.submit({**someone.page(), "idempotency_key": '"a",b', "item": "tea"})

    assert IdempotencyRecord.objects.get().key == '"a",b'


def test_R89_no_field_at_all_is_not_guarded(someone: Visitor) -> None:
    fields = someone.page()
    del fields["idempotency_key"]

    for _ in range(2):
        assert someone.submit({**fields, "item": "tea"}).status_code == 200

    assert orders() == ["tea", "tea"]
    assert not IdempotencyRecord.objects.exists()


def test_R89_the_fields_name_is_a_choice_of_the_policy(someone: Visitor, policy: SetPolicy) -> None:
    policy(HTTP={"FORM_FIELD": "once"})
    fields = {**someone.page(), "item": "tea"}

    first, again = someone.submit(fields), someone.submit(fields)

    assert IdempotencyRecord.objects.get().key == str(uuid.UUID(fields["once"]))
    assert (replayed(first), replayed(again)) == (False, True)


# How long a second click waits.


@pytest.mark.parametrize(
    ("wait", "headers", "seconds"),
    [
        pytest.param(None, {}, 10, id="10 by default"),
        pytest.param(0, {}, 0, id="not at all"),
        pytest.param(3, {}, 3, id="the policy's"),
        pytest.param(30, {}, 30, id="the policy's, longer"),
        pytest.param(None, {"Prefer": "wait=2"}, 2, id="shorter if preferred"),
        pytest.param(None, {"Idempotency_Key": "HEADER"}, 0, id="not with a header"),
    ],
)
def test_R89_a_second_click_waits(
    visitor: Visitor,
    policy: SetPolicy,
    in_progress: InProgress,
    waited: SimpleNamespace,
    wait: float | None,
    headers: dict[str, str],
    seconds: float,
) -> None:
    policy(**({} if wait is None else {"WAIT": wait}))
    visitor.client.force_login(User.objects.create(username="alice"))
    fields = {**visitor.page(), "item": "tea"}
    visitor.submit(fields, **headers)
    in_progress()

    response = visitor.submit(fields, **headers)

    assert response.status_code == 409
    assert waited.seconds == pytest.approx(seconds)
    assert orders() == ["tea"]
