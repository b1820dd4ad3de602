"""Sections A and E, R1 to R18, R49: keys, methods, what comes before the claim, duplicates."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from django.db import connection

from django_idempotency.conf import stores
from django_idempotency.http.plans import ViewPlan
from django_idempotency.models import IdempotencyRecord
from django_idempotency.policy import UNSAFE_METHODS, UNSET, HTTPPolicy
from tests.app.models import Effect
from tests.unit.http.api import problem, replayed
from tests.unit.http.views import BareView

pytestmark = pytest.mark.django_db

UUID4 = "8e03978e-40d5-43e8-bc93-6894a57f9324"
UUID7 = "01890a5d-ac96-774b-bcce-b302099a8057"
MISSING = (400, "idempotency_key_missing")


@pytest.mark.parametrize(
    ("given", "pages"),
    [("problems#", "problems#"), ("problems/", "problems/"), ("problems", "problems/")],
)
def test_R1_documentation_url_is_a_choice(api, policy, given, pages):
    policy(HTTP={"DOCUMENTATION_URL": f"https://shop.example/{given}"})

    page = api(key=None).json()["type"]

    assert page.startswith(f"https://shop.example/{pages}idempotency_key_missing")


def test_R1_required_by_the_setting_unless_the_view_decides(api, policy, mount):
    silent = type("Silent", (BareView,), {"idempotency_required": UNSET})
    deciding = type("Deciding", (BareView,), {"idempotency_required": False})
    policy(HTTP={"REQUIRED": True})

    assert problem(api(key=None, path=mount(silent))) == MISSING
    assert api(key=None, path=mount(deciding)).status_code == 201


BOUNDS = {"KEY_MIN_LENGTH": 10, "KEY_MAX_LENGTH": 20}
UUIDS, UUID7S = {"KEY_VALIDATOR": "uuid"}, {"KEY_VALIDATOR": "uuid7"}
POLICIES: list[tuple[dict[str, Any], str, int]] = [
    ({"STRICT_HEADER": True}, UUID4, 400),
    ({"STRICT_HEADER": True}, f'"{UUID4}"', 201),
    (BOUNDS, "k" * 9, 400),
    (BOUNDS, f'"{"k" * 20}"', 201),
    (BOUNDS, "k" * 21, 400),
    (UUIDS, UUID4.upper(), 201),
    (UUIDS, UUID7, 201),
    (UUIDS, UUID4.replace("-", ""), 400),
    (UUIDS, "order-1", 400),
    (UUID7S, UUID7, 201),
    (UUID7S, UUID4, 400),
]


@pytest.mark.parametrize(("http", "field", "status"), POLICIES)
def test_R4_R9_R10_policy_says_which_keys_are_taken(api, policy, runs, http, field, status):
    policy(HTTP=http)

    assert api(key=field).status_code == status
    assert len(runs) == (status == 201)


@pytest.mark.parametrize(("field", "echo"), [("abc", '"abc"'), (r'"a\"b\\c"', r'"a\"b\\c"')])
def test_R16_echo_key_returns_the_key(api, policy, field, echo):
    policy(HTTP={"ECHO_KEY": True})

    answers = [api(key=field), api(key=field)]

    assert [answer.headers["Idempotency-Key"] for answer in answers] == [echo, echo]


@pytest.mark.parametrize(
    ("methods", "guarded"),
    [(None, {"POST", "PUT", "PATCH", "DELETE"}), ({"PUT", "delete"}, {"PUT", "DELETE"})],
)
def test_R12_R13_safe_methods_pass_and_others_by_choice(rf, methods, guarded):
    policy = HTTPPolicy(methods=methods)
    plan = ViewPlan.of(replace(stores.configured("default"), http_policy=policy))
    every = [*UNSAFE_METHODS, "GET", "HEAD", "OPTIONS", "TRACE"]
    sent = [rf.generic(method, "/", headers={"Idempotency-Key": "key-1"}) for method in every]

    assert {r.method for r in sent if plan.guards(r)} == guarded


# What comes before the claim.


def test_R14_R15_what_reaches_no_code_of_the_view_claims_nothing(api):
    statuses = {
        401: [api(user=None, key='"malformed'), api(user=None, key=None)],
        404: [api(path="/nowhere/")],
        405: [api(method="PATCH")],
        406: [api(headers={"Accept": "application/xml"})],
    }

    assert all(answer.status_code == status for status in statuses for answer in statuses[status])
    assert not IdempotencyRecord.objects.exists()


def test_R15_R18_404_of_the_view_itself_leaves_the_key_free_and_an_action_replays(api, runs):
    refused = api(path="/set/999999/rename/")
    api({"name": "a"}, key="key-2", path="/set/")
    url = f"/set/{Effect.objects.get().pk}/rename/"

    renamed, again = api(path=url), api(path=url)

    assert (refused.status_code, renamed.status_code) == (404, 200)
    assert replayed(again)
    assert runs == ["a", "rename of a"]


# A duplicate while the first is at work.


@pytest.mark.django_db(transaction=True)
def test_R49_I12_outstanding_is_409_and_leaves_no_transaction_open(api, in_progress, mode, runs):
    api()
    in_progress()
    before = IdempotencyRecord.objects.values().get()

    response = api()

    assert problem(response) == (409, "in_progress")
    assert response.json()["title"] == "A request is outstanding for this Idempotency-Key"
    assert runs == ["first"]
    assert IdempotencyRecord.objects.values().get() == before
    assert not connection.in_atomic_block
    assert connection.get_autocommit()


def test_R37_R49_statuses_are_a_choice(api, in_progress, policy):
    policy(HTTP={"MISMATCH_STATUS": 409, "IN_PROGRESS_STATUS": 425})
    api()
    in_progress()

    assert problem(api()) == (425, "in_progress")
    assert problem(api({"name": "other"})) == (409, "idempotency_key_reused")
