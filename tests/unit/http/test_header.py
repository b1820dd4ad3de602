"""Section A, R1 to R11, R16: the key of a request. How it is spelt is in core/test_keys.py."""

from __future__ import annotations

from typing import Any

import pytest

from django_idempotency.exceptions import InvalidKey
from django_idempotency.models import IdempotencyRecord
from django_idempotency.policy import UNSET
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


def test_R2_optional_and_missing_runs_each_time_without_a_scope(api: Api, runs: list[str]) -> None:
    first, again = (api(key=None, user=None, path="/optional/") for _ in range(2))

    assert (first.status_code, again.status_code) == (201, 201)
    assert not replayed(again)
    assert len(runs) == 2
    assert not IdempotencyRecord.objects.exists()


@pytest.mark.parametrize(
    ("field", "key"), [(f'"{UUID4}"', UUID4), (UUID4, UUID4), (r'"a\"b\\c";v=1', r'a"b\c')]
)
def test_R3_key_of_the_field_is_the_key_of_the_record(api: Api, field: str, key: str) -> None:
    assert api(key=field).status_code == 201
    assert IdempotencyRecord.objects.get().key == key


@pytest.mark.parametrize("field", ['"abc', "a\x1fb", "a\xe9b", '"a", "b"', "a,b", "k" * 256])
def test_R5_R7_R9_field_that_is_no_key_is_400(api: Api, runs: list[str], field: str) -> None:
    assert problem(api(key=field)) == INVALID
    assert runs == []
    assert not IdempotencyRecord.objects.exists()


@pytest.mark.parametrize("field", ["", " ", '""'])
@pytest.mark.parametrize("path", ["/effects/", "/optional/"], ids=["required", "optional"])
def test_R8_empty_is_invalid_and_not_missing(
    api: Api, runs: list[str], field: str, path: str
) -> None:
    response = api(key=field, path=path)

    assert problem(response) == INVALID
    assert response.json()["title"] == "Idempotency-Key is invalid"
    assert runs == []


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


def test_R11_keys_are_compared_byte_by_byte(api: Api, runs: list[str]) -> None:
    fields = ["Key", "key", '"key "', '" key"', "%", "_", "*", ".*", "k" * 254 + "a", "k" * 255]

    assert not any(replayed(api(key=field)) for field in fields)
    assert len(runs) == len(fields)


@pytest.mark.parametrize(("field", "echo"), [("abc", '"abc"'), (r'"a\"b\\c"', r'"a\"b\\c"')])
def test_R16_echo_key_returns_the_key(api: Api, policy: SetPolicy, field: str, echo: str) -> None:
    policy(HTTP={"ECHO_KEY": True})

    first, again = api(key=field), api(key=field)

    assert first.headers["Idempotency-Key"] == echo
    assert replayed(again)
    assert again.headers["Idempotency-Key"] == echo


def test_R16_without_it_the_key_is_not_returned(api: Api) -> None:
    assert "Idempotency-Key" not in api().headers
    assert "Idempotency-Key" not in api().headers


def test_header_can_have_another_name(api: Api, policy: SetPolicy) -> None:
    policy(HTTP={"HEADER": "X-Key"})

    first, again = (api(key=None, headers={"X-Key": "key-1"}) for _ in range(2))

    assert first.status_code == 201
    assert replayed(again)
    assert problem(api(key="key-1")) == (400, "idempotency_key_missing")
