"""R89: double clicks while the first one's transaction has written; SQLite queues them itself."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session

from tests.unit.forms.conftest import orders
from tests.unit.http.api import replayed

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.urls("tests.unit.forms.urls"),
    pytest.mark.leg("postgres18", "postgres16"),
    pytest.mark.usefixtures("looked_twice"),
]


@pytest.fixture(autouse=True)
def project():
    """The shop is in the project of the settings."""


@pytest.mark.parametrize(
    ("transaction", "path", "who"),
    [
        ("joined", "/order/", "visitor"),
        ("single", "/order/", "user"),
        ("joined", "/order/", "visitor whose session is gone"),
        ("joined", "/join/", "visitor whom the form logs in"),
    ],
)
def test_R89_a_double_click_runs_once(visitor, gate, policy, transaction, path, who):
    """The second click comes while the first is at work; both see one and the same page."""
    policy(TRANSACTION=transaction)
    visitor.path = path
    if who == "user":
        visitor.client.force_login(User.objects.create(username="alice"))
    if who == "visitor whose session is gone":
        visitor.page()
        Session.objects.all().delete()

    fields = {**visitor.page(), "item": "slow"}
    first = visitor.click(fields)
    assert gate.reached.wait(60)
    second = visitor.click(fields).result(60)

    assert not replayed(first.result(60))
    assert replayed(second)
    assert first.result().status_code == second.status_code == 200
    assert second.content == first.result().content
    assert orders() == ["slow"]
