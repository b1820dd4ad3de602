"""R18, R55, R58, R61, R77: the answers of plain views, and what their exceptions become."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from email.utils import parsedate_to_datetime

import pytest
from django.db import connection, connections

from django_idempotency.exceptions import InProgress, LeaseLost, StoreError
from django_idempotency.exceptions.base import SessionLost
from django_idempotency.models import IdempotencyRecord
from django_idempotency.stores.database import DatabaseStore
from django_idempotency.stores.memory import MemoryStore
from tests import claims
from tests.app.contract import in_process
from tests.app.models import Effect
from tests.unit.http.api import problem, replayed
from tests.unit.views.conftest import a_function, api_for, api_of

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize(
    ("kind", "stack", "mode", "key"),
    [
        ("async-function", "asgi", "separate", "key-1"),
        ("async-class", "asgi", "joined", "key-1"),
        ("async-function", "wsgi", "single", "key-1"),
        ("async-function", "asgi", "joined", None),
    ],
)
def test_R56_keep_of_a_coroutine_reads_on_the_connection_of_the_work(
    policy, runs, kind, stack, mode, key
):
    """On the loop it would raise after the work, and each retry would run the work again."""
    seen = []

    def keep(response, exception):
        seen.append([effect.name for effect in Effect.objects.all()])
        return "keep"

    policy(TRANSACTION=mode, HTTP={"KEEP": keep})
    served = api_for(stack, f"/{kind}/")

    answers = [served(key=key) for _ in range(2)]

    assert [answer.status_code for answer in answers] == [201, 201]
    assert [replayed(answer) for answer in answers] == [False, key is not None]
    assert seen == ([["first"]] if key else [["first"], ["first", "first"]])


def test_R12_a_safe_method_passes_with_any_key_and_leaves_nothing(api):
    reads = [api("", method="GET", key=key).status_code for key in (None, "k", '"malformed')]

    assert (reads, IdempotencyRecord.objects.count()) == ([200, 200, 200], 0)


def test_R57_deferred_rendering_is_part_of_the_work(api):
    """The template of the response writes a row, once."""
    first, again = api.then("template"), api.then("template")

    assert (first.status_code, replayed(again)) == (201, True)
    assert first.content == again.content
    assert Effect.objects.filter(name="rendered").count() == 1


def test_R27_what_replaces_a_rendered_response_is_the_answer(api):
    """As a decorator of a middleware does, below the guard."""
    first, again = api.then("replaced"), api.then("replaced")

    assert (first.content, first["X-Replaced"]) == (b"replaced", "yes")
    assert (again.content, again["X-Replaced"], replayed(again)) == (b"replaced", "yes", True)


RAISED = {"missing": 404, "denied": 403, "suspicious": 400, "bad": 400, "boom": 500}
joined = pytest.mark.parametrize("mode", ["joined"], indirect=True)


@pytest.fixture
def api(kind):
    return api_of(kind, raises=False)


def states() -> dict[str, str]:
    return dict(IdempotencyRecord.objects.values_list("key", "state"))


#: The state after an exception that Django answers, and after one that it does not, by `keep`.
STATES = {
    "default": ("RELEASED", "FAILED"),
    "success": ("FAILED", "FAILED"),
    "stripe": ("COMPLETED", "COMPLETED"),
}


@pytest.mark.parametrize(
    ("kind", "mode", "keep"),
    [
        ("async-function", "joined", "default"),
        ("function", "joined", "success"),
        ("function", "separate", "stripe"),
    ],
    indirect=["kind", "mode"],
)
def test_R55_R56_what_becomes_of_an_exception(api, mode, policy, keep):
    """A kept one, too, is kept without the work that raised it, where that rolls back."""
    policy(HTTP={"KEEP": keep})
    first = {then: api.then(then, key=then) for then in RAISED}

    assert {then: answer.status_code for then, answer in first.items()} == RAISED
    refused, failed = STATES[keep]
    assert states() == {**dict.fromkeys(RAISED, refused), "boom": failed}
    assert Effect.objects.count() == (5 if mode == "separate" else 0)
    for then in ("missing", "boom"):
        again = api.then(then, key=then)
        assert (again.status_code, again.content) == (RAISED[then], first[then].content)
        expires = "Idempotency-Expires" in first[then].headers
        assert replayed(again) == expires == (keep == "stripe")


@joined
@pytest.mark.parametrize(
    ("then", "error", "said"),
    [
        ("boom", RuntimeError, r"^boom$"),
        ("loses_theirs", LeaseLost, r"^The lease was lost"),
        ("nothing", ValueError, r"^The view \S+ didn't return an HttpResponse .*None instead\.$"),
    ],
)
def test_R58_exception_passes_on_unchanged(api, mode, then, error, said):
    """The very type, text and no cause, as it leaves the same view without a key."""
    api.client.raise_request_exception = True
    told = []
    for key in (None, "key-1"):
        with pytest.raises(error, match=said) as raised:
            api.then(then, key=key)
        assert type(raised.value) is error
        assert raised.value.__cause__ is None
        told.append(raised.value.args)

    assert told[0] == told[1]
    assert states() == {"key-1": "FAILED"}


# Errors of idempotent calls.


@joined
def test_R66_lost_lease_of_the_work_is_told_and_that_of_a_call_within_is_the_works_error(api, mode):
    """Nobody has taken over this key, so nobody is told so."""
    assert api.then("loses_theirs").status_code == 500
    assert states() == {"key-1": "FAILED"}
    assert problem(api.then("loses_ours", key="key-2")) == (409, "lease_lost")
    assert api.then("loses_and_meets", key="key-3").status_code == 500


@pytest.mark.parametrize(
    ("kind", "mode"), [("function", "single"), ("async-function", "single")], indirect=True
)
def test_R66_R78_lost_lease_whose_stored_answer_cannot_be_read_is_a_problem(api, mode, monkeypatch):
    other = MemoryStore()
    lease = claims.won(other.claim(claims.asked()))
    other.complete(lease, b"damaged", retention=60)

    def refuse(store, lease, result, *, retention):
        stored = replace(claims.found(other), fingerprint=lease.request.fingerprint)
        stored = replace(stored, record_id=lease.record_id, operation=lease.request.operation)
        monkeypatch.setattr(DatabaseStore, "get", lambda store, record_id: stored)
        raise LeaseLost

    monkeypatch.setattr(DatabaseStore, "complete", refuse)

    assert problem(api()) == (503, "store_unavailable")
    assert Effect.objects.count() == 0


@pytest.mark.parametrize(
    ("kind", "mode", "atomic_requests"),
    [
        ("function", "single", False),
        ("function", "separate", True),
        ("async-function", "joined", False),
    ],
    indirect=True,
)
def test_R58_error_of_an_idempotent_call_in_a_hook_is_the_hooks_own(api, mode, atomic_requests):
    """This key is not in progress: its work has committed."""
    first, again = api.then("hook_busy"), api.then("hook_busy")

    assert (first.status_code, again.status_code, replayed(again)) == (500, 201, True)


UNAVAILABLE = (503, "store_unavailable")


class Unbegun(MemoryStore):
    """Its transaction cannot be begun; work that runs again and again is ended."""

    claims = 0

    def claim(self, request):
        self.claims += 1
        if self.claims > 3:
            pytest.fail("it runs again and again")
        raise SessionLost("no transaction", unreachable=True)


class Blink(DatabaseStore):
    """Its database is out of reach for as long as a claim takes."""

    def claim(self, request):
        raise StoreError("down", unreachable=True)


class NoWork(DatabaseStore):
    """The claim stands; the work cannot begin."""

    def atomic(self, **arguments):
        if connection.in_atomic_block:
            return super().atomic(**arguments)
        raise StoreError("no transaction", unreachable=True)


class NoCompletion(DatabaseStore):
    def complete(self, lease, result, *, retention):
        raise StoreError("no completion", unreachable=True)


class SecondLookFails(DatabaseStore):
    """It can say that another attempt is at work, and then nothing more."""

    looks = 0

    def claim(self, request):
        type(self).looks += 1
        if type(self).looks > 1:
            raise StoreError("gone", unreachable=True)
        return super().claim(request)

    def peek(self, record_ids):
        raise StoreError("gone")


@pytest.fixture
def on(policy):
    """`on("Down")`: the view's store is this one, and it fails open."""
    return lambda store, **fields: policy(
        BACKEND=f"{__name__}.{store}", HTTP={"FAIL_OPEN": True}, **fields
    )


