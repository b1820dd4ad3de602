"""R89: double clicks while the first one's transaction has written; SQLite queues them itself."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session

from tests.unit.forms.conftest import Visitor, orders
from tests.unit.http.api import replayed
from tests.unit.http.conftest import SetPolicy
from tests.unit.views.work import Gate

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.urls("tests.unit.forms.urls"),
    pytest.mark.leg("postgres18", "postgres16"),
    pytest.mark.usefixtures("looked_twice"),
]


@pytest.fixture(autouse=True)
def project() -> None:
    """The shop is in the project of the settings."""


def double_click(visitor: Visitor, gate: Gate) -> None:
    """The second click comes while the first is at work; both see one and the same page."""
    fields = {**visitor.page(), "item": "slow"}
    first = visitor.click(fields)
    assert gate.reached.wait(10)
    second = visitor.click(fields).result(20)

    assert not replayed(first.result(10))
    assert replayed(second)
    assert first.result().status_code == second.status_code == 200
    assert second.content == first.result().content
    assert orders() == ["slow"]


@pytest.mark.parametrize(("transaction", "user"), [("joined", None), ("single", "alice")])
def test_R89_a_double_click_runs_once(
    visitor: Visitor, gate: Gate, policy: SetPolicy, transaction: str, user: str | None
) -> None:
    policy(TRANSACTION=transaction)
    if user:
        visitor.client.force_login(User.objects.create(username=user))

    double_click(visitor, gate)


def test_R89_a_double_click_with_the_cookie_of_a_session_that_is_gone(
    visitor: Visitor, gate: Gate
) -> None:
    visitor.page()
    Session.objects.all().delete()

    double_click(visitor, gate)


def test_R89_a_double_click_on_a_form_that_logs_the_visitor_in(
    visitor: Visitor, gate: Gate
) -> None:
    visitor.path = "/join/"

    double_click(visitor, gate)
