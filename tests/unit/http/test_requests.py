"""Section A, R1 to R18: the key of a request, and which are guarded."""

from __future__ import annotations

from typing import Any

import pytest
from rest_framework.parsers import JSONParser

from django_idempotency.exceptions import InvalidKey
from django_idempotency.models import IdempotencyRecord
from django_idempotency.policy import UNSET
from tests.app.models import Effect
from tests.app.views import EffectView
from tests.unit.http.api import Api, problem, replayed
from tests.unit.http.conftest import Mount, SetPolicy
from tests.unit.http.views import BareView

pytestmark = pytest.mark.django_db

UUID4 = "8e03978e-40d5-43e8-bc93-6894a57f9324"
UUID7 = "01890a5d-ac96-774b-bcce-b302099a8057"
INVALID = (400, "idempotency_key_invalid")


def test_R1_required_and_missing_is_a_problem(api: Api, runs: list[str]) -> None:
    response = api(key=None)

    assert problem(response) == (400, "idempotency_key_missing")
    assert response.json()["title"] == "Idempotency-Key is missing"
    assert response.headers["Link"] == f'<{response.json()["type"]}>; rel="describedby"'
    assert runs == []
    assert not IdempotencyRecord.objects.exists()


@pytest.mark.parametrize(
    ("given", "pages"),
    [("problems#", "problems#"), ("problems/", "problems/"), ("problems", "problems/")],
)
def test_R1_documentation_url_is_a_choice(
    api: Api, policy: SetPolicy, given: str, pages: str
) -> None:
    policy(HTTP={"DOCUMENTATION_URL": f"https://shop.example/{given}"})

    page = api(key=None).json()["type"]

    assert page.startswith(f"https://shop.example/{pages}idempotency_key_missing")


def test_R1_required_by_the_setting_unless_the_view_decides(
    api: Api, policy: SetPolicy, mount: Mount
) -> None:
    silent = type("Silent", (BareView,), {"idempotency_required": UNSET})
    deciding = type("Deciding", (BareView,), {"idempotency_required": False})
    policy(HTTP={"REQUIRED": True})

    assert problem(api(key=None, path=mount(silent))) == (400, "idempotency_key_missing")
    assert api(key=None, path=mount(deciding)).status_code == 201


BOUNDS = {"KEY_MIN_LENGTH": 10, "KEY_MAX_LENGTH": 20}
POLICIES: list[tuple[dict[str, Any], str, int]] = [
    ({"STRICT_HEADER": True}, UUID4, 400),
    ({"STRICT_HEADER": True}, f'"{UUID4}"', 201),
    (BOUNDS, "k" * 9, 400),
    (BOUNDS, f'"{"k" * 20}"', 201),
    (BOUNDS, "k" * 21, 400),
    ({"KEY_VALIDATOR": "uuid"}, UUID4.upper(), 201),
    ({"KEY_VALIDATOR": "uuid"}, UUID7, 201),
    ({"KEY_VALIDATOR": "uuid"}, UUID4.replace("-", ""), 400),
    ({"KEY_VALIDATOR": "uuid"}, "{" + UUID4 + "}", 400),
    ({"KEY_VALIDATOR": "uuid"}, "order-1", 400),
    ({"KEY_VALIDATOR": "uuid7"}, UUID7, 201),
    ({"KEY_VALIDATOR": "uuid7"}, UUID4, 400),
    ({"KEY_VALIDATOR": "uuid7"}, "order-1", 400),
]


@pytest.mark.parametrize(("http", "field", "status"), POLICIES)
def test_R4_R9_R10_policy_says_which_keys_are_taken(
    api: Api, policy: SetPolicy, runs: list[str], http: dict[str, Any], field: str, status: int
) -> None:
    policy(HTTP=http)

    assert api(key=field).status_code == status
    assert len(runs) == (status == 201)


def test_R10_key_validator_as_a_method(api: Api, mount: Mount) -> None:
    class Orders(BareView):
        def idempotency_key_validator(self, key: str) -> None:
            if not key.startswith("order-"):
                raise InvalidKey("A key starts with order-.")

    url = mount(Orders)
    refused = api(key="payment-1", path=url)

    assert problem(refused) == INVALID
    assert refused.json()["detail"] == "A key starts with order-."
    assert api(key="order-1", path=url).status_code == 201


def test_header_can_have_another_name(api: Api, policy: SetPolicy) -> None:
    policy(HTTP={"HEADER": "X-Key"})

    first, again = (api(key=None, headers={"X-Key": "key-1"}) for _ in range(2))

    assert first.status_code == 201
    assert replayed(again)
    assert problem(api(key="key-1")) == (400, "idempotency_key_missing")


# What comes before the claim.


@pytest.mark.parametrize("key", ['"malformed', None])
def test_R14_refusal_comes_before_the_key_is_looked_at(api: Api, key: str | None) -> None:
    assert api(user=None, key=key).status_code == 401


@pytest.mark.parametrize(
    ("status", "arguments"),
    [
        (404, {"path": "/nowhere/"}),
        (405, {"method": "PATCH"}),
        (406, {"headers": {"Accept": "application/xml"}}),
    ],
)
def test_R15_what_reaches_no_code_of_the_view_claims_nothing(
    api: Api, status: int, arguments: dict[str, Any]
) -> None:
    assert api(**arguments).status_code == status
    assert not IdempotencyRecord.objects.exists()


class OnlyJSON(EffectView):
    parser_classes = [JSONParser]


@pytest.mark.parametrize(
    ("status", "body", "content_type"),
    [
        (415, "first", "text/plain"),
        (415, "name=first", "application/x-www-form-urlencoded"),
        (
            415,
            '--b\r\nContent-Disposition: form-data; name="name"\r\n\r\nfirst\r\n--b--\r\n',
            "multipart/form-data; boundary=b",
        ),
        (400, '{"name": ', "application/json"),
    ],
    ids=["text", "form", "multipart", "parse error"],
)
def test_R15_what_cannot_be_read_leaves_the_key_free(
    api: Api, mount: Mount, runs: list[str], status: int, body: str, content_type: str
) -> None:
    url = mount(OnlyJSON)

    refused = api(body, content_type=content_type, path=url)
    corrected = api({"name": "corrected"}, path=url)

    assert refused.status_code == status
    assert (corrected.status_code, replayed(corrected)) == (201, False)
    assert runs == ["corrected"]


def test_R15_404_of_the_view_itself_leaves_the_key_free(api: Api) -> None:
    refused = api(path="/set/999999/rename/")
    api({"name": "there"}, key="key-2", path="/set/")
    there = api(path=f"/set/{Effect.objects.get().pk}/rename/")

    assert refused.status_code == 404
    assert there.status_code == 200


def test_R18_router_and_action_url(api: Api, runs: list[str]) -> None:
    url = f"/set/{api({'name': 'a'}, path='/set/').json()['id']}/rename/"

    renamed, again = api(key="key-2", path=url), api(key="key-2", path=url)

    assert renamed.status_code == 200
    assert replayed(again)
    assert runs == ["a", "rename of a"]