@pytest.fixture
def down(store_is_down, policy):
    """The view's store is not there, and it fails open."""
    policy(HTTP={"FAIL_OPEN": True})


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


# R61: fail_open.


@both
def test_R61_fail_open_runs_the_view_once_and_says_so(api, down, runs, caplog):
    """It looks for the store once, and waits for it no second time."""
    for number in (1, 2):
        answer = api()
        assert answer.status_code == 201
        assert answer.headers["Idempotency-Stored"] == "false"
        assert not {"Idempotency-Expires", "Idempotency-Replayed"} & {*answer.headers}
        assert len(runs) == Effect.objects.count() == number
        assert len([line for line in caplog.records if line.levelname == "ERROR"]) == number


@both
def test_R16_R61_fail_open_echoes_the_key(api, down, policy):
    policy(HTTP={"FAIL_OPEN": True, "ECHO_KEY": True})
    assert api(key="key-1").headers["Idempotency-Key"] == '"key-1"'
    assert "Idempotency-Key" not in api(key=None).headers


@both
def test_R61_fail_open_holds_without_a_key(api, down, policy, runs, caplog):
    """The transaction on the store's database is ours, so the work does without it."""
    policy(TRANSACTION="joined", HTTP={"FAIL_OPEN": False})
    assert problem(api(key=None)) == UNAVAILABLE
    assert not runs

    policy(TRANSACTION="joined", HTTP={"FAIL_OPEN": True})
    caplog.clear()
    assert api(key=None).status_code == 201
    assert len(runs) == Effect.objects.count() == 1
    assert "store unavailable" in caplog.text


