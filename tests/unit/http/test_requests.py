"""Section A, R1 to R18, as far as the contract of HTTP does not ask for it: keys and methods."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from rest_framework.parsers import JSONParser

from django_idempotency.conf import stores
from django_idempotency.exceptions import InvalidKey
from django_idempotency.http.plans import ViewPlan
from django_idempotency.models import IdempotencyRecord
from django_idempotency.policy import UNSAFE_METHODS, UNSET, HTTPPolicy
from tests.app.models import Effect
from tests.app.views import EffectView
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


def test_R10_key_validator_as_a_method(api, mount):
    class Orders(BareView):
        def idempotency_key_validator(self, key: str) -> None:
            if not key.startswith("order-"):
                raise InvalidKey("A key starts with order-.")

    url = mount(Orders)
    refused = api(key="payment-1", path=url)

    assert problem(refused) == (400, "idempotency_key_invalid")
    assert refused.json()["detail"] == "A key starts with order-."
    assert api(key="order-1", path=url).status_code == 201


def test_header_can_have_another_name(api, policy):
    policy(HTTP={"HEADER": "X-Key"})

    answers = [api(key=None, headers={"X-Key": "key-1"}) for _ in range(2)]

    assert [replayed(answer) for answer in answers] == [False, True]
    assert problem(api(key="key-1")) == MISSING


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


@pytest.mark.parametrize(
    ("status", "body", "content_type"),
    [
        (415, "first", "text/plain"),
        (415, "name=first", "application/x-www-form-urlencoded"),
        (400, '{"name": ', "application/json"),
    ],
)
def test_R15_what_cannot_be_read_leaves_the_key_free(api, mount, runs, status, body, content_type):
    url = mount(type("OnlyJSON", (EffectView,), {"parser_classes": [JSONParser]}))

    refused = api(body, content_type=content_type, path=url)
    corrected = api({"name": "corrected"}, path=url)

    assert refused.status_code == status
    assert (corrected.status_code, replayed(corrected)) == (201, False)
    assert runs == ["corrected"]


def test_R15_R18_404_of_the_view_itself_leaves_the_key_free_and_an_action_replays(api, runs):
    refused = api(path="/set/999999/rename/")
    api({"name": "a"}, key="key-2", path="/set/")
    url = f"/set/{Effect.objects.get().pk}/rename/"

    renamed, again = api(path=url), api(path=url)

    assert (refused.status_code, renamed.status_code) == (404, 200)
    assert replayed(again)
    assert runs == ["a", "rename of a"]
