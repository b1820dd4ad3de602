"""R61, R77: when an answer expires, and views that run although the store is down."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from email.utils import parsedate_to_datetime

import pytest
from django.db import connection, connections
from django.http import HttpResponseRedirect

from django_idempotency.exceptions import StoreError
from django_idempotency.http.calls import verdict_for
from django_idempotency.models import IdempotencyRecord
from django_idempotency.policy import HTTPPolicy
from django_idempotency.stores.database import DatabaseStore
from django_idempotency.stores.memory import MemoryStore
from tests.app.models import Effect
from tests.unit.http.api import problem, replayed
from tests.unit.views.conftest import a_function

pytestmark = pytest.mark.django_db(transaction=True)

UNAVAILABLE = (503, "store_unavailable")


class Down(MemoryStore):
    """Not the view's own store: one that its work asks, and that is out of reach."""

    def claim(self, request):
        raise StoreError("down")


class NoWork(DatabaseStore):
    """The claim stands; the work cannot begin."""

    def atomic(self, **arguments):
        if connection.in_atomic_block:
            return super().atomic(**arguments)
        raise StoreError("no transaction")


class NoCompletion(DatabaseStore):
    def complete(self, lease, result, *, retention):
        raise StoreError("no completion")


class SecondLookFails(DatabaseStore):
    """It can say that another attempt is at work, and then nothing more."""

    looks = 0

    def claim(self, request):
        type(self).looks += 1
        if type(self).looks > 1:
            raise StoreError("gone")
        return super().claim(request)


@pytest.fixture
def on(policy):
    """`on("Down")`: the view's store is this one, and it fails open."""
    return lambda store, **fields: policy(
        BACKEND=f"{__name__}.{store}", HTTP={"FAIL_OPEN": True}, **fields
    )


@pytest.fixture
def down(policy, monkeypatch):
    """The database of a view's store is not there, in any thread; the project's own is."""
    gone = f"{connections['other'].settings_dict['NAME']}/gone"
    connections["other"].close()
    with monkeypatch.context() as patch:
        for entry in (connections["other"].settings_dict, connections.settings["other"]):
            patch.setitem(entry, "NAME", gone)
        policy(OPTIONS={"using": "other"}, HTTP={"FAIL_OPEN": True})
        yield
    connections["other"].close()


both = pytest.mark.django_db(transaction=True, databases=["default", "other"])


def test_R77_kept_and_replayed_answers_say_when_they_expire_and_no_other(api, policy):
    policy(RETENTION=timedelta(hours=7))

    first, again = (api.then("status", status=409) for _ in range(2))
    said = first.headers["Idempotency-Expires"]
    stored = IdempotencyRecord.objects.get()
    assert (again.headers["Idempotency-Expires"], replayed(again)) == (said, True)
    assert said.endswith(" GMT")
    assert parsedate_to_datetime(said) == stored.expires_at.replace(microsecond=0)
    left = stored.expires_at - datetime.now(timezone.utc)
    assert 6.9 < left / timedelta(hours=1) <= 7

    for status in (400, 500):
        answers = [api.then("status", status=status, key=str(status)) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [status] * 2
        assert not any("Idempotency-Expires" in answer.headers for answer in answers)
    streamed = [api.then("stream", key="stream") for _ in range(2)]
    assert [answer.status_code for answer in streamed] == [200, 409]
    assert not any("Idempotency-Expires" in answer.headers for answer in streamed)


def test_R28_redirects_but_to_the_login_page_are_kept(settings):
    for settings.LOGIN_URL in ("/elsewhere/", "no-such-name", "https://sso.example/here/"):
        assert verdict_for(HTTPPolicy(), HttpResponseRedirect("/here/"), None) == "keep"


# R61: fail_open.


@both
def test_R61_fail_open_runs_the_view_once_and_says_so(api, down, runs):
    for number in (1, 2):
        answer = api()
        assert answer.status_code == 201
        assert answer.headers["Idempotency-Stored"] == "false"
        assert not {"Idempotency-Expires", "Idempotency-Replayed"} & {*answer.headers}
        assert len(runs) == Effect.objects.count() == number


@both
@a_function
def test_R61_R1_fail_open_refuses_what_is_wrong_with_the_key(api, down, policy, runs):
    policy(HTTP={"REQUIRED": True})

    assert problem(api(key=None)) == (400, "idempotency_key_missing")
    assert problem(api(user=None)) == (400, "scope_missing")
    assert runs == []


@both
@a_function
def test_R61_R83_fail_open_passes_exceptions_on_and_keeps_atomic_requests(
    api, down, runs, monkeypatch
):
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)

    with pytest.raises(RuntimeError, match=r"^boom$"):
        api.then("boom")

    assert (len(runs), Effect.objects.count()) == (1, 0)
    assert not connection.in_atomic_block


@a_function
@pytest.mark.parametrize(("store", "begun"), [("NoWork", 0), ("NoCompletion", 1)])
def test_R61_fail_open_never_after_the_claim(api, on, runs, store, begun):
    """The claim has been written, so a second attempt may be on its way."""
    on(store, TRANSACTION="joined")

    assert problem(api()) == UNAVAILABLE
    assert (len(runs), Effect.objects.count()) == (begun, 0)


@a_function
def test_R61_fail_open_never_while_another_is_known_to_be_at_work(
    api, on, in_progress, monkeypatch, runs
):
    """A waiter has been told that the work is under way."""
    api()
    in_progress()
    monkeypatch.setattr(SecondLookFails, "looks", 0)
    on("SecondLookFails", WAIT=30)

    assert problem(api()) == UNAVAILABLE
    assert len(runs) == 1


@a_function
def test_R61_fail_open_never_for_a_store_that_the_work_asks(api, policy, settings, runs):
    """Its error is the view's own: the view has run."""
    policy(TRANSACTION="joined", HTTP={"FAIL_OPEN": True})
    settings.IDEMPOTENCY = {**settings.IDEMPOTENCY, "down": {"BACKEND": f"{__name__}.Down"}}
    api.client.raise_request_exception = False

    answer = api.then("nested")

    assert (answer.status_code, len(runs)) == (500, 1)
    assert "Idempotency-Stored" not in answer.headers
