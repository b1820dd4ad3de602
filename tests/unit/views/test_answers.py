"""R61, R77: when an answer expires, and views that run although the store is down."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from email.utils import parsedate_to_datetime

import pytest
from django.db import connection, connections

from django_idempotency.exceptions import StoreError
from django_idempotency.models import IdempotencyRecord
from django_idempotency.stores.database import DatabaseStore
from django_idempotency.stores.memory import MemoryStore
from tests.app.models import Effect
from tests.unit.http.api import problem, replayed

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
    """`on("Down")`: the view's store is this one, and it fails open unless told otherwise."""

    def use(store, fail_open=True, **fields):
        policy(BACKEND=f"{__name__}.{store}", HTTP={"FAIL_OPEN": fail_open}, **fields)

    return use


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
#: What both paths of the guard share.
a_function = pytest.mark.parametrize("kind", ["function"], indirect=True)


# R77: Idempotency-Expires.


@a_function
def test_R77_kept_and_replayed_answers_say_when_they_expire(api, policy):
    policy(RETENTION=timedelta(hours=7))

    for then in ("created", "status"):
        first, again = (api.then(then, status=409, key=then) for _ in range(2))
        said = first.headers["Idempotency-Expires"]
        stored = IdempotencyRecord.objects.get(key=then).expires_at

        assert (again.headers["Idempotency-Expires"], replayed(again)) == (said, True)
        assert said.endswith(" GMT")
        assert parsedate_to_datetime(said) == stored.replace(microsecond=0)
        assert 6.9 < (stored - datetime.now(timezone.utc)) / timedelta(hours=1) <= 7


@a_function
def test_R77_no_other_answer_says_so(api, in_progress):
    answers = [
        *(api.then("status", status=400), api.then("status", status=500, key="failed")),
        *(api(key=None), api(key=""), api(user=None), api("", method="GET")),
        *(api.then("stream", key="stream"), api.then("stream", key="stream")),
    ]
    IdempotencyRecord.objects.all().delete()
    api()
    answers.append(api({"name": "other"}))
    in_progress()
    answers.append(api())

    statuses = [answer.status_code for answer in answers]
    assert statuses == [400, 500, 201, 400, 400, 200, 200, 409, 422, 409]
    assert not any("Idempotency-Expires" in answer.headers for answer in answers)


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
    assert problem(api(key="k" * 256)) == (400, "idempotency_key_invalid")
    assert problem(api(user=None)) == (400, "scope_missing")
    assert runs == []


@both
@pytest.mark.parametrize("kind", ["function", "drf"], indirect=True)
def test_R61_R83_fail_open_passes_exceptions_on_and_keeps_atomic_requests(
    api, down, runs, monkeypatch
):
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)

    with pytest.raises(RuntimeError, match=r"^boom$"):
        api.then("boom")

    assert (len(runs), Effect.objects.count()) == (1, 0)
    assert not connection.in_atomic_block


@a_function
@pytest.mark.parametrize(
    ("store", "mode", "fail_open", "begun"),
    [
        ("NoWork", "joined", True, 0),
        ("NoWork", "joined", False, 0),
        ("NoCompletion", "joined", True, 1),
        ("NoCompletion", "single", True, 1),
    ],
)
def test_R61_fail_open_never_after_the_claim(api, on, runs, store, mode, fail_open, begun):
    """The claim has been written, so a second attempt may be on its way."""
    on(store, fail_open, TRANSACTION=mode)

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


@pytest.mark.parametrize(
    ("then", "statuses"), [("nested", (500, 500)), ("nested_later", (500, 201))]
)
@pytest.mark.parametrize("mode", ["joined"], indirect=True)
def test_R61_fail_open_never_for_a_store_that_the_work_or_its_hook_asks(
    api, policy, settings, mode, runs, then, statuses
):
    """Its error is the view's own: the view has run."""
    policy(HTTP={"FAIL_OPEN": True})
    down = {"BACKEND": f"{__name__}.Down"}
    settings.IDEMPOTENCY = {**settings.IDEMPOTENCY, "down": down}
    api.client.raise_request_exception = False

    answers = [api.then(then) for _ in range(2)]

    assert tuple(answer.status_code for answer in answers) == statuses
    assert "Idempotency-Stored" not in answers[0].headers
    hook = then == "nested_later"
    assert (len(runs), replayed(answers[1])) == ((1, True) if hook else (2, False))