@both
@a_function
@pytest.mark.parametrize("key", ["key-1", None])
def test_R61_R83_fail_open_passes_exceptions_on_and_keeps_atomic_requests(
    api, down, runs, atomic, key
):
    """Of the other databases; and an error of the work is no reason to run it again."""
    api.client.raise_request_exception = True

    with pytest.raises(RuntimeError, match=r"^boom$"):
        api.then("boom", key=key)

    assert (len(runs), Effect.objects.count()) == (1, 0)
    assert not connection.in_atomic_block


@both
@a_function
@pytest.mark.parametrize("key", ["key-1", None])
def test_R61_R90_error_of_a_call_in_keep_is_its_own_where_there_is_no_record(
    api, down, policy, key
):
    """No key of this request is in progress."""

    def keep(response, exception):
        raise InProgress

    policy(HTTP={"KEEP": keep})

    assert api(key=key).status_code == 500


@both
@a_function
@pytest.mark.parametrize("key", ["key-1", None])
def test_R61_R83_fail_open_with_atomic_requests_on_every_database(api, down, key, monkeypatch):
    """That of the store is not begun; the other one is."""
    for alias in ("default", "other"):
        monkeypatch.setitem(connections.settings[alias], "ATOMIC_REQUESTS", True)

    assert (api(key=key).status_code, Effect.objects.count()) == (201, 1)
    assert api.then("boom", key=key).status_code == 500
    assert Effect.objects.count() == 1


@a_function
def test_R61_R83_fail_open_keeps_atomic_requests_of_a_database_that_is_there_again(
    api, on, runs, atomic
):
    on("Blink")

    assert api.then("boom").status_code == 500
    assert (len(runs), Effect.objects.count()) == (1, 0)


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


#: What the work asks, with a transaction that cannot be begun, or not at all.
ASKED = {"no transaction": f"{__name__}.Unbegun", "out of reach": f"{in_process.__name__}.Down"}


@a_function
@pytest.mark.parametrize(("asked", "key"), [("no transaction", None), ("out of reach", "key-1")])
def test_R61_fail_open_never_for_a_store_that_the_work_asks(
    api, policy, settings, runs, asked, key
):
    """The view has begun, and its error is its own."""
    policy(TRANSACTION="joined", HTTP={"FAIL_OPEN": True})
    settings.IDEMPOTENCY = {**settings.IDEMPOTENCY, "down": {"BACKEND": ASKED[asked]}}

    answer = api.then("nested", key=key)

    assert (answer.status_code >= 500, len(runs)) == (True, 1)
    assert "Idempotency-Stored" not in answer.headers
