"""The transaction of a view: who opens it, what another connection sees, when its hooks run."""

from __future__ import annotations

import pytest
from django.db import transaction

from django_idempotency.models import IdempotencyRecord
from tests.app.models import Effect
from tests.app.views import Refusal
from tests.integration.database.claims import effects
from tests.unit.http.api import problem, replayed

BOTH = ["default", "other"]
pytestmark = [
    pytest.mark.django_db(transaction=True, databases=BOTH),
    pytest.mark.leg("postgres18", "sqlite"),
]


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
    told(lambda: [other(states), other(effects)])
    response = api(path="/told/")
    claim = [] if mode == "single" else ["IN_PROGRESS"]
    committed = ["first"] if mode == "separate" and not atomic_requests else []
    assert (response.status_code, response.json()) == (201, {"done": [claim, committed]})
    assert other(effects) == ["first"]


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


# R86: hooks.


@commits([("joined", False), ("separate", False)])
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
    assert effects() == []


# Which transactions are open in a view that is guarded. Two databases.


#: Mode, ATOMIC_REQUESTS and request, and the aliases on which a transaction is open in the view.
OPEN = {
    "an exempt view whose method is not guarded": ("separate", True, "GET /non-atomic/", ["other"]),
    "an exempt view": ("separate", True, "POST /non-atomic/", ["other"]),
    "a view exempt on the other alias": ("separate", True, "POST /non-atomic-other/", ["default"]),
    "a view exempt in the URLconf": ("separate", True, "POST /non-atomic-url/", ["other"]),
    "an exempt view that joins": ("joined", True, "POST /non-atomic/", BOTH),
    "one that joins, exempt elsewhere": ("joined", True, "POST /non-atomic-other/", ["default"]),
    "no ATOMIC_REQUESTS, not guarded": ("joined", False, "GET /atomic/", []),
    "no ATOMIC_REQUESTS": ("joined", False, "POST /atomic/", ["default"]),
}


@pytest.mark.parametrize(
    ("mode", "atomic_requests", "sent", "expected"),
    OPEN.values(),
    ids=OPEN,
    indirect=["mode", "atomic_requests"],
)
def test_transactions_that_are_open_in_a_view(api, mode, atomic_requests, sent, expected):
    method, path = sent.split()
    assert api(path=path, method=method).json() == expected
