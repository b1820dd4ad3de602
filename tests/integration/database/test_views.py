"""The transaction of a view: who opens it, what another connection sees, when its hooks run."""

from __future__ import annotations

import pytest
from django.db import transaction
from django.db.transaction import TransactionManagementError

from django_idempotency.models import IdempotencyRecord
from django_idempotency.records import State
from tests.app.models import Effect
from tests.app.views import Refusal
from tests.integration.database import claims
from tests.integration.database.claims import Boom, effects
from tests.unit.http.api import problem, replayed

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.leg("postgres18", "sqlite")]


def states():
    """The states of all records that this session sees."""
    return list(IdempotencyRecord.objects.values_list("state", flat=True))


PAIRS = [("single", False), ("joined", False), ("separate", False), ("separate", True)]


def commits(pairs):
    """In these modes, without ATOMIC_REQUESTS or with it."""
    return pytest.mark.parametrize(("mode", "atomic_requests"), pairs, indirect=True)


# R83


@commits(PAIRS)
def test_R83_claim_is_visible_to_others_while_the_view_runs(
    api, told, other, mode, atomic_requests
):
    told(lambda: other(states))
    response = api(path="/told/")
    seen = [] if mode == "single" else [State.IN_PROGRESS.value]
    assert (response.status_code, response.json()) == (201, {"done": seen})


@commits(PAIRS)
def test_R83_work_is_visible_to_others_when_the_view_has_ended(
    api, told, other, mode, atomic_requests
):
    told(lambda: other(effects))
    response = api(path="/told/")
    committed = mode == "separate" and not atomic_requests
    assert response.json() == {"done": ["first"] if committed else []}
    assert other(effects) == ["first"]


@pytest.mark.leg("postgres18")
@commits([("joined", False), ("joined", True)])
def test_R66_R83_rows_of_a_view_that_lost_its_lease_are_rolled_back(
    api, told, other, mode, atomic_requests
):
    hooks = []

    def take_over():
        IdempotencyRecord.objects.update(lease_until=claims.LONG_AGO)
        told(lambda: "theirs")
        return api({"name": "theirs"}, key="key-1", path="/told/")

    def stall():
        transaction.on_commit(lambda: hooks.append("late"))
        other(take_over)

    told(stall)
    assert problem(api({"name": "theirs"}, path="/told/")) == (409, "lease_lost")
    assert effects() == ["theirs"]
    assert hooks == []
    again = api({"name": "theirs"}, path="/told/")
    assert (again.json(), replayed(again)) == ({"done": "theirs"}, True)


# R85: the transaction of the caller.


def test_R85_lost_claim_does_not_poison_the_transaction_of_the_caller(api, atomic_requests):
    api()
    IdempotencyRecord.objects.update(state="IN_PROGRESS", lease_until="2100-01-01T00:00Z")
    with transaction.atomic():
        Effect.objects.create(name="before")
        assert problem(api()) == (409, "in_progress")
        assert problem(api({"name": "another"})) == (422, "idempotency_key_reused")
        Effect.objects.create(name="after")
    assert effects() == ["first", "before", "after"]


def test_R85_R86_rollback_of_the_caller_takes_record_and_hook_with_it(api, atomic_requests):
    with transaction.atomic():
        assert api.then("hook").status_code == 201
        assert replayed(api.then("hook"))
        assert effects() == ["first"]
        transaction.set_rollback(True)
    assert (states(), effects()) == ([], [])
    assert not replayed(api.then("hook"))
    assert effects() == ["first", "hook of first"]


# R86: hooks.


@commits([("single", True), ("joined", False), ("separate", False)])
def test_R86_hook_runs_once_and_not_on_a_replay(api, mode, atomic_requests):
    assert api.then("hook").status_code == 201
    assert replayed(api.then("hook"))
    assert effects() == ["first", "hook of first"]


@pytest.mark.parametrize(
    ("status", "mode", "atomic_requests"),
    [
        pytest.param(409, "joined", False, id="kept-joined"),
        pytest.param(403, "single", True, id="released-single"),
        pytest.param(503, "separate", True, id="failed-separate"),
        pytest.param(409, "separate", False, id="kept-separate"),
    ],
    indirect=["mode", "atomic_requests"],
)
def test_R86_hook_of_work_that_is_rolled_back_does_not_run(
    api, told, mode, atomic_requests, status
):
    def fail():
        transaction.on_commit(lambda: Effect.objects.create(name="hook"))
        raise Refusal(status)

    told(fail)
    assert api(path="/told/").status_code == status
    if mode == "separate" and not atomic_requests:  # no transaction: Django runs hooks at once
        assert effects() == ["first", "hook"]
    else:
        assert effects() == []


# A view that marks its transaction for rollback.


@commits(PAIRS)
def test_R57_view_that_marks_its_transaction_has_done_nothing(api, mode, atomic_requests):
    if mode == "separate" and not atomic_requests:
        with pytest.raises(TransactionManagementError):  # as Django has it: there is none
            api.then("rolled_back")
        return
    first = api.then("rolled_back")
    assert (first.status_code, replayed(first)) == (409, False)
    assert effects() == []
    assert not replayed(api.then("rolled_back"))
    assert states() == ["FAILED"]


# Which transactions are open in a view that is guarded. Two databases.

BOTH = ["default", "other"]


@pytest.mark.django_db(transaction=True, databases=BOTH)
@pytest.mark.parametrize(
    ("mode", "both_atomic", "method", "path", "expected"),
    [
        # non_atomic_requests is respected, whether the guard has something to do or not,
        *(
            ("separate", True, method, path, expected)
            for method in ("GET", "POST")
            for path, expected in (
                ("/atomic/", BOTH),
                ("/non-atomic/", ["other"]),
                ("/non-atomic-other/", ["default"]),
                ("/non-atomic-url/", ["other"]),
            )
        ),
        # but the store opens its own transaction in any case,
        ("joined", True, "POST", "/non-atomic/", BOTH),
        ("single", True, "POST", "/non-atomic/", BOTH),
        ("joined", True, "POST", "/non-atomic-other/", ["default"]),
        # and no other one is open without ATOMIC_REQUESTS.
        ("joined", False, "GET", "/atomic/", []),
        ("joined", False, "POST", "/atomic/", ["default"]),
        ("separate", False, "POST", "/atomic/", []),
    ],
    indirect=["mode", "both_atomic"],
)
def test_transactions_that_are_open_in_a_view(api, mode, both_atomic, method, path, expected):
    assert api(path=path, method=method).json() == expected


@pytest.mark.django_db(transaction=True, databases=BOTH)
@pytest.mark.parametrize("using", BOTH)
def test_R57_work_on_two_databases_commits_or_rolls_back(api, told, using, both_atomic, settings):
    """Without ATOMIC_REQUESTS only that of the store has a transaction."""
    settings.IDEMPOTENCY = {"default": {"OPTIONS": {"using": using}}}

    def write_to_both():
        Effect.objects.using("other").create(name="other")

    def fail_on_both():
        write_to_both()
        raise Boom

    told(write_to_both)
    assert api(path="/told/").status_code == 201
    assert replayed(api(path="/told/"))
    assert (effects(), effects("other")) == (["first"], ["other"])
    assert IdempotencyRecord.objects.using(using).get().state == "COMPLETED"

    for alias in BOTH:
        Effect.objects.using(alias).all().delete()
        IdempotencyRecord.objects.using(alias).all().delete()
    told(fail_on_both)
    with pytest.raises(Boom):
        api(path="/told/")
    left = {"default": effects(), "other": effects("other")}
    assert left.pop(using) == []
    assert [len(names) for names in left.values()] == [0 if both_atomic else 1]
    assert IdempotencyRecord.objects.using(using).get().state == "FAILED"
